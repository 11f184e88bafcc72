"""What all benches share: figures of processes, statistics, result rows and their table. Measures nothing itself."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import os
import platform
import resource
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, field
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Literal, TypeVar

import psutil

TICK_S = 1 / os.sysconf("SC_CLK_TCK")

T = TypeVar("T")
Verdict = Literal["pass", "MISS", ""]


@dataclass(frozen=True, slots=True)
class Options:
    """How thorough a run is. `quick` only shows that everything works."""

    quick: bool = False
    workers: tuple[int, ...] = ()
    """Numbers of workers for the bench of large grids; empty: its own."""

    def pick(self, full: int, quick: int) -> int:
        """The number of rounds (or the like) for this run."""
        return quick if self.quick else full


@dataclass(frozen=True, slots=True)
class Row:
    """One figure: both sides of it, what they come to, and what was wanted. No target: told for information."""

    what: str
    grid: str
    baseline: str = ""
    comes_to: str = ""
    target: str = ""
    verdict: Verdict = ""


@dataclass(slots=True)
class Outcome:
    """What came of one bench; `compares` says what with what."""

    name: str
    compares: str
    rows: list[Row] = field(default_factory=list)
    seconds: float = 0.0
    failure: str = ""


def sizes(text: str) -> tuple[int, ...]:
    """Reads numbers of workers from the command line: "10,100". Raises ValueError."""
    found = tuple(map(int, text.split(",")))
    if min(found) < 1:
        raise ValueError(f"not a number of workers: {min(found)}")
    return found


# Statistics


def p99(values: Sequence[float]) -> float:
    """The 99th percentile: the value that at least 99 % do not exceed."""
    return sorted(values)[max(0, -(-len(values) * 99 // 100) - 1)]


def at_most(value: float, limit: float, unit: str = "") -> tuple[str, Verdict]:
    """An upper limit as a row's target, and the verdict on it."""
    return f"at most {limit:,g}{unit}" if limit else "0", "pass" if value <= limit else "MISS"


def at_least(value: float, limit: float, unit: str = "") -> tuple[str, Verdict]:
    """The same for a lower limit."""
    return f"at least {limit:,g}{unit}", "pass" if value >= limit else "MISS"


# Processes


def cpu_us(pid: int) -> float:
    """CPU of all live threads of a process so far, in microseconds: psutil has ticks of 10 ms."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        total += int((task / "schedstat").read_text().split()[0])
    return total / 1000


def cpu_ticks(pid: int) -> int:
    """CPU of a process so far, user and system, in ticks of 10 ms."""
    times = psutil.Process(pid).cpu_times()
    return round((times.user + times.system) / TICK_S)


class CpuMeter:
    """The CPU that named processes use between `start` and `read`."""

    def __init__(self, pids: dict[str, int]) -> None:
        self.pids = pids
        self.used: dict[str, float] = dict.fromkeys(pids, 0.0)
        self._before: dict[str, float] = {}

    def start(self) -> None:
        """Counts from now on."""
        self._before = {name: cpu_us(pid) for name, pid in self.pids.items()}

    def stop(self) -> None:
        """Adds what was used since `start` to `used` (microseconds)."""
        for name, pid in self.pids.items():
            self.used[name] += cpu_us(pid) - self._before[name]


def memory_kib(pid: int) -> dict[str, int]:
    """`pss` and `uss` of a process in KiB."""
    found = psutil.Process(pid).memory_full_info()
    return {"pss": found.pss >> 10, "uss": found.uss >> 10}


class MachineMeter:
    """The time since it was made, and how many cores were busy meanwhile with what is not ours."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._before = _busy_s() - _ours_s()
        self._stolen_before = psutil.cpu_times().steal

    @property
    def seconds(self) -> float:
        """Seconds since it was made."""
        return time.monotonic() - self._started

    def by_others(self) -> float:
        """Cores; what other programs took of the machine disturbs every figure."""
        return max(0.0, _busy_s() - _ours_s() - self._before) / self.seconds

    def stolen(self) -> float:
        """Cores that the hypervisor gave to other machines although this one had work for them."""
        return (psutil.cpu_times().steal - self._stolen_before) / self.seconds


def _busy_s() -> float:
    times = psutil.cpu_times()
    return times.user + times.nice + times.system + times.irq + times.softirq


def _ours_s() -> float:
    """CPU of this process and of all that has ended below it."""
    return sum(
        usage.ru_utime + usage.ru_stime
        for usage in (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN))
    )


# While something is measured


