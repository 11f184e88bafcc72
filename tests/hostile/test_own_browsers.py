"""Two hostile clients, each with its own browser: what one does is its own matter, and nothing of it is left."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

import psutil
import pytest
import pytest_asyncio

from pwgrid.worker.holders import OwnBrowser
from tests.hostile.calls import DOWNLOAD, browser_pid, browser_session, evaluate, goto, left_behind, targets
from tests.support.grid import eventually_async
from tests.support.protocol_client import ProtocolClient, protocol_client
from tests.support.stand_in_proxy import BOUND_S, Watched, browser_server

pytestmark = pytest.mark.asyncio(loop_scope="session")

ATTACKED_S: Final = 2.0

Attack = Callable[[ProtocolClient], Awaitable[object]]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def watched() -> AsyncIterator[Watched]:
    async with browser_server(client_guard="compatible") as watched:
        watched.own = OwnBrowser(time.monotonic() + 10 * BOUND_S)
        yield watched


async def ends_the_browser(client: ProtocolClient) -> None:
    await client.cdp(await browser_session(client), "Browser.close")


async def crashes_the_browser(client: ProtocolClient) -> None:
    await client.cdp(await browser_session(client), "Browser.crash")


async def crashes_the_browser_by_a_url(client: ProtocolClient) -> None:
    session = await browser_session(client)
    await client.cdp(session, "Target.createTarget", url="chrome://inducebrowsercrashforrealz")


async def hangs_the_browser_by_a_url(client: ProtocolClient) -> None:
    session = await browser_session(client)
    await client.cdp(session, "Target.createTarget", url="chrome://uithreadhang")


async def takes_much_memory_and_never_ends(client: ProtocolClient) -> None:
    script = """(() => {
        const all = [];
        for (;;) {
            if (all.length < 16)  // a GiB: this host is to run other tests, too
                all.push(new Uint8Array(64 * 1024 * 1024).fill(1));
        }
    })()"""
    await evaluate(client, await client.new_page(), script)


async def makes_many_processes(client: ProtocolClient) -> None:
    page = await client.new_page()
    script = """(() => {
        for (let n = 0; n < 30; n++)
            new Worker(URL.createObjectURL(new Blob(['for (;;);'])));
        for (let n = 0; n < 10; n++)
            document.body.append(Object.assign(document.createElement('iframe'), { src: `http://${n}.localhost:9/` }));
    })()"""
    await evaluate(client, page, script)


async def writes_many_files(client: ProtocolClient) -> None:
    page = await client.new_page(await client.new_context(acceptDownloads="accept"))
    for _ in range(20):
        await evaluate(client, page, DOWNLOAD)


ATTACKS: Final = (
    ends_the_browser,
    crashes_the_browser,
    crashes_the_browser_by_a_url,
    hangs_the_browser_by_a_url,
    takes_much_memory_and_never_ends,
    makes_many_processes,
    writes_many_files,
)


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda each: each.__name__)
async def test_what_a_client_does_is_its_own_matter(watched: Watched, attack: Attack) -> None:
    async with protocol_client(watched.endpoint) as neighbour:
        page = await neighbour.new_page()
        await goto(neighbour, page, "data:text/html,<title>of the neighbour</title>")
        async with protocol_client(watched.endpoint) as client:
            browser = psutil.Process(await browser_pid(client))
            attacking = asyncio.ensure_future(attack(client))
            await asyncio.wait([attacking], timeout=ATTACKED_S)  # some are never answered
            family = family_of(browser)
            for _ in range(5):
                assert await evaluate(neighbour, page, "document.title") == {"s": "of the neighbour"}
            attacking.cancel()
            await asyncio.gather(attacking, return_exceptions=True)
        assert not neighbour.ended.done()
        await eventually_async(lambda: not any(each.is_running() for each in family), "all of its browser is gone")
        assert await evaluate(neighbour, page, "6 * 7") == {"n": 42}
    await eventually_async(lambda: not left_behind(watched), "no file is left")
    assert not watched.gone.done()


def family_of(browser: psutil.Process) -> list[psutil.Process]:
    """The browser with all below it, as far as they live."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return [browser, *browser.children(recursive=True)]
    return []


async def test_one_sees_no_page_of_the_other(watched: Watched) -> None:
    async with protocol_client(watched.endpoint) as one, protocol_client(watched.endpoint) as other:
        await goto(one, await one.new_page(), "data:text/html,<title>secret</title>")
        seen = await targets(other, await browser_session(other))
        assert not any("secret" in each["url"] for each in seen)
