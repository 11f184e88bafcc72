"""A browser server through its whole life: real Chromium, or the fake where no browser matters; Firefox is in
tests/hostile/test_firefox.py."""

import asyncio
import contextlib
import errno
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import pytest_asyncio
from playwright.async_api import BrowserType, Playwright, async_playwright
from playwright.async_api import Error as PlaywrightError
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from pwgrid.common.client_marks import clear_marks, is_served
from pwgrid.common.errors import BrowserServerGone
from pwgrid.common.launch_failure import BrowserLaunchError
from pwgrid.common.reasons import EndReason, Reason, WorkerEnd
from pwgrid.worker.browser.launch import LAUNCHER, LaunchSpec
from pwgrid.worker.browser.server import BrowserServer, ending
from pwgrid.worker.holders import SessionClosed
from tests.support import stand_in_proxy
from tests.support.fake_grid import FAKE_LAUNCHER, launching
from tests.support.grid import eventually_async
from tests.support.protocol_client import protocol_client
from tests.support.raw import GOODBYE, PING, PONG
from tests.support.stand_in_proxy import (
    BOUND_S,
    HEADERS,
    Watched,
    browser_server,
    ended,
    front_door,
    into,
    offer,
    private_directory,
    processes_of,
    readable,
    spec,
)

WS_CLOSE_S = 30.0
"""How long the library `ws` waits for the client's end of the socket after the close frames."""

pytestmark = pytest.mark.asyncio(loop_scope="module")

NO_DEVTOOLS = "at this address is Playwright's protocol: CDP clients connect to /cdp, or to http://<host>:<port>"


SECRETS = ("PWGRID_TOKEN", "REDIS_URL", "NOTIFY_SOCKET", "NODE_OPTIONS")
"""Variables of the grid's environment that are nothing for a browser."""

BROWSER_KILLED = Reason(WorkerEnd.BROWSER_ENDED, "SIGKILL", "SIGKILL")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared() -> AsyncIterator[Watched]:
    """One browser server for all tests that end nothing of it. It is started where secrets are in the environment."""
    async with contextlib.AsyncExitStack() as stack:
        with pytest.MonkeyPatch.context() as environment:
            for name in SECRETS:
                environment.setenv(name, "" if name == "NODE_OPTIONS" else "unix:secret")
            watched = await stack.enter_async_context(browser_server())
        yield watched


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def playwright() -> AsyncIterator[Playwright]:
    async with async_playwright() as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def watched(shared: Watched) -> AsyncIterator[Watched]:
    """The shared one; after the test it lives, and every end of a session has been heard of."""
    yield shared
    await shared.all_closed()
    assert shared.closed.empty()
    assert not shared.gone.done()


@pytest_asyncio.fixture(loop_scope="module")
async def to_be_ended() -> AsyncIterator[Watched]:
    """A browser server for one test alone."""
    async with browser_server() as watched:
        yield watched


async def start(launch: LaunchSpec) -> BrowserServer:
    ours, theirs = socket.socketpair()
    return await BrowserServer.start(
        launch, ours, theirs, on_closed=lambda _closed, _on_record: None, on_gone=lambda _: None
    )


async def raw_session(
    watched: Watched, session_id: str = "f" * 16, headers: Mapping[str, str] = HEADERS, early: str = ""
) -> socket.socket:
    """A client that only does what it is told: its end of a socket pair whose other end was handed over."""
    client, handed = socket.socketpair()
    client.setblocking(False)
    handed.setblocking(False)  # as the proxy's are: what is not sent at once must not hold the browser server up
    watched.handed_over += 1
    await watched.server.hand_over(offer(session_id, handed, headers, early))
    handed.close()
    return client


async def read(client: socket.socket) -> bytes:
    async with asyncio.timeout(BOUND_S):
        return await asyncio.get_running_loop().sock_recv(client, 65536)


async def read_to_end(client: socket.socket) -> bytes:
    data = b""
    while chunk := await read(client):
        data += chunk
    return data


# What a client gets


async def test_a_playwright_client_talks_through_a_handed_over_socket(watched: Watched, playwright: Playwright) -> None:
    browser = await playwright.chromium.connect(watched.endpoint)
    page = await browser.new_page()
    await page.set_content("<title>through the grid</title>")
    assert await page.title() == "through the grid"
    assert browser.version == watched.server.ready.browser_version
    await browser.close()
    closed = await watched.next_closed()
    assert (closed.end.by, str(closed.end.reason)) == ("client", "client disconnected")
    assert closed.bytes_in > 500
    assert closed.bytes_out > 500


