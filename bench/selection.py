"""Bench: what a selection costs inside Redis, and the scripts of workers, for one worker to thousands.

`python -m bench.selection DIRECTORY` compares the scripts with those in DIRECTORY, another commit's lua/, in turns.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from redis import Redis

from bench.harness import Options, Row, at_most
from pwgrid.common.paths import resource_dir
from pwgrid.registry.scripts import assembled
from tests.support.redis import RedisServer

COMPARES = """
Redis' own count (INFO commandstats) of the microseconds in a script, which hold up all its clients: a selection with a
session's id, pool and version, and the session's end; a heartbeat; one run of the reaper. Private Redis servers,
medians of rounds of five calls, numbers of workers in turns.
"""

WORKERS = (1, 10, 100, 500, 1000, 5000)
COUNTERS = ("cluster:active_connections", "cluster:lifetime_connections")
NOW = 1_700_000_000
AT_ONCE = 5
SCRIPTS = ("selector", "release", "heartbeat", "reaper", "register")
MEASURED = ("selector", "release", "heartbeat")


class Fleet:
    """Made-up workers on a Redis of their own, with the scripts of a directory."""

    def __init__(self, client: Redis, directory: Path, workers: int) -> None:
        self._client = client
        self._digests = {name: str(client.script_load(assembled(directory, name))) for name in SCRIPTS}
        self._serial = 0
        self.workers = workers
        self.us: dict[str, list[float]] = {name: [] for name in MEASURED}
        registering = (0, 30_000, "", 900, 0, "status", "available", "slots", 5, "playwrightVersion", "1.65.1")
        ids = [f"w{number:05}" for number in range(workers)]
        heads = [("chromium", worker, NOW, *registering, "wsEndpoint", f"ws://host/{worker}") for worker in ids]
        self._call("register", 2, heads)

    def round(self) -> None:
        """Measures each script once more."""
        sessions = [f"s{self._serial + number}" for number in range(AT_ONCE)]
        self._serial += AT_ONCE
        rule = ("chromium", 5, 1_000_000, NOW, 30, "")
        wish = (10, "client:1", "", "1.65", "", 900, 10_000, 60, "chromium")
        beats = [("chromium", f"w{number % self.workers:05}", NOW, "available") for number in range(AT_ONCE)]
        told = (30_000, 30, "", 900, 3600, "", "", 0)
        self.us["selector"].append(self._call("selector", 2, [(*rule, session, *wish) for session in sessions]))
        self.us["release"].append(self._call("release", 1, [(each, "completed", "", NOW) for each in sessions]))
        self.us["heartbeat"].append(self._call("heartbeat", 2, [(*beat, *told) for beat in beats]))

    def reap(self) -> float:
        """Returns the milliseconds of one run of the reaper."""
        return self._call("reaper", 2, [(NOW, 30)]) / 1000

    def middle(self, name: str) -> float:
        """Returns the microseconds of one call."""
        return median(self.us[name])

    def _call(self, name: str, keys: int, calls: Sequence[tuple[object, ...]]) -> float:
        self._client.config_resetstat()
        with self._client.pipeline(transaction=False) as pipeline:
            for arguments in calls:
                pipeline.evalsha(self._digests[name], keys, *COUNTERS[:keys], *map(str, arguments))
            pipeline.execute()
        return float(self._client.info("commandstats")["cmdstat_evalsha"]["usec_per_call"])


def run(options: Options) -> list[Row]:
    with ExitStack() as stack:
        fleets = {count: _fleet(stack, resource_dir("lua"), count) for count in WORKERS}
        _in_turns(list(fleets.values()), options.pick(100, 5))
        reaped = {count: fleet.reap() for count, fleet in fleets.items()}
    rows = []
    for count, fleet in fleets.items():
        figure, of_ten = fleet.middle("selector"), fleets[10].middle("selector")
        target = at_most(figure, 60, " µs") if count == 1000 else ()
        name = f"a selection, {count} workers"
        rows.append(Row(name, f"{figure:.1f} µs", f"{of_ten:.1f} µs with 10", f"{figure:.1f} µs", *target))
    for count, fleet in fleets.items():
        figures = f"{fleet.middle('release'):.1f} µs, {fleet.middle('heartbeat'):.1f} µs, {reaped[count]:.1f} ms"
        rows.append(Row(f"a session's end, a heartbeat, a run of the reaper, {count} workers", figures))
    return rows


def _fleet(stack: ExitStack, directory: Path, workers: int) -> Fleet:
    server = RedisServer()
    stack.callback(server.close)
    return Fleet(stack.enter_context(server.client()), directory, workers)


def _in_turns(fleets: list[Fleet], rounds: int) -> None:
    for number in range(rounds):
        for fleet in fleets if number % 2 else reversed(fleets):
            fleet.round()


def compare(before: Path) -> None:
    """Prints a table: for each number of workers the scripts of `before` and of this commit, in turns."""
    print("| workers | selection | session's end | heartbeat | reaper |\n|---|---|---|---|---|")
    for count in WORKERS:
        with ExitStack() as stack:
            old, new = (_fleet(stack, directory, count) for directory in (before, resource_dir("lua")))
            _in_turns([old, new], 15 if count > 500 else 150)
            cells = [
                f"{old.middle(name):.1f} → {new.middle(name):.1f} µs ({new.middle(name) / old.middle(name):.2f} ×)"
                for name in MEASURED
            ]
            print(f"| {count} | {' | '.join(cells)} | {old.reap():.1f} → {new.reap():.1f} ms |", flush=True)


if __name__ == "__main__":
    compare(Path(sys.argv[1]))
