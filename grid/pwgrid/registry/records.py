"""The registry's records as plain data, converted to and from what Redis stores."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from typing import Any, NamedTuple

from pwgrid.common.histogram import Histogram
from pwgrid.common.redis_faults import RedisFault
from pwgrid.common.session_lifecycle import HeldAs, SessionStatus
from pwgrid.common.types import BrowserType, Isolation, Protocol
from pwgrid.common.worker_id import is_worker_id

ACTIVE = "cluster:active_connections"
LIFETIME = "cluster:lifetime_connections"
REPAIRS = "cluster:counter_repairs"
OUTCOMES = "sessions:outcomes"
TAKEN_BACK = "sessions:taken_back"
LEASE_OUTCOMES = "leases:outcomes"
LEASES_TAKEN_BACK = "leases:taken_back"
ENDS = "sessions:ends"
LENGTHS = "sessions:lengths"
INDEX = "sessions:index"
PAGE_HISTORY = "page:history"
HOST_HISTORY = "cluster:hosts:history:"
"""Stands for PAGE_HISTORY, before the host's name, where several hosts are one grid."""


LENGTH_BOUNDS_S = (1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 1800.0, 3600.0, 7200.0, 14400.0)
"""Upper bounds of a session's length, as reaper.lua has them."""
LIFETIME_TAKEN = "lifetime"
"""A field of the record of a session or lease: "0" if it takes none of its worker's lifetime. Others have none,
or "1": a lease's may change when a client comes with it (pwgrid/worker/leases.py)."""

EXPIRES_AT = "expiresAt"
"""A field of a lease's record, in Unix seconds."""

IGNORED_OPTIONS = "ignoredOptions"
"""A field of a session's record: names of launch options, comma-separated."""

OPTIONAL_FIELDS = ("labels", "labelKey", "name", "run", "token", "lease")
LABELS, LABEL_KEY, NAME, RUN, TOKEN, OF_LEASE = OPTIONAL_FIELDS
"""Fields that not every session's record has: the label key that was asked for, that of the pool which serves it, the
name and the id that the client gave its run, the name of its token, the lease that it came with."""

ISOLATION = "isolation"
"""A field of the record of a session or lease that shares no browser (common/types.py has the values)."""

PROTOCOL = "protocol"
"""A field of the record of a session or lease that speaks another one than Playwright's."""

HOST = "host"
"""A field of the record of a session or lease, where several hosts are one grid: the name of its worker's."""

PROFILE = "profile"
"""A field of the record of a session with a profile: its name."""

KEPT_UNTIL = "keptUntil"
"""A field of the record of a session that has no client now, in Unix seconds; empty once it has one again, and left
over from before its end."""

TOKEN_ID = "tokenId"
"""Of a client's token; workers know it, no record has it."""

CAPS = "caps"
"""A field of a record: the caps that the session counts towards, comma-separated ("run:nightly")."""

HASHES_AT_ONCE = 200
"""How many hashes are read in one pipeline: selections of the same process wait for the one that is under way."""

_TOO_LARGE = 2.0**53
"""From here on floats, and readers of JSON, skip whole numbers. The scripts have the same bound."""

_WRITTEN_BY_HEARTBEAT = ("status", "rssMib")

_SESSION_FIELDS = frozenset(
    {"browserType", "workerId", "status", "reason", "reasonKind", "createdAt", "startedAt", "endedAt"}
    | {"client", "bytesIn", "bytesOut", "presumed", "drainAt", "viewedAt", "pool"}
)


