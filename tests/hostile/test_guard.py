"""What a connected client did to the host and to others, by the message that did it: refused, or its own matter."""

import asyncio
import base64
import contextlib
import json
import os
import signal
import zipfile
from collections.abc import AsyncIterator, Awaitable
from io import BytesIO
from pathlib import Path
from typing import Any

import psutil
import pytest
import pytest_asyncio
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from pwgrid.installed.browsers import find_browser
from pwgrid.installed.driver import own_driver
from pwgrid.settings.model import Settings
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
    recorder,
    targets,
    title,
    tracing_of,
)
from tests.hostile.messages import CRASHES_THE_BROWSER
from tests.support.drivers import under_test
from tests.support.grid import eventually_async
from tests.support.protocol_client import ProtocolClient, Refusal, protocol_client
from tests.support.stand_in_proxy import (
    BOUND_S,
    Servers,
    Watched,
    browser_server,
    processes_of,
    readable,
    shared_servers,
)

SHARED = 5
GUARDED = "CLIENT_GUARD=off allows it"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def servers() -> AsyncIterator[Servers]:
    async with shared_servers() as started:
        yield started


@pytest_asyncio.fixture(loop_scope="session")
async def watched(servers: Servers, request: pytest.FixtureRequest) -> AsyncIterator[Watched]:
    """The shared one with the settings that `with_shared` says; after the test it has no session, and lives."""
    shared = await servers(request.param)
    yield shared
    await shared.all_closed()
    assert not shared.gone.done()


def with_shared(*changes: dict[str, Any]) -> pytest.MarkDecorator:
    """For tests that take the fixture `watched`: a browser server with each of these settings in turn."""
    return pytest.mark.parametrize("watched", changes, indirect=True, ids=str)


async def refused(call: Awaitable[Any], why: str) -> None:
    with pytest.raises(Refusal) as caught:
        await call
    assert why in str(caught.value)


async def downloaded(client: ProtocolClient) -> str:
    """The artifact of a download."""
    page = await client.new_page(await client.new_context(acceptDownloads="accept"))
    await evaluate(client, page, DOWNLOAD)
    return str((await client.event("download"))["artifact"]["guid"])


# Further browsers


async def test_a_recorder_is_refused_and_starts_no_process() -> None:
    async with browser_server() as watched, protocol_client(watched.endpoint) as client:
        context = await client.new_context()
        before = {process.pid for process in processes_of(watched.directory)}
        await refused(client.send(context, recorder()), f"it starts another browser on the host ({GUARDED})")
        assert {process.pid for process in processes_of(watched.directory)} == before


async def test_without_a_guard_the_processes_that_a_session_started_end_with_it() -> None:
    async with browser_server(client_guard="off") as watched:
        before = {process.pid for process in processes_of(watched.directory)}
        async with protocol_client(watched.endpoint) as client:
            context = await client.new_context(noDefaultViewport=True)
            shown = asyncio.ensure_future(client.send(context, recorder()))
            node = psutil.Process(watched.server.pid)
            await eventually_async(lambda: len(node.children()) > 1, "the recorder's browser runs")
            shown.cancel()
        await watched.next_closed()
        await eventually_async(
            lambda: {each.pid for each in processes_of(watched.directory)} <= before and len(node.children()) == 1,
            "only the browser's own processes are left",
        )


# Files of the host


@with_shared({})
async def test_saving_a_download_on_the_host_is_refused_and_as_a_stream_it_arrives(
    watched: Watched, tmp_path: Path
) -> None:
    lock = tmp_path / "lock"
    lock.write_text("the grid's own")
    async with protocol_client(watched.endpoint) as client:
        artifact = await downloaded(client)
        await refused(client.send(artifact, "saveAs", path=str(lock)), "it writes a file of the host, and saveAsStream")
        await refused(client.send(artifact, "pathAfterFinished"), "it tells a path of the host")
        stream = (await client.send(artifact, "saveAsStream"))["stream"]["guid"]
        assert await read_stream(client, stream) == b"of the page"
    assert lock.read_text() == "the grid's own"


@pytest.mark.parametrize("method", ["tracingStart", "tracingStartChunk"])
@pytest.mark.parametrize("name", ["../../../escaped", "a/../../escaped", "a/b/../../../escaped"])
@with_shared({})
async def test_the_name_of_a_trace_does_not_lead_out_of_the_sessions_directory(
    watched: Watched, method: str, name: str
) -> None:
    async with protocol_client(watched.endpoint) as client:
        tracing = tracing_of(client, await client.new_context())
        if method == "tracingStartChunk":
            await client.send(tracing, "tracingStart")
        await refused(client.send(tracing, method, name=name), "its name leads out of the directory of the session")
        assert not list(watched.directory.rglob("*escaped*"))


