"""What the hosts of a grid know of each other: the grids that name the same external Redis. Each proxy tells of its own
host, and reads what the others have told; clients and questions for a worker of another host are left here for it."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import orjson

from pwgrid.common.readiness import PoolFigures, shortage
from pwgrid.common.types import BrowserType
from pwgrid.common.worker_lifecycle import WorkerStatus
from pwgrid.registry.records import number
from pwgrid.registry.scripts import SCRIPTS

if TYPE_CHECKING:
    from pwgrid.registry.redis_client import RedisClient

HOSTS: Final = "cluster:hosts"
"""Hash: a host's name → what its proxy has told last, as JSON."""

DRAINED: Final = "cluster:hosts:drained"
"""Hash: the name of a host that an operator has drained → since when, Unix seconds."""

FORWARD: Final = "cluster:forward:"
"""Before the id of a forward: a client, or a question, for a worker of another host, as JSON."""

FORWARDED: Final = "cluster:forwarded:"
"""Before the same id: why that worker has not taken the client, as JSON."""

FORWARD_TTL_S: Final = 15.0
"""How long a forward waits for the other host: longer than it takes to connect to that one."""

BEAT_S: Final = 2.0
"""How often at least a proxy tells of its host."""

SILENT_BEATS: Final = 5
"""A host that has told nothing for so many of its intervals gets no more clients of other hosts."""

NAME_TAKEN: Final = "another host uses this one's name, too: give each an ADVERTISED_HOST of its own"

KEPT_S: Final = 3600.0
"""How long the table of hosts is kept when none of them tells anything any more."""


class HostRoom(NamedTuple):
    """How much a host has: workers that serve, their slots, sessions (also in workers that drain), spare workers."""

    workers: int
    slots: int
    busy: int
    spare: int


@dataclass(frozen=True, slots=True)
class HostRecord:
    """What a proxy tells of its host. `pools` and `workers` are as the master's state frame has them
    (docs/architecture.md), `waiting` is how many clients wait by pool."""

    name: str
    """By which other hosts know it: host and port, as they stand in a URL."""
    address: tuple[str, int]
    """At which other hosts reach its proxy."""
    version: str = ""
    """Of pwgrid."""
    at: float = 0.0
    """When it was written, Unix seconds of that host's clock."""
    beat_s: float = BEAT_S
    """How often that host's proxy tells of it."""
    is_stopping: bool = False
    is_encrypted: bool = False
    """Whether its port speaks TLS."""
    pools: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    workers: tuple[Mapping[str, Any], ...] = ()
    waiting: Mapping[str, int] = field(default_factory=dict)
    instance: str = ""
    """Which grid tells this: two hosts may have been given the same name. An older version tells none."""
    is_name_taken: bool = False
    """Whether that grid has seen another one tell of itself under the same name lately."""

    @property
    def silent_s(self) -> float:
        """For how long it may tell nothing before it counts as silent."""
        return SILENT_BEATS * self.beat_s

    def as_json(self) -> str:
        """The record as Redis has it."""
        told = {
            "address": self.address,
            "version": self.version,
            "at": self.at,
            "beatS": self.beat_s,
            "stopping": self.is_stopping,
            "tls": self.is_encrypted,
            "pools": self.pools,
            "workers": self.workers,
            "waiting": self.waiting,
            "instance": self.instance,
            "nameTaken": self.is_name_taken,
        }
        return orjson.dumps(told).decode()

    def available_pools(self) -> frozenset[str]:
        """Returns the pools of which this host can take a session, by what its master says."""
        figures = {
            name: PoolFigures(
                int(each.get("wanted", 0)), int(each.get("available", 0)), None, suspect=int(each.get("suspect") or 0)
            )
            for name, each in self.pools.items()
        }
        return frozenset(name for name, each in figures.items() if shortage(name, each) is None)

    def room(self, active: Mapping[str, int]) -> HostRoom:
        """Returns how much this host has. `active` are the live sessions by worker field ("{type}:{id}")."""
        serving = [each for each in self.workers if each.get("status") == WorkerStatus.AVAILABLE]
        return HostRoom(
            workers=len(serving),
            slots=sum(int(self.pools.get(_pool_of(each), {}).get("slots", 0)) for each in serving),
            busy=sum(active.get(f"{each.get('browserType')}:{each.get('id')}", 0) for each in self.workers),
            spare=sum(each.get("status") == WorkerStatus.SPARE for each in self.workers),
        )

    @classmethod
    def read(cls, name: str, text: str) -> HostRecord | None:
        """Parses a record; None where it is none: another version may have written it, or an operator."""
        try:
            told = orjson.loads(text)
            host, port = told["address"]
            return cls(
                name=name,
                address=(str(host), int(port)),
                version=str(told.get("version", "")),
                at=float(told["at"]),
                beat_s=float(told.get("beatS", BEAT_S)),
                is_stopping=bool(told.get("stopping")),
                is_encrypted=bool(told.get("tls")),
                pools={str(pool): dict(each) for pool, each in told["pools"].items()},
                workers=tuple(dict(each) for each in told["workers"]),
                waiting={str(pool): int(count) for pool, count in told.get("waiting", {}).items()},
                instance=str(told.get("instance", "")),
                is_name_taken=bool(told.get("nameTaken")),
            )
        except (ValueError, TypeError, KeyError, AttributeError):
            return None


