"""CDP clients in one browser server, each session with a browser of its own: real Chromium, raw clients."""

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import pytest_asyncio
from playwright.async_api import async_playwright
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidMessage, InvalidStatus

from pwgrid.common.reasons import EndReason, Reason
from pwgrid.worker.holders import End
from tests.support.browsers import chromiums_of
from tests.support.cdp_door import CdpClient, CdpDoor, CdpError, cdp_client, cdp_door, cdp_door_without_spares
from tests.support.grid import eventually_async
from tests.support.raw import head
from tests.support.stand_in_proxy import BOUND_S

SLOTS = 4
LONG = " " * 512
"""Before a message: it is not parsed then, and passes as it is."""
MIB = 1024 * 1024
DISCONNECTED = End("client", Reason(EndReason.CLIENT_DISCONNECTED))
CLOSED_BY_CLIENT = End("client", Reason(EndReason.CLIENT_CLOSED_BROWSER))

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared() -> AsyncIterator[CdpDoor]:
    """One browser server for all tests that end nothing of it."""
    async with cdp_door(max_concurrent_sessions=SLOTS) as door:
        yield door


@pytest_asyncio.fixture(loop_scope="module")
async def door(shared: CdpDoor) -> AsyncIterator[CdpDoor]:
    """The shared one; after the test it lives, and every end of a session has been heard of."""
    yield shared
    await shared.watched.all_closed()
    assert shared.watched.closed.empty()
    assert shared.said.empty()
    assert not shared.watched.gone.done()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def session() -> AsyncIterator[str]:
    """The URL of one session for all tests that leave nothing in it: each of its clients keeps it for the next."""
    async with cdp_door_without_spares() as door:
        async with cdp_client(f"{door.url}/cdp?keep=3600"):
            pass
        yield door.path(door.latest)
        assert door.watched.closed.empty()
        async with cdp_client(door.path(door.latest)) as client:
            assert [each["url"] for each in await client.pages()] == ["about:blank"]
            assert await client.evaluate(await client.page(), "6 * 7") == 42
            await client.send("Browser.close")
        assert (await door.watched.next_closed()).end == CLOSED_BY_CLIENT


def browsers(door: CdpDoor) -> set[int]:
    """The pids of the browsers, warm ones and the shared one too."""
    return chromiums_of(door.server.pid)


async def browser_pid(client: CdpClient) -> int:
    found = (await client.send("SystemInfo.getProcessInfo"))["processInfo"]
    return next(each["id"] for each in found if each["type"] == "browser")


# What a client gets


async def test_a_client_talks_with_its_browser_as_with_one_that_it_has_started(door: CdpDoor) -> None:
    async with cdp_client(f"{door.url}/cdp") as client:
        assert "Chrome/" in (await client.send("Browser.getVersion"))["product"]
        (page,) = await client.pages()
        assert (page["url"], page["attached"]) == ("about:blank", False)
        session = await client.attach(page["targetId"])
        assert await client.evaluate(session, "6 * 7") == 42
        with pytest.raises(CdpError, match=r"'Runtime\.nothing' wasn't found"):
            await client.send("Runtime.nothing", session)
        await client.send("Target.detachFromTarget", sessionId=session)
        with pytest.raises(CdpError, match=r"Session with given id not found\."):
            await client.send("Runtime.evaluate", session, expression="1")
    closed = await door.watched.next_closed()
    assert closed.end == DISCONNECTED
    assert closed.bytes_in > 500
    assert closed.bytes_out > 500


async def test_each_session_has_a_browser_of_its_own_and_nothing_of_it_is_left(door: CdpDoor) -> None:
    async with cdp_client(f"{door.url}/cdp") as one, cdp_client(f"{door.url}/cdp") as other:
        pids = [await browser_pid(each) for each in (one, other)]
        assert len(set(pids) & browsers(door)) == 2
        await one.send("Target.createTarget", url="data:text/html,<title>of one</title>")
        assert len(await one.pages()) == 2
        assert len(await other.pages()) == 1
    await eventually_async(lambda: not any(psutil.pid_exists(each) for each in pids), "both browsers are gone")


async def test_no_process_of_a_session_listens_on_a_port(door: CdpDoor) -> None:
    async with cdp_client(f"{door.url}/cdp") as client:
        assert await client.evaluate(await client.page(), "6 * 7") == 42
        browser = psutil.Process(await browser_pid(client))
        server = psutil.Process(door.server.pid)
        family = [server, *server.children(recursive=True)]
        assert browser in family
        connections = []
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):  # a helper of the browser that has just ended has no port
                connections += process.net_connections()
        assert len(connections) == 1  # of this client, so they are seen
        assert [each for each in connections if each.status == psutil.CONN_LISTEN] == []
        assert not [each for each in browser.cmdline() if each.startswith("--remote-debugging-port")]


