"""Bench: clients of the DevTools protocol, against a DevTools port of the same Chromium, and Playwright's protocol."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import psutil
from playwright.async_api import Browser, Playwright, async_playwright
from playwright.sync_api import sync_playwright
from websockets.sync.client import ClientConnection, connect

from bench.evaluate import MAKE_TEXT, SIZE
from bench.harness import Options, Row, at_most, cpu_us, progress
from bench.own import PAGE, REFILLED_S, WARM
from bench.servers import chromium, driver, grid_of, pids_of
from tests.support.grid import Grid, eventually

AT_A_TIME = 50
"""Small commands before the other side's turn."""

SMALL_LIMIT, LARGE_LIMIT = 1.05, 1.08
"""Of the time that a bare bridge takes. What a hop through Node costs by itself differs from host to host: a bridge
takes 1.15 and 0.83 × of a direct port on one, 1.27 and 0.92 × on another. On the first, these are 1.2 and 0.9 ×."""

_BRIDGE = Path(__file__).with_name("ws_bridge.cjs")


class Client:
    """A page of a browser, by the fewest messages: no library's own work is in what is measured."""

    def __init__(self, websocket: ClientConnection) -> None:
        self._websocket = websocket
        self._numbers = itertools.count(1)
        self._session = ""
        (page,) = [each for each in self._send("Target.getTargets")["targetInfos"] if each["type"] == "page"]
        self._session = self._send("Target.attachToTarget", targetId=page["targetId"], flatten=True)["sessionId"]

    def _send(self, method: str, **params: Any) -> Any:
        number = next(self._numbers)
        more = {"sessionId": self._session} if self._session else {}
        self._websocket.send(json.dumps({"id": number, "method": method, "params": params, **more}))
        while (answer := json.loads(self._websocket.recv())).get("id") != number:
            pass
        return answer["result"]

    def evaluate(self, expression: str) -> Any:
        return self._send("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def take_small(self) -> float:
        """Milliseconds of one small evaluate."""
        started = time.perf_counter()
        for _ in range(AT_A_TIME):
            self.evaluate("1")
        return (time.perf_counter() - started) * 1000 / AT_A_TIME

    def take_large(self) -> float:
        """Milliseconds of one evaluate of SIZE characters, which are not parsed here."""
        number = next(self._numbers)
        params = {"expression": "window.text", "returnByValue": True}
        message = {"id": number, "method": "Runtime.evaluate", "params": params, "sessionId": self._session}
        started = time.perf_counter()
        self._websocket.send(json.dumps(message))
        text = self._websocket.recv(decode=False)
        taken = (time.perf_counter() - started) * 1000
        assert len(text) > SIZE
        return taken


def run(options: Options) -> list[Row]:
    with grid_of(environment={"ISOLATION": "browser"}) as grid, devtools_port() as port, bare_bridge() as bridge:
        rows = _evaluates(grid, port, bridge, options)
    with grid_of(environment={"ISOLATION": "browser", "WARM_BROWSERS": str(WARM)}) as grid:
        return [*rows, asyncio.run(_first_pages(grid, options))]


@contextlib.contextmanager
def devtools_port() -> Iterator[str]:
    """The endpoint of a Chromium that Playwright has started, with the grid's flags and a DevTools port besides."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--remote-debugging-port=0"])
        file = eventually(_port_file, "the browser has told its port")
        port, path = file.read_text().splitlines()
        page = browser.new_page()
        yield f"ws://127.0.0.1:{port}{path}"
        page.close()
        browser.close()


def _port_file() -> Path | None:
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            for argument in process.cmdline():
                file = Path(argument.removeprefix("--user-data-dir=")) / "DevToolsActivePort"
                if argument.startswith("--user-data-dir=") and file.exists():
                    return file
    return None


@contextlib.contextmanager
def bare_bridge() -> Iterator[str]:
    """The endpoint of a bare bridge of `ws` to the pipe of a Chromium, with the flags of the one at `devtools_port`."""
    flags = next(
        command
        for command in (process.cmdline() for process in psutil.Process().children(recursive=True))
        if "--remote-debugging-port=0" in command and "--remote-debugging-pipe" in command
    )
    left_out = ("--remote-debugging-port=", "--user-data-dir=", "--no-startup-window")
    with tempfile.TemporaryDirectory(prefix="pwb-", dir="/tmp", ignore_cleanup_errors=True) as directory:
        command = [*(each for each in flags if not each.startswith(left_out)), f"--user-data-dir={directory}"]
        bridge = subprocess.Popen(
            [driver().node, str(_BRIDGE), str(driver().core), *command, "about:blank"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert bridge.stdin is not None
        assert bridge.stdout is not None
        try:
            yield bridge.stdout.readline().strip()
        finally:
            bridge.stdin.close()
            bridge.wait()
            bridge.stdout.close()


def _evaluates(grid: Grid, port: str, bridge: str, options: Options) -> list[Row]:
    proxy = pids_of(grid)["proxy"]
    endpoints = {"direct": port, "bridge": bridge, "grid": f"{grid.endpoint}/cdp"}
    small: dict[str, list[float]] = {side: [] for side in endpoints}
    large: dict[str, list[float]] = {side: [] for side in endpoints}
    with contextlib.ExitStack() as stack:
        sides = {
            side: Client(stack.enter_context(connect(endpoint, compression=None, max_size=None)))
            for side, endpoint in endpoints.items()
        }
        for client in sides.values():
            client.evaluate(f"({MAKE_TEXT})({SIZE})")
            client.take_small()
            client.take_large()
        before = cpu_us(proxy)
        for number in range(options.pick(60, 4)):
            for side in _turn(endpoints, number):
                small[side].append(sides[side].take_small())
        for number in range(options.pick(40, 4)):
            for side in _turn(endpoints, number):
                large[side].append(sides[side].take_large())
        used = cpu_us(proxy) - before
    return [
        _row("evaluate('1') over CDP, median", small, 3),
        _bridge_row("the same, against a bare bridge of ws and pipe", small, SMALL_LIMIT, 3),
        _row("a result of 4 MiB over CDP, median", large, 1),
        _bridge_row("the same, against a bare bridge of ws and pipe", large, LARGE_LIMIT, 1),
        Row("CPU of the proxy meanwhile", f"{used:.0f} µs", "", "", *at_most(used, 20_000, " µs")),
    ]


def _turn(sides: Iterable[str], number: int) -> list[str]:
    """The sides in the order of this round: each is the first as often as the others, with either neighbour."""
    order = [*sides]
    turned = order[number % len(order) :] + order[: number % len(order)]
    return turned if number % 2 else turned[::-1]


def _row(what: str, times: dict[str, list[float]], digits: int) -> Row:
    grid, direct = median(times["grid"]), median(times["direct"])
    return Row(what, f"{grid:.{digits}f} ms", f"{direct:.{digits}f} ms direct", f"{grid / direct:.3f} ×")


def _bridge_row(what: str, times: dict[str, list[float]], limit: float, digits: int) -> Row:
    grid, bridge, direct = (median(times[side]) for side in ("grid", "bridge", "direct"))
    baseline = f"{bridge:.{digits}f} ms bridge ({bridge / direct:.3f} × direct)"
    return Row(what, f"{grid:.{digits}f} ms", baseline, f"{grid / bridge:.3f} ×", *at_most(grid / bridge, limit, " ×"))


async def _first_pages(grid: Grid, options: Options) -> Row:
    times: dict[str, list[float]] = {"over CDP": [], "Playwright's protocol": []}
    async with async_playwright() as playwright:
        for number in range(1 + options.pick(40, 5)):
            for side in sorted(times, reverse=bool(number % 2)):
                await asyncio.sleep(REFILLED_S)
                taken = await (_over_cdp if side == "over CDP" else _over_playwright)(playwright, grid)
                if number:  # the first one warms the client up
                    times[side].append(taken)
            if number:
                progress(f"  round {number}: " + ", ".join(f"{side} {each[-1]:.0f} ms" for side, each in times.items()))
    cdp, own = (median(times[side]) for side in ("over CDP", "Playwright's protocol"))
    return Row(
        "connect_over_cdp() to the first page, median",
        f"{cdp:.1f} ms",
        f"{own:.1f} ms connect(), own browser",
        f"{cdp / own:.3f} ×",
        *at_most(cdp / own, 1.15, " ×"),
    )


async def _over_cdp(playwright: Playwright, grid: Grid) -> float:
    """Milliseconds from connect to a page that has been loaded."""
    started = time.perf_counter()
    browser = await playwright.chromium.connect_over_cdp(f"{grid.endpoint}/cdp")
    await browser.contexts[0].pages[0].goto(PAGE)
    return await _done(browser, started)


async def _over_playwright(playwright: Playwright, grid: Grid) -> float:
    """The same in Playwright's protocol."""
    started = time.perf_counter()
    browser = await playwright.chromium.connect(grid.endpoint)
    page = await (await browser.new_context()).new_page()
    await page.goto(PAGE)
    return await _done(browser, started)


async def _done(browser: Browser, started: float) -> float:
    taken = (time.perf_counter() - started) * 1000
    await browser.close()
    return taken


COMPARES = (
    "Commands of a client with few messages to a page: through the grid, at a DevTools port of a Chromium with the "
    "same flags, and through a bridge of ws to a pipe that does nothing else (what a hop through Node costs by "
    "itself); all take turns. Then sessions of Playwright for Python in turn, each with a browser of its own that was "
    "warm: over CDP and in Playwright's protocol."
)
