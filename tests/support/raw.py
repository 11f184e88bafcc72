"""Raw sockets against the grid's listener, for what no real client would send."""

import contextlib
import ctypes
import json
import os
import socket
from pathlib import Path
from typing import Any, Final

import psutil

_PIDFD_GETFD: Final = 438

HANDSHAKE = {
    "Host": "localhost",
    "Upgrade": "websocket",
    "Connection": "Upgrade",
    "Sec-WebSocket-Key": "MDEyMzQ1Njc4OWFiY2RlZg==",
    "Sec-WebSocket-Version": "13",
}

PING, PONG = b"\x89\x80\0\0\0\0", b"\x8a\x00"
"""An empty ping as a client sends it, and the answer of a server that has the session."""

SERVER_PING = b"\x89\x00"


def head(method: str = "GET", target: str = "/", version: str = "HTTP/1.1", **changes: str | None) -> bytes:
    """An upgrade head; a header changed to None is left out. Underscores in names stand for hyphens."""
    headers: dict[str, str | None] = {**HANDSHAKE}
    for name, value in changes.items():
        headers[name.replace("_", "-")] = value
    lines = [f"{name}: {value}" for name, value in headers.items() if value is not None]
    return "\r\n".join([f"{method} {target} {version}", *lines, "", ""]).encode()


def connect(port: int) -> socket.socket:
    """A TCP connection to the grid."""
    return socket.create_connection(("127.0.0.1", port), timeout=30)


def session(port: int, target: str = "/") -> socket.socket:
    """A session that a browser server has."""
    sock = connect(port)
    try:
        sock.sendall(head(target=target))
        answer = sock.recv(4096)
        assert answer.startswith(b"HTTP/1.1 101 "), answer
        assert goes_on(sock)
    except BaseException:
        sock.close()
        raise
    return sock


def goes_on(sock: socket.socket) -> bool:
    """Whether a browser server answers this session, which is otherwise silent but for the server's own pings."""
    sock.sendall(PING)
    received = b""
    while len(received) < len(PONG):
        if not (chunk := sock.recv(16)):
            return False
        received = (received + chunk).replace(SERVER_PING, b"")
    return received == PONG


def read_all(sock: socket.socket) -> bytes:
    """Everything until the other side ends; a reset counts as an end."""
    received = b""
    try:
        while chunk := sock.recv(65536):
            received += chunk
    except ConnectionResetError:
        pass
    return received


def answer(port: int, request: bytes) -> tuple[int, dict[str, str], dict[str, Any]]:
    """Sends bytes, reads the answer to its end: status, headers in lower case, JSON body."""
    with connect(port) as sock:
        sock.sendall(request)
        raw = read_all(sock)
    top, _, body = raw.partition(b"\r\n\r\n")
    status_line, *lines = top.decode().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    return int(status_line.split()[1]), headers, json.loads(body) if body else {}


def is_passed_on(proxy: int, client: socket.socket) -> bool:
    """Whether a worker was about to send this client's connection on to its browser server: the mark on the copy of
    it that the process `proxy` has, looked at from outside (pidfd_getfd)."""
    ours = client.getsockname()
    for connection in psutil.Process(proxy).net_connections("tcp"):
        if connection.raddr and tuple(connection.raddr) == ours:
            with contextlib.suppress(OSError), _copy_of(proxy, connection.fd) as sock:  # closed meanwhile
                return bool(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY))
    return False


def is_passed_on_at(proxy: int, path: str) -> bool:
    """The same for the one client of the Unix listener at `path`."""
    found = []
    for link in Path(f"/proc/{proxy}/fd").iterdir():
        with contextlib.suppress(OSError):  # closed meanwhile
            if os.readlink(link).startswith("socket:"):
                with _copy_of(proxy, int(link.name)) as sock:
                    if sock.family == socket.AF_UNIX and sock.getsockname() == path:
                        found.append(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY))
    return any(found)


def _copy_of(pid: int, fd: int) -> socket.socket:
    """A socket of another process. Raises OSError."""
    pidfd = os.pidfd_open(pid)
    try:
        ours = ctypes.CDLL(None, use_errno=True).syscall(_PIDFD_GETFD, pidfd, fd, 0)
        if ours < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return socket.socket(fileno=ours)
    finally:
        os.close(pidfd)
