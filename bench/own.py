"""Bench: sessions with browsers of their own, against shared ones, launches by the client, and launchServer()."""

from __future__ import annotations

import asyncio
import contextlib
import time
from pathlib import Path
from statistics import fmean, median
from typing import Any

import psutil
import pytest
from playwright.async_api import Browser, Page, Playwright, async_playwright

from bench.harness import Options, Row, at_least, at_most, at_once, memory_kib, progress
from bench.servers import DirectServer, chromium, grid_of
from tests.support.grid import Grid, eventually_async
from tests.support.processor_group import inside, processor_group

AT_ONCE = 5
TOGETHER = 8
WARM = 2
PAGE = "data:text/html,<title>bench</title><h1>bench</h1>"
NEIGHBOURS = {"nobody": (0, 0), "one busy thread": (1, 1), "a hostile one": (8, 4)}
"""How many pages a neighbour has, and how many threads in each do nothing but compute."""
LEAST_SHARE = 0.7
"""A core of two is the fair share of each, and one thread takes it already; the rest is for how quickly the kernel
moves threads, and for other programs."""
LOOK_S = 1.5
"""How long work is counted for one figure."""
SETTLED_S = 8.0
"""Before a figure in a cgroup, since the grid looks at each browser for some seconds."""
GROUP_WEIGHT = 16384
"""In place of 1024, so that the host's other programs disturb the division among browsers less."""
CALM_S = 1.0
"""After a neighbour was told to rest, until all its threads have ended."""
WORK = """seconds => {
  const until = performance.now() + seconds * 1000;
  let units = 0;
  for (let x = 0; performance.now() < until; units++)
    for (let i = 0; i < 10000; i++)
      x = Math.sin(x + i);
  return units / seconds;
}"""
BURN = """threads => {
  self.burning = Array.from({ length: threads }, () => new Worker('data:text/javascript,for (;;);'));
}"""
REST = "() => { for (const each of self.burning.splice(0)) each.terminate(); }"
REFILLED_S = 1.0
"""Between one client and the next, as they come in life: a warm browser takes the place of the last one."""


def run(options: Options) -> list[Row]:
    environment = {"MAX_CONCURRENT_SESSIONS": str(TOGETHER)}
    isolated = {**environment, "ISOLATION": "browser", "WARM_BROWSERS": str(WARM)}
    with grid_of(environment=environment) as shared, grid_of(environment=isolated) as own:
        rows = asyncio.run(_first_pages(shared, own, options))
    with grid_of(environment=isolated) as own:
        rows += asyncio.run(_rates(own, options))
        rows += asyncio.run(_ends(own, options))
    rows += asyncio.run(_memory(environment))
    for isolation in ("context", "browser", "process"):
        rows += asyncio.run(_shares(isolation, options))
    rows += _shares_in_a_group(options)
    return rows


async def _first_pages(shared: Grid, own: Grid, options: Options) -> list[Row]:
    endpoints = {
        "shared": shared.endpoint,
        "own": own.endpoint,
        "own beside shared ones": f"{shared.endpoint}/?isolation=browser",
    }
    taken: dict[str, list[float]] = {side: [] for side in endpoints}
    async with async_playwright() as playwright:
        for endpoint in endpoints.values():
            await _first_page(playwright, endpoint)
        for number in range(options.pick(40, 5)):
            sides = [*endpoints]
            for side in sides[number % 3 :] + sides[: number % 3]:
                await asyncio.sleep(REFILLED_S)
                taken[side].append(await _first_page(playwright, endpoints[side]))
            progress(f"  round {number + 1}: " + ", ".join(f"{side} {taken[side][-1]:.0f} ms" for side in endpoints))
    baseline = median(taken["shared"])
    return [
        Row(
            f"time to the first page, {side}, median",
            f"{median(taken[side]):.1f} ms",
            f"{baseline:.1f} ms shared",
            f"{median(taken[side]) / baseline:.3f} ×",
            *at_most(median(taken[side]) / baseline, 1.15, " ×"),
        )
        for side in endpoints
        if side != "shared"
    ]


async def _first_page(playwright: Playwright, endpoint: str) -> float:
    """Milliseconds from connect to a page that has been loaded."""
    started = time.perf_counter()
    browser = await playwright.chromium.connect(endpoint)
    await _load(browser)
    taken = (time.perf_counter() - started) * 1000
    await browser.close()
    return taken


async def _load(browser: Browser) -> None:
    page = await (await browser.new_context()).new_page()
    await page.goto(PAGE)


