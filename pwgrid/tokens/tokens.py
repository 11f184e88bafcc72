"""Makes tokens and recognises them. Reads no file.

A token has 192 random bits, which nobody guesses: one round of a hash is enough.
"""

from __future__ import annotations

import hmac
import re
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

_TEXT: Final = re.compile(r"pwg_([0-9a-f]{8})_[0-9a-f]{48}")
NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
NAME_RULE: Final = "1 to 63 lower-case letters, digits, dots, hyphens and underscores, the first a letter or digit"
_SALT_BYTES: Final = 16


class Role(StrEnum):
    """What a token allows. CLIENT: to connect, and to see and end its own sessions. OPERATOR: everything."""

    CLIENT = "client"
    OPERATOR = "operator"


@dataclass(frozen=True, slots=True)
class Token:
    """A token without its text. `digest` is the HMAC of the text, keyed with `salt`. `max_sessions` may live at once
    (0: no limit); `pools` are those that it may use (empty: all)."""

    name: str
    id: str
    role: Role
    max_sessions: int
    pools: tuple[str, ...]
    created_at: float
    """Unix seconds."""
    salt: bytes
    digest: bytes

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "id": self.id,
            "role": self.role.value,
            "maxSessions": self.max_sessions,
            "pools": list(self.pools),
            "createdAt": self.created_at,
            "salt": self.salt.hex(),
            "hash": self.digest.hex(),
        }

    @classmethod
    def read(cls, entry: Mapping[str, Any]) -> Token:
        """Reverses `as_json`. Raises ValueError, KeyError or TypeError for anything else."""
        token = cls(
            name=str(entry["name"]),
            id=str(entry["id"]),
            role=Role(entry["role"]),
            max_sessions=int(entry["maxSessions"]),
            pools=tuple(map(str, entry["pools"])),
            created_at=float(entry["createdAt"]),
            salt=bytes.fromhex(entry["salt"]),
            digest=bytes.fromhex(entry["hash"]),
        )
        if not NAME.fullmatch(token.name) or token.max_sessions < 0:
            raise ValueError(f"{token.name!r:.80}, {token.max_sessions} sessions")
        return token


def make(name: str, role: Role, max_sessions: int, pools: Iterable[str], now: float) -> tuple[Token, str]:
    """Makes a token. Returns it, and its text, which is stored nowhere."""
    token_id, salt = secrets.token_hex(4), secrets.token_bytes(_SALT_BYTES)
    text = f"pwg_{token_id}_{secrets.token_hex(24)}"
    return Token(name, token_id, role, max_sessions, tuple(pools), now, salt, _digest(salt, text)), text


class Tokens:
    """All tokens at one moment. `are_there` is False if there is no file of tokens: then the grid asks for none."""

    def __init__(self, tokens: Iterable[Token] = (), *, are_there: bool = True) -> None:
        self.are_there = are_there
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


NO_TOKENS: Final = Tokens(are_there=False)


def _digest(salt: bytes, text: str) -> bytes:
    return hmac.digest(salt, text.encode(), "sha256")