async def test_a_trace_with_a_name_stays_in_the_sessions_directory() -> None:
    async with browser_server() as watched, protocol_client(watched.endpoint) as client:
        tracing = tracing_of(client, await client.new_context())
        await client.send(tracing, "tracingStart", name="one")
        await client.send(tracing, "tracingStartChunk", name="a/../two")
        artifact = (await client.send(tracing, "tracingStopChunk", mode="archive"))["artifact"]["guid"]
        path = Path(client.objects[artifact][1]["absolutePath"])
        assert path.parent.parent == watched.directory / "sessions"
        stream = (await client.send(artifact, "saveAsStream"))["stream"]["guid"]
        assert "trace.trace" in zipfile.ZipFile(BytesIO(await read_stream(client, stream))).namelist()


@with_shared({})
async def test_paths_in_har_and_video_options_are_of_the_clients_host(watched: Watched, tmp_path: Path) -> None:
    async with protocol_client(watched.endpoint) as client:
        context = await client.new_context()
        recording = har_of(client, context)
        options = {"harPath": str(tmp_path / "x.har"), "resourcesDir": str(tmp_path / "resources")}
        har = (await client.send(recording, "harStart", options=options))["harId"]
        page = await client.new_page(context)
        await goto(client, page, "data:text/html,<title>x</title>")
        await refused(client.send(recording, "harExport", harId=har, mode="entries"), "it tells paths of the host")
        await client.send(recording, "harExport", harId=har, mode="archive")
        video = {"dir": str(tmp_path / "videos"), "size": {"width": 320, "height": 240}}
        made = await client.send(client.one("Browser"), "newContextForReuse", recordVideo=video)
        with contextlib.suppress(Refusal):  # no ffmpeg here; where it is, it writes into the session's directory
            await client.new_page(made["context"]["guid"])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("files", [{"localDirectory": "/etc"}, {"localPaths": ["/etc/hostname"]}])
@with_shared({})
async def test_files_of_the_host_are_no_upload(watched: Watched, files: dict[str, Any]) -> None:
    async with protocol_client(watched.endpoint) as client:
        page = await client.new_page()
        await client.send(client.frame(page), "setContent", html="<input type=file webkitdirectory>", timeout=5000)
        frame = client.frame(page)
        upload = client.send(frame, "setInputFiles", selector="input", strict=True, timeout=5000, **files)
        await refused(upload, f"it reads files of the host, and createTempFiles takes those of the client ({GUARDED})")
        handle = (await client.send(frame, "querySelector", selector="input"))["element"]["guid"]
        await refused(client.send(handle, "setInputFiles", timeout=5000, **files), "it reads files of the host")
        assert await evaluate(client, page, "document.querySelector('input').files.length") == {"n": 0}


@with_shared({"max_concurrent_sessions": SHARED})
async def test_uploads_lie_in_the_sessions_own_directory_whatever_they_are_called(watched: Watched) -> None:
    async with protocol_client(watched.endpoint) as other:
        await other.send(await other.new_context(), "createTempFiles", items=[{"name": "secret.txt"}])
        async with protocol_client(watched.endpoint) as client:
            page = await client.new_page()
            context = client.one("BrowserContext")
            made = await client.send(context, "createTempFiles", rootDirName="..", items=[{"name": "evil.txt"}])
            stream = made["writableStreams"][0]["guid"]
            await client.send(stream, "write", binary=base64.b64encode(b"mine").decode())
            await client.send(stream, "close")
            await client.send(client.frame(page), "setContent", html="<input type=file webkitdirectory>", timeout=5000)
            upload = {"selector": "input", "strict": True, "timeout": 5000, "directoryStream": made["rootDir"]}
            await client.send(client.frame(page), "setInputFiles", **upload)
            names = "JSON.stringify([...document.querySelector('input').files].map(each => each.name))"
            assert await evaluate(client, page, names) == {"s": '["evil.txt"]'}


