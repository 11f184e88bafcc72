"""Logs one event per line to stderr. Takes no lock, starts no thread, raises nothing for a broken stderr.

Events are names with fields: `log.info("worker_exited", pid=7, signal="SIGKILL")`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

LEVELS: Final = {"debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}


def configure(level: str, log_format: str, role: str, **bound: object) -> None:
    """Sets what is logged ("debug" … "critical"), how ("text" or "json"), and which fields every event carries.

    To be called once in each process, in a forked child again. Also takes over the standard library's logging (uvicorn,
    asyncio) from WARNING on. What a logger's `bind()` returned before the call keeps the old configuration.
    Raises KeyError for a level that does not exist.
    """
    from pwgrid.common import log_output

    log_output.configure(LEVELS[level], log_format == "json", {"role": role, **bound})


def get_logger(**bound: object) -> FilteringBoundLogger:
    """A logger whose events carry the fields `bound`. May be made before `configure`, and before a fork."""
    return cast("FilteringBoundLogger", _LateLogger(bound))


class _LateLogger:
    """Becomes a structlog logger at each use, so that importing a module that logs costs nothing."""

    def __init__(self, bound: dict[str, object]) -> None:
        self._bound = bound

    def __getattr__(self, name: str) -> Any:
        import structlog

        if not structlog.is_configured():
            configure("info", "text", "")
        return getattr(structlog.get_logger(**self._bound), name)
