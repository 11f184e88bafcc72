"""Takes clients from proxies, opens a connection to the other host for each, and waits for that host's answer: without
having read anything of it or written anything to the client, which another worker may still get."""

from __future__ import annotations

import array
import errno
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import orjson

from pwgrid.common.connect_tcp import share_s
from pwgrid.common.errors import NOTHING_LEFT
from pwgrid.common.grid_url import GridUrl
from pwgrid.common.packet_server import PROMISE_AGAIN_S, PROMISE_S, Action, PacketServer
from pwgrid.common.reasons import OfferRefusal
from pwgrid.common.tcp_options import tune
from pwgrid.forwarder.ask_tls_process import AskedTlsProcess, Connected, NotConnected
from pwgrid.forwarder.loop import ENDED, Loop, Timer
from pwgrid.forwarder.resolve import Address, Found, Resolver
from pwgrid.runtime.directory import TLS_OUT_SOCKET

LINE_BYTES: Final = 4096
"""How much of an answer is looked at for its status line."""

CONNECT_S: Final = 2.0
"""How long a connect may take where the offer does not say."""

_SWITCHING: Final = b"HTTP/1.1 101"


@dataclass(slots=True)
class Offer:
    """A client for another host. `head` and `early` are what that host gets before what the client sends from now on.
    Who opens a browser for the client there may take until `until`; the proxy waits until `deadline`, unless it is
    told to wait longer. Both are in seconds of CLOCK_MONOTONIC."""

    session: str
    deadline: float
    until: float
    host: str
    port: int
    text: bytes
    connect_s: float
    client: socket.socket
    send: Callable[[bytes], None]
    through: str = ""
    """The Unix socket of the TLS process, if that host speaks TLS."""

    @property
    def address(self) -> str:
        """The other host, for people."""
        return GridUrl(False, self.host, self.port).address

    def answer(self, **told: object) -> None:
        self.send(orjson.dumps({"session": self.session, **told}))


class OfferServer(PacketServer):
    """Reads the packets of proxies. `on_offer` owns the client's socket."""

    def __init__(self, path: Path, loop: Loop, on_offer: Callable[[Offer], None]) -> None:
        super().__init__(path, loop)
        self._tls_path = path.with_name(TLS_OUT_SOCKET)
        self._on_offer = on_offer

    def open(self) -> None:
        """Starts to listen. Raises OSError."""
        self._open()

    def _read(self, link: socket.socket, said: dict[str, Any], fds: array.array[int]) -> Action:
        host, port = str(said["to"][0]).strip("[]"), int(said["to"][1])
        session, deadline = str(said["session"]), float(said["deadline"])
        until = max(deadline, float(said.get("until", 0)))
        text = (said["head"] + said.get("early", "")).encode("latin-1")
        limit = float(said.get("limit", CONNECT_S))
        (fd,) = fds
        client = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, fd)
        send = partial(self._send, link)
        through = str(self._tls_path) if said.get("tls") is True else ""
        offer = Offer(session, deadline, until, host, port, text, limit, client, send, through)
        return partial(self._on_offer, offer)


