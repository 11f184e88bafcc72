"""Decides whether a worker takes a session that it is offered. The worker is the authority for its slots, not Redis."""

from dataclasses import dataclass
from typing import Literal

from grid.core.lifecycle import WorkerStatus

RefusalReason = Literal["draining", "full", "late"]


@dataclass(frozen=True, slots=True)
class Offer:
    """A session that a proxy offers. `deadline`: seconds of CLOCK_MONOTONIC, which all processes of a host share."""

    session_id: str
    deadline: float


def refusal(offer: Offer, status: WorkerStatus, live: int, slots: int, now: float) -> RefusalReason | None:
    """Why the worker refuses the offer; None when it admits it.

    A late offer is refused because the proxy has given the client to another worker by then.
    """
    if status is not WorkerStatus.AVAILABLE:
        return "draining"
    if now >= offer.deadline:
        return "late"
    if live >= slots:
        return "full"
    return None