async def test_pages_frames_workers_and_popups_come_attached_to_whoever_asks_for_them(door: CdpDoor) -> None:
    async with cdp_client(f"{door.url}/cdp") as client:
        await client.send("Target.setAutoAttach", autoAttach=True, waitForDebuggerOnStart=True, flatten=True)
        page = (await client.event("Target.attachedToTarget"))["params"]["sessionId"]
        await client.send("Target.setAutoAttach", page, autoAttach=True, waitForDebuggerOnStart=False, flatten=True)
        script = "postMessage(6 * 7)"
        await client.evaluate(page, f"globalThis.worker = new Worker(URL.createObjectURL(new Blob([{script!r}])))")
        worker = (await client.event("Target.attachedToTarget"))["params"]
        assert worker["targetInfo"]["type"] == "worker"
        assert await client.evaluate(worker["sessionId"], "typeof postMessage") == "function"
        await client.post(
            "Runtime.evaluate", page, expression="void open('about:blank')"
        )  # waits for the popup to go on
        popup = (await client.event("Target.attachedToTarget"))["params"]
        assert (popup["targetInfo"]["type"], popup["waitingForDebugger"]) == ("page", True)
        await client.send("Runtime.runIfWaitingForDebugger", popup["sessionId"])
        assert await client.evaluate(popup["sessionId"], "opener !== null")
        await client.evaluate(page, "worker.terminate()")
        assert (await client.event("Target.detachedFromTarget"))["params"]["sessionId"] == worker["sessionId"]
        with pytest.raises(CdpError, match=r"Session with given id not found\."):
            await client.evaluate(worker["sessionId"], "1")


async def test_a_client_may_attach_to_the_browser_itself_once_more(session: str) -> None:
    async with cdp_client(session) as client:
        root = (await client.send("Target.attachToBrowserTarget"))["sessionId"]
        targets = (await client.send("Target.getTargets", root))["targetInfos"]
        assert [each["url"] for each in targets] == ["about:blank"]
        inner = (await client.send("Target.attachToTarget", root, targetId=targets[0]["targetId"], flatten=True))[
            "sessionId"
        ]
        assert await client.evaluate(inner, "6 * 7") == 42
        await client.send("Target.detachFromTarget", sessionId=root)
        with pytest.raises(CdpError, match=r"Session with given id not found\."):
            await client.evaluate(inner, "1")


async def test_messages_in_messages_are_understood(session: str) -> None:
    """As clients sent them before sessions had ids."""
    async with cdp_client(session) as client:
        target = (await client.pages())[0]["targetId"]
        page = (await client.send("Target.attachToTarget", targetId=target))["sessionId"]
        message = json.dumps({"id": 7, "method": "Runtime.evaluate", "params": {"expression": "6 * 7"}})
        await client.send("Target.sendMessageToTarget", sessionId=page, message=message)
        answer = json.loads((await client.event("Target.receivedMessageFromTarget"))["params"]["message"])
        assert (answer["id"], answer["result"]["result"]["value"]) == (7, 42)


# Several connections


async def test_connections_of_one_session_share_its_browser_and_hear_their_own_answers(door: CdpDoor) -> None:
    async with cdp_client(f"{door.url}/cdp") as one, cdp_client(door.path(door.latest)) as other:
        assert await browser_pid(one) == await browser_pid(other)
        sessions = [await each.page() for each in (one, other)]
        assert len(set(sessions)) == 2
        await one.evaluate(sessions[0], "globalThis.left = 'by one'")
        assert await other.evaluate(sessions[1], "left") == "by one"
        numbers = range(50)
        answers = await asyncio.gather(
            *(c.evaluate(s, f"'{s}' + {n}") for n in numbers for c, s in zip((one, other), sessions, strict=True))
        )
        assert answers == [f"{session}{n}" for n in numbers for session in sessions]
        with pytest.raises(CdpError, match=r"Session with given id not found\."):
            await one.evaluate(sessions[1], "1")
    assert (await door.watched.next_closed()).end == DISCONNECTED


async def test_a_session_ends_with_its_last_connection(door: CdpDoor) -> None:
    async with cdp_client(f"{door.url}/cdp") as one:
        async with cdp_client(door.path(door.latest)) as other:
            await other.send("Browser.getVersion")
        await one.send("Browser.getVersion")
        assert door.watched.closed.empty()
    closed = await door.watched.next_closed()
    assert closed.end == DISCONNECTED
    assert closed.bytes_in > 100  # of both


async def test_who_joins_a_session_that_has_ended_is_told(door: CdpDoor) -> None:
    async with cdp_client(f"{door.url}/cdp"):
        session = door.latest
    await door.watched.next_closed()
    with pytest.raises(InvalidStatus) as refused:
        await connect(door.path(session))
    assert refused.value.response.status_code == 410
    assert json.loads(refused.value.response.body) == {"error": "this session has ended; connect again without its id"}


# Ends


async def test_to_close_the_browser_ends_the_session_with_all_its_connections(door: CdpDoor) -> None:
    async with cdp_client(f"{door.url}/cdp?keep=60") as one, cdp_client(door.path(door.latest)) as other:
        assert await one.send("Browser.close") == {}
        for each in (one, other):
            assert (await asyncio.wait_for(each.ended, BOUND_S))[0] == 1001
    assert (await door.watched.next_closed()).end == CLOSED_BY_CLIENT


@pytest.mark.parametrize("how", ["killed", "crashed"])
async def test_a_browser_that_crashes_ends_its_own_session_alone(door: CdpDoor, how: str) -> None:
    async with cdp_client(f"{door.url}/cdp") as neighbour, cdp_client(f"{door.url}/cdp?keep=60") as client:
        page = await neighbour.page()
        if how == "killed":
            os.kill(await browser_pid(client), signal.SIGKILL)
        else:
            await client.post("Browser.crash")
        code, text = await asyncio.wait_for(client.ended, BOUND_S)
        assert (code, text) == (1011, "the grid closed this session: its browser crashed")
        assert (await door.watched.next_closed()).end == End("browser", Reason(EndReason.BROWSER_CRASHED))
        assert await neighbour.evaluate(page, "6 * 7") == 42


