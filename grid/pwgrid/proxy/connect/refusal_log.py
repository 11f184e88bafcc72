"""Logs refused connects and borrows: the first of a host at once, further ones as a count."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

import structlog

from pwgrid.proxy.policy.refusal import Refusal

log = structlog.get_logger()

WINDOW_S: Final = 10.0
MAX_HOSTS: Final = 1000
"""Hosts beyond these share one count."""

_OTHERS: Final = "others"

Asked = Literal["connect", "borrow"]
"""What a client had asked for."""

_ONE: Final[dict[Asked, str]] = {"connect": "connect_refused", "borrow": "borrow_refused"}
_MORE: Final[dict[Asked, str]] = {"connect": "connects_refused", "borrow": "borrows_refused"}

_Key = tuple[str, int, Asked]
"""Host and status."""


@dataclass(slots=True)
class _Window:
    times: int = 0
    error: str = ""


class RefusalLog:
    """A client that tries again and again, or a scanner, costs one line for each status in `WINDOW_S`."""

    def __init__(self, on_line: Callable[[Asked, int, int, str], None] = lambda *_line: None) -> None:
        self.on_line = on_line
        """Called with each line: what was refused, how often, status, sentence."""
        self._windows: dict[_Key, _Window] = {}

    def note(self, refusal: Refusal, host: str, client: str, asked: Asked = "connect") -> None:
        """Logs or counts a refusal. `client` is the client's name in the log."""
        key: _Key = (host, refusal.status, asked)
        if key not in self._windows and len(self._windows) >= MAX_HOSTS:
            key = (_OTHERS, refusal.status, asked)
        if window := self._windows.get(key):
            window.times += 1
            window.error = refusal.error
        else:
            log.info(_ONE[asked], status=refusal.status, error=refusal.error, client=client)
            self.on_line(asked, 1, refusal.status, refusal.error)
            self._open(key)

    def flush(self) -> None:
        """Logs all counts, and starts anew."""
        for key in list(self._windows):
            self._close(key)

    def _open(self, key: _Key) -> None:
        self._windows[key] = _Window()
        asyncio.get_running_loop().call_later(WINDOW_S, self._next, key)

    def _next(self, key: _Key) -> None:
        if self._close(key):
            self._open(key)  # refusals go on, so that no single lines follow

    def _close(self, key: _Key) -> bool:
        """Ends a window and logs its count. Returns whether there was anything to log."""
        window = self._windows.pop(key, None)
        if window is None or not window.times:
            return False
        host, status, asked = key
        self.on_line(asked, window.times, status, window.error)
        log.info(_MORE[asked], times=window.times, within_s=WINDOW_S, status=status, error=window.error, host=host)
        return True
