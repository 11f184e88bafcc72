"""A client's way to a worker of another host, and from one: what stands in for the forwarder answers as it is told, and
what stands in for Redis keeps what is left there."""

import asyncio
import errno
import json
import os
import socket
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast
from unittest import mock

import pytest

from pwgrid.common.client_marks import mark_passed_on, mark_served
from pwgrid.common.errors import RegistryUnavailable
from pwgrid.common.packet_sockets import MAX_OFFER_BYTES
from pwgrid.common.reasons import OfferRefusal
from pwgrid.proxy.api.hosts import ask_master
from pwgrid.proxy.connect.forwarding import Forwarding
from pwgrid.proxy.connect.from_other_hosts import FromOtherHosts
from pwgrid.proxy.connect.handoff_link import (
    HandoffFailure,
    Handoffs,
    HostSilent,
    HostUnreachable,
    NoWay,
    may_be_served,
)
from pwgrid.proxy.hosts.host_heartbeat import HostKeeper
from pwgrid.proxy.hosts.host_table import OtherHost
from pwgrid.proxy.policy.refusal import Refusal
from pwgrid.registry.host_records import HostRecord, HostRecords
from pwgrid.runtime.directory import FORWARDER_SOCKET
from tests.unit.test_handoff_link import Heard

BOUND_S = 30.0
ID = "ab" * 16
REQUEST = {"client": "1.2.3.4:5", "headers": {"host": "localhost", "sec-websocket-key": "k"}, "early": "hello"}
HOST = OtherHost(HostRecord("10.0.0.2:8080", ("10.0.0.2", 8080)), 0.0)


class Records:
    """What is left in Redis."""

    def __init__(self) -> None:
        self.forwards: dict[str, dict[str, Any]] = {}
        self.refusals: dict[str, dict[str, Any]] = {}
        self.is_away = False

    async def leave_forward(self, forward: dict[str, Any]) -> str:
        self._ask()
        self.forwards[ID] = json.loads(json.dumps(forward))
        return ID

    async def take_forward(self, forward_id: str) -> dict[str, Any] | None:
        self._ask()
        return self.forwards.pop(forward_id, None)

    async def leave_refusal(self, forward_id: str, refusal: dict[str, Any]) -> None:
        self._ask()
        self.refusals[forward_id] = refusal

    async def take_refusal(self, forward_id: str) -> dict[str, Any] | None:
        self._ask()
        return self.refusals.pop(forward_id, None)

    def _ask(self) -> None:
        if self.is_away:
            raise RegistryUnavailable("Redis is away")


class Keeper:
    """Notes which hosts cannot be reached, and why this one had no way to any."""

    def __init__(self) -> None:
        self.unreachable_for: list[str] = []
        self.no_way_for: list[str] = []

    def unreachable(self, _host: OtherHost, why: str) -> None:
        self.unreachable_for.append(why)

    def no_way(self, why: str) -> None:
        self.no_way_for.append(why)


class Workers:
    """Stands in for the links to this host's workers."""

    def __init__(self, answer: dict[str, Any] | HandoffFailure) -> None:
        self.answer = answer
        self.asked: list[tuple[str, dict[str, Any], float]] = []

    async def ask(self, worker_id: str, question: dict[str, Any], until: float) -> dict[str, Any]:
        self.asked.append((worker_id, question, until))
        if isinstance(self.answer, HandoffFailure):
            raise self.answer
        return self.answer


class Forwarder:
    """A socket where the forwarder's would be, and the forwarding over it."""

    def __init__(self, runtime: Path) -> None:
        self.records, self.keeper = Records(), Keeper()
        self.workers = Workers({"refused": None})
        self.forwarding = Forwarding(
            runtime,
            cast(HostKeeper, self.keeper),
            cast(HostRecords, self.records),
            Heard(),  # type: ignore[arg-type]
        )
        self.from_others = FromOtherHosts(cast(HostRecords, self.records), cast(Handoffs, self.workers))
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        self.listener.bind(str(runtime / FORWARDER_SOCKET))
        self.listener.listen()
        self.link: socket.socket | None = None

    async def hears(self) -> dict[str, Any]:
        """The next offer; its descriptor is closed."""
        loop = asyncio.get_running_loop()
        if self.link is None:
            async with asyncio.timeout(BOUND_S):
                self.link, _ = await loop.sock_accept(self.listener)
        while True:
            try:
                packet, fds, _, _ = socket.recv_fds(self.link, 65536, 1)
            except BlockingIOError:
                await asyncio.sleep(0)
                continue
            for fd in fds:
                os.close(fd)
            told: dict[str, Any] = json.loads(packet)
            assert len(fds) == 1
            return told

    def answers(self, **told: Any) -> None:
        assert self.link is not None
        self.link.send(json.dumps({"session": "s1", **told}).encode())

    def close(self) -> None:
        self.forwarding.close()
        self.listener.close()
        if self.link is not None:
            self.link.close()