@dataclass(frozen=True, slots=True)
class WorkerRecord:
    """The hash `worker:{browserType}:{workerId}`. Times are Unix seconds."""

    browser_type: BrowserType
    worker_id: str
    ws_endpoint: str
    status: str = "available"
    started_at: float = 0.0
    slots: int = 1
    playwright_version: str = ""
    grid: str = ""
    handoff: str = ""
    pid: int = 0
    rss_mib: int | None = None
    launches: int = 0
    """Own browsers that its lifetime does not count."""
    pool: str = ""
    labels: tuple[str, ...] = ()
    """Label keys of its pool."""
    last_heartbeat: float = 0.0
    """Only the scripts write it."""
    host: str = ""
    """The name of its host, where several hosts are one grid."""

    def fields(self, *, renewed: bool = False) -> list[str]:
        """Returns the hash as names and values in turn, without the fields that register.lua sets itself; if `renewed`,
        also without those that heartbeat.lua sets itself."""
        named = {
            "wsEndpoint": self.ws_endpoint,
            "status": self.status,
            "startedAt": f"{self.started_at:.3f}",
            "slots": str(self.slots),
            "playwrightVersion": self.playwright_version,
            "grid": self.grid,
            "handoff": self.handoff,
            "pid": str(self.pid),
            "rssMib": "" if self.rss_mib is None else str(self.rss_mib),
            "launches": str(self.launches),
            "pool": self.pool or self.browser_type,
            "labels": ",".join(self.labels),
            **({"host": self.host} if self.host else {}),
        }
        return [text for pair in named.items() if not renewed or pair[0] not in _WRITTEN_BY_HEARTBEAT for text in pair]

    @classmethod
    def read(cls, name: str, values: Mapping[str, str]) -> WorkerRecord:
        """Parses the hash of the worker `name` ("{type}:{id}"). A missing or malformed value becomes the default."""
        browser_type, _, worker_id = name.partition(":")
        return cls(
            browser_type=browser_type,  # type: ignore[arg-type] # other grids may know more types than we do
            worker_id=known_worker_id(worker_id),
            ws_endpoint=values.get("wsEndpoint", ""),
            status=values.get("status", ""),
            started_at=number(values.get("startedAt")),
            slots=int(number(values.get("slots"))),
            playwright_version=values.get("playwrightVersion", ""),
            grid=values.get("grid", ""),
            handoff=values.get("handoff", ""),
            pid=int(number(values.get("pid"))),
            rss_mib=int(number(values["rssMib"])) if values.get("rssMib") else None,
            launches=int(number(values.get("launches"))),
            pool=values.get("pool") or browser_type,  # other programs register workers without one
            labels=tuple(filter(None, values.get("labels", "").split(","))),
            last_heartbeat=number(values.get("lastHeartbeat")),
            host=values.get("host", ""),
        )


@dataclass(frozen=True, slots=True)
class HeartbeatReply:
    """`known` is False when Redis has lost the worker, which then registers again. `command` is "shutdown" or "serve"
    from an operator or a selection, or None. `repaired` is by how much the active counter was wrong.

    `is_used_up`: a selection sent the shutdown, after it took the last session of the worker's life. `awaited` are the
    ids of sessions and leases for which a proxy may be on its way, with the seconds that their slots are still kept."""

    known: bool
    command: str | None
    repaired: int
    is_used_up: bool = False
    awaited: Mapping[str, float] = field(default_factory=dict)


class Failed(NamedTuple):
    """The ids of what has failed with its worker."""

    sessions: tuple[str, ...]
    leases: tuple[str, ...]


