"""Logs refused clients: the first of a host at once, what follows as a count. Refuses nobody itself."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import structlog

from pwgrid.proxy.policy.upgrade_request import Refusal

log = structlog.get_logger()

WINDOW_S: Final = 10.0
MAX_HOSTS: Final = 1000
"""More hosts than these in one window share a count."""

_OTHERS: Final = "others"


@dataclass(slots=True)
class _Window:
    times: int = 0
    error: str = ""


class RefusalLog:
    """A client that tries again and again, or a scanner, gets one line for each status and `WINDOW_S`."""

    def __init__(self, on_line: Callable[[int, int, str], None] = lambda _times, _status, _error: None) -> None:
        self.on_line = on_line
        """Is called with each line: how many clients, status and sentence."""
        self._windows: dict[tuple[str, int], _Window] = {}

    def note(self, refusal: Refusal, host: str, client: str) -> None:
        """`host` was refused; `client` is what it is called in the log."""
        key = (host, refusal.status)
        if key not in self._windows and len(self._windows) >= MAX_HOSTS:
            key = (_OTHERS, refusal.status)
        if window := self._windows.get(key):
            window.times += 1
            window.error = refusal.error
        else:
            log.info("upgrade_refused", status=refusal.status, error=refusal.error, client=client)
            self.on_line(1, refusal.status, refusal.error)
            self._open(key)

    def flush(self) -> None:
        """Logs what has been counted until now."""
        for key in list(self._windows):
            self._close(key)

    def _open(self, key: tuple[str, int]) -> None:
        self._windows[key] = _Window()
        asyncio.get_running_loop().call_later(WINDOW_S, self._next, key)

    def _next(self, key: tuple[str, int]) -> None:
        if self._close(key):
            self._open(key)  # it goes on: no single lines

    def _close(self, key: tuple[str, int]) -> bool:
        """Ends a window; whether there was something in it."""
        window = self._windows.pop(key, None)
        if window is None or not window.times:
            return False
        host, status = key
        self.on_line(window.times, status, window.error)
        log.info(
            "upgrades_refused", times=window.times, within_s=WINDOW_S, status=status, error=window.error, host=host
        )
        return True
