"""The proxy's end of the handoff, over real sockets; what stands in for the worker answers, or does not."""

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pwgrid.proxy.connect import handoff
from pwgrid.proxy.connect.handoff import HandoffFailure, Handoffs, is_answered, is_served, unmark

WORKER = "a1b2c3d4"
BOUND_S = 30.0


class Heard:
    """What the proxy is told beside the answers."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def freed(self, worker_id: str) -> None:
        self.said.append(f"{worker_id} freed")

    def silent(self, worker_id: str) -> None:
        self.said.append(f"{worker_id} silent")

    def awake(self, worker_id: str) -> None:
        self.said.append(f"{worker_id} awake")


class Worker:
    """A socket where the worker's would be, and the handoffs to it."""

    def __init__(self, runtime: Path) -> None:
        self.heard = Heard()
        self.handoffs = Handoffs(runtime, self.heard)
        directory = runtime / "w" / WORKER
        directory.mkdir(parents=True)
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        self.listener.bind(str(directory / "handoff.sock"))
        self.listener.listen()
        self.link: socket.socket | None = None

    def offer(
        self, session_id: str, fd: int, head: bytes = b"host: x\r\n\r\n"
    ) -> "asyncio.Future[HandoffFailure | None]":
        answered: asyncio.Future[HandoffFailure | None] = asyncio.get_running_loop().create_future()
        self.handoffs.offer(WORKER, session_id, "1.2.3.4:5", "accept", head, fd, answered.set_result)
        return answered

    async def packet(self) -> tuple[list[str], bytes]:
        """The next offer: its line and the head. Its socket is closed."""
        if self.link is None:
            self.link, _ = self.listener.accept()
            self.link.setblocking(False)
        while True:
            with contextlib.suppress(BlockingIOError):
                data, fds, _, _ = socket.recv_fds(self.link, 65536, 4)
                break
            await asyncio.sleep(0)
        assert len(fds) == 1
        os.close(fds[0])
        line, _, head = data.partition(b"\n")
        return line.decode().split(" "), head

    def say(self, **message: object) -> None:
        assert self.link is not None
        self.link.send(json.dumps(message).encode())

    def close(self) -> None:
        self.handoffs.close()
        self.listener.close()
        if self.link is not None:
            self.link.close()


@pytest.fixture
async def worker(tmp_path: Path) -> AsyncIterator[Worker]:
    worker = Worker(tmp_path)
    yield worker
    worker.close()


@pytest.fixture
async def fd() -> AsyncIterator[int]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours.fileno()


async def test_an_offer_is_one_packet_and_its_answer_is_told(worker: Worker, fd: int) -> None:
    taken, refused = worker.offer("s1", fd), worker.offer("s2", fd)
    (session_id, deadline, client, accept), head = await worker.packet()
    assert (session_id, client, accept, head) == ("s1", "1.2.3.4:5", "accept", b"host: x\r\n\r\n")
    assert float(deadline) > 0
    worker.say(session="s2", ok=False, reason="full")
    worker.say(session="s1", ok=True, reason=None)
    assert await taken is None
    failure = await refused
    assert failure is not None
    assert (failure.reason, failure.open_until) == ("full", 0.0)


async def test_a_worker_that_dies_leaves_it_open_whether_it_has_sent_the_socket_on(worker: Worker, fd: int) -> None:
    answered = worker.offer("s1", fd)
    await worker.packet()
    now = asyncio.get_running_loop().time()
    assert worker.link is not None
    worker.link.close()
    failure = await answered
    assert failure is not None
    assert failure.is_dead
    assert failure.open_until > now


async def test_a_worker_that_is_given_up_may_still_do_something_with_its_offers(worker: Worker, fd: int) -> None:
    answered = worker.offer("s1", fd)
    now = asyncio.get_running_loop().time()
    worker.handoffs.drop(WORKER, "the worker is gone")
    failure = await answered
    assert failure is not None
    assert not failure.is_dead
    assert failure.open_until > now


async def test_what_a_dead_worker_was_never_sent_can_be_with_nobody(worker: Worker, fd: int) -> None:
    answers = [worker.offer(f"s{number}", fd, b"x" * 30_000) for number in range(40)]
    await worker.packet()
    assert worker.link is not None
    worker.link.close()
    worker.listener.close()
    failures = await asyncio.gather(*answers)
    assert failures[0] is not None
    assert failures[0].open_until > 0
    assert failures[-1] is not None
    assert failures[-1].open_until == 0.0


async def test_a_yes_in_the_last_moment_leaves_it_open_whether_the_browser_server_says_no(
    worker: Worker, fd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handoff, "HANDOFF_TIMEOUT_S", 0.0)
    monkeypatch.setattr(handoff, "_LATE_ANSWER_S", BOUND_S)
    answered = worker.offer("s1", fd)
    await worker.packet()
    worker.say(session="s1", ok=True, reason=None)
    failure = await answered
    assert failure is not None
    assert failure.open_until > asyncio.get_running_loop().time()


async def test_where_no_worker_listens_the_socket_has_gone_nowhere(worker: Worker, fd: int) -> None:
    worker.listener.close()
    failure = await worker.offer("s1", fd)
    assert failure is not None
    assert failure.open_until == 0.0


async def test_a_worker_that_does_not_answer_is_silent_until_it_does(
    worker: Worker, fd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handoff, "HANDOFF_TIMEOUT_S", 0.05)
    monkeypatch.setattr(handoff, "_LATE_ANSWER_S", 0.05)
    first, second = worker.offer("s1", fd), worker.offer("s2", fd)
    async with asyncio.timeout(BOUND_S):
        failures = await asyncio.gather(first, second)
    assert [failure and failure.reason for failure in failures] == ["the worker does not answer"] * 2
    assert worker.heard.said == [f"{WORKER} silent"] * 2
    await worker.packet()
    worker.say(session="s1", ok=False, reason="late")
    worker.say(freed=True)
    monkeypatch.undo()
    again = worker.offer("s3", fd)
    worker.say(session="s3", ok=True, reason=None)
    assert await again is None
    assert worker.heard.said[2:] == [f"{WORKER} awake", f"{WORKER} freed"]


async def test_offers_that_do_not_fit_are_sent_when_there_is_room(worker: Worker, fd: int) -> None:
    sessions = [f"s{number}" for number in range(40)]
    answers = [worker.offer(each, fd, b"x" * 30_000) for each in sessions]
    for each in sessions:
        (session_id, *_), head = await worker.packet()
        assert (session_id, len(head)) == (each, 30_000)
        worker.say(session=session_id, ok=True, reason=None)
    assert await asyncio.gather(*answers) == [None] * 40


def test_the_kernel_knows_whether_a_connection_is_answered_and_whether_it_is_served() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()):
        ours, _ = listener.accept()
        with ours, ours.dup() as copy:
            assert unmark(ours)
            assert not is_answered(ours)
            assert not is_served(ours)
            copy.send(b"HTTP/1.1 101")
            assert is_answered(ours)
            assert not is_served(ours)
            copy.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            assert is_served(ours)


def test_a_unix_connection_bears_no_mark() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert not unmark(ours)
        assert not is_served(ours)
        assert not is_answered(ours)
