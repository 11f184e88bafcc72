"""What a changed configuration means for a running grid: refused, scaled, recycled, replaced; changes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from pwgrid.common.types import BROWSER_TYPES, BrowserType

Part = Literal["fixed", "pool", "master", "proxy", "worker", "chromium", "firefox", "webkit"]

_PROXY: Final[tuple[Part, ...]] = ("proxy",)
_WORKER: Final[tuple[Part, ...]] = ("worker",)
_BOTH: Final[tuple[Part, ...]] = ("proxy", "worker")
_MASTER: Final[tuple[Part, ...]] = ("master",)
_FIXED: Final[tuple[Part, ...]] = ("fixed",)
_POOL: Final[tuple[Part, ...]] = ("pool",)

PARTS: Final[dict[str, tuple[Part, ...]]] = {
    "host": _FIXED,
    "port": _FIXED,
    "runtime_dir": _FIXED,
    "advertised_host": _FIXED,
    "redis_url": _FIXED,
    "redis_host": _FIXED,
    "redis_port": _FIXED,
    "redis_key_ttl": _FIXED,
    "redis_retry_attempts": _FIXED,
    "redis_retry_delay": _FIXED,
    "redis_key_prefix": _FIXED,
    "redis_timeout": _FIXED,
    "chromium_workers": _POOL,
    "firefox_workers": _POOL,
    "webkit_workers": _POOL,
    "allow_public": _PROXY,
    "token": _PROXY,
    "allowed_origins": _PROXY,
    "default_browser_type": _PROXY,
    "max_lifetime_sessions": _BOTH,
    "worker_select_timeout": _PROXY,
    "max_queue": _PROXY,
    "reaper_run_interval": _PROXY,
    "max_concurrent_sessions": _BOTH,
    "session_ping_timeout": _BOTH,
    "compression": _BOTH,
    "session_history_ttl": _BOTH,
    "session_history_max": _BOTH,
    "shutdown_command_ttl": _BOTH,
    "stale_threshold": _BOTH,
    "worker_lost_threshold": _BOTH,
    "log_level": _BOTH,
    "log_format": _BOTH,
    "session_idle_timeout": _WORKER,
    "session_max_duration": _WORKER,
    "headless": _WORKER,
    "chromium_executable": ("chromium",),
    "firefox_executable": ("firefox",),
    "webkit_executable": ("webkit",),
    "chromium_sandbox": ("chromium",),
    "chromium_args": ("chromium",),
    "launch_timeout": _WORKER,
    "launcher": _WORKER,
    "heartbeat_interval": _WORKER,
    "drain_timeout": _WORKER,
    "canary_interval": _WORKER,
    "canary_timeout": _WORKER,
    "max_worker_age": _MASTER,
    "max_surge": _MASTER,
    "rss_check_interval": _MASTER,
    "memory_metric": _MASTER,
    "max_worker_rss_mib": _MASTER,
    "max_worker_rss_hard_mib": _MASTER,
    "min_host_available_mib": _MASTER,
}
"""Who has to be told of each setting. What is not in the table concerns the proxy and all workers: too much is safe."""

Values = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Change:
    """What to do. `refused` names the settings that cannot change while the grid runs; then nothing else is done."""

    refused: tuple[str, ...] = ()
    scale: dict[BrowserType, int] = field(default_factory=dict)
    recycle: tuple[BrowserType, ...] = ()
    replace_proxy: bool = False
    changed: tuple[str, ...] = ()


def compare(old: Values, new: Values) -> Change:
    """What it takes to get from the settings `old` to `new`, both by name."""
    changed = tuple(name for name in new if old.get(name) != new[name])
    parts = {part for name in changed for part in parts_of(name)}
    refused = tuple(name for name in changed if "fixed" in parts_of(name))
    if refused:
        return Change(refused=refused, changed=changed)
    return Change(
        scale={each: int(str(new[f"{each}_workers"])) for each in BROWSER_TYPES if f"{each}_workers" in changed},
        recycle=tuple(each for each in BROWSER_TYPES if parts & {"worker", each}),
        replace_proxy="proxy" in parts,
        changed=changed,
    )


def parts_of(name: str) -> tuple[Part, ...]:
    """Whom this setting concerns."""
    return PARTS.get(name, _BOTH)


def concerning(values: Values, *parts: Part) -> list[tuple[str, object]]:
    """The settings that concern any of `parts`, in the order of their names: what a child was forked with."""
    return sorted((name, value) for name, value in values.items() if set(parts) & set(parts_of(name)))
