"""The channel against a scripted other side: a bare socket that plays Node. No process."""

import asyncio
import gc
import json
import os
import socket
import struct
from collections.abc import AsyncIterator, Iterator

import pytest
import uvloop

from pwgrid.common.errors import BrowserServerGone
from pwgrid.worker.browser.node_link import Message, NodeLink
from tests.support.descriptors import no_descriptor_is_free

BOUND_S = 10.0


class FakeNode:
    """The other end of the channel, read and written by hand."""

    def __init__(self) -> None:
        ours, self.sock = socket.socketpair()
        self.sock.settimeout(BOUND_S)
        self.said: list[Message] = []
        self.ends = 0
        self.channel = NodeLink(ours, self.said.append, self._count_end)
        self._rest = b""

    def _count_end(self) -> None:
        self.ends += 1

    async def say(self, raw: bytes) -> None:
        """Sends raw bytes and lets the channel read them."""
        self.sock.sendall(raw)
        for _ in range(5):
            await asyncio.sleep(0)

    async def acknowledge(self, count: int = 1) -> None:
        await self.say(b'{"cmd":"NODE_HANDLE_ACK"}\n' * count)

    def read(self) -> tuple[list[Message], list[int]]:
        """One recvmsg, as Node does it: the lines that it completes and the fds that came with it."""
        data, fds, _, _ = socket.recv_fds(self.sock, 65536, 16)
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [json.loads(line) for line in lines], fds

    async def read_all(self, lines: int) -> list[Message]:
        """Reads until so many lines are complete, letting the channel write meanwhile."""
        messages: list[Message] = []
        self.sock.setblocking(False)
        async with asyncio.timeout(BOUND_S):
            while len(messages) < lines:
                try:
                    more, fds = self.read()
                except BlockingIOError:
                    await asyncio.sleep(0)
                    continue
                messages += more
                for fd in fds:
                    os.close(fd)
        return messages


@pytest.fixture
async def node() -> AsyncIterator[FakeNode]:
    fake = FakeNode()
    yield fake
    fake.channel.close()
    fake.sock.close()


@pytest.fixture
def some_socket() -> Iterator[socket.socket]:
    with socket.socket() as one:
        yield one


def open_fds() -> int:
    gc.collect()  # what an earlier test has left to the collector must not be closed between two counts
    return len(os.listdir("/proc/self/fd"))


async def test_a_message_is_one_json_line(node: FakeNode) -> None:
    node.channel.send({"do": "ack", "idx": 7})
    assert node.sock.recv(100) == b'{"do":"ack","idx":7}\n'


async def test_a_line_in_three_pieces_is_one_message(node: FakeNode) -> None:
    for piece in (b'{"say":', b'"gone"', b"}\n"):
        assert node.said == []
        await node.say(piece)
    assert node.said == [{"say": "gone"}]


async def test_half_a_line_and_lines_that_are_no_messages_are_skipped(node: FakeNode) -> None:
    await node.say(b'1,"session":"x"}\n[1]\n\xff\xfe\n{"say":"live"}\n')
    assert node.said == [{"say": "live"}]


async def test_a_socket_travels_with_its_line_and_is_done_at_the_answer(node: FakeNode) -> None:
    client, handed = socket.socketpair()
    future = node.channel.send_handle({"session": "a", "head": "GET / HTTP/1.1\r\n\xe9"}, handed)
    (message,), (fd,) = node.read()
    assert message["cmd"] == "NODE_HANDLE"
    assert message["type"] == "net.Socket"
    assert message["msg"] == {"session": "a", "head": "GET / HTTP/1.1\r\n\xe9"}
    with socket.socket(fileno=fd) as received, client:
        received.send(b"it is the same socket")
        assert client.recv(100) == b"it is the same socket"
    assert not future.done()
    await node.acknowledge()
    await future
    handed.close()


