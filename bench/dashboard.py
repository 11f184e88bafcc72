"""Bench: what open pages of the dashboard cost the grid, when nothing happens and while sessions come and go."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from bench.harness import CpuMeter, Options, Row, at_most, every, progress
from bench.servers import grid_of
from tests.support import raw
from tests.support.grid import Grid

SESSIONS_PER_S = 10


def run(options: Options) -> list[Row]:
    rounds, window_s = options.pick(6, 1), float(options.pick(20, 3))
    with grid_of(2, fake=True) as grid:
        status = grid.status()
        pids = {name: status[name]["pid"] for name in ("master", "proxy", "redis")}
        idle, one = _compared(grid, pids, 1, rounds, window_s)
        with every(1 / SESSIONS_PER_S, lambda: raw.session(grid.port).close()):
            loaded, ten = _compared(grid, pids, 10, rounds, window_s)
    return [
        _row("one page, nothing happens", one, idle, 0.1),
        _row(f"ten pages, {SESSIONS_PER_S} sessions/s", ten, loaded, 1.0),
    ]


def _row(what: str, with_pages: float, without: float, limit: float) -> Row:
    cost = with_pages - without
    figures = (f"{with_pages:.3f} % of a core", f"{without:.3f} % without", f"{cost:+.3f} %")
    return Row(what, *figures, *at_most(cost, limit, " %"))


def _compared(grid: Grid, pids: dict[str, int], pages: int, rounds: int, window_s: float) -> tuple[float, float]:
    """The CPU of the processes that have to do with pages, in percent of a core: without them, and with so many."""
    without, with_pages = CpuMeter(pids), CpuMeter(pids)
    for number in range(rounds):
        _metered(without, window_s)
        with contextlib.ExitStack() as held:
            for _ in range(pages):
                held.enter_context(_page(grid))
            time.sleep(2)  # what a page is told first is no cost of its being open
            _metered(with_pages, window_s)
        progress(f"  round {number + 1} of {rounds} with {pages} pages")
    return _percent(without, rounds * window_s), _percent(with_pages, rounds * window_s)


def _metered(meter: CpuMeter, window_s: float) -> None:
    meter.start()
    time.sleep(window_s)
    meter.stop()


def _percent(meter: CpuMeter, seconds: float) -> float:
    return sum(meter.used.values()) / 1e6 / seconds * 100


@contextlib.contextmanager
def _page(grid: Grid) -> Iterator[None]:
    with connect(f"ws://127.0.0.1:{grid.port}/v1/live") as socket:
        reader = threading.Thread(target=_read, args=(socket,))
        reader.start()
        yield
        socket.close()
        reader.join()


def _read(socket: ClientConnection) -> None:
    with contextlib.suppress(ConnectionClosed):
        while True:
            socket.recv()


COMPARES = (
    "A grid of two fake workers; CPU of master, proxy and Redis with open pages against the same without, in turns. "
    "A page is a WebSocket client that reads what it is told; the browser that would show it is the operator's."
)
