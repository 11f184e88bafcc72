"""Makes refusals, and renders them as HTTP/1.1 responses with the body `{"error": "<sentence>", …}`."""

from http import HTTPStatus
from typing import Final

import orjson
from websockets.datastructures import Headers
from websockets.http11 import Response

from pwgrid.common.launch_failure import without_places
from pwgrid.common.wording import counted
from pwgrid.proxy.policy.refusal import Refusal, RefusalReason, come_back
from pwgrid.proxy.select.queue import NoPlace, QueueFull, Ticket
from pwgrid.settings.model import Settings

RETRY_AFTER_S: Final = 5
RETRY_AFTER_STOPPING_S: Final = 30
RETRY_AFTER_QUEUE_S: Final = 30
"""For clients that the line was too long for, or that waited in vain."""


IN_USE: Final = "in use"
"""What a worker answers to a client with a lease that has one already."""


def body_of(refusal: Refusal) -> bytes:
    return orjson.dumps({"error": refusal.error, **refusal.details})


def render(refusal: Refusal) -> bytes:
    """Returns the whole response, with `Connection: close`."""
    body = body_of(refusal)
    headers = Headers(refusal.headers)
    headers["Content-Type"] = "application/json"
    headers["Content-Length"] = str(len(body))
    headers["Connection"] = "close"
    return Response(refusal.status, HTTPStatus(refusal.status).phrase, headers, body).serialize()


def no_capacity(
    error: str, retry_after_s: int = RETRY_AFTER_S, reason: RefusalReason = RefusalReason.NO_CAPACITY
) -> Refusal:
    """503: the grid cannot take the session now. Says when to come back."""
    return come_back(retry_after_s, 503, error, reason)


def registry_away(error: Exception) -> str:
    """Returns the sentence while Redis is away."""
    return f"the registry does not answer: {without_places(str(error))}"


def stopping() -> Refusal:
    """503 while the grid shuts down."""
    return no_capacity(
        f"the grid is shutting down: connect again in {RETRY_AFTER_STOPPING_S} s",
        RETRY_AFTER_STOPPING_S,
        RefusalReason.STOPPING,
    )


def lease_not_served(reason: str, *, is_known: bool) -> Refusal:
    """409, 404 or 503: the client of a lease gets no browser. `reason` is the worker's answer, or what happened to the
    link; `is_known`: the master lists the worker."""
    if reason == IN_USE:
        return Refusal(409, "this lease has a client already: it is for one connection at a time")
    if reason == "no such lease" or not is_known:
        return Refusal(404, "there is no such lease (any more): it was returned, or has expired; borrow another one")
    return no_capacity(f"the worker of this lease does not take its client now: {reason}")


def no_place(ticket: Ticket, settings: Settings, why: NoPlace) -> Refusal:
    """503: the line is full, or no slot came free in time. The body has the reason, the length of the line, and the
    position that the client had in it, or would have."""
    if isinstance(why, QueueFull):
        reason = RefusalReason.RUN_FULL if why.limit == "run" else RefusalReason.QUEUE_FULL
        error = _full(ticket, why)
    else:
        error, reason = _in_vain(ticket, settings, why.length - 1), RefusalReason.WAITED_TOO_LONG
    refusal = no_capacity(error, RETRY_AFTER_QUEUE_S, reason)
    refusal.details |= {"reason": reason.value, "queueLength": why.length, "position": why.position}
    return refusal


def cap_reached(cap: str, most: int, why: NoPlace) -> Refusal:
    """429 for a token, 503 for a run or label key that has as many live sessions as it may have."""
    what, _, name = cap.partition(":")
    if what == "token":  # its limit is reached, not the grid's
        refusal = come_back(
            RETRY_AFTER_S,
            429,
            f"the token {name} has {most} live sessions, which is its limit: end one, or have an operator make a token "
            "with another --max-sessions",
        )
        refusal.details["maxSessions"] = most
        return refusal
    shown = name.partition("/")[2] if what == "run" else name
    refusal = no_capacity(
        f"{what} {shown!r} has {counted(most, 'session')} already, as many as it may have at once: "
        "end some of them first",
        RETRY_AFTER_QUEUE_S,
        RefusalReason.CAP_REACHED,
    )
    refusal.details |= {"reason": f"{what} cap reached", "queueLength": why.length, "position": why.position}
    return refusal


def _full(ticket: Ticket, why: QueueFull) -> str:
    waiting = counted(why.most, "client waits", "clients wait")
    if why.limit == "run":
        return (
            f"{waiting} for a {ticket.pool} slot in the run {ticket.run!r} already: "
            "let it ask for fewer at once, or raise BORROW_QUEUE_MAX_PER_RUN"
        )
    if why.limit == "pool":
        return (
            f"{waiting} to borrow a {ticket.pool} slot already: come back later, add workers, or raise BORROW_QUEUE_MAX"
        )
    return f"{waiting} for a slot already: come back later, or add workers"


def _in_vain(ticket: Ticket, settings: Settings, waiting: int) -> str:
    waited_s = settings.borrow_queue_timeout if ticket.borrows else settings.worker_select_timeout
    others = counted(waiting, "other client waits", "other clients wait") if waiting else "nobody else waits"
    return (
        f"no {ticket.pool} slot came free within {waited_s:g} s: {others}; use fewer clients at once, add workers "
        f"(pwgrid scale {ticket.pool}=N) or slots (MAX_CONCURRENT_SESSIONS), or raise "
        f"{'BORROW_QUEUE_TIMEOUT' if ticket.borrows else 'WORKER_SELECT_TIMEOUT'}"
    )
