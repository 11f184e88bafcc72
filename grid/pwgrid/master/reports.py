"""What the master tells: the status to operators, the roster to the proxy, and to whoever started it how the start goes
and what a stop waits for."""

from __future__ import annotations

import math
import os
import time
from collections import Counter
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any, Final

import psutil
import structlog

from pwgrid import __version__
from pwgrid.common import readiness
from pwgrid.common.grid_url import without_secrets
from pwgrid.common.redis_url import shown
from pwgrid.common.types import GIVEN_BY_CLIENTS
from pwgrid.common.wording import counted
from pwgrid.common.worker_lifecycle import NOT_ENDED, WorkerStatus
from pwgrid.master.config import MasterConfig
from pwgrid.master.memory_watch import MemoryWatch
from pwgrid.master.services import Services
from pwgrid.master.shutdown_order import Shutdown
from pwgrid.master.workers.workers import Workers
from pwgrid.tokens.tokens import operators_token_id

log = structlog.get_logger()

DISK_FLOOR_MIB: Final = 16
MOST_REASONS: Final = 100
MOST_CHARACTERS: Final = 80
ANSWER_S: Final = 1.0
"""How long to wait for workers to say how many sessions they have: what they said last is up to a ping old."""
COUNT_S: Final = 1.0


class Reports:
    """`started_at` in Unix seconds. `is_started`: the start is over, this master's or an earlier one's. `is_ready`: the
    service manager and whoever else waits for it were told that the grid is ready."""

    def __init__(
        self,
        config: MasterConfig,
        workers: Workers,
        services: Services,
        memory: MemoryWatch,
        shutdown: Shutdown,
    ) -> None:
        kept = config.kept_open
        self.started_at = kept.started_at if kept else time.time()
        self.is_started = kept is not None or bool(config.leftovers.workers)
        self.is_ready = False
        self._config = config
        self._workers = workers
        self._proxies = services.proxies
        self._forwarder = services.forwarder
        self._tls = services.tls
        self._redis = services.redis
        self._memory = memory
        self._shutdown = shutdown
        self._progress = ""
        self._is_settled = False
        self._is_not_ready = False
        self._is_stop_told = self._is_hurry_told = False
        self._counted_at = -math.inf

    def status(self) -> dict[str, Any]:
        """The reply to `pwgrid status`; it holds no secret."""
        config = self._config
        problem = _disk_problem(config.runtime.directory)
        pools = {name: pool.figures() for name, pool in self._workers.pools.items()}
        is_started, is_stopping = self.is_started, self._shutdown.is_stopping
        not_ready = readiness.why_not_ready(
            pools, is_started=is_started, is_stopping=is_stopping, host_guard=self._memory.guard.reason
        )
        return {
            "ready": not_ready is None,
            "reason": not_ready,
            "endpoint": without_secrets(config.settings.client_url()),
            "version": __version__,
            "master": {"pid": os.getpid(), "startedAt": self.started_at},
            "proxy": {"pid": self._proxies.current.pid, "beingReplaced": self._proxies.is_being_replaced},
            "forwarder": self._forwarder_reply(),
            "tls": self._tls.status_reply(),
            "redis": self._redis_reply(),
            "started": is_started,
            "host": {"name": config.settings.host_name(), **self._memory.status_reply()},
            "pools": [pool.status_reply() for pool in self._workers.pools.values()],
            "workers": [worker.status_reply() for worker in self._workers.by_id.values()],
            "runs": self._runs(),
            "drained": list(self._workers.drained),
            **self._proxies.waiting(),
            "problems": [problem] if problem else [],
            "stopping": is_stopping,
        }

    def roster(self) -> dict[str, Any]:
        """The state that the proxy gets: the pools and workers that it can choose from, readiness, metrics."""
        return {
            "stopping": self._shutdown.is_stopping,
            "started": self.is_started,
            "hostGuard": self._memory.guard.reason,
            "operatorsToken": operators_token_id(self._config.settings.token.get_secret_value()),
            "metrics": {
                "startedAt": self.started_at,
                "hostAvailableMib": self._memory.host_available_mib,
                "pools": {name: pool.metrics() for name, pool in self._workers.pools.items()},
            },
            "pools": {name: pool.roster_entry() for name, pool in self._workers.pools.items()},
            "workers": [
                {
                    "id": worker.worker_id,
                    # A frame has its limit.
                    **({} if worker.pool.name == worker.browser_type else {"pool": worker.pool.name}),
                    "browserType": worker.browser_type,
                    "status": worker.life.status.value,
                    "playwrightVersion": worker.launched.get("playwrightVersion"),
                    "browserVersion": worker.launched.get("browserVersion"),
                    "protocols": worker.launched.get("protocols", []),
                    **({"suspect": worker.suspicion[:MOST_CHARACTERS]} if worker.suspicion else {}),
                }
                for worker in self._workers.by_id.values()
                if worker.life.status in NOT_ENDED
            ],
            "reasons": self._reasons(),
        }

    def tell_start(self) -> None:
        """Call the callbacks that have news: those about readiness once every pool is complete, or known not to start.

        The proxy has to listen, and to be ready, so that a caller who then asks it gets the same answer.
        """
        if self.is_ready:
            return
        self._tell_progress()
        proxy, pools = self._proxies.current, self._workers.pools.values()
        if proxy.listening and all(pool.is_complete or pool.cannot_start or pool.host_guard for pool in pools):
            self.is_started = self._is_settled = True
        if not self._is_settled:
            return
        told = self.status()
        if proxy.ready and told["ready"]:
            self.is_ready = True
            self._call(self._config.messages.ready, told)
        elif not told["ready"] and not self._is_not_ready:
            self._is_not_ready = True
            self._call(self._config.messages.not_ready, told)

    def tell_stop(self, now: float) -> float:
        """Say what is new about a stop that waits for workers. Returns when to call it again at the latest (monotonic
        seconds)."""
        workers, drain_s = self._workers.by_id.values(), self._config.settings.drain_timeout
        if not self._is_stop_told and not self._shutdown.is_hurried:
            answer_by = self._shutdown.asked_at + ANSWER_S
            if now < answer_by and not all(worker.has_told_drain for worker in workers):
                return answer_by
        live = sum(worker.active for worker in workers) + len(self._forwarder.parked)
        sessions, say = counted(live, "live session"), self._config.messages.stopping
        if self._shutdown.is_hurried and not self._is_hurry_told:
            self._is_hurry_told = self._is_stop_told = True
            say(f"stopping: ending {sessions} now")
        elif not self._is_stop_told:
            self._is_stop_told = True
            if live:
                say(f"stopping: {sessions} may go on for {drain_s:g} s; Ctrl-C again (or SIGTERM) ends them now")
            else:
                say("stopping: no live session")
        count_down = self._config.messages.count_down
        if count_down is None or self._is_hurry_told or not live:
            return math.inf
        if now >= self._counted_at + COUNT_S:
            self._counted_at = now
            left_s = max((worker.life.sessions_until - now for worker in workers if worker.active), default=0.0)
            left = f"{max(0, math.ceil(min(left_s, drain_s)))} s left"
            count_down(f"stopping: {sessions}, {left}, Ctrl-C ends them now")
        return self._counted_at + COUNT_S

    def _runs(self) -> list[dict[str, Any]]:
        """How many slots clients of each name, run and label key have, as far as clients gave any; the most first."""
        slots: Counter[tuple[str, ...]] = Counter()
        for worker in self._workers.by_id.values():
            for run in worker.runs:
                slots[tuple(run[what] for what in GIVEN_BY_CLIENTS)] += run["slots"]
        return [
            {**dict(zip(GIVEN_BY_CLIENTS, words, strict=True)), "slots": number}
            for words, number in slots.most_common()
        ]

    def _reasons(self) -> dict[str, str]:
        """Why workers drain, or will, by worker id. Only the first MOST_REASONS, to stay within a frame's size."""
        workers = self._workers.by_id.values()
        told = ((each.worker_id, each.reason) for each in workers)
        return dict(
            islice(((worker_id, str(reason)[:MOST_CHARACTERS]) for worker_id, reason in told if reason), MOST_REASONS)
        )

    def _forwarder_reply(self) -> dict[str, Any] | None:
        forwarder = self._forwarder
        if not forwarder.is_due and forwarder.pid is None:
            return None
        return {"pid": forwarder.pid, "sessions": len(forwarder.parked)}

    def _redis_reply(self) -> dict[str, Any]:
        config, redis = self._config, self._redis
        found = {
            "pid": redis.pid if redis else None,
            "url": shown(config.redis_url),
            "prefix": config.settings.redis_key_prefix,
            "staleS": config.settings.stale_threshold,
        }
        return {**found, "error": redis.problem} if redis and redis.problem else found

    def _tell_progress(self) -> None:
        wanted = launching = available = 0
        for pool in self._workers.pools.values():
            statuses = [worker.life.status for worker in pool.members if worker.life.is_capacity]
            wanted += pool.workers
            # A worker that is to be replaced is there until its replacement is: there are more than are wanted then.
            launching += min(pool.workers, len(statuses))
            available += min(pool.workers, statuses.count(WorkerStatus.AVAILABLE))
        text = f"launching {launching} of {wanted} workers ({available} ready)"
        if launching and text != self._progress:
            self._progress = text
            self._call(self._config.messages.progress, text)

    @staticmethod
    def _call(hook: Callable[..., None], argument: object) -> None:
        """Call it, and log an error: the reader of this process's output may be gone, and the grid goes on."""
        try:
            hook(argument)
        except OSError as error:
            log.warning("start_report_failed", reason=str(error))


def _disk_problem(directory: Path) -> str | None:
    """The sentence for operators when the file system of `directory` has no room; None when it has."""
    try:
        free_mib = psutil.disk_usage(str(directory)).free >> 20
    except OSError as error:
        return f"the runtime directory {directory} cannot be read: {error.strerror}"
    if free_mib >= DISK_FLOOR_MIB:
        return None
    return (
        f"only {free_mib} MiB are left for the runtime directory {directory}: live sessions go on, but browsers cannot "
        "write profiles and downloads, and new workers may not start; free some space"
    )