Reaped = Mapping[str, Failed]
"""What a run of the reaper removed, by worker ("{type}:{id}")."""


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """The hash `session:{id}`, or `lease:{id}`. Times are Unix seconds, None before their event. `extra` has all fields
    without an attribute of their own."""

    session_id: str
    browser_type: str
    worker_id: str
    status: str
    reason: str | None
    """Why it ended, for people."""
    created_at: float
    started_at: float | None
    ended_at: float | None
    client: str
    bytes_in: int
    bytes_out: int
    extra: Mapping[str, str]
    drain_at: float | None = None
    pool: str = ""
    viewed_at: float | None = None
    """When an operator last looked at its pages."""
    reason_kind: str | None = None
    """Why it ended: an EndReason of this grid's version, or of another's."""

    @classmethod
    def read(cls, session_id: str, values: Mapping[str, str]) -> SessionRecord:
        """Parses the hash as Redis returns it."""
        return cls(
            session_id=session_id,
            browser_type=values.get("browserType", ""),
            worker_id=known_worker_id(values.get("workerId", "")),
            status=values.get("status", ""),
            reason=values.get("reason") or None,
            reason_kind=values.get("reasonKind") or None,
            created_at=number(values.get("createdAt")),
            started_at=number(values["startedAt"]) if "startedAt" in values else None,
            ended_at=number(values["endedAt"]) if "endedAt" in values else None,
            client=values.get("client", ""),
            bytes_in=int(number(values.get("bytesIn"))),
            bytes_out=int(number(values.get("bytesOut"))),
            extra={name: value for name, value in values.items() if name not in _SESSION_FIELDS},
            drain_at=number(values["drainAt"]) if "drainAt" in values else None,
            pool=values.get("pool") or values.get("browserType", ""),
            viewed_at=number(values["viewedAt"]) if "viewedAt" in values else None,
        )

    @property
    def token(self) -> str | None:
        """The name of its client's token; None if the grid asked for none."""
        return self.extra.get(TOKEN) or None

    @property
    def isolation(self) -> str:
        """What it shares with others; an Isolation, or what only another version knows."""
        return self.extra.get(ISOLATION) or Isolation.CONTEXT.value

    @property
    def protocol(self) -> str:
        """What its client speaks."""
        return self.extra.get(PROTOCOL) or Protocol.PLAYWRIGHT.value

    @property
    def profile(self) -> str | None:
        """The name of its profile; None without one."""
        return self.extra.get(PROFILE) or None

    @property
    def host(self) -> str | None:
        """The name of its host; None where a host is a grid of its own."""
        return self.extra.get(HOST) or None

    @property
    def kept_until(self) -> float | None:
        """Until when its browser waits for a client to come back; None if it has one, or has ended."""
        until = number(self.extra.get(KEPT_UNTIL))
        return until if until and self.status == SessionStatus.RUNNING else None

    @property
    def ignored_options(self) -> list[str]:
        """The names of launch options that its client sent and the grid ignored."""
        return [name for name in self.extra.get(IGNORED_OPTIONS, "").split(",") if name]

    def as_json(self) -> dict[str, Any]:
        """The session as the API and the command line show it; times in Unix seconds."""
        return {
            "id": self.session_id,
            "pool": self.pool,
            "browserType": self.browser_type,
            "workerId": self.worker_id,
            "status": self.status,
            "reason": self.reason,
            "reasonKind": self.reason_kind,
            "createdAt": self.created_at,
            "startedAt": self.started_at,
            "drainAt": self.drain_at,
            "endedAt": self.ended_at,
            "client": self.client,
            "bytesIn": self.bytes_in,
            "bytesOut": self.bytes_out,
            "isolation": self.isolation,
            "protocol": self.protocol,
            "kept": self.kept_until is not None,
            "keptUntil": self.kept_until,
            "profile": self.profile,
            "ignoredOptions": self.ignored_options,
            "viewedAt": self.viewed_at,
            "host": self.host,
            **{name: self.extra.get(name) for name in OPTIONAL_FIELDS},
            "lease": f"{self.worker_id}-{lease}" if (lease := self.extra.get(OF_LEASE)) else None,
        }


@dataclass(frozen=True, slots=True)
class SessionPage:
    """Sessions, the newest first. `cursor` gives the next page; None at the end."""

    sessions: list[SessionRecord]
    cursor: str | None


@dataclass(frozen=True, slots=True)
class Activity:
    """What changes whenever a session begins or ends: the counters by worker field ("{type}:{id}"), the totals of ends,
    and the id of the newest session. While two are equal, no session has begun or ended between them."""

    active: Mapping[str, int]
    lifetime: Mapping[str, int]
    outcomes: Mapping[str, int]
    taken_back: Mapping[str, int]
    newest: str | None

    @property
    def fields(self) -> list[str]:
        """The fields of all workers that have a counter."""
        return sorted(self.active.keys() | self.lifetime.keys())


class Ends(NamedTuple):
    """Names a counter of ended sessions. `reason` is one of a closed set."""

    browser_type: str
    pool: str
    status: str
    reason: str


@dataclass(frozen=True, slots=True)
class RegistrySnapshot:
    """The registry at one moment. `active`, `lifetime` and `workers` are by worker field ("{type}:{id}"); `workers` has
    those whose hash exists.

    The rest are totals, which only rise: `outcomes` and `leases` are ends of sessions and of leases by status, `ends`
    those of sessions in detail. `taken_back` are ends in `outcomes` that were presumed wrongly, `leases_taken_back`
    those in `leases`. `lengths` are of sessions, in seconds, by browser type and pool.

    `write_fault` is why Redis takes no writes now; None if it does."""

    active: Mapping[str, int]
    lifetime: Mapping[str, int]
    workers: Mapping[str, WorkerRecord]
    outcomes: Mapping[str, int]
    counter_repairs: int
    taken_back: Mapping[str, int] = field(default_factory=dict)
    ends: Mapping[Ends, int] = field(default_factory=dict)
    lengths: Mapping[tuple[str, str], Histogram] = field(default_factory=dict)
    leases: Mapping[str, int] = field(default_factory=dict)
    leases_taken_back: Mapping[str, int] = field(default_factory=dict)
    write_fault: RedisFault | None = None


def snapshot_commands(prefix: str) -> list[tuple[str, ...]]:
    """The commands whose replies `worker_fields` and `read_snapshot` take."""
    hashes = (ACTIVE, LIFETIME, OUTCOMES, TAKEN_BACK, ENDS, LENGTHS, LEASE_OUTCOMES, LEASES_TAKEN_BACK)
    return [*(("HGETALL", prefix + name) for name in hashes), ("GET", prefix + REPAIRS)]


