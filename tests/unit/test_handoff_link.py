"""The proxy's end of the handoff, over real sockets; what stands in for the worker answers, or does not."""

import asyncio
import contextlib
import json
import math
import os
import socket
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from pwgrid.common.client_marks import clear_marks, is_passed_on, is_served, mark_passed_on
from pwgrid.common.packet_sockets import MAX_OFFER_BYTES
from pwgrid.common.reasons import OfferRefusal
from pwgrid.proxy.connect import handoff_link
from pwgrid.proxy.connect.bounded_http import MAX_HEAD_BYTES
from pwgrid.proxy.connect.connect import MAX_EARLY_BYTES
from pwgrid.proxy.connect.handoff_link import (
    HandoffFailure,
    Handoffs,
    may_be_served,
)
from pwgrid.proxy.policy.refusal import Refusal

WORKER = "a1b2c3d4"
BOUND_S = 30.0
HEADERS = {"host": "x"}


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
        self,
        session_id: str,
        sock: socket.socket,
        headers: dict[str, str] = HEADERS,
        early: str = "",
        until: float = 0.0,
    ) -> "asyncio.Task[float | HandoffFailure]":
        return asyncio.create_task(self._offered(session_id, sock, headers, early, until))

    async def _offered(
        self, session_id: str, sock: socket.socket, headers: dict[str, str], early: str, until: float
    ) -> float | HandoffFailure:
        """Since when the client is served, or why it is not."""
        request = {"client": "1.2.3.4:5", "headers": headers, "early": early}
        try:
            return await self.handoffs.offer(WORKER, session_id, request, sock, until)
        except HandoffFailure as failure:
            return failure

    async def packet(self, sockets: int = 1) -> dict[str, Any]:
        """The next offer. Its socket is closed."""
        if self.link is None:
            self.link, _ = await asyncio.get_running_loop().sock_accept(self.listener)
            self.link.setblocking(False)
        while True:
            with contextlib.suppress(BlockingIOError):
                data, fds, _, _ = socket.recv_fds(self.link, MAX_OFFER_BYTES, 4)
                break
            await asyncio.sleep(0)
        assert len(fds) == sockets
        for each in fds:
            os.close(each)
        packet: dict[str, Any] = json.loads(data)
        return packet

    async def question(self) -> dict[str, Any]:
        """The next question, which comes without a socket."""
        return await self.packet(sockets=0)

    def say(self, **message: object) -> None:
        """Answers; a client is served now where nothing else is said."""
        assert self.link is not None
        message.setdefault("servedAt", time.monotonic())
        self.link.send(json.dumps(message).encode())

    def end(self) -> None:
        """Dies, with whatever it has not read."""
        assert self.link is not None
        self.link.close()

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
async def sock() -> AsyncIterator[socket.socket]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours


async def test_an_offer_is_one_packet_and_its_answer_is_told(worker: Worker, sock: socket.socket) -> None:
    taken, refused = worker.offer("s1", sock), worker.offer("s2", sock)
    packet = await worker.packet()
    assert packet.pop("deadline") > 0
    assert packet == {"session": "s1", "client": "1.2.3.4:5", "headers": HEADERS, "early": ""}
    worker.say(session="s2", refused="full")
    worker.say(session="s1", refused=None)
    assert isinstance(await taken, float)
    failure = await refused
    assert isinstance(failure, HandoffFailure)
    assert (failure.reason, failure.open_until) == ("full", 0.0)


async def test_a_client_is_served_since_the_time_that_its_worker_says_not_since_the_answer(
    worker: Worker, sock: socket.socket
) -> None:
    in_time, too_late = worker.offer("s1", sock), worker.offer("s2", sock)
    deadline = (await worker.packet())["deadline"]
    worker.say(session="s1", refused=None, servedAt=deadline - 1.5)
    worker.say(session="s2", refused=None, servedAt=deadline)
    assert await in_time == deadline - 1.5
    failure = await too_late
    assert isinstance(failure, HandoffFailure)
    assert failure.reason == "it answered late"


async def test_a_worker_that_dies_leaves_it_open_whether_it_has_sent_the_socket_on(
    worker: Worker, sock: socket.socket
) -> None:
    answered = worker.offer("s1", sock)
    await worker.packet()
    now = asyncio.get_running_loop().time()
    assert worker.link is not None
    worker.link.close()
    failure = await answered
    assert isinstance(failure, HandoffFailure)
    assert failure.is_dead
    assert failure.open_until > now


