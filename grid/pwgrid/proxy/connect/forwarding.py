"""The way to a worker of another host: a client's socket goes to the forwarder, which joins it with a connection to
that host's proxy, and that one hands its end to the worker. A question goes to that proxy over HTTP.

What the worker gets is left in Redis, where that proxy takes it by its id (from_other_hosts.py): who can write there is
of the grid.
"""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import orjson
import structlog
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidMessage, InvalidStatus

from pwgrid.common.certificate import client_context
from pwgrid.common.connect_tcp import connect_tcp
from pwgrid.common.errors import NOTHING_LEFT, GridError, RegistryUnavailable
from pwgrid.common.grid_url import GridUrl
from pwgrid.common.packet_sockets import MAX_OFFER_BYTES
from pwgrid.common.reasons import OfferRefusal
from pwgrid.proxy.connect.handoff_link import HandoffFailure, HandoffLink, HostSilent, HostUnreachable, NoWay
from pwgrid.proxy.hosts.host_heartbeat import HostKeeper
from pwgrid.proxy.hosts.host_table import OtherHost
from pwgrid.proxy.policy.forward_message import VIEW_PATH, head, outgoing, question_head
from pwgrid.proxy.policy.refusal import bad_handshake
from pwgrid.proxy.select.worker_health import HANDOFF_TIMEOUT_S, WorkerHealth
from pwgrid.registry.host_records import HostRecords
from pwgrid.runtime.directory import FORWARDER_SOCKET

log = structlog.get_logger()

FORWARDER: Final = "forwarder"
"""What the log calls it where it has a worker's id otherwise."""

CONNECT_S: Final = 1.0
"""How long a connect to another host may take."""

ANSWER_S: Final = HANDOFF_TIMEOUT_S + 1.0
"""How long another host's proxy may take for an answer, beside what the worker may take."""

MOST_SHOWN_BYTES: Final = 8 * 1024 * 1024
"""Of one frame of a live view."""

_OF_THE_HOST: Final = (OfferRefusal.UNREACHABLE, OfferRefusal.NOT_TAKEN)
"""Why the forwarder has not joined a client with another host, where that host is the reason."""

_OUR_OWN: Final = (OfferRefusal.DRAINING, OfferRefusal.NO_WAY)
"""The same where this host's own processes are. All others are nobody's fault: the client may be offered again."""

_LENGTH: Final = re.compile(rb"(?i)\bcontent-length: *(\d+)")


