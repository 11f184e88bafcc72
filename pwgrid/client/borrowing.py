"""Leases as context managers: takes one from a grid's API, extends it, and gives it back."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Final

from pwgrid.client.http import Call, GridError, Server

URL_VARIABLES: Final = ("PWGRID_WS_ENDPOINT", "PWGRID_URL")
DEFAULT_URL: Final = "http://127.0.0.1:8080"
TOKEN_VARIABLE: Final = "PWGRID_TOKEN"

ANSWER_S: Final = 30.0
"""How long to wait for an answer that does not depend on a free slot."""

LINE_S: Final = 3600.0
"""How long to wait in the grid's line for a slot; the grid itself ends the wait earlier (BORROW_QUEUE_TIMEOUT)."""


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
        """Makes the lease end `ttl_s` seconds from now, and returns it so. Raises GridRefusal when it has ended."""
        call = Call(self.server, "PATCH", f"/v1/leases/{self.browser_id}", {"ttlSeconds": int(ttl_s)}, ANSWER_S)
        return replace(self, expires_at=float(call.run()["expiresAt"]))

    async def extend_async(self, ttl_s: float) -> Lease:
        """`extend` for async programs: other tasks go on meanwhile."""
        return await asyncio.to_thread(self.extend, ttl_s)

    def give_back(self) -> bool:
        """Frees the slot. False if it was given back already, or the lease has expired."""
        body = {"labelKey": self.label_key, "browserId": self.browser_id}
        return bool(Call(self.server, "POST", "/session/return", body, ANSWER_S).run().get("returned", True))


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

    `run` and `run_id` name the test run; runs take turns in the grid's line. `ttl_s`: seconds after which the lease
    ends if it is not given back. `grid`: its URL, http://host:8080 or ws://host:8080/?token=…; by default
    PWGRID_WS_ENDPOINT or PWGRID_URL, else this host. `token`: by default that of the URL, else PWGRID_TOKEN.

    Entering the block waits for a slot as long as the grid allows. Raises GridRefusal with the grid's sentence: where
    another try may succeed later, `status` is 503 and `retry_after_s` is set. Raises GridError when there is no answer.
    """
    url = grid or next(filter(None, map(os.environ.get, URL_VARIABLES)), DEFAULT_URL)
    server = Server.at(url, token, os.environ.get(TOKEN_VARIABLE))
    wish = {"labelKey": label_key, "runName": run, "runId": run_id, "ttlSeconds": None if ttl_s is None else int(ttl_s)}
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
        self._enter()
        try:
            self._lease = self._lease_of(self._call().run())
        except BaseException:
            self._inside.release()
            raise
        return self._lease

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _at: TracebackType | None
    ) -> None:
        self._end(self._leave(), kind)

    async def __aenter__(self) -> Lease:
        self._enter()
        try:
            self._lease = await self._borrowed()
        except BaseException:
            self._inside.release()
            raise
        return self._lease

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _at: TracebackType | None
    ) -> None:
        await asyncio.shield(asyncio.to_thread(self._end, self._leave(), kind))

    async def _borrowed(self) -> Lease:
        call = self._call()
        answer = asyncio.ensure_future(asyncio.to_thread(call.run))
        try:
            return self._lease_of(await asyncio.shield(answer))
        except asyncio.CancelledError:
            call.cancel()  # closes the connection, so that the grid gives our place in the line to others
            with contextlib.suppress(GridError):
                await asyncio.to_thread(self._lease_of(await answer).give_back)  # the lease had been granted already
            raise

    def _enter(self) -> None:
        if not self._inside.acquire(blocking=False):
            raise RuntimeError("this borrow() is entered already, and is for one lease at a time: call borrow() again")

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
                ws_endpoint=answer["webSocketEndpoint"],
                browser_type=answer["browserType"],
                label_key=answer["labelKey"],
                expires_at=float(answer["expiresAt"]),
                server=self._server,
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
