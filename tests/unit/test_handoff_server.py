"""The worker's end of the handoff, over real sockets: corrupt packets end their link and leak no descriptor."""

import array
import asyncio
import contextlib
import json
import os
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import uvloop
from structlog.testing import capture_logs

from pwgrid.common.types import Protocol
from pwgrid.worker.handoff_server import HandoffServer
from pwgrid.worker.holders import LiveSession, OfferedClient
from tests.support.descriptors import no_descriptor_is_free

BOUND_S = 10.0
OFFER = {
    "session": "0123456789abcdef",
    "deadline": 12.5,
    "client": "127.0.0.1:50000",
    "headers": {"host": "localhost"},
    "early": "",
}
GOOD = json.dumps(OFFER).encode()
TAKEN = LiveSession("0123456789abcdef", "127.0.0.1:50000"), 12.5, {"host": "localhost"}, ""


class Worker:
    """A handoff server, what it was offered, and a proxy's link to it."""

    def __init__(self, directory: Path) -> None:
        self.offers: asyncio.Queue[OfferedClient] = asyncio.Queue()
        self.taken: list[OfferedClient] = []
        self.refuse_all = False
        self.asked_for: list[tuple[int, Mapping[str, Any]]] = []
        self.ended: list[int] = []
        self.server = HandoffServer(directory / "s")
        self.server.open(self._on_offer, self)
        self.link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.link.connect(str(directory / "s"))
        self.link.setblocking(False)

    def _on_offer(self, client: OfferedClient) -> None:
        if self.refuse_all:
            client.answer("draining")
        else:
            self.offers.put_nowait(client)

    def asked(self, link: int, message: Mapping[str, Any]) -> dict[str, Any]:
        self.asked_for.append((link, message))
        if message["do"] != "take":
            raise ValueError
        return {"refused": None}

    def link_ended(self, link: int) -> None:
        self.ended.append(link)

    async def offered(self) -> OfferedClient:
        """The next client that it is offered."""
        async with asyncio.timeout(BOUND_S):
            self.taken.append(client := await self.offers.get())
        return client

    async def said(self) -> bytes:
        async with asyncio.timeout(BOUND_S):
            return await asyncio.get_running_loop().sock_recv(self.link, 4096)

    def close(self) -> None:
        """Also closes the clients that a test has not answered because it failed."""
        for client in self.taken:
            client.sock.close()
        self.link.close()
        self.server.close()

    def send(self, packet: bytes, *fds: int) -> None:
        self.link.sendmsg([packet], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else [])


@pytest.fixture
async def worker(tmp_path: Path) -> AsyncIterator[Worker]:
    worker = Worker(tmp_path)
    yield worker
    worker.close()


def copies_of(sock: socket.socket) -> int:
    """How many of our descriptors are this very socket."""
    name = os.readlink(f"/proc/self/fd/{sock.fileno()}")
    found = 0
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the listing's own
            found += os.readlink(f"/proc/self/fd/{fd}") == name
    return found


async def test_a_packet_with_a_socket_is_an_offer_and_its_answer_goes_back(worker: Worker) -> None:
    ours, handed = socket.socketpair()
    with ours, handed:
        for said in ((None, 12.5), ("full",)):
            worker.send(GOOD, handed.fileno())
            client = await worker.offered()
            assert (client.session, client.deadline, client.headers, client.early) == TAKEN
            assert os.path.sameopenfile(client.sock.fileno(), handed.fileno())
            assert not client.sock.get_inheritable()
            assert copies_of(handed) == 2
            client.answer(*said)
            refused, served_at = (*said, None)[:2]
            assert json.loads(await worker.said()) == {
                "session": "0123456789abcdef",
                "refused": refused,
                "servedAt": served_at,
            }
            assert copies_of(handed) == 1


async def test_a_packet_may_say_more_than_we_know(worker: Worker) -> None:
    ours, handed = socket.socketpair()
    with ours, handed:
        worker.send(json.dumps({**OFFER, "colour": "blue"}).encode(), handed.fileno())
        client = await worker.offered()
        assert (client.session, client.deadline, client.headers, client.early) == TAKEN
        client.answer("full")


