"""What a client has under way when it goes: the browser and Node finish it, and then nothing of it may be left."""

import asyncio
import base64
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import pytest_asyncio

from tests.hostile.calls import (
    DOWNLOAD,
    TRACED,
    browser_session,
    evaluate,
    goto,
    har_of,
    left_behind,
    page_session,
    read_stream,
    targets,
    tracing_of,
)
from tests.support.drivers import need_ffmpeg
from tests.support.grid import eventually_async
from tests.support.protocol_client import ProtocolClient, Refusal, protocol_client
from tests.support.stand_in_proxy import BOUND_S, Watched, browser_server

SHARED = 5
VIDEO = {"dir": "/of/the/client", "size": {"width": 320, "height": 240}}  # until 1.59 a client has to name one
STORED = {"cookies": [], "origins": [{"origin": "http://a.test", "localStorage": [{"name": "a", "value": "b"}]}]}


@dataclass
class Shared:
    """A browser that a client shares with another, who sees what is in it."""

    watched: Watched
    other: ProtocolClient
    session: str

    @contextlib.contextmanager
    def browser_stopped(self) -> Iterator[None]:
        """The browser answers nobody for the length of the block."""
        os.kill(self.watched.server.ready.browser_pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.watched.server.ready.browser_pid, signal.SIGCONT)

    async def left(self) -> list[str]:
        """What there is in the browser and on the host beside what the other client has."""
        contexts = (await self.other.cdp(self.session, "Target.getBrowserContexts"))["browserContextIds"]
        pages = await targets(self.other, self.session)
        processes = psutil.Process(self.watched.server.pid).children()
        browser = self.watched.server.ready.browser_pid
        return [
            *(f"context {each}" for each in contexts),
            *(f"page {each['url']}" for each in pages),
            *(f"process {each.name()}" for each in processes if each.pid != browser),
            *left_behind(self.watched),
            *(f"open file {each}" for each in self._open_files()),
        ]

    def _open_files(self) -> list[str]:
        """Those of Node that sessions have made."""
        found = []
        descriptors = Path(f"/proc/{self.watched.server.pid}/fd")
        for descriptor in descriptors.iterdir():
            with contextlib.suppress(FileNotFoundError):
                found.append(os.readlink(descriptor))
        places = tuple(str(self.watched.directory / each) for each in ("sessions", "node/playwright-artifacts"))
        return [each for each in found if each.startswith(places)]

    async def once_nothing_is_left(self) -> None:
        # What a third client asks for now is done after what was asked for before.
        async with protocol_client(self.watched.endpoint) as third:
            await third.new_page()
        await self.watched.next_closed()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(BOUND_S):
                while await self.left():
                    await asyncio.sleep(0.05)
        assert await self.left() == []


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def started() -> AsyncIterator[Watched]:
    async with browser_server(max_concurrent_sessions=SHARED) as watched:
        yield watched


@pytest_asyncio.fixture(loop_scope="session")
async def watched(started: Watched) -> AsyncIterator[Watched]:
    """One browser server for all; after each test it has no session and no file of one, and lives."""
    yield started
    await started.all_closed()
    await eventually_async(lambda: left_behind(started) == [], "nothing is left of its files")
    assert not started.gone.done()


@contextlib.asynccontextmanager
async def shared_browser(watched: Watched) -> AsyncIterator[Shared]:
    async with protocol_client(watched.endpoint) as other:
        yield Shared(watched, other, await browser_session(other))


async def goes(shared: Shared, client: ProtocolClient) -> None:
    """Its connection is dropped when Node has read all that it said, and Node knows it."""
    await client.send(client.one("Browser"), "defaultUserAgentForTest")
    client.drop()
    await shared.watched.next_closed()


# What is being made


Calls = list[tuple[str, str, dict[str, Any]]]


async def nothing(_client: ProtocolClient) -> str:
    return ""


async def a_context_with_video(client: ProtocolClient) -> str:
    need_ffmpeg()
    return await client.new_context(recordVideo=VIDEO)


