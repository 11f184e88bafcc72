"""Sessions with browsers of their own, in one browser server: real Chromium."""

import asyncio
import contextlib
import ctypes
import os
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest
import pytest_asyncio

from pwgrid.common.launch_failure import BrowserLaunchError
from pwgrid.common.reasons import EndReason, Reason
from pwgrid.common.types import Isolation
from pwgrid.worker.holders import End, OwnBrowser
from tests.hostile.calls import browser_pid, browser_session, evaluate, goto, targets
from tests.support.browsers import chromiums_of
from tests.support.grid import eventually_async
from tests.support.protocol_client import Refusal, protocol_client
from tests.support.stand_in_proxy import BOUND_S, Watched, browser_server

SLOTS = 4

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def watched() -> AsyncIterator[Watched]:
    """A browser server with a shared browser."""
    async with browser_server(max_concurrent_sessions=SLOTS) as watched:
        watched.own = own()
        yield watched


def own(network: str = "", **options: object) -> OwnBrowser:
    return OwnBrowser(time.monotonic() + BOUND_S, options, network)


def browsers(watched: Watched) -> set[int]:
    """The pids of the browsers, the shared one too."""
    return chromiums_of(watched.server.pid)


async def test_each_session_has_a_browser_that_no_other_one_sees(watched: Watched) -> None:
    async with protocol_client(watched.endpoint) as one, protocol_client(watched.endpoint) as other:
        pids = {await browser_pid(each) for each in (one, other)}
        assert len(pids) == 2
        assert pids <= browsers(watched)
        await goto(one, await one.new_page(), "data:text/html,<title>of one</title>")
        for client, expected in ((one, True), (other, False)):
            found = await targets(client, await browser_session(client))
            assert any("of one" in each["url"] for each in found) is expected


async def test_the_kernel_shares_processors_by_browsers_and_not_by_threads(watched: Watched) -> None:
    """By sessions of the kernel's, of which each browser has one, with all that is below it (autogroup)."""
    async with protocol_client(watched.endpoint) as one, protocol_client(watched.endpoint) as other:
        for each in (one, other):
            await goto(each, await each.new_page(), "data:text/html,a")
        pids = [await browser_pid(one), await browser_pid(other), watched.server.ready.browser_pid]
        trees = [[pid, *(each.pid for each in psutil.Process(pid).children(recursive=True))] for pid in pids]
        assert min(map(len, trees)) > 1
        of_node = [watched.server.pid]
        assert [{*map(os.getsid, tree)} for tree in (*trees, of_node)] == [{pid} for pid in (*pids, *of_node)]
        groups = [{*map(autogroup_of, tree)} for tree in (*trees, of_node)]
        if groups[0] != {""}:
            assert ([len(each) for each in groups], len(set().union(*groups))) == ([1] * 4, 4)


def autogroup_of(pid: int) -> str:
    """The name of its group; empty where the kernel makes none."""
    file = Path(f"/proc/{pid}/autogroup")
    return file.read_text().partition(" ")[0] if file.exists() else ""


async def test_nothing_of_a_browser_is_left_when_its_session_is_over(watched: Watched) -> None:
    directory = watched.directory
    async with protocol_client(watched.endpoint) as client:
        pid = await browser_pid(client)
        family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
        profile = next(each for each in psutil.Process(pid).cmdline() if each.startswith("--user-data-dir="))
        path = Path(profile.partition("=")[2])
        temporary = Path(psutil.Process(pid).environ()["TMPDIR"])
        assert temporary.is_relative_to(directory / "own")
        assert path.exists()
    await eventually_async(
        lambda: not any(each.is_running() for each in family) and not path.exists() and not temporary.exists(),
        "its processes, its profile and its files are gone",
    )
    assert not list(directory.glob(f"own-{temporary.name}.s"))


async def test_a_browser_that_is_killed_ends_its_own_session_alone(watched: Watched) -> None:
    async with protocol_client(watched.endpoint) as neighbour, protocol_client(watched.endpoint) as client:
        await neighbour.new_page()
        os.kill(await browser_pid(client), signal.SIGKILL)
        async with asyncio.timeout(BOUND_S):
            assert "browser crashed" in await client.ended or await client.ended
        assert await evaluate(neighbour, neighbour.one("Page"), "6 * 7") == {"n": 42}
        ends = []
        while End("browser", Reason(EndReason.BROWSER_CRASHED)) not in ends:
            ends.append((await watched.next_closed()).end)
    assert not watched.gone.done()


