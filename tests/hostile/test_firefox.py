"""What is different in Firefox below a whole grid: clients that go, client certificates, pictures of it, its end.
A Firefox takes seconds of a core to start, so all share one until a test ends it."""

import os
import signal
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Playwright

from tests.conftest import need
from tests.hostile.calls import goto, left_behind
from tests.hostile.test_client_certificates import greeted, own, shows
from tests.process import test_browser_server
from tests.process.test_live_view import COLOURS, coloured, frame_of_colour, viewer
from tests.support.grid import eventually_async
from tests.support.https_server import OWNER, https_server
from tests.support.protocol_client import Refusal, protocol_client
from tests.support.stand_in_proxy import Servers, Watched, shared_servers


@pytest.fixture(scope="module")
def live_view(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("firefox") / "live"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def servers() -> AsyncIterator[Servers]:
    need("firefox")
    async with shared_servers() as started:
        yield started


@pytest_asyncio.fixture(loop_scope="session")
async def watched(servers: Servers, live_view: Path) -> AsyncIterator[Watched]:
    """The shared one; a new one where the last test has ended it. After each test all its sessions are over."""
    watched = await servers({"browser_type": "firefox", "max_concurrent_sessions": 5, "live_view": live_view})
    yield watched
    await watched.all_closed()


async def test_a_context_of_firefox_that_is_made_after_its_client_has_gone_leaves_no_files(watched: Watched) -> None:
    async with protocol_client(watched.endpoint) as client:
        os.kill(watched.server.ready.browser_pid, signal.SIGSTOP)
        try:
            await client.post(client.one("Browser"), "newContext")
            await client.send(client.one("Browser"), "defaultUserAgentForTest")
            client.drop()
            await watched.next_closed()
        finally:
            os.kill(watched.server.ready.browser_pid, signal.SIGCONT)
    async with protocol_client(watched.endpoint) as third:
        await third.new_page()
    await watched.next_closed()
    await eventually_async(lambda: left_behind(watched) == [], "nothing is left of its files")


async def test_a_firefox_shows_a_certificate_and_nobody_else_does(watched: Watched) -> None:
    async with (
        https_server(socket.gethostname()) as url,  # a Firefox asks no proxy for localhost
        protocol_client(watched.endpoint) as owner,
    ):
        owned = await own(watched, owner, url)
        assert await shows(owner, owned.page, owned.url) == OWNER
        assert await greeted(*owned.address) == b""
        with pytest.raises(Refusal, match="a browser that others share opens only web pages"):
            await goto(owner, owned.page, "about:crashparent")


async def test_a_browser_without_a_screencast_is_shown_by_screenshots(
    watched: Watched, live_view: Path, playwright: Playwright
) -> None:
    async with await playwright.firefox.connect(watched.endpoint) as browser:
        page = await browser.new_page(viewport={"width": 600, "height": 400})
        async with viewer(live_view, watched.latest) as looking:
            for colour in (COLOURS[0], COLOURS[2]):
                await page.set_content(coloured(colour))
                await frame_of_colour(looking, page, colour)


async def test_a_firefox_that_crashes_ends_every_session_with_that_reason(
    watched: Watched, playwright: Playwright
) -> None:
    await test_browser_server.a_crashed_browser_ends_every_session_with_that_reason(watched, playwright.firefox)


async def test_a_firefox_that_hangs_answers_no_question_and_stop_cuts_it_off(watched: Watched) -> None:
    await test_browser_server.test_a_browser_that_hangs_answers_no_question_and_stop_cuts_it_off(watched)