async def test_two_clients_see_only_their_own_contexts(watched: Watched, playwright: Playwright) -> None:
    first = await playwright.chromium.connect(watched.endpoint)
    second = await playwright.chromium.connect(watched.endpoint)
    await first.new_context()
    assert len(second.contexts) == 0
    await first.close()
    await second.close()


async def test_a_canary_beside_a_session_leaves_its_errors_in_the_language_of_its_client(
    watched: Watched, playwright: Playwright
) -> None:
    browser = await playwright.chromium.connect(watched.endpoint)
    page = await browser.new_page()
    assert (await watched.server.canary(BOUND_S)).ok
    with pytest.raises(PlaywrightError, match=r'waiting for locator\("b"\)'):  # JavaScript has locator('b')
        await page.locator("b").click(timeout=10)
    await browser.close()


async def test_a_closed_session_tells_its_client_why(watched: Watched, playwright: Playwright) -> None:
    browser = await playwright.chromium.connect(watched.endpoint)
    page = await browser.new_page()
    disconnected = asyncio.Event()
    browser.on("disconnected", lambda _: disconnected.set())
    sentence = "the grid closed this session: its worker was being replaced and DRAIN_TIMEOUT=30 s was over"
    session_id = watched.latest
    watched.server.close_session(session_id, Reason(EndReason.DRAIN_TIMEOUT), sentence)
    async with asyncio.timeout(BOUND_S):
        await disconnected.wait()
    with pytest.raises(PlaywrightError, match=sentence):
        await page.title()
    closed = await watched.next_closed()
    assert (closed.session_id, closed.end.by, str(closed.end.reason)) == (session_id, "grid", "drain timeout")


@pytest.mark.parametrize("method", ["Browser.getVersion", "Target.getBrowserContexts"])
async def test_a_client_of_the_devtools_protocol_is_told_so_in_its_own_protocol(watched: Watched, method: str) -> None:
    async with connect(watched.endpoint) as client:
        await client.send(json.dumps({"id": 7, "method": method}))
        assert json.loads(await client.recv()) == {"id": 7, "error": {"code": -32000, "message": NO_DEVTOOLS}}
        with pytest.raises(ConnectionClosed) as caught:
            await client.recv()
        assert caught.value.rcvd is not None
        assert (caught.value.rcvd.code, caught.value.rcvd.reason) == (1003, NO_DEVTOOLS)
        assert str((await watched.next_closed()).end.reason) == "protocol error (1003)"


async def test_a_close_frame_carries_code_and_reason_cut_to_what_fits(watched: Watched) -> None:
    async with connect(watched.endpoint) as client:
        watched.server.close_session(watched.latest, Reason(EndReason.DRAIN_TIMEOUT, "why"), "ö" * 100)
        with pytest.raises(ConnectionClosed) as caught:
            await client.recv()
        assert caught.value.rcvd is not None
        assert (caught.value.rcvd.code, caught.value.rcvd.reason) == (1001, "ö" * 61)
        assert str((await watched.next_closed()).end.reason) == "drain timeout: why"


async def test_a_client_that_does_not_answer_the_close_frame_is_cut_off(watched: Watched) -> None:
    with await raw_session(watched) as client:
        assert (await read(client)).startswith(b"HTTP/1.1 101")
        watched.server.close_session("f" * 16, Reason(EndReason.ENDED_BY_OPERATOR))
        assert b"the grid closed this session: an operator ended it" in await read_to_end(client)
    assert str((await watched.next_closed()).end.reason) == "ended by operator"


async def test_a_session_is_over_when_its_client_says_goodbye_though_its_socket_stays_open(watched: Watched) -> None:
    with await raw_session(watched) as client:
        assert (await read(client)).startswith(b"HTTP/1.1 101")
        await asyncio.get_running_loop().sock_sendall(client, GOODBYE)
        async with asyncio.timeout(WS_CLOSE_S / 2):
            closed = await watched.next_closed()
        assert (await read_to_end(client)).endswith(b"\x88\x02\x03\xe8")  # the server's own close frame, 1000
    assert (closed.end.by, str(closed.end.reason)) == ("client", "client disconnected")


