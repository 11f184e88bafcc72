"""Two clients, one browser: neither sees nor ends the other, whatever each does with what is its own."""

import asyncio
import zipfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Playwright

from tests.hostile.official_client import web_server
from tests.hostile.test_guard import SHARED
from tests.support.protocol_client import Refusal, protocol_client
from tests.support.stand_in_proxy import BOUND_S, Servers, Watched, shared_servers


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def servers() -> AsyncIterator[Servers]:
    async with shared_servers() as started:
        yield started


@pytest_asyncio.fixture(loop_scope="session", params=["compatible"])
async def watched(servers: Servers, request: pytest.FixtureRequest) -> AsyncIterator[Watched]:
    """The shared browser server with this guard; after the test it has no session, and lives."""
    shared = await servers({"max_concurrent_sessions": SHARED, "client_guard": request.param})
    yield shared
    await shared.all_closed()
    assert not shared.gone.done()


each_guard = pytest.mark.parametrize("watched", ["compatible", "strict"], indirect=True)


async def signed_in(browser: Browser, site: str, name: str) -> None:
    """A context with a cookie, storage, a page and what its script sets."""
    context = await browser.new_context()
    page = await context.new_page()
    await page.goto(f"http://{site}/")
    await context.add_cookies([{"name": "who", "value": name, "url": f"http://{site}"}])
    await page.evaluate("name => { localStorage.who = name; window.who = name; }", name)
    await page.evaluate("window.channel = new BroadcastChannel('all')")
    await page.evaluate("name => { channel.onmessage = each => { window.heard = (window.heard ?? '') + each.data } }")


async def seen(browser: Browser, site: str) -> dict[str, object]:
    """All that a client can find of who uses the browser, over the contexts that it has."""
    (context,) = browser.contexts
    (page,) = context.pages
    other = await context.new_page()
    await other.goto(f"http://{site}/")
    found = {
        "cookies": [each["value"] for each in await context.cookies()],
        "storage": await other.evaluate("localStorage.who"),
        "own": await page.evaluate("window.who"),
        "heard": await page.evaluate("window.heard"),
        "state": [each["value"] for each in (await context.storage_state())["cookies"]],
    }
    await other.close()
    return found


def only(name: str, heard: str | None = None) -> dict[str, object]:
    return {"cookies": [name], "storage": name, "own": name, "heard": heard, "state": [name]}


@each_guard
async def test_neither_sees_the_other(watched: Watched, playwright: Playwright) -> None:
    async with web_server() as site:
        first = await playwright.chromium.connect(watched.endpoint)
        second = await playwright.chromium.connect(watched.endpoint)
        await signed_in(first, site, "first")
        await signed_in(second, site, "second")
        for browser in (first, second):
            (page,) = browser.contexts[0].pages
            # On a channel of the same name; who listens in the same context would hear it.
            await page.evaluate("(c => { c.postMessage('x'); c.close(); })(new BroadcastChannel('all'))")
            assert len(browser.contexts) == 1
        for browser, name in ((first, "first"), (second, "second")):
            assert await seen(browser, site) == only(name, "x")
        await first.close()
        assert await seen(second, site) == only("second", "x")
        await second.close()


@each_guard
@pytest.mark.parametrize("crash", [False, True])
async def test_neither_ends_the_other(watched: Watched, crash: bool, playwright: Playwright) -> None:
    async with web_server() as site:
        staying = await playwright.chromium.connect(watched.endpoint)
        await signed_in(staying, site, "staying")
        for _ in range(2):
            leaving = await playwright.chromium.connect(watched.endpoint)
            await signed_in(leaving, site, "leaving")
            (page,) = leaving.contexts[0].pages
            if crash:
                crashed = asyncio.Event()
                page.on("crash", lambda _, crashed=crashed: crashed.set())
                going = asyncio.ensure_future(page.goto("chrome://crash"))
                async with asyncio.timeout(BOUND_S):
                    await crashed.wait()
                await asyncio.wait([going])
                going.exception()
            left = watched.latest
            await leaving.close()
            assert (await watched.next_closed()).session_id == left
            assert await seen(staying, site) == only("staying")
        await staying.close()


async def test_the_objects_of_one_connection_are_none_to_another(watched: Watched) -> None:
    async with protocol_client(watched.endpoint) as owner, protocol_client(watched.endpoint) as other:
        page = await owner.new_page()
        context, frame = owner.one("BrowserContext"), owner.frame(page)
        for guid, method in ((page, "close"), (context, "close"), (context, "cookies"), (frame, "content")):
            with pytest.raises(Refusal, match="has been closed"):  # there is no such object
                await other.send(guid, method)
        assert (await owner.send(frame, "title"))["value"] == ""


async def test_a_trace_has_nothing_of_the_other(watched: Watched, playwright: Playwright, tmp_path: Path) -> None:
    async with web_server() as site:
        first = await playwright.chromium.connect(watched.endpoint)
        second = await playwright.chromium.connect(watched.endpoint)
        for browser, name in ((first, "first"), (second, "second")):
            context = await browser.new_context()
            await context.tracing.start(screenshots=True, snapshots=True)
            await (await context.new_page()).goto(f"http://{site}/of-the-{name}")
        for browser, name, others in ((first, "first", b"of-the-second"), (second, "second", b"of-the-first")):
            path = tmp_path / f"{name}.zip"
            await browser.contexts[0].tracing.stop(path=path)
            archive = zipfile.ZipFile(path)
            text = b"".join(archive.read(each) for each in archive.namelist())
            assert f"of-the-{name}".encode() in text
            assert others not in text
            await browser.close()
