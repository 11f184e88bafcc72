"""One client's way to a browser server: its upgrade head, the decision, a slot, the handoff, another if it fails.

It owns the client's socket until a worker has it.
"""

import asyncio
import secrets
import time
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import structlog
from uvicorn.config import Config
from uvicorn.server import ServerState
from websockets.datastructures import Headers

from pwgrid.common.client_marks import clear_marks
from pwgrid.common.reasons import EndReason, OfferRefusal
from pwgrid.common.session_lifecycle import HeldAs
from pwgrid.common.types import Isolation, Protocol
from pwgrid.proxy.client_traces import Attempt, attempting
from pwgrid.proxy.connect.encrypted_client import socket_of
from pwgrid.proxy.connect.find_session import FoundSession
from pwgrid.proxy.connect.first_bytes import parse_head
from pwgrid.proxy.connect.from_other_hosts import Forwarded, FromOtherHosts
from pwgrid.proxy.connect.gateway import SUCCESSOR_POLL_INTERVAL_S, SUCCESSOR_S, Gateway
from pwgrid.proxy.connect.handoff_link import HandoffFailure, may_be_served
from pwgrid.proxy.connect.profile_check import check_profile
from pwgrid.proxy.connect.refuse_in_cdp import RefusalInCdp
from pwgrid.proxy.policy.arrival import Address, Arrival
from pwgrid.proxy.policy.connect_request import (
    KEY,
    ClientHead,
    ConnectRequest,
    LeasePath,
    SessionPath,
    browser_server_headers,
    decide,
)
from pwgrid.proxy.policy.devtools_request import not_yours, speaks_no_cdp
from pwgrid.proxy.policy.forward_message import forward_in
from pwgrid.proxy.policy.own_browser import OwnBrowser
from pwgrid.proxy.policy.refusal import Refusal, no_capacity, no_such_lease, not_launched
from pwgrid.proxy.policy.session_caps import caps_of
from pwgrid.proxy.select.claim import Claim, ClientGone
from pwgrid.registry import records
from pwgrid.tokens.tokens import OPERATORS_TOKEN

log = structlog.get_logger()

MAX_EARLY_BYTES: Final = 64 * 1024
"""What a client may send after its head before a browser server reads (a correct client waits for its 101). Binary
bytes may be fewer: JSON writes a control character as six (`MAX_OFFER_BYTES`)."""


Served = tuple[str, float]
"""The worker that has the client, and since when (time.monotonic())."""