@pytest.fixture
async def forwarder(tmp_path: Path) -> AsyncIterator[Forwarder]:
    made = Forwarder(tmp_path)
    yield made
    made.close()


@pytest.fixture
def sock() -> Any:
    with socket.socket() as made:
        yield made


async def failed(forwarder: Forwarder, sock: socket.socket, *, taken: bool, **told: Any) -> HandoffFailure:
    """Why the client is not forwarded, if the forwarder answers so; `taken`: the other host's proxy was there."""
    offer = asyncio.ensure_future(forwarder.forwarding.offer(HOST, "w1", "s1", REQUEST, sock, time.monotonic() + 60))
    await forwarder.hears()
    if taken:
        del forwarder.records.forwards[ID]
    if told:
        forwarder.answers(**told)
    else:
        assert forwarder.link is not None
        forwarder.link.close()
    with pytest.raises(HandoffFailure) as caught:
        await offer
    return caught.value


async def test_the_forwarder_gets_the_address_and_a_head_and_redis_what_the_worker_gets(
    forwarder: Forwarder, sock: socket.socket
) -> None:
    until = time.monotonic() + 50
    offer = asyncio.ensure_future(
        forwarder.forwarding.offer(HOST, "w1", "s1", {**REQUEST, "until": until}, sock, until)
    )
    told = await forwarder.hears()
    assert (told["to"], told["session"], told["until"]) == (["10.0.0.2", 8080], "s1", until)
    assert told["head"].startswith(f"GET /forwarded/{ID} HTTP/1.1\r\nHost: 10.0.0.2:8080\r\n")
    assert "sec-websocket-key: k" in told["head"]
    left = forwarder.records.forwards[ID]
    assert (left["worker"], left["session"], left["request"]["early"]) == ("w1", "s1", "hello")
    assert 0 < left["request"]["left"]["until"] <= 50
    assert 0 < left["left"]["until"] <= 50
    forwarder.answers(refused=None, servedAt=time.monotonic())
    await offer
    assert forwarder.forwarding.forwarded == 1


async def test_what_that_host_s_worker_says_counts(forwarder: Forwarder, sock: socket.socket) -> None:
    forwarder.records.refusals[ID] = {"refused": "no such lease", "isRefusal": True, "ended": "expired", "detail": "x"}
    failure = await failed(
        forwarder, sock, taken=True, refused=OfferRefusal.NOT_TAKEN, detail="HTTP/1.1 503 Service Unavailable"
    )
    assert (failure.reason, failure.is_refusal, failure.ended, failure.detail) == (
        "no such lease",
        True,
        "expired",
        "x",
    )
    assert forwarder.keeper.unreachable_for == []
    assert not isinstance(failure, HostUnreachable)
    assert not await may_be_served(sock, failure)


async def test_a_host_whose_proxy_did_not_come_for_the_client_cannot_be_reached(
    forwarder: Forwarder, sock: socket.socket
) -> None:
    failure = await failed(forwarder, sock, taken=False, refused=OfferRefusal.UNREACHABLE, detail="Connection refused")
    assert f"10.0.0.2:8080: {OfferRefusal.UNREACHABLE} Connection refused" in failure.reason
    assert forwarder.keeper.unreachable_for == [f"{OfferRefusal.UNREACHABLE} Connection refused"]
    assert isinstance(failure, HostUnreachable)  # the worker may have this client later
    assert forwarder.records.forwards == {}  # it can come for it no more
    assert not await may_be_served(sock, failure)


