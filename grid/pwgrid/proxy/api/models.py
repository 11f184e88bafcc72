"""The bodies of the API's requests and answers, and query parameters that several routes have: names in camelCase,
times in Unix seconds, memory in MiB."""

from collections.abc import Mapping
from typing import Annotated, Final, Literal

from fastapi import Query
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.alias_generators import to_camel

from pwgrid.common.playwright_version import MINOR
from pwgrid.common.session_lifecycle import SessionStatus
from pwgrid.common.types import BrowserType, Isolation
from pwgrid.proxy.policy.pools_of_all_hosts import WholePool
from pwgrid.proxy.roster import Roster
from pwgrid.registry.records import (
    EXPIRES_AT,
    LABEL_KEY,
    LABELS,
    NAME,
    RUN,
    TOKEN,
    RegistrySnapshot,
    SessionRecord,
    number,
)
from pwgrid.settings.value_types import MAX_WORKERS

MAX_PAGE: Final = 1000
DEFAULT_TTL_S: Final = 900
MIN_TTL_S: Final = 60
MAX_TTL_S: Final = 86_400

NoneIfEmpty = BeforeValidator(lambda given: given or None)
"""An empty filter counts as not given."""

PageSize = Annotated[int, BeforeValidator(lambda given: given or 100), Query(ge=1, le=MAX_PAGE)]
PageSizeOrAll = Annotated[Annotated[int, Field(ge=1, le=MAX_PAGE)] | None, NoneIfEmpty, Query()]
Cursor = Annotated[str | None, NoneIfEmpty, Query()]


class _Model(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)


class Problem(_Model):
    """The form of every refusal; some have further fields."""

    error: str
    """One sentence that says what to do."""


class Health(_Model):
    """The proxy runs."""

    status: Literal["ok"] = "ok"
    version: str


class Ready(_Model):
    """Every pool can take a session. `degraded` says without what, if clients are served without Redis."""

    status: Literal["ready"] = "ready"
    degraded: str | None = None


class ActiveConnections(_Model):
    """Live sessions of the whole grid."""

    active_connections: int


class Clients(_Model):
    """Connects by outcome since the proxy started. The longest wait for a slot is in seconds."""

    handed_off: int
    refused: int
    retried: int
    abandoned: int
    options_ignored: int
    longest_wait_s: float


class WaitingRun(_Model):
    """Clients that wait for a slot of one pool and share their turns, since they have the same run and token. Both are
    empty if the clients have none."""

    pool: str
    run: str
    token: str
    waiting: int


class Status(_Model):
    """The grid at a glance. `reason` says why it is not ready, `degraded` why clients are served without Redis.
    `outcomes` are totals of ended sessions, which only rise; `takenBack` are those of them that were presumed
    wrongly."""

    ready: bool
    reason: str | None
    degraded: str | None
    active_connections: int
    waiting: int
    waiting_by_run: list[WaitingRun]
    clients: Clients
    outcomes: dict[str, int]
    taken_back: dict[str, int]
    counter_repairs: int


class Worker(_Model):
    """A registered worker with its counters."""

    id: str
    pool: str
    labels: list[str]
    browser_type: str
    status: str
    suspect: str | None
    """Why it takes no new client for now although it is available: its browser may be sick."""
    playwright_version: str
    """Of its browser server; empty until it is known."""
    active: int
    lifetime: int
    launches: int
    """Own browsers that its lifetime does not count: after MAX_LAUNCHES of them it is recycled."""
    slots: int
    rss_mib: int | None
    started_at: float
    ws_endpoint: str | None
    host: str | None
    """The name of its host, where several hosts are one grid."""


class Workers(_Model):
    """Registered workers, by type and id; `cursor` gives the next page, null at the end."""

    workers: list[Worker]
    cursor: str | None

    @classmethod
    def of(
        cls, found: RegistrySnapshot, roster: Roster, *, with_endpoints: bool, cursor: str | None = None
    ) -> "Workers":
        """Reads a snapshot. Endpoints are secrets: without `with_endpoints` they are left out."""
        suspect = {worker.worker_id: worker.suspect for worker in roster.workers.values()}
        return cls(
            workers=[
                Worker(
                    id=worker.worker_id,
                    pool=worker.pool,
                    labels=[*worker.labels],
                    browser_type=worker.browser_type,
                    status=worker.status,
                    suspect=suspect.get(worker.worker_id),
                    playwright_version=worker.playwright_version,
                    active=found.active.get(field, 0),
                    lifetime=found.lifetime.get(field, 0),
                    launches=worker.launches,
                    slots=worker.slots,
                    rss_mib=worker.rss_mib,
                    started_at=worker.started_at,
                    ws_endpoint=worker.ws_endpoint if with_endpoints else None,
                    host=worker.host or None,
                )
                for field, worker in found.workers.items()
            ],
            cursor=cursor,
        )


class Draining(_Model):
    """The workers that have been asked to drain."""

    draining: list[str]


