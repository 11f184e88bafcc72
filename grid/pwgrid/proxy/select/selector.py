"""Chooses workers by the registry, or without it while Redis is away (without_redis.py); excludes those that are gone
or silent."""

import asyncio
import contextlib
import hmac
import time
from collections.abc import Collection
from typing import Final
from urllib.parse import urlsplit

import structlog

from pwgrid.common.errors import RegistryUnavailable
from pwgrid.common.session_lifecycle import HeldAs
from pwgrid.common.types import BrowserType, Protocol
from pwgrid.proxy.policy.refusal import Refusal, registry_away
from pwgrid.proxy.roster import Roster
from pwgrid.proxy.select.claim import Claim
from pwgrid.proxy.select.queue import Queue
from pwgrid.proxy.select.turns_over_hosts import Turns
from pwgrid.proxy.select.without_redis import SelectionWithoutRedis
from pwgrid.proxy.select.worker_health import HANDOFF_TIMEOUT_S, MAY_TAKE_IT_LATER, WorkerHealth
from pwgrid.registry.records import PROFILE
from pwgrid.registry.registry import Registry
from pwgrid.settings.model import Settings

log = structlog.get_logger()

LEASE_S: Final = 2 * HANDOFF_TIMEOUT_S
"""How long a pending session keeps its slot if its proxy dies: longer than any handoff takes. Where it gets an own
browser, LAUNCH_TIMEOUT is added."""

_MOST_UNANSWERED: Final = 1000
"""Of an outage's selections only the first were sent at all: those after it fail at once."""


class Selector:
    """Selects workers for claims, and has the queue of clients that wait. `lost` are the ids of workers that are gone;
    the caller changes it. Links tell `health` what they notice of workers."""

    def __init__(self, settings: Settings, registry: Registry, roster: Roster, lost: Collection[str]) -> None:
        self.queue = Queue(self.select, self.give_back, settings, Turns(registry, roster))
        self.health = WorkerHealth(lost, self.queue.wake)
        self._settings = settings
        self._registry = registry
        self._roster = roster
        self._by_roster = SelectionWithoutRedis(roster)
        self._without_redis = False
        self._unanswered: dict[str, HeldAs] = {}
        """For what Redis may lease a slot, or keep it, although nobody waits for it any more: by id."""

    async def select(self, claim: Claim) -> str | None:
        """Leases a slot for the claim, and returns its worker's id. Returns None when no worker has one."""
        settings, pool, hosts = self._settings, self._roster.pool(claim.pool), self._roster.hosts
        since = time.monotonic()
        try:
            worker_id = await self._registry.select(
                claim.browser_type,
                kind=claim.kind,
                max_concurrent=pool.slots if pool else settings.max_concurrent_sessions,
                max_lifetime=pool.lifetime if pool else settings.max_lifetime_sessions,
                session_id=claim.session_id,
                lease_s=LEASE_S + claim.launch_s,
                client=claim.client,
                exclude=self._excluded(claim),
                version=claim.playwright_version,
                worker_id=claim.worker_id,
                pool=claim.pool,
                fields=claim.fields,
                caps=claim.caps,
                prefer_host=hosts.own if hosts.is_own_first and hosts.others else "",
                avoid_hosts=self._avoided(claim),
                in_line=claim.granted is not None if hosts.others else None,
            )
        except RegistryUnavailable as error:
            if not self._without_redis:
                self._without_redis = True
                log.warning("selecting_without_redis", error=str(error))
            self._note_unanswered(claim)
            return self.select_without_redis(claim)
        self._without_redis = False
        claim.selection_s = time.monotonic() - since
        return worker_id

    def select_without_redis(self, claim: Claim) -> str | None:
        """Returns the id of the next worker that may have a slot, or None."""
        if self._is_short_of_memory():
            return None
        worker_id = self._by_roster.choose(claim, self._excluded(claim))
        if worker_id is not None:
            claim.chosen_locally, claim.selection_s = True, 0.0
        return worker_id

    def _excluded(self, claim: Claim) -> set[str]:
        excluded = claim.excluded | self.health.not_to_choose()
        return excluded if claim.protocol is Protocol.PLAYWRIGHT else excluded | self._roster.without(claim.protocol)

    def _avoided(self, claim: Claim) -> frozenset[str]:
        """Returns the names of the hosts none of whose workers may be chosen."""
        hosts = self._roster.hosts
        if PROFILE in claim.fields:  # profiles are on the host where they were saved
            return hosts.avoided | hosts.others
        return hosts.avoided | {hosts.own} if self._is_short_of_memory() else hosts.avoided

    def _is_short_of_memory(self) -> bool:
        """Whether this host is, while there are others; where it is alone, the lines are paused."""
        return bool(self._roster.hosts.others) and self._roster.host_guard is not None

    async def caps_reached(self, claim: Claim) -> list[str]:
        """Returns which of the claim's caps are full."""
        with contextlib.suppress(RegistryUnavailable):
            return await self._registry.reached(claim.caps) if claim.caps else []
        return []

    async def give_back(self, claim: Claim) -> None:
        """Gives back the slot of a claim whose handoff failed, if Redis has leased one."""
        if claim.chosen_locally or claim.slot_is_anothers:
            return
        try:
            await self._registry.rollback(claim.session_id, claim.kind)
        except RegistryUnavailable as error:
            log.warning("slot_freed_when_redis_is_back", **claim.named, error=str(error))
            self._note_unanswered(claim)

    def _note_unanswered(self, claim: Claim) -> None:
        # A Redis that was frozen leases a slot for this id when it wakes: the session needs another one.
        if len(self._unanswered) < _MOST_UNANSWERED:
            self._unanswered[claim.session_id] = claim.kind
        claim.take_another_id()

    async def give_back_unanswered(self) -> None:
        """Gives back what Redis has leased for nobody; else each such slot is taken until its lease expires, for one
        with an own browser more than LAUNCH_TIMEOUT. Called once Redis answers again: it has read by then what came
        over the connection before."""
        unanswered, self._unanswered = self._unanswered, {}
        try:
            await asyncio.gather(*(self._registry.rollback(*each) for each in unanswered.items()))
        except RegistryUnavailable:
            self._unanswered = {**unanswered, **self._unanswered}  # tried again after the next connect

    async def check_endpoint(self, browser_type: BrowserType, worker_id: str, path: str) -> None:
        """Raises Refusal unless the path, which names the worker, has the secret of its registered endpoint."""
        try:
            endpoint = await self._registry.endpoint(browser_type, worker_id)
        except RegistryUnavailable as error:
            raise registry_away(error) from None
        # The registered one may have the path of ADVERTISED_URL before that.
        registered = urlsplit(endpoint or "").path.encode()[-len(path.encode()) :]
        if endpoint is None or not hmac.compare_digest(registered, path.encode()):
            raise Refusal(404, "there is no such worker (any more): take a current wsEndpoint, or none at all")

    def roster_changed(self) -> None:
        """Called when the master has sent its roster."""
        self.health.keep_only(self._roster.workers.keys())
        if self._without_redis:
            self.queue.wake()  # there may be a new worker, of which Redis cannot tell

    def not_taken(self, claim: Claim, worker_id: str, reason: str) -> None:
        """Called when a worker has not taken the claim's client: it is not chosen for that again, unless it may take
        the client later."""
        if worker_id not in self._roster.workers and self._roster.hosts.others and reason in MAY_TAKE_IT_LATER:
            self.health.leave_alone(worker_id)
        elif not self.health.refused(worker_id, reason):
            claim.excluded.add(worker_id)