async def test_a_host_that_refuses_and_leaves_no_reason_is_left_alone_and_its_worker_may_have_the_client_later(
    forwarder: Forwarder, sock: socket.socket
) -> None:
    failure = await failed(
        forwarder, sock, taken=True, refused=OfferRefusal.NOT_TAKEN, detail="HTTP/1.1 503 Service Unavailable"
    )
    assert isinstance(failure, HostUnreachable)
    assert failure.detail == ""  # no browser has failed to start
    assert forwarder.keeper.unreachable_for == [f"{OfferRefusal.NOT_TAKEN} HTTP/1.1 503 Service Unavailable"]


async def test_nobody_is_to_blame_where_redis_is_away_from_both_hosts(
    forwarder: Forwarder, sock: socket.socket
) -> None:
    offer = asyncio.ensure_future(forwarder.forwarding.offer(HOST, "w1", "s1", REQUEST, sock, time.monotonic() + 60))
    await forwarder.hears()
    forwarder.records.is_away = True
    forwarder.answers(refused=OfferRefusal.NOT_TAKEN, detail="HTTP/1.1 503 Service Unavailable")
    with pytest.raises(HostUnreachable):
        await offer
    assert forwarder.keeper.unreachable_for == []


async def test_no_host_is_to_blame_for_a_client_that_leaves(forwarder: Forwarder, sock: socket.socket) -> None:
    await failed(forwarder, sock, taken=False, refused=OfferRefusal.GONE, detail="the client has gone")
    assert forwarder.keeper.unreachable_for == []


async def test_the_marks_of_its_connection_tell_whether_a_client_is_served_whose_forwarder_died(
    forwarder: Forwarder, sock: socket.socket
) -> None:
    failure = await failed(forwarder, sock, taken=True)
    assert not await may_be_served(sock, failure)
    mark_passed_on(sock)
    mark_served(sock)
    assert await may_be_served(sock, failure)


async def test_a_client_is_not_served_when_the_forwarder_died_before_the_other_host_came(
    forwarder: Forwarder, sock: socket.socket
) -> None:
    failure = await failed(forwarder, sock, taken=False)
    mark_passed_on(sock)
    assert not await may_be_served(sock, failure)  # at once: nobody can take it later
    assert forwarder.keeper.unreachable_for == []


async def test_nothing_is_forwarded_while_redis_is_away_or_no_forwarder_runs(
    forwarder: Forwarder, sock: socket.socket, tmp_path: Path
) -> None:
    forwarder.records.is_away = True
    with pytest.raises(HandoffFailure, match="Redis is away"):
        await forwarder.forwarding.offer(HOST, "w1", "s1", REQUEST, sock, 0.0)
    forwarder.records.is_away = False
    (tmp_path / FORWARDER_SOCKET).unlink()
    with pytest.raises(HandoffFailure, match="the forwarder is gone"):
        await forwarder.forwarding.offer(HOST, "w1", "s1", REQUEST, sock, 0.0)
    assert forwarder.keeper.no_way_for == ["the forwarder is gone (No such file or directory)"]
    assert forwarder.keeper.unreachable_for == []


@pytest.mark.parametrize("reason", [OfferRefusal.DRAINING, OfferRefusal.NO_WAY])
@pytest.mark.parametrize("taken", [False, True])
async def test_no_host_is_to_blame_for_this_one_s_forwarder_or_tls_process(
    forwarder: Forwarder, sock: socket.socket, reason: OfferRefusal, taken: bool
) -> None:
    failure = await failed(forwarder, sock, taken=taken, refused=reason, detail="x")
    assert isinstance(failure, NoWay)
    assert (forwarder.keeper.unreachable_for, forwarder.keeper.no_way_for) == ([], [f"{reason} x"])


@pytest.mark.parametrize("reason", [OfferRefusal.LATE, OfferRefusal.IN_USE])
async def test_who_was_only_late_is_offered_again_at_once(
    forwarder: Forwarder, sock: socket.socket, reason: OfferRefusal
) -> None:
    failure = await failed(forwarder, sock, taken=False, refused=reason, detail="x")
    assert isinstance(failure, HostUnreachable)
    assert (forwarder.keeper.unreachable_for, forwarder.keeper.no_way_for) == ([], [])