async def test_what_a_worker_answered_before_it_died_counts_although_it_left_an_offer_unread(
    worker: Worker, sock: socket.socket
) -> None:
    taken, asked = worker.offer("s1", sock), asyncio.create_task(worker.handoffs.ask(WORKER, {"do": "return"}))
    await worker.packet()
    question = await worker.question()
    unread = worker.offer("s2", sock)
    await asyncio.sleep(0)  # it is sent
    worker.say(session="s1", refused=None)
    worker.say(asked=question["ask"], refused=None)
    worker.end()
    assert isinstance(await taken, float)
    assert (await asked)["refused"] is None
    failure = await unread
    assert isinstance(failure, HandoffFailure)
    assert failure.is_dead
    assert failure.open_until > 0


async def test_what_a_worker_answered_before_it_died_counts_although_another_offer_meets_its_end(
    worker: Worker, sock: socket.socket
) -> None:
    taken = worker.offer("s1", sock)
    await worker.packet()
    worker.say(session="s1", refused=None)
    worker.end()
    # Made and sent before the loop looks at the link.
    unsent = worker.offer("s2", sock)
    await asyncio.sleep(0)
    assert isinstance(await taken, float)
    failure = await unsent
    assert isinstance(failure, HandoffFailure)
    assert (failure.is_dead, failure.open_until) == (True, 0.0)


async def test_what_a_worker_answered_counts_although_the_news_of_its_end_is_faster(
    worker: Worker, sock: socket.socket
) -> None:
    taken = worker.offer("s1", sock)
    await worker.packet()
    worker.say(session="s1", refused=None)
    worker.end()
    worker.handoffs.drop(WORKER, "the worker is gone")
    assert isinstance(await taken, float)


async def test_a_worker_that_is_given_up_may_still_do_something_with_its_offers(
    worker: Worker, sock: socket.socket
) -> None:
    answered = worker.offer("s1", sock)
    await worker.packet()
    now = asyncio.get_running_loop().time()
    worker.handoffs.drop(WORKER, "the worker is gone")
    failure = await answered
    assert isinstance(failure, HandoffFailure)
    assert not failure.is_dead
    assert failure.open_until > now


async def test_what_a_dead_worker_was_never_sent_can_be_with_nobody(worker: Worker, sock: socket.socket) -> None:
    answers = [worker.offer(f"s{number}", sock, {"user-agent": "x" * 30_000}) for number in range(40)]
    await worker.packet()
    assert worker.link is not None
    worker.link.close()
    worker.listener.close()
    failures = [each for each in await asyncio.gather(*answers) if isinstance(each, HandoffFailure)]
    assert len(failures) == 40
    assert failures[0].open_until > 0
    assert failures[-1].open_until == 0.0


async def test_a_yes_in_the_last_moment_leaves_it_open_whether_the_browser_server_says_no(
    worker: Worker, sock: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handoff_link, "HANDOFF_TIMEOUT_S", 0.0)
    monkeypatch.setattr(handoff_link, "_LATE_ANSWER_S", BOUND_S)
    answered = worker.offer("s1", sock)
    await worker.packet()
    worker.say(session="s1", refused=None)
    failure = await answered
    assert isinstance(failure, HandoffFailure)
    assert failure.open_until > asyncio.get_running_loop().time()


async def test_where_no_worker_listens_the_socket_has_gone_nowhere(worker: Worker, sock: socket.socket) -> None:
    worker.listener.close()
    failure = await worker.offer("s1", sock)
    assert isinstance(failure, HandoffFailure)
    assert failure.open_until == 0.0


async def test_a_worker_that_does_not_answer_is_silent_until_it_does(
    worker: Worker, sock: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handoff_link, "HANDOFF_TIMEOUT_S", 0.05)
    monkeypatch.setattr(handoff_link, "_LATE_ANSWER_S", 0.05)
    first, second = worker.offer("s1", sock), worker.offer("s2", sock)
    async with asyncio.timeout(BOUND_S):
        failures = [each for each in await asyncio.gather(first, second) if isinstance(each, HandoffFailure)]
    assert [failure.reason for failure in failures] == ["the worker does not answer"] * 2
    assert all(0 < failure.open_until <= asyncio.get_running_loop().time() for failure in failures)
    assert worker.heard.said == [f"{WORKER} silent"] * 2
    await worker.packet()
    worker.say(session="s1", refused="late")
    worker.say(freed=True)
    monkeypatch.undo()
    again = worker.offer("s3", sock)
    worker.say(session="s3", refused=None)
    assert isinstance(await again, float)
    assert worker.heard.said[2:] == [f"{WORKER} awake", f"{WORKER} freed"]


