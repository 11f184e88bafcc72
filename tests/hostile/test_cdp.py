"""Two hostile CDP clients side by side on a real grid, beside one that is not: neither sees, ends or stops another, nor
speaks where it may not, and nothing of them is left on the host."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psutil
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.conftest import counters_are_exact, need
from tests.support.cdp_door import CdpClient, CdpError, cdp_client
from tests.support.grid import WITHOUT_SPARES, Grid, eventually_async, running_grid
from tests.support.leases import request
from tests.support.stand_in_proxy import BOUND_S

pytestmark = pytest.mark.asyncio(loop_scope="module")

MIB: Final = 1024 * 1024
ATTACKED_S: Final = 1.0
NO_SESSION: Final = r"Session with given id not found\."
ATTACHED: Final = "Target.attachedToTarget"
LOADED: Final = "[document.readyState == 'complete', document.documentElement?.outerHTML ?? '']"
LOADS_S: Final = 3.0
PING: Final = bytes([0x89, 0x80 | 125]) + bytes(4) + b"x" * 125
"""A frame of a client with the mask 0."""


@pytest.fixture(scope="module")
def grid() -> Iterator[Grid]:
    need("chromium")
    environment = {
        **WITHOUT_SPARES,
        "POOL_CONFIG": "AppA:Chromium:UAT=1",
        "MAX_CONCURRENT_SESSIONS": "4",
        "SESSION_MAX_BUFFERED_MIB": "8",
        "WORKER_LOST_THRESHOLD": "30",  # this machine may have other tests to run
    }
    with running_grid(environment=environment) as grid:
        yield grid
        counters_are_exact(grid)


@dataclass
class Attacker:
    """A client with a session of its own, and what it is after."""

    client: CdpClient
    url: str
    page: str
    """Its session with its page."""
    browser: psutil.Process
    foreign: dict[str, str]
    """Ids of a target and a session of somebody else."""
    victim: Path
    """A directory of the host that it wants to write into."""


Attack = Callable[[Attacker], Awaitable[object]]


def new_url(grid: Grid) -> str:
    return str(request(grid, "GET", "/json/version").body["webSocketDebuggerUrl"])


async def browser_of(client: CdpClient) -> psutil.Process:
    found = (await client.send("SystemInfo.getProcessInfo"))["processInfo"]
    return psutil.Process(next(each["id"] for each in found if each["type"] == "browser"))


@contextlib.asynccontextmanager
async def attacker(grid: Grid, foreign: dict[str, str], victim: Path) -> AsyncIterator[Attacker]:
    url = new_url(grid)
    async with cdp_client(url) as client:
        yield Attacker(client, url, await client.page(), await browser_of(client), foreign, victim)


async def is_refused(attacker: Attacker, why: str, method: str, session: str = "", /, **params: Any) -> None:
    with pytest.raises(CdpError, match=why):
        await attacker.client.send(method, session, **params)


# What they do


async def ends_the_browser(attacker: Attacker) -> None:
    await attacker.client.post("Browser.close")


async def crashes_the_browser(attacker: Attacker) -> None:
    await attacker.client.post("Browser.crash")


async def crashes_the_browser_by_a_url(attacker: Attacker) -> None:
    await attacker.client.post("Target.createTarget", url="chrome://inducebrowsercrashforrealz")


async def crashes_the_gpu_process(attacker: Attacker) -> None:
    for _ in range(5):
        await attacker.client.post("Browser.crashGpuProcess")


async def gives_a_page_the_protocol(attacker: Attacker) -> None:
    targets = {"its own": (await attacker.client.pages())[0]["targetId"], "another's": attacker.foreign["target"]}
    for target in targets.values():
        await is_refused(attacker, "refused by the grid", "Target.exposeDevToolsProtocol", targetId=target)
    await is_refused(attacker, "refused by the grid", "Tethering.bind", port=9222)
    locations = [{"host": "127.0.0.1", "port": 9222}]
    await is_refused(attacker, "refused by the grid", "Target.setRemoteLocations", locations=locations)


async def goes_to_others(attacker: Attacker) -> None:
    target, session = attacker.foreign["target"], attacker.foreign["session"]
    for method in ("attachToTarget", "closeTarget", "activateTarget", "getTargetInfo"):
        await is_refused(attacker, "No target", f"Target.{method}", targetId=target)
    await is_refused(attacker, "No session", "Target.detachFromTarget", sessionId=session)
    message = json.dumps({"id": 1, "method": "Runtime.evaluate", "params": {"expression": "document.title = 'taken'"}})
    await is_refused(attacker, "No session", "Target.sendMessageToTarget", sessionId=session, message=message)
    await is_refused(attacker, NO_SESSION, "Runtime.evaluate", session, expression="document.title = 'taken'")
    root = (await attacker.client.send("Target.attachToBrowserTarget"))["sessionId"]
    await is_refused(attacker, "No target", "Target.attachToTarget", root, targetId=target)
    seen = (await attacker.client.send("Target.getTargets", root))["targetInfos"]
    assert target not in [each["targetId"] for each in seen]


async def has_sessions_in_sessions(attacker: Attacker) -> None:
    session = ""
    for _ in range(500):  # test_cdp_methods.py has them as deep as no stack is
        session = (await attacker.client.send("Target.attachToBrowserTarget", session))["sessionId"]


async def floods_with_commands(attacker: Attacker) -> None:
    for _ in range(10):
        answers = [await attacker.client.post("Browser.getVersion") for _ in range(400)]
        await asyncio.gather(*answers)


async def floods_with_commands_and_reads_no_answer(attacker: Attacker) -> None:
    attacker.client.websocket.transport.pause_reading()
    command = "'x'.repeat(1e5)" + " " * 2000  # all of them together are more than sockets take unread
    with contextlib.suppress(ConnectionClosed):
        for _ in range(4_000):  # 50 times what may be unread
            await attacker.client.post("Runtime.evaluate", attacker.page, expression=command)


async def has_a_page_that_says_more_than_it_reads(attacker: Attacker) -> None:
    await attacker.client.send("Runtime.enable", attacker.page)
    attacker.client.websocket.transport.pause_reading()
    script = "setInterval(() => { for (let n = 0; n < 20; n++) console.log('x'.repeat(1e5)); })"
    await attacker.client.post("Runtime.evaluate", attacker.page, expression=script)


async def pings_and_reads_no_answer(attacker: Attacker) -> None:
    transport = attacker.client.websocket.transport
    transport.pause_reading()
    while not transport.is_closing():
        transport.write(PING * 2000)
        while transport.get_write_buffer_size() > MIB and not transport.is_closing():
            await asyncio.sleep(0)  # lets it write


async def sends_huge_frames(attacker: Attacker) -> None:
    before, after = b'{"id":1,"method":"Browser.getVersion","params":{"x":"', b'"}}'
    async with connect(attacker.url, max_size=None, compression=None) as websocket:
        await websocket.send(before + b"x" * (256 * MIB - len(before) - len(after)) + after)
        assert "256 MiB is too large for the browser" in json.loads(await websocket.recv())["error"]["message"]
        websocket.transport.write(bytes([0x81, 0xFF]) + (257 * MIB).to_bytes(8, "big") + bytes(4))
        with pytest.raises(ConnectionClosed):
            await websocket.recv()
        assert websocket.close_code == 1009


async def sends_what_takes_long_to_read(attacker: Attacker) -> None:
    before, after = b'{"id":1,"method":"Browser.getVersion","params":', b"}"
    async with connect(attacker.url, max_size=None, compression=None) as websocket:
        for what in (b"[]" * (12 * MIB), b'""' * (12 * MIB), b" " * (24 * MIB), b'"' + b'\\"' * (12 * MIB) + b'"'):
            await websocket.send(before + what + after)
            assert "error" in json.loads(await websocket.recv()) or what.startswith(b'"\\')


async def comes_with_more_clients_than_any_agent(attacker: Attacker) -> None:
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(63):
            await stack.enter_async_context(connect(attacker.url))
        with pytest.raises(InvalidStatus) as refused:
            await stack.enter_async_context(connect(attacker.url))
        assert refused.value.response.status_code == 503
        assert "this session has 64 clients" in str(refused.value.response.body)


async def text_of(attacker: Attacker) -> str:
    """What the page shows once it is loaded. It is asked again and again: a promise in a document that is replaced
    meanwhile would never be kept. The list of a directory that Chromium may not read stays "loading" for ever now and
    then, so what it shows by then is the answer."""
    text = ""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LOADS_S):
            loaded = False
            while not loaded:
                with contextlib.suppress(CdpError):
                    loaded, text = await attacker.client.evaluate(attacker.page, LOADED)
                await asyncio.sleep(0.05)
    return text


async def reads_files(attacker: Attacker) -> None:
    client, page = attacker.client, attacker.page
    secret = attacker.victim / "secret.html"
    secret.write_text("<title>secret</title>of the host")
    for path in (secret, attacker.victim, "/etc/passwd", "/proc/self/environ"):
        for url in (f"file://{path}", f"view-source:file://{path}"):
            with contextlib.suppress(CdpError):
                await client.send("Page.navigate", page, url=url)
            text = await text_of(attacker)
            assert not {word for word in ("of the host", "secret.html", "root:", "PWGRID_") if word in text}
    frame = (await client.send("Page.getFrameTree", page))["frameTree"]["frame"]["id"]
    options = {"disableCache": True, "includeCredentials": False}
    with contextlib.suppress(CdpError):
        loaded = await client.send(
            "Network.loadNetworkResource", page, frameId=frame, url=f"file://{secret}", options=options
        )
        assert not loaded["resource"]["success"]
    files = [str(secret)]
    drag = {"type": "drop", "x": 1, "y": 1, "data": {"items": [], "files": files, "dragOperationsMask": 1}}
    await is_refused(attacker, "refused by the grid", "DOM.setFileInputFiles", page, files=files, nodeId=1)
    await is_refused(attacker, "refused by the grid", "Input.dispatchDragEvent", page, **drag)
    await is_refused(attacker, "refused by the grid", "Extensions.loadUnpacked", path=str(attacker.victim))
    await is_refused(attacker, "refused by the grid", "PWA.launchFilesInApp", manifestId="x", files=files)


async def writes_files(attacker: Attacker) -> None:
    client, page, path = attacker.client, attacker.page, str(attacker.victim)
    context = (await client.send("Target.createBrowserContext"))["browserContextId"]
    other = (await client.send("Target.createTarget", url="about:blank", browserContextId=context))["targetId"]
    inner = {"method": "Page.setDownloadBehavior", "params": {"behavior": "allow", "downloadPath": path}}
    old = (await client.send("Target.attachToTarget", targetId=(await client.pages())[0]["targetId"]))["sessionId"]
    for session in (page, await client.attach(other)):
        for behavior in ("allow", "allowAndName", "default"):
            wanted = {"behavior": behavior, "downloadPath": path}
            await client.send("Browser.setDownloadBehavior", **wanted)
            await client.send("Browser.setDownloadBehavior", browserContextId=context, **wanted)
            with contextlib.suppress(CdpError):
                await client.send("Page.setDownloadBehavior", session, **wanted)
            with contextlib.suppress(CdpError):
                await client.send("Target.sendMessageToTarget", sessionId=old, message=json.dumps({"id": 1, **inner}))
            script = """const link = document.createElement('a');
                link.href = URL.createObjectURL(new Blob(['of the page']));
                link.download = 'x.txt';
                link.click()"""
            await client.send("Runtime.evaluate", session, expression=script, userGesture=True)


ATTACKS: Final = (
    ends_the_browser,
    crashes_the_browser,
    crashes_the_browser_by_a_url,
    crashes_the_gpu_process,
    gives_a_page_the_protocol,
    goes_to_others,
    has_sessions_in_sessions,
    floods_with_commands,
    floods_with_commands_and_reads_no_answer,
    has_a_page_that_says_more_than_it_reads,
    pings_and_reads_no_answer,
    sends_huge_frames,
    sends_what_takes_long_to_read,
    comes_with_more_clients_than_any_agent,
    reads_files,
    writes_files,
)
NEVER_DONE: Final = (floods_with_commands_and_reads_no_answer, pings_and_reads_no_answer)
"""These are stopped after a while: they may go on longer than their session."""
ALONE: Final = (sends_huge_frames, sends_what_takes_long_to_read)
"""These take a core for seconds: one does it, and the other is a second neighbour."""


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda each: each.__name__)
async def test_what_a_cdp_client_does_is_its_own_matter(grid: Grid, attack: Attack, tmp_path: Path) -> None:
    async with cdp_client(new_url(grid)) as neighbour:
        page = await neighbour.page()
        target = (await neighbour.pages())[0]["targetId"]
        await neighbour.evaluate(page, "document.title = 'of the neighbour'")
        foreign = {"target": target, "session": page}
        async with attacker(grid, foreign, tmp_path) as one, attacker(grid, foreign, tmp_path) as other:
            both = (one, other)
            left = [each for attacker in both for each in on_host(attacker.browser)]
            families = [each for attacker in both for each in family_of(attacker.browser)]
            attacking = [asyncio.ensure_future(attack(each)) for each in both[: 1 if attack in ALONE else 2]]
            for _ in range(5):
                assert await neighbour.evaluate(page, "document.title") == "of the neighbour"
            await asyncio.wait(attacking, timeout=ATTACKED_S if attack in NEVER_DONE else BOUND_S)
            assert await neighbour.evaluate(page, "document.title") == "of the neighbour"
            families += [each for attacker in both for each in family_of(attacker.browser)]
            assert not [each for process in families for each in listening(process)]
            for each in attacking:
                each.cancel()
            results = await asyncio.gather(*attacking, return_exceptions=True)
            for each in both:
                each.client.websocket.transport.abort()
        stopped = asyncio.CancelledError if attack in NEVER_DONE else type(None)
        assert [each for each in results if not isinstance(each, (stopped, type(None)))] == []
        assert not neighbour.ended.done()
        await eventually_async(lambda: not any(each.is_running() for each in families), "their browsers are gone")
        await eventually_async(lambda: not [each for each in left if each.exists()], "and their directories")
        await eventually_async(lambda: not files_of_sessions(grid), "and their files")
        assert [each["targetId"] for each in await neighbour.pages()] == [target]
        assert await neighbour.evaluate(page, "document.title + 6 * 7") == "of the neighbour42"
    assert [each.name for each in tmp_path.iterdir()] in ([], ["secret.html"])


def family_of(browser: psutil.Process) -> list[psutil.Process]:
    """The browser with all below it, as far as they live."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return [browser, *browser.children(recursive=True)]
    return []