@pytest.mark.parametrize("name", ["../escaped", "a/../../escaped", "../../../../../../../../../../tmp/escaped"])
@with_shared({})
async def test_the_name_of_an_upload_does_not_lead_out_of_the_sessions_directory(watched: Watched, name: str) -> None:
    async with protocol_client(watched.endpoint) as client:
        context = await client.new_context()
        for items in ([{"name": name}], [{"name": "x.txt"}, {"name": name, "lastModifiedMs": 1}]):
            call = client.send(context, "createTempFiles", items=items)
            await refused(call, f"the name of a file leads out of the directory of the session ({GUARDED})")
        made = await client.send(context, "createTempFiles", rootDirName="top", items=[{"name": "sub/../x.txt"}])
        assert len(made["writableStreams"]) == 1
    written = [name for _, _, names in os.walk(watched.directory) for name in names]  # some are being removed
    assert "escaped" not in written


async def test_what_a_session_has_written_goes_with_it() -> None:
    async with browser_server(max_concurrent_sessions=SHARED) as watched:
        async with protocol_client(watched.endpoint) as client:
            context = await client.new_context(acceptDownloads="accept")
            page = await client.new_page(context)
            tracing = tracing_of(client, context)
            await client.send(tracing, "tracingStart", **TRACED, snapshotScreen=True)
            await client.send(tracing, "tracingStartChunk")
            await client.send(har_of(client, context), "harStart", options={})
            await client.send(context, "createTempFiles", items=[{"name": "upload.txt"}])
            await evaluate(client, page, DOWNLOAD)
            await client.event("download")
            await client.send(tracing, "tracingStopChunk", mode="archive")
            await client.send(client.one("Browser"), "startTracing")
            await client.send(client.one("Browser"), "stopTracing")
            assert len(left_behind(watched)) > 6
        await watched.next_closed()
        await eventually_async(lambda: left_behind(watched) == [], "nothing is left of its files")


@with_shared({"max_concurrent_sessions": SHARED})
async def test_two_clients_who_count_their_calls_alike_get_each_their_own_trace(watched: Watched) -> None:
    async with (
        protocol_client(watched.endpoint) as first,
        protocol_client(watched.endpoint) as second,
    ):
        pictures: list[dict[str, bytes]] = []
        traces: list[bytes] = []
        for client, colour in ((first, "red"), (second, "blue")):
            context = await client.new_context(viewport={"width": 20, "height": 20})
            page = await client.new_page(context)
            tracing = tracing_of(client, context)
            await client.send(tracing, "tracingStart", snapshotScreen=True)
            await client.send(tracing, "tracingStartChunk")
            await goto(client, page, f"data:text/html,<body style='background:{colour}'>")
        for client in (first, second):
            tracing = client.objects[client.one("BrowserContext")][1]["tracing"]["guid"]
            artifact = (await client.send(tracing, "tracingStopChunk", mode="archive"))["artifact"]["guid"]
            stream = (await client.send(artifact, "saveAsStream"))["stream"]["guid"]
            archive = zipfile.ZipFile(BytesIO(await read_stream(client, stream)))
            traces.append(archive.read("trace.trace"))
            pictures.append({name: archive.read(name) for name in archive.namelist() if name.endswith("-after.png")})
        for colour, expected in ((b":red", [True, False]), (b":blue", [False, True])):
            assert [colour in each for each in traces] == expected
        assert pictures[0].keys() == pictures[1].keys()
        assert pictures[0] or under_test() != own_driver()  # older ones have no pictures that are named after calls
        assert not set(pictures[0].values()) & set(pictures[1].values())


# Messages that are none

TRAVERSAL = {"id": "../../../escaped", "guid": "", "method": "initialize", "params": {"sdkLanguage": "python"}}


@pytest.mark.parametrize(
    "message",
    [
        None,
        7,
        "text",
        [],
        {},
        {"id": 1, "guid": 5, "method": "initialize"},
        {"id": 1, "guid": "", "method": ["initialize"]},
        {"id": {"toString": "x"}, "guid": "", "method": "initialize"},
        {"id": 1, "guid": "", "method": "__abort__"},
        TRAVERSAL,
    ],
    ids=str,
)
@with_shared({"max_concurrent_sessions": SHARED})
async def test_what_is_no_call_ends_the_connection_and_is_not_logged(watched: Watched, message: Any) -> None:
    async with protocol_client(watched.endpoint) as other:
        async with connect(watched.endpoint) as websocket:
            await websocket.send(json.dumps(message))
            with pytest.raises(ConnectionClosed) as caught:
                await asyncio.wait_for(websocket.recv(), BOUND_S)
            assert caught.value.rcvd is not None
            assert caught.value.rcvd.code == 1007
        assert str((await watched.next_closed()).end.reason) == "protocol error (1007)"
        assert await title(other, await other.new_page()) == ""
        assert watched.server.evidence == ""