async def a_session_of_a_page(client: ProtocolClient) -> str:
    context = await client.new_context()
    return await page_session(client, context, await client.new_page(context))


async def a_page_that_is_recorded(client: ProtocolClient) -> str:
    context = await client.new_context()
    page = await client.new_page(context)
    tracing = tracing_of(client, context)
    await client.send(tracing, "tracingStart", **TRACED)
    await client.send(tracing, "tracingStartChunk")
    await client.send(har_of(client, context), "harStart", options={})
    await goto(client, page, "data:text/html,of the first")
    return context


async def a_video(client: ProtocolClient) -> str:
    context = await a_context_with_video(client)
    await client.new_page(context)
    if "Artifact" not in [kind for kind, _ in client.objects.values()]:
        await client.event("video")  # an older Playwright tells of it when it has the first frame
    return context


async def a_download(client: ProtocolClient) -> str:
    context = await client.new_context(acceptDownloads="accept")
    await evaluate(client, await client.new_page(context), DOWNLOAD)
    await client.event("download")
    return context


async def a_download_that_is_half_read(client: ProtocolClient) -> str:
    context = await a_download(client)
    await client.send((await client.event("download"))["artifact"]["guid"], "saveAsStream")
    return context


async def a_file_that_is_half_sent(client: ProtocolClient) -> str:
    context = await client.new_context()
    (stream,) = (await client.send(context, "createTempFiles", items=[{"name": "x.txt"}]))["writableStreams"]
    await client.send(stream["guid"], "write", binary=base64.b64encode(b"of the client").decode())
    return context


def cdp(method: str, **params: str) -> dict[str, Any]:
    return {"method": method, "params": params}


def row(
    what: str,
    given: Callable[[ProtocolClient], Awaitable[str]],
    calls: Callable[[ProtocolClient, str], Calls],
) -> Any:
    return pytest.param(given, calls, id=what)


def browser(client: ProtocolClient) -> str:
    return client.one("Browser")


UNDER_WAY = [
    row("a context", nothing, lambda client, _: [(browser(client), "newContext", {})]),
    row("a context with state", nothing, lambda client, _: [(browser(client), "newContext", {"storageState": STORED})]),
    row("a context for reuse", nothing, lambda client, _: [(browser(client), "newContextForReuse", {})]),
    row("a page with video", a_context_with_video, lambda _, context: [(context, "newPage", {})]),
    row("a page over CDP", browser_session, lambda _, own: [(own, "send", cdp("Target.createTarget", url="data:,"))]),
    row("a context over CDP", browser_session, lambda _, own: [(own, "send", cdp("Target.createBrowserContext"))]),
    row(
        "a page over the CDP of a page",
        a_session_of_a_page,
        lambda _, own: [(own, "send", cdp("Target.createTarget", url="data:,"))],
    ),
    row("the end of a context", a_page_that_is_recorded, lambda _, context: [(context, "close", {})]),
    row("the end of a context, twice", a_page_that_is_recorded, lambda _, context: [(context, "close", {})] * 2),
    row("the end of a context with video", a_video, lambda _, context: [(context, "close", {})]),
    row("the end of a context with a download", a_download, lambda _, context: [(context, "close", {})]),
    row(
        "a video that it reads",
        a_video,
        lambda client, _: [(client.one("Artifact"), "saveAsStream", {})],
    ),
    row("a download that is half read", a_download_that_is_half_read, lambda *_: []),
    row("a file that is half sent", a_file_that_is_half_sent, lambda *_: []),
]


@pytest.mark.parametrize(("given", "calls"), UNDER_WAY)
async def test_nothing_stays_of_what_a_client_has_under_way_when_it_goes(
    watched: Watched,
    given: Callable[[ProtocolClient], Awaitable[str]],
    calls: Callable[[ProtocolClient, str], Calls],
) -> None:
    async with shared_browser(watched) as shared:
        async with protocol_client(shared.watched.endpoint) as client:
            made = await given(client)
            with shared.browser_stopped():
                for guid, method, params in calls(client, made):
                    await client.post(guid, method, **params)
                await goes(shared, client)
        await shared.once_nothing_is_left()


