"""Lends slots for clients that come later, and takes them back; the slot's worker keeps it. Answers no HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import structlog

from pwgrid.proxy.client_traces import Attempt
from pwgrid.proxy.connect.handoff import HANDOFF_TIMEOUT_S, NoAnswer
from pwgrid.proxy.connect.slot_or_refusal import SUCCESSOR_S, Gateway
from pwgrid.proxy.policy.refusal import Refusal, no_capacity
from pwgrid.proxy.select.queue import ClientGone, Ticket
from pwgrid.registry.records import EXPIRES_AT, LEASE

log = structlog.get_logger()

DEFAULT_TTL_S: Final = 900
MIN_TTL_S: Final = 60
MAX_TTL_S: Final = 86_400

_LEASE_ID: Final = re.compile(r"([0-9a-f]{1,32})-([0-9a-f]{16})")


@dataclass(frozen=True, slots=True)
class LeaseId:
    """A lease's id for its holder. It names the worker, so that the lease is found without Redis."""

    worker_id: str
    own: str

    def __str__(self) -> str:
        return f"{self.worker_id}-{self.own}"

    @classmethod
    def read(cls, text: str) -> LeaseId:
        """Raises Refusal for a malformed id."""
        if (found := _LEASE_ID.fullmatch(text)) is None:
            raise Refusal(400, f"{text[:60]!r} is no lease: take the browserId that the borrow gave")
        return cls(found[1], found[2])


@dataclass(frozen=True, slots=True)
class GrantedLease:
    """A lease that a worker keeps. `path` is its endpoint's, and secret; `expires_at` is in Unix seconds."""

    lease_id: LeaseId
    path: str
    expires_at: float
    hears_of_answer: bool
    """Whether its worker wants to hear that the borrower has it; a worker of an earlier version does not."""


class Lender:
    """Lends slots through the same queue and selection as connects."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._ask = gateway.handoffs.ask

    async def lend(self, ticket: Ticket, ttl_s: float, attempt: Attempt | None = None) -> GrantedLease:
        """Returns a lease for this ticket, which `borrows`, and tells `attempt` of each step. Raises Refusal, or
        ClientGone once the ticket is abandoned."""
        gateway, selector = self._gateway, self._gateway.selector
        if attempt is not None:
            attempt.asks(ticket)
        if (closed := gateway.closed()) is not None:
            raise closed
        while True:
            ticket.fields = {**ticket.fields, EXPIRES_AT: f"{time.time() + ttl_s:.3f}"}
            worker_id = await gateway.slot(ticket, attempt)
            # The time in line does not count. Its worker's next heartbeat tells Redis.
            since, expires_at = time.monotonic(), time.time() + ttl_s
            lease_id = LeaseId(worker_id, ticket.session_id.removeprefix(LEASE))
            secret = secrets.token_urlsafe(24)
            answer = await self._take(lease_id, secret, expires_at, ticket)
            refused = answer["refused"]
            if attempt is not None:
                attempt.offered("keep", since, time.monotonic(), worker_id, refused)
            if refused is None:
                if attempt is not None:
                    attempt.served(worker_id, ticket.session_id)
                path = f"/lease/{ticket.browser_type}/{lease_id.worker_id}/{lease_id.own}.{secret}"
                return GrantedLease(lease_id, path, expires_at, bool(answer.get("hearsOfAnswer")))
            log.info("lease_not_taken", worker=worker_id, lease=lease_id.own, reason=refused)
            selector.not_taken(ticket, worker_id, refused)
            await selector.give_back(ticket)
            if ticket.abandoned:
                raise ClientGone
            ticket.take_another_id()
            gateway.counts.retried += 1

    async def answered(self, lent: GrantedLease, *, is_gone: bool) -> None:
        """Tells the worker that the borrow's answer is written. `is_gone`: the client had left before that, so that
        nobody knows of the lease, and the worker ends it."""
        if lent.hears_of_answer:
            with contextlib.suppress(Refusal):  # a worker that stays silent is lost, and its leases with it
                await self._asked(lent.lease_id, {"do": "unanswered" if is_gone else "answered"})

    async def extend(self, lease_id: LeaseId, ttl_s: float, token: str | None) -> float | None:
        """Extends a lease. Returns when it expires now, or None if it is over, or not this token's. Raises Refusal if
        its worker does not answer."""
        answer = await self._asked(lease_id, {"do": "extend", "ttlS": ttl_s, "token": token})
        return None if answer is None else float(answer["expiresAt"])

    async def take_back(self, lease_id: LeaseId, token: str | None) -> bool:
        """Ends a lease that its holder returns. Returns False if it was over already, or is not this token's. Raises
        Refusal if its worker does not answer."""
        return await self._asked(lease_id, {"do": "return", "token": token}) is not None

    async def _take(self, lease_id: LeaseId, secret: str, expires_at: float, ticket: Ticket) -> dict[str, Any]:
        """Has the worker take and keep the lease, or drop it if the client has left. Returns its answer: `refused` says
        why it has not kept the lease. A worker forgets a lease that it is not told to keep."""
        question = {
            "id": lease_id.own,
            "deadline": time.monotonic() + HANDOFF_TIMEOUT_S,
            "client": ticket.client,
            "secret": secret,
            "expiresAt": expires_at,
            "told": {name: text for name, text in ticket.told().items() if name != EXPIRES_AT},
        }
        try:
            answer = await self._ask(lease_id.worker_id, {**question, "do": "take"})
        except NoAnswer as error:
            return {"refused": str(error)}
        if answer["refused"] is not None:
            return answer
        does = {"do": "drop"} if ticket.abandoned else {"do": "keep", "saysWhenAnswered": True}
        try:
            answer = await self._ask(lease_id.worker_id, {"id": lease_id.own, **does})
        except NoAnswer as error:
            # It may have kept the lease without having answered.
            with contextlib.suppress(NoAnswer):
                await self._ask(lease_id.worker_id, {"id": lease_id.own, "do": "return"})
            return {"refused": str(error)}
        return {**answer, "refused": "its client has gone"} if does["do"] == "drop" else answer

    async def _asked(self, lease_id: LeaseId, question: Mapping[str, object]) -> dict[str, Any] | None:
        """Returns the worker's answer; None if it has no such lease, or is gone and its leases with it. Raises
        Refusal."""
        until = asyncio.get_running_loop().time() + SUCCESSOR_S
        while True:
            try:
                answer = await self._ask(lease_id.worker_id, {**question, "id": lease_id.own})
            except NoAnswer as error:
                if await self._gateway.may_answer_again(lease_id.worker_id, until):
                    continue
                if lease_id.worker_id not in self._gateway.roster.workers:
                    return None
                raise no_capacity(f"the worker of this lease does not answer: {error}") from None
            return answer if answer["refused"] is None else None
