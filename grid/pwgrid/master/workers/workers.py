"""All workers and their pools: starts and drains workers as the plan says, and adopts those of another master."""

from __future__ import annotations

import errno
import math
import os
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

import structlog

from pwgrid.common.errors import GridError, system_error
from pwgrid.common.playwright_version import minor_of
from pwgrid.common.reasons import Reason, WorkerEnd
from pwgrid.common.selectors_loop import Loop
from pwgrid.control.frames import Frame
from pwgrid.control.server import Reconnect
from pwgrid.master.child_file_writer import ChildFileWriter
from pwgrid.master.config import MasterConfig
from pwgrid.master.policy.on_demand import pools_of_versions
from pwgrid.master.policy.worker_plan import Drain, Limits, Serve, ShortenDrain, Spawn, next_start, plan
from pwgrid.master.policy.worker_state_machine import Purpose
from pwgrid.master.proxies import Proxies
from pwgrid.master.workers.clean_up import SHORTAGE_S, CleanUp
from pwgrid.master.workers.pool import Pool
from pwgrid.master.workers.worker import Surroundings, adopt_worker, fork_worker
from pwgrid.runtime.browser_process_tree import Table, process_table
from pwgrid.runtime.child_files import ChildState
from pwgrid.settings.pools import PoolSettings
from pwgrid.tokens.tokens import operators_token_id

log = structlog.get_logger()

_NO_MORE_PROCESSES: Final = " (no more processes may be started: raise TasksMax=, --pids-limit or ulimit -u)"
"""Which limit it is, the unit's, the container's or the user's, the error does not tell."""

LOOKS_FOR_VERSIONS_S: Final = 3.0
"""How often the master looks whether drivers were installed or removed: no event tells it of every file system."""

DRAINED_KEPT: Final = 256
ENDED_TOKENS_KEPT: Final = 100


