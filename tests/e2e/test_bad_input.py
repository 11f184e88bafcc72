"""Every row of "Bad input": refused with its status and a sentence, and the grid serves a real session all along."""

import contextlib
import re
import socket
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Page, Playwright
from prometheus_client.parser import text_string_to_metric_families

from tests.support.grid import Grid, running_grid
from tests.support.raw import PING, PONG, answer, connect, head, read_all


@pytest_asyncio.fixture(loop_scope="session")
async def page(grid: Grid, playwright: Playwright) -> AsyncIterator[Page]:
    """A page of a session that must go on whatever else arrives, and a new session that must be served after it."""
    browser = await playwright.chromium.connect(grid.endpoint)
    page = await browser.new_page()
    yield page
    assert await page.evaluate("6 * 7") == 42
    await browser.close()
    await (await playwright.chromium.connect(grid.endpoint)).close()


def sessions_ever(grid: Grid) -> dict[bytes, bytes]:
    """Of each worker that has had any: a spare may come meanwhile."""
    counters = grid.redis("HGETALL", "cluster:lifetime_connections")
    return {worker: count for worker, count in counters.items() if count != b"0"}


@pytest.mark.parametrize(
    ("request_bytes", "status", "sentence"),
    [
        (head(target="/?browser=opera"), 400, "unknown browser 'opera'"),
        (head(x_playwright_browser="opera"), 400, "unknown browser"),
        (head(target="/?browser=chromium", x_playwright_browser="firefox"), 400, "make them agree"),
        (head(target="/?browser=webkit"), 400, "runs no webkit workers"),
        (head(Sec_WebSocket_Key=None), 400, "Sec-WebSocket-Key"),
        (head(Sec_WebSocket_Key="short"), 400, "Sec-WebSocket-Key"),
        (head(Sec_WebSocket_Version="7"), 400, "Sec-WebSocket-Version"),
        (head(target="/nowhere"), 404, "nothing at /nowhere"),
        (head(Origin="https://evil.example"), 403, "web page may not drive"),
        (head(User_Agent="Playwright/1.0.0 (x64)"), 428, "Playwright 1.0"),
        (head(Upgrade=None, Connection="close"), 426, "this is a Playwright grid"),
        (head(Connection="close"), 426, "this is a Playwright grid"),
        (head(method="POST", Connection="Upgrade, close"), 426, "this is a Playwright grid"),
        (head(Padding="x" * 100_000), 431, "its header padding has at least"),
        (head(x_playwright_launch_options="x" * 50_000), 431, "pass fewer launch options"),
        (head(A="x" * 31_000, B="y" * 2_000), 431, "its header a has at least 31005"),
        (head(target="/?" + "x" * 40_000), 431, "its URL has at least"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(256)), 400, "not HTTP/1.1"),
        (b"\r\n\r\nGARBAGE\0\0\0\r\n\r\n", 400, "not HTTP/1.1"),
        (b"GET / HTTP/9.9\r\n\r\n", 400, "not HTTP/1.1"),
    ],
)
async def test_a_bad_request_is_refused_with_a_sentence(
    grid: Grid, page: Page, request_bytes: bytes, status: int, sentence: str
) -> None:
    lifetime_before = sessions_ever(grid)
    got, _, body = answer(grid.port, request_bytes)
    assert (got, sentence in body["error"]) == (status, True), body
    # Refused before a lease is taken: no counter has moved.
    assert sessions_ever(grid) == lifetime_before


async def test_the_refusal_of_a_version_names_those_there_are(grid: Grid, page: Page) -> None:
    _, _, body = answer(grid.port, head(User_Agent="Playwright/1.0.0 (x64)"))
    versions = {
        grid.redis("HGET", key, "playwrightVersion").decode() for key in grid.redis("KEYS", "worker:chromium:*")
    }
    assert body["versions"] == sorted({".".join(version.split(".")[:2]) for version in versions})


async def test_half_a_head_and_silence_are_closed_after_ten_seconds(grid: Grid, page: Page) -> None:
    with contextlib.ExitStack() as stack:
        half = stack.enter_context(connect(grid.port))
        half.sendall(b"GET / HTTP/1.1\r\nHost: gr")
        silent = [stack.enter_context(connect(grid.port)) for _ in range(200)]
        assert await page.evaluate("1 + 1") == 2
        assert b"408" in read_all(half).split(b"\r\n")[0]
        assert {read_all(each) for each in silent} == {b""}


async def test_a_head_that_comes_in_pieces_is_a_head(grid: Grid, page: Page) -> None:
    with connect(grid.port) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for start in range(0, len(request := head()), 10):
            sock.sendall(request[start : start + 10])
        assert sock.recv(4096).startswith(b"HTTP/1.1 101")


async def test_bytes_right_behind_the_head_reach_the_browser_server(grid: Grid, page: Page) -> None:
    masked_ping = b"\x89\x84" + b"\0\0\0\0" + b"grid"
    with connect(grid.port) as sock:
        sock.sendall(head() + masked_ping)
        received = b""
        while b"\x8a\x04grid" not in received:
            chunk = sock.recv(4096)
            assert chunk, received
            received += chunk


@pytest.mark.parametrize("path", ["/health", "/metrics"])
async def test_requests_before_an_upgrade_in_one_segment_are_answered_before_it(
    grid: Grid, page: Page, path: str
) -> None:
    with connect(grid.port) as sock:
        sock.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode() * 2 + head() + PING)
        received = b""
        while not received.endswith(PONG):
            chunk = sock.recv(65536)
            assert chunk, received
            received += chunk
    answers = re.findall(rb"HTTP/1.1 (\d+)", received)
    assert answers == [b"200", b"200", b"101"]


@pytest.mark.parametrize(
    ("path", "status"),
    [("/health", 200), ("/health/ready", 200), ("/favicon.ico", 204), ("/", 426), ("/nothing", 404)],
)
def test_the_small_pages(grid: Grid, path: str, status: int) -> None:
    got, _, _ = grid.get(path)
    assert got == status


async def test_metrics_count_live_sessions(grid: Grid, playwright: Playwright) -> None:
    def active() -> Any:
        return grid.get("/metrics", Accept="application/json")

    browser = await playwright.chromium.connect(grid.endpoint)
    status, headers, body = active()
    assert (status, headers["content-type"]) == (200, "application/json")
    assert b'"activeConnections":1' in body
    status, headers, body = grid.get("/metrics", Accept="text/plain")
    assert (status, headers["content-type"].partition(";")[0]) == (200, "text/plain")
    figures = Counter[str]()
    for family in text_string_to_metric_families(body.decode()):
        for sample in family.samples:
            figures[sample.name] += int(sample.value)
    assert figures["pwgrid_active_sessions"] == figures["pwgrid_ready"] == 1
    assert figures["pwgrid_counter_repairs_total"] == 0
    await browser.close()


async def test_a_token_is_asked_for_when_there_is_one(playwright: Playwright) -> None:
    with running_grid("--chromium", "1", "--token", "s3cret") as grid:
        status, headers, body = answer(grid.port, head())
        assert (status, headers["www-authenticate"]) == (401, 'Bearer realm="pwgrid"')
        assert "Authorization: Bearer" in body["error"]
        assert grid.get("/metrics")[0] == 401
        assert grid.get("/health/ready")[0] == 200
        browser = await playwright.chromium.connect(grid.endpoint, headers={"Authorization": "Bearer s3cret"})
        await browser.close()
        browser = await playwright.chromium.connect(grid.ready["connect"])
        await browser.close()
