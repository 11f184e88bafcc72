"""What the service manager is told, and the listening sockets that it passes."""

import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from pwgrid.common import sd_notify
from pwgrid.common.errors import GridError
from pwgrid.master import listener as listener_module
from pwgrid.master.listener import inherited_listeners
from pwgrid.settings.model import Settings


@pytest.fixture
def manager(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    with tempfile.TemporaryDirectory(prefix="pg-", dir="/tmp") as directory:
        path = Path(directory) / "notify"
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
            listening.bind(str(path))
            listening.settimeout(10)
            monkeypatch.setenv("NOTIFY_SOCKET", str(path))
            yield listening


def test_ready_tells_the_main_process_and_a_status(manager: socket.socket) -> None:
    sd_notify.ready("2 workers")
    assert manager.recv(4096).decode().splitlines() == ["READY=1", f"MAINPID={os.getpid()}", "STATUS=2 workers"]


def test_a_reload_and_the_end_are_told(manager: socket.socket) -> None:
    with sd_notify.reload(is_ready=True):
        assert manager.recv(4096).startswith(b"RELOADING=1\nMONOTONIC_USEC=")
    assert manager.recv(4096).startswith(b"READY=1\n")
    sd_notify.stopping(90.5)
    assert manager.recv(4096) == b"STOPPING=1\nEXTEND_TIMEOUT_USEC=90500000"


def test_a_grid_that_is_not_ready_says_why_and_is_waited_for_where_that_is_worth_it(manager: socket.socket) -> None:
    sd_notify.not_ready("no firefox worker is available", patience_s=100.0)
    assert manager.recv(4096) == b"STATUS=not ready: no firefox worker is available\nEXTEND_TIMEOUT_USEC=100000000"
    sd_notify.not_ready("no chromium worker is available", patience_s=0.0)
    assert manager.recv(4096) == b"STATUS=not ready: no chromium worker is available"
    with sd_notify.reload(is_ready=False):  # who is not ready is not so after a reload
        pass
    sd_notify.stopping(1)
    assert manager.recv(4096).startswith(b"STOPPING=1")


def test_without_a_manager_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    sd_notify.ready("")
    monkeypatch.setenv("NOTIFY_SOCKET", "/nowhere/at/all")
    sd_notify.ready("")


def test_a_sign_of_life_is_told_and_how_long_the_next_one_may_take(manager: socket.socket) -> None:
    sd_notify.alive()
    sd_notify.allow_silence(60.0)
    assert manager.recv(4096) == b"WATCHDOG=1"
    assert manager.recv(4096) == b"WATCHDOG=1\nWATCHDOG_USEC=60000000"


@pytest.mark.parametrize(
    ("microseconds", "pid", "seconds"),
    [
        ("10000000", "ours", 10.0),
        ("500000", "", 0.5),
        ("10000000", "1", None),  # another process is watched
        ("0", "", None),
        ("", "", None),
        ("soon", "", None),
    ],
)
def test_the_manager_says_how_long_silence_may_last(
    monkeypatch: pytest.MonkeyPatch, microseconds: str, pid: str, seconds: float | None
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", microseconds)
    monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()) if pid == "ours" else pid)
    assert sd_notify.watchdog_s() == seconds


def pass_as_first(monkeypatch: pytest.MonkeyPatch, sock: socket.socket) -> None:
    """As systemd would, but on the number that the socket has here."""
    monkeypatch.setattr("pwgrid.master.listener._FIRST_SYSTEMD_FD", sock.detach())
    monkeypatch.setenv("LISTEN_FDS", "1")
    monkeypatch.setenv("LISTEN_PID", str(os.getpid()))


def test_a_socket_of_systemd_is_taken_once(monkeypatch: pytest.MonkeyPatch) -> None:
    sock = socket.create_server(("127.0.0.1", 0))
    port = sock.getsockname()[1]
    pass_as_first(monkeypatch, sock)
    (listener,) = inherited_listeners(Settings())
    with listener:
        assert listener.getsockname()[1] == port
        assert not listener.get_inheritable()
        assert inherited_listeners(Settings()) == []


def test_sockets_for_another_process_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LISTEN_FDS", "1")
    monkeypatch.setenv("LISTEN_PID", "1")
    assert inherited_listeners(Settings()) == []


def test_a_descriptor_that_does_not_listen_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    sock = socket.socket()
    pass_as_first(monkeypatch, sock)
    with pytest.raises(GridError, match="not a listening socket"):
        inherited_listeners(Settings())
    os.close(listener_module._FIRST_SYSTEMD_FD)


def test_a_socket_that_is_open_to_other_hosts_needs_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    pass_as_first(monkeypatch, socket.create_server(("0.0.0.0", 0)))
    with pytest.raises(GridError, match="PWGRID_TOKEN"):
        inherited_listeners(Settings())
    pass_as_first(monkeypatch, socket.create_server(("0.0.0.0", 0)))
    (listener,) = inherited_listeners(Settings(token="secret"))
    listener.close()


def test_a_listening_standard_input_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    before = os.dup(0)
    with socket.create_server(("127.0.0.1", 0)) as sock:
        os.dup2(sock.fileno(), 0)
        try:
            (listener,) = inherited_listeners(Settings())
        finally:
            os.dup2(before, 0)
            os.close(before)
        with listener:
            assert listener.getsockname() == sock.getsockname()