async def test_answers_belong_to_sockets_in_their_order(node: FakeNode, some_socket: socket.socket) -> None:
    first, second, third = (node.channel.send_handle({"session": name}, some_socket) for name in "abc")
    await node.say(b'{"cmd":"NODE_HANDLE_ACK"}\n{"cmd":"NODE_HANDLE_NACK"}\n')
    assert first.result() is None
    with pytest.raises(BrowserServerGone, match="did not get the socket"):
        second.result()
    assert not third.done()
    await node.acknowledge()
    assert third.done()


async def test_an_answer_meant_for_a_predecessor_is_ignored(node: FakeNode, some_socket: socket.socket) -> None:
    await node.acknowledge(3)
    future = node.channel.send_handle({"session": "a"}, some_socket)
    assert not future.done()
    assert node.said == []


async def test_sockets_are_pipelined(node: FakeNode, some_socket: socket.socket) -> None:
    for name in "abc":
        node.channel.send_handle({"session": name}, some_socket)
    seen = []
    for _ in range(3):
        messages, fds = node.read()
        seen += [message["msg"]["session"] for message in messages]
        assert len(fds) == 1
        os.close(fds[0])
    assert seen == ["a", "b", "c"]


async def test_a_line_that_node_may_read_in_pieces_bars_later_sockets_until_it_is_answered(
    node: FakeNode, some_socket: socket.socket
) -> None:
    long = node.channel.send_handle({"session": "long", "head": "x" * 40_000}, some_socket)
    held = node.channel.send_handle({"session": "held"}, some_socket)
    node.channel.send({"do": "close", "session": "held"})
    (message,) = await node.read_all(1)
    assert message["msg"]["session"] == "long"
    node.sock.setblocking(False)
    with pytest.raises(BlockingIOError):
        node.read()
    await node.acknowledge()
    assert long.done()
    first, second = await node.read_all(2)
    assert first["msg"]["session"] == "held"
    assert second == {"do": "close", "session": "held"}
    await node.acknowledge()
    assert held.done()


async def test_much_text_between_two_sockets_bars_the_third(node: FakeNode, some_socket: socket.socket) -> None:
    for _ in range(5):
        node.channel.send({"do": "close", "reason": "x" * 8000})
    node.channel.send_handle({"session": "second"}, some_socket)
    node.channel.send_handle({"session": "third"}, some_socket)
    assert "unsent=1" in repr(node.channel)


async def test_everything_arrives_in_order_when_the_other_side_reads_late(
    node: FakeNode, some_socket: socket.socket
) -> None:
    before = open_fds()
    for number in range(3000):
        node.channel.send({"do": "close", "n": number, "reason": "x" * 100})
    future = node.channel.send_handle({"session": "a"}, some_socket)
    assert "unsent=0" not in repr(node.channel)
    messages = await node.read_all(3001)
    assert [message.get("n") for message in messages] == [*range(3000), None]
    await node.acknowledge()
    assert future.done()
    assert open_fds() == before


async def test_sockets_wait_for_their_turn_also_where_no_descriptor_is_free(
    node: FakeNode, some_socket: socket.socket
) -> None:
    with no_descriptor_is_free():
        long = node.channel.send_handle({"session": "long", "head": "x" * 40_000}, some_socket)
        held = node.channel.send_handle({"session": "held"}, some_socket)
    await node.read_all(1)
    await node.acknowledge()
    assert (await node.read_all(1))[0]["msg"]["session"] == "held"
    await node.acknowledge()
    assert (long.done(), held.done()) == (True, True)


async def test_a_socket_waits_for_room_also_where_no_descriptor_is_free(
    node: FakeNode, some_socket: socket.socket
) -> None:
    lines = 0
    while "unsent=0" in repr(node.channel):
        node.channel.send({"do": "close", "reason": "x" * 1000})
        lines += 1
    with no_descriptor_is_free():
        waits = node.channel.send_handle({"session": "waits"}, some_socket)
    later = node.channel.send_handle({"session": "later"}, some_socket)
    assert (await node.read_all(lines + 1))[-1]["msg"]["session"] == "waits"
    await node.acknowledge()
    assert (waits.done(), later.done()) == (True, False)
    assert (await node.read_all(1))[0]["msg"]["session"] == "later"
    await node.acknowledge()
    assert later.done()