@contextlib.contextmanager
def side_by_side(works: Iterable[Callable[[], object]], is_over: threading.Event) -> Iterator[None]:
    """Does these in threads of their own for the length of the block, at whose end it sets `is_over` for them."""
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        is_over.set()
        for thread in threads:
            thread.join()


@contextlib.contextmanager
def every(period_s: float, work: Callable[[], object]) -> Iterator[None]:
    """Does the work again and again, in a thread of its own, for the length of the block."""
    is_over = threading.Event()

    def run() -> None:
        while not is_over.wait(period_s):
            work()

    with side_by_side([run], is_over):
        yield


async def at_once(number: int, items: Iterable[T], work: Callable[[T], Awaitable[object]]) -> float:
    """Does the work for each of these, so many at a time. Returns how many seconds that took."""
    left = iter(items)

    async def runner() -> None:
        for item in left:
            await work(item)

    started = time.perf_counter()
    await asyncio.gather(*(runner() for _ in range(number)))
    return time.perf_counter() - started


# The report


@cache
def versions() -> dict[str, str]:
    """What the figures depend on."""
    from bench.servers import chromium, driver

    browser = subprocess.run([chromium(), "--version"], capture_output=True, text=True, check=False)
    node = subprocess.run([driver().node, "--version"], capture_output=True, text=True, check=True)
    return {
        "python": f"{platform.python_version()} ({Path(sys.executable).resolve()})",  # builds differ by a quarter
        **{name: metadata.version(name) for name in ("uvloop", "uvicorn", "httptools", "redis", "playwright")},
        "node": node.stdout.strip().lstrip("v"),
        "chromium": (browser.stdout.strip() or "?").removeprefix("Chromium ") + f" ({Path(chromium()).name})",
        "kernel": platform.release(),
        "cores": str(os.cpu_count()),
        "cpu": _cpu_model(),
    }


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(": ")[2]
    return platform.machine()


_COLUMNS = ("what", "grid", "baseline", "comes to", "target", "result")


def table(*rows: Sequence[str]) -> list[str]:
    """A Markdown table, of which the first row is the head."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["| " + " | ".join(map(str.ljust, row, widths)) + " |" for row in rows]
    return [lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]]


QUIET_CORES = 0.15

_WIDTH = 118
_READING = (
    "Written by `make bench`; do not edit. Every figure stands beside a baseline from the same run, taken in "
    "turns with it in small rounds: medians are over rounds, p99 is over all single values. Compare ratios and "
    "differences, not the absolute figures of this machine. The grid has its default settings (log level info), "
    "except the number of workers and slots that a bench says, and that no worker is recycled for its number of "
    "sessions unless that is what is measured."
)


def report(outcomes: Sequence[Outcome], command: str, machine: MachineMeter) -> str:
    """RESULTS.md."""
    rows = [row for outcome in outcomes for row in outcome.rows]
    missed = [row.what for row in rows if row.verdict == "MISS"]
    failed = [outcome.name for outcome in outcomes if outcome.failure]
    passed = sum(row.verdict == "pass" for row in rows)
    summary = f"{passed} of {passed + len(missed)} targets are met"
    if missed:
        summary += ". Missed: " + "; ".join(missed)
    if failed:
        summary += f". Did not run to their end: {', '.join(failed)}"
    found = ", ".join(f"{name} {version}" for name, version in versions().items())
    today = datetime.datetime.now(tz=datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    lines = [
        "# Benchmarks",
        "",
        *textwrap.wrap(_READING, _WIDTH),
        "",
        f"`{command}`, {today}, {machine.seconds:.0f} s  ",
        f"{found}  ",
        f"Other programs kept {machine.by_others():.2f} of {os.cpu_count()} cores busy meanwhile. {_trust(machine)} "
        f"The hypervisor took {machine.stolen():.2f} cores away.",
        "",
        f"**{summary}.**" + (" A quick run: too few rounds for a verdict." if "--quick" in command else ""),
    ]
    for outcome in outcomes:
        lines += ["", f"## {outcome.name}", "", *textwrap.wrap(outcome.compares, _WIDTH), ""]
        lines += table(_COLUMNS, *map(astuple, outcome.rows)) if outcome.rows else []
        if outcome.failure:
            lines += ["", f"**This bench failed:** {outcome.failure}"]
    return "\n".join(lines) + "\n"


def progress(text: str) -> None:
    """A line for who waits."""
    print(text, file=sys.stderr, flush=True)


def _trust(machine: MachineMeter) -> str:
    if machine.by_others() <= QUIET_CORES:
        return "That is quiet enough."
    return "That is too much: run it again on a quiet machine."
