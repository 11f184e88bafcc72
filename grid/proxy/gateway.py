"""Takes an upgrade from its head to the handoff: decision, lease, handoff, and the way back when one of them fails.

Owns a client's socket only until a worker has it; sees none of the session's bytes.
"""

import asyncio
import hmac
import secrets
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

import structlog

from grid.config import Settings
from grid.core.known_heads import KnownHeads
from grid.core.upgrade import Headers, Policy, Refusal, Wanted, browser_server_headers, decide
from grid.proxy import responses
from grid.proxy.handoff import HandoffFailed, Handoffs, is_answered
from grid.proxy.queue import ClientGone, Queue, QueueFull, Ticket, WaitedTooLong
from grid.proxy.roster import Roster
from grid.proxy.selection import Selector
from grid.registry.registry import Selection

log = structlog.get_logger()

MAX_EARLY_BYTES: Final = 64 * 1024
"""What a client may send behind its head before it has our answer (a correct one sends nothing)."""

ANSWER_GRACE_S: Final = 0.05
"""For a browser server that has the socket of a client, and whose worker died, to answer. It takes it 1 ms."""


Peer = tuple[str, int] | None
"""A client's address and port; None where it has none any more, or is on a Unix socket."""


@dataclass(slots=True)
class Counts:
    """What the gateway has done since it started."""

    handed_off: int = 0
    refused: int = 0
    retried: int = 0
    abandoned: int = 0
    """Clients that went while they waited."""


