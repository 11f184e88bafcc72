"""What clients that connect and leases that are borrowed have in common: the policy, the way to a slot, the refusal
while the grid takes nobody, the figures."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol, TypeVar

import structlog

from pwgrid.proxy.client_traces import Attempt, ClientTraces
from pwgrid.proxy.connect.connect_metrics import ConnectFigures, Pool, Waited
from pwgrid.proxy.connect.find_session import SessionFinder
from pwgrid.proxy.connect.forwarding import Forwarding
from pwgrid.proxy.connect.from_other_hosts import FromOtherHosts
from pwgrid.proxy.connect.handoff_link import HandoffFailure, Handoffs, HostUnreachable, NoWay
from pwgrid.proxy.connect.refusal_log import RefusalLog
from pwgrid.proxy.hosts.host_table import OtherHost
from pwgrid.proxy.policy.access import Access, Identity
from pwgrid.proxy.policy.choose_pool import no_longer_for, no_pool_any_more
from pwgrid.proxy.policy.connect_request import Policy
from pwgrid.proxy.policy.label_match import OfferedLabels
from pwgrid.proxy.policy.launch_options import LaunchRules
from pwgrid.proxy.policy.refusal import (
    Refusal,
    RefusalReason,
    no_capacity,
    not_launched,
    not_on_demand,
    stopping,
)
from pwgrid.proxy.policy.session_caps import cap_reached
from pwgrid.proxy.readiness_check import Readiness
from pwgrid.proxy.roster import Roster
from pwgrid.proxy.select.claim import Claim, ClientGone
from pwgrid.proxy.select.selector import Selector
from pwgrid.settings.model import Settings

SUCCESSOR_S: Final = 5.0
"""How long clients with leases of a worker that died wait for its successor."""

SUCCESSOR_POLL_INTERVAL_S: Final = 0.05


log = structlog.get_logger()

Delivered = TypeVar("Delivered", covariant=True)


class Delivery(Protocol[Delivered]):
    """How a claim's worker gets what the slot is for: a client's socket, or the terms of a lease."""

    async def offer(self, worker_id: str) -> Delivered:
        """Raises HandoffFailure if the worker does not take it, or does not answer; Refusal or ClientGone."""

    async def taken_all_the_same(self, worker_id: str, failure: HandoffFailure) -> Delivered | None:
        """Returns what `offer` would have, if the worker has taken it nevertheless."""


@dataclass(slots=True)
class Gateway:
    """Places claims of every kind in one loop: `place`."""

    settings: Settings
    roster: Roster
    selector: Selector
    handoffs: Handoffs
    access: Access
    readiness: Readiness
    sessions: SessionFinder
    figures: ConnectFigures = field(default_factory=ConnectFigures)
    refusal_log: RefusalLog = field(default_factory=RefusalLog)
    on_slot_taken: Callable[[], None] = lambda: None
    traces: ClientTraces | None = None
    """None unless they are asked for."""
    forwarding: Forwarding | None = None
    from_other_hosts: FromOtherHosts | None = None
    """Both None where this host stands alone."""
    _policy: Policy | None = None

    def policy(self) -> Policy:
        if self._policy is None:
            settings, offered = self.settings, self.roster.offered_anywhere()
            default = settings.default_browser_type
            types = {pool.browser_type for pool in offered.values()}
            draining, sandbox = self.roster.draining_anywhere(), {"chromiumSandbox": settings.chromium_sandbox}
            self._policy = Policy(
                # If only one browser type has workers, it is the default, as in the settings.
                default_browser_type=default if default in types or len(types) != 1 else min(types),
                pools={name: replace(pool, options={**pool.options, **sandbox}) for name, pool in offered.items()},
                draining={name: replace(pool, options={**pool.options, **sandbox}) for name, pool in draining.items()},
                access=self.access,
                labels=OfferedLabels(
                    self.roster.label_keys(),
                    settings.borrow_trailing_fallback,
                    settings.borrow_prefix_expand,
                    settings.borrow_wildcards,
                ),
                launch=LaunchRules(settings.launch_options == "heed", settings.allowed_browser_args),
                keep_max_s=settings.keep_max,
                profiles=settings.profiles,
                pools_of_workers={worker.worker_id: worker.pool for worker in self.roster.all_workers()},
                versions_of_workers={
                    worker.worker_id: worker.playwright_version
                    for worker in self.roster.all_workers()
                    if worker.playwright_version
                },
            )
        return self._policy

    async def place(self, claim: Claim, delivery: Delivery[Delivered], attempt: Attempt | None = None) -> Delivered:
        """Takes a slot for the claim, and has it delivered; where its worker does not take it, tries another one. Tells
        `attempt` of each step. Raises Refusal or ClientGone, with no slot taken."""
        while True:
            worker_id = await self.slot(claim, attempt)
            try:
                if (refusal := claim.refusal()) is not None:  # this process may have been frozen meanwhile
                    raise refusal
                try:
                    return await delivery.offer(worker_id)
                except HandoffFailure as failure:
                    is_refused = failure.is_refusal
                    log.info("offer_failed", worker=worker_id, **claim.named, reason=failure.reason)
                    if not isinstance(failure, HostUnreachable):  # that host is left alone for a while
                        self.selector.not_taken(claim, worker_id, failure.reason)
                    claim.trouble = failure.detail
                    if (delivered := await delivery.taken_all_the_same(worker_id, failure)) is not None:
                        return delivered
                if claim.abandoned:
                    raise ClientGone
            except (ClientGone, Refusal):
                await self.selector.give_back(claim)
                raise
            await self.selector.give_back(claim)
            if not (claim.keeps_id and is_refused):
                claim.take_another_id()
            self.figures.retried += 1

    async def slot(self, claim: Claim, attempt: Attempt | None = None) -> str:
        """Waits for a slot for this claim, and tells `attempt` of the wait. Returns its worker's id. Raises Refusal
        or ClientGone."""
        since, waited = time.monotonic(), Waited.REFUSED
        try:
            if (refusal := self._does_not_start(claim.pool)) is not None:
                raise refusal
            worker_id = await self.selector.queue.acquire(claim)
            waited = Waited.SERVED
            return worker_id
        except ClientGone:
            waited = Waited.ABANDONED
            raise
        except Refusal as refusal:
            if refusal.reason is RefusalReason.WAITED_TOO_LONG:
                if claim.trouble:
                    raise not_launched(claim.trouble) from None
                if at_cap := await self.selector.caps_reached(claim):
                    raise cap_reached(at_cap[0], claim.caps[at_cap[0]], refusal) from None
                if (reason := await self.readiness.shortage(claim.pool)) is not None:
                    raise no_capacity(reason) from None
            raise
        finally:
            # In the next turn of the loop, so that the handoff comes first.
            waited_s = time.monotonic() - since
            loop = asyncio.get_running_loop()
            selection_s = claim.selection_s if waited is Waited.SERVED else None
            pool, stood_in_line = (claim.browser_type, claim.pool), claim.granted is not None
            loop.call_soon(self._note_wait, pool, waited, waited_s, selection_s, stood_in_line)
            if attempt is not None:
                loop.call_soon(attempt.waited, since, waited_s, selection_s)

    def _note_wait(
        self, pool: Pool, waited: Waited, waited_s: float, selection_s: float | None, stood_in_line: bool
    ) -> None:
        self.figures.note_wait(waited_s)
        if stood_in_line:
            self.figures.waits[pool, waited].observe(waited_s)
        if selection_s is not None:
            self.on_slot_taken()
            phases = self.figures.phases[pool]
            phases.queue.observe(max(0.0, waited_s - selection_s))
            phases.selection.observe(selection_s)

    async def offer(
        self, worker_id: str, session_id: str, request: Mapping[str, object], sock: socket.socket, until: float
    ) -> float:
        """As Handoffs.offer, to a worker of any host: a client for another one is forwarded."""
        if (way := await self._way_elsewhere(worker_id)) is not None:
            forwarding, host = way
            return await forwarding.offer(host, worker_id, session_id, request, sock, until)
        return await self.handoffs.offer(worker_id, session_id, request, sock, until)

    async def ask(self, worker_id: str, question: Mapping[str, object]) -> dict[str, Any]:
        """As Handoffs.ask, of a worker of any host."""
        if (way := await self._way_elsewhere(worker_id)) is not None:
            forwarding, host = way
            return await forwarding.ask(host, worker_id, question)
        return await self.handoffs.ask(worker_id, question)

    async def ask_worker(self, worker_id: str, question: Mapping[str, object], about: str) -> dict[str, Any] | None:
        """Returns a worker's answer about a lease or session of its own; None if it is gone, and these with it. Waits
        for a successor. Raises Refusal, which names what it is `about`."""
        until = asyncio.get_running_loop().time() + SUCCESSOR_S
        while True:
            try:
                return await self.ask(worker_id, question)
            except HandoffFailure as failure:
                if await self.may_answer_again(worker_id, until, failure):
                    continue
                if not await self.is_known(worker_id):
                    return None
                raise no_capacity(f"the worker of {about} does not answer: {failure}") from None

    async def may_answer_again(self, worker_id: str, until: float, failure: HandoffFailure) -> bool:
        """Waits a moment. Returns whether what has failed may still get a successor (the worker, if the master lists
        it, or this host's forwarder) and the loop's clock is before `until`. For another host's worker its proxy
        waits."""
        await asyncio.sleep(SUCCESSOR_POLL_INTERVAL_S)  # no event tells that the successor listens
        has_successor = worker_id in self.roster.workers or isinstance(failure, NoWay)
        return has_successor and asyncio.get_running_loop().time() < until

    async def is_known(self, worker_id: str) -> bool:
        """Whether there is such a worker, perhaps on another host that nobody can reach now."""
        return self.roster.worker(worker_id) is not None or await self._way_elsewhere(worker_id) is not None

    async def _way_elsewhere(self, worker_id: str) -> tuple[Forwarding, OtherHost] | None:
        """Returns the way to the other host that has this worker; None for one of this host, or of nobody."""
        if (forwarding := self.forwarding) is None or (host := await forwarding.host_of(worker_id)) is None:
            return None
        return forwarding, host

    def closed(self) -> Refusal | None:
        """Returns the refusal for all clients while the grid takes none; else None."""
        if self.roster.stopping:
            return stopping()
        lost = self.roster.lost
        return no_capacity(lost, RefusalReason.MASTER_LOST) if lost else None

    def check_pool(self, identity: Identity, pool: str) -> None:
        """Raises Refusal(403) for a pool that this token may not use."""
        found = self.roster.pool(pool)
        identity.check_pool(pool, found.like if found else "")

    def deadline(self, pool: str, usual_s: float) -> float:
        """Returns until when a client may wait in the line of this pool, by the event loop's clock: so long as it may
        usually, and for a launch where a pool that starts on demand has no worker yet."""
        found = self.roster.pool(pool)
        is_to_start = found is not None and found.is_on_demand and not found.available
        launch_s = self.settings.launch_timeout if is_to_start else 0.0
        return asyncio.get_running_loop().time() + usual_s + launch_s

    def roster_changed(self) -> None:
        """Makes the policy anew: it depends on the roster. Refuses those in line whom their pool serves no more."""
        self._policy = None
        queue = self.selector.queue
        anywhere = self.roster.offered_anywhere() if self.roster.others else self.roster.pools
        for name in queue.pools():
            pool = anywhere.get(name) or self.roster.pools.get(name)
            if pool is None or pool.is_removed:
                pools = self.policy().pools
                for claim in queue.waiting_in(name):
                    why = no_pool_any_more(pools, name, claim.browser_type, claim.playwright_version)
                    queue.end_wait(claim, why)
            elif (refusal := self._does_not_start(name)) is not None:
                queue.refuse(name, refusal)
            else:
                for claim in queue.waiting_in(name):
                    if not pool.serves(claim.playwright_version):
                        queue.end_wait(claim, no_longer_for(pool, str(claim.playwright_version)))

    def _does_not_start(self, name: str) -> Refusal | None:
        """Returns the refusal for clients of a pool that should start for them and cannot; else None."""
        pool = self.roster.pools.get(name)
        if pool is None or not pool.starts_for_clients or pool.available or not pool.reason:
            return None
        if self.roster.is_available_elsewhere(name):
            return None
        return not_on_demand(name, pool.reason)
