"""`python -m bench.chaos --minutes N --seed S`: kills and stops what a grid consists of, at random, under load.

A session may be lost only when its own browser server was killed, a connect refused only when the proxy that had it
was: the kernel is asked who that is. At the end nothing is left. Exit code 1 on anything else.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from bench.chaos_clients import CDP, Book, client_ports_at, playwright_lane, raw_lane
from bench.client import WITH_WINDOW
from bench.harness import side_by_side
from bench.servers import driver, makes_windows, other_client
from bench.soak import sessions_by_end
from pwgrid.common.errors import GridError
from tests.support.drivers import DRIVERS
from tests.support.grid import NEVER, Grid, eventually, last_lines

WORKERS = 2
RAW_LANES = 4
LOST_S = 8.0
"""More than a new master takes to start, or the workers leave before it: more on a machine with much else to do."""

WHOLE_S = 60.0
PAUSE_S = 1.5
EXPECTED = (
    "completed: ",
    "failed: its worker drained while it was kept",
    "failed: browser server lost",
    "never started, ",
)
"""Ends of records. A lease stays unused when the proxy is killed, or when Redis was stopped before it answered."""


class Chaos:
    """One run: the grid, what has been done to it, and what may be done next."""

    def __init__(self, grid: Grid, file: Path, seed: int, book: Book, lost_s: float) -> None:
        self.grid = grid
        self._lost_s = lost_s
        self.book = book
        self._file = file
        self._dice = random.Random(f"{seed} steps")
        self._hurt: set[str] = set()
        self._deck: list[Callable[[], str]] = []
        self._reloads = 0
        self.done: Counter[str] = Counter()

    def step(self) -> None:
        """One thing is done to the grid; returns when it is whole again. Each kind once before any twice."""
        if not self._deck:
            self._deck = [
                self._kill_proxy,
                self._kill_worker,
                self._hang_worker,
                self._stop_worker_for_a_while,
                self._kill_redis,
                self._stop_redis_for_a_while,
                self._kill_browser_server,
                self._kill_master,
                self._freeze_master,
                self._reload,
                self._drain,
            ]
            self._dice.shuffle(self._deck)
        do = self._deck.pop()
        name = do.__name__.strip("_").replace("_", " ")
        self.book.step = f"step {self.done.total() + 1} ({name})"
        self.done[name] += 1
        detail = do()
        print(f"{time.monotonic() - self.book.began:6.1f} s  {name}: {detail}", flush=True)
        began = time.monotonic()
        try:
            eventually(self.is_whole, "the grid is whole again", WHOLE_S)
        except AssertionError as error:
            self.book.fault(f"{error}: {self._status()}")
        print(f"          whole after {time.monotonic() - began:.1f} s", flush=True)
        time.sleep(self._dice.random() * PAUSE_S)

    def is_whole(self) -> bool:
        """All workers that are wanted serve, and so do the proxy and Redis, as far as the master knows."""
        status = self._status()
        if not status:
            return False
        # One that a new master has adopted counts once it has come back: before that nobody could succeed it.
        workers = Counter(
            each["pool"]
            for each in status["workers"]
            if each["status"] == "available" and each["phase"] == "running" and each["id"] not in self._hurt
        )
        # A pool on demand wants those that its clients need just now.
        wanted = {pool["name"]: pool["wanted"] for pool in status["pools"] if pool["onDemand"]} | {"chromium": WORKERS}
        serve = all(workers[name] == number for name, number in wanted.items())
        return serve and bool(status["proxy"]["pid"] and status["redis"]["pid"])

    def _status(self) -> dict[str, Any]:
        with contextlib.suppress(GridError):
            return self.grid.ask("status")
        return {}

    def _worker(self) -> dict[str, Any]:
        """A worker that serves; a successor never does, so that none is killed: it would have no successor."""
        workers = [each for each in self._status()["workers"] if each["status"] == "available"]
        worker: dict[str, Any] = self._dice.choice(sorted(workers, key=lambda each: each["pid"]))
        return worker

    def _kill_proxy(self) -> str:
        pid = self._status()["proxy"]["pid"]
        with _held_still(pid):
            found = self.book.excuse(client_ports_at(pid, self.grid.port), self.grid.port, "proxy killed")
            os.kill(pid, signal.SIGKILL)
        return f"{pid}, {found} clients in its hands"

    def _kill_worker(self) -> str:
        worker = self._worker()
        self._hurt.add(worker["id"])
        os.kill(worker["pid"], signal.SIGKILL)
        return f"{worker['id']}, {worker['active']} sessions"

    def _hang_worker(self) -> str:
        worker = self._worker()
        self._hurt.add(worker["id"])
        os.kill(worker["pid"], signal.SIGSTOP)
        eventually(lambda: _state(worker["pid"]) in ("", psutil.STATUS_ZOMBIE), "a hung worker is killed", WHOLE_S)
        return f"{worker['id']}, {worker['active']} sessions"

    def _stop_worker_for_a_while(self) -> str:
        worker, seconds = self._worker(), self._dice.uniform(0.2, self._lost_s / 3)
        _stopped_for(worker["pid"], seconds)
        return f"{worker['id']}, {seconds:.1f} s"

    def _kill_redis(self) -> str:
        pid = self._status()["redis"]["pid"]
        os.kill(pid, signal.SIGKILL)
        return str(pid)

    def _stop_redis_for_a_while(self) -> str:
        pid, seconds = self._status()["redis"]["pid"], self._dice.uniform(0.5, 5)
        _stopped_for(pid, seconds)
        return f"{pid}, {seconds:.1f} s"

    def _kill_browser_server(self) -> str:
        worker = self._worker()
        self._hurt.add(worker["id"])
        pid = worker["nodePid"]
        with _held_still(pid):
            found = self.book.excuse(client_ports_at(pid, self.grid.port), self.grid.port, "browser server killed")
            os.kill(pid, signal.SIGKILL)
        return f"of {worker['id']}, {found} clients on it"

    def _kill_master(self) -> str:
        self.grid.kill_master()
        seconds = self._dice.random()
        time.sleep(seconds)
        began = time.monotonic()
        self.grid.start_again()
        took_s = time.monotonic() - began
        if seconds + took_s > self._lost_s:
            self.book.fault(
                f"the machine is too busy for --lost {self._lost_s:g}: a new master took {took_s:.1f} s to start"
            )
        return f"{seconds:.1f} s without, the new one took {took_s:.1f} s"

    def _freeze_master(self) -> str:
        """For so long that its children nearly give it up; then it wakes, or is killed as a watchdog does."""
        process, seconds = self.grid.process, self._dice.uniform(0.5, self._lost_s / 2)
        if self._dice.random() < 0.5:
            _stopped_for(process.pid, seconds)
            return f"{seconds:.1f} s, then it woke"
        process.send_signal(signal.SIGSTOP)
        time.sleep(seconds)
        return f"{seconds:.1f} s, then it was killed: {self._kill_master()}"

    def _reload(self) -> str:
        self._reloads += 1
        before = {each["id"] for each in self._status()["workers"]}
        # The first concerns the proxy alone, the second the workers.
        what = [("queue", "max_queue = {}"), ("canary", "canary_interval = {}")][self._reloads % 2]
        self._file.write_text(f"{_file_text()}\n[{what[0]}]\n{what[1].format(100 + self._reloads)}\n")
        done = self.grid.command("reload")
        if done.returncode:
            self.book.fault(f"reload: {done.stderr}")
        if "recycling" in done.stdout:
            self._hurt |= before
        return done.stdout.strip()

    def _drain(self) -> str:
        worker = self._worker()
        self._hurt.add(worker["id"])
        done = self.grid.command("drain", worker["id"])
        if done.returncode and worker["id"] in {each["id"] for each in self._status()["workers"]}:  # else it has left
            self.book.fault(f"drain: {done.stdout}{done.stderr}")
        return f"{worker['id']}, {worker['active']} sessions"


def _file_text() -> str:
    return f"[workers]\nchromium_workers = {WORKERS}\n"


def _state(pid: int) -> str:
    try:
        return str(psutil.Process(pid).status())
    except psutil.NoSuchProcess:
        return ""


@contextlib.contextmanager
def _held_still(pid: int) -> Iterator[None]:
    """What the process has in its hands is what it has when it is killed."""
    os.kill(pid, signal.SIGSTOP)
    eventually(lambda: _state(pid) in (psutil.STATUS_STOPPED, "", psutil.STATUS_ZOMBIE), "it is stopped")
    yield


def _stopped_for(pid: int, seconds: float) -> None:
    os.kill(pid, signal.SIGSTOP)
    time.sleep(seconds)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


def chaos(
    minutes: float,
    seed: int,
    *,
    fake: bool = False,
    raw_lanes: int = RAW_LANES,
    log: str = "",
    lost_s: float = LOST_S,
) -> bool:
    """One run with its report on stdout, and the grid's log in the file `log`. True when there was no fault."""
    # One shares its browser, one has browsers of its own, one comes back to them over CDP, one has a window; one has
    # another Playwright, whose pool starts and ends with it.
    other = "" if fake else other_client()
    kinds = [] if fake else ["/?isolation=context", "/?isolation=browser", CDP]
    if kinds and makes_windows():
        kinds.append(f"/?{WITH_WINDOW}")
    given = {
        "WORKER_LOST_THRESHOLD": f"{lost_s:g}",
        "HEARTBEAT_INTERVAL": "1",
        "DRAIN_TIMEOUT": "60",
        # One worker can do it alone, with sessions that are kept for clients that have vanished.
        "MAX_CONCURRENT_SESSIONS": str(raw_lanes + len(kinds) + 6),
        "MAX_LIFETIME_SESSIONS": NEVER,
        **({"DRIVERS_DIR": str(DRIVERS), "ON_DEMAND_IDLE": "5"} if other else {}),
    }
    with tempfile.TemporaryDirectory(prefix="pgc-", dir="/tmp") as directory:
        file = Path(directory) / "grid.toml"
        file.write_text(_file_text())
        grid = Grid("--config", str(file), environment=given, fake=fake)
        book = Book()
        run = Chaos(grid, file, seed, book, lost_s)
        stopped = threading.Event()
        paths = ["/cdp" if n == 0 else "/" for n in range(raw_lanes)]
        raw = [
            partial(raw_lane, ("127.0.0.1", grid.port, path), driver().version, book=book, stopped=stopped)
            for path in paths
        ]
        real_lane = partial(playwright_lane, book=book, stopped=stopped, lost_s=lost_s)
        real = [partial(real_lane, f"{grid.endpoint}{path}") for path in kinds]
        if other:
            real.append(partial(real_lane, grid.endpoint, path=other))
        lanes = [partial(each, dice=random.Random(f"{seed} raw {n}")) for n, each in enumerate(raw)]
        lanes += [partial(each, dice=random.Random(f"{seed} pw {n}")) for n, each in enumerate(real)]
        try:
            with side_by_side(lanes, stopped):
                eventually(run.is_whole, "all workers serve", WHOLE_S)
                until = time.monotonic() + minutes * 60
                while time.monotonic() < until:
                    run.step()
            book.step += " and the end of all clients"
            _counters_are_exact(grid, book)
            ended = sessions_by_end(grid)
            output = grid.output()
            _stops_without_a_trace(grid, book)
        except Exception as error:  # noqa: BLE001 - whatever it is, the report says after which step
            book.fault(f"{type(error).__name__}: {error}")
            ended = Counter()
            output = "" if grid.log.closed else grid.output()
        finally:
            grid.kill_everything()
    if log:
        Path(log).write_text(output)
    for how in ended:
        if not how.startswith(EXPECTED):
            book.fault(f"{ended[how]} sessions are recorded as {how}")
    _report(book, run.done, ended, f"chaos of {minutes:g} min, seed {seed}, {'fake' if fake else 'real'} browsers")
    if book.faults:
        print(f"\nthe grid's last lines:\n{last_lines(output)}")
    return not book.faults


