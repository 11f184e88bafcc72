"""Bench: whole sessions with a real Chromium, five at once and one after the other."""

from __future__ import annotations

import asyncio
import contextlib
import time
from statistics import fmean, median

from playwright.async_api import Browser, Playwright, async_playwright

from bench.harness import Options, Row, at_least, at_most, at_once, progress
from bench.servers import DirectServer, grid_of

AT_ONCE = 5
SETS = 8
"""One browser is up to 4 % faster than another of the same executable, for as long as it lives: eight sets tell more
than four that are measured for longer."""

PAGE = "data:text/html,<title>bench</title><h1>bench</h1>"

Samples = dict[str, list[float]]
"""By side: sessions per second of each round, or milliseconds of each first page."""

GRIDS = {
    "grid": {},
    "grid with CONFINE=off": {"CONFINE": "off"},
    "grid with CONFINE=off and CLIENT_GUARD=off": {"CONFINE": "off", "CLIENT_GUARD": "off"},
}
"""The settings of each grid, by its name as a side."""
SIDES = ("direct", *GRIDS)
LEAST = 0.94
"""The kernel's own checks of what Chromium opens cost 2 to 4 % of a session, and no session has them without a grid.
The grids without them, and without the guard of messages, have no target: they tell what of the difference each is."""


def run(options: Options) -> list[Row]:
    rates: Samples = {side: [] for side in SIDES}
    first: Samples = {side: [] for side in SIDES}
    ratios: Samples = {side: [] for side in SIDES[1:]}
    slots = {"MAX_CONCURRENT_SESSIONS": str(AT_ONCE)}
    sets = options.pick(SETS, 1)
    for number in range(sets):
        progress(f"  set {number + 1} of {sets}")
        with contextlib.ExitStack() as running:
            endpoints = {"direct": running.enter_context(DirectServer()).endpoint}
            for side, settings in GRIDS.items():
                endpoints[side] = running.enter_context(grid_of(environment={**slots, **settings})).endpoint
            for side, ratio in asyncio.run(_measure(endpoints, rates, first, options)).items():
                ratios[side].append(ratio)
    return _rows(rates, first, ratios)


async def _measure(endpoints: dict[str, str], rates: Samples, first: Samples, options: Options) -> dict[str, float]:
    """Adds to the samples, and returns each grid's rate divided by the direct one: the median of this set's rounds."""
    ratios: Samples = {side: [] for side in SIDES[1:]}
    count = options.pick(20, 10)
    async with async_playwright() as playwright:
        for endpoint in endpoints.values():
            await _sessions(playwright, endpoint, AT_ONCE)
        for number in range(options.pick(12, 2)):
            for side in _in_turn(number):
                rates[side].append(count / await _sessions(playwright, endpoints[side], count))
            for side, found in ratios.items():
                # Of each round on its own: the machine is faster and slower for seconds at a time.
                found.append(rates[side][-1] / rates["direct"][-1])
            progress(f"  round {number + 1}: " + ", ".join(f"{side} {rates[side][-1]:.1f}/s" for side in SIDES))
        for number in range(options.pick(24, 6)):
            for side in _in_turn(number):
                first[side].append(await _first_page(playwright, endpoints[side]))
    return {side: median(found) for side, found in ratios.items()}


def _in_turn(number: int) -> tuple[str, ...]:
    first = number % len(SIDES)
    return SIDES[first:] + SIDES[:first]


def _rows(rates: Samples, first: Samples, ratios: Samples) -> list[Row]:
    slower = median(first["grid"]) / median(first["direct"])
    rows = []
    for side, found in ratios.items():
        rate = fmean(found)
        rows += [
            Row(
                f"sessions per second, {AT_ONCE} at once, {side}",
                f"{median(rates[side]):.2f}/s",
                f"{median(rates['direct']):.2f}/s direct",
                f"{rate:.3f} ×",
                *(at_least(rate, LEAST, " ×") if side == "grid" else ()),
            ),
            Row("the same, slowest and fastest set", "", "", f"{min(found):.3f} to {max(found):.3f} ×"),
        ]
    return [
        *rows,
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
    "connect, context, page, goto (a data URL), close with Playwright's own client. All sides have one browser "
    "of the same executable; the grid's worker has its default of five slots, so a slot's way back is in the "
    f"figure too. There are {SETS} sets of a fresh server and three fresh grids, since one browser is up to 4 % faster "
    "than another of the same executable for as long as it lives: the ratio of rates is the mean of sets' medians. "
    "What the kernel checks for a confined browser is the difference between the first two grids, what the guard of "
    "clients' messages does that between the last two."
)