class Session(_Model):
    """One session. A time is null before its event; `reason` says why it ended, `reasonKind` says it
    as one of a closed set."""

    id: str
    pool: str
    browser_type: str
    worker_id: str
    status: str
    reason: str | None
    reason_kind: str | None
    created_at: float
    started_at: float | None
    drain_at: float | None
    ended_at: float | None
    client: str
    bytes_in: int
    bytes_out: int
    isolation: str
    """What it shares with others: context (a browser), browser (a worker, no browser), process (neither)."""
    protocol: str
    """What its client speaks: playwright or cdp."""
    kept: bool
    """Whether it has no client now, and its browser waits for one."""
    kept_until: float | None
    """Until when it does."""
    profile: str | None
    """The name of the profile that its browser has."""
    ignored_options: list[str]
    """Names of the client's launch options that the grid ignores."""
    labels: str | None
    """The label key that its client asked for."""
    label_key: str | None
    """The pool's label key that serves it."""
    name: str | None
    """What its client calls its run."""
    run: str | None
    """The id of the run, from the borrow."""
    token: str | None
    """The name of its client's token."""
    lease: str | None
    """The id of the lease that its client came with."""
    viewed_at: float | None
    """When somebody last looked at its pages."""
    host: str | None
    """The name of its worker's host, where several hosts are one grid."""

    @classmethod
    def of(cls, record: SessionRecord) -> "Session":
        return cls.model_validate(record.as_json())


class Sessions(_Model):
    """Sessions, the newest first; `cursor` gives the next page, null at the end. A page may have fewer than `limit`."""

    sessions: list[Session]
    cursor: str | None


class SessionFile(_Model):
    name: str
    size: int
    """Bytes."""
    modified: float
    """Unix seconds."""


class SessionFiles(_Model):
    """Downloads of a CDP client that are complete, by their names; the first 1,000 of them."""

    files: list[SessionFile]


class Borrow(_Model):
    """Asks for a slot of the pool that serves this label key, for `ttlSeconds`."""

    label_key: str
    run_name: str | None = None
    run_id: str | None = None
    ttl_seconds: Annotated[int, Field(ge=MIN_TTL_S, le=MAX_TTL_S)] = DEFAULT_TTL_S
    isolation: Isolation | None = None
    """browser: the lease's clients get a browser of their own; null: as the pool has it."""
    profile: str | None = None
    """The profile of its CDP clients' browser. Nobody else has it while the lease lasts."""
    playwright: Annotated[str | None, Field(pattern=rf"^{MINOR}([^0-9].*)?$", max_length=40)] = None
    """Playwright of the lease's clients, like 1.58 (what follows does not count); null: as the pool has it."""


class Borrowed(_Model):
    """A new lease. `webSocketEndpoint` is secret, and for one connection at a time. So is `cdpEndpoint`, which several
    CDP clients may use at once: they share one browser. It is null for browsers that speak no CDP. `labelKey` is the
    pool's label key that serves the one that was asked for."""

    browser_id: str
    web_socket_endpoint: str
    cdp_endpoint: str | None
    browser_type: BrowserType
    label_key: str
    requested_label_key: str
    expires_at: float
    isolation: str
    playwright: str
    """Playwright (major.minor) that clients of `webSocketEndpoint` must have; empty if it is not known yet."""


class Return(_Model):
    """Names the lease to return."""

    browser_id: str
    label_key: str | None = None


class Returned(_Model):
    """`returned` is false if the lease was over before: returned, expired, or lost with its worker."""

    browser_id: str
    returned: bool


class Extend(_Model):
    """Asks that a lease lasts for at least `ttlSeconds` from now on."""

    ttl_seconds: Annotated[int, Field(ge=MIN_TTL_S, le=MAX_TTL_S)] = DEFAULT_TTL_S


class Extended(_Model):
    """`expiresAt` is the lease's new end."""

    browser_id: str
    expires_at: float


LeaseStatus = Literal["pending", "active", "returned", "expired", "ended", "failed"]
LEASE_STATUS: Final[Mapping[str, LeaseStatus]] = {
    SessionStatus.PENDING: "pending",
    SessionStatus.RUNNING: "active",
    SessionStatus.COMPLETED: "returned",
    SessionStatus.EXPIRED: "expired",
    SessionStatus.ENDED: "ended",
    SessionStatus.FAILED: "failed",
}
"""The API's name for a lease's status, by the status in its record."""