def _pool_of(worker: Mapping[str, Any]) -> str:
    """The name of a worker's pool: the master leaves it out where it is that of the browser type."""
    return str(worker.get("pool") or worker.get("browserType"))


@dataclass(frozen=True, slots=True)
class HostsFound:
    """What Redis knows of hosts: the records by name, and the names of those that an operator has drained."""

    records: Mapping[str, HostRecord]
    drained: frozenset[str]
    before: HostRecord | None = None
    """What the record of this host was before it was written now."""

    def states(self, now: float) -> dict[str, str]:
        """Returns by name whether each host gets clients, and why not, as far as their records tell. `now` is in Unix
        seconds: clocks should agree."""
        return {name: self._state(record, now) for name, record in self.records.items()}

    def _state(self, record: HostRecord, now: float) -> str:
        if now - record.at > record.silent_s:
            return "silent"
        if record.is_stopping:
            return "stopping"
        return "drained" if record.name in self.drained else "serving"

    def available_elsewhere(self, own: str, now: float) -> frozenset[str]:
        """Returns the pools of which another host than `own` that gets clients can take a session."""
        serving = (name for name, state in self.states(now).items() if state == "serving" and name != own)
        return frozenset[str]().union(*(self.records[name].available_pools() for name in serving))


def commands(prefix: str) -> list[tuple[str, ...]]:
    """The commands whose replies `found` takes."""
    return [("HGETALL", prefix + HOSTS), ("HGETALL", prefix + DRAINED)]


def found(hosts: Mapping[str, str], drained: Mapping[str, str]) -> HostsFound:
    """Reads the replies to `commands`, without records that make no sense."""
    read = {name: HostRecord.read(name, text) for name, text in hosts.items()}
    return HostsFound({name: each for name, each in sorted(read.items()) if each is not None}, frozenset(drained))


def forward_command(prefix: str, forward: Mapping[str, Any]) -> tuple[str, tuple[str | bytes | int, ...]]:
    """Returns the id of a new forward, and the command that leaves it: whoever can write this Redis is of the grid, and
    nobody else can guess the id."""
    forward_id = secrets.token_hex(16)
    return forward_id, _set_command(f"{prefix}{FORWARD}{forward_id}", forward)


def _set_command(key: str, value: Mapping[str, Any]) -> tuple[str | bytes | int, ...]:
    return ("SET", key, orjson.dumps(value), "PX", round(FORWARD_TTL_S * 1000))


