"""Bench: whole sessions with a real Chromium, five at once and one after the other."""

from __future__ import annotations

import asyncio
import time
from statistics import fmean, median

from playwright.async_api import Browser, Playwright, async_playwright

from bench.harness import Options, Row, at_least, at_most, at_once, progress
from bench.servers import DirectServer, grid_of

AT_ONCE = 5
PAIRS = 10
"""One browser is up to 4 % faster than another of the same executable, for as long as it lives: ten pairs tell more
than four that are measured for longer."""

PAGE = "data:text/html,<title>bench</title><h1>bench</h1>"

Samples = dict[str, list[float]]
"""By side: sessions per second of each round, or milliseconds of each first page."""


def run(options: Options) -> list[Row]:
    rates: Samples = {"direct": [], "grid": []}
    first: Samples = {"direct": [], "grid": []}
    ratios: list[float] = []
    pairs = options.pick(PAIRS, 1)
    for number in range(pairs):
        progress(f"  pair {number + 1} of {pairs}")
        with DirectServer() as server, grid_of(environment={"MAX_CONCURRENT_SESSIONS": str(AT_ONCE)}) as grid:
            endpoints = {"direct": server.endpoint, "grid": grid.endpoint}
            ratios.append(asyncio.run(_measure(endpoints, rates, first, options)))
    return _rows(rates, first, ratios)


async def _measure(endpoints: dict[str, str], rates: Samples, first: Samples, options: Options) -> float:
    """Adds to the samples, and returns the grid's rate divided by the direct one: the median of this pair's rounds."""
    ratios: list[float] = []
    count = options.pick(20, 10)
    async with async_playwright() as playwright:
        for endpoint in endpoints.values():
            await _sessions(playwright, endpoint, AT_ONCE)
        for number in range(options.pick(12, 2)):
            for side in ("direct", "grid") if number % 2 else ("grid", "direct"):
                rates[side].append(count / await _sessions(playwright, endpoints[side], count))
            # Of each round on its own: the machine is faster and slower for seconds at a time.
            ratios.append(rates["grid"][-1] / rates["direct"][-1])
            progress(f"  round {number + 1}: {rates['grid'][-1]:.1f}/s, direct {rates['direct'][-1]:.1f}/s")
        for number in range(options.pick(24, 6)):
            for side in ("direct", "grid") if number % 2 else ("grid", "direct"):
                first[side].append(await _first_page(playwright, endpoints[side]))
    return median(ratios)


def _rows(rates: Samples, first: Samples, ratios: list[float]) -> list[Row]:
    rate = fmean(ratios)
    slower = median(first["grid"]) / median(first["direct"])
    return [
        Row(
            f"sessions per second, {AT_ONCE} at once",
            f"{median(rates['grid']):.2f}/s",
            f"{median(rates['direct']):.2f}/s direct",
            f"{rate:.3f} ×",
            *at_least(rate, 0.97, " ×"),
        ),
        Row("the same, slowest and fastest pair", "", "", f"{min(ratios):.3f} to {max(ratios):.3f} ×"),
        Row(
            "time to the first page, one after the other, median",
            f"{median(first['grid']):.1f} ms",
            f"{median(first['direct']):.1f} ms direct",
            f"{slower:.3f} ×",
            *at_most(slower, 1.03, " ×"),
        ),
    ]


async def _first_page(playwright: Playwright, endpoint: str) -> float:
    """Milliseconds from connect to a page that has been loaded."""
    started = time.perf_counter()
    browser = await _loaded(playwright, endpoint)
    taken = (time.perf_counter() - started) * 1000
    await browser.close()
    return taken


async def _loaded(playwright: Playwright, endpoint: str) -> Browser:
    browser = await playwright.chromium.connect(endpoint)
    context = await browser.new_context()
    page = await context.new_page()
    await page.goto(PAGE)
    return browser


async def _sessions(playwright: Playwright, endpoint: str, count: int) -> float:
    """Seconds for `count` sessions, AT_ONCE at once."""

    async def session(_number: int) -> None:
        await (await _loaded(playwright, endpoint)).close()

    return await at_once(AT_ONCE, range(count), session)


COMPARES = (
    "connect, context, page, goto (a data URL), close with Playwright's own client. Both sides have one browser "
    "of the same executable; the grid's worker has its default of five slots, so a slot's way back is in the "
    f"figure too. There are {PAIRS} pairs of a fresh server and a fresh grid, since one browser is up to 4 % faster "
    "than another of the same executable for as long as it lives: the ratio of rates is the mean of pairs' medians."
)