def live_commands(prefix: str, fields: Iterable[str], at_most: int = 0) -> list[tuple[str | int, ...]]:
    """The commands whose replies are the ids of these workers' live sessions: for each worker of those with a slot of
    their own (at most so many; 0 for all), then of those that came with a lease."""
    return [
        command
        for field in fields
        for command in (
            ("ZRANGE", f"{prefix}sessions:live:{field}", 0, at_most - 1),
            ("HKEYS", f"{prefix}sessions:leased:{field}"),
        )
    ]


def worker_fields(replies: list[Any], first: Collection[str] = ()) -> list[str]:
    """Returns all workers' fields, those of `first` before all others."""
    active, lifetime, *_ = replies
    there = active.keys() | lifetime.keys()
    return sorted(there.intersection(first)) + sorted(there.difference(first))


def worker_commands(prefix: str, fields: Iterable[str]) -> list[tuple[str, ...]]:
    """The commands whose replies `read_workers` takes."""
    return [("HGETALL", f"{prefix}worker:{field}") for field in fields]


def chunks(names: Iterable[str]) -> Iterator[list[str]]:
    """Yields these names in parts that are read in one pipeline each."""
    left = iter(names)
    while some := [*islice(left, HASHES_AT_ONCE)]:
        yield some


def read_workers(fields: Iterable[str], hashes: Iterable[Mapping[str, str]]) -> dict[str, WorkerRecord]:
    """Returns the records of these workers by their fields, without those that have none."""
    return {name: WorkerRecord.read(name, values) for name, values in zip(fields, hashes, strict=True) if values}


def read_snapshot(replies: list[Any], write_fault: RedisFault | None = None) -> RegistrySnapshot:
    """Makes a snapshot, without workers, from the replies to `snapshot_commands` and what became of the
    `write_probe`."""
    *found, repairs = replies
    active, lifetime, outcomes, taken_back, ends, lengths, leases, leases_taken_back = map(counts, found)
    return RegistrySnapshot(
        active=active,
        lifetime=lifetime,
        workers={},
        outcomes=outcomes,
        counter_repairs=int(number(repairs)),
        taken_back=taken_back,
        ends={Ends(*name.split(":")): count for name, count in ends.items() if name.count(":") == 3},
        lengths=_lengths(lengths),
        leases=leases,
        leases_taken_back=leases_taken_back,
        write_fault=write_fault,
    )


def key_of(kind: HeldAs, holder_id: str) -> str:
    """Returns the key of the record of a session or a lease."""
    return f"{kind}:{holder_id}"


def known_worker_id(text: str) -> str:
    """Returns a worker's id as Redis has it, or "" for what cannot be one: whoever writes Redis, or a bug."""
    return text if is_worker_id(text) else ""


@lru_cache  # each selection asks
def worker_of(endpoint: str) -> str:
    """Returns the worker's id in a wsEndpoint (ws://host:port/playwright/{browser type}/{worker id}.{secret}), or ""
    for one of another form: other programs register workers, too."""
    return known_worker_id(endpoint.rpartition("/")[2].partition(".")[0])


def number(text: str | None) -> float:
    """Parses a number. Returns 0 for anything else ("inf", "nan", ""): operators write these hashes, too."""
    try:
        found = float(text or 0)
    except ValueError:
        return 0.0
    return found if abs(found) < _TOO_LARGE else 0.0


def glob_escape(text: str) -> str:
    """Returns a Redis pattern that matches only this text."""
    return re.sub(r"([\\*?\[\]])", r"\\\1", text)


def counts(values: Mapping[str, str]) -> dict[str, int]:
    return {name: int(number(value)) for name, value in values.items()}


def _lengths(found: Mapping[str, int]) -> dict[tuple[str, str], Histogram]:
    lengths: dict[tuple[str, str], Histogram] = {}
    places = {f"{bound:g}": place for place, bound in enumerate((*LENGTH_BOUNDS_S, math.inf))}
    for name, value in found.items():
        browser_type, _, rest = name.partition(":")
        pool, _, what = rest.rpartition(":")
        if what not in places and what != "ms":
            continue
        histogram = lengths.setdefault((browser_type, pool), Histogram(LENGTH_BOUNDS_S))
        if what in places:
            histogram.counts[places[what]] = value
        else:
            histogram.total = value / 1000
    return lengths
