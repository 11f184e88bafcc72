"""The child's side of the control link on real sockets, with a master that dies, comes back, stalls or babbles."""

from __future__ import annotations

import asyncio
import contextlib
import selectors
import socket
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvloop
from structlog.testing import capture_logs

from pwgrid.control import child_side
from pwgrid.control.child_side import ChildSide
from pwgrid.control.exactly_once import Link
from pwgrid.control.frames import MAX_FRAME_BYTES, Frame, encode
from tests.support.descriptors import no_descriptor_is_free

PATIENCE_S = 30.0
"""Bounds a failure; nothing waits for it to pass."""


class FakeMaster:
    """The master's side: the protocol is real, everything else is the test's to say."""

    def __init__(self, link: Link | None = None, lost_threshold_s: float = 30) -> None:
        self.link = link or Link("master", "a1b2c3d4")
        self.lost_threshold_s = lost_threshold_s
        self.received: asyncio.Queue[Frame] = asyncio.Queue()
        self.sock: socket.socket | None = None

    def attach(self, sock: socket.socket, first: bytes | None = None) -> None:
        self.sock = sock
        sock.setblocking(False)
        self.link.connect({"workerId": "a1b2c3d4", "lostThresholdS": self.lost_threshold_s})
        if first is not None:
            self.take(first)
        asyncio.get_running_loop().add_reader(sock, self.on_readable)
        self.flush()

    def on_readable(self) -> None:
        assert self.sock is not None
        with contextlib.suppress(ConnectionResetError):  # the child has not read all: what it said is still to be read
            if packet := self.sock.recv(MAX_FRAME_BYTES):
                self.take(packet)
            else:
                self.die()

    def take(self, packet: bytes) -> None:
        if (frame := self.link.receive(packet)) is not None:
            self.received.put_nowait(frame)
        self.flush()

    def flush(self) -> None:
        assert self.sock is not None
        while (packet := self.link.next_packet()) is not None:
            try:
                self.sock.send(packet)
            except OSError:  # it is gone; what it said before is still to be read
                return
            self.link.sent()

    def send(self, name: str, data: Frame) -> None:
        self.link.send(name, data)
        if self.sock is not None:
            self.flush()

    def die(self) -> None:
        if self.sock is not None:
            asyncio.get_running_loop().remove_reader(self.sock)
            self.sock.close()
            self.link.disconnect()
            self.sock = None

    async def next(self, kind: str) -> Frame:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                frame = await self.received.get()
                if frame["t"] == kind:
                    return frame


def event(idx: int, name: str, data: Frame) -> Frame:
    return {"t": "event", "idx": idx, "name": name, "data": data}


class Child:
    """A ChildSide and what it was told."""

    def __init__(self, sock: socket.socket, control_path: Path, lost_threshold_s: float = 30.0) -> None:
        self.commands: asyncio.Queue[tuple[str, Frame]] = asyncio.Queue()
        self.states: asyncio.Queue[Frame] = asyncio.Queue()
        self.lost, self.found = asyncio.Event(), asyncio.Event()
        self.times_lost = 0
        self.client = ChildSide(
            sock=sock,
            control_path=control_path,
            hello=lambda: {"name": "a1b2c3d4", "role": "worker", "pid": 1, "slots": 5, "version": "0"},
            on_command=lambda name, data: self.commands.put_nowait((name, data)),
            on_state=self.states.put_nowait,
            ping_data=lambda: {"status": "available", "active": 2},
            lost_threshold_s=lost_threshold_s,
            on_lost=self.on_lost,
            on_found=lambda: self.found.set(),
        )

    def on_lost(self) -> None:
        self.times_lost += 1
        self.lost.set()


@pytest.fixture
def control_path() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="pg-", dir="/tmp") as directory:
        yield Path(directory) / "control.sock"


@contextlib.asynccontextmanager
async def running(child: Child) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(child.client.run())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait([task])


@contextlib.asynccontextmanager
async def listening(path: Path) -> AsyncIterator[asyncio.Queue[socket.socket]]:
    """The control socket of a new master: its connections, in order."""
    connections: asyncio.Queue[socket.socket] = asyncio.Queue()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.setblocking(False)
        listener.bind(str(path))
        listener.listen()
        asyncio.get_running_loop().add_reader(listener, lambda: connections.put_nowait(listener.accept()[0]))
        try:
            yield connections
        finally:
            asyncio.get_running_loop().remove_reader(listener)
            while not connections.empty():
                connections.get_nowait().close()


def pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


async def is_connected(child: Child, *, wanted: bool = True) -> None:
    """Returns once it is, or is not."""
    async with asyncio.timeout(PATIENCE_S):
        while child.client.is_connected is not wanted:
            await asyncio.sleep(0)


async def soon(awaitable: Any) -> Any:
    async with asyncio.timeout(PATIENCE_S):
        return await awaitable


async def test_it_greets_tells_and_is_told(control_path: Path) -> None:
    ours, theirs = pair()
    master, child = FakeMaster(), Child(theirs, control_path)
    child.client.event("launched", {"nodePid": 7})
    async with running(child) as task:
        master.attach(ours)
        opened = await master.next("init")
        assert (opened["name"], opened["slots"], opened["lastEventIdx"]) == ("a1b2c3d4", 5, 1)
        assert await master.next("event") == event(1, "launched", {"nodePid": 7})
        assert await master.next("state") == {"t": "state", "data": {"status": "available", "active": 2}}
        child.client.push_state({"active": 3})
        assert await master.next("state") == {"t": "state", "data": {"active": 3}}
        master.send("drain", {"reason": "memory"})
        assert await soon(child.commands.get()) == ("drain", {"reason": "memory"})
        master.link.state({"stopping": True})
        master.flush()
        assert await soon(child.states.get()) == {"stopping": True}
        await child.client.close("stopped")
        assert (await master.next("close"))["reason"] == "stopped"
        await soon(task)
        assert not child.lost.is_set()
    master.die()


async def test_what_was_said_before_a_close_arrives_even_when_nothing_was_greeted_yet(control_path: Path) -> None:
    ours, theirs = pair()
    master, child = FakeMaster(), Child(theirs, control_path)
    async with running(child) as task:
        child.client.event("failed", {"reason": "broken"})
        closing = asyncio.create_task(child.client.close("failed"))
        master.attach(ours)
        assert await master.next("event") == event(1, "failed", {"reason": "broken"})
        assert (await master.next("close"))["reason"] == "failed"
        await soon(closing)
        await soon(task)
    master.die()


@pytest.mark.parametrize(("lost_threshold_s", "ping_s"), [(30, 3), (9, 3), (5, 5 / 3), (0.6, 0.2)])
async def test_a_healthy_child_is_not_silent_for_a_whole_threshold(lost_threshold_s: float, ping_s: float) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        assert Child(theirs, Path("nowhere"), lost_threshold_s).client.ping_s == pytest.approx(ping_s)


async def test_what_a_master_has_said_last_is_heard_though_it_did_not_read_all_before_its_end(
    control_path: Path,
) -> None:
    ours, theirs = pair()
    master, child = FakeMaster(), Child(theirs, control_path)
    async with running(child):
        master.attach(ours)
        child.client.event("launched", {"nodePid": 7})
        await master.next("event")  # so the link is open, and what follows is written at once
        child.client.event("spare", {})
        master.send("drain", {"reason": "memory"})
        master.die()
        assert await soon(child.commands.get()) == ("drain", {"reason": "memory"})


async def test_it_outlives_its_master_and_goes_on_with_the_next_connection(control_path: Path) -> None:
    ours, theirs = pair()
    master, child = FakeMaster(), Child(theirs, control_path)
    async with running(child), listening(control_path) as connections:
        master.attach(ours)
        await master.next("init")
        child.client.event("launched", {"n": 1})
        await master.next("event")
        master.die()
        child.client.event("draining", {"n": 2})
        master.send("drain", {"n": 1})
        master.attach(await soon(connections.get()))
        assert (await master.next("init"))["lastEventIdx"] == 2
        assert await master.next("event") == event(2, "draining", {"n": 2})
        assert await soon(child.commands.get()) == ("drain", {"n": 1})
        assert not child.lost.is_set()
        master.die()


