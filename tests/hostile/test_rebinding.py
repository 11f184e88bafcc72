"""DNS rebinding: a page whose own name has come to mean the grid's address reads nothing of it. In a real Chromium."""

from collections.abc import AsyncIterator

import pytest_asyncio
from playwright.async_api import Page, Playwright

from pwgrid.installed.browsers import find_browser
from pwgrid.settings.model import Settings
from tests.support.grid import Grid

EVIL = "evil.example"
FETCH = """async path => {
    try { const answer = await fetch(path); return [answer.status, await answer.text()] }
    catch (error) { return [0, String(error)] }
}"""
CONNECT = """url => new Promise(resolve => {
    const socket = new WebSocket(url);
    socket.onopen = () => resolve('open');
    socket.onerror = () => resolve('error');
})"""
SECRETS = ("wsEndpoint", "playwright/chromium/", "pwgrid_", "activeConnections", "sessions", "workers")


@pytest_asyncio.fixture(loop_scope="session")
async def page(grid: Grid, playwright: Playwright) -> AsyncIterator[Page]:
    """The attacker's page, loaded when its name still meant the attacker's server; now it means the loopback."""
    found = find_browser("chromium", Settings())
    switches = [
        f"--host-resolver-rules=MAP {EVIL} 127.0.0.1",
        "--disable-features=LocalNetworkAccessChecks",  # a defence of new Chromiums alone
    ]
    browser = await playwright.chromium.launch(executable_path=found.executable, args=switches)
    page = await browser.new_page()
    origin = f"http://{EVIL}:{grid.port}"
    await page.route(f"{origin}/page", lambda route: route.fulfill(body="<title>evil</title>"))
    await page.goto(f"{origin}/page")
    assert await page.title() == "evil"
    yield page
    await browser.close()


async def test_a_rebound_page_reads_nothing_of_the_grid(grid: Grid, page: Page) -> None:
    for path in ("/v1/workers", "/v1/sessions", "/v1/status", "/metrics", "/health", "/health/ready", "/"):
        status, text = await page.evaluate(FETCH, path)
        assert (status, "ALLOWED_HOSTS" in text) == (403, True), (path, text)
        assert not any(secret in text for secret in SECRETS), text
        # The same page of the grid's own user, by its own name, is answered.
        assert grid.get(path)[0] in (200, 426)


async def test_a_rebound_page_gets_no_session(grid: Grid, page: Page) -> None:
    assert await page.evaluate(CONNECT, f"ws://{EVIL}:{grid.port}/") == "error"
    assert await page.evaluate(CONNECT, f"ws://127.0.0.1:{grid.port}/") == "error"


def test_nobody_is_told_an_endpoint_s_secret_by_a_grid_without_a_token(grid: Grid) -> None:
    status, _, body = grid.get("/v1/workers")
    assert (status, b'"wsEndpoint":null' in body, b"playwright/chromium" in body) == (200, True, False)
