"""One upgrade from its decision to the handoff: lease, handoff, and the way back when one of them fails.

Owns a client's socket only until a worker has it; sees none of the session's bytes.
"""

import asyncio
import hmac
import secrets
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

import structlog

from pwgrid.common.handshake import ANSWERED, TRY_AGAIN_LATER, accept_value, close_frame
from pwgrid.proxy.connect import refusals as responses
from pwgrid.proxy.connect.handoff import HandoffFailure, Handoffs, OnAnswer, is_answered, is_served, unmark
from pwgrid.proxy.policy.upgrade_request import Refusal, Wanted
from pwgrid.proxy.roster import Roster
from pwgrid.proxy.select.queue import ClientGone, QueueFull, Ticket, WaitedTooLong
from pwgrid.proxy.select.selector import Selector
from pwgrid.registry.registry import Selection
from pwgrid.settings.load import Settings

log = structlog.get_logger()

MAX_EARLY_BYTES: Final = 64 * 1024
"""What a client may send behind its head before a browser server reads (a correct one sends nothing before its 101)."""

LOOK_S: Final = 0.005
"""Between two looks at whether a browser server has the client of a worker that died. It takes it 1 ms."""

Peer = tuple[str, int] | None
"""A client's address and port; None where it has none any more, or is on a Unix socket."""


@dataclass(slots=True)
class Counts:
    """What has become of upgrades since the proxy started."""

    handed_off: int = 0
    refused: int = 0
    retried: int = 0
    abandoned: int = 0
    """Clients that went while they waited."""


class InHand:
    """The upgrades under way: the proxy does not go before they are settled."""

    def __init__(self) -> None:
        self._upgrades: set[Upgrade] = set()
        self._settled = asyncio.Event()

    def __len__(self) -> int:
        return len(self._upgrades)

    def begins(self, upgrade: "Upgrade") -> None:
        """One more."""
        self._upgrades.add(upgrade)

    def ends(self, upgrade: "Upgrade") -> None:
        """Whatever became of it. Harmless for one that never began."""
        self._upgrades.discard(upgrade)
        if not self._upgrades:
            self._settled.set()

    async def settled(self) -> None:
        """Returns once there is none."""
        while self._upgrades:
            self._settled.clear()
            await self._settled.wait()


@dataclass(frozen=True, slots=True)
class Desk:
    """What all upgrades share."""

    loop: asyncio.AbstractEventLoop
    settings: Settings
    roster: Roster
    selector: Selector
    handoffs: Handoffs
    counts: Counts = field(default_factory=Counts)
    in_hand: InHand = field(default_factory=InHand)


def refuse(desk: Desk, transport: asyncio.Transport, peer: Peer, refusal: Refusal, *, is_open: bool = False) -> None:
    """Tells the client that there will be no session, and why. `is_open`: it has its 101, so a close frame says it."""
    desk.counts.refused += 1
    log.info("upgrade_refused", status=refusal.status, error=refusal.error, client=_text(peer))
    if not transport.is_closing():
        transport.write(close_frame(TRY_AGAIN_LATER, refusal.error) if is_open else responses.render(refusal))
        transport.write_eof()  # for all: a frozen worker may have a copy of the socket, which keeps it open
        transport.close()