# A browser that others share

ENDINGS = ["Browser.close", "Browser.crash", "Browser.crashGpuProcess"]


def tunnel(session: str, method: str) -> dict[str, Any]:
    return {"sessionId": session, "message": json.dumps({"id": 1, "method": method, "params": {}})}


@pytest.mark.parametrize("method", ENDINGS)
@with_shared(*({"max_concurrent_sessions": SHARED, "client_guard": guard} for guard in ("compatible", "strict")))
async def test_a_client_that_ends_a_shared_browser_ends_its_own_session(watched: Watched, method: str) -> None:
    async with protocol_client(watched.endpoint) as other:
        page = await other.new_page()
        await goto(other, page, "data:text/html,<title>untouched</title>")
        async with protocol_client(watched.endpoint) as client:
            own = await client.new_page()
            session = await page_session(client, client.one("BrowserContext"), own)
            assert await client.cdp(session, method) == {}
            assert await asyncio.wait_for(client.ended, BOUND_S) == "client closed the browser"
        closed = await watched.next_closed()
        assert (closed.end.by, str(closed.end.reason)) == ("client", "client closed the browser")
        assert await title(other, page) == "untouched"
        assert not watched.gone.done()


@pytest.mark.parametrize("method", ENDINGS)
@with_shared({"max_concurrent_sessions": SHARED})
async def test_in_compatible_also_over_the_browsers_own_session_and_through_a_tunnel(
    watched: Watched, method: str
) -> None:
    async with protocol_client(watched.endpoint) as other:
        page = await other.new_page()
        for tunnelled in (False, True):
            async with protocol_client(watched.endpoint) as client:
                session = await browser_session(client)
                inner = await client.cdp(session, "Target.attachToBrowserTarget") if tunnelled else {}
                if tunnelled:
                    command = "Target.sendMessageToTarget", tunnel(inner["sessionId"], method)
                else:
                    command = method, {}
                await client.cdp(session, command[0], **command[1])
                assert await asyncio.wait_for(client.ended, BOUND_S) == "client closed the browser"
            await watched.next_closed()
            assert await title(other, page) == ""


async def redirect(client: ProtocolClient, url: str) -> None:
    """Goes to a page of the web and has Playwright go to `url` in its place."""
    context = await client.new_context()
    page = await client.new_page(context)
    await client.send(context, "setNetworkInterceptionPatterns", patterns=[{"glob": "**/*"}])
    going = await client.post(client.frame(page), "goto", url="http://localhost/", timeout=0)
    route = (await client.event("route"))["route"]["guid"]
    try:
        await client.send(route, "redirectNavigationRequest", url=url)
    finally:
        await client.send(page, "close")
        await going


@contextlib.asynccontextmanager
async def redirecting_server(url: str) -> AsyncIterator[str]:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(
            f"HTTP/1.1 302 Found\r\nLocation: {url}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode()
        )
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        yield f"http://{host}:{port}/"


@pytest.mark.parametrize("url", ["chrome://inducebrowsercrashforrealz", "chrome://uithreadhang", "chrome://settings"])
@with_shared({"max_concurrent_sessions": SHARED, "client_guard": "strict"})
async def test_no_client_takes_a_shared_browser_to_a_page_of_its_own(watched: Watched, url: str) -> None:
    closed = "a browser that others share opens only web pages, files and data (CLIENT_GUARD=off or"
    async with protocol_client(watched.endpoint) as other, protocol_client(watched.endpoint) as client:
        untouched = await other.new_page()
        await goto(other, untouched, "data:text/html,<title>untouched</title>")
        page = await client.new_page()
        session = await page_session(client, client.one("BrowserContext"), page)
        await refused(client.cdp(session, "Page.navigate", url=url, transitionType="address_bar"), closed)
        await refused(client.cdp(session, "Target.createTarget", url=url), closed)
        await refused(goto(client, page, url), closed)
        await refused(goto(client, await client.new_page(await client.new_context(baseURL=url)), "#x"), closed)
        stored = {"origins": [{"origin": url, "localStorage": []}]}
        await refused(client.new_context(storageState=stored), closed)
        await refused(redirect(client, url), closed)
        async with redirecting_server(url) as server:
            await refused(goto(client, page, server), "net::ERR_UNSAFE_REDIRECT")  # the browser's own rule
        page = await client.new_page()
        for script in (f"window.open('{url}')", f"location = '{url}'"):
            await evaluate(client, page, script)
        assert await title(other, untouched) == "untouched"


