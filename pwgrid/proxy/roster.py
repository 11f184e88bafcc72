"""What the proxy knows of pools and workers from the master. A view only: the master decides, the workers admit."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pwgrid.common import readiness
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
    is_started: bool = False
    host_guard: str | None = None
    pools: dict[BrowserType, PoolView] = field(default_factory=dict)
    workers: dict[str, WorkerView] = field(default_factory=dict)
    metrics: Mapping[str, Any] = field(default_factory=dict)
    """What the master has counted, for the metrics alone."""

    def replace(self, state: Mapping[str, Any]) -> None:
        """Takes over a `state` frame of the master (its shape is in docs/architecture.md)."""
        self.stopping = bool(state.get("stopping"))
        self.is_started = bool(state.get("started", True))
        self.host_guard = state.get("hostGuard")
        self.metrics = state.get("metrics", {})
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
        """Why the grid is not ready; None when it is."""
        if self.lost and not self.stopping:
            return self.lost
        if not self.pools and not self.stopping:
            return "the master has not reported its pools yet"
        return readiness.why_not_ready(
            self.pools, is_started=self.is_started, is_stopping=self.stopping, host_guard=self.host_guard
        )

    def shortage(self, browser_type: BrowserType) -> str | None:
        """Why no session of this type can be taken at all; None when a worker serves."""
        pool = self.pools.get(browser_type)
        return readiness.shortage(browser_type, pool) if pool else None


def _minor(worker: Mapping[str, Any]) -> str | None:
    version = worker.get("playwrightVersion")
    return ".".join(version.split(".")[:2]) if version else None