async def test_a_video_that_is_read_only_when_its_client_has_gone_is_closed(watched: Watched) -> None:
    moving = "<body><script>setInterval(() => document.body.append(Math.random()), 20)</script>"
    async with shared_browser(watched) as shared:
        async with protocol_client(shared.watched.endpoint) as client:
            await a_video(client)
            await goto(client, client.one("Page"), f"data:text/html,{moving}")
            videos = shared.watched.directory / "sessions"
            await eventually_async(lambda: [*videos.rglob("*.webm")], "ffmpeg has begun to write")
            with shared.browser_stopped():
                await client.post(client.one("Artifact"), "saveAsStream")
                await goes(shared, client)
        await shared.once_nothing_is_left()


async def test_a_client_of_which_no_file_is_written_gets_no_directory(watched: Watched) -> None:
    async with shared_browser(watched) as shared, protocol_client(shared.watched.endpoint) as client:
        await client.new_page()
        assert left_behind(shared.watched) == []


async def test_what_is_made_when_nobody_waits_for_it_any_more_is_removed_too(watched: Watched) -> None:
    async with shared_browser(watched) as shared:
        async with protocol_client(shared.watched.endpoint) as client:
            await client.send(await a_video(client), "close")
            assert left_behind(shared.watched) != []
            with shared.browser_stopped():
                await client.post(browser(client), "newContext")
                await goes(shared, client)
                await eventually_async(lambda: left_behind(shared.watched) == [], "its end was waited for long enough")
        await shared.once_nothing_is_left()


async def test_a_download_is_in_the_directory_of_its_client(watched: Watched) -> None:
    # Stock Firefox gives a file the name that its page wants; those of two clients could be one. (Debian's tells none.)
    async with shared_browser(watched) as shared, protocol_client(shared.watched.endpoint) as client:
        for each in (client, shared.other):
            await a_download(each)
            stream = await each.send((await each.event("download"))["artifact"]["guid"], "saveAsStream")
            assert await read_stream(each, stream["stream"]["guid"]) == b"of the page"
        files = [path for path in left_behind(shared.watched) if (shared.watched.directory / path).is_file()]
        directories = {Path(path).parent for path in files}
        assert (len(files), len(directories)) == (2, 2)
        assert {each.parent.name for each in directories} == {"sessions"}


async def test_a_context_that_cannot_be_set_up_ends_with_its_session(watched: Watched) -> None:
    async with shared_browser(watched) as shared:
        async with protocol_client(shared.watched.endpoint) as client:
            with pytest.raises(Refusal, match="Unknown permission"):
                await client.new_context(permissions=["to do nonsense"])
        await shared.watched.next_closed()
        await shared.once_nothing_is_left()


# What hangs or fails


@pytest.mark.parametrize("closes", [False, True])
async def test_a_client_whose_ffmpeg_hangs_leaves_nothing(watched: Watched, closes: bool) -> None:
    async with shared_browser(watched) as shared:
        async with protocol_client(shared.watched.endpoint) as client:
            context = await a_video(client)
            # By its own name: Node itself stands still while a child that is yet to become ffmpeg does.
            (ffmpeg,) = await eventually_async(
                lambda: [
                    each
                    for each in psutil.Process(shared.watched.server.pid).children()
                    if each.name().startswith("ffmpeg")
                ],
                "ffmpeg runs",
            )
            ffmpeg.suspend()
            if closes:
                await client.post(context, "close")
            await goes(shared, client)
        await shared.once_nothing_is_left()