async def test_offers_that_are_there_when_it_closes_are_answered(worker: Worker) -> None:
    client, handed = socket.socketpair()
    with client, handed:
        worker.send(GOOD, handed.fileno())
        answer = (await worker.offered()).answer  # the link is there now
        worker.send(GOOD, handed.fileno())
        worker.send(GOOD, handed.fileno())
        worker.refuse_all = True
        worker.server.close()
        answer("draining")
        for _ in range(2):
            assert json.loads(await worker.said())["refused"] == "draining"
        assert await worker.said() == b""


@pytest.mark.parametrize(
    ("packet", "sockets"),
    [
        (GOOD, 0),
        (GOOD, 2),
        (GOOD, 4),
        (b"", 1),
        (b"{}", 1),
        (b"[]", 1),
        (b"\xff\xfe", 1),
        (json.dumps({**OFFER, "deadline": "soon"}).encode(), 1),
        (json.dumps({**OFFER, "deadline": None}).encode(), 1),
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


async def test_the_client_of_a_lease_and_the_name_of_a_run_come_with_the_offer(worker: Worker) -> None:
    client, handed = socket.socketpair()
    with client, handed:
        worker.send(
            json.dumps(
                {**OFFER, "clientFields": {"name": "Smoke 12"}, "lease": ["l1", "secret"], "trace": "00-1"}
            ).encode(),
            handed.fileno(),
        )
        offered = await worker.offered()
        session = offered.session
        assert (session.client_fields, session.lease_id, offered.secret) == ({"name": "Smoke 12"}, "l1", "secret")
        assert session.trace == "00-1"
        offered.answer("in use")


@pytest.mark.parametrize(
    ("said", "session"),
    [({}, (Protocol.PLAYWRIGHT, 0.0)), ({"protocol": "cdp", "keep": 300}, (Protocol.CDP, 300.0))],
)
async def test_what_a_client_speaks_and_how_long_its_browser_is_kept_come_with_the_offer(
    worker: Worker, said: dict[str, Any], session: tuple[Protocol, float]
) -> None:
    client, handed = socket.socketpair()
    with client, handed:
        worker.send(json.dumps({**OFFER, **said}).encode(), handed.fileno())
        offered = await worker.offered()
        assert (offered.session.protocol, offered.session.keep_s) == session
        offered.answer("full")


async def test_the_end_of_a_traced_session_is_told_to_the_proxy_that_connected_last(
    worker: Worker, tmp_path: Path
) -> None:
    first, worker.link = worker.link, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with first:
        worker.link.connect(str(tmp_path / "s"))
        worker.link.setblocking(False)
        worker.send(json.dumps({"ask": "7", "do": "take", "id": "l1"}).encode())
        assert json.loads(await worker.said())["asked"] == "7"
        worker.server.tell_over({"session": "b"})
        assert json.loads(await worker.said()) == {"over": {"session": "b"}}
        worker.link.close()  # which it meets before it has heard of that
        worker.server.tell_over({"session": "c"})
        assert json.loads(first.recv(4096)) == {"over": {"session": "c"}}
        while not worker.ended:
            await asyncio.sleep(0)
        assert worker.ended == [2]


async def test_the_end_of_a_traced_session_waits_for_a_proxy_where_there_is_none(
    worker: Worker, tmp_path: Path
) -> None:
    worker.link.close()
    while not worker.ended:
        await asyncio.sleep(0)
    for number in range(200):
        worker.server.tell_over({"session": str(number)})
    worker.link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    worker.link.connect(str(tmp_path / "s"))
    worker.link.setblocking(False)
    told = [json.loads(await worker.said())["over"]["session"] for _ in range(100)]
    assert told == [str(number) for number in range(100, 200)]  # the last ones, and not without bound


async def test_an_end_that_a_proxy_would_not_read_whole_or_has_no_room_for_is_left_out(worker: Worker) -> None:
    worker.server.tell_over({"session": "first"})
    assert "first" in (await worker.said()).decode()
    worker.server.tell_over({"session": "x" * 4096})
    for number in range(10_000):  # more than a socket holds
        worker.server.tell_over({"session": str(number)})
    read = []
    with contextlib.suppress(BlockingIOError):
        while packet := worker.link.recv(4096):
            read.append(json.loads(packet)["over"]["session"])
    assert read == [str(number) for number in range(len(read))]
    assert 0 < len(read) < 10_000
    worker.server.tell_over({"session": "last"})
    assert "last" in (await worker.said()).decode()
    assert worker.ended == []


async def test_a_question_about_a_lease_is_answered_and_the_end_of_its_link_is_told(worker: Worker) -> None:
    worker.send(json.dumps({"ask": "7", "do": "take", "id": "l1"}).encode())
    assert json.loads(await worker.said()) == {"asked": "7", "refused": None}
    assert worker.asked_for == [(1, {"ask": "7", "do": "take", "id": "l1"})]
    assert worker.ended == []
    worker.send(json.dumps({"ask": "8", "do": "dance"}).encode())
    assert await worker.said() == b""  # no question: the link ends, as with any corrupt packet
    assert worker.ended == [1]


@contextlib.asynccontextmanager
async def a_worker_that_has_answered(directory: Path, handed: socket.socket) -> AsyncIterator[Worker]:
    """Its first offer is taken, and the answer is unread."""
    worker = Worker(directory)
    worker.send(GOOD, handed.fileno())
    answer = (await worker.offered()).answer
    answer(None)
    try:
        yield worker
    finally:
        worker.close()


def test_offers_of_a_proxy_that_died_with_an_answer_unread_are_taken(tmp_path: Path) -> None:
    """On uvloop, as workers run: it calls a reader once and no more when the peer of such a socket is gone."""

    async def the_proxy_offers_and_dies() -> None:
        client, handed = socket.socketpair()
        with client, handed:
            async with a_worker_that_has_answered(tmp_path, handed) as worker:
                for _ in range(3):
                    worker.send(GOOD, handed.fileno())
                worker.link.close()
                for _ in range(3):
                    (await worker.offered()).answer(None)
                assert worker.ended == [1]

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(the_proxy_offers_and_dies())


async def test_offers_of_a_dead_proxy_are_taken_although_an_answer_cannot_be_sent(tmp_path: Path) -> None:
    client, handed = socket.socketpair()
    with client, handed:
        worker = Worker(tmp_path)
        worker.send(GOOD, handed.fileno())
        answer = (await worker.offered()).answer
        worker.send(GOOD, handed.fileno())
        worker.link.close()
        answer(None)  # before the loop looks at the link
        (await worker.offered()).answer(None)
        worker.server.close()
        assert worker.ended == [1]


async def test_without_a_free_descriptor_the_worker_waits_and_the_proxy_is_heard_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, fault: faults.append(fault))
    called: asyncio.Queue[str] = asyncio.Queue()
    methods = {"_listen": HandoffServer._listen, "_accept": HandoffServer._accept}

    def noting(name: str) -> Callable[[HandoffServer], None]:
        def noted(server: HandoffServer) -> None:
            called.put_nowait(name)
            methods[name](server)

        return noted

    for name in methods:
        monkeypatch.setattr(HandoffServer, name, noting(name))
    with capture_logs() as logs, contextlib.ExitStack() as shortage:
        worker = Worker(tmp_path)
        shortage.enter_context(no_descriptor_is_free())
        async with asyncio.timeout(BOUND_S):
            # It tries once, and again only after it has waited.
            assert [await called.get() for _ in range(4)] == ["_listen", "_accept"] * 2
            shortage.close()
            worker.send(json.dumps({"ask": "1", "do": "take"}).encode())
            assert json.loads(await worker.said()) == {"asked": "1", "refused": None}
        worker.link.close()
        worker.server.close()
    assert faults == []
    assert [line["event"] for line in logs].count("handoff_accept_failed") == 1


async def test_a_server_that_is_closed_while_it_waits_for_descriptors_accepts_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, fault: faults.append(fault))
    waited: asyncio.Queue[None] = asyncio.Queue()
    listen = HandoffServer._listen

    def noted(server: HandoffServer) -> None:
        listen(server)
        waited.put_nowait(None)

    monkeypatch.setattr(HandoffServer, "_listen", noted)
    worker = Worker(tmp_path)
    async with asyncio.timeout(BOUND_S):
        await waited.get()
        with no_descriptor_is_free(), capture_logs() as logs:
            while not logs:
                await asyncio.sleep(0)
        worker.server.close()
        await waited.get()
    worker.link.close()
    assert faults == []