def listening(process: psutil.Process) -> list[Any]:
    with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
        return [each for each in process.net_connections() if each.status == psutil.CONN_LISTEN]
    return []


def on_host(browser: psutil.Process) -> list[Path]:
    """The directories of a browser: its profile, and that for its temporary files."""
    profile = next(each.partition("=")[2] for each in browser.cmdline() if each.startswith("--user-data-dir="))
    return [Path(profile), Path(browser.environ()["TMPDIR"])]


def files_of_sessions(grid: Grid) -> list[Path]:
    return list(grid.runtime.glob("w/*/sessions/*/*"))


# Where they speak


async def test_no_client_speaks_on_a_session_that_is_not_its_own(grid: Grid) -> None:
    """Each message is answered to who sent it, so none was of Playwright's root session: its driver would get that."""
    url = new_url(grid)
    async with cdp_client(new_url(grid)) as neighbour, cdp_client(url) as other, connect(url) as websocket:
        for foreign in (await neighbour.page(), await other.page()):
            tail = f',"sessionId":"{foreign}"}}'
            version = '{"id":7,"method":"Browser.getVersion"'
            for text, expected in {
                version + tail: "not found",
                f'{{"sessionId":"{foreign}",{version[1:]}}}': "not found",
                version + tail.replace("sessionId", "sess\\u0069onId"): "not found",
                version + tail.replace(foreign[:1], f"\\u{ord(foreign[0]):04x}", 1): "not found",
                version + tail.replace('"}', '"\n}\n'): "not found",
                version + ',"sessionId":""' + tail: "not found",
                version + ',"sess\\u0069onId":""' + tail: "not found",
                " " * 512 + version + ',"sessionId":""' + tail: "twice",
                " " * 512 + version + ',"sess\\u0069onId":""' + tail: "twice",
                version + ',"sessionId":null}': "missing",
                version + f',"sessionId":["{foreign}"]}}': "missing",
                version + f',"sessionid":"{foreign}"}}': "something else",
                version + f',"sessionId\\u0000":"{foreign}"}}': "something else",
                version + "}" + version + tail: "behind it",
                version + "}\0" + version + tail: "zero byte",
                version + ',"sessionId":""}': "protocolVersion",
                version + f',"params":{{"sessionId":"{foreign}"}}}}': "protocolVersion",
                version + ',"params":{"x":"' + tail.replace('"', '\\"') + '"}}': "protocolVersion",
                version + ',"params":{"x":1' + tail + "}": "protocolVersion",
            }.items():
                for message in (text, text.encode()):  # a frame of text, and a binary one
                    await websocket.send(message)
                    answer = await asyncio.wait_for(websocket.recv(), BOUND_S)
                    assert expected in str(answer), text
                    assert f'"sessionId":"{foreign}"' not in str(answer) or expected == "not found"
        assert [each["method"] for each in (other.events.get_nowait(), neighbour.events.get_nowait())] == [ATTACHED] * 2
        assert other.events.empty()
        assert neighbour.events.empty()


async def test_what_a_page_says_goes_to_its_own_client_whatever_it_looks_like(grid: Grid) -> None:
    url = new_url(grid)
    async with cdp_client(url) as one, cdp_client(url) as other:
        sessions = [await each.page() for each in (one, other)]
        await one.send("Runtime.enable", sessions[0])
        await other.event(ATTACHED)
        text = f'","sessionId":"{sessions[1]}"}}'
        assert await one.evaluate(sessions[0], json.dumps(text)) == text
        await one.evaluate(sessions[0], f"console.log({json.dumps(text)}); document.title = {json.dumps(text)}")
        event = await one.event("Runtime.consoleAPICalled")
        assert event["params"]["args"][0]["value"] == text
        assert other.events.empty()


async def test_a_message_that_the_browser_cannot_read_is_answered_as_the_browser_does(grid: Grid) -> None:
    async with connect(new_url(grid)) as websocket:
        for text in ('{"id":1,"method":"A.b","params":{"x":tru}}', '{"id":9999999999,"method":"A.b"}'):
            await websocket.send(text)
            answer = json.loads(await asyncio.wait_for(websocket.recv(), BOUND_S))
            assert answer["error"]["code"] in (-32700, -32600)