async def test_a_network_service_that_crashes_ends_its_own_session_alone(watched: Watched) -> None:
    """It is a thread of the browser's process where that is one session's own."""
    async with protocol_client(watched.endpoint) as neighbour, protocol_client(watched.endpoint) as client:
        await neighbour.new_page()
        pid, of_neighbour = await browser_pid(client), await browser_pid(neighbour)
        shared = watched.server.ready.browser_pid
        assert [network_processes(each) for each in (pid, of_neighbour, shared)] == [0, 0, 1]
        (thread,) = [each.id for each in psutil.Process(pid).threads() if thread_name(pid, each.id) == "NetworkService"]
        assert ctypes.CDLL(None).tgkill(pid, thread, signal.SIGSEGV) == 0
        async with asyncio.timeout(BOUND_S):
            assert "browser crashed" in await client.ended
        assert await evaluate(neighbour, neighbour.one("Page"), "6 * 7") == {"n": 42}
    assert not watched.gone.done()


@pytest.mark.parametrize("switch", ["--enable-features=Translate", "--disable-features=NetworkServiceInProcess2"])
async def test_who_gives_features_has_them_and_who_disables_the_network_thread_has_a_process(
    watched: Watched, switch: str
) -> None:
    watched.own = own(args=[switch])
    try:
        async with protocol_client(watched.endpoint) as client:
            pid = await browser_pid(client)
            await client.new_page()
            enabled = [each for each in psutil.Process(pid).cmdline() if each.startswith("--enable-features=")]
            assert enabled[-1].startswith("--enable-features=Translate,") is switch.startswith("--enable")
            assert network_processes(pid) == switch.startswith("--disable")
    finally:
        watched.own = own()


def network_processes(browser: int) -> int:
    commands = [each.cmdline() for each in psutil.Process(browser).children(recursive=True)]
    return sum("--utility-sub-type=network.mojom.NetworkService" in command for command in commands)


def thread_name(pid: int, thread: int) -> str:
    return Path(f"/proc/{pid}/task/{thread}/comm").read_text().strip()


async def test_a_browser_that_is_frozen_ends_its_own_session_alone() -> None:
    async with browser_server(worker_lost_threshold=3.0) as watched:
        watched.own = own()
        async with protocol_client(watched.endpoint) as neighbour, protocol_client(watched.endpoint) as client:
            await neighbour.new_page()
            os.kill(await browser_pid(client), signal.SIGSTOP)
            closed = await watched.next_closed()
            assert closed.end == End("grid", Reason(EndReason.BROWSER_HUNG))
            assert await evaluate(neighbour, neighbour.one("Page"), "6 * 7") == {"n": 42}
        assert not watched.gone.done()


async def test_a_browser_that_opens_no_pages_ends_its_own_session_alone() -> None:
    """Its zygotes, which fork the processes of pages, are frozen. The browser itself answers."""
    async with browser_server(worker_lost_threshold=3.0) as watched:
        watched.own = own()
        async with protocol_client(watched.endpoint) as neighbour, protocol_client(watched.endpoint) as client:
            await neighbour.new_page()
            for process in psutil.Process(await browser_pid(client)).children(recursive=True):
                if "--type=zygote" in process.cmdline():
                    process.suspend()
            opening = [asyncio.ensure_future(client.new_page()) for _ in range(2)]  # a process for one may be there
            assert (await watched.next_closed()).end == End("grid", Reason(EndReason.BROWSER_SICK))
            await asyncio.gather(*opening, return_exceptions=True)
            assert await evaluate(neighbour, neighbour.one("Page"), "6 * 7") == {"n": 42}
        assert not watched.gone.done()


async def test_a_client_may_end_its_own_browser(watched: Watched) -> None:
    async with protocol_client(watched.endpoint) as client:
        session = await browser_session(client)
        await client.post(session, "send", method="Browser.close", params={})
        async with asyncio.timeout(BOUND_S):
            await client.ended
    assert not watched.gone.done()


