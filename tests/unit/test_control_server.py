"""The master's control socket, over real sockets and a real loop."""

import contextlib
import errno
import os
import socket
from pathlib import Path

from structlog.testing import capture_logs

from pwgrid.common.selectors_loop import Callback, Loop
from pwgrid.control.frames import Frame, decode, encode
from pwgrid.control.server import MAX_VISITORS, ControlServer, Reconnect
from tests.support.descriptors import no_descriptor_is_free

PATIENCE_S = 10.0
"""Bounds a failure; nothing waits for it to pass."""


class CountingLoop(Loop):
    """Counts how often each descriptor was found ready."""

    def __init__(self) -> None:
        super().__init__()
        self.turns: dict[int, int] = {}

    def add(self, fd: int, handler: Callback) -> None:
        def counted() -> None:
            self.turns[fd] = self.turns.get(fd, 0) + 1
            handler()

        super().add(fd, counted)


def asked(loop: Loop, visitor: socket.socket, name: str, data: Frame) -> Frame:
    """The answer to a request."""
    visitor.send(encode({"t": "request", "name": name, "data": data}))
    return answer(loop, visitor)


def answer(loop: Loop, visitor: socket.socket) -> Frame:
    visitor.setblocking(False)
    deadline = loop.now() + PATIENCE_S
    loop.call_at(deadline, lambda: None)
    while loop.now() < deadline:
        try:
            return decode(visitor.recv(1 << 20))
        except BlockingIOError:
            loop.wait()
    raise AssertionError("there was no answer")


def test_without_a_free_descriptor_the_loop_waits_and_who_has_connected_is_answered_later(tmp_path: Path) -> None:
    loop = CountingLoop()
    server = ControlServer(loop, tmp_path / "s", {"status": lambda data: data}, lambda _reconnect: False)
    server.open()
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as visitor, capture_logs() as logs:
            visitor.connect(str(tmp_path / "s"))
            visitor.send(encode({"t": "request", "name": "status", "data": {"ready": True}}))
            fired = 0
            with no_descriptor_is_free():
                while fired < 2 and loop.turns.get(server.fd, 0) < 10:
                    loop.wait()
                    fired += loop.has_fired
            assert loop.turns[server.fd] == 2  # one try for each time that it has waited
            assert answer(loop, visitor) == {"t": "reply", "data": {"ready": True}}
        failures = [line for line in logs if line["event"] == "control_accept_failed"]
        assert [line["reason"] for line in failures] == ["Too many open files"]
    finally:
        server.close()


def test_a_server_that_is_closed_while_it_waits_for_descriptors_accepts_no_more(tmp_path: Path) -> None:
    loop = CountingLoop()
    server = ControlServer(loop, tmp_path / "s", {}, lambda _reconnect: False)
    server.open()
    fd = server.fd
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as visitor:
        visitor.connect(str(tmp_path / "s"))
        with no_descriptor_is_free():
            loop.wait()
        server.close()
    assert loop.turns == {fd: 1}
    assert loop.scheduler.empty()


def test_what_a_child_sends_along_is_kept_from_all_that_the_master_executes(tmp_path: Path) -> None:
    came: list[Reconnect] = []

    def takes(reconnect: Reconnect) -> bool:
        came.append(reconnect)
        return True

    loop = Loop()
    server = ControlServer(loop, tmp_path / "s", {}, takes)
    server.open()
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as child, socket.socket() as first:
            child.connect(str(tmp_path / "s"))
            init = encode({"t": "init", "name": "a1b2c3d4", "lastCommandIdx": 0, "lastEventIdx": 0})
            with socket.socket() as second:
                socket.send_fds(child, [init], [first.fileno(), second.fileno()])
            deadline = loop.now() + PATIENCE_S
            loop.call_at(deadline, lambda: None)
            while not came and loop.now() < deadline:
                loop.wait()
            (reconnect,) = came
            with reconnect.sock, reconnect.sockets[0] as one, reconnect.sockets[1] as other:
                assert os.path.sameopenfile(one.fileno(), first.fileno())
                assert not one.get_inheritable()
                assert not other.get_inheritable()
    finally:
        server.close()