async def test_a_session_is_over_when_its_client_says_goodbye_though_it_reads_nothing(watched: Watched) -> None:
    with await raw_session(watched) as client:
        # More pongs than both sockets' buffers hold, so that the server's own close frame stays in a queue.
        await asyncio.get_running_loop().sock_sendall(client, PING * 5_000 + GOODBYE)
        async with asyncio.timeout(WS_CLOSE_S / 2):
            closed = await watched.next_closed()
        assert (closed.end.by, str(closed.end.reason), closed.bytes_in) == (
            *("client", "client disconnected"),
            len(PING) * 5_000 + len(GOODBYE),
        )
        hung_up = select.poll()
        hung_up.register(client, 0)  # the end of the connection alone, since this client reads nothing
        assert await asyncio.to_thread(hung_up.poll, WS_CLOSE_S / 2 * 1000)
    assert watched.closed.empty()  # it is not reported again when its socket ends


# Limits of a session


async def test_a_client_that_answers_no_ping_is_ended_and_one_that_does_is_left_alone() -> None:
    async with browser_server(session_ping_timeout=3) as watched:
        async with connect(watched.endpoint, ping_interval=None) as client:
            with await raw_session(watched) as silent:  # it came later: the other one has been there for longer
                sentence = b"its client gave no sign of life for SESSION_PING_TIMEOUT=3 s"
                assert sentence in await read_to_end(silent)
            closed = await watched.next_closed()
            assert (closed.session_id, closed.end.by, str(closed.end.reason)) == ("f" * 16, "grid", "ping timeout")
            async with asyncio.timeout(BOUND_S):
                await (await client.ping())
            assert watched.closed.empty()
        assert str((await watched.next_closed()).end.reason) == "client disconnected"


async def test_pings_and_pongs_do_not_keep_an_idle_session() -> None:
    async with (
        browser_server(session_ping_timeout=6, session_idle_timeout=5) as watched,
        connect(watched.endpoint, ping_interval=0.2) as client,
    ):
        with pytest.raises(ConnectionClosed, match="its client asked for nothing for SESSION_IDLE_TIMEOUT="):
            await client.recv()
        assert (await watched.next_closed()).end.by == "grid"


async def test_a_session_ends_at_its_maximum_duration_however_busy(playwright: Playwright) -> None:
    async with browser_server(session_max_duration=3) as watched:

        async def keep_busy() -> None:
            browser = await playwright.chromium.connect(watched.endpoint)
            page = await browser.new_page()
            while True:  # a hundred times a second
                await page.evaluate("new Promise(resolve => setTimeout(resolve, 10))")

        with pytest.raises(PlaywrightError, match="it had lasted for SESSION_MAX_DURATION="):
            await keep_busy()
        assert str((await watched.next_closed()).end.reason) == "maximum duration"


@pytest.mark.parametrize(
    "headers",
    [HEADERS | {"upgrade": "tea"}, {"host": "localhost"}, HEADERS | {"sec-websocket-key": "short"}],
    ids=["no websocket", "half a head", "no key"],
)
async def test_a_refused_handshake_is_answered_and_reported(watched: Watched, headers: dict[str, str]) -> None:
    with await raw_session(watched, headers=headers) as client:
        assert (await read_to_end(client)).startswith(b"HTTP/1.1 400")
    closed = await watched.next_closed()
    assert (closed.end.by, str(closed.end.reason)) == ("grid", "handshake refused")


async def test_what_a_client_has_sent_behind_its_head_is_read_first(watched: Watched) -> None:
    with await raw_session(watched, early=PING.decode("latin-1")) as client:
        received = b""
        while not received.endswith(b"\r\n\r\n" + PONG):
            received += await read(client)
        assert received.startswith(b"HTTP/1.1 101 ")
    await watched.next_closed()


async def test_a_connection_that_a_browser_server_has_bears_its_mark(watched: Watched) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as client,
    ):
        ours, _ = listener.accept()
        with ours:
            clear_marks(ours)
            assert not is_served(ours)
            watched.handed_over += 1
            await watched.server.hand_over(offer("f" * 16, ours))
            assert (await asyncio.to_thread(client.recv, 4096)).startswith(b"HTTP/1.1 101 ")
            client.sendall(PING)
            assert await asyncio.to_thread(client.recv, 16) == PONG
            assert is_served(ours)
    await watched.next_closed()


async def test_a_client_that_left_before_the_handoff_is_reported(watched: Watched) -> None:
    (await raw_session(watched)).close()
    assert str((await watched.next_closed()).end.reason) == "client disconnected"


async def test_a_client_that_breaks_the_protocol_is_reported_as_such(watched: Watched) -> None:
    with await raw_session(watched) as client:
        await read(client)
        await asyncio.get_running_loop().sock_sendall(client, b"\xff" * 16)
        await read_to_end(client)
    closed = await watched.next_closed()
    assert (closed.end.by, str(closed.end.reason)) == ("client", "protocol error (1002)")


