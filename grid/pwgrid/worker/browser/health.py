"""Finds out whether a browser and its browser server work, also while sessions are live.

- Both are asked every few seconds. One that leaves a question unanswered is suspected, and hung once it was silent for
  WORKER_LOST_THRESHOLD.
- The canary opens a page, regularly and at once on a sign: a client's page that does not come, a page whose process
  could not be started, a failed handoff. A browser that fails CANARY_TRIES times in a row is sick. Tries that got no
  answer in time while the host was short of processors do not count, up to BUSY_TRIES of them.

While anything is suspected the worker takes no new client.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Protocol

import structlog

from pwgrid.common.cpu_pressure import short_of_cpu_s
from pwgrid.common.launch_failure import why
from pwgrid.control.frozen_peer import LATE_S, FrozenPeerDetector
from pwgrid.settings.model import Settings

log = structlog.get_logger()

CANARY_TRIES: Final = 2
BUSY_TRIES: Final = 2
"""To replace a browser because its host is busy makes that host busier, and costs those who wait for its pages."""

REST_S: Final = 5.0
"""After a sign that turned out to be none: no further sign keeps clients away for so long. A page can make signs."""

_SPREAD: Final = 0.1
_LONGEST_ASK_S: Final = 3.0
_SHORTEST_SIGN_S, _LONGEST_SIGN_S = 2.0, 5.0
_SHORTEST_TRY_S: Final = 2.0
_SHORTEST_SILENCE_S: Final = 3.0
_BUSY: Final = 0.75
"""The part of a try for which a process has waited for a processor, from which on the host is short of them."""
_LATE: Final = 0.9
"""The part of a try's timeout from which on its failure is one to answer in time."""


class Asked(StrEnum):
    """Which of the two is asked."""

    SERVER = "browser server"
    BROWSER = "browser"


_CANARY: Final = "canary"


@dataclass(frozen=True, slots=True)
class HealthTimes:
    """The times of the checks, in seconds."""

    silent_s: float
    """Who is silent for so long is hung."""
    ask_s: float
    """Between an answer and the next question."""
    sign_s: float
    """What is unanswered for so long is a sign: a question, or a client's call for a context or a page."""
    canary_interval_s: float
    """0: the canary opens pages only on signs."""
    canary_timeout_s: float
    try_s: float
    """How long one try of the canary may take after a sign."""

    @classmethod
    def of(cls, settings: Settings) -> HealthTimes:
        """A sign and all tries after it take less than WORKER_LOST_THRESHOLD together, unless that is very short: then
        an overloaded host would look like a sick or hung browser."""
        silent_s, timeout_s = max(_SHORTEST_SILENCE_S, settings.worker_lost_threshold), settings.canary_timeout
        sign_s = min(_LONGEST_SIGN_S, max(_SHORTEST_SIGN_S, silent_s / 6))
        try_s = max(_SHORTEST_TRY_S, (silent_s - sign_s) * 0.8 / CANARY_TRIES)
        ask_s = min(_LONGEST_ASK_S, silent_s / 6)
        return cls(silent_s, ask_s, sign_s, settings.canary_interval, timeout_s, min(timeout_s, try_s))


@dataclass(frozen=True, slots=True)
class CanaryResult:
    """Whether a context, a page and an evaluate worked; if not, `error` says why."""

    ok: bool
    error: str
    duration_ms: int

    def is_late(self, timeout_s: float) -> bool:
        """Whether it failed only because nothing came within `timeout_s`."""
        return not self.ok and self.duration_ms >= timeout_s * 1000 * _LATE


Answer = AbstractContextManager["asyncio.Future[dict[str, Any]]"]
"""To a question. The future gets it; nobody waits for it after the block."""


class AskedServer(Protocol):
    """The browser server that is asked, and its browser (server.py)."""

    browser_heard_at: float

    @property
    def is_gone(self) -> bool: ...

    def ping(self) -> Answer: ...

    def ask_browser(self) -> Answer: ...

    async def canary(self, timeout_s: float) -> CanaryResult: ...


