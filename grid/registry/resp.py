"""Redis' wire format as all our clients need it: commands to bytes, refusals to errors. Does no I/O."""

from __future__ import annotations

from typing import Any, Final, cast

import hiredis

from grid.errors import GridError, RegistryUnavailable

Argument = str | bytes | int | float
Reply = Any  # str or bytes, int, None, hiredis.ReplyError, or a list of these

_PASSING_ERRORS: Final = (
    "BUSY",
    "CLUSTERDOWN",
    "LOADING",
    "MASTERDOWN",
    "MISCONF",
    "NOAUTH",
    "NOREPLICAS",
    "OOM",
    "READONLY",
    "TRYAGAIN",
)
"""What Redis says while it cannot serve; the same command may succeed later."""


class RegistryError(GridError):
    """Redis refused a command; the sentence is its own."""


def pack(*arguments: Argument) -> bytes:
    """A command as it goes over the wire."""
    packed: bytes = hiredis.pack_command(cast("tuple[str]", arguments))  # its stub knows tuples of one only
    return packed


def checked(reply: Reply) -> Reply:
    """The reply, unless it is an error: then raises it, as RegistryUnavailable where that may pass."""
    if isinstance(reply, hiredis.ReplyError):
        sentence = f"Redis refused: {reply}"
        raise RegistryUnavailable(sentence) if str(reply).startswith(_PASSING_ERRORS) else RegistryError(sentence)
    if isinstance(reply, BaseException):
        raise reply
    return reply