# What it keeps to itself


async def test_neither_node_nor_chromium_listens_on_a_port(watched: Watched) -> None:
    listening = [
        connection
        for process in processes_of(watched.directory)
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert listening == []


@pytest.mark.parametrize("where", [{"host": "0.0.0.0", "port": 0}, {"host": "127.0.0.1"}, {}], ids=str)
async def test_a_client_cannot_open_a_port_on_the_host(
    watched: Watched, playwright: Playwright, where: dict[str, Any]
) -> None:
    browser = await playwright.chromium.connect(watched.endpoint)
    with pytest.raises(PlaywrightError, match="no client open a port"):
        await browser.bind("hole", **where)
    page = await browser.new_page()
    assert await page.evaluate("6 * 7") == 42
    await browser.close()


async def test_secrets_of_the_grid_are_not_in_the_environment_of_the_browser(watched: Watched) -> None:
    for pid in (watched.server.pid, watched.server.ready.browser_pid):
        names = psutil.Process(pid).environ().keys()
        assert "TMPDIR" in names
        assert names.isdisjoint(SECRETS)


# Losing a part


async def test_after_sigkill_of_node_nothing_is_left() -> None:
    async with browser_server() as watched:
        browser_pid = watched.server.ready.browser_pid
        os.kill(watched.server.pid, signal.SIGKILL)
        async with asyncio.timeout(BOUND_S):
            assert await watched.server.exited == -signal.SIGKILL
        assert (await watched.why_gone()).signal == "SIGKILL"
        await ended(browser_pid)
        with pytest.raises(BrowserServerGone), socket.socket() as handed:
            await watched.server.hand_over(offer("0" * 16, handed))


async def test_a_handoff_that_node_did_not_acknowledge_fails_with_it() -> None:
    async with browser_server(fake=True) as watched:
        os.kill(watched.server.pid, signal.SIGSTOP)
        client, handed = socket.socketpair()
        future = watched.server.hand_over(offer("0" * 16, handed))
        os.kill(watched.server.pid, signal.SIGKILL)
        with pytest.raises(BrowserServerGone):
            await asyncio.wait_for(future, BOUND_S)
        handed.send(b"the socket is untouched")
        assert await read(set_nonblocking(client)) == b"the socket is untouched"
        client.close()
        handed.close()


def set_nonblocking(sock: socket.socket) -> socket.socket:
    sock.setblocking(False)
    return sock


async def test_a_crashed_browser_ends_every_session_with_that_reason(
    to_be_ended: Watched, playwright: Playwright
) -> None:
    await a_crashed_browser_ends_every_session_with_that_reason(to_be_ended, playwright.chromium)


async def a_crashed_browser_ends_every_session_with_that_reason(watched: Watched, client_of: BrowserType) -> None:
    page = await (await client_of.connect(watched.endpoint)).new_page()
    async with connect(watched.endpoint) as client:
        # It waits before the crash: nothing ends a wait that begins when its page has crashed.
        never = asyncio.ensure_future(page.wait_for_event("never", timeout=BOUND_S * 1000))
        await page.evaluate("1")
        os.kill(watched.server.ready.browser_pid, signal.SIGKILL)
        with pytest.raises(ConnectionClosed, match="the grid closed this session: its browser crashed"):
            await client.recv()
        with pytest.raises(PlaywrightError, match=r"closed|crashed"):
            await never
        for _ in range(2):
            closed = await watched.next_closed()
            assert (closed.end.by, str(closed.end.reason)) == ("browser", "browser crashed")
        assert await watched.why_gone() == BROWSER_KILLED
        assert not (await watched.server.canary(5)).ok


async def test_a_socket_that_arrives_after_the_crash_gets_an_answer() -> None:
    async with browser_server(fake=False) as watched:
        os.kill(watched.server.pid, signal.SIGSTOP)
        client, handed = socket.socketpair()
        future = watched.server.hand_over(offer("0" * 16, handed))
        os.kill(watched.server.ready.browser_pid, signal.SIGKILL)
        await ended(watched.server.ready.browser_pid)
        os.kill(watched.server.pid, signal.SIGCONT)
        await future
        handed.close()
        answer = await read_to_end(set_nonblocking(client))
        client.close()
        # Node may learn of the crash before or after it took the socket.
        assert answer.startswith(b"HTTP/1.1 503") or b"its browser crashed" in answer
        assert str((await watched.next_closed()).end.reason) == "browser crashed"


async def test_a_canary_sings_only_while_the_browser_works(watched: Watched) -> None:
    assert (await watched.server.canary(BOUND_S)).ok
    os.kill(watched.server.ready.browser_pid, signal.SIGSTOP)
    sick = await watched.server.canary(0.5)
    assert not sick.ok
    assert "0.5 s" in sick.error
    os.kill(watched.server.ready.browser_pid, signal.SIGCONT)
    assert (await watched.server.canary(BOUND_S)).ok


async def test_the_browser_keeps_nothing_of_a_connection_that_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stand_in_proxy, "LAUNCHER", Path(stand_in_proxy.__file__).with_name("counting_launcher.cjs"))

    async def listeners(watched: Watched) -> int:
        before = watched.server.evidence
        os.kill(watched.server.pid, signal.SIGUSR2)
        await eventually_async(lambda: watched.server.evidence != before, "it has told")
        return int(watched.server.evidence.rpartition("listeners: ")[2])

    async with browser_server(browser_read_paths=(str(LAUNCHER.parent),)) as watched:
        async with protocol_client(watched.endpoint) as client:
            await client.new_page()
            with_one = await listeners(watched)
        async with asyncio.timeout(BOUND_S):
            while (at_rest := await listeners(watched)) >= with_one:
                pass  # the client's, and those of the launch, are on their way out
        for _ in range(3):
            assert (await watched.server.canary(BOUND_S)).ok
            async with protocol_client(watched.endpoint) as client:
                await client.new_page()
            await watched.all_closed()
        async with asyncio.timeout(BOUND_S):
            while await listeners(watched) > at_rest:
                pass