class Upgrade(asyncio.Protocol):
    """One client between its upgrade head and the handoff.

    `head` are the header lines that the browser server shall get, `early` is what the client sent behind its own. Its
    worker may answer the client only if that has had no answer on this connection yet (`is_first`).
    """

    def __init__(  # noqa: PLR0913 - all that is known of a client
        self,
        desk: Desk,
        transport: asyncio.Transport,
        peer: Peer,
        wanted: Wanted,
        head: bytes,
        early: bytes = b"",
        *,
        is_first: bool,
    ) -> None:
        self._desk = desk
        self._transport = transport
        self._peer = peer
        self._wanted = wanted
        self._head = head
        self._early = early
        self._is_first = is_first
        self._selection: Selection | None = None
        self._ticket: Ticket[Selection] = Ticket(
            session_id=secrets.token_hex(8),
            browser_type=wanted.browser_type,
            playwright_version=wanted.playwright_version,
            client=_text(peer),
            deadline=desk.loop.time() + desk.settings.worker_select_timeout,
            worker_id=wanted.worker_id,
        )
        transport.set_protocol(self)

    def data_received(self, data: bytes) -> None:
        self._early += data
        if len(self._early) > MAX_EARLY_BYTES:
            self._transport.abort()

    def eof_received(self) -> bool:
        self._client_went()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._client_went()

    def _client_went(self) -> None:
        # Only a wait in line is cut short. A lease or handoff under way is settled first: nothing is left of it.
        self._desk.selector.queue.abandon(self._ticket)

    def begin(self) -> None:
        """Starts to serve it. Whatever comes, the client hears of it."""
        desk = self._desk
        desk.in_hand.begins(self)
        is_asked = self._wanted.worker_id is None and desk.selector.ask(self._ticket, self._on_selected)
        # The registry is at work now, perhaps on another core.
        self._sock = self._transport.get_extra_info("socket")
        self._can_be_marked = unmark(self._sock)
        self._accept = accept_value(self._head) if self._is_first and self._can_be_marked else ""
        if not is_asked:
            self._take_time()

    def _let_go(self) -> None:
        """Closes our copy of the socket. The connection lives on if a browser server has one."""
        self._transport.abort()
        self._desk.in_hand.ends(self)

    def _fail(self, error: Exception) -> None:
        """A bug of ours: this client must not wait for ever."""
        log.error("upgrade_failed", error=repr(error), client=self._ticket.client)
        self._let_go()

    # Nearly always there is a worker at once, and it takes the session: two callbacks, and no task for them.

    def _on_selected(self, selection: Selection | None) -> None:
        try:
            self._selection = selection
            if selection is None or self._is_gone():
                self._take_time()
            else:
                self._offer(selection, self._on_answer)
        except Exception as error:  # noqa: BLE001 - see there
            self._fail(error)

    def _on_answer(self, failure: HandoffFailure | None) -> None:
        try:
            if failure is None:
                self._handed_off()
            else:
                self._take_time(failure)
        except Exception as error:  # noqa: BLE001 - see there
            self._fail(error)

    def _is_gone(self) -> bool:
        return self._ticket.abandoned or self._transport.is_closing()

    def _offer(self, selection: Selection, on_answer: OnAnswer) -> None:
        # From here the browser server reads this socket; a byte that we read would be missing there.
        self._transport.pause_reading()
        ticket = self._ticket
        head = self._head + self._early
        self._desk.handoffs.offer(
            selection.worker_id, ticket.session_id, ticket.client, self._accept, head, self._sock.fileno(), on_answer
        )

    def _handed_off(self) -> None:
        self._desk.counts.handed_off += 1
        log.debug("handed_off", session=self._ticket.session_id)
        self._let_go()

    # All else takes time: a wait in line, a worker that says no, a certain one that is wanted, a client that left.

    def _take_time(self, failure: HandoffFailure | None = None) -> None:
        """Goes on from here in a task: with a selection or without, and with what came of its handoff."""
        self._task = self._desk.loop.create_task(self._run(failure))

    async def _run(self, failure: HandoffFailure | None) -> None:
        try:
            if self._wanted.worker_id is not None:
                await self._check_endpoint(self._wanted.worker_id)
            while True:
                if self._selection is None:
                    self._selection = await self._acquire()
                if failure is None:
                    failure = await self._hand_over(self._selection)
                if failure is None:
                    return self._handed_off()
                if await self._is_settled(self._selection, failure):
                    return self._let_go()
                self._selection = failure = None
                self._desk.counts.retried += 1
        except Refusal as refusal:
            refuse(self._desk, self._transport, self._peer, refusal, is_open=self._accept == ANSWERED)
            self._desk.in_hand.ends(self)
        except ClientGone:
            self._desk.counts.abandoned += 1
            self._let_go()
        except Exception as error:  # noqa: BLE001 - see there
            self._fail(error)

    async def _check_endpoint(self, worker_id: str) -> None:
        """The secret in a worker's own endpoint is what its registration says; nobody guesses another one's."""
        endpoint = await self._desk.selector.endpoint_of(self._wanted.browser_type, worker_id)
        path = urlsplit(endpoint).path if endpoint else ""
        if not hmac.compare_digest(path.encode(), (self._wanted.endpoint_path or "").encode()):
            raise Refusal(404, "there is no such worker (any more): take a current wsEndpoint, or none at all")

    async def _acquire(self) -> Selection:
        desk, browser_type = self._desk, self._wanted.browser_type
        try:
            return await desk.selector.queue.acquire(self._ticket)
        except QueueFull:
            raise responses.no_capacity(
                f"{desk.settings.max_queue} clients wait for a slot already: come back later, or add workers"
            ) from None
        except WaitedTooLong:
            reason = desk.roster.host_guard or desk.roster.shortage(browser_type)
            if reason is not None:
                raise responses.no_capacity(reason) from None
            raise responses.waited_too_long(browser_type, desk.settings.worker_select_timeout) from None

    async def _hand_over(self, selection: Selection) -> HandoffFailure | None:
        """Why the worker did not take the session; None when it did."""
        if self._is_gone():
            await self._desk.selector.give_back(self._ticket)
            raise ClientGone
        answered: asyncio.Future[HandoffFailure | None] = self._desk.loop.create_future()
        self._offer(selection, answered.set_result)
        return await answered

    async def _is_settled(self, selection: Selection, failure: HandoffFailure) -> bool:
        """Whether a handoff that failed is none of ours any more. False: another worker shall be tried, as if this one
        had never been asked; but if it has answered the client, nobody else may."""
        selector, ticket = self._desk.selector, self._ticket
        log.info("handoff_failed", worker=selection.worker_id, session=ticket.session_id, reason=failure.reason)
        if not selector.local.refused(selection, failure.reason):
            ticket.excluded.add(selection.worker_id)
        if await self._may_be_served(failure):
            log.warning("handed_off_unheard", worker=selection.worker_id, session=ticket.session_id)
            return True
        if self._accept and is_answered(self._sock):
            self._accept = ANSWERED
        await selector.give_back(ticket)
        ticket.session_id = secrets.token_hex(8)  # the old one may be on record as ended
        if self._transport.is_closing():
            raise ClientGone
        self._transport.resume_reading()
        return False

    async def _may_be_served(self, failure: HandoffFailure) -> bool:
        """Whether a browser server has our client's connection, although we were not told.

        It may have had the socket from a worker that died before it could say so. Two browser servers on one connection
        would be the end of it, so we wait until none may take it any more; nothing tells of that but the mark. A client
        without a mark, on a Unix socket, is given up: it may connect again.
        """
        loop = self._desk.loop
        if not self._can_be_marked:
            return loop.time() < failure.open_until
        if failure.is_dead and self._accept not in ("", ANSWERED) and not is_answered(self._sock):
            return False  # a worker answers a client before it sends it on: this one had come to neither
        while not is_served(self._sock):
            if loop.time() >= failure.open_until:
                return False
            await asyncio.sleep(LOOK_S)
        return True


def _text(peer: Peer) -> str:
    return f"{peer[0]}:{peer[1]}" if peer else "unknown"