class BrowserHealth:
    """The health of one browser and its server. Calls `on_suspicion` with each change: why no new client should come
    now, or None if one may."""

    def __init__(
        self,
        server: AskedServer,
        times: HealthTimes,
        on_suspicion: Callable[[str | None], None],
        short_of_cpu_s: Callable[[], float | None] = short_of_cpu_s,
    ) -> None:
        self.times = times
        self._short_of_cpu_s = short_of_cpu_s
        self._server = server
        self._on_suspicion = on_suspicion
        self._loop = asyncio.get_running_loop()
        self._doubts: dict[str, str] = {}
        """Why something is suspected, by who is asked, or the canary."""
        self._sign = ""
        """The last one."""
        self._is_signed = asyncio.Event()
        self._rests_until = 0.0

    def __repr__(self) -> str:
        return f"<BrowserHealth {self._suspicion() or 'well'}>"

    def sign(self, what: str) -> None:
        """Makes the canary open a page at once. One try answers all signs before it."""
        self._sign = what
        self._is_signed.set()

    async def until_hung(self, who: Asked) -> None:
        """Asks every few seconds; returns when no answer has come for too long."""
        ask = self._server.ping if who is Asked.SERVER else self._server.ask_browser
        while True:
            silence = FrozenPeerDetector(self.times.silent_s, self._loop.time())
            await asyncio.sleep(self.times.ask_s)
            with ask() as answer:
                if not await self._answered(who, answer, silence):
                    return
            self._trust(who)

    async def _answered(self, who: Asked, answer: asyncio.Future[Any], silence: FrozenPeerDetector) -> bool:
        suspect_at = self._loop.time() + self.times.sign_s
        while not answer.done():
            await asyncio.wait([answer], timeout=max(0.0, min(silence.look_at, suspect_at) - self._loop.time()))
            now = self._loop.time()
            if answer.done():
                break
            if who is Asked.BROWSER:
                self._heard_meanwhile(silence, now)
            if silence.is_over(now):
                return False
            if now >= suspect_at:
                if now - suspect_at <= LATE_S:  # else this process was frozen, and the answer may be unread
                    self._doubt(who, f"the {who} does not answer")
                suspect_at = now + self.times.sign_s
        return True

    def _heard_meanwhile(self, silence: FrozenPeerDetector, now: float) -> None:
        """Takes what the browser says without being asked as a sign of life: it may be busy with one large task after
        the other. While its server is silent, nobody can know what it says."""
        silence.heard(now if Asked.SERVER in self._doubts else self._server.browser_heard_at)

    async def until_sick(self, on_tried: Callable[[CanaryResult], None]) -> str | None:
        """Opens a page every `canary_interval_s`, a bit more or less: else the workers of a host, which start together,
        would do it together. And at once on a sign.

        Returns the last error when CANARY_TRIES in a row have failed, without those that do not count; None when the
        browser or its server is gone, which others report. Calls `on_tried` after each try, except when the browser is
        gone."""
        while True:
            sign = await self._next_sign()
            if sign is not None:
                self._doubt(_CANARY, sign)
            timeout_s = self.times.canary_timeout_s if sign is None else self.times.try_s
            error = await self._try(timeout_s, on_tried)
            if error is not None or self._server.is_gone:
                return error
            self._trust(_CANARY)
            if sign is not None:
                self._rests_until = self._loop.time() + REST_S

    async def _try(self, timeout_s: float, on_tried: Callable[[CanaryResult], None]) -> str | None:
        """Has the canary open a page until it does, or the browser is gone; returns the last error if it is sick."""
        counted = excused = 0
        while True:
            short_before_s = self._short_of_cpu_s()
            result = await self._server.canary(timeout_s)
            if self._server.is_gone:
                return None
            on_tried(result)
            if result.ok:
                return None
            is_busy = result.is_late(timeout_s) and self._was_busy(short_before_s, timeout_s)
            log.warning("canary_failed", error=result.error, ms=result.duration_ms, host_is_busy=is_busy)
            self._doubt(_CANARY, f"the canary failed: {why(result.error)}")
            if is_busy and excused < BUSY_TRIES:
                excused += 1
            else:
                counted += 1
            if counted == CANARY_TRIES:
                return result.error

    def _was_busy(self, short_before_s: float | None, seconds: float) -> bool:
        """Whether the host was short of processors for most of the last `seconds`."""
        short_s = self._short_of_cpu_s()
        return short_before_s is not None and short_s is not None and short_s - short_before_s >= seconds * _BUSY

    async def _next_sign(self) -> str | None:
        """Waits for a sign, and returns it; None if it is time to try the browser anyway."""
        interval_s = self.times.canary_interval_s * random.uniform(1 - _SPREAD, 1 + _SPREAD)
        try:
            async with asyncio.timeout(interval_s or None):
                await self._is_signed.wait()
        except TimeoutError:
            return None
        await asyncio.sleep(max(0.0, self._rests_until - self._loop.time()))
        self._is_signed.clear()
        return self._sign

    def _doubt(self, who: str, reason: str) -> None:
        if who not in self._doubts:
            log.warning("worker_suspect", reason=reason)
        self._doubts[who] = reason
        self._on_suspicion(self._suspicion())

    def _trust(self, who: str) -> None:
        if self._doubts.pop(who, None) is not None:
            self._on_suspicion(self._suspicion())

    def _suspicion(self) -> str | None:
        return next(iter(self._doubts.values()), None)