async def test_a_canary_of_a_launcher_that_hangs_fails_too() -> None:
    async with browser_server(fake=True) as watched:
        os.kill(watched.server.pid, signal.SIGSTOP)
        assert (await watched.server.canary(0.1)).error == "the browser server does not answer"
        os.kill(watched.server.pid, signal.SIGCONT)


async def test_a_browser_that_hangs_answers_no_question_and_stop_cuts_it_off(to_be_ended: Watched) -> None:
    with to_be_ended.server.ask_browser() as answer:
        await asyncio.wait_for(answer, BOUND_S)
    os.kill(to_be_ended.server.ready.browser_pid, signal.SIGSTOP)
    stopped_at = asyncio.get_running_loop().time()
    with to_be_ended.server.ask_browser() as answer, pytest.raises(TimeoutError):
        await asyncio.wait_for(answer, 0.3)
    with to_be_ended.server.ping() as pong:
        await asyncio.wait_for(pong, BOUND_S)
    assert to_be_ended.server.browser_heard_at < stopped_at + 0.1, "its server lives, and knows since when it is silent"
    await to_be_ended.server.stop(1.0)
    assert processes_of(to_be_ended.directory) == []


async def test_stop_kills_a_launcher_that_does_not_listen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FAKE_IGNORE_STOP", str(tmp_path))
    async with browser_server(fake=True) as watched:
        await watched.server.stop(0.2)
        assert watched.server.exited.result() == -signal.SIGKILL


async def test_stop_tells_the_clients_and_reports_their_sessions() -> None:
    async with browser_server() as watched, connect(watched.endpoint) as client:
        await watched.server.stop(10)
        with pytest.raises(
            ConnectionClosed, match="the grid closed this session: its worker had stopped; connect again"
        ):
            await client.recv()
        assert str((await watched.next_closed()).end.reason) == "worker stopped"
        assert watched.server.exited.result() == 0


async def test_signals_of_a_terminal_do_not_reach_the_sessions(watched: Watched) -> None:
    async with connect(watched.endpoint):
        os.kill(watched.server.pid, signal.SIGINT)
        os.kill(watched.server.pid, signal.SIGHUP)
        assert (await watched.server.canary(BOUND_S)).ok
        assert os.getpgid(watched.server.pid) != os.getpgid(0)
        assert watched.closed.empty()


async def test_sigterm_is_a_stop() -> None:
    async with browser_server() as watched:
        os.kill(watched.server.pid, signal.SIGTERM)
        async with asyncio.timeout(BOUND_S):
            assert await watched.server.exited == 0


# Failing to start


async def test_a_browser_that_is_not_there_is_an_error_that_says_so() -> None:
    with private_directory() as directory:
        launch = spec(directory, fake=True, executable="/nonexistent/chromium")
        with pytest.raises(BrowserLaunchError) as caught:
            await start(launch)
    assert str(caught.value) == "chromium did not start: its executable is not there: run `pwgrid setup`"
    assert "/nonexistent/chromium" in caught.value.evidence


