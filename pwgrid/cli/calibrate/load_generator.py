"""Runs sessions one after the other in a given number of clients at once, and measures them."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from math import ceil
from pathlib import Path
from typing import Final

import psutil
from playwright.async_api import BrowserType, Error

from pwgrid.cli.calibrate.sizing import Step
from pwgrid.common.errors import GridError

SESSION_S: Final = 120.0
"""A session that takes longer has failed."""

STAND_IN: Final = (
    "data:text/html,<title>stand-in</title><script>"
    "for (let i = 0; i < 2000; i++) { const row = document.createElement('p'); row.textContent = 'row ' + i;"
    " document.body ? document.body.append(row) : document.documentElement.append(row) }</script>"
)
"""The page that sessions open without --url and --script: 2,000 rows."""


Session = Callable[[], Awaitable[None]]
"""Runs one session from connect to close. Raises SessionFailed."""


class SessionFailed(Exception):
    """A session failed; `str()` says why."""


async def open_page(browser_type: BrowserType, endpoint: str, url: str) -> None:
    """A session that opens a page by Playwright's own client, in a context of its own."""
    try:
        browser = await browser_type.connect(endpoint)
        try:
            page = await browser.new_page()
            await page.goto(url)
            await page.title()
        finally:
            await browser.close()
    except Error as error:
        raise SessionFailed(str(error).partition("\n")[0]) from None


async def run_program(argv: Sequence[str], variables: Mapping[str, str]) -> None:
    """A session that is a program, which finds the grid by `variables`, as under `pwgrid run`."""
    process = await asyncio.create_subprocess_exec(
        *argv,
        env={**os.environ, **variables},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        _, said = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        last = (said.decode(errors="replace").strip().splitlines() or ["it said nothing"])[-1]
        raise SessionFailed(f"{argv[-1]} ended with {process.returncode}: {last}")


async def measure(session: Session, clients: int, seconds: float) -> tuple[Step, list[str]]:
    """Run sessions in `clients` loops, which begin none after `seconds`, and wait for the last ones. Returns the
    figures, and the sentence of each session that failed."""
    durations: list[float] = []
    failures: list[str] = []
    until = time.monotonic() + seconds

    async def loop() -> None:
        while (since := time.monotonic()) < until:
            try:
                async with asyncio.timeout(SESSION_S):
                    await session()
            except SessionFailed as failed:
                failures.append(str(failed))
            except TimeoutError:
                failures.append(f"it took more than {SESSION_S:g} s")
            else:
                durations.append(time.monotonic() - since)

    psutil.cpu_percent()  # the next call tells of the time since this one
    since = time.monotonic()
    await asyncio.gather(*(loop() for _ in range(clients)))
    took_s = time.monotonic() - since
    busy_cores = psutil.cpu_percent() / 100 * (psutil.cpu_count() or 1)
    ordered = sorted(durations) or [0.0]
    step = Step(
        clients,
        len(durations),
        len(failures),
        round(took_s, 3),
        round(_quantile(ordered, 0.5), 4),
        round(_quantile(ordered, 0.95), 4),
        round(busy_cores, 2),
    )
    return step, failures


async def once(session: Session) -> None:
    """Run one session that has to work. Raises GridError when it fails."""
    try:
        async with asyncio.timeout(SESSION_S):
            await session()
    except SessionFailed as failed:
        raise GridError(f"the session that is to be measured fails: {failed}") from None
    except TimeoutError:
        raise GridError(f"the session that is to be measured takes more than {SESSION_S:g} s") from None


def _quantile(ordered: list[float], share: float) -> float:
    return ordered[max(0, ceil(share * len(ordered)) - 1)]


def cpu_s(process: psutil.Process) -> float:
    """The processor seconds of a process and of its children that have ended; 0 when it has ended itself."""
    try:
        return float(sum(process.cpu_times()[:4]))
    except psutil.Error:
        return 0.0


def command(path: Path) -> list[str]:
    """The command that runs a script. Raises GridError for a file that cannot be run."""
    if not path.is_file():
        raise GridError(f"--script {path}: there is no such file")
    absolute = str(path.resolve())
    if path.suffix == ".py":
        return [sys.executable, absolute]
    if path.suffix in (".js", ".cjs", ".mjs"):
        return ["node", absolute]
    if not os.access(path, os.X_OK):
        raise GridError(f"--script {path}: it is neither .py nor .js, and not executable")
    return [absolute]
