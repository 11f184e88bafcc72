"""Takes the URL of a grid apart, and shows any URL without its secrets. It needs the standard library alone, as
pwgrid.client does."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import parse_qs, urlsplit

_ENCRYPTED: Final = {"http": False, "ws": False, "https": True, "wss": True}
_PATH: Final = re.compile(r"(/([A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})+)*")
_SECRET_OPTION: Final = re.compile(r"(?i)([?&][^=&#]*(?:pass|auth|token|secret)[^=&#]*=)[^&#]*")
_SECRET_PATH: Final = re.compile(r"(/(?:lease|playwright)/[a-z]+/[^?#]*\.)[^/?#]+")
_HIDDEN: Final = "***"


@dataclass(frozen=True, slots=True)
class GridUrl:
    """What the URL of a grid says. `port` is None where it names none; `path` begins with a slash, or is empty;
    `userinfo` is `user:password` as the URL has it."""

    is_encrypted: bool
    host: str
    port: int | None = None
    path: str = ""
    userinfo: str = ""
    token: str | None = None

    @classmethod
    def parse(cls, url: str) -> GridUrl:
        """Takes http, https, ws or wss. Raises ValueError, whose text has no secret, for a URL that is none."""
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError:  # a port that is none, or half an IPv6 address
            host, port = None, None
        if not host or port == 0 or parts.scheme not in _ENCRYPTED:
            raise ValueError(f"{without_secrets(url)!r} is no URL of a grid: use ws://host:8080")
        return cls(
            _ENCRYPTED[parts.scheme],
            host,
            port,
            parts.path.rstrip("/"),
            parts.netloc.rpartition("@")[0],
            parse_qs(parts.query).get("token", [None])[0],
        )

    @property
    def address(self) -> str:
        """Host and port, as a Host header has them."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port is None else f"{host}:{self.port}"

    @property
    def web_socket(self) -> str:
        """Its ws or wss URL, with user and password, without a slash at its end."""
        userinfo = f"{self.userinfo}@" if self.userinfo else ""
        return f"ws{'s' * self.is_encrypted}://{userinfo}{self.address}{self.path}"

    @property
    def origin(self) -> str:
        """The origin of pages from there, as browsers write it."""
        default = 443 if self.is_encrypted else 80
        return (
            f"http{'s' * self.is_encrypted}://{replace(self, port=None if self.port == default else self.port).address}"
        )


def is_path(text: str) -> bool:
    """Whether this may be the path of a grid's URL, without a slash at its end."""
    return _PATH.fullmatch(text) is not None


def without_secrets(url: str) -> str:
    """A URL, good or not, without password, token and the secret of a lease or worker.

    All up to the last @ may be a password with characters that belong escaped.
    """
    start = url.find("://") + len("://") if "://" in url else 0
    before, at, rest = url[start:].rpartition("@")
    if at and _SECRET_OPTION.search(before):  # the @ is in the token, perhaps
        rest = re.sub("^[^&#]*", _HIDDEN, rest)
    user = before.partition(":")[0] + ":" if ":" in before else ""
    visible = url[:start] + (user + _HIDDEN + at if at else "") + rest
    return _SECRET_PATH.sub(rf"\1{_HIDDEN}", _SECRET_OPTION.sub(rf"\1{_HIDDEN}", visible))