def _counters_are_exact(grid: Grid, book: Book) -> None:
    """No slot taken, nothing live, no session in between, and no trace of a worker that is gone."""
    checks: dict[str, Callable[[], Any]] = {
        "counters are not 0": grid.active,
        "live in Redis": lambda: grid.redis("KEYS", "*s:live:*") + grid.redis("KEYS", "sessions:leased:*"),
        "sessions in between": lambda: [
            each for each in sessions_by_end(grid) if "pending: " in each or "running: " in each
        ],
        "records or counters of workers that are gone": lambda: _strangers(grid),
    }
    for what, left in checks.items():
        try:
            eventually(_none(left), what, WHOLE_S)
        except AssertionError:
            book.fault(f"{what}: {left()}")


def _none(left: Callable[[], Any]) -> Callable[[], bool]:
    return lambda: not left()


def _strangers(grid: Grid) -> list[str]:
    alive = {f"chromium:{each['id']}" for each in grid.ask("status")["workers"]}
    fields = [
        field.decode()
        for name in ("cluster:active_connections", "cluster:lifetime_connections")
        for field in grid.redis("HKEYS", name)
    ]
    fields += [key.decode().removeprefix("worker:") for key in grid.redis("KEYS", "worker:chromium:*")]
    return [each for each in fields if each not in alive]


