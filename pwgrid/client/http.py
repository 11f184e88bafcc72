"""One request to a grid's API over the standard library's HTTP client. Knows nothing of leases."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, urlsplit


class GridError(Exception):
    """The grid was not reached, or gave no answer."""


class GridRefusal(GridError):
    """The grid said no; `str()` is its sentence. `details` is all of its answer."""

    def __init__(self, status: int, details: Mapping[str, Any], retry_after_s: float | None) -> None:
        super().__init__(str(details.get("error") or f"the grid answered {status}"))
        self.status = status
        self.details = details
        self.retry_after_s = retry_after_s
        """After how many seconds another try may succeed; None where the grid does not say."""


@dataclass(frozen=True, slots=True)
class Server:
    """The address of a grid, and the token for it."""

    host: str
    port: int
    is_encrypted: bool = False
    token: str | None = None

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    def __repr__(self) -> str:
        return f"Server({self})"

    @classmethod
    def at(cls, url: str, *tokens: str | None) -> Server:
        """The grid at a http, https, ws or wss URL. Its token is the first of `tokens` if given, else that of the URL,
        else the next of `tokens`. Raises ValueError for a URL that is none."""
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError:  # a port that is none, or half an IPv6 address
            host, port = None, None
        if not host or port == 0 or parts.scheme not in ("http", "https", "ws", "wss"):
            shown = url.partition("?")[0]  # behind that there may be a token
            raise ValueError(f"{shown!r} is no URL of a grid: use http://host:8080")
        is_encrypted = parts.scheme in ("https", "wss")
        in_url = parse_qs(parts.query).get("token", [None])[0]
        token = next(filter(None, (*tokens[:1], in_url, *tokens[1:])), None)
        return cls(host, port or (443 if is_encrypted else 80), is_encrypted, token)


class Call:
    """A request. `run` sends it and waits for the answer; `cancel`, from another thread, ends the wait."""

    def __init__(self, server: Server, method: str, path: str, body: Mapping[str, Any], timeout_s: float) -> None:
        self._server = server
        self._request = (method, path)
        self._body = json.dumps(dict(body))
        self._headers = {"Content-Type": "application/json"}
        if server.token:
            self._headers["Authorization"] = f"Bearer {server.token}"
        connect = http.client.HTTPSConnection if server.is_encrypted else http.client.HTTPConnection
        self._connection = connect(server.host, server.port, timeout=timeout_s)
        self._is_cancelled = False

    def run(self) -> dict[str, Any]:
        """Returns the JSON of the answer. Raises GridRefusal for a status of 400 or above, GridError for no answer."""
        with contextlib.closing(self._connection):
            try:
                self._connection.connect()
                if self._is_cancelled:
                    raise GridError("the request was cancelled")
                self._connection.request(*self._request, self._body, self._headers)
                answer = self._connection.getresponse()
                content = answer.read()
            except (OSError, http.client.HTTPException) as error:
                raise GridError(
                    f"the grid at {self._server} gives no answer: {error or type(error).__name__}"
                ) from None
        try:
            found = json.loads(content) if content else {}
        except ValueError:
            found = {}
        details: dict[str, Any] = found if isinstance(found, dict) else {}
        if answer.status >= http.client.BAD_REQUEST:
            retry_after = answer.getheader("Retry-After", "")
            raise GridRefusal(answer.status, details, float(retry_after) if retry_after.isdecimal() else None)
        return details

    def cancel(self) -> None:
        """Closes the connection: `run` raises GridError, unless the answer has come already."""
        self._is_cancelled = True
        if (sock := self._connection.sock) is not None:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
