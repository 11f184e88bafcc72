"""What the proxy knows of pools and workers from the master. A view only: the master decides, the workers admit."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pwgrid.common.types import BROWSER_TYPES, BrowserType


@dataclass(frozen=True, slots=True)
class PoolView:
    """`wanted` and `available` count workers; `reason` says why the pool is short of them; `drain_timeouts` counts the
    drains that cut sessions."""

    wanted: int
    available: int
    reason: str | None
    drain_timeouts: int = 0


@dataclass(frozen=True, slots=True)
class WorkerView:
    """One live worker; `playwright_version` is major.minor."""

    worker_id: str
    browser_type: BrowserType
    status: str
    playwright_version: str | None


@dataclass(slots=True)
class Roster:
    """The master's latest word, replaced whole by each `state` frame. `lost`: why that means nothing any more."""

    stopping: bool = False
    lost: str | None = None
    host_guard: str | None = None
    pools: dict[BrowserType, PoolView] = field(default_factory=dict)
    workers: dict[str, WorkerView] = field(default_factory=dict)

    def replace(self, state: Mapping[str, Any]) -> None:
        """Takes over a `state` frame of the master (its shape is in docs/architecture.md)."""
        self.stopping = bool(state.get("stopping"))
        self.host_guard = state.get("hostGuard")
        pools = state.get("pools", {})
        self.pools = {
            browser_type: PoolView(
                pools[browser_type]["wanted"],
                pools[browser_type]["available"],
                pools[browser_type].get("reason"),
                pools[browser_type].get("drainTimeouts", 0),
            )
            for browser_type in BROWSER_TYPES
            if browser_type in pools
        }
        self.workers = {
            worker["id"]: WorkerView(worker["id"], worker["browserType"], worker["status"], _minor(worker))
            for worker in state.get("workers", [])
        }

    def offered(self) -> frozenset[BrowserType]:
        """The browser types for which workers are wanted."""
        return frozenset(browser_type for browser_type, pool in self.pools.items() if pool.wanted > 0)

    def versions(self) -> frozenset[str]:
        """Playwright major.minor of the workers that serve."""
        return frozenset(
            worker.playwright_version
            for worker in self.workers.values()
            if worker.playwright_version and worker.status == "available"
        )

    def not_ready(self) -> str | None:
        """Why the grid cannot take a session of every pool now; None when it can."""
        if self.stopping:
            return "the grid is shutting down"
        if self.lost:
            return self.lost
        if self.host_guard:
            return self.host_guard
        if not self.offered():
            return "the master has not reported its pools yet"
        missing = [self.shortage(browser_type) for browser_type, pool in self.pools.items() if pool.wanted > 0]
        return "; ".join(each for each in missing if each) or None

    def shortage(self, browser_type: BrowserType) -> str | None:
        """Why no session of this type can be taken at all; None when a worker serves."""
        pool = self.pools.get(browser_type)
        if pool is None or pool.available > 0:
            return None
        return f"no {browser_type} worker is available" + (f": {pool.reason}" if pool.reason else "")


def _minor(worker: Mapping[str, Any]) -> str | None:
    version = worker.get("playwrightVersion")
    return ".".join(version.split(".")[:2]) if version else None