async def sick(client: CdpClient, signum: int) -> list[psutil.Process]:
    """Signals the processes from which the browser forks those of its pages; returns them."""
    below = psutil.Process(await browser_pid(client)).children(recursive=True)
    zygotes = [each for each in below if "--type=zygote" in each.cmdline()]
    assert zygotes
    for each in zygotes:
        each.send_signal(signum)
    return zygotes


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_browser_that_opens_no_pages_any_more_ends_its_own_session_alone(signum: int) -> None:
    async with (
        cdp_door_without_spares(max_concurrent_sessions=SLOTS, worker_lost_threshold=3) as door,
        cdp_client(f"{door.url}/cdp?keep=60") as client,
        cdp_client(f"{door.url}/cdp") as neighbour,
    ):
        pid = await browser_pid(client)
        await sick(client, signum)
        target = (await client.send("Target.createTarget", url="about:blank"))["targetId"]
        await client.post("Page.enable", await client.attach(target))
        code, text = await asyncio.wait_for(client.ended, BOUND_S)
        assert (code, text) == (
            1001,
            "the grid closed this session: its browser opens no pages any more; connect again",
        )
        assert (await door.watched.next_closed()).end == End("grid", Reason(EndReason.BROWSER_SICK))
        await eventually_async(lambda: not psutil.pid_exists(pid), "the browser is gone")
        assert await neighbour.evaluate(await neighbour.page(), "6 * 7") == 42


async def test_a_browser_is_not_sick_because_its_client_reads_slowly() -> None:
    """What the browser answers is not read meanwhile. A neighbour whose browser is sick tells that the time is over."""
    async with (
        cdp_door_without_spares(
            max_concurrent_sessions=SLOTS, worker_lost_threshold=3, session_max_buffered_mib=4096
        ) as door,
        cdp_client(f"{door.url}/cdp") as neighbour,
        cdp_client(f"{door.url}/cdp") as client,
    ):
        page, memory = await client.page(), psutil.Process(await browser_pid(client)).memory_info
        before = memory().rss
        client.websocket.transport.pause_reading()
        answers = [await client.post("Runtime.evaluate", page, expression=f"'x'.repeat({8 * MIB})") for _ in range(5)]
        answers.append(await client.post("Page.enable", page))
        await eventually_async(lambda: memory().rss - before > 20 * MIB, "the browser keeps them")
        await sick(neighbour, signal.SIGSTOP)
        target = (await neighbour.send("Target.createTarget", url="about:blank"))["targetId"]
        await neighbour.post("Page.enable", await neighbour.attach(target))
        assert (await door.watched.next_closed()).end == End("grid", Reason(EndReason.BROWSER_SICK))
        assert await asyncio.wait_for(neighbour.ended, BOUND_S)
        client.websocket.transport.resume_reading()
        for each in answers:
            assert "result" in await asyncio.wait_for(each, BOUND_S)
        assert door.watched.closed.empty()


async def test_a_client_that_holds_new_pages_sees_nothing_of_the_attempt_at_its_browser() -> None:
    """The browser is slow with new pages, and then opens the one that is tried. Here it cannot until it is let."""
    async with cdp_door_without_spares(worker_lost_threshold=30) as door, cdp_client(f"{door.url}/cdp") as client:
        await client.send("Target.setDiscoverTargets", discover=True)
        await client.send("Target.setAutoAttach", autoAttach=True, waitForDebuggerOnStart=True, flatten=True)
        zygotes = await sick(client, signal.SIGSTOP)
        target = (await client.send("Target.createTarget", url="about:blank"))["targetId"]
        event = await client.event("Target.attachedToTarget")
        while event["params"]["targetInfo"]["targetId"] != target:
            event = await client.event("Target.attachedToTarget")
        asked = await client.post("Page.enable", page := event["params"]["sessionId"])

        async def contexts() -> list[str]:
            ids: list[str] = (await client.send("Target.getBrowserContexts"))["browserContextIds"]
            return ids

        async with asyncio.timeout(BOUND_S):
            while not (tried := await contexts()):
                await asyncio.sleep(0.05)
            for each in zygotes:
                each.send_signal(signal.SIGCONT)
            while await contexts():
                await asyncio.sleep(0.05)
        await asyncio.wait_for(asked, BOUND_S)
        await client.send("Runtime.runIfWaitingForDebugger", page)
        assert await client.evaluate(page, "6 * 7") == 42
        assert [each["targetId"] for each in await client.pages() if each["browserContextId"] in tried] == []
        events = [client.events.get_nowait() for _ in range(client.events.qsize())]
        assert not [each for each in events if tried[0] in str(each)]
        assert {each["params"]["targetId"] for each in events if each["method"] == "Target.targetDestroyed"} == set()
        assert not client.ended.done()


