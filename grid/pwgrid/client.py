"""Borrows browsers from a grid, for Python programs, with the standard library alone.

    with borrow("AppA:Chromium:UAT", run="smoke") as lease:
        browser = playwright.chromium.connect(lease.ws_endpoint)

The same with `async with`, where `await lease.extend_async(…)` lets the program's other tasks go on.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import socket
import threading
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Final, TypeVar
from urllib.parse import unquote_to_bytes, urlsplit, urlunsplit

from pwgrid.common.grid_url import GridUrl

__all__ = ["Borrowing", "GridError", "GridRefusal", "Lease", "borrow"]

T = TypeVar("T")

URL_VARIABLES: Final = ("PWGRID_WS_ENDPOINT", "PWGRID_URL")
DEFAULT_URL: Final = "http://127.0.0.1:8080"
TOKEN_VARIABLE: Final = "PWGRID_TOKEN"

ANSWER_S: Final = 30.0
"""How long to wait for an answer that does not depend on a free slot."""

CONNECT_S: Final = 10.0
"""How long a connect may take: nobody can end the wait for it."""

LINE_S: Final = 3600.0
"""How long to wait in the grid's line for a slot; the grid itself ends the wait earlier (BORROW_QUEUE_TIMEOUT)."""


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
    """The address of a grid, and the token for it. `path` and `userinfo` are for a reverse proxy before it."""

    host: str
    port: int
    is_encrypted: bool = False
    token: str | None = None
    path: str = ""
    userinfo: str = ""
    """`user:password`, as a URL has it."""

    def __str__(self) -> str:
        return f"{GridUrl(self.is_encrypted, self.host, self.port).address}{self.path}"

    def __repr__(self) -> str:
        return f"Server({self})"

    @classmethod
    def at(cls, url: str, *tokens: str | None) -> Server:
        """The grid at a http, https, ws or wss URL. Its token is the first of `tokens` if given, else that of the URL,
        else the next of `tokens`. Raises ValueError for a URL that is none."""
        said = GridUrl.parse(url)
        token = next(filter(None, (*tokens[:1], said.token, *tokens[1:])), None)
        port = said.port or (443 if said.is_encrypted else 80)
        return cls(said.host, port, said.is_encrypted, token, said.path, said.userinfo)

    def credentials(self) -> dict[str, str]:
        """The header fields that say who we are, to the grid and to a reverse proxy before it."""
        if self.userinfo:
            basic = b64encode(unquote_to_bytes(self.userinfo)).decode()
            token = {"X-Hub-Secret": self.token} if self.token else {}
            return {"Authorization": f"Basic {basic}", **token}
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}

    def with_userinfo(self, endpoint: str) -> str:
        """An endpoint that the grid has given us, with our user and password if the same reverse proxy is before it:
        the grid does not know them."""
        parts = urlsplit(endpoint)
        if not self.userinfo or "@" in parts.netloc or parts.hostname != self.host:
            return endpoint
        return urlunsplit(parts._replace(netloc=f"{self.userinfo}@{parts.netloc}"))


class Call:
    """A request. `run` sends it and waits for the answer; `cancel`, from another thread, ends the wait."""

    def __init__(
        self, server: Server, method: str, path: str, body: Mapping[str, Any], timeout_s: float = ANSWER_S
    ) -> None:
        self._server = server
        self._request = (method, server.path + path)
        self._body = json.dumps(dict(body))
        self._headers = {"Content-Type": "application/json", **server.credentials()}
        connect = http.client.HTTPSConnection if server.is_encrypted else http.client.HTTPConnection
        self._connection = connect(server.host, server.port, timeout=min(CONNECT_S, timeout_s))
        self._timeout_s = timeout_s
        self._is_cancelled = False

    def run(self) -> dict[str, Any]:
        """Returns the JSON of the answer. Raises GridRefusal for a status of 400 or above, GridError for no answer."""
        with contextlib.closing(self._connection):
            try:
                self._connection.connect()
                self._connection.sock.settimeout(self._timeout_s)
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


@dataclass(frozen=True, slots=True)
class Lease:
    """A slot that is ours until it is returned or expires. `ws_endpoint` is for one connection at a time,
    `cdp_endpoint` for any number that share one browser; None if the grid has none."""

    browser_id: str
    ws_endpoint: str
    browser_type: str
    label_key: str
    """The grid's label key that serves the one that was asked for."""
    expires_at: float
    """Unix seconds."""
    server: Server
    requested_label_key: str = ""
    cdp_endpoint: str | None = None

    def extend(self, ttl_s: float) -> Lease:
        """Makes the lease end `ttl_s` seconds from now, and returns it so. Raises GridRefusal when it has ended."""
        call = Call(self.server, "PATCH", f"/v1/leases/{self.browser_id}", {"ttlSeconds": int(ttl_s)})
        return replace(self, expires_at=float(call.run()["expiresAt"]))

    async def extend_async(self, ttl_s: float) -> Lease:
        """`extend` for async programs: other tasks go on meanwhile."""
        return await _in_own_thread(lambda: self.extend(ttl_s))

    def give_back(self) -> bool:
        """Frees the slot. False if it was given back already, or the lease has expired."""
        body = {"labelKey": self.label_key, "browserId": self.browser_id}
        return bool(Call(self.server, "POST", "/session/return", body).run().get("returned", True))