async def test_a_worker_that_acquires_a_browser_has_as_long_as_that_may_take_and_others_have_no_longer(
    worker: Worker, sock: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handoff_link, "HANDOFF_TIMEOUT_S", 0.05)
    monkeypatch.setattr(handoff_link, "_LATE_ANSWER_S", 0.05)
    acquiring = worker.offer("s1", sock, until=time.monotonic() + BOUND_S)
    await worker.packet()
    worker.say(session="s1", acquiring=True)
    async with asyncio.timeout(BOUND_S):
        late = await worker.offer("s2", sock, until=time.monotonic() + BOUND_S)  # comes after it, and is late before it
    assert isinstance(late, HandoffFailure)
    assert (late.reason, acquiring.done()) == ("the worker does not answer", False)
    worker.say(session="s1", refused=None)
    assert isinstance(await acquiring, float)


async def test_a_worker_that_falls_silent_while_it_acquires_a_browser_has_as_long_as_it_has_promised(
    worker: Worker, sock: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handoff_link, "HANDOFF_TIMEOUT_S", 0.05)
    monkeypatch.setattr(handoff_link, "_LATE_ANSWER_S", 0.05)
    until = time.monotonic() + BOUND_S
    offered = worker.offer("s1", sock, until=until)
    await worker.packet()
    for after_s in (0.1, 0.2):
        worker.say(session="s1", acquiring=True, promised=(promised := time.monotonic() + after_s))
    async with asyncio.timeout(BOUND_S / 2):
        failure = await offered
    assert isinstance(failure, HandoffFailure)
    assert failure.reason == "the worker does not answer"
    assert promised < failure.open_until < until
    assert worker.heard.said == [f"{WORKER} silent"]


async def test_no_promise_is_longer_than_the_client_waits(
    worker: Worker, sock: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handoff_link, "HANDOFF_TIMEOUT_S", 0.05)
    monkeypatch.setattr(handoff_link, "_LATE_ANSWER_S", 0.05)
    until = time.monotonic() + 0.2
    offered = worker.offer("s1", sock, until=until)
    await worker.packet()
    worker.say(session="s1", acquiring=True, promised=time.monotonic() + 2 * BOUND_S)
    async with asyncio.timeout(BOUND_S):
        assert isinstance(await offered, HandoffFailure)


async def test_a_worker_that_acquires_a_browser_for_too_long_is_silent(
    worker: Worker, sock: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handoff_link, "HANDOFF_TIMEOUT_S", 0.05)
    monkeypatch.setattr(handoff_link, "_LATE_ANSWER_S", 0.05)
    until = time.monotonic() + 0.3
    offered = worker.offer("s1", sock, until=until)
    await worker.packet()
    worker.say(session="s1", acquiring=True)
    async with asyncio.timeout(BOUND_S):
        failure = await offered
    assert isinstance(failure, HandoffFailure)
    assert failure.reason == "the worker does not answer"
    assert failure.open_until >= until
    worker.say(session="s1", acquiring=True)
    worker.say(session="s1", refused="its browser did not start")
    async with asyncio.timeout(BOUND_S):
        while len(worker.heard.said) < 3:
            await asyncio.sleep(0)
    assert worker.heard.said == [f"{WORKER} silent", *[f"{WORKER} awake"] * 2]


async def test_a_browser_that_is_acquired_at_the_last_moment_leaves_it_open_whether_it_serves(
    worker: Worker, sock: socket.socket
) -> None:
    until = time.monotonic() + BOUND_S
    offered = worker.offer("s1", sock, until=until)
    await worker.packet()
    worker.say(session="s1", acquiring=True)
    worker.say(session="s1", refused=None, servedAt=until)
    failure = await offered
    assert isinstance(failure, HandoffFailure)
    assert failure.reason == "it answered late"
    assert failure.open_until > until