def _stops_without_a_trace(grid: Grid, book: Book) -> None:
    try:
        code = grid.stop()
    except AssertionError as error:
        return book.fault(str(error).partition("\n")[0])
    if code:
        book.fault(f"the grid stopped with exit code {code}")
    return None


def _report(book: Book, done: Counter[str], ended: Counter[str], title: str) -> None:
    print(f"\n{title}\n")
    rows: list[tuple[str, object]] = [
        ("steps", f"{done.total()}: {', '.join(f'{name} {n}' for name, n in sorted(done.items()))}"),
        ("connects", book.connects),
        ("sessions served", f"{book.served}, of which {book.vanished} clients vanished"),
        ("sessions lost", _counted(book.lost)),
        ("connects refused", _counted(book.refused)),
        ("longest connect", f"{book.longest_connect_s:.2f} s, during or after {book.longest_after}"),
        ("session records", _counted(ended)),
        ("faults", len(book.faults) or "none"),
    ]
    for name, value in rows:
        print(f"{name:<18}{value}")
    for fault in book.faults:
        print(f"FAULT {fault}")


def _counted(what: Counter[str]) -> str:
    return ", ".join(f"{n} × {name}" for name, n in what.most_common()) or "none"


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--fake", action="store_true", help="a fake browser server instead of Chromium; raw clients only"
    )
    parser.add_argument("--raw", type=int, default=RAW_LANES, help="raw clients at once")
    parser.add_argument("--log", default="", help="a file for the grid's whole log")
    parser.add_argument("--lost", type=float, default=LOST_S, help="WORKER_LOST_THRESHOLD in seconds")
    given = parser.parse_args()
    good = chaos(given.minutes, given.seed, fake=given.fake, raw_lanes=given.raw, log=given.log, lost_s=given.lost)
    if not good:
        again = f"--minutes {given.minutes:g} --seed {given.seed} --raw {given.raw}" + " --fake" * given.fake
        print(f"\nagain: python -m bench.chaos {again}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