class Gateway:
    """Where upgrades arrive. One for the whole proxy."""

    def __init__(
        self,
        settings: Settings,
        roster: Roster,
        queue: Queue[Selection],
        handoffs: Handoffs,
        selector: Selector,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.settings = settings
        self.selector = selector
        self.roster = roster
        self.queue = queue
        self.handoffs = handoffs
        self.counts = Counts()
        self.in_hand: set[asyncio.Task[None]] = set()
        self._policy: Policy | None = None
        self._known_heads = KnownHeads()

    def policy(self) -> Policy:
        """What is allowed and offered now; cached until the roster changes."""
        if self._policy is None:
            self._policy = Policy(
                default_browser_type=self.settings.default_browser_type,
                pools=self.roster.offered(),
                versions=self.roster.versions(),
                token=self.settings.token,
                allowed_origins=frozenset(self.settings.allowed_origins),
            )
        return self._policy

    def roster_changed(self) -> None:
        """The policy depends on the roster."""
        self._policy = None
        self._known_heads.forget_all()

    def take_known(self, transport: asyncio.Transport, data: bytes) -> bool:
        """Takes over a connection whose first bytes are a head that was found good before; False if they are not."""
        peer = transport.get_extra_info("peername")
        found = self._known_heads.find(data, compression=self._may_compress(transport, peer))
        if found is None:
            return False
        wanted, lines = found
        Upgrade(self, transport, peer).begin(wanted, lines)
        return True

    def take_upgrade(
        self, transport: asyncio.Transport, target: bytes, headers: Headers, rest: bytes, raw: bytes = b""
    ) -> None:
        """Takes over a connection whose upgrade head is complete (TakeUpgrade of the HTTP protocol)."""
        peer = transport.get_extra_info("peername")
        compression = self._may_compress(transport, peer)
        upgrade = Upgrade(self, transport, peer, rest)
        try:
            wanted = decide(target, headers, self.policy())
        except Refusal as refusal:
            upgrade.refuse(refusal)
            return
        lines = browser_server_headers(headers, compression=compression)
        self._known_heads.keep(raw, wanted, lines, compression=compression)
        upgrade.begin(wanted, lines)

    def _may_compress(self, transport: asyncio.Transport, peer: Peer) -> bool:
        """Whether the client may have permessage-deflate: by setting, or not when it is on this very host."""
        if self.settings.compression != "auto":
            return self.settings.compression == "on"
        if not peer or peer[0].startswith("127."):
            return False
        local = transport.get_extra_info("sockname")
        return bool(local and peer[0] != local[0])


class Upgrade(asyncio.Protocol):
    """One client between its upgrade head and the handoff."""

    def __init__(self, gateway: Gateway, transport: asyncio.Transport, peer: Peer, early: bytes = b"") -> None:
        self._gateway = gateway
        self._transport = transport
        self._client = f"{peer[0]}:{peer[1]}" if peer else "unknown"
        self._early = early
        self._gone = False
        self._ticket: Ticket[Selection] | None = None
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
        self._gone = True
        if self._ticket is not None:
            self._gateway.queue.abandon(self._ticket)

    def begin(self, wanted: Wanted, head: bytes) -> None:
        """Starts to serve the upgrade. `head`: the header lines that the browser server shall get."""
        gateway = self._gateway
        if gateway.roster.stopping:
            self.refuse(responses.stopping())
            return
        self._ticket = Ticket(
            session_id=secrets.token_hex(8),
            browser_type=wanted.browser_type,
            playwright_version=wanted.playwright_version,
            client=self._client,
            deadline=gateway.loop.time() + gateway.settings.worker_select_timeout,
            worker_id=wanted.worker_id,
        )
        if wanted.worker_id is None:
            gateway.queue.ask(self._ticket)  # the registry is at work while the task below gets its turn
        task = gateway.loop.create_task(self._run(wanted, self._ticket, head))
        gateway.in_hand.add(task)
        task.add_done_callback(gateway.in_hand.discard)

    def refuse(self, refusal: Refusal) -> None:
        """Answers that there will be no session, and why."""
        self._gateway.counts.refused += 1
        log.info("upgrade_refused", status=refusal.status, error=refusal.error, client=self._client)
        if not self._transport.is_closing():
            self._transport.write(responses.render(refusal))
            self._transport.close()

    async def _run(self, wanted: Wanted, ticket: Ticket[Selection], head: bytes) -> None:
        gateway = self._gateway
        try:
            if wanted.worker_id is not None:
                await self._check_endpoint(wanted, wanted.worker_id)
            while not await self._served(ticket, head):
                gateway.counts.retried += 1
        except Refusal as refusal:
            self.refuse(refusal)
        except ClientGone:
            gateway.counts.abandoned += 1
            self._transport.abort()
        except Exception as error:  # noqa: BLE001 - a bug of ours: this client must not wait for ever
            log.error("upgrade_failed", error=repr(error), client=self._client)
            self._transport.abort()

    async def _check_endpoint(self, wanted: Wanted, worker_id: str) -> None:
        """The secret in a worker's own endpoint is what its registration says; nobody guesses another one's."""
        endpoint = await self._gateway.selector.endpoint_of(wanted.browser_type, worker_id)
        path = urlsplit(endpoint).path if endpoint else ""
        if not hmac.compare_digest(path.encode(), (wanted.endpoint_path or "").encode()):
            raise Refusal(404, "there is no such worker (any more): take a current wsEndpoint, or none at all")

    async def _served(self, ticket: Ticket[Selection], head: bytes) -> bool:
        """One lease and one handoff. False when the worker did not take the session and another one shall be tried."""
        gateway = self._gateway
        fd = self._transport.get_extra_info("socket").fileno()
        selection = await self._acquire(ticket)
        if self._gone or self._transport.is_closing():
            await gateway.queue.give_back(ticket)
            raise ClientGone
        # From here the browser server reads this socket; a byte that we read would be missing there.
        self._transport.pause_reading()
        try:
            await gateway.handoffs.hand_over(
                selection.worker_id, ticket.session_id, ticket.client, head + self._early, fd
            )
        except HandoffFailed as failure:
            log.info("handoff_failed", worker=selection.worker_id, session=ticket.session_id, reason=failure.reason)
            if not gateway.selector.local.refused(selection, failure.reason):
                ticket.excluded.add(selection.worker_id)
            if failure.in_doubt and await self._is_served_already():
                log.warning("handed_off_unheard", worker=selection.worker_id, session=ticket.session_id)
                self._transport.abort()
                return True
            await gateway.queue.give_back(ticket)
            ticket.session_id = secrets.token_hex(8)  # the old one may be on record as ended
            if self._transport.is_closing():
                raise ClientGone from None
            self._transport.resume_reading()
            return False
        gateway.counts.handed_off += 1
        log.debug("handed_off", worker=selection.worker_id, session=ticket.session_id)
        self._transport.abort()  # closes our copy of the socket; the connection lives on in the browser server
        return True

    async def _is_served_already(self) -> bool:
        """Whether a browser server has answered on our client's connection, although we were not told.

        It may have had the socket from a worker that died before it could say so. Two browser servers on one connection
        would be the end of it, so a browser server that is just about to answer gets a moment; nothing tells of that.
        """
        await asyncio.sleep(ANSWER_GRACE_S)
        return is_answered(self._transport.get_extra_info("socket"))

    async def _acquire(self, ticket: Ticket[Selection]) -> Selection:
        gateway = self._gateway
        try:
            return await gateway.queue.acquire(ticket)
        except QueueFull:
            raise responses.no_capacity(
                f"{gateway.settings.max_queue} clients wait for a slot already: come back later, or add workers"
            ) from None
        except WaitedTooLong:
            reason = gateway.roster.host_guard or gateway.roster.shortage(ticket.browser_type)
            if reason is not None:
                raise responses.no_capacity(reason) from None
            raise responses.waited_too_long(ticket.browser_type, gateway.settings.worker_select_timeout) from None