@pytest.mark.parametrize("taken", [False, True])
async def test_a_worker_elsewhere_may_have_the_client_of_a_forwarder_that_died(
    forwarder: Forwarder, sock: socket.socket, taken: bool
) -> None:
    failure = await failed(forwarder, sock, taken=taken)
    assert isinstance(failure, NoWay)
    assert (forwarder.keeper.unreachable_for, forwarder.keeper.no_way_for) == ([], ["the forwarder is gone"])


async def test_no_host_is_to_blame_where_no_descriptor_is_free_for_a_question(
    forwarder: Forwarder, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def no_connection(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr("pwgrid.proxy.connect.forwarding.connect_tcp", no_connection)
    with pytest.raises(NoWay, match="Too many open files"):
        await forwarder.forwarding.ask(HOST, "w1", {"do": "tell"})
    assert (len(forwarder.keeper.no_way_for), forwarder.keeper.unreachable_for) == (1, [])


async def test_nor_where_this_host_cannot_read_its_own_authorities(forwarder: Forwarder, tmp_path: Path) -> None:
    forwarder.forwarding._tls_ca = str(tmp_path / "gone.pem")
    host = OtherHost(HostRecord("there", ("10.0.0.2", 8080), is_encrypted=True), 0.0)
    with pytest.raises(NoWay, match="TLS_CA cannot be used here"):
        await forwarder.forwarding.ask(host, "w1", {"do": "tell"})
    assert (len(forwarder.keeper.no_way_for), forwarder.keeper.unreachable_for) == (1, [])
    assert forwarder.records.forwards == {}  # nobody else finds that question


async def test_what_no_worker_could_read_is_refused_here(forwarder: Forwarder, sock: socket.socket) -> None:
    with pytest.raises(Refusal):
        await forwarder.forwarding.offer(HOST, "w1", "s1", REQUEST | {"early": "x" * MAX_OFFER_BYTES}, sock, 0.0)


# Questions


async def unanswered(forwarder: Forwarder, answer: bytes, *, taken: bool, is_away: bool = False) -> HandoffFailure:
    """Why a question has no answer, if the other host's proxy says this and closes the connection; `taken`: it takes
    the question, `is_away`: Redis is, by then."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        if taken:
            del forwarder.records.forwards[ID]
        forwarder.records.is_away = is_away
        writer.write(answer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        address = ("127.0.0.1", server.sockets[0].getsockname()[1])
        with pytest.raises(HandoffFailure) as caught:
            await forwarder.forwarding.ask_proxy(OtherHost(HostRecord("there", address), 0.0), {"token": "ci"})
    return caught.value


async def test_a_question_that_a_silent_host_has_not_taken_is_taken_back(forwarder: Forwarder) -> None:
    failure = await unanswered(forwarder, b"", taken=False)
    assert isinstance(failure, HostUnreachable)
    assert not isinstance(failure, HostSilent)
    assert forwarder.records.forwards == {}
    assert len(forwarder.keeper.unreachable_for) == 1


@pytest.mark.parametrize(
    ("answer", "taken", "is_away"),
    [
        (b"", True, False),
        (b"", False, True),
        (b"HTTP/1.1 500 Internal Server Error\r\n\r\n", True, False),
        (b'HTTP/1.1 200 OK\r\n\r\n{"reply":', True, False),
        (b"HTTP/1.1 200 OK\r\n\r\n3", True, False),
    ],
)
async def test_what_a_host_may_have_taken_it_may_do(
    forwarder: Forwarder, answer: bytes, taken: bool, is_away: bool
) -> None:
    assert isinstance(await unanswered(forwarder, answer, taken=taken, is_away=is_away), HostSilent)
    assert len(forwarder.keeper.unreachable_for) == 1  # so that it is left alone for a while


@pytest.mark.parametrize(("status", "is_refusal"), [(b"404 Not Found", True), (b"503 Service Unavailable", False)])
async def test_a_host_that_refuses_a_question_has_done_nothing(
    forwarder: Forwarder, status: bytes, is_refusal: bool
) -> None:
    failure = await unanswered(forwarder, b"HTTP/1.1 " + status + b"\r\n\r\n", taken=True)
    assert (isinstance(failure, HostUnreachable), failure.is_refusal) == (False, is_refusal)


async def test_a_view_that_another_host_has_not_opened_it_opens_for_nobody_later(forwarder: Forwarder) -> None:
    async def serve(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        there = OtherHost(HostRecord("there", ("127.0.0.1", server.sockets[0].getsockname()[1])), 0.0)
        with pytest.raises(HandoffFailure):
            async with forwarder.forwarding.view(there, {"view": {}}):
                pass
    assert forwarder.records.forwards == {}


@pytest.mark.parametrize(
    ("failure", "begins"),
    [
        (HostUnreachable("it is silent"), "host there was not asked: "),
        (HostSilent("it is silent"), "host there may have been asked: look before you repeat it: "),
    ],
)
async def test_an_operator_hears_whether_a_host_may_do_what_it_has_not_answered(
    failure: HandoffFailure, begins: str
) -> None:
    grid = mock.Mock()
    grid.hosts.name, grid.hosts.table.others = "here", {"there": HOST}
    grid.gateway.forwarding.ask_proxy = mock.AsyncMock(side_effect=failure)
    with pytest.raises(Refusal) as caught:
        await ask_master(grid, "there", "scale", {"chromium": 2})
    assert (caught.value.status, caught.value.error) == (503, f"{begins}it is silent")


# From another host


async def test_a_client_is_taken_once_with_times_of_this_host(forwarder: Forwarder) -> None:
    request = {**REQUEST, "lease": ["l1", "secret"], "left": {"until": 5.0}}
    forwarder.records.forwards[ID] = {"worker": "w1", "session": "s1", "request": request, "left": {"until": 9.0}}
    before = time.monotonic()
    forwarded = await forwarder.from_others.take(ID)
    assert (forwarded.worker_id, forwarded.session_id, forwarded.early) == ("w1", "s1", "hello")
    assert forwarded.ids == {"lease": "l1"}
    assert before + 9 <= forwarded.until <= time.monotonic() + 9
    assert before + 5 <= forwarded.request["until"] <= time.monotonic() + 5
    with pytest.raises(Refusal) as caught:
        await forwarder.from_others.take(ID)
    assert caught.value.status == 404


@pytest.mark.parametrize("forward", [{}, {"worker": "w1", "session": "s1", "request": 3, "left": {"until": 1}}])
async def test_what_makes_no_sense_is_refused(forwarder: Forwarder, forward: dict[str, Any]) -> None:
    forwarder.records.forwards[ID] = forward
    with pytest.raises(Refusal) as caught:
        await forwarder.from_others.take(ID)
    assert caught.value.status == 400


async def test_a_path_without_an_id_asks_redis_nothing(forwarder: Forwarder) -> None:
    forwarder.records.is_away = True
    with pytest.raises(Refusal) as caught:
        await forwarder.from_others.take("")
    assert caught.value.status == 404
    with pytest.raises(Refusal) as caught:
        await forwarder.from_others.take(ID)
    assert caught.value.status == 503


async def test_a_question_is_passed_on_with_its_answer_or_why_there_is_none(forwarder: Forwarder) -> None:
    asked = {"worker": "w1", "ask": {"do": "take", "id": "l1", "left": {"deadline": 2.0}}, "left": {"until": 4.0}}
    forwarder.records.forwards[ID] = dict(asked)
    before = time.monotonic()
    assert await forwarder.from_others.answer(await forwarder.from_others.taken(ID)) == {"refused": None}
    ((worker_id, question, until),) = forwarder.workers.asked
    assert (worker_id, question["do"], question["id"]) == ("w1", "take", "l1")
    assert before + 2 <= question["deadline"] <= time.monotonic() + 2
    assert before + 4 <= until <= time.monotonic() + 4
    forwarder.workers.answer = HandoffFailure("the worker is gone", detail="x")
    forwarder.records.forwards[ID] = dict(asked)
    told = await forwarder.from_others.answer(await forwarder.from_others.taken(ID))
    assert told == {"failure": {"refused": "the worker is gone", "isRefusal": False, "ended": None, "detail": "x"}}
