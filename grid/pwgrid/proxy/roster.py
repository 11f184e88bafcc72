"""What the master has told the proxy of pools and workers."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Final

import pydantic
from pydantic.alias_generators import to_camel

from pwgrid.common import readiness
from pwgrid.common.label_keys import LabelKey, parse
from pwgrid.common.playwright_version import minor_of
from pwgrid.common.types import BrowserType, Isolation, Protocol

_NO_LIMIT: Final = 1_000_000_000


_AS_TOLD: Final = pydantic.ConfigDict(alias_generator=to_camel, populate_by_name=True)


@pydantic.dataclasses.dataclass(frozen=True, slots=True, config=_AS_TOLD)
class PoolView(readiness.PoolFigures):
    """One pool, read from what the master tells of it. `starting`, `spare` and `draining` count workers, too;
    `drain_timeouts` counts drains that cut sessions.

    `slots` and `lifetime` are sessions of each worker, `labels` the pool's label keys; `options` are its browsers'
    launch options, which clients may ask for, too.
    """

    name: str
    browser_type: pydantic.SkipValidation[BrowserType]  # a later version's master, which adopts us, may know more
    slots: int = 1
    lifetime: int = _NO_LIMIT
    labels: tuple[str, ...] = ()
    isolation: str = Isolation.CONTEXT.value
    """An Isolation, or what only a later version's master knows."""
    channel: str = ""
    """Playwright's name of its browsers; empty: they were given none."""
    starting: int = 0
    spare: int = 0
    draining: int = 0
    drain_timeouts: int = 0
    playwright: str = ""
    """Playwright of its workers, as major.minor; empty where an older version's master does not say."""
    like: str = ""
    """The pool that it is made after, where no configuration has it."""
    versions: frozenset[str] = frozenset()
    """Playwright of clients that it serves: its own, and that of available workers, which may be about to be replaced.
    Empty where nothing is known."""
    options: Mapping[str, object] = field(default_factory=dict)
    is_removed: Annotated[bool, pydantic.Field(alias="removed")] = False
    """Whether the configuration has dropped it, so that its last workers drain."""

    @property
    def starts_for_clients(self) -> bool:
        return self.is_on_demand and not self.is_removed

    def serves(self, version: str | None) -> bool:
        """Whether it serves clients of this Playwright; None is a client that any version will do for."""
        return version is None or not self.versions or version in self.versions


@dataclass(frozen=True, slots=True)
class WorkerView:
    """One live worker. `playwright_version` is major.minor; `reason` says why it drains, or will, `suspect` why it
    takes no new client for now."""

    worker_id: str
    browser_type: BrowserType
    status: str
    playwright_version: str | None
    pool: str
    reason: str | None = None
    suspect: str | None = None
    browser_version: str = ""
    protocols: frozenset[str] = frozenset({Protocol.PLAYWRIGHT})
    """In which it serves clients. One of an older version tells of none: it has Playwright's."""

    @property
    def counter(self) -> str:
        """Its field in the registry's counters, "{type}:{id}"."""
        return f"{self.browser_type}:{self.worker_id}"


@dataclass(frozen=True, slots=True)
class Hosts:
    """The hosts of the grid, by their names, as a selection needs them. `others` are all but this one; no worker of
    those that are `avoided` may be chosen."""

    own: str = ""
    """This host's; empty where it stands alone."""
    is_own_first: bool = True
    """SELECT_LOCALITY: whether this host's workers come first."""
    others: frozenset[str] = frozenset()
    avoided: frozenset[str] = frozenset()
    is_drained: bool = False
    """Whether an operator has drained this host, so that it gets no sessions."""
    available: frozenset[str] = frozenset()
    """The pools of which another host that gets clients can take a session."""


