"""Redis' wire format as all our clients need it: commands to bytes, refusals to errors. Does no I/O."""

from __future__ import annotations

from typing import Any, Final, cast

import hiredis

from pwgrid.common.errors import RegistryUnavailable

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


class RegistryError(RegistryUnavailable):
    """Redis refused a command, and will again; the sentence is its own.

    For who only wants to go on without Redis that is as good as away; who repeats commands must tell the two apart.
    """


def pack(*arguments: Argument) -> bytes:
    """A command as it goes over the wire."""
    packed: bytes = hiredis.pack_command(cast("tuple[str]", arguments))  # its stub knows tuples of one only
    return packed


def checked(reply: Reply) -> Reply:
    """The reply, unless it is an error: then raises it, as RegistryUnavailable where that may pass."""
    if isinstance(reply, hiredis.ReplyError):
        sentence = f"Redis refused: {reply}"
        raise RegistryUnavailable(sentence) if _may_pass(str(reply)) else RegistryError(sentence)
    if isinstance(reply, BaseException):
        raise reply
    return reply


def _may_pass(error: str) -> bool:
    # Redis 6 wraps what a script's own command said: "ERR Error running script (…): … -OOM command not allowed …".
    return error.startswith(_PASSING_ERRORS) or any(f"-{code} " in error for code in _PASSING_ERRORS)
