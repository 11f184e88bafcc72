"""Real Playwright clients on real Chromium through a real grid."""

import asyncio
import json
import subprocess
import textwrap
import urllib.parse
from pathlib import Path

import pytest
from playwright.async_api import Browser, Error, Playwright

from tests.support.grid import Grid

HELLO = "data:text/html,<title>hello</title><h1>grid</h1>"


async def title_of_a_page(browser: Browser, url: str = HELLO) -> str:
    context = await browser.new_context()
    page = await context.new_page()
    await page.goto(url)
    title = await page.title()
    await context.close()
    return title


async def test_a_python_client_gets_contexts_pages_and_screenshots(grid: Grid, playwright: Playwright) -> None:
    browser = await playwright.chromium.connect(grid.endpoint)
    page = await browser.new_page()
    await page.goto(HELLO)
    assert await page.title() == "hello"
    assert await page.inner_text("h1") == "grid"
    assert (await page.screenshot()).startswith(b"\x89PNG")
    await browser.close()


def test_a_node_client_gets_contexts_pages_and_screenshots(grid: Grid, node: tuple[str, Path]) -> None:
    executable, package = node
    script = f"""
        const {{ chromium }} = require({json.dumps(str(package))});
        (async () => {{
            const browser = await chromium.connect({json.dumps(grid.endpoint)});
            const page = await (await browser.newContext()).newPage();
            await page.goto({json.dumps(HELLO)});
            const shot = await page.screenshot();
            console.log(JSON.stringify([await page.title(), shot.subarray(1, 4).toString()]));
            await browser.close();
        }})();
    """
    done = subprocess.run([executable, "-e", textwrap.dedent(script)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == ["hello", "PNG"]


@pytest.mark.parametrize("more", ["", "/", "/?browser=chromium"])
async def test_an_endpoint_may_begin_with_http(grid: Grid, playwright: Playwright, more: str) -> None:
    browser = await playwright.chromium.connect(grid.http + more)
    assert await title_of_a_page(browser) == "hello"
    await browser.close()


async def test_who_speaks_cdp_at_the_address_of_playwright_s_protocol_gets_a_sentence(
    grid: Grid, playwright: Playwright
) -> None:
    with pytest.raises(Error, match="CDP clients connect to /cdp"):
        await playwright.chromium.connect_over_cdp(grid.endpoint)


async def test_clients_are_isolated_from_each_other(grid: Grid, playwright: Playwright) -> None:
    first, second = await asyncio.gather(*(playwright.chromium.connect(grid.endpoint) for _ in range(2)))
    context = await first.new_context()
    await context.add_cookies([{"name": "secret", "value": "1", "url": "http://a.example"}])
    await context.new_page()
    assert second.contexts == []
    other = await second.new_context()
    assert await other.cookies() == []
    await first.close()
    assert await title_of_a_page(second) == "hello"
    await second.close()


async def test_twenty_sessions_in_a_row_work(grid: Grid, playwright: Playwright) -> None:
    for _ in range(20):
        browser = await playwright.chromium.connect(grid.endpoint)
        assert await title_of_a_page(browser) == "hello"
        await browser.close()


async def test_five_clients_at_once_share_a_worker_and_a_large_result_goes_both_ways(
    grid: Grid, playwright: Playwright
) -> None:
    browsers = await asyncio.gather(*(playwright.chromium.connect(grid.endpoint) for _ in range(5)))
    assert await asyncio.gather(*(title_of_a_page(browser) for browser in browsers)) == ["hello"] * 5
    page = await browsers[0].new_page()
    six_megabytes = "grid" * (6 * 1024 * 1024 // 4)
    assert await page.evaluate("text => text + text.length", six_megabytes) == f"{six_megabytes}{6 * 1024 * 1024}"
    await asyncio.gather(*(browser.close() for browser in browsers))


async def test_a_download_arrives(grid: Grid, playwright: Playwright, tmp_path: Path) -> None:
    browser = await playwright.chromium.connect(grid.endpoint)
    page = await browser.new_page()
    content = "x" * 100_000
    await page.set_content(f'<a download="f.txt" href="data:text/plain,{content}">get</a>')
    async with page.expect_download() as expected:
        await page.click("a")
    download = await expected.value
    await download.save_as(tmp_path / "f.txt")
    assert (tmp_path / "f.txt").read_text() == content
    await browser.close()


async def test_a_trace_is_recorded(grid: Grid, playwright: Playwright, tmp_path: Path) -> None:
    browser = await playwright.chromium.connect(grid.endpoint)
    context = await browser.new_context()
    await context.tracing.start(screenshots=True, snapshots=True)
    page = await context.new_page()
    await page.goto(HELLO)
    await context.tracing.stop(path=tmp_path / "trace.zip")
    assert (tmp_path / "trace.zip").read_bytes().startswith(b"PK")
    await browser.close()


@pytest.mark.parametrize("query", ["", "/?browser=chromium", "/?browser=chromium&run=nightly"])
async def test_the_type_may_be_named_or_left_to_the_client(grid: Grid, playwright: Playwright, query: str) -> None:
    browser = await playwright.chromium.connect(grid.endpoint + query)
    assert browser.browser_type.name == "chromium"
    await browser.close()


async def test_a_refusal_reaches_the_user_of_the_client(grid: Grid, playwright: Playwright) -> None:
    with pytest.raises(Exception, match=r"the URL asks for chromium, but the client is firefox"):
        await playwright.firefox.connect(grid.endpoint + "/?browser=chromium")


async def test_a_session_may_be_opened_on_the_worker_that_the_registry_names(
    grid: Grid, playwright: Playwright
) -> None:
    freshest = min(grid.status()["workers"], key=lambda worker: (worker["status"] != "available", worker["lifetime"]))
    key = f"worker:chromium:{freshest['id']}"
    endpoint = grid.redis("HGET", key, "wsEndpoint").decode()
    assert urllib.parse.urlsplit(endpoint).port == grid.port
    browser = await playwright.chromium.connect(endpoint)
    field = key.removeprefix("worker:")
    assert grid.redis("HGET", "cluster:active_connections", field) == b"1"
    await browser.close()
    with pytest.raises(Exception, match="404"):
        await playwright.chromium.connect(endpoint[:-4] + "0000")
