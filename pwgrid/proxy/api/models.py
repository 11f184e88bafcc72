"""What the API says, as it says it: names in camelCase, times in Unix seconds, memory in MiB."""

from typing import Literal

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel

from pwgrid.registry.registry import RegistrySnapshot, SessionRecord


class _Model(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)


class Problem(_Model):
    """Every refusal has this shape; some have further fields."""

    error: str
    """One sentence that says what to do."""


class Health(_Model):
    """The proxy lives."""

    status: Literal["ok"] = "ok"
    version: str


class Ready(_Model):
    """Every pool can take a session."""

    status: Literal["ready"] = "ready"


class ActiveConnections(_Model):
    """Live sessions of the whole grid."""

    active_connections: int


class Clients(_Model):
    """What has become of connects since the proxy started; waits in seconds, from the arrival to the slot."""

    handed_off: int
    refused: int
    retried: int
    abandoned: int
    options_ignored: int
    longest_wait_s: float


class WaitingRun(_Model):
    """Clients that wait for a slot of one pool and share their turns: those of one run, with one token. Each name is
    empty where they have none."""

    pool: str
    run: str
    token: str
    waiting: int


class Status(_Model):
    """The grid at a glance. `reason`: why it is not ready. `outcomes` only rise; `taken_back` are those of them that
    were only presumed, and wrong."""

    ready: bool
    reason: str | None
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
    active: int
    lifetime: int
    slots: int
    rss_mib: int | None
    started_at: float
    ws_endpoint: str | None


class Workers(_Model):
    """All registered workers."""

    workers: list[Worker]

    @classmethod
    def of(cls, found: RegistrySnapshot, *, with_endpoints: bool) -> "Workers":
        """As the registry has them; the endpoints are secrets of operators."""
        return cls(
            workers=[
                Worker(
                    id=worker.worker_id,
                    pool=worker.pool,
                    labels=[*worker.labels],
                    browser_type=worker.browser_type,
                    status=worker.status,
                    active=found.active.get(field, 0),
                    lifetime=found.lifetime.get(field, 0),
                    slots=worker.slots,
                    rss_mib=worker.rss_mib,
                    started_at=worker.started_at,
                    ws_endpoint=worker.ws_endpoint if with_endpoints else None,
                )
                for field, worker in found.workers.items()
            ]
        )


class Draining(_Model):
    """The workers that have been asked to drain."""

    draining: list[str]


class Session(_Model):
    """One session. A time is null where that has not happened yet; `reason` says why it ended."""

    id: str
    pool: str
    browser_type: str
    worker_id: str
    status: str
    reason: str | None
    created_at: float
    started_at: float | None
    drain_at: float | None
    ended_at: float | None
    client: str
    bytes_in: int
    bytes_out: int
    ignored_options: list[str]
    """The launch options of its client that a shared browser cannot heed."""
    token: str | None
    """The name of the token that it was begun with."""

    @classmethod
    def of(cls, record: SessionRecord) -> "Session":
        """As its record has it."""
        return cls.model_validate(record.as_json())


class Sessions(_Model):
    """Sessions, the newest first; `cursor` gives the next page, null at the end."""

    sessions: list[Session]
    cursor: str | None


class Ending(_Model):
    """The session that has been told to end."""

    ending: str