async def test_a_context_whose_close_hangs_is_closed_all_the_same(watched: Watched) -> None:
    async def half_an_answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 1000\r\n\r\nhalf")
        await reader.read()
        writer.close()

    async with shared_browser(watched) as shared, await asyncio.start_server(half_an_answer, "127.0.0.1", 0) as site:
        async with protocol_client(shared.watched.endpoint) as client:
            context = await client.new_context()
            page = await client.new_page(context)
            # A HAR waits for the rest of the answer.
            await client.send(har_of(client, context), "harStart", options={"content": "attach"})
            url = f"http://127.0.0.1:{site.sockets[0].getsockname()[1]}/"
            await client.send(client.frame(page), "goto", url=url, timeout=BOUND_S * 1000, waitUntil="commit")
            await client.post(context, "close")
            await goes(shared, client)
        await shared.once_nothing_is_left()


@pytest.mark.parametrize("closes", [False, True])
async def test_a_client_whose_files_cannot_be_written_leaves_none(watched: Watched, closes: bool) -> None:
    async with shared_browser(watched) as shared, protocol_client(shared.watched.endpoint) as client:
        context = await a_page_that_is_recorded(client)
        with nothing_written_by(shared.watched.server.pid):
            await goto(client, client.one("Page"), "data:text/html,what is not recorded")
            if closes:
                await client.post(context, "close")
            await goes(shared, client)
            await shared.once_nothing_is_left()


@contextlib.contextmanager
def nothing_written_by(pid: int) -> Iterator[None]:
    """This process can make files for the length of the block, but write nothing into them."""
    limits = psutil.Process(pid).rlimit(psutil.RLIMIT_FSIZE)
    psutil.Process(pid).rlimit(psutil.RLIMIT_FSIZE, (0, limits[1]))
    try:
        yield
    finally:
        psutil.Process(pid).rlimit(psutil.RLIMIT_FSIZE, limits)


# The record of a browser


@contextlib.asynccontextmanager
async def one_record_after_another(shared: Shared) -> AsyncIterator[None]:
    """At the end of the block the other client can start a record, so those of the block have ended and their files are
    written; that one is over when the next test may want one."""
    yield
    await records(shared.other)
    await shared.once_nothing_is_left()
    await shared.other.send(browser(shared.other), "stopTracing")


async def records(client: ProtocolClient) -> None:
    """Starts a record, once that of another has ended."""
    async with asyncio.timeout(BOUND_S):
        while True:
            try:
                await client.send(browser(client), "startTracing")
            except Refusal as error:
                if "already" not in str(error):
                    raise
            else:
                return


@pytest.mark.parametrize(
    ("before", "under_way"),
    [("", "startTracing"), ("startTracing", "stopTracing"), ("startTracing", "")],
    ids=["its start", "its stop", "the record"],
)
async def test_a_record_of_the_browser_under_way_ends_with_its_client(
    watched: Watched, before: str, under_way: str
) -> None:
    async with shared_browser(watched) as shared, one_record_after_another(shared):
        async with protocol_client(shared.watched.endpoint) as client:
            if before:
                await client.send(browser(client), before)
            with shared.browser_stopped():
                if under_way:
                    await client.post(browser(client), under_way)
                await goes(shared, client)
        async with protocol_client(shared.watched.endpoint) as third:
            await records(third)
        await shared.watched.next_closed()


async def test_a_record_whose_stop_has_failed_still_has_its_owner(watched: Watched) -> None:
    async with shared_browser(watched) as shared, one_record_after_another(shared):
        async with protocol_client(shared.watched.endpoint) as client:
            await client.send(browser(client), "startTracing")
            with nothing_written_by(shared.watched.server.pid), pytest.raises(Refusal, match="EFBIG"):
                await client.send(browser(client), "stopTracing")
            with pytest.raises(Refusal) as caught:
                await client.send(browser(client), "stopTracing")
            assert "this session did not start it" not in str(caught.value)
        await shared.watched.next_closed()


async def test_what_a_client_has_switched_on_for_the_whole_browser_ends_with_it(watched: Watched) -> None:
    async with shared_browser(watched) as shared, one_record_after_another(shared):
        async with protocol_client(shared.watched.endpoint) as client:
            await client.cdp(await browser_session(client), "Tracing.start", categories="-*,toplevel")
        await shared.watched.next_closed()