async def test_the_worker_may_end_a_session(door: CdpDoor) -> None:
    async with cdp_client(f"{door.url}/cdp") as client:
        door.server.close_session(door.latest, Reason(EndReason.ENDED_BY_OPERATOR))
        code, text = await asyncio.wait_for(client.ended, BOUND_S)
        assert (code, text) == (1001, "the grid closed this session: an operator ended it")
    assert (await door.watched.next_closed()).end == End("grid", Reason(EndReason.ENDED_BY_OPERATOR))


async def test_a_client_that_asks_for_nothing_ends_by_time() -> None:
    async with (
        cdp_door_without_spares(session_idle_timeout=1.0) as door,
        cdp_client(f"{door.url}/cdp?keep=60") as client,
    ):
        assert (await asyncio.wait_for(client.ended, BOUND_S))[1].endswith("for SESSION_IDLE_TIMEOUT=1 s")
        assert (await door.watched.next_closed()).end == End("grid", Reason(EndReason.IDLE_TIMEOUT))


async def test_a_session_that_is_kept_ends_when_it_has_lasted_for_its_time() -> None:
    async with cdp_door_without_spares(session_max_duration=1.0) as door:
        async with cdp_client(f"{door.url}/cdp?keep=60") as client:
            await client.send("Browser.getVersion")
        assert (await door.next_said())["say"] == "kept"
        assert (await door.watched.next_closed()).end == End("grid", Reason(EndReason.MAXIMUM_DURATION))


async def test_a_client_without_a_sign_of_life_ends_alone_where_its_session_has_others() -> None:
    async with (
        cdp_door_without_spares(session_ping_timeout=1.0) as door,
        cdp_client(f"{door.url}/cdp") as living,
        cdp_client(door.path(door.latest)) as silent,
    ):
        connected = psutil.Process(door.server.pid).net_connections
        assert len(connected("tcp")) == 2
        silent.websocket.transport.pause_reading()
        await eventually_async(lambda: len(connected("tcp")) == 1, "its connection is closed")
        silent.websocket.transport.abort()
        assert await living.evaluate(await living.page(), "6 * 7") == 42
        assert door.watched.closed.empty()


# A session that is kept


async def test_a_kept_session_is_as_it_was_when_its_client_comes_back(door: CdpDoor) -> None:
    async with cdp_client(f"{door.url}/cdp?keep=60") as client:
        session = await client.page()
        await client.send("Storage.setCookies", cookies=[{"name": "login", "value": "x", "url": "http://a.test"}])
        await client.evaluate(session, "globalThis.left = 'here'")
        pid = await browser_pid(client)
    said = await door.next_said()
    assert said["say"] == "kept"
    assert said["session"] == door.latest
    assert 0 < said["keptS"] <= 60
    async with cdp_client(door.path(door.latest)) as client:
        assert await door.next_said() == {"say": "resumed", "session": door.latest}
        assert await browser_pid(client) == pid
        assert await client.evaluate(await client.page(), "left") == "here"
        assert [each["name"] for each in (await client.send("Storage.getCookies"))["cookies"]] == ["login"]
        await client.send("Browser.close")
    assert (await door.watched.next_closed()).end == CLOSED_BY_CLIENT


async def test_a_kept_session_ends_when_its_time_is_over(door: CdpDoor) -> None:
    async with cdp_client(f"{door.url}/cdp?keep=0.2") as client:
        pid = await browser_pid(client)
    assert (await door.next_said())["say"] == "kept"
    closed = await door.watched.next_closed()
    assert closed.end.by == "grid"
    await eventually_async(lambda: not psutil.pid_exists(pid), "its browser is gone")


async def test_a_kept_session_may_be_ended(door: CdpDoor) -> None:
    async with cdp_client(f"{door.url}/cdp?keep=60"):
        pass
    assert (await door.next_said())["say"] == "kept"
    door.server.close_session(door.latest, Reason(EndReason.ENDED_BY_OPERATOR))
    assert (await door.watched.next_closed()).end == End("grid", Reason(EndReason.ENDED_BY_OPERATOR))


async def test_who_comes_without_keep_changes_nothing_of_what_another_has_asked_for(door: CdpDoor) -> None:
    """A worker that took over does not know for how long the session was to be kept."""
    async with cdp_client(f"{door.url}/cdp?keep=60"), cdp_client(door.path(door.latest)) as other:
        await other.send("Browser.getVersion")
    assert (await door.next_said())["say"] == "kept"
    async with cdp_client(door.path(door.latest)) as client:
        assert (await door.next_said())["say"] == "resumed"
        await client.send("Browser.close")


async def test_what_ends_kept_sessions_ends_none_whose_client_has_just_come_back(door: CdpDoor) -> None:
    async with cdp_client(f"{door.url}/cdp?keep=60"):
        pass
    assert (await door.next_said())["say"] == "kept"
    reason = Reason(EndReason.KEPT_IN_DRAIN, "asked")
    async with cdp_client(f"{door.path(door.latest)}?keep=60") as client:
        assert (await door.next_said())["say"] == "resumed"
        door.server.end_kept(door.latest, reason)
        await door.sync()
        await client.send("Browser.getVersion")
    assert (await door.next_said())["say"] == "kept"
    door.server.end_kept(door.latest, reason)
    assert (await door.watched.next_closed()).end == End("grid", reason)


