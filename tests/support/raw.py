"""Raw sockets against the grid's listener, for what no real client would send."""

import json
import socket
from typing import Any

HANDSHAKE = {
    "Host": "grid",
    "Upgrade": "websocket",
    "Connection": "Upgrade",
    "Sec-WebSocket-Key": "MDEyMzQ1Njc4OWFiY2RlZg==",
    "Sec-WebSocket-Version": "13",
}

PING, PONG = b"\x89\x80\0\0\0\0", b"\x8a\x00"
"""An empty ping as a client sends it, and the answer of a server that has the session."""


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


def session(port: int) -> socket.socket:
    """A session that a browser server has: the worker answers an upgrade before that, but no ping."""
    sock = connect(port)
    try:
        sock.sendall(head())
        answer = sock.recv(4096)
        assert answer.startswith(b"HTTP/1.1 101 "), answer
        assert goes_on(sock)
    except BaseException:
        sock.close()
        raise
    return sock


def goes_on(sock: socket.socket) -> bool:
    """Whether a browser server answers this session, which is otherwise silent."""
    sock.sendall(PING)
    return sock.recv(16) == PONG


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