class ConnectingClient(asyncio.Protocol):
    """One client from its upgrade head to the handoff. uvicorn makes one for each WebSocket upgrade (its setting `ws`),
    and gives it the connection and the head."""

    def __init__(
        self, gateway: Gateway, *, config: Config, server_state: ServerState, app_state: dict[str, Any]
    ) -> None:
        self._gateway = gateway
        self._server_state = server_state
        self._loop = asyncio.get_running_loop()
        self._has_head = False
        self._claim: Claim | None = None
        self._key = ""
        """Its Sec-WebSocket-Key."""
        self._early = b""
        self._passed_on: Mapping[str, object] = {}
        """What a worker gets of this client."""
        self._has_no_marks = False
        self._own: OwnBrowser | None = None
        """The browser that it asks for itself."""
        self._forwarded: Forwarded | None = None
        """What another host's proxy has decided for it."""
        self._is_gone = False
        self._refused: RefusalInCdp | None = None
        self._attempt: Attempt | None = None

    # uvicorn and the transport call these

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        self._peer: tuple[str, int] | None = transport.get_extra_info("peername") or None  # a Unix socket has none
        self._arrival = Arrival(*(self._peer or ())[:2])
        self._server_state.connections.add(self)  # type: ignore[arg-type]

    def connection_lost(self, exc: Exception | None) -> None:
        self._server_state.connections.discard(self)
        self._client_went()

    def eof_received(self) -> bool:
        self._client_went()
        return False

    def data_received(self, data: bytes) -> None:
        if self._refused is not None:
            self._refused.receive(data)
            return
        if self._has_head:
            self._early += data
            if len(self._early) > MAX_EARLY_BYTES:
                self._transport.abort()
            return
        self._has_head = True
        task = self._loop.create_task(self._run(data))
        self._server_state.tasks.add(task)  # uvicorn waits for these when it ends
        task.add_done_callback(self._server_state.tasks.discard)

    def shutdown(self) -> None:
        """uvicorn calls this when it ends. Does nothing: the task answers the client, or hands it over."""

    def _client_went(self) -> None:
        # Ends only a wait in line. A lease or handoff under way is finished first, so that nothing of it is left.
        self._is_gone = True
        if self._claim is not None:
            self._gateway.selector.queue.abandon(self._claim)

    # From here on one task: decision, slot, handoff

    async def _run(self, whole_head: bytes) -> None:
        head = None
        try:
            head, self._key = parse_head(whole_head)
            with attempting(self._gateway.traces, "connect", head.headers.raw_items()) as self._attempt:
                await self._decide(head)
        except Refusal as refusal:
            self._refuse(refusal, head)
        except ClientGone:
            self._gateway.figures.abandoned += 1
            self._transport.abort()
        except Exception as error:  # noqa: BLE001 - after a bug here the client must not wait for ever
            log.error("upgrade_failed", error=repr(error), client=str(self._arrival))
            self._transport.abort()

    async def _decide(self, request: ClientHead) -> None:
        """Serves the client, or raises what it gets instead."""
        others = self._gateway.from_other_hosts
        if others is not None and (forward_id := forward_in(request.path)) is not None:
            await self._serve_forwarded(others, forward_id)
            return
        local, gateway = _address(self._transport.get_extra_info("sockname")), self._gateway
        self._arrival = gateway.access.arrivals.of(request.headers.get_all, self._peer, local)
        wanted = decide(request, policy := gateway.policy(), local, self._arrival)
        if isinstance(wanted, LeasePath):  # its worker decides, even while the grid takes no others
            if policy.pool_of(wanted.worker_id) is None and await gateway.is_known(wanted.worker_id):
                # Another host has told of it only now: without its pool nothing was decided about launch options.
                wanted = decide(request, gateway.policy(), local, self._arrival)
                assert isinstance(wanted, LeasePath)
            await self._serve_with_lease(wanted, request.headers)
        elif isinstance(wanted, SessionPath):
            await self._serve_at(wanted, request, local)
        elif (closed := gateway.closed()) is not None:
            raise closed
        else:
            await self._serve(wanted, request.headers)

    async def _serve(self, wanted: ConnectRequest, headers: Headers) -> None:
        """Takes a slot and hands the client over."""
        gateway = self._gateway
        self._own = wanted.own
        await self._check_profile()
        pool = gateway.roster.pool_of(wanted.worker_id) or wanted.pool
        claim = self._claim = Claim(
            kind=HeldAs.SESSION,
            browser_type=wanted.browser_type,
            pool=pool,
            playwright_version=wanted.playwright_version,
            client=str(self._arrival),
            deadline=gateway.deadline(pool, gateway.settings.worker_select_timeout),
            worker_id=wanted.worker_id,
            fields=_fields(wanted),
            run=wanted.name,
            token=wanted.identity.name,
            token_id=wanted.identity.token_id,
            caps=caps_of(gateway.settings, wanted.identity, label=wanted.label_key, run=wanted.name),
            refusal=partial(gateway.access.revoked, wanted.identity),
            protocol=wanted.protocol,
            launch_s=gateway.settings.launch_timeout if wanted.own is not None else 0.0,
            session_id=wanted.session_id,
            keeps_id=bool(wanted.session_id),
            abandoned=self._is_gone,
        )
        gateway.check_pool(wanted.identity, pool)
        if wanted.worker_id is not None:
            await gateway.selector.check_endpoint(wanted.browser_type, wanted.worker_id, wanted.endpoint_path)
        self._headers, self._wanted = headers, wanted
        # Redis is asked in the next turn of the loop, so this process has nothing else to do in the one after that.
        self._loop.call_soon(self._loop.call_soon, self._prepare)
        if self._attempt is not None:
            self._attempt.asks(claim)
        worker_id, served_at = await gateway.place(claim, self, self._attempt)
        self._let_go(worker_id, claim.session_id, served_at)
        if wanted.session_id:
            gateway.sessions.renamed(wanted.session_id, claim.session_id)
        if wanted.ignored_options:
            gateway.figures.options_ignored += 1
            log.info("launch_options_ignored", session=claim.session_id, options=",".join(wanted.ignored_options))

    def _prepare(self) -> None:
        """Makes ready for an offer, unless it is, what does not depend on the worker."""
        if self._passed_on or self._transport.is_closing():
            return
        assert self._claim is not None
        wanted = self._wanted
        spoken = _spoken(wanted.protocol, wanted.keep_s, is_of_page=wanted.is_of_page)
        self._passed_on = self._passed_on_of(self._headers) | _told_of(self._claim) | spoken
        self._clear_marks()

    async def _check_profile(self) -> None:
        """Raises Refusal where the client cannot have the profile that it asks for."""
        if self._own is not None and self._own.profile is not None:
            await check_profile(self._gateway.settings, self._own.profile)

    # Its delivery, for Gateway.place

    async def offer(self, worker_id: str) -> Served:
        claim = self._claim
        assert claim is not None
        self._prepare()
        since = time.monotonic()
        try:
            served_at = await self._offer(worker_id, claim.session_id)
        except HandoffFailure as failure:
            if failure.reason == OfferRefusal.NOT_YET:
                claim.slot_is_anothers = True
                raise _only_beginning() from None
            raise
        phases = self._gateway.figures.phases[claim.browser_type, claim.pool]
        phases.handoff.observe(max(0.0, served_at - since))
        log.debug("handed_off", session=claim.session_id)
        return worker_id, served_at

    async def taken_all_the_same(self, worker_id: str, failure: HandoffFailure) -> Served | None:
        assert self._claim is not None
        if await may_be_served(self._sock, failure):
            log.warning("handed_off_unconfirmed", worker=worker_id, **self._claim.named)
            return worker_id, time.monotonic()
        if self._transport.is_closing():
            raise ClientGone
        self._transport.resume_reading()
        return None

    # A client with a lease

    async def _serve_with_lease(self, lease: LeasePath, headers: Headers) -> None:
        """Hands the client over to the worker of its lease. It takes no slot of its own."""
        gateway = self._gateway
        worker = gateway.roster.worker(lease.worker_id)
        if worker is not None and worker.browser_type != lease.browser_type:
            raise no_such_lease()
        if lease.worker_id in gateway.roster.without(lease.protocol):
            raise speaks_no_cdp()
        spoken = _spoken(lease.protocol, lease.keep_s)
        self._passed_on = {**self._passed_on_of(headers), "lease": [lease.lease_id, lease.secret], **spoken}
        self._own = lease.own
        if self._attempt is not None:
            self._attempt.asks_of(worker)
        try:
            session_id, served_at = await self._offer_to(lease.worker_id, {"lease": lease.lease_id})
        except HandoffFailure as failure:
            is_known = await gateway.is_known(lease.worker_id)
            ended = failure.ended or (EndReason.GRID_STOPPED if gateway.roster.stopping else None)
            raise _lease_not_served(failure, ended, is_known=is_known, protocol=lease.protocol) from None
        self._let_go(lease.worker_id, session_id, served_at, lease.lease_id)

    # A client at the URL of a session

    async def _serve_at(self, path: SessionPath, request: ClientHead, local: Address) -> None:
        """Hands the client over to the session of this URL, or begins one that has its id."""
        gateway, until = self._gateway, self._loop.time() + SUCCESSOR_S
        beginning = gateway.sessions.beginning
        while True:
            found = await gateway.sessions.find(path.session_id, path.identity)
            if found is not None and await self._join(found, path, request.headers):
                return
            if found is None and path.session_id not in beginning:
                break
            if self._loop.time() >= until:
                raise _only_beginning()
            await asyncio.sleep(SUCCESSOR_POLL_INTERVAL_S)  # no event tells that it has begun
        if (closed := gateway.closed()) is not None:
            raise closed
        wanted = decide(request, gateway.policy(), local, self._arrival, is_new=True)
        assert isinstance(wanted, ConnectRequest)
        beginning.add(path.session_id)
        try:
            await self._serve(wanted, request.headers)
        finally:
            beginning.discard(path.session_id)

    async def _join(self, session: FoundSession, path: SessionPath, headers: Headers) -> bool:
        """Hands the client over as one more of a session that is there. It takes no slot. Returns False if the session
        is only beginning. Raises Refusal if it has just ended."""
        joins = {"joins": session.session_id}
        spoken = _spoken(Protocol.CDP, path.keep_s, is_of_page=path.is_of_page)
        self._passed_on = {**self._passed_on_of(headers), **joins, **spoken}
        if self._attempt is not None:
            self._attempt.asks_of(self._gateway.roster.worker(session.worker_id))
        try:
            _, served_at = await self._offer_to(session.worker_id, joins)
        except HandoffFailure as failure:
            if session.is_pending and failure.reason == OfferRefusal.NO_SESSION:
                return False
            if failure.reason == OfferRefusal.NO_SESSION or self._gateway.roster.worker(session.worker_id) is None:
                raise not_yours() from None
            raise no_capacity(f"the worker of this session does not take its client now: {failure.reason}") from None
        self._let_go(session.worker_id, session.session_id, served_at)
        return True

    # A client of another host

    async def _serve_forwarded(self, others: FromOtherHosts, forward_id: str) -> None:
        """Hands over a client that another host's proxy has forwarded. That one has checked all, and has a slot of the
        worker, unless the client comes with a lease or joins a session. It hears why the worker does not take it."""
        try:
            forwarded = self._forwarded = await others.take(forward_id)
            self._passed_on = forwarded.request
            if forwarded.ids:
                await self._offer_to(forwarded.worker_id, forwarded.ids)
            else:
                await self._offer_forwarded(forwarded)
        except HandoffFailure as failure:
            log.info("forwarded_not_taken", worker=forwarded.worker_id, reason=failure.reason)
            await others.refuse(forward_id, failure)
            self._send_refusal(no_capacity(f"the worker does not take this client: {failure.reason}"))
        except Refusal as refusal:
            self._send_refusal(refusal)
        else:
            log.debug("forwarded_here", worker=forwarded.worker_id, session=forwarded.session_id)
            self._transport.abort()

    async def _offer_forwarded(self, forwarded: Forwarded) -> None:
        try:
            await self._offer(forwarded.worker_id, forwarded.session_id)
        except HandoffFailure as failure:
            if not await may_be_served(self._sock, failure):
                raise

    # All

    async def _offer_to(self, worker_id: str, ids: Mapping[str, str]) -> tuple[str, float]:
        """Offers the client to the one worker that can serve it, or to that one's successor. Returns the id of the
        offer, and since when it is served. Raises HandoffFailure with the first reason that is not its own doing."""
        until = self._loop.time() + SUCCESSOR_S
        reason = ""
        while True:
            session_id = secrets.token_hex(8)
            try:
                return session_id, await self._offer(worker_id, session_id)
            except HandoffFailure as failure:
                if await may_be_served(self._sock, failure):
                    return session_id, time.monotonic()
                log.info("offer_failed", worker=worker_id, session=session_id, **ids, reason=failure.reason)
                self._transport.resume_reading()
                if failure.reason == OfferRefusal.NOT_YET and await self._gateway.may_answer_again(
                    worker_id, until, failure
                ):
                    continue
                # In use after a try that was left unanswered: by this very client.
                reason = reason if reason and failure.reason == OfferRefusal.IN_USE else failure.reason
                if failure.is_refusal or not await self._gateway.may_answer_again(worker_id, until, failure):
                    failure.reason = reason
                    raise

    def _passed_on_of(self, headers: Headers) -> dict[str, object]:
        """Returns what any worker gets of this client."""
        sent_on = {**browser_server_headers(headers, compression=self._may_compress()), KEY: self._key}
        passed_on: dict[str, object] = {"client": str(self._arrival), "headers": sent_on}
        if self._attempt is not None:
            passed_on["trace"] = self._attempt.traceparent()
        return passed_on

    def _clear_marks(self) -> None:
        """Clears them for the next offer, unless they are."""
        if not self._has_no_marks:
            self._sock = socket_of(self._transport)
            clear_marks(self._sock)
            self._has_no_marks = True

    def _may_compress(self) -> bool:
        """Whether the client may use permessage-deflate: as COMPRESSION says; for `auto`, not from this host itself."""
        setting, client = self._gateway.settings.compression, self._arrival.client
        if setting != "auto":
            return setting == "on"
        if not client or client.startswith("127."):
            return False
        local = self._transport.get_extra_info("sockname")
        return bool(local and client != local[0])

    def _let_go(self, worker_id: str, session_id: str, served_at: float, lease_id: str | None = None) -> None:
        """Counts a client that is served, or may be, and closes this copy of its socket."""
        self._gateway.figures.handed_off += 1
        self._transport.abort()
        if self._attempt is not None:
            self._attempt.served(worker_id, session_id=session_id, lease_id=lease_id, at=served_at)

    async def _offer(self, worker_id: str, session_id: str) -> float:
        """Offers the client to the worker. Returns since when its browser server has it. Raises HandoffFailure,
        ClientGone, or Refusal for an offer that is too large."""
        if self._is_gone or self._transport.is_closing():
            raise ClientGone
        # From here the browser server reads this socket; a byte that the proxy reads would be missing there.
        self._transport.pause_reading()
        self._clear_marks()
        self._has_no_marks = False
        since, offer = time.monotonic(), self._gateway.offer
        until = since + self._gateway.settings.launch_timeout
        request = {**self._passed_on, "early": self._early.decode("latin-1")}
        if self._forwarded is not None:  # the other host has decided all
            until, offer = self._forwarded.until, self._gateway.handoffs.offer
            request["early"] = self._forwarded.early + self._early.decode("latin-1")
        elif self._own is not None:
            request["own"] = self._own.for_worker(since, until)
        elif "lease" in request:  # only its worker knows whether the lease gets one all the same
            request["until"] = until
        try:
            served_at = await offer(worker_id, session_id, request, self._sock, until)
        except HandoffFailure as failure:
            if self._attempt is not None:
                self._attempt.offered("handoff", since, time.monotonic(), worker_id, failure.reason)
            if self._own is not None and self._own.fails_everywhere(
                failure.reason, self._gateway.settings.launch_timeout
            ):
                log.info("own_browser_not_launched", worker=worker_id, session=session_id, reason=failure.detail)
                raise not_launched(failure.detail, self._own.options) from None
            if failure.reason == OfferRefusal.NO_PROFILE:
                await self._check_profile()  # another client was a moment sooner
            raise
        if self._attempt is not None:
            self._attempt.offered("handoff", since, served_at, worker_id, None)
        return served_at

    def _refuse(self, refusal: Refusal, head: ClientHead | None) -> None:
        """Counts, logs and sends the refusal, and closes the connection."""
        self._gateway.figures.refused += 1
        self._gateway.figures.note_refusal(refusal)
        self._gateway.refusal_log.note(refusal, self._arrival.client or "unknown", str(self._arrival))
        self._send_refusal(refusal, head)

    def _send_refusal(self, refusal: Refusal, head: ClientHead | None = None) -> None:
        """Sends it and closes the connection."""
        if self._transport.is_closing():
            return
        self._refused = RefusalInCdp.to(self._transport, head and head.with_key(self._key), refusal)
        if self._refused is not None:
            self._transport.resume_reading()
            if self._early:
                self._refused.receive(self._early)
        else:
            self._transport.write(refusal.response())
            self._transport.write_eof()  # a frozen worker's copy of the socket would keep it open
            self._transport.close()


