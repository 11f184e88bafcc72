"""Bench: an `evaluate()` that returns 4 MiB of random text, with a real Chromium and a client's default settings."""

from __future__ import annotations

import time
from statistics import median

from playwright.sync_api import Page, sync_playwright

from bench.harness import Options, Row, at_most, p99
from bench.servers import DirectServer, grid_of

SIZE = 4 << 20
MAKE_TEXT = """size => {
  const letters = 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_';
  const parts = [];
  for (let left = size; left > 0; left -= 65536) {
    const random = crypto.getRandomValues(new Uint8Array(Math.min(left, 65536)));
    parts.push(Array.from(random, each => letters[each & 63]).join(''));
  }
  window.text = parts.join('');
}"""


def run(options: Options) -> list[Row]:
    rounds = options.pick(25, 4)
    times: dict[str, list[float]] = {"grid": [], "direct": []}
    with DirectServer() as server, grid_of() as grid, sync_playwright() as playwright:
        browsers = {
            "direct": playwright.chromium.connect(server.endpoint),
            "grid": playwright.chromium.connect(grid.endpoint),
        }
        pages = {side: browser.new_page() for side, browser in browsers.items()}
        for page in pages.values():
            page.evaluate(MAKE_TEXT, SIZE)
            _take(page)
        for number in range(rounds):
            for side in ("direct", "grid") if number % 2 else ("grid", "direct"):
                times[side].append(_take(pages[side]))
        for browser in browsers.values():
            browser.close()
    via_grid, direct = median(times["grid"]), median(times["direct"])
    return [
        Row(
            "evaluate() that returns 4 MiB of random text, median",
            f"{via_grid:.0f} ms",
            f"{direct:.0f} ms direct",
            f"{via_grid / direct:.2f} ×",
            *at_most(via_grid / direct, 0.6, " ×"),
        ),
        Row("the same, p99", f"{p99(times['grid']):.0f} ms", f"{p99(times['direct']):.0f} ms direct"),
    ]


def _take(page: Page) -> float:
    """Milliseconds of one evaluate."""
    started = time.perf_counter()
    text = page.evaluate("window.text")
    taken = (time.perf_counter() - started) * 1000
    assert len(text) == SIZE
    return taken


COMPARES = (
    "Two pages in real Chromiums, one through the grid and one through launchServer(), take turns. The client "
    "offers compression, as it does by default; the grid declines it for a client on the same host."
)
