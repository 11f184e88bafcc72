"""Raw sockets against the grid's listener, for what no real client would send, and for load without a library."""

import contextlib
import ctypes
import json
import os
import socket
import struct
from enum import IntEnum
from pathlib import Path
from typing import Any, Final, TypeVar

import psutil

_PIDFD_GETFD: Final = 438

HANDSHAKE = {
    "Host": "localhost",
    "Upgrade": "websocket",
    "Connection": "Upgrade",
    "Sec-WebSocket-Key": "MDEyMzQ1Njc4OWFiY2RlZg==",
    "Sec-WebSocket-Version": "13",
}

STALL_S: Final = 30.0
"""Bounds a failure; nothing is meant to take this long."""

_END: Final = b"\r\n\r\n"

Connected = TypeVar("Connected", bound=socket.socket)


class Opcode(IntEnum):
    """Of a WebSocket frame."""

    TEXT = 1
    BINARY = 2
    CLOSE = 8
    PING = 9
    PONG = 10


def frame(content: bytes, opcode: Opcode = Opcode.BINARY) -> bytes:
    """A masked client frame; the mask is zero, so that it costs neither side anything."""
    size = len(content)
    length = bytes([128 | size]) if size < 126 else b"\xfe" + size.to_bytes(2) if size < 65536 else b""
    length = length or b"\xff" + size.to_bytes(8)
    return bytes([128 | opcode]) + length + bytes(4) + content


PING, PONG = frame(b"", Opcode.PING), b"\x8a\x00"
"""An empty ping as a client sends it, and the answer of a server that has the session."""

GOODBYE = frame(b"\x03\xe8", Opcode.CLOSE)
"""A client's close frame, code 1000."""

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
    return socket.create_connection(("127.0.0.1", port), timeout=STALL_S)


def upgrade(address: tuple[str, int], request: bytes) -> socket.socket:
    """A connection whose upgrade has been answered with 101. Raises OSError with the answer otherwise."""
    return upgraded(socket.create_connection(address, STALL_S), request)


def upgraded(sock: Connected, request: bytes) -> Connected:
    """The same over a connection that is there."""
    try:
        sock.sendall(request)
        answer = sock.recv(4096)
        while _END not in answer and (chunk := sock.recv(4096)):
            answer += chunk
        if not answer.startswith(b"HTTP/1.1 101 "):
            raise OSError(f"no upgrade: {answer[:300]!r}")
    except BaseException:
        sock.close()
        raise
    return sock


def session(port: int, target: str = "/") -> socket.socket:
    """A session that a browser server has."""
    sock = upgrade(("127.0.0.1", port), head(target=target))
    try:
        assert goes_on(sock)
    except BaseException:
        sock.close()
        raise
    return sock


def reset_at_close(sock: socket.socket) -> None:
    """Its end will be a reset (RST), not a FIN."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def goes_on(sock: socket.socket) -> bool:
    """Whether a browser server answers this session, which is otherwise silent but for the server's own pings."""
    sock.sendall(PING)
    return is_answered(sock)


def is_served(sock: socket.socket) -> bool:
    """Whether a client that waits is given a session, which answers."""
    return sock.recv(4096).startswith(b"HTTP/1.1 101 ") and goes_on(sock)


def is_answered(sock: socket.socket) -> bool:
    """Whether a browser server answers the ping that was sent last."""
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