def test_a_child_whose_sockets_met_no_free_descriptor_comes_again_with_them(tmp_path: Path) -> None:
    """Taken without them, a proxy could never be replaced, and a worker had no successor."""
    came: list[Reconnect] = []
    loop = CountingLoop()
    server = ControlServer(loop, tmp_path / "s", {}, lambda reconnect: not came.append(reconnect))
    server.open()
    init = encode({"t": "init", "name": "proxy", "lastCommandIdx": 0, "lastEventIdx": 0})
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as child, socket.socket() as listener:
            child.settimeout(PATIENCE_S)
            child.connect(str(tmp_path / "s"))
            loop.wait()
            socket.send_fds(child, [init], [listener.fileno()])
            with no_descriptor_is_free(), capture_logs() as logs:
                loop.wait()
            assert came == []
            assert child.recv(100) == b""
            assert [line["event"] for line in logs] == ["control_accept_failed"]
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as child, socket.socket() as listener:
            child.connect(str(tmp_path / "s"))
            socket.send_fds(child, [init], [listener.fileno()])
            deadline = loop.now() + PATIENCE_S
            loop.call_at(deadline, lambda: None)
            while not came and loop.now() < deadline:
                loop.wait()
            with came[0].sock, came[0].sockets[0] as got:
                assert os.path.sameopenfile(got.fileno(), listener.fileno())
    finally:
        server.close()


def test_more_children_than_visitors_may_come_back_at_once(tmp_path: Path) -> None:
    names = [f"{n:08x}" for n in range(2 * MAX_VISITORS)]
    came: list[Reconnect] = []
    loop = Loop()
    server = ControlServer(loop, tmp_path / "s", {}, lambda reconnect: not came.append(reconnect))
    server.open()
    with contextlib.closing(server), contextlib.ExitStack() as held:
        for name in names:
            child = held.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            child.connect(str(tmp_path / "s"))
            child.send(encode({"t": "init", "name": name, "lastCommandIdx": 0, "lastEventIdx": 0}))
        for _ in range(4):
            loop.call_at(loop.now(), lambda: None)  # a turn with nothing to accept ends, too
            loop.wait()
        for each in came:
            held.enter_context(each.sock)
        assert [each.name for each in came] == names


def test_what_fails_in_a_request_is_answered_and_logged_with_its_traceback_and_only_a_bug_is_called_one(
    tmp_path: Path,
) -> None:
    def fails(_data: Frame) -> Frame:
        raise KeyError("labels")

    def full(_data: Frame) -> Frame:
        raise OSError(errno.ENOSPC, "No space left on device", "/run/x")

    requests = {
        **{"status": fails, "upgrade": full},
        **{"settings": lambda _data: {"secret": object()}, "scale": lambda data: data},
    }
    loop = Loop()
    server = ControlServer(loop, tmp_path / "s", requests, lambda _reconnect: False)
    server.open()
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as visitor, capture_logs() as logs:
            visitor.connect(str(tmp_path / "s"))
            said = asked(loop, visitor, "status", {})
            assert said["error"] == "a bug in the master: KeyError('labels'); its log has more (request_failed)"
            assert asked(loop, visitor, "settings", {})["error"].startswith("a bug in the master: TypeError(")
            full_disk = "the master cannot do that: /run/x: No space left on device; its log has more (request_failed)"
            assert asked(loop, visitor, "upgrade", {})["error"] == full_disk
            assert asked(loop, visitor, "scale", {"a": 1}) == {"t": "reply", "data": {"a": 1}}
        failed = [line for line in logs if line["event"] == "request_failed"]
        assert [(line["name"], line["log_level"], line["exc_info"]) for line in failed] == [
            ("status", "error", True),
            ("settings", "error", True),
            ("upgrade", "error", True),
        ]
    finally:
        server.close()