async def test_a_browser_that_exits_is_an_error_with_what_it_said(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\necho libnothing.so is missing >&2\nexit 127\n")
    broken.chmod(0o755)
    with private_directory() as directory:
        launch = spec(directory, fake=True, executable=str(broken))
        with pytest.raises(BrowserLaunchError) as caught:
            await start(launch)
    assert str(caught.value) == "chromium did not start: libnothing.so is missing"
    assert f"<launching> {broken}" in caught.value.evidence


async def test_a_launch_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_HANG_START", "1")
    expected = pytest.raises(BrowserLaunchError, match=r"not ready within 0\.5 s")
    with private_directory() as directory, launching(FAKE_LAUNCHER), expected:
        await start(spec(directory, fake=True, launch_timeout=0.5))


async def test_what_the_launcher_says_itself_is_in_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_FAIL_START", "Missing X server or $DISPLAY")
    expected = pytest.raises(BrowserLaunchError, match="HEADLESS=true")
    with private_directory() as directory, launching(FAKE_LAUNCHER), expected:
        await start(spec(directory, fake=True))


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGRTMIN + 6])
async def test_its_end_is_known_also_where_the_host_s_processes_cannot_be_listed(
    monkeypatch: pytest.MonkeyPatch, signum: int
) -> None:
    def no_descriptor() -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    async with browser_server(fake=True) as watched:
        with monkeypatch.context() as shortage:
            shortage.setattr("pwgrid.worker.browser.server.process_table", no_descriptor)
            os.kill(watched.server.pid, signum)
            async with asyncio.timeout(BOUND_S):
                assert await watched.server.exited == -signum
                assert (await watched.gone).detail == ending(-signum)


async def test_a_launcher_that_dies_leaves_its_last_words(tmp_path: Path) -> None:
    launcher = tmp_path / "dies.cjs"
    launcher.write_text("console.error('out of everything'); process.exit(3);")
    expected = pytest.raises(BrowserLaunchError, match="out of everything")
    with private_directory() as directory, launching(launcher), expected:
        await start(spec(directory, fake=True))


async def test_a_socket_path_that_is_too_long_is_an_error_that_names_the_setting() -> None:
    with private_directory() as directory:
        launch = replace(spec(directory, fake=True), directory=directory / ("x" * 100))
        with pytest.raises(BrowserLaunchError, match="PWGRID_RUNTIME_DIR"):
            await start(launch)


# Outliving the worker

WORKER = """
import asyncio, socket, sys
from pathlib import Path
from pwgrid.worker.browser.server import BrowserServer
from tests.support.stand_in_proxy import offer, spec

async def main():
    ours, theirs, session = (socket.socket(fileno=int(fd)) for fd in sys.argv[2:5])
    server = await BrowserServer.start(
        spec(Path(sys.argv[1]), drain_timeout=float(sys.argv[5])), ours, theirs,
        on_closed=lambda _closed, _on_record: None, on_gone=lambda _: None,
    )
    client = offer("a" * 16, session, name="Smoke 12")
    client.session.lease_id = "1" * 16
    await server.hand_over(client)
    session.close()
    print(server.pid, server.ready.browser_pid, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


class DyingWorker:
    """A worker process with one live session, killed; the master's copy of its channel and the client remain."""

    def __init__(self, directory: Path, drain_timeout_s: float = 30.0) -> None:
        self.master_copy, theirs = socket.socketpair()
        self.client, handed = socket.socketpair()
        self.client.setblocking(False)
        fds = [self.master_copy.fileno(), theirs.fileno(), handed.fileno()]
        worker = subprocess.Popen(
            [sys.executable, "-c", WORKER, str(directory), *map(str, fds), str(drain_timeout_s)],
            stdout=subprocess.PIPE,
            pass_fds=fds,
            text=True,
        )
        theirs.close()
        handed.close()
        assert worker.stdout is not None
        self.node_pid, self.browser_pid = map(int, worker.stdout.readline().split())
        worker.kill()
        worker.wait()
        worker.stdout.close()