@dataclass(slots=True)
class Roster:
    """What the master's last `state` frame said. `lost` says why that does not count any more."""

    stopping: bool = False
    lost: str | None = None
    is_started: bool = False
    configuration: str = ""
    """The master's name for the configuration that this roster follows; a reload waits for it."""
    host_guard: str | None = None
    operators_token: str = ""
    """The id of the token of the settings that the master has now."""
    pools: dict[str, PoolView] = field(default_factory=dict)
    workers: dict[str, WorkerView] = field(default_factory=dict)
    metrics: Mapping[str, Any] = field(default_factory=dict)
    """What the master has counted, for /metrics."""
    others: tuple["Roster", ...] = ()
    """Those of the other hosts of the grid whose pools clients may ask for."""
    not_offering: tuple["Roster", ...] = ()
    """Those of the other hosts that get no clients now, except those with leases of their workers."""
    hosts: Hosts = field(default_factory=Hosts)
    _without: dict[Protocol, frozenset[str]] = field(default_factory=dict)

    def replace(self, state: Mapping[str, Any]) -> None:
        """Takes over a `state` frame of the master (docs/architecture.md has its form)."""
        self.stopping = bool(state.get("stopping"))
        self.is_started = bool(state.get("started", True))
        self.configuration = state.get("configuration", "")
        self.host_guard = state.get("hostGuard")
        self.operators_token = state.get("operatorsToken", "")
        self.metrics = state.get("metrics", {})
        self.workers = {
            worker["id"]: WorkerView(
                *(worker["id"], worker["browserType"], worker["status"], _minor(worker)),
                pool=worker.get("pool", worker["browserType"]),
                reason=state.get("reasons", {}).get(worker["id"]),
                suspect=worker.get("suspect"),
                browser_version=worker.get("browserVersion") or "",
                protocols=frozenset(worker.get("protocols") or (Protocol.PLAYWRIGHT,)),
            )
            for worker in state.get("workers", [])
        }
        self._without = {}
        versions = self._versions()
        self.pools = {}
        for name, told in state.get("pools", {}).items():
            serves = frozenset({*versions[name], told.get("playwright", "")} - {""})
            options = {"headless": told["headless"], "args": told["args"]}
            self.pools[name] = PoolView(
                **{**told, "name": name, "versions": serves, "options": options},
                is_on_demand=bool(told.get("onDemand")),
            )

    def offered(self) -> dict[str, PoolView]:
        """Returns the pools that want workers, or start on demand, in the order of the configuration."""
        return {name: pool for name, pool in self.pools.items() if pool.wanted > 0 or pool.starts_for_clients}

    def offered_anywhere(self) -> dict[str, PoolView]:
        """Returns the pools that are offered here, and behind them those that only other hosts offer. Of one that both
        have, clients get this host's workers or theirs."""
        pools = self.offered()
        for other in self.others:
            for name, pool in other.offered().items():
                own = pools.get(name)
                if own is None:
                    pools[name] = pool
                elif own.browser_type == pool.browser_type:
                    versions = own.versions | pool.versions if own.versions else own.versions
                    pools[name] = replace(own, versions=versions, available=own.available + pool.available)
        return pools

    def draining_anywhere(self) -> dict[str, PoolView]:
        """Returns the pools that no host offers (any more), but whose workers may have leases."""
        listed, offered = dict[str, PoolView](), self.offered_anywhere()
        for each in (*self.not_offering, *self.others, self):
            listed |= each.pools
        return {name: pool for name, pool in listed.items() if name not in offered}

    def pool(self, name: str) -> PoolView | None:
        """Returns the pool of this name: this host's, or else the first other one's that offers it. None if there is
        none (any more)."""
        own = self.pools.get(name)
        if not self.others or (own is not None and (own.wanted > 0 or own.starts_for_clients)):
            return own
        return next((each.pools[name] for each in self.others if name in each.offered()), own)

    def is_only_elsewhere(self, name: str) -> bool:
        """Whether another host offers this pool, and this one does not."""
        pool = self.pool(name)
        return pool is not None and pool is not self.pools.get(name)

    def is_available_elsewhere(self, name: str) -> bool:
        """Whether another host that gets clients has an available worker of this pool."""
        return name in self.hosts.available

    def label_keys(self) -> dict[LabelKey, tuple[str, ...]]:
        """Returns the label keys of the pools that are offered anywhere, each with the names of its pools."""
        found: dict[LabelKey, tuple[str, ...]] = {}
        for name, pool in self.offered_anywhere().items():
            for key in map(parse, pool.labels):
                found[key] = (*found.get(key, ()), name)
        return found

    def pool_of(self, worker_id: str | None) -> str | None:
        """Returns the name of this worker's pool; None if there is no such worker."""
        worker = self.worker(worker_id) if worker_id is not None else None
        return worker.pool if worker else None

    def worker(self, worker_id: str) -> WorkerView | None:
        """Returns this worker of any host; None if there is no such worker (any more)."""
        everywhere = (self, *self._elsewhere)
        return next((each.workers[worker_id] for each in everywhere if worker_id in each.workers), None)

    def all_workers(self) -> Iterator[WorkerView]:
        """Yields the workers of all hosts, this one's first."""
        yield from self.workers.values()
        for other in self._elsewhere:
            yield from other.workers.values()

    def without(self, protocol: Protocol) -> frozenset[str]:
        """Returns the ids of the workers that do not serve clients of this protocol: those of an older version, while
        the grid is upgraded, and of browsers that have none. One that has not told its version has told nothing."""
        return self._own_without(protocol).union(*(other.without(protocol) for other in self._elsewhere))

    @property
    def _elsewhere(self) -> tuple["Roster", ...]:
        """Those of the other hosts, whether clients may ask for their pools or not."""
        return self.others + self.not_offering

    def _own_without(self, protocol: Protocol) -> frozenset[str]:
        if protocol not in self._without:  # each client asks, and only another roster has another answer
            self._without[protocol] = frozenset(
                worker.worker_id
                for worker in self.workers.values()
                if worker.playwright_version and protocol not in worker.protocols
            )
        return self._without[protocol]

    def _versions(self) -> dict[str, set[str]]:
        """Returns by pool Playwright major.minor of its available workers."""
        found: defaultdict[str, set[str]] = defaultdict(set)
        for worker in self.workers.values():
            if worker.playwright_version and worker.status == "available":
                found[worker.pool].add(worker.playwright_version)
        return found

    def not_ready(self) -> str | None:
        """Returns why the grid is not ready to take sessions that come to this host; None when it is."""
        return self._why_not_ready(self.hosts.available, self.hosts.own if self.hosts.is_drained else "")

    def not_ready_alone(self) -> str | None:
        """Returns why this host could not serve its clients by itself; None when it could. Its master waits for that
        when it starts."""
        return self._why_not_ready()

    def _why_not_ready(self, elsewhere: frozenset[str] = frozenset(), drained: str = "") -> str | None:
        if self.lost and not self.stopping:
            return self.lost
        if not self.pools and not self.stopping:
            return "the master has not reported its pools yet"
        return readiness.why_not_ready(
            self.pools,
            is_started=self.is_started,
            is_stopping=self.stopping,
            host_guard=self.host_guard,
            elsewhere=elsewhere,
            drained=drained,
        )

    def shortage(self, name: str) -> str | None:
        """Returns why this pool, as `pool` finds it, can take no session at all; None when a worker is available."""
        pool = self.pool(name)
        return readiness.shortage(name, pool) if pool and not pool.is_removed else f"there is no pool {name} any more"


def _minor(worker: Mapping[str, Any]) -> str | None:
    version = worker.get("playwrightVersion")
    return minor_of(version) if version else None
