"""How the forwarder says to which host its connection is to go, where that one speaks TLS."""

from __future__ import annotations

from typing import Final

_WORD: Final = "HOST"


def target_line(host: str, port: int) -> bytes:
    """The first line of such a connection."""
    return f"{_WORD} {host} {port}\r\n".encode("latin-1")


def read_target(line: bytes) -> tuple[str, int]:
    """Host and port of a line, without its end. Raises ValueError for any other text."""
    word, host, port = line.decode("latin-1").split(" ")
    if word != _WORD:
        raise ValueError("it names no host")
    return host, int(port)