async def test_a_successor_adopts_the_browser_server_and_its_sessions() -> None:
    """Half a line of the dead worker does not confuse Node."""
    with private_directory() as directory:
        orphan = DyingWorker(directory)
        orphan.master_copy.send(b'{"do":"close","session":"aaaaaaaaaaaaaaaa","rea')
        closed: asyncio.Queue[SessionClosed] = asyncio.Queue()
        server, live = await BrowserServer.adopt(
            orphan.master_copy,
            orphan.node_pid,
            directory / "tmp",
            on_closed=into(closed),
            on_gone=lambda _: None,
            timeout_s=BOUND_S,
        )
        assert live == {"a" * 16: {"name": "Smoke 12", "lease": "1" * 16}}
        assert server.ready.browser_pid == orphan.browser_pid
        assert (await server.canary(BOUND_S)).ok
        watched = Watched(server, directory, closed)
        async with front_door(watched), connect(watched.endpoint):
            assert (await read(orphan.client)).startswith(b"HTTP/1.1 101")
        assert (await watched.next_closed()).session_id == f"{1:016x}"
        orphan.client.close()
        assert (await watched.next_closed()).session_id == "a" * 16
        await server.stop(10)
        assert server.exited.result() is None
        await ended(orphan.node_pid)


async def test_a_session_that_ended_without_a_worker_is_reported_to_the_successor() -> None:
    with private_directory() as directory:
        orphan = DyingWorker(directory)
        await read(orphan.client)
        orphan.client.close()
        # The report is under way when bytes wait in the channel that nobody reads.
        await readable(orphan.master_copy.fileno())
        closed: asyncio.Queue[SessionClosed] = asyncio.Queue()
        server, live = await BrowserServer.adopt(
            orphan.master_copy,
            orphan.node_pid,
            directory / "tmp",
            on_closed=into(closed),
            on_gone=lambda _: None,
            timeout_s=BOUND_S,
        )
        ended_session = await asyncio.wait_for(closed.get(), BOUND_S)
        assert (live, ended_session.session_id, ended_session.lease_id) == ({}, "a" * 16, "1" * 16)
        await server.stop(10)


async def test_a_browser_that_crashed_without_a_worker_is_told_to_the_successor() -> None:
    with private_directory() as directory:
        orphan = DyingWorker(directory)
        os.kill(orphan.browser_pid, signal.SIGKILL)
        assert b"the grid closed this session: its browser crashed" in await read_to_end(orphan.client)
        orphan.client.close()
        gone: asyncio.Future[Reason] = asyncio.get_running_loop().create_future()
        closed: asyncio.Queue[SessionClosed] = asyncio.Queue()
        server, _ = await BrowserServer.adopt(
            orphan.master_copy,
            orphan.node_pid,
            directory / "tmp",
            on_closed=into(closed),
            on_gone=gone.set_result,
            timeout_s=BOUND_S,
        )
        assert not gone.done()
        assert await asyncio.wait_for(gone, BOUND_S) == BROWSER_KILLED
        assert str((await asyncio.wait_for(closed.get(), BOUND_S)).end.reason) == "browser crashed"
        await server.stop(10)


async def test_a_dead_browser_server_cannot_be_adopted() -> None:
    with private_directory() as directory:
        orphan = DyingWorker(directory)
        os.kill(orphan.node_pid, signal.SIGKILL)
        await ended(orphan.node_pid)
        await ended(orphan.browser_pid)
        with pytest.raises(BrowserServerGone):
            await BrowserServer.adopt(
                orphan.master_copy,
                orphan.node_pid,
                directory / "tmp",
                on_closed=lambda _closed, _on_record: None,
                on_gone=lambda _: None,
                timeout_s=BOUND_S,
            )
        orphan.client.close()


async def test_without_worker_and_master_the_live_session_goes_on_and_then_all_ends() -> None:
    with private_directory() as directory:
        orphan = DyingWorker(directory)
        orphan.master_copy.close()
        assert (await read(orphan.client)).startswith(b"HTTP/1.1 101")
        await asyncio.get_running_loop().sock_sendall(orphan.client, PING)
        assert (await read(orphan.client)) == PONG
        orphan.client.close()
        await ended(orphan.node_pid)
        await ended(orphan.browser_pid)


async def test_without_worker_and_master_a_session_ends_at_the_drain_timeout() -> None:
    with private_directory() as directory:
        orphan = DyingWorker(directory, drain_timeout_s=0.5)
        orphan.master_copy.close()
        sentence = b"the grid closed this session: its worker was gone and DRAIN_TIMEOUT=0.5 s was over"
        assert sentence in await read_to_end(orphan.client)
        orphan.client.close()
        await ended(orphan.node_pid)
        await ended(orphan.browser_pid)


# The fake keeps the same rules


