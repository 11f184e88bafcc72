"""Makes tokens and recognises them.

A token has 192 random bits, which nobody guesses: one round of a hash is enough.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable
from enum import StrEnum
from functools import lru_cache
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

_TEXT: Final = re.compile(r"pwg_([0-9a-f]{8})_[0-9a-f]{48}")
NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
NAME_RULE: Final = "1 to 63 lower-case letters, digits, dots, hyphens and underscores, the first a letter or digit"
_SALT_BYTES: Final = 16

OPERATORS_TOKEN: Final = "PWGRID_TOKEN"
"""What the token of the settings is called; no token of `pwgrid token` can have this name."""

_ROUNDS: Final = 100_000
"""Of the hash of the settings' token, which somebody may have thought up."""


class Role(StrEnum):
    """What a token allows. CLIENT: to connect, and to see and end its own sessions. OPERATOR: everything."""

    CLIENT = "client"
    OPERATOR = "operator"


class Token(BaseModel, frozen=True):
    """A token without its text. `digest` is the HMAC of the text, keyed with `salt`. `max_sessions` may live at once
    (0: no limit); `pools` are those that it may use (empty: all)."""

    model_config = ConfigDict(
        alias_generator=to_camel, validate_by_name=True, ser_json_bytes="hex", val_json_bytes="hex"
    )

    name: Annotated[str, Field(pattern=f"^{NAME.pattern}$")]
    id: str
    role: Role
    max_sessions: Annotated[int, Field(ge=0)]
    pools: tuple[str, ...]
    created_at: float
    """Unix seconds."""
    salt: bytes
    digest: Annotated[bytes, Field(alias="hash")]


def make(name: str, role: Role, max_sessions: int, pools: Iterable[str], now: float) -> tuple[Token, str]:
    """Makes a token. Returns it, and its text, which is stored nowhere."""
    token_id, salt = secrets.token_hex(4), secrets.token_bytes(_SALT_BYTES)
    text = f"pwg_{token_id}_{secrets.token_hex(24)}"
    token = Token(
        name=name,
        id=token_id,
        role=role,
        max_sessions=max_sessions,
        pools=tuple(pools),
        created_at=now,
        salt=salt,
        digest=_digest(salt, text),
    )
    return token, text


class Tokens:
    """All tokens at one moment. `are_there` is False if there is no file of tokens: then the grid asks for none. While
    the file cannot be read, no token is valid, and `are_known` is False."""

    def __init__(self, tokens: Iterable[Token] = (), *, are_there: bool = True, are_known: bool = True) -> None:
        self.are_there = are_there
        self.are_known = are_known
        self.all = tuple(tokens)
        self._by_id = {token.id: token for token in self.all}

    def has(self, token_id: str) -> bool:
        return token_id in self._by_id

    def find(self, text: str) -> Token | None:
        """Returns the token with this text, or None. Takes as long for a wrong secret as for a right one."""
        match = _TEXT.fullmatch(text)
        token = self._by_id.get(match[1]) if match else None
        if token is None or not hmac.compare_digest(_digest(token.salt, text), token.digest):
            return None
        return token


@lru_cache(maxsize=4)
def operators_token_id(text: str) -> str:
    """Returns an id for the token of the settings, or "" if there is none. Leases keep it, to end with their token. It
    takes 50 ms, once: the master makes it, and its children inherit the answer."""
    if not text:
        return ""
    return f"{OPERATORS_TOKEN}:{hashlib.pbkdf2_hmac('sha256', text.encode(), b'pwgrid', _ROUNDS, 16).hex()}"


NO_TOKENS: Final = Tokens(are_there=False)


def _digest(salt: bytes, text: str) -> bytes:
    return hmac.digest(salt, text.encode(), "sha256")