async def test_why_no_browser_started_is_told_with_the_refusal(worker: Worker, sock: socket.socket) -> None:
    offered = worker.offer("s1", sock, until=time.monotonic() + BOUND_S)
    await worker.packet()
    worker.say(session="s1", acquiring=True)
    worker.say(session="s1", refused="its browser did not start", detail="no display")
    failure = await offered
    assert isinstance(failure, HandoffFailure)
    assert (failure.reason, failure.detail) == (OfferRefusal.NOT_LAUNCHED, "no display")
    assert (failure.is_refusal, failure.open_until) == (True, 0.0)


async def test_a_worker_that_dies_while_it_acquires_a_browser_is_told_at_once(
    worker: Worker, sock: socket.socket
) -> None:
    until = time.monotonic() + BOUND_S
    offered = worker.offer("s1", sock, until=until)
    await worker.packet()
    worker.say(session="s1", acquiring=True)
    worker.end()
    failure = await offered
    assert isinstance(failure, HandoffFailure)
    assert failure.is_dead
    assert failure.open_until > until


async def test_what_a_worker_has_said_in_time_counts_although_this_process_was_frozen_until_after_it(
    worker: Worker, sock: socket.socket
) -> None:
    offered = worker.offer("s1", sock, until=time.monotonic() + BOUND_S)
    await worker.packet()
    worker.say(session="s1", acquiring=True)
    (link,) = worker.handoffs._links.values()
    link._pending["s1"].deadline = 0.0
    link._check_deadlines()  # before the loop has looked at the link
    assert not offered.done()
    worker.say(session="s1", refused=None)
    assert isinstance(await offered, float)


@pytest.mark.parametrize("is_answered", [True, False])
async def test_who_is_cancelled_while_it_is_offered_takes_nobody_with_it(
    worker: Worker, sock: socket.socket, is_answered: bool
) -> None:
    cancelled, asked = worker.offer("s1", sock), asyncio.create_task(worker.handoffs.ask(WORKER, {"do": "take"}))
    other = worker.offer("s2", sock)
    await worker.packet()
    await worker.question()
    await worker.packet()
    for task in (cancelled, asked):
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    if is_answered:
        worker.say(session="s1", refused=None)
    worker.say(session="s2", refused=None)
    assert isinstance(await other, float)
    assert worker.heard.said == []  # whoever answers a caller that is gone was not silent
    last = worker.offer("s3", sock)
    await worker.packet()
    worker.end()
    failure = await last
    assert isinstance(failure, HandoffFailure)
    assert failure.is_dead


async def test_who_was_refused_hears_of_it_before_it_is_said_that_a_slot_is_free_again(
    worker: Worker, sock: socket.socket
) -> None:
    async def refused() -> None:
        with pytest.raises(HandoffFailure):
            await worker.handoffs.offer(WORKER, "s1", {}, sock)
        worker.heard.said.append("refused")

    async with asyncio.timeout(BOUND_S), asyncio.TaskGroup() as tasks:
        tasks.create_task(refused())
        await worker.packet()
        worker.say(session="s1", refused="full")
        worker.say(freed=True)
    await asyncio.sleep(0)
    assert worker.heard.said == ["refused", f"{WORKER} freed"]


async def test_a_worker_that_was_full_is_so_no_more_when_its_link_is_closed(
    worker: Worker, sock: socket.socket
) -> None:
    """What it says when a slot comes free could not be heard any more."""
    refused = worker.offer("s1", sock)
    await worker.packet()
    worker.say(session="s1", refused="full")
    await refused
    worker.end()
    async with asyncio.timeout(BOUND_S):
        while worker.heard.said != [f"{WORKER} freed"]:
            await asyncio.sleep(0)


async def test_what_a_silent_worker_was_never_sent_can_be_with_nobody(
    worker: Worker, sock: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handoff_link, "HANDOFF_TIMEOUT_S", 0.05)
    monkeypatch.setattr(handoff_link, "_LATE_ANSWER_S", 0.05)
    answers = [worker.offer(f"s{number}", sock, {"user-agent": "x" * 30_000}) for number in range(40)]
    async with asyncio.timeout(BOUND_S):
        failures = [each for each in await asyncio.gather(*answers) if isinstance(each, HandoffFailure)]
    assert len(failures) == 40
    assert failures[0].open_until > 0
    assert (failures[-1].reason, failures[-1].open_until) == ("the worker does not answer", 0.0)