@with_shared({"max_concurrent_sessions": SHARED, "client_guard": "strict"})
async def test_no_values_over_cdp_crash_a_shared_browser(watched: Watched) -> None:
    async with protocol_client(watched.endpoint) as client:
        page = await client.new_page()
        session = await page_session(client, client.one("BrowserContext"), page)
        for method, params in CRASHES_THE_BROWSER:
            await refused(client.cdp(session, method, **params), f"{method} crashes the browser, and others share it")
        assert await title(client, page) == ""


@with_shared({"max_concurrent_sessions": SHARED, "client_guard": "strict"})
async def test_who_crashes_the_gpu_process_again_and_again_ends_nobody(watched: Watched) -> None:
    async with protocol_client(watched.endpoint) as other, protocol_client(watched.endpoint) as client:
        untouched = await other.new_page()
        await goto(other, untouched, "data:text/html,<title>untouched</title>")
        page = await client.new_page()
        await goto(client, page, "data:text/html,<body style='height: 1000000px'>")
        for _ in range(4):
            picture = client.send(page, "screenshot", type="png", fullPage=True, timeout=BOUND_S * 1000)
            await refused(picture, "Unable to capture screenshot")
        assert (await other.send(untouched, "screenshot", type="png", timeout=BOUND_S * 1000))["binary"]
        assert await title(other, untouched) == "untouched"


async def test_in_compatible_a_session_of_the_browser_works() -> None:
    async with browser_server(max_concurrent_sessions=SHARED) as watched, protocol_client(watched.endpoint) as client:
        session = await browser_session(client)
        assert (await client.cdp(session, "Browser.getVersion"))["product"]
        await client.new_page()
        assert len(await targets(client, session)) == 1


@with_shared({"max_concurrent_sessions": SHARED, "client_guard": "strict"})
async def test_in_strict_no_session_reaches_beyond_its_own_page(watched: Watched) -> None:
    strict = "MAX_CONCURRENT_SESSIONS=1 allows it"
    async with (
        protocol_client(watched.endpoint) as other,
        protocol_client(watched.endpoint) as client,
    ):
        await goto(other, await other.new_page(), "data:text/html,<title>secret</title>")
        await refused(
            browser_session(client), f"it sees and ends the sessions of others (CLIENT_GUARD=compatible or {strict}"
        )
        await refused(client.send(client.one("Browser"), "startTracing"), strict)
        page = await client.new_page()
        session = await page_session(client, client.one("BrowserContext"), page)
        for method, params in (
            ("Target.getTargets", {}),
            ("Target.attachToTarget", {"targetId": "x", "flatten": False}),
            ("Target.createTarget", {"url": "about:blank"}),
            ("Target.setDiscoverTargets", {"discover": True}),
            ("Storage.getCookies", {"browserContextId": "x"}),
            ("Browser.getHistograms", {}),
            ("Tracing.start", {}),
            ("Target.sendMessageToTarget", tunnel("x", "Target.getTargets")),
        ):
            await refused(client.cdp(session, method, **params), strict)
        assert (await client.cdp(session, "Runtime.evaluate", expression="6 * 7"))["result"]["value"] == 42
        assert (await client.cdp(session, "Page.captureScreenshot"))["data"]
        await client.cdp(session, "Target.setAutoAttach", autoAttach=True, waitForDebuggerOnStart=False, flatten=True)


async def test_who_has_a_browser_alone_may_do_all_that_with_it() -> None:
    async with browser_server(max_concurrent_sessions=1, client_guard="strict") as watched:
        async with protocol_client(watched.endpoint) as client:
            session = await browser_session(client)
            await client.send(client.one("Browser"), "startTracing")
            await client.send(client.one("Browser"), "stopTracing")
            await client.new_page()
            assert len(await targets(client, session)) == 1
            with contextlib.suppress(Refusal):  # the end of its browser may be faster than the answer
                await client.cdp(session, "Browser.close")
        assert str(await watched.why_gone()) == "browser ended (exit 0)"


async def starts_tracing(client: ProtocolClient) -> bool:
    async with asyncio.timeout(BOUND_S):
        while True:
            try:
                await client.send(client.one("Browser"), "startTracing")
            except Refusal as error:
                if "already" not in str(error):
                    raise
            else:
                return True