async def test_a_master_that_leaves_or_executes_new_code_is_no_warning(control_path: Path) -> None:
    ours, theirs = pair()
    master, child = FakeMaster(), Child(theirs, control_path)
    with capture_logs() as logs:
        async with running(child), listening(control_path) as connections:
            master.attach(ours)
            await master.next("init")
            master.die()
            with await soon(connections.get()) as second:
                second.send(b"no frame")
            master.attach(await soon(connections.get()))
            await master.next("init")
            master.die()
    levels = [each["log_level"] for each in logs if each["event"] == "control_link_down"]
    assert levels[:2] == ["info", "warning"]


async def test_it_comes_to_the_next_master_although_no_descriptor_was_free_for_a_while(control_path: Path) -> None:
    ours, theirs = pair()
    master, child = FakeMaster(), Child(theirs, control_path)
    async with running(child), listening(control_path) as connections:
        master.attach(ours)
        await master.next("init")
        master.die()
        await is_connected(child, wanted=False)
        with no_descriptor_is_free():
            tries = child.client._attempts
            async with asyncio.timeout(PATIENCE_S):
                while child.client._attempts < tries + 2:
                    await asyncio.sleep(0)
        master.attach(await soon(connections.get()))
        await master.next("init")
        master.die()


def test_what_a_master_said_last_is_heard_although_it_left_something_unread(
    control_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On uvloop, as children run: it calls a reader once and no more when the peer of such a socket is gone."""
    monkeypatch.setattr(child_side, "_PACKETS_A_TURN", 1)

    async def the_master_says_two_things_and_dies() -> None:
        ours, theirs = pair()
        master, child = FakeMaster(), Child(theirs, control_path)
        async with running(child), listening(control_path) as connections:
            master.attach(ours)
            await master.next("init")
            master.send("serve", {})
            await soon(child.commands.get())
            child.client.push_state({"active": 3})
            master.send("drain", {"n": 1})
            master.send("drain", {"n": 2})
            master.die()
            assert await soon(child.commands.get()) == ("drain", {"n": 1})
            assert await soon(child.commands.get()) == ("drain", {"n": 2})
            (await soon(connections.get())).close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(the_master_says_two_things_and_dies())


async def test_a_master_that_knows_nothing_of_it_can_adopt_it(control_path: Path) -> None:
    ours, theirs = pair()
    first, child = FakeMaster(), Child(theirs, control_path)
    async with running(child), listening(control_path) as connections:
        first.attach(ours)
        first.send("drain", {"n": 1})
        await soon(child.commands.get())
        child.client.event("launched", {"n": 1})
        await first.next("event")
        first.die()
        child.client.event("draining", {"n": 2})
        sock = await soon(connections.get())
        sock.setblocking(False)
        packet = await soon(asyncio.get_running_loop().sock_recv(sock, MAX_FRAME_BYTES))
        second = FakeMaster(Link("master", "a1b2c3d4", adopts=True))
        second.attach(sock, packet)
        # Only what the first one never acknowledged is news to the second one.
        told = [await second.next("event")]
        while told[-1]["name"] != "draining":
            told.append(await second.next("event"))
        everything = [event(1, "launched", {"n": 1}), event(2, "draining", {"n": 2})]
        assert told in (everything, everything[1:])
        second.send("drain", {"n": 2})
        assert await soon(child.commands.get()) == ("drain", {"n": 2})
        second.die()


async def test_it_gives_up_once_each_time_that_no_master_comes(control_path: Path) -> None:
    ours, theirs = pair()
    child = Child(theirs, control_path, lost_threshold_s=0.05)
    async with running(child) as task:
        ours.close()
        await soon(child.lost.wait())
        # It still takes a master that comes late: nobody else could watch its drain.
        async with listening(control_path) as connections:
            master = FakeMaster(lost_threshold_s=0.05)
            master.attach(await soon(connections.get()))
            await master.next("init")
            master.send("drain", {"n": 1})
            await soon(child.commands.get())
            assert (child.times_lost, child.client.is_lost, child.found.is_set()) == (1, False, True)
            child.lost.clear()
            master.die()
            second = await soon(connections.get())
            second.close()
        await soon(child.lost.wait())
        assert child.times_lost == 2
        assert not task.done()


async def test_after_a_detach_it_waits_for_the_grace_alone_and_for_another_master_as_long_as_ever(
    control_path: Path,
) -> None:
    ours, theirs = pair()
    master, child = FakeMaster(), Child(theirs, control_path)
    async with running(child):
        master.attach(ours)
        await master.next("init")
        master.send("detached", {"graceS": 0.05})
        master.send("drain", {"n": 1})
        assert await soon(child.commands.get()) == ("drain", {"n": 1})  # the other one is about the link itself
        master.die()
        await soon(child.lost.wait())
        async with listening(control_path) as connections:
            second = FakeMaster(Link("master", "a1b2c3d4", adopts=True))
            second.attach(await soon(connections.get()))
            await second.next("init")
            second.die()
            (await soon(connections.get())).close()
        assert child.times_lost == 1


class JumpingTime(asyncio.SelectorEventLoop):
    """A loop whose time stands still while there is something to do, and jumps to the next timer otherwise."""

    now_s = 1000.0

    def __init__(self) -> None:
        selector = selectors.DefaultSelector()
        super().__init__(selector)
        select = selector.select

        def jump(timeout: float | None = None) -> Any:
            found = select(0)
            if not found and timeout is not None:
                self.now_s += timeout
            return found

        selector.select = jump  # type: ignore[method-assign]

    def time(self) -> float:
        return self.now_s


@pytest.mark.parametrize("grace_s", [5.0, None])
def test_without_a_master_it_waits_exactly_as_long_as_it_was_told(
    control_path: Path, monkeypatch: pytest.MonkeyPatch, grace_s: float | None
) -> None:
    """The time after a detach, else the lost threshold."""
    loop = JumpingTime()
    monkeypatch.setattr(child_side.time, "monotonic", loop.time)

    async def waits() -> float:
        ours, theirs = pair()
        master, child = FakeMaster(lost_threshold_s=30), Child(theirs, control_path)
        async with running(child):
            master.attach(ours)
            await master.next("init")
            if grace_s is not None:
                master.send("detached", {"graceS": grace_s})
            master.send("drain", {})
            await child.commands.get()
            master.die()
            await is_connected(child, wanted=False)
            left_at = loop.time()
            await child.lost.wait()
            return loop.time() - left_at

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        assert runner.run(waits()) == pytest.approx(grace_s or 30.0, abs=0.01)


async def test_a_master_that_keeps_the_connection_and_answers_nothing_is_lost_until_it_speaks(
    control_path: Path,
) -> None:
    ours, theirs = pair()
    master, child = FakeMaster(lost_threshold_s=0.2), Child(theirs, control_path, lost_threshold_s=0.2)
    async with running(child) as task:
        master.attach(ours)
        await master.next("init")
        asyncio.get_running_loop().remove_reader(ours)  # it is frozen
        await soon(child.lost.wait())
        assert child.client.is_connected
        assert child.client.is_lost
        assert not child.found.is_set()
        asyncio.get_running_loop().add_reader(ours, master.on_readable)
        await soon(child.found.wait())
        assert not child.client.is_lost
        assert child.times_lost == 1
        master.send("drain", {"n": 1})  # it is the same connection
        assert await soon(child.commands.get()) == ("drain", {"n": 1})
        assert not task.done()
        master.die()


async def test_the_lost_threshold_is_the_one_that_the_master_sends(control_path: Path) -> None:
    """The configuration that a child was forked with may be older than that of its master."""
    ours, theirs = pair()
    master, child = FakeMaster(lost_threshold_s=0.2), Child(theirs, control_path, lost_threshold_s=3600)
    async with running(child):
        master.attach(ours)
        await master.next("init")
        assert child.client.ping_s == 3.0  # until it has heard the greeting
        asyncio.get_running_loop().remove_reader(ours)
        await soon(child.lost.wait())
        assert child.client.ping_s < 0.1
        master.die()


async def test_a_master_that_dies_of_its_freeze_leaves_time_for_another_one(control_path: Path) -> None:
    ours, theirs = pair()
    master, child = FakeMaster(lost_threshold_s=0.2), Child(theirs, control_path, lost_threshold_s=0.2)
    async with running(child):
        master.attach(ours)
        await master.next("init")
        asyncio.get_running_loop().remove_reader(ours)
        await soon(child.lost.wait())
        child.lost.clear()
        master.die()
        await soon(child.lost.wait())
        assert not child.client.is_connected
        assert child.times_lost == 2


async def test_who_gives_up_after_the_master_was_lost_is_not_told_again(control_path: Path) -> None:
    ours, theirs = pair()
    child = Child(theirs, control_path, lost_threshold_s=0.05)
    async with running(child):
        await is_connected(child)
        assert not child.client.give_up()
        assert child.times_lost == 0
        ours.close()
        await soon(child.lost.wait())
        assert child.client.give_up()
        assert child.times_lost == 1


async def test_who_gives_up_is_told_at_once_and_once(control_path: Path) -> None:
    ours, theirs = pair()
    child = Child(theirs, control_path, lost_threshold_s=3600)
    async with running(child):
        await is_connected(child)
        ours.close()
        await is_connected(child, wanted=False)
        assert [child.client.give_up() for _ in range(2)] == [True, True]
        assert (child.times_lost, child.client.is_lost) == (1, True)


async def test_who_gives_up_after_a_frozen_master_has_died_waits_for_no_other_one(control_path: Path) -> None:
    ours, theirs = pair()
    master, child = FakeMaster(lost_threshold_s=0.2), Child(theirs, control_path, lost_threshold_s=0.2)
    async with running(child):
        master.attach(ours)
        await master.next("init")
        asyncio.get_running_loop().remove_reader(ours)
        await soon(child.lost.wait())
        child.client.lost_threshold_s = 3600
        master.die()
        await is_connected(child, wanted=False)
        assert child.client.give_up()
        assert child.times_lost == 2
        assert child.client.give_up()
        assert child.times_lost == 2


async def test_a_connection_that_ends_before_its_greeting_is_no_new_loss(control_path: Path) -> None:
    ours, theirs = pair()
    child = Child(theirs, control_path, lost_threshold_s=0.05)
    async with running(child):
        ours.close()
        await soon(child.lost.wait())
        child.lost.clear()
        async with listening(control_path) as connections:
            (await soon(connections.get())).close()
            (await soon(connections.get())).close()  # the child has seen the end of the first
            assert "silence" not in child.client._timers  # or it would count again from here on
        assert child.times_lost == 1


async def test_a_link_that_the_master_closes_for_good_is_lost_at_once_and_not_resumed(control_path: Path) -> None:
    ours, theirs = pair()
    child = Child(theirs, control_path)
    async with running(child) as task, listening(control_path) as connections:
        ours.send(encode({"t": "close", "reason": "this master has no such child"}))
        await soon(child.lost.wait())
        await soon(task)
        assert connections.empty()
    ours.close()


async def test_a_master_that_babbles_loses_that_connection_only(control_path: Path) -> None:
    ours, theirs = pair()
    master, child = FakeMaster(), Child(theirs, control_path)
    async with running(child), listening(control_path) as connections:
        master.attach(ours)
        await master.next("init")
        ours.send(b'{"t":"command","idx":9,"name":"drain","data":{}}')
        master.die()
        master.attach(await soon(connections.get()))
        await master.next("init")
        assert child.commands.empty()
        master.die()


async def test_a_master_that_reads_nothing_blocks_nobody_and_gets_everything_later(control_path: Path) -> None:
    ours, theirs = pair()
    theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    master, child = FakeMaster(), Child(theirs, control_path)
    async with running(child):
        master.attach(ours)
        await master.next("init")
        asyncio.get_running_loop().remove_reader(ours)
        for n in range(1000):
            child.client.event("drain_asked", {"n": n})
            child.client.push_state({"active": n})
        asyncio.get_running_loop().add_reader(ours, master.on_readable)
        assert [(await master.next("event"))["data"]["n"] for _ in range(1000)] == list(range(1000))
        seen = await master.next("state")
        while seen != {"t": "state", "data": {"active": 999}}:
            seen = await master.next("state")
        master.die()


async def test_a_callback_that_fails_is_told_to_whoever_runs_the_client(control_path: Path) -> None:
    ours, theirs = pair()
    master, child = FakeMaster(), Child(theirs, control_path)

    def broken(name: str, data: Frame) -> None:
        raise RuntimeError(f"cannot {name}")

    child.client.on_command = broken
    async with running(child) as task:
        master.attach(ours)
        master.send("drain", {})
        with pytest.raises(RuntimeError, match="cannot drain"):
            await soon(task)
    master.die()