async def test_a_silent_worker_hears_later_what_it_was_asked_and_is_offered_nobody_late(
    worker: Worker, sock: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The question may return a lease that it has kept."""
    monkeypatch.setattr(handoff_link, "HANDOFF_TIMEOUT_S", 0.05)
    monkeypatch.setattr(handoff_link, "_LATE_ANSWER_S", 0.05)
    answers = [worker.offer(f"s{number}", sock, {"user-agent": "x" * 30_000}) for number in range(40)]
    await asyncio.sleep(0)  # all are offered, and the link is full
    with pytest.raises(HandoffFailure):
        await worker.handoffs.ask(WORKER, {"do": "return", "id": "l1"})
    sent = [each for each in await asyncio.gather(*answers) if isinstance(each, HandoffFailure) and each.open_until]
    for _ in sent:
        await worker.packet()
    assert (await worker.question())["id"] == "l1"


async def test_offers_that_do_not_fit_are_sent_when_there_is_room(worker: Worker, sock: socket.socket) -> None:
    sessions = [f"s{number}" for number in range(40)]
    answers = [worker.offer(each, sock, {"user-agent": "x" * 30_000}) for each in sessions]
    for each in sessions:
        packet = await worker.packet()
        assert (packet["session"], len(packet["headers"]["user-agent"])) == (each, 30_000)
        worker.say(session=each, refused=None)
    assert {type(each) for each in await asyncio.gather(*answers)} == {float}


@pytest.mark.parametrize("early", ["\x01" * 30_000, "\x01" * MAX_EARLY_BYTES, "\xff" * MAX_EARLY_BYTES])
async def test_an_offer_that_no_worker_could_read_is_sent_to_none_and_fails_nobody_else(
    worker: Worker, sock: socket.socket, early: str
) -> None:
    before = worker.offer("s1", sock)
    await worker.packet()
    with pytest.raises(Refusal, match="too much comes behind it"):
        await worker.offer("s2", sock, {"x-playwright": '"' * 20_000}, early)
    after = worker.offer("s3", sock)
    assert (await worker.packet())["session"] == "s3"
    for session_id in ("s1", "s3"):
        worker.say(session=session_id, refused=None)
    assert {type(each) for each in await asyncio.gather(before, after)} == {float}


@pytest.mark.parametrize("worst", ['"', "\xff"])
async def test_the_largest_head_and_as_much_text_behind_it_as_may_be_is_an_offer(
    worker: Worker, sock: socket.socket, worst: str
) -> None:
    answered = worker.offer("s1", sock, {"x-playwright": worst * MAX_HEAD_BYTES}, "x" * MAX_EARLY_BYTES)
    async with asyncio.timeout(BOUND_S):
        assert len((await worker.packet())["early"]) == MAX_EARLY_BYTES
    worker.say(session="s1", refused=None)
    assert isinstance(await answered, float)


@pytest.fixture
def connection() -> Iterator[socket.socket]:
    """A client's connection, its marks cleared."""
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()):
        accepted, _ = listener.accept()
        with accepted:
            clear_marks(accepted)
            yield accepted


def pass_on(connection: socket.socket) -> None:
    """As a worker does: on a copy of the socket."""
    with connection.dup() as copy:
        copy.setsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY, 1)


def serve(connection: socket.socket) -> None:
    """As a browser server does: on a copy of the socket."""
    with connection.dup() as copy:
        copy.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def test_the_marks_belong_to_the_connection(connection: socket.socket) -> None:
    assert (is_passed_on(connection), is_served(connection)) == (False, False)
    pass_on(connection)
    assert (is_passed_on(connection), is_served(connection)) == (True, False)
    serve(connection)
    assert (is_passed_on(connection), is_served(connection)) == (True, True)
    clear_marks(connection)
    assert (is_passed_on(connection), is_served(connection)) == (False, False)


NEVER = math.inf
"""A deadline that a wait would have to be bounded for."""


async def test_a_worker_that_died_before_it_passed_the_client_on_is_not_waited_for(connection: socket.socket) -> None:
    async with asyncio.timeout(BOUND_S):
        assert not await may_be_served(connection, HandoffFailure("gone", is_dead=True, open_until=NEVER))


