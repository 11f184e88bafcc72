"""Checks and does what operators ask of the master, by the command line or by the proxy's API."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import structlog

from pwgrid.common import sd_notify
from pwgrid.common.errors import GridError
from pwgrid.common.reasons import Reason, WorkerEnd
from pwgrid.common.sd_notify import service_manager
from pwgrid.control.frames import Frame
from pwgrid.control.server import Deferred, Request
from pwgrid.master.config import MasterConfig
from pwgrid.master.policy import validate_reports
from pwgrid.master.policy.worker_state_machine import Purpose
from pwgrid.master.reload import Reload
from pwgrid.master.reports import Reports
from pwgrid.master.shutdown_order import Shutdown
from pwgrid.master.upgrade import VersionChange
from pwgrid.master.workers.worker import Worker
from pwgrid.master.workers.workers import Workers
from pwgrid.profiles.paths import profiles_directory
from pwgrid.settings.model import DEFAULT, NO_POOL
from pwgrid.settings.value_types import MAX_WORKERS

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Requests:
    """Each method raises ValueError with the sentence that says what is wrong."""

    config: MasterConfig
    workers: Workers
    shutdown: Shutdown
    reload_settings: Reload
    version_change: VersionChange
    reports: Reports
    stop_grid: Callable[..., None]

    def by_name(self) -> dict[str, Request]:
        """The requests that come over the control socket."""
        return {
            "status": lambda _data: self.reports.status(),
            "redis": lambda _data: {"url": self.config.redis_url, "prefix": self.config.settings.redis_key_prefix},
            "tls_ca": lambda _data: {"file": self.config.settings.tls_ca},
            "settings": lambda _data: {"settings": self.config.parts.describe(self.config.settings)},
            "tokens": lambda _data: {"file": self.config.parts.tokens_file and str(self.config.parts.tokens_file)},
            "profiles": lambda _data: {"directory": str(profiles_directory(self.config.settings))},
            "drain": self.drain,
            "end_session": self.end_session,
            "end_sessions": self.end_sessions,
            "scale": self.scale,
            "reload": lambda _data: self.reload(),
            "upgrade": lambda data: self.upgrade(force=bool(data.get("force"))),
            "stop": self.stop,
        }

    def drain(self, data: Frame) -> Frame:
        """Drain one worker, a pool, or all. A second drain of a worker ends its sessions at once, unless `once` says
        that the first one is enough."""
        workers = _select(self.workers.by_id.values(), data)
        if not workers and data.get("pool") is not None and data["pool"] not in self.workers.pools:
            raise ValueError(f"there is no pool {data['pool']!r:.40}; pools are {', '.join(self.workers.pools)}")
        if not workers and not data.get("all"):
            raise ValueError(f"no worker matches {data.get('worker') or data.get('pool') or 'an empty drain request'}")
        self._drain(workers, data, "operator", once=bool(data.get("once")))
        return {"draining": [worker.worker_id for worker in workers]}

    def _drain(self, workers: Iterable[Worker], data: Frame, reason: str, *, once: bool) -> None:
        wanted = Purpose.END_NOW if data.get("now") else Purpose.END_FOR_OPERATOR
        asked = Reason(WorkerEnd.OPERATOR, validate_reports.sentence(data.get("reason"), reason))
        for worker in workers:
            if not (once and worker.life.purpose is wanted):
                worker.drain(asked, wanted)

    def end_session(self, data: Frame) -> Frame:
        """Tell a worker to end one of its sessions. Only the worker knows whether it (still) has that session."""
        worker_id, session_id = str(data.get("worker")), str(data.get("session"))
        worker = self.workers.by_id.get(worker_id)
        if worker is None:
            raise ValueError(f"there is no worker {worker_id:.40} (any more)")
        worker.send("end_session", {"sessionId": session_id})
        return {"ending": session_id}

    def end_sessions(self, data: Frame) -> Frame:
        """End the sessions and leases of tokens of this name that were revoked."""
        self.workers.end_of_token(validate_reports.ident(data, "token"))
        return {"workers": len(self.workers.by_id)}

    def scale(self, data: Frame) -> Frame:
        """Change the wanted numbers of workers, until a reload changes them."""
        self._refuse_while_stopping()
        pools = {name: pool for name, pool in self.workers.pools.items() if not pool.is_removed}
        for each in (pools[name] for name in data if name in pools and pools[name].settings.on_demand):
            raise ValueError(
                f"pool {each.name} starts when its clients come, and ends when they are gone: to have its workers at "
                f"any time, give Playwright {each.settings.playwright} a pool in [[pools]] without on_demand"
            )
        pools = {name: pool for name, pool in pools.items() if not pool.settings.on_demand}
        wanted = {name: pool.workers for name, pool in pools.items()}
        for name, workers in data.items():
            pool = pools.get(name)
            if pool is None:
                raise ValueError(f"there is no pool {name!r:.40}; pools are {', '.join(pools)}")
            if type(workers) is not int or not 0 <= workers <= MAX_WORKERS:
                raise ValueError(f"{name}: {workers!r:.40} is not a number of workers from 0 to {MAX_WORKERS}")
            if workers > pool.workers == 0:
                try:
                    self.config.parts.prepare_pool(self.config.settings, pool.settings)
                except GridError as error:
                    raise ValueError(str(error)) from None
            wanted[name] = workers
        if not any(wanted.values()):
            # A pool of [[pools]] has no setting like chromium_workers.
            is_short = all(pool.settings.is_short_form for pool in pools.values())
            raise ValueError(NO_POOL if is_short else f"one of the pools must keep a worker: {', '.join(pools)}")
        self._keep_the_default_browser(wanted)
        for name, workers in wanted.items():
            pools[name].scale(workers)
        return {"wanted": {name: pool.workers for name, pool in pools.items()}}

    def _keep_the_default_browser(self, wanted: dict[str, int]) -> None:
        """Raises ValueError if no worker of the default browser type would be left, and the settings name that type."""
        settings = self.config.settings
        source = self.config.parts.describe(settings).get("default_browser_type", {}).get("source", DEFAULT)
        browser_type = settings.default_browser_type
        left = {self.workers.pools[name].settings.browser_type for name, workers in wanted.items() if workers}
        if source != DEFAULT and browser_type not in left:
            raise ValueError(
                f"default_browser_type is {browser_type} ({source}): a pool of that browser must keep a worker, or "
                "change the setting and run pwgrid reload"
            )

    def reload(self) -> Deferred:
        """Read the configuration again and follow it."""
        self._refuse_while_stopping()
        with sd_notify.reload(is_ready=self.reports.is_ready):
            return self.reload_settings.start()

    def upgrade(self, *, force: bool) -> Frame | Deferred:
        """Go on with the installed code; without `force` only if it is not what runs already."""
        self._refuse_while_stopping()
        return self.version_change.start(self.reload_settings, force=force)

    def stop(self, data: Frame) -> Frame:
        """Stop the grid: after the drain of all workers, or now."""
        self.stop_grid(now=bool(data.get("now")))
        return {"drainS": self.config.settings.drain_timeout, "manager": service_manager()}

    def _refuse_while_stopping(self) -> None:
        if self.shutdown.is_stopping:
            raise ValueError("the grid is stopping")


def _select(workers: Iterable[Worker], data: Frame) -> list[Worker]:
    """The workers that a drain request names: {"worker": id}, {"pool": name} or {"all": true}."""
    worker_id = data.get("worker")
    if worker_id is not None:
        return [worker for worker in workers if worker.worker_id == worker_id]
    if data.get("pool") is not None:
        return [worker for worker in workers if worker.pool.name == data["pool"]]
    return list(workers) if data.get("all") else []
