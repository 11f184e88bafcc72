"""Decides whether a worker takes an offered session, and when it has had all its sessions.

The worker is the authority for its slots, not Redis.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from pwgrid.common.worker_lifecycle import WorkerStatus

RefusalReason = Literal["draining", "full", "late", "used up"]
LeaseRefusal = Literal["no such lease", "in use", "late", "gone"]

REPORTS_PER_LIFE: Final = 10
"""Reports at equal steps of a worker's life: together they cost far less than the start of its browser."""


@dataclass(frozen=True, slots=True)
class Offer:
    """A session that a proxy offers. `deadline`: seconds of CLOCK_MONOTONIC, which all processes of a host share."""

    session_id: str
    deadline: float
    client: str = ""
    """Its address and port."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Those headers of the client that the browser server gets."""
    early: str = ""
    """What the client has sent after its head, as latin-1."""
    told: Mapping[str, str] = field(default_factory=dict)
    """Fields of the session's record (`labels`, `name`, `run`, `token`, `caps`)."""
    lease_id: str = ""
    """The lease that the client comes with; `secret` is the lease's secret, as the client has it."""
    secret: str = ""
    trace: str = ""
    """Where the session is traced: what its proxy wants to hear again when it is over."""


@dataclass(frozen=True, slots=True)
class Room:
    """How many slots a worker has taken (`live` of `slots`), and ever (`lifetime` of `max_lifetime`)."""

    live: int
    slots: int
    lifetime: int
    max_lifetime: float


def refusal(
    offer: Offer, status: WorkerStatus, room: Room, now: float, *, is_expected: bool = False
) -> RefusalReason | None:
    """Returns why the worker refuses the offer, or None when it admits it. `is_expected`: the session was leased before
    the drain.

    A spare admits: a selection offers it a session when it takes the place of a worker that is used up. A late offer is
    refused because the proxy has given the client to another worker by then.
    """
    if status not in (WorkerStatus.SPARE, WorkerStatus.AVAILABLE) and not (
        status is WorkerStatus.DRAINING and is_expected
    ):
        return "draining"
    if now >= offer.deadline:
        return "late"
    if is_used_up(room.lifetime, room.max_lifetime):
        return "used up"
    if room.live >= room.slots:
        return "full"
    return None


def is_used_up(lifetime: int, max_lifetime: float) -> bool:
    """Whether the worker has admitted its last session; live ones go on."""
    return lifetime >= max_lifetime


def is_worth_telling(lifetime: int, told: int, max_lifetime: int) -> bool:
    """Whether the master should hear this count at once: at each tenth of a life, and at every session of the last.
    `told` is the count that it heard last; several sessions may have come since."""
    step = max(1, max_lifetime // REPORTS_PER_LIFE)
    return lifetime // step > told // step or max_lifetime - lifetime < step