def _only_beginning() -> Refusal:
    return no_capacity("the session of this URL is only beginning: connect again")


def _told_of(claim: Claim) -> dict[str, object]:
    """Returns what the worker gets of a client without a lease, beside that."""
    token_id = "" if claim.token == OPERATORS_TOKEN else claim.token_id  # a browser server gets it, too
    told = {"clientFields": claim.client_fields() if claim.fields else {}, records.TOKEN_ID: token_id}
    return {name: value for name, value in told.items() if value}


def _spoken(protocol: Protocol, keep_s: float, *, is_of_page: bool = False) -> dict[str, object]:
    """Returns what a worker gets of a client that does not speak Playwright's protocol."""
    if protocol is not Protocol.CDP:
        return {}
    return {"protocol": protocol.value, "keep": keep_s, **({"page": True} if is_of_page else {})}


def _lease_not_served(failure: HandoffFailure, ended: str | None, *, is_known: bool, protocol: Protocol) -> Refusal:
    """409, 404 or 503: the client of a lease gets no browser, since the handoff failed. `ended` is why the lease has
    ended, where that is known; `is_known`: the master lists the worker."""
    reason = failure.reason
    if reason == OfferRefusal.IN_USE and protocol is Protocol.CDP:
        return Refusal(
            409, "this lease has a client of Playwright's connect() now: CDP clients may come when it has gone"
        )
    if reason == OfferRefusal.IN_USE:
        return Refusal(409, "this lease has a client already: it is for one connection at a time")
    if reason == OfferRefusal.NO_LEASE or not is_known:
        return no_such_lease(ended)
    if reason in (OfferRefusal.NOT_LAUNCHED, OfferRefusal.NOT_IN_TIME, OfferRefusal.OWN_FULL):
        return not_launched(failure.detail)
    return no_capacity(f"the worker of this lease does not take its client now: {reason}")


def _fields(wanted: ConnectRequest) -> dict[str, str]:
    """Returns the optional fields of the session's record."""
    fields = {
        records.IGNORED_OPTIONS: ",".join(wanted.ignored_options),
        records.LABELS: wanted.labels,
        records.LABEL_KEY: wanted.label_key,
        records.NAME: wanted.name,
        records.TOKEN: wanted.identity.name,
        records.ISOLATION: "" if wanted.isolation is Isolation.CONTEXT else wanted.isolation.value,
        records.LIFETIME_TAKEN: "" if wanted.takes_lifetime else "0",
        records.PROFILE: wanted.own.profile.name if wanted.own and wanted.own.profile else "",
        records.PROTOCOL: "" if wanted.protocol is Protocol.PLAYWRIGHT else wanted.protocol.value,
    }
    return {name: value for name, value in fields.items() if value}


def _address(name: tuple[str, int] | tuple[str, int, int, int] | str | None) -> Address:
    """Returns a listener's address as the access policy has it; for a Unix socket its path."""
    if isinstance(name, tuple):
        return name[0], name[1]
    return (name, None) if name else None
