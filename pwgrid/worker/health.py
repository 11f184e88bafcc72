"""Watches whether a browser server answers, and whether its browser works. Reports what it finds, ends nothing."""

import asyncio
import random
from collections.abc import Callable
from typing import Final

import structlog

from pwgrid.control.frozen_peer import FrozenPeerDetector
from pwgrid.worker.browser.server import BrowserServer, CanaryResult

log = structlog.get_logger()

PING_S: Final = 3.0
CANARY_TRIES: Final = 2
_SPREAD: Final = 0.1


async def wait_until_hung(server: BrowserServer, limit_s: float) -> None:
    """Pings the browser server; returns when it has left a ping unanswered for `limit_s`: it is hung, or gone."""
    loop = asyncio.get_running_loop()
    while True:
        silence, pong = FrozenPeerDetector(limit_s, loop.time()), asyncio.create_task(server.ping())
        try:
            while not pong.done():
                await asyncio.wait([pong], timeout=silence.look_at - loop.time())
                if not pong.done() and silence.is_over(loop.time()):
                    return
        finally:
            pong.cancel()
        await asyncio.sleep(PING_S)


async def wait_until_sick(
    server: BrowserServer,
    is_idle: Callable[[], bool],
    interval_s: float,
    timeout_s: float,
    on_tried: Callable[[CanaryResult], None],
) -> str | None:
    """Tries an idle browser every `interval_s`, a bit more or less: else the workers of a host, which start together,
    would do it together. Returns the last error when CANARY_TRIES in a row have failed, or None when the browser or its
    server is gone, which others report. Calls `on_tried` after each try, except when the browser is gone."""
    while True:
        await asyncio.sleep(interval_s * random.uniform(1 - _SPREAD, 1 + _SPREAD))
        evidence: list[str] = []
        while is_idle() and len(evidence) < CANARY_TRIES:
            result = await server.canary(timeout_s)
            if server.is_gone:
                return None
            on_tried(result)
            if result.ok:
                break
            evidence.append(result.error)
            log.warning("canary_failed", error=result.error, ms=result.duration_ms)
        if len(evidence) == CANARY_TRIES:
            return evidence[-1]
