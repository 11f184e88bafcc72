"""The worker's end of the handoff: takes client sockets and requests about leases from proxies, and answers each."""

from __future__ import annotations

import array
import asyncio
import socket
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

import orjson

from pwgrid.common.packet_server import PROMISE_AGAIN_S, PROMISE_S, Action, PacketServer
from pwgrid.common.profile_names import Profile
from pwgrid.common.types import Protocol as Spoken
from pwgrid.registry.records import TOKEN_ID
from pwgrid.worker.holders import LiveSession, OfferedClient, OwnBrowser

_READ_BYTES: Final = 4096
"""What a proxy reads of a packet."""

_MOST_UNTOLD: Final = 100
"""Ends of traced sessions that are kept while no proxy is there."""


class RequestsOfProxies(Protocol):
    """Who answers proxies about leases and sessions (admission.py). Links are numbered."""

    def asked(self, link: int, message: Mapping[str, Any]) -> dict[str, Any] | Awaitable[dict[str, Any]]:
        """The answer, perhaps later. Raises KeyError, TypeError or ValueError for a malformed request."""

    def link_ended(self, link: int) -> None:
        """Called when a proxy is gone."""


class HandoffServer(PacketServer):
    """Listens from `open` to `close`. During a reload an old and a new proxy are connected; the leases know their links
    by numbers."""

    _on_offer: Callable[[OfferedClient], None]
    _requests: RequestsOfProxies

    def __init__(self, path: Path) -> None:
        self._asyncio = asyncio.get_running_loop()
        super().__init__(path, self._asyncio)
        self._answering: set[asyncio.Task[None]] = set()
        self._untold: deque[bytes] = deque(maxlen=_MOST_UNTOLD)

    def open(self, on_offer: Callable[[OfferedClient], None], requests: RequestsOfProxies) -> None:
        """Starts to take offers and requests."""
        self._on_offer, self._requests = on_offer, requests
        self._open()

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

    def _link_began(self) -> None:
        self._tell_over()

    def _link_ended(self, number: int) -> None:
        self._requests.link_ended(number)

    def _read(self, link: socket.socket, said: dict[str, Any], fds: array.array[int]) -> Action:
        if "ask" in said and not fds:
            reply = self._requests.asked(self._links[link], said)
            return partial(self._reply, link, said["ask"], reply)
        session = LiveSession(said["session"], said["client"])
        session.client_fields, session.trace = said.get("clientFields", {}), said.get("trace", "")
        session.token_id = said.get(TOKEN_ID, "")
        if own := said.get("own"):
            profile = Profile(**own["profile"]) if own.get("profile") else None
            session.own = OwnBrowser(float(own["until"]), own["options"], own["network"], profile)
        until = float((own or said).get("until", 0))
        session.lease_id, secret = said.get("lease", ("", ""))
        if "protocol" in said:
            session.protocol, session.keep_s = Spoken(said["protocol"]), float(said.get("keep", 0))
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
        return partial(self._on_offer, client)

    def _reply(self, link: socket.socket, number: str, reply: dict[str, Any] | Awaitable[dict[str, Any]]) -> None:
        if isinstance(reply, dict):
            self._send(link, orjson.dumps({**reply, "asked": number}))
            return
        task = self._asyncio.create_task(self._answer(link, number, reply))
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    async def _answer(self, link: socket.socket, number: str, reply: Awaitable[dict[str, Any]]) -> None:
        answer = asyncio.ensure_future(reply)
        while not (await asyncio.wait([answer], timeout=PROMISE_AGAIN_S))[0]:
            promised = time.monotonic() + PROMISE_S
            self._send(link, orjson.dumps({"asked": number, "acquiring": True, "promised": promised}))
        self._send(link, orjson.dumps({**await answer, "asked": number}))
