"""Finds the session of a CDP client that comes to a session's own URL."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final

from pwgrid.common.errors import RegistryUnavailable
from pwgrid.common.session_lifecycle import LIVE, SessionStatus
from pwgrid.common.types import Protocol
from pwgrid.proxy.connect.handoff_link import HandoffFailure, Handoffs
from pwgrid.proxy.policy.access import Identity
from pwgrid.proxy.policy.devtools_request import not_yours, session_over
from pwgrid.proxy.policy.refusal import Refusal
from pwgrid.proxy.roster import Roster
from pwgrid.registry.registry import Registry

_MOST_RENAMED: Final = 1000


@dataclass(frozen=True, slots=True)
class FoundSession:
    session_id: str
    worker_id: str
    is_pending: bool = False
    """Whether its worker may not have heard of it yet."""


@dataclass(slots=True)
class SessionFinder:
    """Knows which sessions are there, by Redis, or by their workers while that is away."""

    registry: Registry
    roster: Roster
    handoffs: Handoffs
    beginning: set[str] = field(default_factory=set)
    """Ids from URLs whose clients are being placed by this proxy: there is one session of each."""
    _renamed: OrderedDict[str, str] = field(default_factory=OrderedDict)

    def renamed(self, asked: str, session_id: str) -> None:
        """Notes under which id the session runs that was to have the id `asked`: it was placed while Redis was away, or
        again after a handoff in doubt."""
        if session_id != asked:
            self._renamed[asked] = session_id
            if len(self._renamed) > _MOST_RENAMED:
                self._renamed.popitem(last=False)

    async def find(self, asked: str, identity: Identity) -> FoundSession | None:
        """Returns the live session of this id; None if there has never been one. Raises Refusal for one that has ended,
        is another token's, or does not speak CDP."""
        session_id = self._renamed.get(asked, asked)
        try:
            found = await self.registry.session(session_id)
            if found is None and await self.registry.lease(session_id) is not None:
                raise not_yours()  # a session may not have the id of a lease
        except RegistryUnavailable:
            return await self._ask_workers(session_id, identity)
        if found is None:
            return None
        _check(found.token or "", found.protocol, identity)
        if found.status not in LIVE:
            raise session_over(found.status, found.reason)
        return FoundSession(session_id, found.worker_id, found.status == SessionStatus.PENDING)

    async def _ask_workers(self, session_id: str, identity: Identity) -> FoundSession | None:
        chromium = [each.worker_id for each in self.roster.workers.values() if each.browser_type == "chromium"]
        question = {"do": "tell of session", "id": session_id}
        answers = await asyncio.gather(
            *(self.handoffs.ask(worker_id, question) for worker_id in chromium), return_exceptions=True
        )
        for worker_id, answer in zip(chromium, answers, strict=True):
            if isinstance(answer, HandoffFailure):
                continue  # it is gone, or silent, and its client would not be served either
            if isinstance(answer, BaseException):
                raise answer
            if answer["refused"] is None:
                _check(answer["token"], answer["protocol"], identity)
                return FoundSession(session_id, worker_id)
        return None


def _check(token: str, protocol: str, identity: Identity) -> None:
    if token != identity.name:
        raise not_yours()
    if protocol != Protocol.CDP:
        raise Refusal(409, f"this session speaks {protocol}, and not CDP: nobody can join it")