async def test_options_of_the_client_are_those_of_its_browser(watched: Watched) -> None:
    watched.own = own(args=["--lang=de-AT", "--user-agent=of the client"])
    try:
        async with protocol_client(watched.endpoint) as client:
            page = await client.new_page()
            assert await evaluate(client, page, "navigator.userAgent") == {"s": "of the client"}
    finally:
        watched.own = own()


async def test_a_browser_that_does_not_start_is_told_and_leaves_nothing(watched: Watched) -> None:
    before = browsers(watched)
    with pytest.raises(BrowserLaunchError):
        await watched.server.acquire("f" * 16, {"executablePath": "/nonexistent"}, time.monotonic() + BOUND_S)
    assert browsers(watched) <= before
    await eventually_async(
        lambda: len(list((watched.directory / "own").iterdir())) == len(browsers(watched)) - 1, "no directory is left"
    )


async def test_what_is_acquired_and_given_back_is_gone(watched: Watched) -> None:
    before = browsers(watched)
    await watched.server.acquire("e" * 16, {"args": ["--lang=fr"]}, time.monotonic() + BOUND_S)
    (pid,) = {each for each in browsers(watched) - before if "--lang=fr" in psutil.Process(each).cmdline()}
    watched.server.give_back("e" * 16)
    await eventually_async(lambda: not psutil.pid_exists(pid), "its browser is gone")


async def test_a_page_reads_no_file_of_another_browser(watched: Watched) -> None:
    async with protocol_client(watched.endpoint) as one, protocol_client(watched.endpoint) as other:
        pid = await browser_pid(one)
        temporary = psutil.Process(pid).environ()["TMPDIR"]
        Path(temporary, "secret.html").write_text("<title>secret</title>")
        page = await one.new_page()
        await goto(one, page, f"file://{temporary}/secret.html")
        with pytest.raises(Refusal):
            await goto(other, await other.new_page(), f"file://{temporary}/secret.html")


async def test_without_a_shared_browser_every_session_has_its_own() -> None:
    async with browser_server(isolation=Isolation.BROWSER, warm_browsers=2) as watched:
        await eventually_async(lambda: len(browsers(watched)) == 2, "two are warm")
        watched.own = own()
        async with protocol_client(watched.endpoint) as client:
            page = await client.new_page()
            assert await evaluate(client, page, "6 * 7") == {"n": 42}
            await eventually_async(lambda: len(browsers(watched)) == 3, "two are warm again")
        await eventually_async(lambda: len(browsers(watched)) == 2, "that of the client is gone")
        assert (await watched.server.canary(BOUND_S)).ok
        watched.server.keep_none_warm()
        await eventually_async(lambda: not browsers(watched), "none is warm")
        assert not watched.gone.done()


async def test_the_canary_ends_a_warm_browser_that_opens_no_page_and_tries_the_next() -> None:
    async with browser_server(isolation=Isolation.BROWSER, warm_browsers=2) as watched:
        await eventually_async(lambda: len(browsers(watched)) == 2, "two are warm")
        frozen = watched.server.ready.browser_pid
        os.kill(frozen, signal.SIGSTOP)
        assert not (await watched.server.canary(1)).ok
        assert (await watched.server.canary(BOUND_S)).ok
        await eventually_async(
            lambda: frozen not in browsers(watched) and len(browsers(watched)) == 2, "another one is in its place"
        )
        assert not watched.gone.done()


async def test_while_the_host_is_short_of_memory_none_is_made_warm() -> None:
    async with browser_server(isolation=Isolation.BROWSER, warm_browsers=2, max_concurrent_sessions=SLOTS) as watched:
        await eventually_async(lambda: len(browsers(watched)) == 2, "two are warm")
        watched.server.hold_warm(True)
        watched.own = own()
        async with contextlib.AsyncExitStack() as held:
            for _ in range(3):
                client = await held.enter_async_context(protocol_client(watched.endpoint))
                assert await evaluate(client, await client.new_page(), "6 * 7") == {"n": 42}
            assert len(browsers(watched)) == 3, "two were warm, one was started for its session"
            watched.server.hold_warm(False)
            await eventually_async(lambda: len(browsers(watched)) == 5, "two are warm again")
