"""One client's way to a browser server: its upgrade head, the decision, a slot, the handoff, another if it fails.

Owns a client's socket only until a worker has it; sees none of the session's bytes.
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
from websockets.http11 import Request

from pwgrid.common.reasons import EndReason, OfferRefusal
from pwgrid.proxy.client_traces import Attempt, attempting
from pwgrid.proxy.connect.gateway import SUCCESSOR_S, Gateway
from pwgrid.proxy.connect.handoff_link import HandoffFailure, clear_marks, may_be_served
from pwgrid.proxy.connect.http_or_upgrade import parse_head
from pwgrid.proxy.policy.access import Address
from pwgrid.proxy.policy.connect_request import ConnectRequest, LeasePath, browser_server_headers, decide
from pwgrid.proxy.policy.refusal import Refusal, no_capacity, no_such_lease
from pwgrid.proxy.policy.session_caps import caps_of
from pwgrid.proxy.select.queue import ClientGone, Ticket
from pwgrid.registry import records
from pwgrid.tokens.tokens import OPERATORS_TOKEN

log = structlog.get_logger()

MAX_EARLY_BYTES: Final = 64 * 1024
"""What a client may send after its head before a browser server reads (a correct client waits for its 101). Binary
bytes may be fewer: JSON writes a control character as six (`MAX_OFFER_BYTES`)."""

Peer = tuple[str, int] | None
"""A client's address and port; None if it has left, or is on a Unix socket."""


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
        self._ticket: Ticket | None = None
        self._early = b""
        self._is_gone = False
        self._attempt: Attempt | None = None

    # uvicorn and the transport call these

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        self._peer: Peer = transport.get_extra_info("peername") or None
        self._server_state.connections.add(self)  # type: ignore[arg-type]

    def connection_lost(self, exc: Exception | None) -> None:
        self._server_state.connections.discard(self)
        self._client_went()

    def eof_received(self) -> bool:
        self._client_went()
        return False

    def data_received(self, data: bytes) -> None:
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
        if self._ticket is not None:
            self._gateway.selector.queue.abandon(self._ticket)

    # From here on one task: decision, slot, handoff

    async def _run(self, whole_head: bytes) -> None:
        try:
            request = parse_head(whole_head)
            with attempting(self._gateway.traces, "connect", request.headers.raw_items()) as self._attempt:
                await self._decide(request)
        except Refusal as refusal:
            self._refuse(refusal)
        except ClientGone:
            self._gateway.figures.abandoned += 1
            self._transport.abort()
        except Exception as error:  # noqa: BLE001 - after a bug here the client must not wait for ever
            log.error("upgrade_failed", error=repr(error), client=_text(self._peer))
            self._transport.abort()

    async def _decide(self, request: Request) -> None:
        """Serves the client, or raises what it gets instead."""
        peer = self._peer[0] if self._peer else ""
        wanted = decide(request, self._gateway.policy(), _address(self._transport.get_extra_info("sockname")), peer)
        if isinstance(wanted, LeasePath):  # its worker decides, even while the grid takes no others
            await self._serve_with_lease(wanted, request.headers)
        elif (closed := self._gateway.closed()) is not None:
            raise closed
        else:
            await self._serve(wanted, request.headers)

    async def _serve(self, wanted: ConnectRequest, headers: Headers) -> None:
        """Leases a slot and hands the client over; if the worker does not take it, tries another one."""
        gateway = self._gateway
        ticket = self._ticket = Ticket(
            session_id=secrets.token_hex(8),
            browser_type=wanted.browser_type,
            pool=gateway.roster.pool_of(wanted.worker_id) or wanted.pool,
            playwright_version=wanted.playwright_version,
            client=_text(self._peer),
            deadline=self._loop.time() + gateway.settings.worker_select_timeout,
            worker_id=wanted.worker_id,
            fields=_fields(wanted),
            run=wanted.name,
            token=wanted.identity.name,
            token_id=wanted.identity.token_id,
            caps=caps_of(gateway.settings, wanted.identity, label=wanted.label_key, run=wanted.name),
            refusal=partial(gateway.access.revoked, wanted.identity),
        )
        wanted.identity.check_pool(ticket.pool)
        if wanted.worker_id is not None:
            await gateway.selector.check_endpoint(wanted.browser_type, wanted.worker_id, wanted.endpoint_path)
        passed_on = self._passed_on(headers) | self._told_of(ticket)
        if self._attempt is not None:
            self._attempt.asks(ticket)
        while True:
            worker_id = await gateway.slot(ticket, self._attempt)
            since = time.monotonic()
            try:
                served_at = await self._offer_if_allowed(worker_id, ticket, passed_on)
            except (ClientGone, Refusal):
                await gateway.selector.give_back(ticket)
                raise
            except HandoffFailure as failure:
                if await self._is_served_all_the_same(ticket, worker_id, failure):
                    log.warning("handed_off_unconfirmed", worker=worker_id, session=ticket.session_id)
                    served_at = time.monotonic()
                    break
                gateway.figures.retried += 1
                self._transport.resume_reading()
            else:
                gateway.figures.phases[ticket.browser_type, ticket.pool].handoff.observe(max(0.0, served_at - since))
                log.debug("handed_off", session=ticket.session_id)
                break
        self._let_go(worker_id, ticket.session_id, served_at)
        if wanted.ignored_options:
            gateway.figures.options_ignored += 1
            log.info("launch_options_ignored", session=ticket.session_id, options=",".join(wanted.ignored_options))

    async def _serve_with_lease(self, lease: LeasePath, headers: Headers) -> None:
        """Hands the client over to the worker of its lease. It takes no slot of its own."""
        gateway = self._gateway
        worker = gateway.roster.workers.get(lease.worker_id)
        if worker is not None and worker.browser_type != lease.browser_type:
            raise no_such_lease()
        passed_on = {**self._passed_on(headers), "lease": [lease.lease_id, lease.secret]}
        if self._attempt is not None:
            self._attempt.asks_of(worker)
        until = self._loop.time() + SUCCESSOR_S
        reason = ""
        while True:
            session_id = secrets.token_hex(8)
            try:
                served_at = await self._offer(lease.worker_id, session_id, passed_on)
                break
            except HandoffFailure as failure:
                if await may_be_served(self._sock, failure):
                    served_at = time.monotonic()
                    break
                ids = {"worker": lease.worker_id, "lease": lease.lease_id, "session": session_id}
                log.info("handoff_failed", **ids, reason=failure.reason)
                self._transport.resume_reading()
                # In use after a try that was left unanswered: by this very client.
                reason = reason if reason and failure.reason == OfferRefusal.IN_USE else failure.reason
                if failure.is_refusal or not await gateway.may_answer_again(lease.worker_id, until):
                    is_known = lease.worker_id in gateway.roster.workers
                    ended = failure.ended or (EndReason.GRID_STOPPED if gateway.roster.stopping else None)
                    raise _lease_not_served(reason, ended, is_known=is_known) from None
        self._let_go(lease.worker_id, session_id, served_at, lease.lease_id)

    def _passed_on(self, headers: Headers) -> dict[str, object]:
        """Returns what any worker gets of this client."""
        sent_on = browser_server_headers(headers, compression=self._may_compress())
        passed_on: dict[str, object] = {"client": _text(self._peer), "headers": sent_on}
        if self._attempt is not None:
            passed_on["trace"] = self._attempt.traceparent()
        return passed_on

    @staticmethod
    def _told_of(ticket: Ticket) -> dict[str, object]:
        """Returns what the worker gets of a client without a lease, beside that."""
        token_id = "" if ticket.token == OPERATORS_TOKEN else ticket.token_id  # a browser server gets it, too
        told = {"told": ticket.told() if ticket.fields else {}, records.TOKEN_ID: token_id}
        return {name: value for name, value in told.items() if value}

    def _may_compress(self) -> bool:
        """Whether the client may use permessage-deflate: as COMPRESSION says; for `auto`, not from this host itself."""
        setting, peer = self._gateway.settings.compression, self._peer
        if setting != "auto":
            return setting == "on"
        if not peer or peer[0].startswith("127."):
            return False
        local = self._transport.get_extra_info("sockname")
        return bool(local and peer[0] != local[0])

    def _let_go(self, worker_id: str, session_id: str, served_at: float, lease_id: str | None = None) -> None:
        """Counts a client that is served, or may be, and closes this copy of its socket."""
        self._gateway.figures.handed_off += 1
        self._transport.abort()
        if self._attempt is not None:
            self._attempt.served(worker_id, session_id=session_id, lease_id=lease_id, at=served_at)

    async def _offer_if_allowed(self, worker_id: str, ticket: Ticket, passed_on: Mapping[str, object]) -> float:
        """As `_offer`. Raises the refusal of a client whose token was revoked since it was checked: this process may
        have been frozen."""
        if (refusal := ticket.refusal()) is not None:
            raise refusal
        return await self._offer(worker_id, ticket.session_id, passed_on)

    async def _offer(self, worker_id: str, session_id: str, passed_on: Mapping[str, object]) -> float:
        """Offers the client to the worker. Returns since when its browser server has it. Raises HandoffFailure,
        ClientGone, or Refusal for an offer that is too large."""
        if self._is_gone or self._transport.is_closing():
            raise ClientGone
        # From here the browser server reads this socket; a byte that the proxy reads would be missing there.
        self._transport.pause_reading()
        self._sock = self._transport.get_extra_info("socket")
        clear_marks(self._sock)
        request = {**passed_on, "early": self._early.decode("latin-1")}
        since = time.monotonic()
        try:
            served_at = await self._gateway.handoffs.offer(worker_id, session_id, request, self._sock)
        except HandoffFailure as failure:
            if self._attempt is not None:
                self._attempt.offered("handoff", since, time.monotonic(), worker_id, failure.reason)
            raise
        if self._attempt is not None:
            self._attempt.offered("handoff", since, served_at, worker_id, None)
        return served_at

    async def _is_served_all_the_same(self, ticket: Ticket, worker_id: str, failure: HandoffFailure) -> bool:
        """Returns whether the client of a failed handoff is served nevertheless. If not, gives the slot back, so that
        another worker can be tried."""
        selector = self._gateway.selector
        log.info("handoff_failed", worker=worker_id, session=ticket.session_id, reason=failure.reason)
        selector.not_taken(ticket, worker_id, failure.reason)
        if await may_be_served(self._sock, failure):
            return True
        await selector.give_back(ticket)
        ticket.take_another_id()  # the old one may be on record as ended
        if self._transport.is_closing():
            raise ClientGone
        return False

    def _refuse(self, refusal: Refusal) -> None:
        """Counts, logs and sends the refusal, and closes the connection."""
        self._gateway.figures.refused += 1
        self._gateway.figures.note_refusal(refusal)
        host = self._peer[0] if self._peer else "unknown"
        self._gateway.refusal_log.note(refusal, host, _text(self._peer))
        if not self._transport.is_closing():
            self._transport.write(refusal.response())
            self._transport.write_eof()  # a frozen worker's copy of the socket would keep it open
            self._transport.close()


