"""Decides whether a worker takes a session that it is offered. The worker is the authority for its slots, not Redis."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from pwgrid.common.worker_lifecycle import WorkerStatus
from pwgrid.worker.policy.lifetime import is_used_up

RefusalReason = Literal["draining", "full", "late", "used up"]
LeaseRefusal = Literal["no such lease", "in use", "late", "gone"]


@dataclass(frozen=True, slots=True)
class Offer:
    """A session that a proxy offers. `deadline`: seconds of CLOCK_MONOTONIC, which all processes of a host share."""

    session_id: str
    deadline: float
    client: str = ""
    """Its address and port."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Of the client's head, those that the browser server gets."""
    early: str = ""
    """What the client sent behind its head already, as latin-1."""
    told: Mapping[str, str] = field(default_factory=dict)
    """What the session's record is to have of its client, by the names of its fields (`labels`, `name`, `run`,
    `token`); and `caps`, the names of whom it counts for."""
    lease_id: str = ""
    """Of the lease that it comes with, and `secret` is what it shows for it."""
    secret: str = ""


@dataclass(frozen=True, slots=True)
class Room:
    """How many sessions a worker has (`live` of `slots`), and has had in its life (`lifetime` of `max_lifetime`)."""

    live: int
    slots: int
    lifetime: int
    max_lifetime: float


def refusal(
    offer: Offer, status: WorkerStatus, room: Room, now: float, *, is_expected: bool = False
) -> RefusalReason | None:
    """Why the worker refuses the offer; None when it admits it. `is_expected`: the session was leased before the drain.

    A spare that is offered a session has been chosen in place of a worker that is used up: from now on it serves.

    A late offer is refused because the proxy has given the client to another worker by then. While Redis is away, only
    the worker itself counts its sessions.
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