@pytest.mark.parametrize("of", ["the browser", "a page"])
@with_shared({"max_concurrent_sessions": SHARED})
async def test_the_record_of_a_browser_goes_to_nobody_but_who_started_it(watched: Watched, of: str) -> None:
    async with protocol_client(watched.endpoint) as first:
        async with protocol_client(watched.endpoint) as second:
            recorded = {"page": {"guid": await second.new_page()}} if of == "a page" else {}
            await second.send(second.one("Browser"), "startTracing", **recorded)
            await refused(first.send(first.one("Browser"), "stopTracing"), "this session did not start it")
        await watched.next_closed()

        assert await starts_tracing(first)  # its leaving has ended it
        await first.send(first.one("Browser"), "stopTracing")


@pytest.mark.parametrize("guard", ["compatible", "strict", "off"])
@pytest.mark.parametrize("slots", [1, SHARED])
async def test_a_context_is_reused_by_its_own_connection_alone(servers: Servers, guard: str, slots: int) -> None:
    watched = await servers({"max_concurrent_sessions": slots, "client_guard": guard})
    async with protocol_client(watched.endpoint) as first, protocol_client(watched.endpoint) as second:
        made = []
        for client in (first, second, first):
            answer = await client.send(client.one("Browser"), "newContextForReuse")
            made.append(answer["context"]["guid"])
        assert made[0] == made[2] != made[1]
        await goto(first, await first.new_page(made[0]), "data:text/html,<title>of the first</title>")
        await second.send(second.one("Browser"), "disconnectFromReusedContext", reason="done")
        assert made[0] in first.objects
    await watched.all_closed()
    async with protocol_client(watched.endpoint) as third:
        session = await browser_session(third) if guard != "strict" or slots == 1 else ""
        if session:
            contexts = (await third.cdp(session, "Target.getBrowserContexts"))["browserContextIds"]
            while contexts:  # they are closed while this one connects
                contexts = (await third.cdp(session, "Target.getBrowserContexts"))["browserContextIds"]
    await watched.all_closed()


async def test_contexts_and_pages_that_were_made_over_cdp_end_with_their_session() -> None:
    async with browser_server(max_concurrent_sessions=SHARED) as watched, protocol_client(watched.endpoint) as other:
        session = await browser_session(other)
        async with protocol_client(watched.endpoint) as client:
            theirs = await browser_session(client)
            context = (await client.cdp(theirs, "Target.createBrowserContext"))["browserContextId"]
            await client.cdp(theirs, "Target.createTarget", url="about:blank", browserContextId=context)
            await client.cdp(theirs, "Target.createTarget", url="about:blank")
            assert len(await targets(other, session)) == 2
        await watched.next_closed()
        async with asyncio.timeout(BOUND_S):
            while await targets(other, session):
                pass
        assert (await other.cdp(session, "Target.getBrowserContexts"))["browserContextIds"] == []


@pytest.mark.parametrize("slots", [1, SHARED])
async def test_no_page_gets_the_protocol_itself_since_nobody_would_see_what_it_asks_for(slots: int) -> None:
    async with browser_server(max_concurrent_sessions=slots) as watched, protocol_client(watched.endpoint) as client:
        page = await client.new_page()
        session = await browser_session(client)
        (target,) = await targets(client, session)
        expose = client.cdp(session, "Target.exposeDevToolsProtocol", targetId=target["targetId"])
        await refused(expose, f"lets a page reach files of the host, and all of the browser ({GUARDED})")
        await goto(client, page, "data:text/html,")
        assert (await evaluate(client, page, "typeof cdp"))["s"] == "undefined"


async def test_without_a_guard_a_page_may_have_the_protocol() -> None:
    async with (
        browser_server(max_concurrent_sessions=SHARED, client_guard="off") as watched,
        protocol_client(watched.endpoint) as client,
    ):
        page = await client.new_page()
        session = await browser_session(client)
        (target,) = await targets(client, session)
        await client.cdp(session, "Target.exposeDevToolsProtocol", targetId=target["targetId"])
        await goto(client, page, "data:text/html,")
        assert (await evaluate(client, page, "typeof cdp"))["s"] == "object"


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": "/tmp"}),
        ("Page.setDownloadBehavior", {"behavior": "allow", "downloadPath": "/tmp"}),
        ("DOM.setFileInputFiles", {"files": ["/etc/hostname"], "nodeId": 1}),
        (
            "Input.dispatchDragEvent",
            {"type": "drop", "x": 1, "y": 1, "data": {"items": [], "files": ["/etc/hostname"]}},
        ),
        (
            "Target.sendMessageToTarget",
            {"message": '{"id":1,"method":"DOM.setFileInputFiles","params":{"files":["/x"]}}'},
        ),
    ],
)
@with_shared({"max_concurrent_sessions": 1}, {"max_concurrent_sessions": SHARED})
async def test_paths_of_the_host_are_refused_over_cdp(watched: Watched, method: str, params: dict[str, Any]) -> None:
    async with protocol_client(watched.endpoint) as client:
        page = await client.new_page()
        session = await page_session(client, client.one("BrowserContext"), page)
        await refused(client.cdp(session, method, **params), f"of the host ({GUARDED})")