async def test_a_browser_that_crashes_while_it_is_kept_ends_its_session(door: CdpDoor) -> None:
    async with cdp_client(f"{door.url}/cdp?keep=60") as client:
        pid = await browser_pid(client)
    assert (await door.next_said())["say"] == "kept"
    os.kill(pid, signal.SIGKILL)
    assert (await door.watched.next_closed()).end == End("browser", Reason(EndReason.BROWSER_CRASHED))


async def test_a_worker_that_takes_over_hears_of_sessions_that_are_kept(door: CdpDoor) -> None:
    async with cdp_client(f"{door.url}/cdp") as live:
        session = door.latest
        async with cdp_client(f"{door.url}/cdp?keep=60"):
            kept = door.latest
        await door.next_said()
        told = await door.sync()
        assert {session, kept} <= set(told["sessions"])
        assert told["kept"].keys() == {kept}
        assert 0 < told["kept"][kept] <= 60
        await live.send("Browser.getVersion")
    async with cdp_client(door.path(kept)) as client:
        await door.next_said()
        await client.send("Browser.close")


async def test_nothing_is_kept_that_nobody_can_come_back_to() -> None:
    """Its worker and the master are gone."""
    async with cdp_door_without_spares() as door:
        async with cdp_client(f"{door.url}/cdp?keep=60") as client:
            pid = await browser_pid(client)
        assert (await door.next_said())["say"] == "kept"
        door.server._link.close()
        await eventually_async(lambda: not psutil.pid_exists(pid), "its browser is gone")
        await asyncio.wait_for(door.server.exited, BOUND_S)


# Messages


async def test_what_a_page_is_asked_that_has_just_gone_disturbs_nobody(door: CdpDoor) -> None:
    """The browser gives some of these answers without the session's id, and others not at all, as on a port."""
    async with connect(f"{door.url}/cdp") as websocket:
        client = CdpClient(websocket)
        receiving = asyncio.create_task(client.receive())
        first = await client.page()
        for _ in range(10):
            target = (await client.send("Target.createTarget", url="about:blank"))["targetId"]
            session = await client.attach(target)
            await client.post("Target.closeTarget", targetId=target)
            for _ in range(20):
                await client.post("Runtime.evaluate", session, expression="1")
            await client.event("Target.detachedFromTarget")
            with pytest.raises(CdpError, match=r"Session with given id not found\."):
                await client.evaluate(session, "1")
            assert await client.evaluate(first, "6 * 7") == 42
        await websocket.close()
        await receiving
    assert (await door.watched.next_closed()).end == DISCONNECTED


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("junk", "{ is missing at byte 0"),
        ("{}", '" is missing at byte 1'),
        ('{"id":1}', "it has no id, or no method"),
        ('{"id":1.5,"method":"A.b"}', "its id is no integer"),
        (LONG + '{"id":1,"method":"Browser.getVersion","method":"Browser.close"}', 'it has "method" twice'),
        (LONG + '{"id":1,"method":"Browser.getVersion","m\\u0065thod":"Browser.close"}', 'it has "method" twice'),
        ('{"id":1,"method":"Browser.getVersion","x":1}', "it has something else than"),
        ('{"id":1,"method":"Browser.getVersion"}{"id":2,"method":"Browser.close"}', "something stands behind it"),
        ('{"id":1,"method":"Browser.getVersion","params":{}/*"*/,"x":"*/}', "it is no JSON"),
        ('{"id":1,"method":"Browser.getVersion","params":{"a":[}]}', "a bracket does not fit"),
        ('{"id":1,"method":"A.b","params":{"a":"\0{\\"id\\":2}"}}', "it has a zero byte"),
        ('{"id":1,"method":"A.b","params":' + "[" * 400 + "]" * 400 + "}", "it is too deep"),
        ('{"id":1,"method":"A.b","params":"', "a text in it has no end"),
        ('{"id":1,"method":"Page.navigate","params":{a}}', "its params are no JSON"),
        ('{"id":1,"method":"A.b","params":{"a":[' + "1," * 300_001 + "1]}}", "it has more than 300000 values"),
    ],
    ids=lambda text: text[:60],
)
async def test_what_the_browser_might_read_otherwise_is_answered_and_not_passed_on(
    session: str, text: str, why: str
) -> None:
    async with connect(session) as websocket:
        await websocket.send(text)
        answer = json.loads(await asyncio.wait_for(websocket.recv(), BOUND_S))
        assert answer["error"]["code"] == -32600
        assert why in answer["error"]["message"]
        await websocket.send('{"id":3,"method":"Browser.getVersion"}')
        assert json.loads(await asyncio.wait_for(websocket.recv(), BOUND_S))["id"] == 3


async def test_of_what_a_small_message_says_twice_the_last_is_judged_and_passed_on(door: CdpDoor) -> None:
    async with connect(f"{door.url}/cdp") as websocket:
        await websocket.send('{"id":1,"method":"Browser.close","m\\u0065thod":"Browser.getVersion"}')
        assert "Chrome/" in json.loads(await asyncio.wait_for(websocket.recv(), BOUND_S))["result"]["product"]
        await websocket.send('{"id":2,"method":"Browser.getVersion","method":"Browser.close"}')
        assert json.loads(await asyncio.wait_for(websocket.recv(), BOUND_S)) == {"id": 2, "result": {}}
    assert (await door.watched.next_closed()).end == CLOSED_BY_CLIENT


