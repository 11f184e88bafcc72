"""How the forwarder asks the TLS process for a connection to another host, and what that answers: a line each."""

from __future__ import annotations

from typing import Final

END: Final = b"\r\n"

CONNECTED: Final = b"CONNECTED" + END
"""The host's own socket comes with it, whose TLS is in the kernel; or what follows is what the host says."""

NOT_ANSWERED: Final = "the TLS process has not answered"

_WORD: Final = "HOST"
_REFUSED: Final = "REFUSED"


def target_line(host: str, port: int) -> bytes:
    """The line that asks for it."""
    return f"{_WORD} {host} {port}".encode("latin-1") + END


def read_target(line: bytes) -> tuple[str, int]:
    """Host and port of a line, without its end. Raises ValueError for any other text."""
    word, host, port = line.decode("latin-1").split(" ")
    if word != _WORD:
        raise ValueError("it names no host")
    return host, int(port)


def refusal_line(why: str) -> bytes:
    """The answer if there is no connection. `why` is a clause for people."""
    return f"{_REFUSED} {why}".encode("latin-1", "replace") + END


def read_answer(answer: bytes) -> str:
    """Why there is no connection; '' if there is one."""
    if answer == CONNECTED:
        return ""
    word, is_one, why = answer.removesuffix(END).decode("latin-1").partition(" ")
    return why if is_one and word == _REFUSED else NOT_ANSWERED