async def test_the_fake_echoes_and_closes_like_the_real_one() -> None:
    async with browser_server(fake=True) as watched, connect(watched.endpoint) as client:
        for message in ("small", "x" * 300, "y" * 200_000, b"\0\1\2"):
            await client.send(message)
            assert await client.recv() == message
        watched.server.close_session(f"{1:016x}", Reason(EndReason.ENDED_BY_OPERATOR))
        with pytest.raises(ConnectionClosed, match="the grid closed this session: an operator ended it"):
            await client.recv()
        assert str((await watched.next_closed()).end.reason) == "ended by operator"


async def test_hundreds_of_handoffs_at_once_arrive_each_with_its_own_socket() -> None:
    async with browser_server(fake=True) as watched:
        pairs = [socket.socketpair() for _ in range(400)]
        futures = []
        for number, (client, handed) in enumerate(pairs):
            client.setblocking(False)
            futures.append(watched.server.hand_over(offer(f"{number:016x}", handed)))
        await asyncio.gather(*futures)
        for number, (client, handed) in enumerate(pairs):
            handed.close()
            await read(client)
            client.close()
            assert (await watched.next_closed()).session_id == f"{number:016x}"


async def test_a_client_s_cdp_session_with_the_browser_ends_with_the_client(
    monkeypatch: pytest.MonkeyPatch, playwright: Playwright
) -> None:
    monkeypatch.setenv("DEBUG", "pw:protocol")  # the browser server prints what it says to the browser
    async with browser_server(browser_env=("DEBUG",)) as watched:
        browser = await playwright.chromium.connect(watched.endpoint)
        session = await browser.new_browser_cdp_session()
        await session.send("Browser.getVersion")
        asked = re.compile(r'SEND .*"method":"Browser.getVersion".*"sessionId":"(\w+)"')
        await eventually_async(lambda: asked.search(watched.server.evidence) is not None, "the session is used")
        (name,) = asked.findall(watched.server.evidence)
        await browser.close()
        detached = re.compile(rf'SEND .*"Target.detachFromTarget".*"{name}"')
        await eventually_async(lambda: detached.search(watched.server.evidence) is not None, "the session is detached")


async def test_browser_servers_leave_compiled_code_for_each_other(tmp_path: Path) -> None:
    cache = tmp_path / "node"

    def files() -> dict[str, int]:
        return {str(path): path.stat().st_mtime_ns for path in cache.rglob("*") if path.is_file()}

    def size() -> int:
        with contextlib.suppress(FileNotFoundError):  # it is just being renamed
            return sum(Path(path).stat().st_size for path in files())
        return 0

    async with browser_server(code_cache=cache) as first:
        # What it loaded and compiled: large, or there would be nothing to gain.
        await eventually_async(
            lambda: size() > 1_000_000, "the first one has compiled playwright-core, and left it here"
        )
        assert (await first.server.canary(BOUND_S)).ok
        left = files()
    async with browser_server(code_cache=cache) as second:
        assert (await second.server.canary(BOUND_S)).ok
    assert files().items() >= left.items()


async def test_pages_that_do_not_come_are_signs_and_who_waits_for_one_in_a_sick_browser_is_told(
    playwright: Playwright,
) -> None:
    """Its zygotes, which fork the processes of pages, are frozen. The browser itself answers."""
    signs: asyncio.Queue[str] = asyncio.Queue()
    async with browser_server(worker_lost_threshold=1.0) as watched:
        watched.server.on_sign = signs.put_nowait
        first, second = [await playwright.chromium.connect(watched.endpoint) for _ in range(2)]
        page = await first.new_page()
        for process in psutil.Process(watched.server.ready.browser_pid).children():
            if "--type=zygote" in process.cmdline():
                process.suspend()
        await page.evaluate("void window.open('about:blank', '', 'noopener')")
        assert await asyncio.wait_for(signs.get(), BOUND_S) == "a new page is unanswered"
        waits = asyncio.create_task(second.new_page())
        assert {await asyncio.wait_for(signs.get(), BOUND_S) for _ in range(2)} == {
            "newPage is unanswered",
            "a new page is unanswered",
        }
        watched.server.cut_hanging("browser sick", 0.5)
        with pytest.raises(PlaywrightError, match="its browser opens no pages any more; connect again"):
            await asyncio.wait_for(waits, BOUND_S)
        assert str((await watched.next_closed()).end.reason) == "browser sick"
        assert await page.evaluate("6 * 7") == 42, "who waits for no page is left alone"
        with watched.server.ask_browser() as answer:
            await asyncio.wait_for(answer, BOUND_S)
        assert signs.empty(), "each is told once"
        await first.close()
