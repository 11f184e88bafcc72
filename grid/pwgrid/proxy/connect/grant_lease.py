"""How a slot is lent: to a client that comes later, until the slot is returned, or its lease expires, or its client
leaves. The slot's worker keeps it."""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from pwgrid.common.profile_names import Profile
from pwgrid.common.reasons import OfferRefusal
from pwgrid.proxy.client_traces import Attempt
from pwgrid.proxy.connect.gateway import Gateway
from pwgrid.proxy.connect.handoff_link import HandoffFailure
from pwgrid.proxy.connect.profile_check import check_profile
from pwgrid.proxy.policy.refusal import Refusal
from pwgrid.proxy.select.claim import Claim
from pwgrid.proxy.select.worker_health import HANDOFF_TIMEOUT_S
from pwgrid.registry import records
from pwgrid.registry.records import EXPIRES_AT

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


async def lend(gateway: Gateway, claim: Claim, ttl_s: float, attempt: Attempt | None = None) -> GrantedLease:
    """Returns the lease that is claimed, and tells `attempt` of each step. Raises Refusal, or ClientGone once the claim
    is abandoned."""
    if attempt is not None:
        attempt.asks(claim)
    if (closed := gateway.closed()) is not None:
        raise closed
    if (profile := _profile(claim)) is not None:
        await check_profile(gateway.settings, profile)
    claim.fields = {**claim.fields, EXPIRES_AT: f"{time.time() + ttl_s:.3f}"}
    lent = await gateway.place(claim, _Lending(gateway, claim, ttl_s, attempt), attempt)
    if attempt is not None:
        attempt.served(lent.lease_id.worker_id, lease_id=claim.session_id)
    return lent


@dataclass(frozen=True, slots=True)
class _Lending:
    """Has a worker take the lease, and keep it, or drop it if the client has left."""

    gateway: Gateway
    claim: Claim
    ttl_s: float
    attempt: Attempt | None

    async def offer(self, worker_id: str) -> GrantedLease:
        """A worker forgets a lease that it is not told to keep."""
        # The time in line does not count. Its worker's next heartbeat tells Redis.
        since, expires_at = time.monotonic(), time.time() + self.ttl_s
        secret = secrets.token_urlsafe(24)
        lease_id = LeaseId(worker_id, self.claim.session_id)
        path = f"/lease/{self.claim.browser_type}/{worker_id}/{lease_id.own}.{secret}"
        try:
            taken = await self._asks(lease_id, "take", **self._terms(secret, expires_at))
            if _profile(self.claim) is not None and "profile" not in taken:
                await self._asks(lease_id, "drop")
                raise HandoffFailure("it is of an older version", is_refusal=True)
            if self.claim.abandoned:
                await self._asks(lease_id, "drop")
                raise HandoffFailure("its client has gone")
            await self._keep(lease_id)
        except HandoffFailure as failure:
            self._trace(worker_id, since, failure.reason)
            if failure.reason == OfferRefusal.NO_PROFILE and (profile := _profile(self.claim)) is not None:
                await check_profile(self.gateway.settings, profile)  # somebody else was a moment sooner
            raise
        self._trace(worker_id, since, None)
        return GrantedLease(lease_id, path, expires_at)

    async def taken_all_the_same(self, _worker_id: str, _failure: HandoffFailure) -> None:
        """A lease whose worker has not said that it keeps it is none."""

    def _trace(self, worker_id: str, since: float, refused: str | None) -> None:
        if self.attempt is not None:
            self.attempt.offered("keep", since, time.monotonic(), worker_id, refused)

    def _terms(self, secret: str, expires_at: float) -> dict[str, Any]:
        claim = self.claim
        return {
            "deadline": time.monotonic() + HANDOFF_TIMEOUT_S,
            "client": claim.client,
            "secret": secret,
            "expiresAt": expires_at,
            records.TOKEN_ID: claim.token_id,
            "clientFields": {name: text for name, text in claim.client_fields().items() if name != EXPIRES_AT},
        }

    async def _keep(self, lease_id: LeaseId) -> None:
        try:
            await self._asks(lease_id, "keep")
        except HandoffFailure as failure:
            if not failure.is_refusal:  # it may have kept the lease without having answered
                with contextlib.suppress(HandoffFailure):
                    await self._asks(lease_id, "return")
            raise

    async def _asks(self, lease_id: LeaseId, do: str, **more: object) -> dict[str, Any]:
        """Returns the answer. Raises HandoffFailure if the worker refuses, or gives no answer."""
        answer = await self.gateway.ask(lease_id.worker_id, {"id": lease_id.own, "do": do, **more})
        if answer["refused"] is not None:
            raise HandoffFailure(answer["refused"], is_refusal=True)
        return answer


def _profile(claim: Claim) -> Profile | None:
    """Returns the profile that the lease is to have."""
    name = claim.fields.get(records.PROFILE)
    return Profile(claim.token, name) if name else None


async def answered(gateway: Gateway, lent: GrantedLease, claim: Claim, watch: asyncio.Task[None]) -> None:
    """Runs after the answer was given to the client's connection: tells the worker whether the client was there.
    Of a client that had left before nobody knows the lease, and the worker ends it."""
    watch.cancel()
    is_gone = claim.abandoned
    await asyncio.sleep(0)  # uvloop writes at the end of the loop's round
    with contextlib.suppress(Refusal):  # a worker that stays silent is lost, and its leases with it
        await ask_about(gateway, lent.lease_id, {"do": "unanswered" if is_gone else "answered"})


async def ask_about(gateway: Gateway, lease_id: LeaseId, question: Mapping[str, object]) -> dict[str, Any] | None:
    """Returns the answer of the lease's worker; None if it has no such lease, or is gone and its leases with it. Raises
    Refusal."""
    answer = await gateway.ask_worker(lease_id.worker_id, {**question, "id": lease_id.own}, "this lease")
    return None if answer is None or answer["refused"] is not None else answer