class Lease(_Model):
    """One lease. `endedAt` is null until it is over; `reason` says why it is, `reasonKind` says it as
    one of a closed set."""

    browser_id: str
    browser_type: str
    worker_id: str
    status: LeaseStatus
    reason: str | None
    reason_kind: str | None
    created_at: float
    expires_at: float
    ended_at: float | None
    client: str
    pool: str
    isolation: str
    """What its clients share with others, as of sessions."""
    protocol: str
    label_key: str | None
    """The pool's label key that serves the one that was asked for."""
    requested_label_key: str | None
    run_name: str | None
    run_id: str | None
    token: str | None
    profile: str | None

    @classmethod
    def of(cls, record: SessionRecord) -> "Lease":
        says = record.extra.get
        return cls(
            browser_id=f"{record.worker_id}-{record.session_id}",
            browser_type=record.browser_type,
            worker_id=record.worker_id,
            status=LEASE_STATUS.get(record.status, "failed"),
            reason=record.reason,
            reason_kind=record.reason_kind,
            created_at=record.created_at,
            expires_at=number(says(EXPIRES_AT)),
            ended_at=record.ended_at,
            client=record.client,
            pool=record.pool,
            isolation=record.isolation,
            protocol=record.protocol,
            label_key=says(LABEL_KEY),
            requested_label_key=says(LABELS),
            run_name=says(NAME),
            run_id=says(RUN),
            token=says(TOKEN),
            profile=record.profile,
        )


class Leases(_Model):
    """Leases, the newest first; `cursor` gives the next page, null at the end. A page may have fewer than `limit`."""

    leases: list[Lease]
    cursor: str | None


class Ending(_Model):
    """The session that has been told to end."""

    ending: str


class Room(_Model):
    """`slots` are those of workers that serve; `busy` are sessions, also in workers that drain; `waiting` counts
    clients, `spare` warm workers."""

    slots: int
    busy: int
    waiting: int
    spare: int


class Host(_Model):
    """One of the hosts that form a grid: its name is host and port, at which the others reach it. `state` says whether
    it gets clients: serving, drained, stopping, unreachable (from the host that answers) or silent. `workers` counts
    those that serve."""

    name: str
    is_own: Annotated[bool, Field(serialization_alias="self")]
    """Whether it is the one that answers."""
    state: str
    version: str
    last_heartbeat: float
    workers: int
    pools: list[str]
    room: Room
    problem: str | None
    """What is wrong with it: another host uses its name, too."""


class Hosts(_Model):
    """The hosts by their names; none where a host stands alone."""

    hosts: list[Host]


class Capacity(_Model):
    """How much there is and how much is taken. A label key has the figures of its pools, and a Playwright version those
    of the pools that have it; `hosts` has those of each host, where several form the grid."""

    total: Room
    pools: dict[str, Room]
    labels: dict[str, Room]
    versions: dict[str, Room]
    hosts: dict[str, Room]


class PoolOfHost(_Model):
    """The workers that one host has of a pool, and why it is short of them."""

    # Made from a PoolView (proxy/roster.py), which has all of these.

    wanted: int
    available: int
    starting: int
    spare: int
    draining: int
    reason: str | None


class Pool(_Model):
    """A pool. `wanted`, `available`, `starting`, `spare` and `draining` count workers; `slots` and `lifetime` are
    sessions of each worker. `reason` says why the pool is short of workers. Where several hosts form the grid, it is
    the pool of this name of all of them, and `hosts` has the figures of each; else that is empty."""

    # Made from a PoolView (proxy/roster.py), which has all of these but `hosts`.

    name: str
    browser_type: str
    labels: list[str]
    isolation: str
    """What sessions get that ask for nothing: context, browser or process."""
    playwright: str
    """Playwright (major.minor) of its clients."""
    is_on_demand: Annotated[bool, Field(serialization_alias="onDemand")]
    """Whether it starts when its first client comes, and ends when nobody has used it for a while."""
    wanted: int
    available: int
    starting: int
    spare: int
    draining: int
    slots: int
    lifetime: int
    drain_timeouts: int
    reason: str | None
    hosts: dict[str, PoolOfHost]

    @classmethod
    def of(cls, pool: WholePool, *, with_hosts: bool) -> "Pool":
        """`with_hosts`: several hosts form the grid."""
        told = {name: getattr(pool.whole, name) for name in cls.model_fields if name != "hosts"}
        hosts = {name: PoolOfHost.model_validate(each, from_attributes=True) for name, each in pool.hosts.items()}
        return cls(**told, hosts=hosts if with_hosts else {})


class Pools(_Model):
    """All pools, in the order of the configuration, and behind them those that only other hosts have."""

    pools: list[Pool]


class Scale(_Model):
    """How many workers the pool gets, until the next reload that changes it."""

    workers: int = Field(ge=0, le=MAX_WORKERS)


class Scaled(_Model):
    """How many workers are wanted now, by pool; where several hosts form the grid, on the host that was asked."""

    wanted: dict[str, int]
    host: str | None


class Node(_Model):
    """A registered worker. `capacity` is its slots, `active` its sessions."""

    node_id: str
    browser_type: str
    pool: str
    labels: list[str]
    status: str
    capacity: int
    active: int
    last_heartbeat: float
    playwright_version: str


class Nodes(_Model):
    """All registered workers."""

    nodes: list[Node]
