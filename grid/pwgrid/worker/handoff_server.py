"""The worker's end of the handoff: takes client sockets and requests about leases from proxies, and answers each."""

from __future__ import annotations

import array
import asyncio
import mmap
import os
import socket
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

import orjson
import structlog

from pwgrid.common.packet_sockets import MAX_OFFER_BYTES, DescriptorsLost, receive
from pwgrid.common.profiles import Profile
from pwgrid.common.types import Protocol as Spoken
from pwgrid.registry.records import TOKEN_ID
from pwgrid.worker.holders import LiveSession, OfferedClient, OwnBrowser

log = structlog.get_logger()

_MOST_FDS: Final = 4
_BACKLOG: Final = 64
_READ_BYTES: Final = 4096
"""What a proxy reads of a packet."""

_MOST_UNTOLD: Final = 100
"""Ends of traced sessions that are kept while no proxy is there."""

PROMISE_S: Final = 2.0
"""For so long a proxy waits for a worker that works on its answer and is not heard of: then it is frozen, or as good as
that, and another worker gets the client."""

PROMISE_AGAIN_S: Final = 0.5

SHORTAGE_S: Final = 0.2
"""How long it accepts no proxy when no descriptor is free: the listener stays readable, so the loop would not wait."""


class RequestsOfProxies(Protocol):
    """Who answers proxies about leases and sessions (admission.py). Links are numbered."""

    def asked(self, link: int, message: Mapping[str, Any]) -> dict[str, Any] | Awaitable[dict[str, Any]]:
        """The answer, perhaps later. Raises KeyError, TypeError or ValueError for a malformed request."""

    def link_ended(self, link: int) -> None:
        """Called when a proxy is gone."""