async def _rates(grid: Grid, options: Options) -> list[Row]:
    """Whole sessions, each with a browser that nobody else has."""
    ratios, rates = [], {"own": 0.0, "launch": 0.0}
    count = options.pick(50, 10)
    async with async_playwright() as playwright:

        async def own(_number: int) -> None:
            browser = await playwright.chromium.connect(grid.endpoint)
            await _load(browser)
            await browser.close()

        async def launch(_number: int) -> None:
            browser = await playwright.chromium.launch(executable_path=chromium())
            await _load(browser)
            await browser.close()

        sides = {"own": own, "launch": launch}
        for number in range(options.pick(4, 1)):
            for side in ("own", "launch") if number % 2 else ("launch", "own"):
                rates[side] = count / await at_once(AT_ONCE, range(count), sides[side])
            ratios.append(rates["own"] / rates["launch"])
            progress(f"  {count} sessions: own {rates['own']:.2f}/s, launch() {rates['launch']:.2f}/s")
    return [
        Row(
            f"isolated sessions per second, {AT_ONCE} at once, {count} in each round",
            f"{rates['own']:.2f}/s",
            f"{rates['launch']:.2f}/s launch() by the client",
            f"{fmean(ratios):.3f} ×",
            *at_least(fmean(ratios), 1.0, " ×"),
        )
    ]


async def _ends(grid: Grid, options: Options) -> list[Row]:
    """How long processes and files of a session's browser are there when its client has gone."""
    (worker,) = grid.ask("status")["workers"]
    node, directories = psutil.Process(worker["nodePid"]), grid.runtime / "w" / worker["id"] / "own"
    taken: list[float] = []
    async with async_playwright() as playwright:
        for _ in range(options.pick(20, 3)):
            browser = await playwright.chromium.connect(grid.endpoint)
            await _load(browser)
            await eventually_async(lambda: len(node.children()) == WARM + 1, "others are warm again")
            families = [[each, *each.children(recursive=True)] for each in node.children()]
            files = {*directories.iterdir()}
            started = time.perf_counter()
            await browser.close()

            def is_one_gone(families: list[list[psutil.Process]] = families, files: set[Path] = files) -> bool:
                is_ended = any(not any(each.is_running() for each in family) for family in families)
                return is_ended and bool(files - {*directories.iterdir()})

            await eventually_async(is_one_gone, "nothing is left of its browser")
            taken.append(time.perf_counter() - started)
            progress(f"  nothing is left after {taken[-1]:.2f} s")
    return [
        Row(
            "nothing is left of a session's browser after its client closed it, longest",
            f"{max(taken):.2f} s",
            f"{median(taken):.2f} s median",
            "",
            *at_most(max(taken), 2.0, " s"),
        )
    ]


async def _memory(environment: dict[str, str]) -> list[Row]:
    """Of so many browsers with a page each; the grid has one more, which is warm. And of as many workers with a process
    each, without those that stand by."""
    async with async_playwright() as playwright:
        with grid_of(environment={**environment, "ISOLATION": "browser", "WARM_BROWSERS": "1"}) as grid:
            browsers = [await playwright.chromium.connect(grid.endpoint) for _ in range(TOGETHER)]
            for browser in browsers:
                await _load(browser)
            (worker,) = grid.ask("status")["workers"]
            node = psutil.Process(worker["nodePid"])
            await eventually_async(lambda: len(node.children()) == TOGETHER + 1, "one more is warm")
            mine = _pss_mib(worker["nodePid"])
            for browser in browsers:
                await browser.close()
        with contextlib.ExitStack() as stack:
            servers = [stack.enter_context(DirectServer()) for _ in range(TOGETHER)]
            browsers = [await playwright.chromium.connect(server.endpoint) for server in servers]
            for browser in browsers:
                await _load(browser)
            theirs = sum(_pss_mib(server.process.pid) for server in servers)
            for browser in browsers:
                await browser.close()
        processes, whole = await _memory_of_processes(playwright)
    direct = f"{theirs:.0f} MiB {TOGETHER} launchServer()s"
    return [
        Row(
            f"{TOGETHER} browsers of one session each, with a page, with Node, PSS",
            f"{mine:.0f} MiB",
            direct,
            f"{mine / theirs:.3f} ×",
            *at_most(mine / theirs, 0.65, " ×"),
        ),
        Row(
            f"{TOGETHER} sessions of isolation process, with a page, Node and browser, PSS",
            f"{processes:.0f} MiB",
            direct,
            f"{processes / theirs:.3f} ×",
        ),
        Row("the same, their workers (Python) included", f"{whole:.0f} MiB", direct, f"{whole / theirs:.3f} ×"),
    ]


async def _memory_of_processes(playwright: Playwright) -> tuple[float, float]:
    """Of as many sessions of isolation `process`: Node and browsers, and the same with their workers."""
    with grid_of(TOGETHER, environment={"ISOLATION": "process"}) as grid:
        browsers = [await playwright.chromium.connect(grid.endpoint) for _ in range(TOGETHER)]
        for browser in browsers:
            await _load(browser)
        workers: list[dict[str, Any]] = []

        def are_told() -> bool:
            workers[:] = [worker for worker in grid.ask("status")["workers"] if worker["active"]]
            return len(workers) == TOGETHER

        await eventually_async(are_told, "all workers have said that they have a session")
        found = (
            sum(_pss_mib(worker["nodePid"]) for worker in workers),
            sum(_pss_mib(worker["pid"]) for worker in workers),
        )
        for browser in browsers:
            await browser.close()
        return found