async def test_the_end_of_the_other_side_fails_what_is_pending_and_is_told_once(
    node: FakeNode, some_socket: socket.socket
) -> None:
    before = open_fds()
    sent = node.channel.send_handle({"session": "long", "head": "x" * 40_000}, some_socket)
    held = node.channel.send_handle({"session": "held"}, some_socket)
    node.sock.close()
    async with asyncio.timeout(BOUND_S):
        for future in (sent, held):
            with pytest.raises(BrowserServerGone):
                await future
    assert node.ends == 1
    with pytest.raises(BrowserServerGone):
        await node.channel.send_handle({"session": "late"}, some_socket)
    node.channel.send({"do": "stop"})
    assert node.ends == 1
    assert open_fds() == before - 2  # both ends of the channel; no copy of a socket is left


async def test_what_was_said_before_the_end_is_heard(node: FakeNode) -> None:
    node.sock.sendall(b'{"say":"closed"}\n{"say":"gone"}\n')
    node.sock.close()
    node.channel.drain()
    assert node.said == [{"say": "closed"}, {"say": "gone"}]
    assert node.ends == 1


async def test_what_was_said_before_the_end_is_heard_although_a_write_meets_it_first(
    node: FakeNode, some_socket: socket.socket
) -> None:
    acknowledged = node.channel.send_handle({"session": "a"}, some_socket)
    node.sock.sendall(b'{"cmd":"NODE_HANDLE_ACK"}\n{"say":"closed"}\n')
    node.sock.close()
    node.channel.send({"do": "ack", "idx": 1})
    too_late = node.channel.send_handle({"session": "b"}, some_socket)
    async with asyncio.timeout(BOUND_S):
        await acknowledged
        with pytest.raises(BrowserServerGone):
            await too_late
    assert node.said == [{"say": "closed"}]
    assert node.ends == 1


async def test_lines_stay_in_order_where_an_answer_among_them_has_a_write_meet_the_end(
    node: FakeNode, some_socket: socket.socket
) -> None:
    node.channel.send_handle({"session": "long", "head": "x" * 40_000}, some_socket)
    held = node.channel.send_handle({"session": "held"}, some_socket)
    await node.read_all(1)
    said = [{"say": "closed", "n": number} for number in range(4000)]  # more than is read at once
    lines = [json.dumps(each).encode() + b"\n" for each in said]
    node.sock.setblocking(False)
    node.sock.sendall(b"".join([lines[0], b'{"cmd":"NODE_HANDLE_ACK"}\n', *lines[1:]]))
    node.sock.close()
    async with asyncio.timeout(BOUND_S):
        with pytest.raises(BrowserServerGone):
            await held
    assert node.said == said
    assert node.ends == 1


def test_nothing_waits_to_write_once_the_last_write_has_met_the_end() -> None:
    """On uvloop, as workers run: a socket that something waits for is not closed there."""

    async def the_last_write_meets_the_end() -> None:
        before = open_fds()
        node = FakeNode()
        while "unsent=0" in repr(node.channel):
            node.channel.send({"do": "close", "reason": "x" * 1000})
        assert "unsent=1" in repr(node.channel)
        node.sock.sendall(b'{"say":"gone"}\n')  # this is read first, then the write fails, then the end is read
        node.sock.close()
        async with asyncio.timeout(BOUND_S):
            while not node.ends:
                await asyncio.sleep(0)
        assert open_fds() == before

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(the_last_write_meets_the_end())


async def test_a_reset_by_the_other_side_is_an_end(node: FakeNode) -> None:
    node.channel.send({"do": "ack", "idx": 1})  # unread data makes the close a reset
    node.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    node.sock.close()
    node.channel.drain()
    assert node.ends == 1


async def test_closing_is_silent_and_idempotent(node: FakeNode, some_socket: socket.socket) -> None:
    future = node.channel.send_handle({"session": "a"}, some_socket)
    node.channel.close()
    node.channel.close()
    with pytest.raises(BrowserServerGone):
        await future
    assert node.ends == 0
