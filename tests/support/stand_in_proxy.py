"""Stands in for the proxy: accepts TCP clients, reads their request head and hands the socket to a browser server."""

import asyncio
import contextlib
import os
import shutil
import socket
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil

from pwgrid.common.reasons import Reason, WorkerEnd
from pwgrid.common.types import BrowserType
from pwgrid.installed.browsers import FoundBrowser
from pwgrid.installed.driver import Driver
from pwgrid.settings.model import SETTINGS, Settings
from pwgrid.worker.browser.launch import LAUNCHER, LaunchSpec
from pwgrid.worker.browser.server import BrowserServer, OnClosed
from pwgrid.worker.holders import LiveSession, OfferedClient, OwnBrowser, SessionClosed
from tests.support.browsers import fit_browser
from tests.support.drivers import under_test
from tests.support.fake_grid import FAKE_LAUNCHER, launching

BOUND_S = 90.0
"""Bounds a failure; nothing is meant to take this long."""


@dataclass
class Watched:
    """A browser server, what it reported, and a TCP endpoint that hands clients over to it."""

    server: BrowserServer
    directory: Path
    closed: "asyncio.Queue[SessionClosed]" = field(default_factory=asyncio.Queue)
    gone: "asyncio.Future[Reason[WorkerEnd]]" = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    endpoint: str = ""
    port: int = 0
    handed_over: int = 0
    told: int = 0
    """Ends of sessions that a test has heard of."""
    own: OwnBrowser | None = None
    """What clients get that come from now on; None: a context of the shared browser."""

    @property
    def latest(self) -> str:
        """The session of the TCP endpoint's last client."""
        return f"{self.handed_over:016x}"

    async def next_closed(self) -> SessionClosed:
        async with asyncio.timeout(BOUND_S):
            closed = await self.closed.get()
        self.told += 1
        return closed

    async def all_closed(self) -> None:
        """Returns when every session that was handed over has been reported as ended."""
        while self.told < self.handed_over:
            await self.next_closed()

    async def why_gone(self) -> Reason[WorkerEnd]:
        async with asyncio.timeout(BOUND_S):
            return await self.gone

    async def serve(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            client, _ = await loop.sock_accept(listener)
            head = b""
            while b"\r\n\r\n" not in head:
                head += await loop.sock_recv(client, 65536)
            self.handed_over += 1
            offered = offer_of(self.latest, client, head)
            offered.session.own = self.own
            if self.own is not None:
                await self.server.acquire(self.latest, self.own.options, self.own.until)
            await self.server.hand_over(offered)
            client.close()


def spec(
    directory: Path,
    browser_type: BrowserType = "chromium",
    *,
    fake: bool = False,
    executable: str = "",
    live_view: Path | None = None,
    code_cache: Path | None = None,
    driver: Driver | None = None,
    **changes: Any,
) -> LaunchSpec:
    """What a worker would launch in `directory`: the browser of this host, or what `launching()` says instead of it.
    `driver`: another one than that under test.
    `changes` are settings; they are not checked, so a test may set times shorter than the shortest allowed."""
    assert changes.keys() <= SETTINGS.keys(), changes
    settings = Settings().model_copy(update={"launch_timeout": BOUND_S, **changes})
    browser = FoundBrowser(browser_type, "", "", "setting") if fake else fit_browser(browser_type)
    browser = replace(browser, driver=driver or under_test())
    return LaunchSpec(
        settings,
        settings.short_form(browser_type),
        replace(browser, executable=executable) if executable else browser,
        directory,
        live_view=live_view,
        code_cache=code_cache,
    )


@contextlib.contextmanager
def private_directory() -> Iterator[Path]:
    """A worker's directory. At its end no process may be left in it, and no file but those of the worker itself."""
    directory = Path(tempfile.mkdtemp(prefix="pgbs-", dir="/tmp"))
    try:
        yield directory
        assert processes_of(directory) == []
        # The worker removes all of it; a browser that was just being started for nobody yet may have left its socket.
        left = {path.name for path in directory.iterdir() if not path.match("own-*.s")}
        assert left <= {"browser.sock", "displays", "files", "node", "own", "sessions", "tmp"}
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def into(queue: asyncio.Queue[SessionClosed]) -> OnClosed:
    """Puts the ends of sessions into a queue, and says of each at once that it is on record."""

    def on_closed(closed: SessionClosed, on_record: Callable[[], None]) -> None:
        queue.put_nowait(closed)
        on_record()

    return on_closed


@contextlib.asynccontextmanager
async def browser_server(
    browser_type: BrowserType = "chromium", *, fake: bool = False, **changes: Any
) -> AsyncIterator[Watched]:
    """A running browser server behind a TCP endpoint. Afterwards nothing of it may be left."""
    with private_directory() as directory, launching(FAKE_LAUNCHER if fake else LAUNCHER):
        ours, theirs = socket.socketpair()
        queue: asyncio.Queue[SessionClosed] = asyncio.Queue()
        gone: asyncio.Future[Reason[WorkerEnd]] = asyncio.get_running_loop().create_future()
        server = await BrowserServer.start(
            spec(directory, browser_type, fake=fake, **changes),
            ours,
            theirs,
            on_closed=into(queue),
            on_gone=gone.set_result,
        )
        watched = Watched(server, directory, queue, gone)
        async with front_door(watched):
            try:
                yield watched
            finally:
                await server.stop(10)


USUAL = Settings().model_dump()
"""What a browser server has as it comes: settings that say the same make no other one."""

Servers = Callable[[dict[str, Any]], Awaitable[Watched]]


@contextlib.asynccontextmanager
async def shared_servers() -> AsyncIterator[Servers]:
    """One browser server with these settings for several tests: those that end nothing, and count neither processes nor
    targets, of which some of an earlier test may be on their way out."""
    started: dict[str, Watched] = {}
    async with contextlib.AsyncExitStack() as stack:

        async def with_settings(changes: dict[str, Any]) -> Watched:
            changed = {name: value for name, value in changes.items() if value != USUAL.get(name)}
            if (name := str(sorted(changed.items()))) not in started or started[name].gone.done():
                started[name] = await stack.enter_async_context(browser_server(**changes))
            return started[name]

        yield with_settings


@contextlib.asynccontextmanager
async def front_door(watched: Watched) -> AsyncIterator[None]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        watched.port = listener.getsockname()[1]
        watched.endpoint = f"ws://127.0.0.1:{watched.port}/"
        task = asyncio.create_task(watched.serve(listener))
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await task


def processes_of(directory: Path) -> list[psutil.Process]:
    """Every live process whose TMPDIR is in the directory of a browser server."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            is_in = Path(process.environ().get("TMPDIR", "")).is_relative_to(directory)
            if is_in and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


async def readable(fd: int) -> None:
    """Returns when `fd` is readable; for a pidfd: when the process has ended."""
    loop = asyncio.get_running_loop()
    event = asyncio.Event()
    loop.add_reader(fd, event.set)
    try:
        await event.wait()
    finally:
        loop.remove_reader(fd)


async def ended(pid: int) -> None:
    """Returns when the process has ended."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        async with asyncio.timeout(BOUND_S):
            await readable(pidfd)
    finally:
        os.close(pidfd)


HEADERS = {
    "host": "localhost",
    "upgrade": "websocket",
    "connection": "Upgrade",
    "sec-websocket-version": "13",
    "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
}
"""The headers of a client's handshake, as the browser server gets them."""


def offer(
    session_id: str, sock: socket.socket, headers: Mapping[str, str] = HEADERS, early: str = "", **told: str
) -> OfferedClient:
    """What a worker is offered; there is time, and nobody waits for the answer."""
    session = LiveSession(session_id, client_fields=told)
    return OfferedClient(session, time.monotonic() + BOUND_S, headers, early, "", sock, lambda _answer: None)


def offer_of(session_id: str, sock: socket.socket, head: bytes) -> OfferedClient:
    """The offer that a proxy would make of a client's head."""
    _, _, lines = head.partition(b"\r\n")
    pairs = (line.split(": ", 1) for line in lines.decode("latin-1").split("\r\n") if line)
    return offer(session_id, sock, {name.lower(): value for name, value in pairs})
