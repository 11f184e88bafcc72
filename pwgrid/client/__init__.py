"""Borrows browsers from a grid, for Python programs. Needs nothing but the standard library.

    with borrow("AppA:Chromium:UAT", run="smoke") as lease:
        browser = playwright.chromium.connect(lease.ws_endpoint)

The same with `async with`, where `await lease.extend_async(…)` goes on beside the program's other tasks.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Final

from pwgrid.client.http import Call, GridError, GridRefusal, Server

__all__ = ["Borrowing", "GridError", "GridRefusal", "Lease", "borrow"]

URL_VARIABLES: Final = ("PWGRID_WS_ENDPOINT", "PWGRID_URL")
DEFAULT_URL: Final = "http://127.0.0.1:8080"
TOKEN_VARIABLE: Final = "PWGRID_TOKEN"

ANSWER_S: Final = 30.0
"""How long an answer may take that depends on no slot."""

LINE_S: Final = 3600.0
"""How long a wait in the grid's line may take: the grid itself ends one that is too long (BORROW_QUEUE_TIMEOUT)."""


@dataclass(frozen=True, slots=True)
class Lease:
    """A slot that is ours until it is returned or expires. `ws_endpoint` is for one connection at a time."""

    browser_id: str
    ws_endpoint: str
    browser_type: str
    label_key: str
    expires_at: float
    """Unix seconds."""
    server: Server

    def extend(self, ttl_s: float) -> Lease:
        """The lease, which now lasts for `ttl_s` from now on. Raises GridRefusal when it is over."""
        return self._extended(self._extension(ttl_s).run())

    async def extend_async(self, ttl_s: float) -> Lease:
        """The same beside other tasks."""
        return self._extended(await asyncio.to_thread(self._extension(ttl_s).run))

    def give_back(self) -> bool:
        """Frees the slot. False where that has happened already, or the lease has expired."""
        body = {"labelKey": self.label_key, "browserId": self.browser_id}
        return bool(self.server.call("POST", "/session/return", body, ANSWER_S).run().get("returned", True))

    def _extension(self, ttl_s: float) -> Call:
        return self.server.call("PATCH", f"/v1/leases/{self.browser_id}", {"ttlSeconds": int(ttl_s)}, ANSWER_S)

    def _extended(self, answer: Mapping[str, Any]) -> Lease:
        return replace(self, expires_at=float(answer["expiresAt"]))


def borrow(
    label_key: str,
    *,
    run: str | None = None,
    run_id: str | None = None,
    ttl_s: float | None = None,
    grid: str | None = None,
    token: str | None = None,
) -> Borrowing:
    """A lease for the length of a `with` or `async with` block.

    `run` and `run_id` name the test run; runs take turns in the grid's line. `ttl_s`: how long the lease lasts, should
    nobody return it. `grid` is its URL, http://host:8080 or ws://host:8080/?token=…; without it PWGRID_WS_ENDPOINT
    or PWGRID_URL, else this host. `token` is by default that of the URL, else PWGRID_TOKEN.

    Entering the block waits for a slot as long as the grid lets it. It raises GridRefusal with the grid's sentence:
    `status` is 503 and `retry_after_s` is set where it is worth another try later.
    """
    url = grid or next(filter(None, map(os.environ.get, URL_VARIABLES)), DEFAULT_URL)
    server = Server.at(url, token, os.environ.get(TOKEN_VARIABLE))
    wish = {"labelKey": label_key, "runName": run, "runId": run_id, "ttlSeconds": None if ttl_s is None else int(ttl_s)}
    return Borrowing(server, {name: value for name, value in wish.items() if value is not None})


class Borrowing:
    """What `borrow` gives: a context manager of both kinds, which may be entered again, for another lease."""

    def __init__(self, server: Server, wish: Mapping[str, Any]) -> None:
        self._server = server
        self._wish = wish
        self._leases: list[Lease] = []

    def __enter__(self) -> Lease:
        return self._entered(self._call().run())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _at: TracebackType | None
    ) -> None:
        self._end(self._leases.pop(), kind)

    async def __aenter__(self) -> Lease:
        call = self._call()
        answer = asyncio.ensure_future(asyncio.to_thread(call.run))
        try:
            return self._entered(await asyncio.shield(answer))
        except asyncio.CancelledError:
            call.cancel()  # the grid sees that nobody waits any more
            with contextlib.suppress(GridError):
                await asyncio.to_thread(self._lease(await answer).give_back)  # the answer was on its way
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _at: TracebackType | None
    ) -> None:
        await asyncio.shield(asyncio.to_thread(self._end, self._leases.pop(), kind))

    def _call(self) -> Call:
        return self._server.call("POST", "/session/borrow", self._wish, LINE_S)

    def _entered(self, answer: Mapping[str, Any]) -> Lease:
        self._leases.append(self._lease(answer))
        return self._leases[-1]

    def _lease(self, answer: Mapping[str, Any]) -> Lease:
        return Lease(
            browser_id=answer["browserId"],
            ws_endpoint=answer["webSocketEndpoint"],
            browser_type=answer["browserType"],
            label_key=answer["labelKey"],
            expires_at=float(answer["expiresAt"]),
            server=self._server,
        )

    def _end(self, lease: Lease, kind: type[BaseException] | None) -> None:
        try:
            lease.give_back()
        except GridError:
            # The grid ends it at its time. What went wrong in the block matters more; without that, this does.
            if kind is None:
                raise