@pytest.mark.parametrize("before", ["/**/", "//\n", "\v"])
@with_shared(
    {"max_concurrent_sessions": SHARED},
    {"max_concurrent_sessions": 1, "client_guard": "off", "block_file_urls": "on"},
)
async def test_a_tunnelled_text_that_only_the_browsers_own_parser_takes_is_refused(
    watched: Watched, before: str
) -> None:
    message = before + tunnel("", "Target.getTargets")["message"]
    async with protocol_client(watched.endpoint) as client:
        page = await client.new_page()
        session = await page_session(client, client.one("BrowserContext"), page)
        await refused(
            client.cdp(session, "Target.sendMessageToTarget", sessionId="x", message=message), "a text that is not JSON"
        )


NO_TEXT: dict[str, Any] = {"toString": 1, "valueOf": 1}


@with_shared({"max_concurrent_sessions": SHARED})
async def test_a_text_that_is_none_is_refused_by_playwright(watched: Watched) -> None:
    async with protocol_client(watched.endpoint) as client:
        context = await client.new_context()
        page = await client.new_page(context)
        session = await page_session(client, context, page)
        await refused(client.send(session, "send", method=NO_TEXT), "method: expected string")
        await refused(client.send(client.frame(page), "goto", url=NO_TEXT), "url: expected string")
        tracing = client.one("Tracing")
        await refused(client.send(tracing, "tracingStart", name=NO_TEXT), "name: expected string")
    assert watched.server.evidence == ""


# A browser that is dying


async def test_a_browser_that_is_dying_admits_nobody() -> None:
    async with browser_server(max_concurrent_sessions=SHARED, client_guard="off") as watched:
        async with protocol_client(watched.endpoint) as client:
            session = await browser_session(client)
            os.kill(watched.server.ready.browser_pid, signal.SIGSTOP)  # it takes its time
            try:
                crash = asyncio.ensure_future(client.cdp(session, "Browser.crash"))
                await client.send(client.one("Browser"), "defaultUserAgentForTest")  # Node has read the one before, too
                with pytest.raises(Exception, match="503"):
                    await connect(watched.endpoint)
            finally:
                os.kill(watched.server.ready.browser_pid, signal.SIGCONT)
            with pytest.raises(Refusal):
                await crash
        assert str(await watched.why_gone()).startswith("browser ended (")


async def test_a_browser_that_does_not_do_what_it_was_told_is_ended() -> None:
    async with browser_server(max_concurrent_sessions=1) as watched:
        pidfd = os.pidfd_open(watched.server.ready.browser_pid)
        try:
            async with protocol_client(watched.endpoint) as client:
                session = await browser_session(client)
                os.kill(watched.server.ready.browser_pid, signal.SIGSTOP)
                closing = asyncio.ensure_future(client.cdp(session, "Browser.close"))
                async with asyncio.timeout(BOUND_S):
                    await readable(pidfd)
                with pytest.raises(Refusal):
                    await closing
        finally:
            os.close(pidfd)


KEEPS_US_WAITING = """#!/bin/sh
# A browser that has lost its connection and is yet to exit.
{browser} "$@" &
exec 3>&- 4>&-
wait
read line < {held}
"""


