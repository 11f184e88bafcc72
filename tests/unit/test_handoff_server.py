"""The worker's end of the handoff, over real sockets: corrupt packets end their link and leak no descriptor."""

import array
import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pwgrid.worker.handoff import Answer, HandoffServer
from pwgrid.worker.policy.admission import Offer

GOOD = b"0123456789abcdef 12.500000 127.0.0.1:50000 c29tZXRoaW5n\nhost: localhost\r\n\r\n"


class Worker:
    """A handoff server, what it was offered, and a proxy's link to it."""

    def __init__(self, directory: Path) -> None:
        self.offers: asyncio.Queue[tuple[Offer, str, bytes, int, Answer]] = asyncio.Queue()
        self.refuse_all = False
        self.server = HandoffServer(directory / "s", self._on_offer)
        self.link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.link.connect(str(directory / "s"))
        self.link.setblocking(False)

    def _on_offer(self, offer: Offer, client: str, head: bytes, fd: int, answer: Answer) -> None:
        if self.refuse_all:
            answer("draining")
        else:
            self.offers.put_nowait((offer, client, head, fd, answer))

    async def said(self) -> bytes:
        return await asyncio.get_running_loop().sock_recv(self.link, 4096)

    def send(self, packet: bytes, *fds: int) -> None:
        self.link.sendmsg([packet], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else [])


@pytest.fixture
async def worker(tmp_path: Path) -> AsyncIterator[Worker]:
    worker = Worker(tmp_path)
    yield worker
    worker.link.close()
    worker.server.close()


def copies_of(sock: socket.socket) -> int:
    """How many of our descriptors are this very socket."""
    name = os.readlink(f"/proc/self/fd/{sock.fileno()}")
    found = 0
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the listing's own
            found += os.readlink(f"/proc/self/fd/{fd}") == name
    return found


async def test_a_packet_with_a_socket_is_an_offer_and_its_answer_goes_back(worker: Worker) -> None:
    client, handed = socket.socketpair()
    with client, handed:
        for reason, said in ((None, b'{"session": "0123456789abcdef", "ok": true'), ("full", b'"reason": "full"}')):
            worker.send(GOOD, handed.fileno())
            offer, address, head, fd, answer = await worker.offers.get()
            assert (offer, address) == (Offer("0123456789abcdef", 12.5, "c29tZXRoaW5n"), "127.0.0.1:50000")
            assert head == b"host: localhost\r\n\r\n"
            assert os.path.sameopenfile(fd, handed.fileno())
            assert copies_of(handed) == 2
            answer(reason)
            assert said in await worker.said()
            assert copies_of(handed) == 1


async def test_a_packet_may_say_less_or_more_than_we_know(worker: Worker) -> None:
    client, handed = socket.socketpair()
    with client, handed:
        for line, accept in ((b"s1 12.5 c", ""), (b"s1 12.5 c given more", "given")):
            worker.send(line + b"\nhost: x\r\n\r\n", handed.fileno())
            offer, _, _, _, answer = await worker.offers.get()
            assert offer == Offer("s1", 12.5, accept)
            answer("full")


async def test_offers_that_are_there_when_it_closes_are_answered(worker: Worker) -> None:
    client, handed = socket.socketpair()
    with client, handed:
        worker.send(GOOD, handed.fileno())
        await worker.offers.get()  # the link is there now
        worker.send(GOOD, handed.fileno())
        worker.send(GOOD, handed.fileno())
        worker.refuse_all = True
        worker.server.close()
        for _ in range(2):
            assert b'"reason": "draining"' in await worker.said()
        assert await worker.said() == b""


@pytest.mark.parametrize(
    ("packet", "sockets"),
    [
        (GOOD, 0),
        (GOOD, 2),
        (GOOD, 4),
        (b"{}\n", 1),
        (b"\xff\xfe\n", 1),
        (b"a b c d e\n", 1),
        (b"s soon 1.2.3.4:5 x\n", 1),
    ],
)
async def test_a_corrupt_packet_ends_its_link_and_leaves_no_socket_open(
    worker: Worker, packet: bytes, sockets: int
) -> None:
    client, handed = socket.socketpair()
    with client, handed:
        worker.send(packet, *[handed.fileno()] * sockets)
        assert await worker.said() == b""
        assert copies_of(handed) == 1
    assert worker.offers.empty()