@pytest.mark.parametrize("size", [0, 1, 60_000, 300_000, 4 * MIB])
async def test_texts_of_all_sizes_go_both_ways_as_they_are(session: str, size: int) -> None:
    text = ('ö"\\\n\u2028{' * (size // 6 + 1))[:size]
    async with cdp_client(session) as client:
        assert await client.evaluate(await client.page(), json.dumps(text)) == text


async def test_a_large_message_goes_through_and_one_that_the_browser_would_not_take_is_an_error(door: CdpDoor) -> None:
    async with cdp_client(f"{door.url}/cdp") as client:
        page = await client.page()
        assert await client.evaluate(page, "'x'.repeat(100 * 2 ** 20)") == "x" * (100 * MIB)
        # A body: the browser takes a script of this size, too, but has four times the work with it.
        await client.send("Fetch.enable", page)
        script = "fetch('http://a.test/').then(got => got.arrayBuffer()).then(got => got.byteLength)"
        size = await client.post("Runtime.evaluate", page, expression=script, awaitPromise=True)
        answer = {
            "requestId": (await client.event("Fetch.requestPaused"))["params"]["requestId"],
            "responseCode": 200,
            "responseHeaders": [{"name": "Access-Control-Allow-Origin", "value": "*"}],
        }
        with pytest.raises(CdpError, match="a message of 100 MiB is too large for the browser, which takes 99"):
            await client.send("Fetch.fulfillRequest", page, **answer, body="A" * (99 * MIB))
        await client.send("Fetch.fulfillRequest", page, **answer, body="A" * (98 * MIB))
        assert (await size)["result"]["result"]["value"] == 98 * MIB * 3 / 4  # it is in Base64
        assert await client.evaluate(page, "6 * 7") == 42


async def test_who_does_not_read_a_flood_ends_and_takes_bounded_memory() -> None:
    async with (
        cdp_door_without_spares(session_max_buffered_mib=8) as door,
        cdp_client(f"{door.url}/cdp") as neighbour,
        cdp_client(f"{door.url}/cdp") as client,
    ):
        page = await client.page()
        await client.send("Runtime.enable", page)
        before = psutil.Process(door.server.pid).memory_info().rss
        client.websocket.transport.pause_reading()
        flood = "setInterval(() => { for (let n = 0; n < 20; n++) console.log('x'.repeat(1e5)); })"
        await client.post("Runtime.evaluate", page, expression=flood)
        closed = await door.watched.next_closed()
        assert closed.end == End("grid", Reason(EndReason.CLIENT_DOES_NOT_READ))
        # Some gigabytes have been said by now. What Node has not collected yet is some hundred MiB on a slow machine.
        assert psutil.Process(door.server.pid).memory_info().rss - before < 512 * MIB
        assert await neighbour.evaluate(await neighbour.page(), "6 * 7") == 42
        client.websocket.transport.abort()


async def test_a_session_whose_directory_of_files_cannot_be_made_ends_and_nothing_of_it_stays() -> None:
    async with cdp_door_without_spares(max_concurrent_sessions=1) as door:
        files, sessions = (door.watched.directory / name for name in ("files", "sessions"))
        before = len(list(sessions.iterdir()))
        files.rename(files.with_name("node") / "gone")
        for _ in range(before + 2):  # those that the worker has made are used again
            with pytest.raises((EOFError, OSError, InvalidMessage)):
                await connect(f"{door.url}/cdp")
            closed = await door.watched.next_closed()
            assert (closed.end.by, closed.end.reason.kind) == ("grid", EndReason.HANDSHAKE_REFUSED)
        assert len(list(sessions.iterdir())) == before
        (files.with_name("node") / "gone").rename(files)
        async with cdp_client(f"{door.url}/cdp") as client:
            assert await client.evaluate(await client.page(), "6 * 7") == 42


async def test_who_reads_nothing_of_a_quiet_page_ends_by_the_time_limit_of_pings() -> None:
    async with cdp_door_without_spares(session_ping_timeout=1.5) as door, cdp_client(f"{door.url}/cdp") as client:
        page = await client.page()
        client.websocket.transport.pause_reading()
        for _ in range(4):
            await client.post("Runtime.evaluate", page, expression=f"'x'.repeat({8 * MIB})")
        closed = await door.watched.next_closed()
        assert closed.end == End("grid", Reason(EndReason.PING_TIMEOUT))
        client.websocket.transport.abort()


async def test_who_reads_again_gets_all_of_it_and_the_browser_server_kept_little_meanwhile() -> None:
    number, size = 20, 8 * MIB
    async with cdp_door_without_spares(session_max_buffered_mib=1024) as door, cdp_client(f"{door.url}/cdp") as client:
        page = await client.page()
        await client.evaluate(page, f"window.text = 'x'.repeat({size}); 1")
        server, browser = (psutil.Process(pid).memory_info for pid in (door.server.pid, await browser_pid(client)))
        before, browser_before = server().rss, browser().rss
        client.websocket.transport.pause_reading()
        answers = [await client.post("Runtime.evaluate", page, expression="text") for _ in range(number)]
        await eventually_async(lambda: browser().rss - browser_before > number * size / 2, "the browser keeps them")
        assert server().rss - before < 50 * MIB
        client.websocket.transport.resume_reading()
        for answer in answers:
            assert len((await answer)["result"]["result"]["value"]) == size
        assert await client.evaluate(page, "6 * 7") == 42


async def test_who_does_not_read_ends_alone_where_its_browser_has_other_clients() -> None:
    async with (
        cdp_door_without_spares(session_max_buffered_mib=4096) as door,
        cdp_client(f"{door.url}/cdp") as other,
        cdp_client(door.path(door.latest)) as client,
    ):
        own, page = await other.page(), await client.page()
        client.websocket.transport.pause_reading()
        for _ in range(4):
            await client.post("Runtime.evaluate", page, expression=f"'x'.repeat({8 * MIB})")
        connected = psutil.Process(door.server.pid).net_connections
        await eventually_async(lambda: len(connected("tcp")) == 1, "its connection is closed")
        assert await other.evaluate(own, "6 * 7") == 42
        client.websocket.transport.abort()
        assert door.watched.closed.empty()


async def test_who_leaves_with_much_unread_leaves_a_browser_that_answers_the_next() -> None:
    async with cdp_door_without_spares(session_max_buffered_mib=4096) as door:
        async with cdp_client(f"{door.url}/cdp?keep=60") as client:
            page, memory = await client.page(), psutil.Process(await browser_pid(client)).memory_info
            before = memory().rss
            client.websocket.transport.pause_reading()
            for _ in range(5):
                await client.post("Runtime.evaluate", page, expression=f"'x'.repeat({8 * MIB})")
            await eventually_async(lambda: memory().rss - before > 20 * MIB, "the browser keeps them")
            client.websocket.transport.abort()
        assert (await door.next_said())["say"] == "kept"
        async with cdp_client(door.path(door.latest)) as client:
            assert await client.evaluate(await client.page(), "6 * 7") == 42
            await client.send("Browser.close")


async def test_the_connection_of_who_is_refused_is_closed_although_its_client_leaves_it_open(door: CdpDoor) -> None:
    async with cdp_client(f"{door.url}/cdp") as client:
        await client.send("Browser.close")
    connected = psutil.Process(door.server.pid).net_connections
    await eventually_async(lambda: connected("tcp") == [], "its own connection is gone")
    address = door.url.removeprefix("ws://").split(":")
    reader, writer = await asyncio.open_connection(*address)
    writer.write(head(target=f"/devtools/browser/{door.latest}"))
    assert b"410 Gone" in await asyncio.wait_for(reader.read(), BOUND_S)  # until it has closed its side
    await eventually_async(lambda: connected("tcp") == [], "the browser server has let go of it")
    writer.close()


HALF = bytes([0x01, 0xFF]) + (200 * MIB).to_bytes(8, "big") + bytes(4)
"""The head of a client's first frame of several, with the mask 0."""
PINGS = (bytes([0x89, 0x80 | 125]) + bytes(4) + b"x" * 125) * 1000


@contextlib.asynccontextmanager
async def many_clients(door: CdpDoor, number: int) -> AsyncIterator[list[CdpClient]]:
    """Clients of one session, which end with the block whether they are read or not."""
    async with contextlib.AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(cdp_client(f"{door.url}/cdp"))]
        url = door.path(door.latest)
        clients += [await stack.enter_async_context(cdp_client(url)) for _ in range(number - 1)]
        try:
            yield clients
        finally:
            for each in clients:
                each.websocket.transport.abort()


async def all_is_sent(clients: list[CdpClient]) -> None:
    """Waits until each of these has nothing more to send, or has ended."""

    def sent() -> bool:
        return all(each.websocket.transport.get_write_buffer_size() == 0 or each.ended.done() for each in clients)

    await eventually_async(sent, "all of it is sent")


async def test_messages_that_never_end_are_bounded_for_all_clients_of_a_session_together() -> None:
    async with (
        cdp_door_without_spares(max_concurrent_sessions=SLOTS) as door,
        cdp_client(f"{door.url}/cdp") as neighbour,
        many_clients(door, 8) as clients,
    ):
        rss = psutil.Process(door.server.pid).memory_info
        before = rss().rss
        for each in clients:
            each.websocket.transport.write(HALF + bytes(64 * MIB))  # 512 MiB together
        ends = [asyncio.ensure_future(asyncio.shield(each.ended)) for each in clients]
        ended, _ = await asyncio.wait(ends, timeout=BOUND_S, return_when=asyncio.FIRST_COMPLETED)
        code, text = next(iter(ended)).result()
        assert (code, text) == (
            1009,
            "too much of messages that are not whole, of all clients of this session together",
        )
        await all_is_sent(clients)
        assert rss().rss - before < 450 * MIB
        assert await neighbour.evaluate(await neighbour.page(), "6 * 7") == 42


async def test_answers_that_nobody_reads_are_bounded_for_all_clients_of_a_session_together() -> None:
    async with cdp_door_without_spares(session_max_buffered_mib=8) as door, many_clients(door, 6) as clients:
        rss = psutil.Process(door.server.pid).memory_info
        pages = [await each.page() for each in clients]
        before = rss().rss
        for each, page in zip(clients, pages, strict=True):
            each.websocket.transport.pause_reading()
            await each.post("Runtime.evaluate", page, expression="'x'.repeat(16 << 20)", returnByValue=True)
        connected = psutil.Process(door.server.pid).net_connections
        await eventually_async(lambda: len(connected("tcp")) < len(clients), "one that does not read has ended")
        assert door.watched.closed.empty()
        assert rss().rss - before < 256 * MIB


async def test_pings_whose_answers_nobody_reads_take_bounded_memory() -> None:
    async with (
        cdp_door_without_spares(max_concurrent_sessions=SLOTS) as door,
        cdp_client(f"{door.url}/cdp") as neighbour,
        many_clients(door, 10) as clients,
    ):
        rss = psutil.Process(door.server.pid).memory_info
        before = rss().rss
        for each in clients:
            each.websocket.transport.pause_reading()
            each.websocket.transport.write(PINGS * 100)  # 13 MiB
        await all_is_sent(clients)
        assert rss().rss - before < 256 * MIB
        assert await neighbour.evaluate(await neighbour.page(), "6 * 7") == 42


# Files of the host


async def test_downloads_are_files_of_the_session_whatever_path_a_client_names(door: CdpDoor, tmp_path: Path) -> None:
    async with cdp_client(f"{door.url}/cdp") as client:
        page = await client.page()
        await client.send(
            "Browser.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path), eventsEnabled=True
        )
        await download(client, page, "named.txt")
        assert list(tmp_path.iterdir()) == []
        (file,) = files(door, "named.txt")
        assert file.read_text() == "content"
    await door.watched.next_closed()
    await eventually_async(lambda: not files(door, "named.txt"), "the file is gone with its session")


async def test_downloads_of_a_client_that_says_nothing_are_files_of_the_session_too(door: CdpDoor) -> None:
    async with cdp_client(f"{door.url}/cdp") as client:
        await download(client, await client.page(), "unasked.txt")
        await eventually_async(lambda: bool(files(door, "unasked.txt")), "it is there")


async def download(client: CdpClient, page: str, name: str) -> None:
    script = f"""const link = document.createElement('a');
        link.href = URL.createObjectURL(new Blob(['content']));
        link.download = {name!r};
        link.click()"""
    await client.send("Runtime.evaluate", page, expression=script, userGesture=True)
    if name == "named.txt":
        while (await client.event("Browser.downloadProgress"))["params"]["state"] != "completed":
            pass


def files(door: CdpDoor, name: str) -> list[Path]:
    return list((door.directory / "sessions").glob(f"*/{name}"))


REFUSED = {
    "Target.exposeDevToolsProtocol": {"targetId": "x"},
    "DOM.setFileInputFiles": {"files": ["/etc/passwd"]},
    "Input.dispatchDragEvent": {"type": "drop", "x": 1, "y": 1, "data": {"items": [], "files": ["/etc/passwd"]}},
    "Extensions.loadUnpacked": {"path": "/etc"},
    "PWA.launchFilesInApp": {"manifestId": "x", "files": ["/etc/passwd"]},
    "Target.setRemoteLocations": {"locations": [{"host": "127.0.0.1", "port": 9222}]},
}


@pytest.mark.parametrize("method", REFUSED)
@pytest.mark.parametrize("nested", [False, True])
async def test_what_reaches_the_host_is_refused_with_the_setting_that_allows_it(
    session: str, method: str, nested: bool
) -> None:
    async with cdp_client(session) as client:
        command: tuple[str, dict[str, Any]] = method, REFUSED[method]
        if nested:
            message = json.dumps({"id": 1, "method": method, "params": REFUSED[method]})
            command = "Target.sendMessageToTarget", {"message": message, "sessionId": "x"}
        with pytest.raises(CdpError, match=rf"^{method} is refused by the grid: .* \(CLIENT_GUARD=off allows it\)"):
            await client.send(command[0], **command[1])
        with pytest.raises(CdpError, match=r"Tethering.bind is refused by the grid: .* \(nothing allows it\)"):
            await client.send("Tethering.bind", port=9999)


async def test_files_are_no_pages_where_that_is_blocked() -> None:
    async with cdp_door_without_spares(block_file_urls="on") as door, cdp_client(f"{door.url}/cdp") as client:
        page = await client.page()
        for method in ("Page.navigate", "Target.createTarget", "Fetch.continueRequest", "Network.loadNetworkResource"):
            more = {"Fetch.continueRequest": {"requestId": "x"}, "Network.loadNetworkResource": {"options": {}}}
            with pytest.raises(CdpError, match=r"reads files of the host \(BLOCK_FILE_URLS=false allows it\)"):
                await client.send(method, page, url="file:///etc/passwd", **more.get(method, {}))


# Clients that many use


async def test_playwright_connects_over_cdp_and_finds_its_page(door: CdpDoor) -> None:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.connect_over_cdp(f"{door.url}/cdp")
        page = browser.contexts[0].pages[0]
        await page.set_content("<title>over CDP</title><button onclick='window.open()'>open</button>")
        async with page.expect_popup() as popup:
            await page.click("button")
        assert await (await popup.value).evaluate("opener !== null")
        assert await page.title() == "over CDP"
        other = await browser.new_context()
        await other.route("http://a.test/", lambda route: route.fulfill(body="<title>routed</title>"))
        routed = await other.new_page()
        await routed.goto("http://a.test/")
        assert await routed.title() == "routed"
        assert len(await routed.screenshot()) > 1000
        await browser.close()  # over CDP it only disconnects
    assert (await door.watched.next_closed()).end == DISCONNECTED