def _lease_not_served(reason: str, ended: str | None, *, is_known: bool) -> Refusal:
    """409, 404 or 503: the client of a lease gets no browser. `reason` is the worker's answer, or what happened to the
    link; `ended` is why the lease has ended, where that is known; `is_known`: the master lists the worker."""
    if reason == OfferRefusal.IN_USE:
        return Refusal(409, "this lease has a client already: it is for one connection at a time")
    if reason == OfferRefusal.NO_LEASE or not is_known:
        return no_such_lease(ended)
    return no_capacity(f"the worker of this lease does not take its client now: {reason}")


def _fields(wanted: ConnectRequest) -> dict[str, str]:
    """Returns the optional fields of the session's record."""
    fields = {
        records.IGNORED_OPTIONS: ",".join(wanted.ignored_options),
        records.LABELS: wanted.labels,
        records.LABEL_KEY: wanted.label_key,
        records.NAME: wanted.name,
        records.TOKEN: wanted.identity.name,
    }
    return {name: value for name, value in fields.items() if value}


def _address(name: tuple[str, int] | tuple[str, int, int, int] | str | None) -> Address:
    """Returns a listener's address as the access policy has it; for a Unix socket its path."""
    if isinstance(name, tuple):
        return name[0], name[1]
    return (name, None) if name else None


def _text(peer: Peer) -> str:
    return f"{peer[0]}:{peer[1]}" if peer else "unknown"
