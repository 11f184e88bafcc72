"""The forwarder process: has clients whose workers are on another host, and moves their bytes."""

from __future__ import annotations

import os
import signal
import socket
import time
from typing import Any, Final

import structlog

from pwgrid.common import log as logging
from pwgrid.common.client_marks import is_served, mark_passed_on, mark_served
from pwgrid.common.reasons import OfferRefusal
from pwgrid.control.parked_session import ParkedSession
from pwgrid.forwarder.ask_tls_process import NO_TLS
from pwgrid.forwarder.large_pipes import LargePipes
from pwgrid.forwarder.loop import Loop, Timer
from pwgrid.forwarder.offers import Offer, OfferServer, PendingSession
from pwgrid.forwarder.parking import Parking
from pwgrid.forwarder.resolve import Resolver
from pwgrid.forwarder.spliced_session import ForwardedSession, new_pipes
from pwgrid.runtime.child_arguments import ForwarderArguments
from pwgrid.runtime.directory import FORWARDER_SOCKET
from pwgrid.runtime.last_child_ends_grid import end_grid_if_last

log = structlog.get_logger()

_READ_BYTES: Final = 64


class Forwarder:
    """One forwarder, from the fork to its end. `sessions` and those that are pending are all that it has."""

    def __init__(self, boot: ForwarderArguments) -> None:
        self.boot = boot
        self.loop = Loop()
        self._large_pipes = LargePipes()
        self.sessions: dict[str, ForwardedSession] = {}
        self.pending: set[PendingSession] = set()
        self._resolver = Resolver(self.loop)
        self._server = OfferServer(boot.runtime / FORWARDER_SOCKET, self.loop, self._on_offer)
        self._parking = Parking(
            self.loop,
            boot.runtime / "control.sock",
            boot.settings.worker_lost_threshold,
            self.sessions,
            self._take_over,
        )
        self._parking.on_command, self._parking.on_lost = self._on_command, self._on_lost
        self._parking.on_found, self._parking.on_told = self._on_found, self._end_if_done
        self._drains = False
        """Whether it takes nobody new, and ends with its last session."""
        self._signals = 0
        """How often it was told by a signal to end."""
        self._leaves = False
        """Whether it ends as soon as the master has everything, for its successor."""
        self._ends_at: Timer | None = None

    def run(self) -> int:
        """Forwards until a SIGTERM or the loss of the master has ended it. Returns the exit code; raises OSError when
        it cannot listen."""
        wakes, waker = socket.socketpair()
        wakes.setblocking(False)
        waker.setblocking(False)
        signal.set_wakeup_fd(waker.fileno())
        signal.signal(signal.SIGTERM, lambda *_: None)
        self.loop.add_reader(wakes, self._on_sigterm, wakes)
        self._parking.connect()
        self._server.open()
        log.info("forwarder_started", pid=os.getpid())
        self.loop.run()
        self._server.close()
        for pending in list(self.pending):
            pending.refuse(OfferRefusal.DRAINING)
        is_connected = self._parking.is_connected
        if not self._leaves:
            for session in list(self.sessions.values()):
                session.end("the grid is stopping")
        self.close()
        if not is_connected:
            end_grid_if_last(self.boot.runtime)
        return 0

    def close(self) -> None:
        """Closes all but its sessions. Idempotent."""
        self._parking.close()
        self._server.close()
        self._resolver.close()
        self.loop.close()

    # Clients

    def _on_offer(self, offer: Offer) -> None:
        pending = PendingSession(
            self.loop,
            self._resolver,
            offer,
            self.boot.settings.session_ping_timeout,
            self._join,
            self._refused,
        )
        self.pending.add(pending)
        if self._drains or self._leaves:
            pending.refuse(OfferRefusal.DRAINING)
        elif offer.session in self.sessions:
            pending.refuse(OfferRefusal.IN_USE)
        elif self.loop.now() >= offer.deadline:
            pending.refuse(OfferRefusal.LATE)
        elif offer.through and not (self.boot.settings.tls_cert or self.boot.settings.tls_ca):
            pending.refuse(OfferRefusal.UNREACHABLE, f"{offer.address}: {NO_TLS}")
        else:
            pending.start()

    def _refused(self, pending: PendingSession) -> None:
        self.pending.discard(pending)
        self._end_if_done()

    def _join(self, pending: PendingSession, host: socket.socket) -> None:
        """The order of these steps lets a proxy tell whether a client is served, wherever this process is killed."""
        offer = pending.offer
        self.pending.discard(pending)
        try:
            pipes = new_pipes()
        except OSError as error:
            host.close()
            offer.client.close()
            offer.answer(refused=OfferRefusal.NO_WAY, detail=error.strerror or str(error))
            self._end_if_done()
            return
        parked = ParkedSession(offer.session, time.time(), pending.promised, _peer(offer.client), offer.address)
        mark_passed_on(offer.client)
        fds = (offer.client.detach(), host.detach(), *pipes)
        session = ForwardedSession(self.loop, parked, fds, self._large_pipes, self._ended)
        self.sessions[offer.session] = session
        self._parking.note(offer.session)
        mark_served(session.client)
        session.start()
        offer.answer(refused=None, servedAt=self.loop.now())

    def _take_over(self, parked: ParkedSession, fds: list[int]) -> None:
        """Goes on with a session of the process before this one."""
        session = ForwardedSession(self.loop, parked, fds, self._large_pipes, self._ended)
        if parked.session in self.sessions:
            session.close()
            return
        self.sessions[parked.session] = session
        if not is_marked_served(session.client) and self.loop.now() >= parked.until:
            session.close()  # its proxy has given the client to another worker
            self._ended(session)
            return
        mark_served(session.client)
        session.start()

    def _ended(self, session: ForwardedSession) -> None:
        del self.sessions[session.parked.session]
        self._parking.note(session.parked.session)
        self._end_if_done()

    # The end

    def _on_command(self, name: str, _data: dict[str, Any]) -> None:
        if name == "open_log":
            logging.open_again(self.boot.settings.log_file)
        elif name == "leave":
            self._leaves = True
            for pending in list(self.pending):
                pending.refuse(OfferRefusal.DRAINING)
            self._end_if_done()
        elif name == "drain":
            self._drain()
        else:
            log.error("command_unknown", name=name)

    def _on_sigterm(self, wakes: socket.socket) -> None:
        """The first one lets sessions go on, a second one means now. Whether there is a master or not: it knows when
        their time is over."""
        self._signals += len(wakes.recv(_READ_BYTES))
        if self._signals > 1:
            self.loop.stop()
        self._drain()

    def _on_lost(self) -> None:
        self._drain()

    def _on_found(self) -> None:
        self._drains = self._signals > 0
        if self._ends_at is not None:
            self._ends_at.cancel()
            self._ends_at = None

    def _drain(self) -> None:
        """Without a master sessions have as long as those of the workers."""
        self._drains = True
        if not self._parking.is_connected and self._ends_at is None:
            self._ends_at = self.loop.call_later(self.boot.settings.drain_timeout, self.loop.stop)
        self._end_if_done()

    def _end_if_done(self) -> None:
        is_left = self._leaves and self._parking.is_up_to_date
        if not self.pending and (is_left or (self._drains and not self.sessions)):
            self.loop.stop()


def is_marked_served(client: socket.socket) -> bool:
    """Also if the client cannot carry the mark."""
    try:
        return is_served(client)
    except OSError:
        return True


def _peer(client: socket.socket) -> str:
    try:
        address = client.getpeername()
    except OSError:  # it has gone
        return ""
    return f"{address[0]}:{address[1]}" if isinstance(address, tuple) else "unix"


def run_forwarder(boot: ForwarderArguments) -> int:
    """Runs the forwarder role in the forked child. Returns the exit code."""
    logging.bind("forwarder")
    return Forwarder(boot).run()