def borrow(  # noqa: PLR0913 - keywords, each of which may be left out
    label_key: str,
    *,
    run: str | None = None,
    run_id: str | None = None,
    ttl_s: float | None = None,
    isolation: str | None = None,
    profile: str | None = None,
    playwright: str | None = None,
    grid: str | None = None,
    token: str | None = None,
) -> Borrowing:
    """A lease for the length of a `with` or `async with` block.

    `run` and `run_id` name the test run; runs take turns in the grid's line. `ttl_s`: seconds after which the lease
    ends if it is not given back. `isolation`: "browser" for a browser that nobody shares. `playwright`: the version of
    the client that will come, like "1.58", where the label key has pools of several versions. `profile`:
    what the browser behind `cdp_endpoint` starts with, and is saved. `grid`: its URL,
    http://host:8080 or ws://host:8080/?token=…, behind a reverse proxy also https://user:password@host/path; by default
    PWGRID_WS_ENDPOINT or PWGRID_URL, else this host. `token`: by default that of the URL, else PWGRID_TOKEN.

    Entering the block waits for a slot as long as the grid allows. Raises GridRefusal with the grid's sentence: where
    another try may succeed later, `status` is 503 and `retry_after_s` is set. Raises GridError when there is no answer.
    """
    url = grid or next(filter(None, map(os.environ.get, URL_VARIABLES)), DEFAULT_URL)
    server = Server.at(url, token, os.environ.get(TOKEN_VARIABLE))
    wish = {
        "labelKey": label_key,
        "runName": run,
        "runId": run_id,
        "ttlSeconds": None if ttl_s is None else int(ttl_s),
        "isolation": isolation,
        "profile": profile,
        "playwright": playwright,
    }
    return Borrowing(server, {name: value for name, value in wish.items() if value is not None})


class Borrowing:
    """A context manager for `with` and `async with`. Once it is left it may be entered again, for another lease."""

    def __init__(self, server: Server, wish: Mapping[str, Any]) -> None:
        self._server = server
        self._wish = wish
        self._lease: Lease | None = None
        self._inside = threading.Lock()
        """Held from the entry to the exit. Whichever task or thread enters meanwhile would have its lease given back by
        the one that leaves first."""

    def __enter__(self) -> Lease:
        with self._entering():
            self._lease = self._lease_of(self._call().run())
        return self._lease

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _at: TracebackType | None
    ) -> None:
        self._end(self._leave(), kind)

    async def __aenter__(self) -> Lease:
        with self._entering():
            self._lease = await self._borrowed()
        return self._lease

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _at: TracebackType | None
    ) -> None:
        lease = self._leave()
        await asyncio.shield(_in_own_thread(lambda: self._end(lease, kind)))

    async def _borrowed(self) -> Lease:
        call = self._call()
        answer = _in_own_thread(call.run)
        try:
            return self._lease_of(await asyncio.shield(answer))
        except asyncio.CancelledError:
            call.cancel()  # closes the connection, so that the grid gives our place in the line to others
            with contextlib.suppress(GridError):
                lease = self._lease_of(await answer)  # it had been granted already
                await _in_own_thread(lease.give_back)
            raise

    @contextlib.contextmanager
    def _entering(self) -> Iterator[None]:
        if not self._inside.acquire(blocking=False):
            raise RuntimeError("this borrow() is entered already, and is for one lease at a time: call borrow() again")
        try:
            yield
        except BaseException:
            self._inside.release()
            raise

    def _leave(self) -> Lease:
        lease, self._lease = self._lease, None
        assert lease is not None, "left without an entry"
        self._inside.release()
        return lease

    def _call(self) -> Call:
        return Call(self._server, "POST", "/session/borrow", self._wish, LINE_S)

    def _lease_of(self, answer: Mapping[str, Any]) -> Lease:
        try:
            return Lease(
                browser_id=answer["browserId"],
                ws_endpoint=self._server.with_userinfo(answer["webSocketEndpoint"]),
                browser_type=answer["browserType"],
                label_key=answer["labelKey"],
                expires_at=float(answer["expiresAt"]),
                server=self._server,
                requested_label_key=self._wish["labelKey"],
                cdp_endpoint=self._server.with_userinfo(cdp) if (cdp := answer.get("cdpEndpoint")) else None,
            )
        except KeyError as error:
            raise GridError(f"what answers at {self._server} is no pwgrid: its answer has no {error}") from None

    def _end(self, lease: Lease, kind: type[BaseException] | None) -> None:
        try:
            lease.give_back()
        except GridError:
            # The grid ends the lease when it expires. An error of the block is raised rather than this one.
            if kind is None:
                raise


def _in_own_thread(call: Callable[[], T]) -> asyncio.Future[T]:
    """The result of a call that waits. asyncio's own threads are few: those who wait in line for a slot would take all
    of them, and who has it could not give it back."""
    executor = ThreadPoolExecutor(1, "pwgrid-client")
    try:
        return asyncio.get_running_loop().run_in_executor(executor, call)
    finally:
        executor.shutdown(wait=False)  # its thread ends with the call