class HandoffServer:
    """Listens from `open` to `close`. During a reload an old and a new proxy are connected; the leases know their links
    by numbers."""

    _on_offer: Callable[[OfferedClient], None]
    _requests: RequestsOfProxies

    def __init__(self, path: Path) -> None:
        self._path = path
        self._last_link = 0
        self._loop = asyncio.get_running_loop()
        self._listener = socket.socket(
            socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
        )
        self._links: dict[socket.socket, int] = {}
        self._answering: set[asyncio.Task[None]] = set()
        self._untold: deque[bytes] = deque(maxlen=_MOST_UNTOLD)
        self._buffer = memoryview(mmap.mmap(-1, MAX_OFFER_BYTES))  # takes no memory before it is written
        self._is_short = False
        """Whether no connection could be accepted the last time."""

    def open(self, on_offer: Callable[[OfferedClient], None], requests: RequestsOfProxies) -> None:
        """Starts to take offers and requests."""
        self._on_offer, self._requests = on_offer, requests
        self._path.unlink(missing_ok=True)
        self._listener.bind(str(self._path))
        self._listener.listen(_BACKLOG)
        self._listen()

    def close(self) -> None:
        """Ends the listener and every link; proxies see the end and take other workers. Idempotent."""
        if self._listener.fileno() < 0:
            return
        self._loop.remove_reader(self._listener)
        self._listener.close()
        self._path.unlink(missing_ok=True)
        for link in list(self._links):
            self._on_readable(link)  # answers offers that have arrived, so that no proxy is left in doubt
            self._drop(link)

    def tell_freed(self) -> None:
        """Tells proxies that this worker has a slot again: while Redis is away nothing else tells them."""
        for link in list(self._links):
            self._send(link, b'{"freed":true}')

    def tell_over(self, told: Mapping[str, Any]) -> None:
        """Tells the proxy that connected last, or the next one, that a traced session has ended."""
        packet = orjson.dumps({"over": told})
        if len(packet) <= _READ_BYTES:
            self._untold.append(packet)
            self._tell_over()

    def _tell_over(self) -> None:
        for link in reversed([*self._links]):
            while self._untold:
                try:
                    link.send(self._untold[0])
                except ConnectionError:
                    break  # it is dead, but its last offers are still to be read; the reader sees the end behind them
                except OSError:
                    pass  # it does not read; only its traces lack this one
                self._untold.popleft()

    def _listen(self) -> None:
        if self._listener.fileno() >= 0:
            self._loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        try:
            link, _ = self._listener.accept()
        except BlockingIOError:
            return
        except OSError as error:  # no descriptor is free, or no memory; the proxy waits in the listener's queue
            if not self._is_short:
                log.error("handoff_accept_failed", error=error.strerror or str(error))
            self._is_short = True
            self._loop.remove_reader(self._listener)
            self._loop.call_later(SHORTAGE_S, self._listen)
            return
        self._is_short = False
        link.setblocking(False)
        self._last_link += 1
        self._links[link] = self._last_link
        self._loop.add_reader(link, self._on_readable, link)
        self._tell_over()

    def _drop(self, link: socket.socket) -> None:
        if link in self._links:
            number = self._links.pop(link)
            self._loop.remove_reader(link)
            link.close()
            self._requests.link_ended(number)

    def _on_readable(self, link: socket.socket) -> None:
        while link in self._links:
            try:
                # One buffer for all packets: a new one of this size would take fresh pages for each.
                packet, fds = receive(link, self._buffer, _MOST_FDS)
            except BlockingIOError:
                return
            except OSError as error:
                if isinstance(error, DescriptorsLost):
                    log.error("handoff_packet_corrupt", error=error.strerror)
                self._drop(link)
                return
            if packet or fds:
                self._take(link, packet, fds)
            else:
                self._drop(link)

    def _take(self, link: socket.socket, packet: bytes, fds: array.array[int]) -> None:
        try:
            said = orjson.loads(packet)  # a newer proxy may say more
            if "ask" in said and not fds:
                reply = self._requests.asked(self._links[link], said)
                if isinstance(reply, dict):
                    self._send(link, orjson.dumps({**reply, "asked": said["ask"]}))
                else:
                    task = self._loop.create_task(self._answer(link, said["ask"], reply))
                    self._answering.add(task)
                    task.add_done_callback(self._answering.discard)
                return
            session = LiveSession(said["session"], said["client"])
            session.client_fields, session.trace = said.get("clientFields", {}), said.get("trace", "")
            session.token_id = said.get(TOKEN_ID, "")
            if own := said.get("own"):
                profile = Profile(**own["profile"]) if own.get("profile") else None
                session.own = OwnBrowser(float(own["until"]), own["options"], own["network"], profile)
            until = float((own or said).get("until", 0))
            session.lease_id, secret = said.get("lease", ("", ""))
            session.protocol, session.keep_s = (
                Spoken(said.get("protocol", Spoken.PLAYWRIGHT)),
                float(said.get("keep", 0)),
            )
            (fd,) = fds
            client = OfferedClient(
                *(session, float(said["deadline"]), said["headers"], said["early"], secret),
                # Family, type and protocol are unused here, but Python asks the kernel for those that are not given.
                socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, fd),
                partial(self._send, link),
                until,
                said.get("joins", ""),
                said.get("page", False) is True,
            )
        except (OSError, ValueError, TypeError, KeyError) as error:
            for each in fds:
                os.close(each)
            log.error("handoff_packet_corrupt", error=repr(error))
            self._drop(link)
            return
        self._on_offer(client)

    async def _answer(self, link: socket.socket, number: str, reply: Awaitable[dict[str, Any]]) -> None:
        answer = asyncio.ensure_future(reply)
        while not (await asyncio.wait([answer], timeout=PROMISE_AGAIN_S))[0]:
            promised = time.monotonic() + PROMISE_S
            self._send(link, orjson.dumps({"asked": number, "acquiring": True, "promised": promised}))
        self._send(link, orjson.dumps({**await answer, "asked": number}))

    def _send(self, link: socket.socket, reply: bytes) -> None:
        if link not in self._links:
            return
        try:
            link.send(reply)
        except OSError as error:
            log.warning("handoff_answer_lost", error=str(error))
            # A dead proxy's last offers are still to be read, and the reader sees the end behind them. One that does
            # not read its answers gives up on them by its own deadline.
            if not isinstance(error, ConnectionError):
                self._drop(link)