async def test_a_browser_server_that_takes_the_client_of_a_dead_worker_has_it(connection: socket.socket) -> None:
    pass_on(connection)
    asyncio.get_running_loop().call_later(0.02, serve, connection)
    async with asyncio.timeout(BOUND_S):
        assert await may_be_served(connection, HandoffFailure("gone", is_dead=True, open_until=NEVER))


async def test_after_the_deadline_no_browser_server_takes_it_any_more(connection: socket.socket) -> None:
    pass_on(connection)
    until = asyncio.get_running_loop().time() + 0.02
    assert not await may_be_served(connection, HandoffFailure("gone", is_dead=True, open_until=until))
    assert asyncio.get_running_loop().time() >= until


async def test_a_worker_that_may_live_is_waited_for_also_where_nothing_was_passed_on(connection: socket.socket) -> None:
    asyncio.get_running_loop().call_later(0.02, serve, connection)
    async with asyncio.timeout(BOUND_S):
        assert await may_be_served(connection, HandoffFailure("given up", open_until=NEVER))


async def test_a_unix_connection_bears_one_mark_and_is_let_go_where_that_is_set(
    sock: socket.socket,
) -> None:
    clear_marks(sock)
    assert not await may_be_served(sock, HandoffFailure("gone", is_dead=True, open_until=NEVER))
    over = asyncio.get_running_loop().time()
    assert not await may_be_served(sock, HandoffFailure("the worker does not answer", open_until=over))
    mark_passed_on(sock)
    assert await may_be_served(sock, HandoffFailure("gone", is_dead=True, open_until=NEVER))
    assert await may_be_served(sock, HandoffFailure("the worker does not answer", open_until=over))
    assert not await may_be_served(sock, HandoffFailure("full"))
    clear_marks(sock)
    assert not is_passed_on(sock)


async def test_a_question_has_its_own_answer_among_others(worker: Worker, sock: socket.socket) -> None:
    one = asyncio.create_task(worker.handoffs.ask(WORKER, {"do": "take", "id": "l1"}))
    other = asyncio.create_task(worker.handoffs.ask(WORKER, {"do": "return", "id": "l2"}))
    offered = worker.offer("s1", sock)
    asked = [await worker.question() for _ in range(2)]
    assert [(each["do"], each["id"]) for each in asked] == [("take", "l1"), ("return", "l2")]
    assert (await worker.packet())["session"] == "s1"
    worker.say(asked=asked[1]["ask"], refused="no such lease")
    worker.say(session="s1", refused=None)
    worker.say(asked="unknown", refused=None)
    worker.say(asked=asked[0]["ask"], refused=None)
    assert (await other)["refused"] == "no such lease"
    assert (await one)["refused"] is None
    assert isinstance(await offered, float)


async def test_a_question_fails_with_its_worker_or_after_a_while(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(HandoffFailure, match="the worker is gone"):
        await worker.handoffs.ask("0badc0de", {"do": "return", "id": "l1"})
    asked = asyncio.create_task(worker.handoffs.ask(WORKER, {"do": "return", "id": "l1"}))
    await worker.question()
    assert worker.link is not None
    worker.link.close()
    with pytest.raises(HandoffFailure, match="the worker is gone"):
        await asked
    monkeypatch.setattr(handoff_link, "HANDOFF_TIMEOUT_S", 0.0)
    monkeypatch.setattr(handoff_link, "_LATE_ANSWER_S", 0.0)
    with pytest.raises(HandoffFailure, match="does not answer"):
        await worker.handoffs.ask(WORKER, {"do": "return", "id": "l1"})


async def test_a_worker_that_does_not_answer_a_question_is_silent_until_it_does(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handoff_link, "HANDOFF_TIMEOUT_S", 0.05)
    monkeypatch.setattr(handoff_link, "_LATE_ANSWER_S", 0.05)
    with pytest.raises(HandoffFailure):
        await worker.handoffs.ask(WORKER, {"do": "take", "id": "l1"})
    assert worker.heard.said == [f"{WORKER} silent"]
    worker.say(asked=(await worker.question())["ask"], refused="late")
    async with asyncio.timeout(BOUND_S):
        while worker.heard.said[1:] != [f"{WORKER} awake"]:
            await asyncio.sleep(0)
