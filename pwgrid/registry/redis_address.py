"""Reads Redis URLs: where to connect and as whom. Opens nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qs, unquote, urlsplit

DEFAULT_PORT: Final = 6379


@dataclass(frozen=True, slots=True)
class RedisAddress:
    """A parsed URL. `unix_path` is set for unix://, else `host` and `port` count."""

    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    unix_path: str = ""
    tls: bool = False
    username: str = ""
    password: str = ""
    database: int = 0

    def __str__(self) -> str:
        """The address for people and logs: without user and password."""
        if self.unix_path:
            where = f"unix://{self.unix_path}"
            return f"{where}?db={self.database}" if self.database else where
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'rediss' if self.tls else 'redis'}://{host}:{self.port}/{self.database}"

    def greeting(self) -> list[tuple[str, ...]]:
        """The commands with which a connection begins: AUTH and SELECT, where they are needed."""
        commands: list[tuple[str, ...]] = []
        if self.password:
            commands.append(("AUTH", self.username, self.password) if self.username else ("AUTH", self.password))
        if self.database:
            commands.append(("SELECT", str(self.database)))
        return commands


def parse_url(url: str) -> RedisAddress:
    """Reads redis://, rediss:// and unix:// URLs with user:password@, /db and ?db=. Raises ValueError with a sentence
    that does not repeat the password."""
    parts = urlsplit(url)
    if parts.scheme not in ("redis", "rediss", "unix"):
        raise ValueError("a Redis URL begins with redis://, rediss:// or unix://")
    query = parse_qs(parts.query)
    path = unquote(parts.path)
    database = query["db"][-1] if "db" in query else ("" if parts.scheme == "unix" else path.strip("/"))
    if database and not database.isdecimal():
        raise ValueError(f"the database of a Redis URL is a number, not {database!r}")
    try:
        port = parts.port or DEFAULT_PORT
    except ValueError:
        raise ValueError("the port of a Redis URL is a number up to 65535") from None
    if parts.scheme == "unix" and not path:
        raise ValueError("a unix:// Redis URL names the path of a socket")
    return RedisAddress(
        host=unquote(parts.hostname or "127.0.0.1"),
        port=port,
        unix_path=path if parts.scheme == "unix" else "",
        tls=parts.scheme == "rediss",
        username=unquote(parts.username or ""),
        password=unquote(parts.password or ""),
        database=int(database or 0),
    )