@pytest.mark.parametrize(("slots", "told"), [(1, True), (SHARED, False)])
async def test_what_a_shared_browser_has_logged_goes_to_no_client(slots: int, told: bool, tmp_path: Path) -> None:
    held, script = tmp_path / "held", tmp_path / "chromium"
    os.mkfifo(held)
    script.write_text(KEEPS_US_WAITING.format(browser=find_browser("chromium", Settings()).executable, held=held))
    script.chmod(0o755)
    logging = {"executable": str(script), "chromium_args": ("--enable-logging=stderr",)}
    async with browser_server(max_concurrent_sessions=slots, client_guard="off", **logging) as watched:
        async with (
            protocol_client(watched.endpoint, initialize=False) as late,
            protocol_client(watched.endpoint) as other,
        ):
            page = await other.new_page()
            await evaluate(other, page, "console.error('a secret of another session')")
            psutil.Process(watched.server.ready.browser_pid).children()[0].kill()
            assert "browser crashed" in await asyncio.wait_for(other.ended, BOUND_S)
            browser = await late.initialize()
            with pytest.raises(Refusal) as caught:
                await late.send(browser, "newContext")
            assert ("a secret of another session" in str(caught.value)) is told
            with pytest.raises(Exception, match="503"):
                await connect(watched.endpoint)
            held.write_text("go\n")
        assert str(await watched.why_gone()).startswith("browser ended (")


# What pages may read


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/hostname",
        "FILE:/etc/hostname",
        " \tfi\nle:///etc/hostname",
        "view-source:file:///etc/hostname",
        "view-source:view-source:file:///etc/hostname",
    ],
)
@with_shared({"block_file_urls": "on", "client_guard": "off"})
async def test_blocked_file_urls_are_no_place_to_go(watched: Watched, url: str) -> None:
    async with protocol_client(watched.endpoint) as client:
        page = await client.new_page()
        await refused(goto(client, page, url), "it reads files of the host (BLOCK_FILE_URLS=false allows it)")
        session = await page_session(client, client.one("BrowserContext"), page)
        for method in ("Page.navigate", "Target.createTarget"):
            await refused(client.cdp(session, method, url=url), "BLOCK_FILE_URLS=false allows it")
        files = {"files": ["/etc/hostname"], "nodeId": 1}
        await refused(client.cdp(session, "DOM.setFileInputFiles", **files), "BLOCK_FILE_URLS=false allows it")


async def test_blocked_file_urls_stay_so_behind_a_base_url_and_within_pages() -> None:
    async with browser_server(block_file_urls="on") as watched, protocol_client(watched.endpoint) as client:
        page = await client.new_page(await client.new_context(baseURL="file:///etc/"))
        await refused(goto(client, page, "hostname"), "BLOCK_FILE_URLS=false allows it")
        await goto(client, page, "about:blank")
        html = "<iframe src='file:///etc/hostname'></iframe>"
        await client.send(client.frame(page), "setContent", html=html, timeout=5000)
        await refused(redirect(client, "file:///etc/hostname"), "BLOCK_FILE_URLS=false allows it")
        stored = {"origins": [{"origin": "file:///etc/hostname", "localStorage": []}]}
        await refused(client.new_context(storageState=stored), "BLOCK_FILE_URLS=false allows it")
        for script in ("location = 'file:///etc/hostname'", "window.open('file:///etc/hostname')"):
            await evaluate(client, page, script)
        assert await evaluate(client, page, "location.href") == {"s": "about:blank"}
        text = "(() => { try { return frames[0].document.body.innerText } catch { return 'not ours' } })()"
        assert Path("/etc/hostname").read_text().strip() not in str(await evaluate(client, page, text))


@pytest.mark.parametrize("confine", ["auto", "off"])
async def test_file_urls_work_where_they_are_not_blocked(confine: str, tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text("<title>of the host</title>")
    changes = {"confine": confine, "browser_read_paths": (str(tmp_path),), "block_file_urls": "off"}
    async with browser_server(**changes) as watched, protocol_client(watched.endpoint) as client:
        page = await client.new_page()
        await goto(client, page, f"file://{tmp_path}/page.html")
        assert await title(client, page) == "of the host"


# What Node and the browser know of the grid


async def test_the_environment_of_node_and_browser_is_an_allow_list(monkeypatch: pytest.MonkeyPatch) -> None:
    secrets = ("GITHUB_TOKEN", "PWGRID_TOKEN", "REDIS_URL", "AWS_SECRET_ACCESS_KEY", "SOMETHING")
    for name in (*secrets, "CHOSEN", "TZ"):
        monkeypatch.setenv(name, "UTC")
    async with browser_server(browser_env=("CHOSEN",)) as watched:
        for pid in (watched.server.pid, watched.server.ready.browser_pid):
            environment = psutil.Process(pid).environ()
            assert not environment.keys() & set(secrets)
            assert environment["CHOSEN"] == environment["TZ"] == "UTC"
            assert environment.keys() >= {"PATH", "TMPDIR"}
