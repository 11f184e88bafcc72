"""Tells Redis of this host, reads what other hosts have told, and ends what a host had that is gone."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final, NoReturn

import structlog

from pwgrid import __version__
from pwgrid.common.errors import RegistryError, RegistryUnavailable
from pwgrid.common.reasons import EndReason, Reason
from pwgrid.common.types import BrowserType
from pwgrid.proxy.hosts.host_table import NO_WAY_S, UNREACHABLE_S, HostState, HostTable, NameWatch, OtherHost
from pwgrid.proxy.reap_workers import report
from pwgrid.proxy.roster import Hosts, Roster
from pwgrid.registry.host_records import BEAT_S, NAME_TAKEN, HostRecord
from pwgrid.registry.registry import Registry
from pwgrid.settings.model import Settings

log = structlog.get_logger()

_WORKER: Final = ("id", "pool", "browserType", "status", "playwrightVersion", "browserVersion", "protocols", "suspect")
"""What is told of a worker."""

LOOK_AGAIN_S: Final = 0.5
"""How often at most is looked for a worker of which no host has told yet."""


class HostKeeper:
    """Keeps `roster` up to date with the other hosts, from `keep` to its end. Calls `on_change` when that matters to
    clients. Where this host stands alone it does nothing."""

    def __init__(
        self,
        settings: Settings,
        registry: Registry,
        roster: Roster,
        waiting: Callable[[], Mapping[str, int]],
        on_change: Callable[[], None],
        instance: str = "",
    ) -> None:
        """`instance` tells this grid from another one with the same name."""
        self.name = settings.host_name()
        self.table = HostTable(self.name)
        self._names = NameWatch(instance)
        self._is_taken_logged = False
        self._address = (settings.advertised_host, settings.port)
        self._is_encrypted = bool(settings.tls_cert)
        self._is_own_first = settings.select_locality == "own"
        self._stale_s = settings.stale_threshold
        self._beat_s = min(BEAT_S, settings.heartbeat_interval)
        self._registry = registry
        self.roster = roster
        self._waiting = waiting
        self._on_change = on_change
        self._told: Mapping[str, Any] | None = None
        """The master's last state frame."""
        self._due = asyncio.Event()
        self._can_read = False
        self._looked_at = -LOOK_AGAIN_S
        self._is_silent = False
        """Whether another proxy tells of this host now."""
        self._known: tuple[object, ...] = ()
        self._logged: dict[str, str] = {}
        registry.client.on_connect(self._due.set)

    async def keep(self) -> NoReturn:
        """Tells and reads every few seconds, and when the master tells something new."""
        while True:
            self._due.clear()
            try:
                await self.look()
                await self._end_lost()
            except RegistryUnavailable as error:
                if self._can_read:
                    log.warning("hosts_not_heard", error=str(error))
                self._can_read, self.table.is_deaf = False, True
                self._apply()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._beat_s):
                    await self._due.wait()

    def told(self, state: Mapping[str, Any]) -> None:
        """Called with the master's state frame: the other hosts hear of it."""
        before = self._told or {}
        self._told = state
        if any(state.get(what) != before.get(what) for what in ("pools", "workers", "stopping")):
            self._due.set()

    def be_silent(self) -> None:
        """Called when another proxy of this host has taken over."""
        self._is_silent = True

    async def leave(self) -> None:
        """Removes this host from Redis, since it stops."""
        with contextlib.suppress(RegistryUnavailable):
            await self._registry.hosts.forget(self.name, with_drain=True)

    async def look(self) -> None:
        """Tells of this host and takes over what Redis says of the others. Raises RegistryUnavailable."""
        found = await self._registry.hosts.exchange(None if self._is_silent else self.own_record())
        now = time.monotonic()
        self.table.take(found, now, anew=not self._can_read)
        self._names.look(found.before, now)
        self._log_name()
        self._can_read = True
        self._apply()

    async def host_of(self, worker_id: str) -> OtherHost | None:
        """Returns the other host that has this worker; None for one of this host, or of nobody. Of a worker that has
        just come its host may not have been read yet: looks again, but not for everyone who asks."""
        if worker_id in self.roster.workers or not self.table.others:
            return None
        if (host := self.table.of_worker(worker_id)) is None and time.monotonic() - self._looked_at >= LOOK_AGAIN_S:
            self._looked_at = time.monotonic()
            with contextlib.suppress(RegistryUnavailable):
                await self.look()
            host = self.table.of_worker(worker_id)
        return host

    def unreachable(self, host: OtherHost, why: str) -> None:
        """Called when nobody could connect to a host's proxy: it gets no clients for a while."""
        log.warning("host_unreachable", host=host.record.name, reason=why)
        now = time.monotonic()
        self.table.unreachable(host.record.name, now)
        self._apply()
        self._apply_at(now + UNREACHABLE_S)

    def no_way(self, why: str) -> None:
        """Called when what has failed of the way to another host is this host's own: no host gets clients for a moment,
        in which it may be there again."""
        now = time.monotonic()
        if now < self.table.no_way_until:
            return
        log.warning("no_way_to_other_hosts", reason=why)
        self.table.no_way_until = now + NO_WAY_S
        self._apply()
        self._apply_at(now + NO_WAY_S)

    def own_record(self) -> HostRecord | None:
        """Returns what this host tells of itself; None while it has nothing to tell."""
        state = self._told
        if state is None:
            return None
        return HostRecord(
            name=self.name,
            address=self._address,
            version=__version__,
            at=time.time(),
            beat_s=self._beat_s,
            is_stopping=self.roster.stopping,
            is_encrypted=self._is_encrypted,
            pools=state.get("pools", {}),
            workers=tuple({key: each[key] for key in _WORKER if key in each} for each in state.get("workers", [])),
            waiting=self._waiting(),
            instance=self._names.instance,
            is_name_taken=self.is_name_taken,
        )

    @property
    def is_name_taken(self) -> bool:
        """Whether another grid tells of itself under this host's name."""
        return self._names.is_taken(time.monotonic())

    def rosters(self) -> dict[str, Roster]:
        """Returns the rosters of all hosts by their names, this one's first, without those of hosts that are silent.
        Where this host stands alone its own one, by the name ""."""
        others = {host.record.name: host.roster for host in self.table.heard(time.monotonic())}
        return {self.name: self.roster} | dict(sorted(others.items()))

    def own_state(self) -> HostState:
        """Returns whether this host gets clients."""
        if self.roster.stopping:
            return HostState.STOPPING
        return HostState.DRAINED if self.table.is_drained else HostState.SERVING

    def all_hosts(self) -> list[tuple[HostRecord, HostState]]:
        """Returns what all hosts tell, this one too, and whether they get clients, by their names; nothing where this
        one stands alone."""
        if not self.name:
            return []
        states = self.table.states(time.monotonic())
        found = {name: (host.record, states[name]) for name, host in self.table.others.items()}
        if (own := self.own_record()) is not None:
            found[own.name] = (own, self.own_state())
        return [found[name] for name in sorted(found)]

    def counted(self) -> Counter[str]:
        """Returns how many hosts are in which state; nothing where this one stands alone."""
        if not self.name:
            return Counter()
        states = self.table.states(time.monotonic()).values()
        return Counter(state.value for state in (*states, self.own_state()))

    def _apply_at(self, at: float) -> None:
        """Applies what is true from then on (time.monotonic()): the loop's own clock may be behind."""
        if (left_s := at - time.monotonic()) > 0:
            asyncio.get_running_loop().call_later(left_s, self._apply_at, at)
        else:
            self._apply()

    def _apply(self) -> None:
        """Has selections and the policy know what has changed."""
        now = time.monotonic()
        offering = {host.record.name: host.roster for host in self.table.offering(now)}
        others = tuple(offering.values())
        not_offering = tuple(host.roster for name, host in self.table.others.items() if name not in offering)
        hosts = Hosts(
            own=self.name,
            is_own_first=self._is_own_first,
            others=frozenset(self.table.others),
            avoided=self.table.avoided(now),
            is_drained=self.table.is_drained,
            available=self.table.available_pools(now),
        )
        known = (others, not_offering, hosts)
        if known != self._known:
            self._known = known
            self.roster.others, self.roster.not_offering, self.roster.hosts = others, not_offering, hosts
            self._on_change()
        states = {name: state.value for name, state in self.table.states(now).items()}
        if states != self._logged:
            self._logged = states
            log.info("hosts_known", own=self.own_state().value, others=states)

    def _log_name(self) -> None:
        if self._is_taken_logged is not (is_taken := self.is_name_taken):
            self._is_taken_logged = is_taken
            self._due.set()  # so that the record says it
            if is_taken:
                log.error("host_name_taken", host=self.name, to_do=NAME_TAKEN)
            else:
                log.info("host_name_free", host=self.name)

    async def _end_lost(self) -> None:
        """Removes what a host had that is gone: its workers, whose sessions fail for that reason, and its record. One
        whose workers live on has only lost its proxy."""
        registry = self._registry
        for host in self.table.lost(time.monotonic(), self._stale_s):
            name = host.record.name
            before = int(registry.now()) - self._stale_s
            workers: dict[str, BrowserType] = {
                worker.worker_id: worker.browser_type for worker in host.roster.workers.values()
            }
            silent, is_alive = await registry.hosts.silent_workers(workers, before=before)
            reason = Reason(EndReason.HOST_LOST, name)
            for worker_id, browser_type in silent.items():
                try:
                    report(await registry.reap_worker(browser_type, worker_id, reason), reason)
                except RegistryError as error:  # a key of another type, say: the reaper tries again
                    log.error("worker_of_lost_host_not_reaped", worker=worker_id, host=name, error=str(error))
            if not is_alive:
                log.warning("host_lost", host=name, workers=len(workers))
                await registry.hosts.forget(name)
                self.table.others.pop(name, None)
        self._apply()