class HostRecords:
    """The hosts' part of the registry. Each method raises RegistryUnavailable while Redis is away."""

    def __init__(self, client: RedisClient, prefix: str) -> None:
        self._client = client
        self._prefix = prefix

    async def exchange(self, own: HostRecord | None) -> HostsFound:
        """Writes this host's record, if there is one to write, and returns what Redis knows of all hosts."""
        if own is None:
            return found(*await self._client.pipeline(commands(self._prefix)))
        hosts = self._prefix + HOSTS
        told: list[tuple[str | int, ...]] = [
            ("HGET", hosts, own.name),
            ("HSET", hosts, own.name, own.as_json()),
            ("PEXPIRE", hosts, round(KEPT_S * 1000)),
        ]
        before, _, _, records, drained = await self._client.pipeline([*told, *commands(self._prefix)])
        return replace(found(records, drained), before=HostRecord.read(own.name, before or ""))

    async def forget(self, name: str, *, with_drain: bool = False) -> None:
        """Removes a host's record; `with_drain`: also that it is drained, as it leaves in order."""
        tables = (HOSTS, DRAINED) if with_drain else (HOSTS,)
        await self._client.pipeline([("HDEL", self._prefix + table, name) for table in tables])

    async def silent_workers(
        self, workers: Mapping[str, BrowserType], *, before: float
    ) -> tuple[dict[str, BrowserType], bool]:
        """Returns which of these workers, by id, Redis still knows although their last heartbeat was `before` (Unix
        seconds), and whether any of the others still beats."""
        asked: list[tuple[str, ...]] = []
        for worker_id, browser_type in workers.items():
            worker = f"{browser_type}:{worker_id}"
            asked.append(("HGET", f"{self._prefix}worker:{worker}", "lastHeartbeat"))
            asked.append(("HGET", f"{self._prefix}cluster:active_connections", worker))
        replies = await self._client.pipeline(asked)
        silent, is_any_alive = {}, False
        for (worker_id, browser_type), beat, active in zip(workers.items(), replies[::2], replies[1::2], strict=True):
            if number(beat) >= before:
                is_any_alive = True
            elif beat is not None or active is not None:
                silent[worker_id] = browser_type
        return silent, is_any_alive

    async def host_of(self, browser_type: BrowserType, worker_id: str) -> str:
        """Returns the name of a worker's host; empty where Redis does not know the worker, or it has none."""
        reply = await self._client.call("HGET", f"{self._prefix}worker:{browser_type}:{worker_id}", "host")
        return str(reply or "")

    # Forwards

    async def leave_forward(self, forward: Mapping[str, Any]) -> str:
        """Leaves a client, or a question, for another host. Returns the id by which that one takes it."""
        forward_id, command = forward_command(self._prefix, forward)
        await self._client.call(*command)
        return forward_id

    async def take_forward(self, forward_id: str) -> dict[str, Any] | None:
        """Takes it out of Redis: it is there for one time. None if there is none (any more)."""
        return await self._take(FORWARD + forward_id)

    async def leave_refusal(self, forward_id: str, refusal: Mapping[str, Any]) -> None:
        """Leaves why this host's worker has not taken the client."""
        await self._set(FORWARDED + forward_id, refusal)

    async def take_refusal(self, forward_id: str) -> dict[str, Any] | None:
        """What `leave_refusal` has left."""
        return await self._take(FORWARDED + forward_id)

    async def _set(self, key: str, value: Mapping[str, Any]) -> None:
        await self._client.call(*_set_command(self._prefix + key, value))

    async def _take(self, key: str) -> dict[str, Any] | None:
        reply = await self._client.run(SCRIPTS["take_forward"], (self._prefix + key,), ())
        try:
            value = orjson.loads(reply or "null")
        except ValueError:
            return None
        return value if isinstance(value, dict) else None