class Workers:
    """`by_id` are the workers, `pools` the configured ones, and removed ones until their last worker has ended."""

    def __init__(self, loop: Loop, config: MasterConfig, files: ChildFileWriter, proxies: Proxies) -> None:
        self._loop = loop
        self._config = config
        self._clean_up = CleanUp(loop, config.runtime, self._cleaned_up)
        self._trees = loop.timer(self._learn_trees_in_time)
        self._versions = loop.timer(self._look_for_versions)
        self._versions.arm(loop.now() + LOOKS_FOR_VERSIONS_S)
        self.drained: deque[Frame] = deque(maxlen=DRAINED_KEPT)
        self._shared = Surroundings(loop, config, files, proxies.send, self._clean_up, self._trees, self.drained)
        self.by_id = self._shared.by_id
        self._shared.told["operatorsToken"] = _operators_token(config)
        self._ended_tokens: deque[str] = deque(maxlen=ENDED_TOKENS_KEPT)
        self.pools = {name: self._new_pool(pool) for name, pool in self._pools_wanted().items()}

    @property
    def registry_seen(self) -> bool:
        """Whether a worker has registered: from then on the grid goes on without Redis, too."""
        return self._shared.registry_seen

    def _pools_wanted(self) -> dict[str, PoolSettings]:
        """The configured pools, then those of installed Playwright versions that none of them has."""
        settings = self._config.settings
        configured = settings.pools_wanted()
        versions = self._config.parts.versions if settings.on_demand else ()
        return configured | {pool.name: pool for pool in pools_of_versions(configured, versions)}

    def _new_pool(self, settings: PoolSettings) -> Pool:
        return Pool(settings, self._loop.now(), self.by_id)

    # The pools, and what they should have

    def follow_settings(self) -> None:
        """Take over the configured pools, in their order; a pool that is no longer configured ends with its last
        worker."""
        there = dict(self.pools)
        self.pools.clear()
        for name, settings in self._pools_wanted().items():
            pool = there.pop(name, None)
            if pool is None:
                log.info("pool_added", pool=name, workers=settings.workers)
                pool = self._new_pool(settings)
            pool.follow(settings)
            self.pools[name] = pool
        for pool in there.values():
            pool.remove()
        self.pools.update(there)
        self.tell_state(operatorsToken=_operators_token(self._config))

    def observe(self, now: float, host_guard: str | None) -> None:
        """See how the pools are; `host_guard` says why no worker may be started now."""
        if bool(host_guard) != self._shared.told.get("hostIsShort", False):
            self.tell_state(hostIsShort=bool(host_guard))
        for pool in list(self.pools.values()):
            if pool.is_removed and not pool.members:
                del self.pools[pool.name]
            pool.host_guard = host_guard
            pool.observe(now)

    def follow_demand(self, now: float, demand: Mapping[str, int], room: int, no_room: str | None) -> float:
        """Have the pools that start on demand want the workers that their clients need: `demand` says how many wait in
        which line. The host has memory for `room` more workers; `no_room` says why for none. Returns when there may be
        more to do."""
        idle_s, look_at = self._config.settings.on_demand_idle, math.inf
        for pool in self.pools.values():
            if pool.settings.on_demand:
                had, waiting = pool.workers, demand.get(pool.name, 0)
                hindrance = no_room
                if waiting and not had and hindrance is None:
                    hindrance = self._missing(pool)
                look_at = min(look_at, pool.follow_demand(now, waiting, idle_s, room, hindrance))
                room -= max(0, pool.workers - had)
        return look_at

    def _look_for_versions(self) -> None:
        try:
            are_new = self._config.parts.look_for_versions(self._config.settings)
        except OSError as error:  # no descriptor is free
            log.warning("playwright_versions_not_looked_for", reason=error.strerror or str(error))
            are_new = False
        if are_new:
            log.info("playwright_versions", versions=", ".join(self._config.parts.versions))
            self.follow_settings()
        self._versions.arm(self._loop.now() + LOOKS_FOR_VERSIONS_S)

    def _missing(self, pool: Pool) -> str | None:
        """Find what the workers of a pool need, before the first of them is started. Returns what is missing."""
        try:
            self._config.parts.prepare_pool(self._config.settings, pool.settings)
        except (GridError, OSError) as error:  # it reads files: no descriptor may be free
            log.error("pool_not_prepared", pool=pool.name, reason=str(error))
            return str(error)
        return None

    def follow_plan(self, now: float, limits: Limits) -> float:
        """Start, drain and call workers as the plan says. Returns when the next backoff ends (monotonic seconds): there
        may be more to do from then on."""
        wanted = {name: pool.wanted(now) for name, pool in self.pools.items()}
        for step in plan(wanted, [worker.view(now) for worker in self.by_id.values()], now, limits):
            match step:
                case Spawn():
                    self.start(self.pools[step.pool], spare=step.spare)
                case Serve():
                    self.by_id[step.worker_id].serve()
                case Drain():
                    self.by_id[step.worker_id].drain(step.reason, Purpose.RECYCLE)
                case ShortenDrain():
                    self.by_id[step.worker_id].drain(step.reason, Purpose.END)
        return next_start((pool.backoff.not_before for pool in self.pools.values()), now)

    def start(self, pool: Pool, *, spare: bool) -> None:
        """Fork a worker for a pool; if that fails, the pool backs off."""
        try:
            fork_worker(self._shared, pool, spare=spare)
        except OSError as error:
            now, why = self._loop.now(), system_error(error)
            reason = Reason(WorkerEnd.NOT_FORKED, why + (_NO_MORE_PROCESSES if error.errno == errno.EAGAIN else ""))
            pool.died(reason, now, started_at=now)
            log.error("worker_not_started", pool=pool.name, reason=str(reason))

    # Workers of another master

    def adopt(self, states: Iterable[ChildState]) -> None:
        """Take over the workers that another master forked."""
        for state in states:
            adopt_worker(self._shared, self._pool_of(state), state)
        for pool in self.pools.values():
            if pool.settings.on_demand and pool.members and self._missing(pool) is None:
                pool.keep_adopted()
        if self._config.kept_open is not None:
            for fd in self._config.kept_open.ipc.values():  # of workers that cannot be used: their browser servers end
                os.close(fd)

    def _pool_of(self, state: ChildState) -> Pool:
        """The worker's pool; a removed one if this master's configuration does not have it."""
        if state.pool not in self.pools:
            settings = self._config.settings.short_form(state.browser_type)  # type: ignore[arg-type]
            version = minor_of(state.launched.get("playwrightVersion") or settings.playwright)
            settings = replace(settings, name=state.pool, playwright=version, workers=0)
            self.pools[state.pool] = pool = self._new_pool(settings)
            pool.remove()
        return self.pools[state.pool]

    def attach(self, reconnect: Reconnect) -> bool:
        """Take a worker's new connection; False when there is no such worker (any more).

        Raises ProtocolError when the first frame is not valid for the link.
        """
        worker = self.by_id.get(reconnect.name)
        return worker is not None and worker.attach(reconnect)

    # What concerns all of them

    def tell_state(self, **news: object) -> None:
        """Send all workers, and those to come, what is new in their state."""
        self._shared.told |= news
        for worker in self.by_id.values():
            worker.tell(**self._shared.told)

    def end_of_token(self, name: str) -> None:
        """Have all workers, and those to come, end the sessions and leases of tokens of this name that are gone."""
        self._ended_tokens.append(name)
        self.tell_state(endedTokens=list(dict.fromkeys(self._ended_tokens)))

    def tell_all(self, name: str, data: Frame) -> None:
        for worker in self.by_id.values():
            worker.send(name, data)

    def kill_all(self) -> None:
        for worker in self.by_id.values():
            worker.kill()

    def learn_trees(self) -> Table:
        """Update which processes belong to which worker; returns the process table (empty without workers)."""
        live = [worker for worker in self.by_id.values() if worker.life.has_process]
        table = process_table() if live else Table()
        for worker in live:
            worker.tree.note(table)
        self._trees.cancel()  # the memory meter asks again, at each of its samples
        return table

    def _learn_trees_in_time(self) -> None:
        try:
            self.learn_trees()
        except OSError as error:  # no descriptor is free
            log.warning("processes_not_listed", reason=error.strerror or str(error))
            self._trees.arm(self._loop.now() + SHORTAGE_S)

    def _cleaned_up(self, worker_id: str) -> None:
        self.by_id.pop(worker_id).cleaned_up()

    def tell_left(self) -> None:
        """Log which processes the master could not kill, when it ends."""
        try:
            pids = self._clean_up.left()
        except OSError as error:  # no descriptor is free
            log.warning("processes_not_listed", reason=error.strerror or str(error))
            return
        if pids:
            log.error("processes_left", pids=pids)


def _operators_token(config: MasterConfig) -> str:
    return operators_token_id(config.settings.token.get_secret_value())