def _shares_in_a_group(options: Options) -> list[Row]:
    """The same where the kernel divides by threads, with and without the grid's priorities."""
    rows: list[Row] = []
    for setting in ("auto", "off"):
        try:
            with processor_group(GROUP_WEIGHT) as group, inside(group):
                rows += asyncio.run(_shares("browser", options, setting, is_in_group=True))
        except pytest.skip.Exception as skipped:
            progress(f"  no rows in a cgroup: {skipped}")
    return rows


async def _shares(
    isolation: str, options: Options, processor_shares: str = "auto", *, is_in_group: bool = False
) -> list[Row]:
    """What a page gets done beside neighbours in sessions of their own, which take turns."""
    environment = {"ISOLATION": isolation, "CANARY_INTERVAL": "600", "PROCESSOR_SHARES": processor_shares}
    workers = len(NEIGHBOURS) if isolation == "process" else 1
    with grid_of(workers, environment=environment) as grid:
        async with async_playwright() as playwright:
            browsers = [await playwright.chromium.connect(grid.endpoint) for _ in NEIGHBOURS]
            mine = await browsers[0].new_page()
            pages = {
                name: [await (await browser.new_context()).new_page() for _ in range(count)]
                for browser, (name, (count, _)) in zip(browsers, NEIGHBOURS.items(), strict=True)
            }
            await eventually_async(lambda: _is_quiet(grid, workers), "no worker starts any more")
            figures: dict[str, dict[str, list[float]]] = {name: {"work": [], "loads": []} for name in NEIGHBOURS}
            for number in range(options.pick(6, 1)):
                names = [*NEIGHBOURS]
                for name in names[number % 3 :] + names[: number % 3]:
                    for page in pages[name]:
                        await page.evaluate(BURN, NEIGHBOURS[name][1])
                    if is_in_group and pages[name]:
                        await mine.evaluate(WORK, SETTLED_S)
                    figures[name]["work"].append(await mine.evaluate(WORK, LOOK_S))
                    figures[name]["loads"].append(await _loads_per_s(mine))
                    for page in pages[name]:
                        await page.evaluate(REST)
                    await asyncio.sleep(CALM_S)
                told = (f"{name} {figures[name]['work'][-1]:.0f}, {figures[name]['loads'][-1]:.1f}" for name in names)
                progress(f"  {isolation}, work and loads a second: {'; '.join(told)}")
            for browser in browsers:
                await browser.close()
    where = f"isolation {isolation}" + (f", in a cgroup, PROCESSOR_SHARES={processor_shares}" if is_in_group else "")
    has_target = isolation != "context" and processor_shares != "off"  # a shared browser is one program for the kernel
    return [_share(where, what, figures, has_target=has_target) for what in ("work", "loads")]


def _share(where: str, what: str, figures: dict[str, dict[str, list[float]]], *, has_target: bool) -> Row:
    alone, busy, hostile = (median(figures[name][what]) for name in NEIGHBOURS)
    pages, threads = NEIGHBOURS["a hostile one"]
    named = {"work": "what a page computes in a second", "loads": "loads of a page in a second"}[what]
    target, verdict = at_least(hostile / busy, LEAST_SHARE, " ×")
    return Row(
        f"{named}, beside {pages} pages of {threads} busy threads each, {where}",
        f"{hostile:.1f}/s",
        f"{busy:.1f}/s beside one busy thread, {alone:.1f}/s alone",
        f"{hostile / busy:.3f} ×",
        target if has_target else "",
        verdict if has_target else "",
    )


async def _loads_per_s(page: Page) -> float:
    started, loads = time.perf_counter(), 0
    while time.perf_counter() < started + LOOK_S:
        await page.goto(PAGE)
        loads += 1
    return loads / (time.perf_counter() - started)


def _is_quiet(grid: Grid, workers: int) -> bool:
    found = [each["status"] for each in grid.ask("status")["workers"]]
    return "starting" not in found and found.count("available") == workers


def _pss_mib(root: int) -> float:
    """Of a process and all below it."""
    process = psutil.Process(root)
    total = 0
    for each in [process, *process.children(recursive=True)]:
        with contextlib.suppress(psutil.Error, OSError):
            total += memory_kib(each.pid)["pss"]
    return total / 1024


COMPARES = (
    "First pages: connect, context, page, goto (a data URL) with Playwright's own client, one after the other with a "
    "second between them; a grid whose pool has isolation=context, the same with ?isolation=browser, and one whose "
    f"pool has isolation=browser and {WARM} warm. Rates: whole sessions against launch() and close() for each in the "
    "client's process. Memory: what a worker's Node and its browsers have, against launchServer() once for each. "
    "Shares: a page that computes, then one that is loaded again and again, beside neighbours in other sessions, which "
    "take turns: nobody, one busy thread, many in many pages; the same in a cgroup for processors, in which the kernel "
    "divides by threads, with PROCESSOR_SHARES=auto and off, some seconds after the neighbour has begun."
)