class Forwarding:
    """Forwards clients of one proxy. `health` hears when the forwarder is silent."""

    def __init__(
        self,
        runtime: Path,
        keeper: HostKeeper,
        records: HostRecords,
        health: WorkerHealth,
        tls_ca: str = "",
    ) -> None:
        self._path = runtime / FORWARDER_SOCKET
        self._keeper = keeper
        self._records = records
        self._health = health
        self._tls_ca = tls_ca
        self._context: ssl.SSLContext | None = None
        self._link: HandoffLink | None = None
        self.forwarded = 0
        """Clients that another host has taken."""

    def close(self) -> None:
        """Ends the link to the forwarder."""
        if self._link is not None:
            self._link.close("the proxy is stopping")

    async def host_of(self, worker_id: str) -> OtherHost | None:
        """Returns the other host that has this worker; None for one of this host, or of nobody."""
        return await self._keeper.host_of(worker_id)

    async def offer(
        self,
        host: OtherHost,
        worker_id: str,
        session_id: str,
        request: Mapping[str, Any],
        sock: socket.socket,
        until: float,
    ) -> float:
        """Has the client forwarded to this worker of another host. Returns since when that has it, by time.monotonic().
        Raises HandoffFailure, and Refusal if the client has sent too much."""
        now = time.monotonic()
        client = {"worker": worker_id, "session": session_id, "request": outgoing(request, now), "until": until}
        if len(orjson.dumps(client)) > MAX_OFFER_BYTES:  # that host's worker could not read it
            raise bad_handshake("too much comes behind it before it is answered")
        forward_id = await self._leave(outgoing(client, now))
        address = GridUrl(False, *host.record.address).address
        offer = {
            "session": session_id,
            "deadline": now + HANDOFF_TIMEOUT_S,
            "until": until,
            "to": host.record.address,
            "tls": host.record.is_encrypted,
            "head": head(forward_id, address, request["headers"]),
            "early": "",  # it is in Redis, with all else
            "limit": CONNECT_S,
        }
        try:
            packet = orjson.dumps(offer)
            answer = asyncio.ensure_future(self._to_forwarder().offer(session_id, packet, sock.fileno(), until))
            comes = await self._comes_for(forward_id, answer)
            served_at = await answer if comes else 0.0
        except HandoffFailure as failure:
            raise await self._why(host, forward_id, failure) from None
        if not comes:
            self._keeper.unreachable(host, "its proxy does not come for a client")
            raise HostUnreachable(f"its host {host.record.name} does not answer")
        self.forwarded += 1
        return served_at

    async def _comes_for(self, forward_id: str, answer: asyncio.Future[float]) -> bool:
        """Returns True once the forwarder has answered, or the other host's proxy has come for the client: from then on
        its worker may take as long as one of this host. Returns False if that proxy does not come. It is frozen, say,
        and finds nothing if it comes later: the answer is cancelled."""
        try:
            done, _ = await asyncio.wait([answer], timeout=ANSWER_S)
            comes = bool(done) or not await self._is_taken_back(forward_id)
        except BaseException:
            answer.cancel()
            raise
        if not comes:
            answer.cancel()
        return comes

    async def _is_taken_back(self, forward_id: str) -> bool:
        try:
            return await self._records.take_forward(forward_id) is not None
        except RegistryUnavailable:
            return False

    async def ask(
        self, host: OtherHost, worker_id: str, question: Mapping[str, Any], until: float = 0.0
    ) -> dict[str, Any]:
        """Returns the answer of this worker of another host; it may work on it until `until` (time.monotonic()).
        Raises HandoffFailure."""
        now = time.monotonic()
        until = max(now, until)
        asked = {"worker": worker_id, "ask": outgoing(question, now), "until": until}
        answer = await self.ask_proxy(host, outgoing(asked, now), until - now)
        if (failure := answer.get("failure")) is not None:
            raise HandoffFailure.from_told(failure)
        return answer

    async def ask_proxy(self, host: OtherHost, question: Mapping[str, Any], more_s: float = 0.0) -> dict[str, Any]:
        """Returns what another host's proxy answers; it may take `more_s` longer than most. Raises HandoffFailure:
        HostSilent unless it is certain that it was not asked."""
        async with self._answered(host, question, more_s + ANSWER_S) as (reader, _):
            try:
                async with asyncio.timeout(more_s + ANSWER_S):
                    answer = orjson.loads(await reader.read())
                    if not isinstance(answer, dict):
                        raise ValueError("it makes no sense")
            except (OSError, TimeoutError, ValueError) as error:
                self._keeper.unreachable(host, repr(error))
                raise HostSilent(f"the answer of its host {host.record.name} is broken: {error!r:.100}") from None
        return answer

    @asynccontextmanager
    async def download(
        self, host: OtherHost, question: Mapping[str, Any]
    ) -> AsyncIterator[tuple[int, asyncio.StreamReader]]:
        """Gives the size of a file that another host's proxy answers with, and what reads it. Raises HandoffFailure."""
        async with self._answered(host, question, ANSWER_S) as (reader, size):
            yield size, reader

    @asynccontextmanager
    async def view(self, host: OtherHost, question: Mapping[str, Any]) -> AsyncIterator[ClientConnection]:
        """Gives the WebSocket on which another host's proxy shows a session. Raises HandoffFailure; within the block
        websockets' ConnectionClosed."""
        name, address = host.record.name, GridUrl(host.record.is_encrypted, *host.record.address)
        tls = self._tls_to(host)
        forward_id = await self._leave(question)
        url = f"{address.web_socket}{VIEW_PATH}{forward_id}"
        try:
            opened = await connect(
                url,
                sock=await connect_tcp(*host.record.address, CONNECT_S),
                ssl=tls,
                proxy=None,
                compression=None,
                max_size=MOST_SHOWN_BYTES,
                open_timeout=CONNECT_S + ANSWER_S,
                close_timeout=CONNECT_S,
            )
        except (OSError, TimeoutError, InvalidMessage) as error:
            await self._is_taken_back(forward_id)
            raise self._not_connected(host, error) from None
        except InvalidStatus as refused:
            said = bytes(refused.response.body or b"")
            raise HandoffFailure(f"its host {name} answers {_sentence(said)}", is_refusal=True) from None
        async with opened:
            yield opened

    @asynccontextmanager
    async def _answered(
        self, host: OtherHost, question: Mapping[str, Any], timeout_s: float
    ) -> AsyncIterator[tuple[asyncio.StreamReader, int]]:
        """Gives the body of another host's answer to a question, and its length, as long as that has status 200."""
        name, address = host.record.name, host.record.address
        tls = self._tls_to(host)
        forward_id = await self._leave(question)
        writer = None
        try:
            async with asyncio.timeout(CONNECT_S):
                sock = await connect_tcp(*address, CONNECT_S)
                name_there = address[0] if tls else None
                reader, writer = await asyncio.open_connection(sock=sock, ssl=tls, server_hostname=name_there)
            # By hand: one answer a connection, from our own proxy. h11 would need this loop, too, and more around it.
            async with asyncio.timeout(timeout_s):
                writer.write(question_head(forward_id, GridUrl(False, *address).address).encode("latin-1"))
                answered = await reader.readuntil(b"\r\n\r\n")
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            failure = self._not_connected(host, error)
            if writer is None:
                raise failure from None  # that host has not heard what it was to take
            writer.close()
            if await self._is_taken_back(forward_id):
                raise failure from None
            raise HostSilent(str(failure)) from None
        try:
            status, _, headers = answered.partition(b"\r\n")
            if not status.startswith(b"HTTP/1.1 200 "):
                why = f"its host {name} answers {status[:100].decode('latin-1')}"
                if status.startswith(b"HTTP/1.1 500 "):  # whatever it had done by then
                    self._keeper.unreachable(host, why)
                    raise HostSilent(why)
                raise HandoffFailure(why, is_refusal=status.startswith(b"HTTP/1.1 4"))
            length = _LENGTH.search(headers)
            yield reader, int(length[1]) if length else 0
        finally:
            writer.close()

    def _not_connected(self, host: OtherHost, error: Exception) -> HostUnreachable:
        """Returns why there is no answer of that host, also where its certificate is not trusted."""
        if isinstance(error, OSError) and error.errno in NOTHING_LEFT:
            self._keeper.no_way(repr(error))
            return NoWay(f"no connection to its host {host.record.name}: {error.strerror}")
        self._keeper.unreachable(host, repr(error))
        return HostUnreachable(f"its host {host.record.name} does not answer")

    def _tls_to(self, host: OtherHost) -> ssl.SSLContext | None:
        """What this host's certificate is checked with; None if it speaks no TLS. Raises NoWay."""
        if not host.record.is_encrypted:
            return None
        if self._context is None:
            try:
                self._context = client_context(self._tls_ca)
            except GridError as error:  # the file has changed since the grid started
                self._keeper.no_way(error.sentence)
                raise NoWay(f"its host {host.record.name} speaks TLS, and TLS_CA cannot be used here") from None
        return self._context

    async def _leave(self, forward: Mapping[str, Any]) -> str:
        """Raises HandoffFailure."""
        try:
            return await self._records.leave_forward(forward)
        except RegistryUnavailable as error:
            raise HostUnreachable(f"nothing can be left for its host: {error}") from None

    async def _why(self, host: OtherHost, forward_id: str, failure: HandoffFailure) -> HandoffFailure:
        """Returns why the client was not forwarded: what the other host has left of that, or what the forwarder says.
        What that host has not come for it does not get any more."""
        refusal, is_taken_back, is_away = None, False, False
        try:
            refusal = await self._records.take_refusal(forward_id)
            is_taken_back = await self._records.take_forward(forward_id) is not None
        except RegistryUnavailable:
            is_away = True
        if refusal is not None:
            return HandoffFailure.from_told(refusal)
        detail = f"{failure.reason} {failure.detail}".strip()
        if not failure.is_refusal:
            detail = detail.replace("the worker", "the forwarder")
            self._keeper.no_way(detail)
            if is_taken_back:
                return NoWay(detail)
            # That proxy may have come for it; the forwarder marks who is served, as workers do.
            return NoWay(detail, is_dead=failure.is_dead, open_until=failure.open_until)
        why = f"its host {host.record.name}: {detail}"
        if failure.reason in _OUR_OWN:
            self._keeper.no_way(detail)
            return NoWay(why)
        if not is_away and failure.reason in _OF_THE_HOST:
            self._keeper.unreachable(host, detail)
        return HostUnreachable(why)

    def _to_forwarder(self) -> HandoffLink:
        """Raises HandoffFailure."""
        if self._link is None or self._link.closed:
            try:
                self._link = HandoffLink(self._path, FORWARDER, self._health, None)
            except OSError as error:
                raise HandoffFailure(f"the forwarder is gone ({error.strerror})") from None
        return self._link


def _sentence(body: bytes) -> str:
    """What the body of a refusal says."""
    try:
        return str(orjson.loads(body)["error"])[:200]
    except (KeyError, TypeError, ValueError):
        return repr(body[:100])