class PendingSession:
    """An offer until its answer is known. Then it calls `on_joined` with the connection to the other host, which has
    said 101, or has refused the client and calls `on_refused`; either owns the client's socket again."""

    def __init__(
        self,
        loop: Loop,
        resolver: Resolver,
        offer: Offer,
        ping_timeout_s: float,
        on_joined: Callable[[PendingSession, socket.socket], None],
        on_refused: Callable[[PendingSession], None],
    ) -> None:
        self.offer = offer
        self.promised = offer.deadline
        """Until when the proxy waits, and gives the client to nobody else."""
        self._loop = loop
        self._ping_timeout_s = ping_timeout_s
        self._on_joined = on_joined
        self._on_refused = on_refused
        self._host: socket.socket | None = None
        self._addresses: list[Address] = []
        self._is_connected = False
        self._unsent = memoryview(offer.text)
        self._tls: AskedTlsProcess | None = None
        if offer.through:
            self._tls = AskedTlsProcess(loop, offer.through, offer.host, offer.port, self._on_tls)
        self._trouble = "its name has no address"
        self._is_over = False
        connect_s = max(0.0, min(offer.connect_s, offer.until - loop.now()))
        self._connect_until = loop.now() + connect_s
        self._connect_timer = loop.call_later(connect_s, self._does_not_connect)
        self._address_timer: Timer | None = None
        self._promise_timer = loop.call_later(PROMISE_AGAIN_S, self._promise_again)
        self._resolver = resolver

    def start(self) -> None:
        """Begins to connect. It may be refused before this returns."""
        self._loop.add_edges(self.offer.client, self._on_client)
        if self._tls is not None:
            self._tls.start()
        else:
            self._resolver.resolve(self.offer.host, self.offer.port, self._on_addresses)

    def refuse(self, reason: OfferRefusal, detail: str = "") -> None:
        """Answers that the client is not taken, and closes both sockets. Idempotent."""
        if self._is_over:
            return
        self._end()
        if self._host is not None:
            self._host.close()
        self.offer.client.close()
        self.offer.answer(refused=reason, detail=detail)
        self._on_refused(self)

    def _end(self) -> None:
        self._is_over = True
        self._connect_timer.cancel()
        self._cancel_address_timer()
        self._promise_timer.cancel()
        self._loop.remove(self.offer.client)
        if self._host is not None:
            self._loop.remove(self._host)
        if self._tls is not None:
            self._tls.cancel()

    # The connection

    def _on_addresses(self, found: Found) -> None:
        if self._is_over:
            return
        if isinstance(found, OSError):
            self.refuse(OfferRefusal.UNREACHABLE, f"{self.offer.address}: {found.strerror or found}")
            return
        self._addresses = found
        self._connect_next()

    def _connect_next(self) -> None:
        """Tries the next address."""
        while self._addresses:
            family, address = self._addresses.pop(0)
            try:
                host = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
            except OSError as error:
                self._trouble = error.strerror or str(error)
                if error.errno in NOTHING_LEFT:
                    self.refuse(OfferRefusal.NO_WAY, self._trouble)
                    return
                continue
            tune(host, self._ping_timeout_s)
            failed = host.connect_ex(address)
            if failed in (0, errno.EINPROGRESS):
                self._host = host
                self._loop.add_edges(host, self._on_host)
                if self._addresses:
                    left_s = self._connect_until - self._loop.now()
                    again_s = share_s(left_s, len(self._addresses) + 1)
                    self._address_timer = self._loop.call_later(again_s, self._leave_address, host)
                return
            self._trouble = os.strerror(failed)
            host.close()
        self.refuse(OfferRefusal.UNREACHABLE, f"{self.offer.address}: {self._trouble}")

    def _leave_address(self, host: socket.socket) -> None:
        """Goes on with the next address, since this one does not answer."""
        self._trouble = os.strerror(errno.ETIMEDOUT)
        self._loop.remove(host)
        host.close()
        self._host = None
        self._connect_next()

    def _cancel_address_timer(self) -> None:
        if self._address_timer is not None:
            self._address_timer.cancel()
            self._address_timer = None

    def _does_not_connect(self) -> None:
        if not self._is_connected:
            self.refuse(
                OfferRefusal.UNREACHABLE, f"{self.offer.address}: no connection within {self.offer.connect_s:g} s"
            )

    def _on_tls(self, connected: Connected) -> None:
        if isinstance(connected, NotConnected):
            self.refuse(connected.reason, f"{self.offer.address}: {connected.detail}")
            return
        self._host = connected
        self._loop.add_edges(connected, self._on_host)

    def _on_host(self, events: int) -> None:
        host = self._host
        if host is None or self._is_over:
            return
        if not self._is_connected and not self._connects(host):
            return
        try:
            while self._unsent:
                self._unsent = self._unsent[host.send(self._unsent) :]
        except OSError:
            pass  # it goes on when there is room; and what a host has said before it ended is still to be read
        self._look_at_answer(host, has_ended=bool(events & ENDED))

    def _connects(self, host: socket.socket) -> bool:
        """Whether the connection is there. Tries the next address if it has failed."""
        if failed := host.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self._cancel_address_timer()
            self._trouble = os.strerror(failed)
            self._loop.remove(host)
            host.close()
            self._host = None
            self._connect_next()
            return False
        try:
            host.getpeername()
        except OSError:
            return False
        self._is_connected = True
        self._connect_timer.cancel()
        self._cancel_address_timer()
        return True

    # The answer

    def _look_at_answer(self, host: socket.socket, *, has_ended: bool) -> None:
        """Looks without reading: the client gets all of it, if it is a 101."""
        try:
            seen = host.recv(LINE_BYTES, socket.MSG_PEEK)
        except BlockingIOError:
            return
        except OSError as error:
            self.refuse(OfferRefusal.NOT_TAKEN, f"{self.offer.address}: {error.strerror or error}")
            return
        line, is_whole, _ = seen.partition(b"\r\n")
        if seen.startswith(_SWITCHING):
            self._join(host)
        elif not seen:
            self.refuse(OfferRefusal.NOT_TAKEN, f"{self.offer.address} has closed the connection without an answer")
        elif is_whole or has_ended or len(seen) == LINE_BYTES:
            self.refuse(OfferRefusal.NOT_TAKEN, f"{self.offer.address}: {line[:200].decode('latin-1')}")

    def _join(self, host: socket.socket) -> None:
        if self._loop.now() >= self.promised:  # this process was frozen: another worker may have the client by now
            self.refuse(OfferRefusal.LATE)
            return
        self._end()
        self._on_joined(self, host)

    def _promise_again(self) -> None:
        """Tells the proxy to wait longer, as far as the offer allows; else the client is not taken any more."""
        now, offer = self._loop.now(), self.offer
        if now >= self.promised:
            self.refuse(OfferRefusal.LATE, f"{offer.address} has not answered in time")
            return
        promised = min(now + PROMISE_S, offer.until)
        if promised > self.promised:
            self.promised = promised
            offer.answer(acquiring=True, promised=promised)
        again_s = min(PROMISE_AGAIN_S, max(0.0, self.promised - now))
        self._promise_timer = self._loop.call_later(again_s, self._promise_again)

    def _on_client(self, events: int) -> None:
        if events & ENDED:
            self.refuse(OfferRefusal.GONE, "the client has gone")
