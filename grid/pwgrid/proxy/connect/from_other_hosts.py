"""Clients and questions that come from other hosts' proxies (forwarding.py): takes out of Redis what such a proxy has
left there for a worker of this host, and answers it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import structlog

from pwgrid.common.errors import RegistryUnavailable
from pwgrid.proxy.connect.handoff_link import HandoffFailure, Handoffs
from pwgrid.proxy.policy.forward_message import incoming
from pwgrid.proxy.policy.refusal import Refusal, registry_away
from pwgrid.registry.host_records import HostRecords

log = structlog.get_logger()

_NONSENSE: Final = (KeyError, TypeError, ValueError, AttributeError)
"""What reading raises that makes no sense."""


@dataclass(frozen=True, slots=True)
class Forwarded:
    """A client that another host's proxy has placed here. `request` is what the worker gets, `until` how long it may
    take that (time.monotonic()); `early` is what the client has sent to that proxy after its head."""

    worker_id: str
    session_id: str
    request: Mapping[str, Any]
    until: float

    @property
    def ids(self) -> dict[str, str]:
        """The lease that the client comes with, or the session that it joins: for these its worker's successor will
        do, too. Empty for a client that has a slot of its own."""
        if (lease := self.request.get("lease")) is not None:
            return {"lease": str(lease[0])}
        return {"joins": str(self.request["joins"])} if "joins" in self.request else {}

    @property
    def early(self) -> str:
        return str(self.request.get("early", ""))


class FromOtherHosts:
    """What others' proxies leave for this one. `handoffs` are the links to this host's workers."""

    def __init__(self, records: HostRecords, handoffs: Handoffs) -> None:
        self._records = records
        self._handoffs = handoffs

    async def take(self, forward_id: str) -> Forwarded:
        """Takes a client that another host's proxy has left for one of this host's workers. Raises Refusal if there is
        none, or Redis is away."""
        forward = await self.taken(forward_id)
        now = time.monotonic()
        try:
            forward = incoming(forward, now)
            worker_id, session_id = str(forward["worker"]), str(forward["session"])
            return Forwarded(worker_id, session_id, incoming(forward["request"], now), float(forward["until"]))
        except _NONSENSE as error:
            raise Refusal(400, f"what was left here makes no sense: {error!r:.100}") from None

    async def answer(self, forward: Mapping[str, Any]) -> dict[str, Any]:
        """Passes a question of `taken` on to a worker of this host, and returns its answer, or why there is none.
        Raises Refusal for one that makes no sense."""
        now = time.monotonic()
        try:
            forward = incoming(forward, now)
            worker_id, question = str(forward["worker"]), incoming(forward["ask"], now)
        except _NONSENSE as error:
            raise Refusal(400, f"what was left here makes no sense: {error!r:.100}") from None
        try:
            return await self._handoffs.ask(worker_id, question, float(forward.get("until", 0.0)))
        except HandoffFailure as failure:
            return {"failure": failure.as_told()}

    async def refuse(self, forward_id: str, failure: HandoffFailure) -> None:
        """Leaves for the other host why the worker has not taken its client."""
        try:
            await self._records.leave_refusal(forward_id, failure.as_told())
        except RegistryUnavailable as error:
            log.warning("refusal_not_left", forward=forward_id, error=str(error))

    async def taken(self, forward_id: str) -> dict[str, Any]:
        """Takes what another host has left here. Raises Refusal if there is nothing, or Redis is away."""
        try:
            forward = await self._records.take_forward(forward_id) if forward_id else None
        except RegistryUnavailable as error:
            raise registry_away(error) from None
        if forward is None:
            raise Refusal(
                404, "nothing was left here (any more): other hosts of this grid connect here, and nobody else"
            )
        return forward
