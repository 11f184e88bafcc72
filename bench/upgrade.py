"""Bench: what the grid adds until a client has its first answer, one at a time, and to a herd of 50 at once."""

from __future__ import annotations

from statistics import median

from bench.client import Client, Target
from bench.harness import CpuMeter, Options, Row, at_least, at_most, p99, progress
from bench.servers import DirectServer, FakePair, driver, fake_pair, grid_of, settled

AT_ONCE = 50

PAIRS = 4
"""Of two equal grids one may answer 0.2 ms later than the other, for as long as it lives."""

PAUSES_MS = (30.0, 250.0)
"""Between one client and the next, as they come in life: caches are cold and processes asleep."""


def run(options: Options) -> list[Row]:
    with Client(driver().version) as client:
        rows = _one_by_one(client, options)
        with fake_pair() as pair:
            rows += _at_once(client, pair, options)
    return rows


def _one_by_one(client: Client, options: Options) -> list[Row]:
    direct: list[list[float]] = []
    via_grid: list[list[float]] = []
    pairs = options.pick(PAIRS, 1)
    for number in range(pairs):
        progress(f"  pair {number + 1} of {pairs}")
        with DirectServer() as server, grid_of(environment={"MAX_CONCURRENT_SESSIONS": "50"}) as grid:
            targets: list[Target] = [server.target, ("127.0.0.1", grid.port, "/")]
            client.order("latency", targets=targets, count=20, pauses_ms=PAUSES_MS, seed=0)
            for turn in range(options.pick(5, 2)):
                seed = 10 * number + turn
                count = options.pick(50, 10)
                found = client.order("latency", targets=targets, count=count, pauses_ms=PAUSES_MS, seed=seed)
                direct += found[0]
                via_grid += found[1]
                more = median([each[1] for each in found[1]]) - median([each[1] for each in found[0]])
                progress(f"  one at a time, round {turn + 1}: {more:+.3f} ms")

    def figures(index: int) -> tuple[float, float, float, float]:
        mine, theirs = ([each[index] for each in side] for side in (via_grid, direct))
        return median(mine), median(theirs), p99(mine), p99(theirs)

    upgrade, answer = figures(0), figures(1)
    return [
        Row(
            "connect and first answer (`initialize`), median",
            f"{answer[0]:.2f} ms",
            f"{answer[1]:.2f} ms direct",
            f"{answer[0] - answer[1]:+.2f} ms",
            *at_most(answer[0] - answer[1], 1.3, " ms"),
        ),
        Row(
            "the same, p99",
            f"{answer[2]:.1f} ms",
            f"{answer[3]:.1f} ms direct",
            f"{answer[2] - answer[3]:+.1f} ms",
        ),
        Row(
            "of that the 101, median",
            f"{upgrade[0]:.2f} ms",
            f"{upgrade[1]:.2f} ms direct",
            f"{upgrade[0] - upgrade[1]:+.2f} ms",
        ),
    ]


def _at_once(client: Client, pair: FakePair, options: Options) -> list[Row]:
    rounds, count = options.pick(10, 2), options.pick(2000, 1000)
    for target in (pair.direct, pair.via_grid):
        client.order("burst", target=target, count=500, at_once=AT_ONCE)
    settled(pair.grid)
    meters = {target: CpuMeter({**pair.pids, "load client": client.pid}) for target in (pair.direct, pair.via_grid)}
    rates: dict[Target, list[float]] = {pair.direct: [], pair.via_grid: []}
    times: dict[Target, list[float]] = {pair.direct: [], pair.via_grid: []}
    for number in range(rounds):
        for target in (pair.direct, pair.via_grid) if number % 2 else (pair.via_grid, pair.direct):
            meters[target].start()
            found = client.order("burst", target=target, count=count, at_once=AT_ONCE)
            settled(pair.grid)
            meters[target].stop()
            if found["failures"]:
                raise RuntimeError(f"{len(found['failures'])} upgrades failed: {found['failures'][0]}")
            rates[target].append(count / found["seconds"])
            times[target] += found["ms"]
        progress(f"  {AT_ONCE} at once, round {number + 1} of {rounds}: {rates[pair.via_grid][-1]:.0f}/s")
    direct, via_grid = median(rates[pair.direct]), median(rates[pair.via_grid])
    each = {
        target: {name: used / (rounds * count) / 1000 for name, used in meter.used.items()}
        for target, meter in meters.items()
    }
    proxy = each[pair.via_grid]["proxy"]
    return [
        Row(
            f"connects per second, {AT_ONCE} at once",
            f"{via_grid:.0f}/s",
            f"{direct:.0f}/s direct",
            f"{via_grid / direct:.2f} ×",
            *at_least(via_grid, 2500, "/s"),
        ),
        Row(
            f"one of {AT_ONCE} at once, median and p99",
            f"{median(times[pair.via_grid]):.1f} and {p99(times[pair.via_grid]):.1f} ms",
            f"{median(times[pair.direct]):.1f} and {p99(times[pair.direct]):.1f} ms direct",
        ),
        Row(
            "CPU of the proxy per connect",
            f"{proxy:.3f} ms",
            f"{each[pair.direct]['proxy']:.3f} ms direct",
            f"{proxy:.3f} ms",
            *at_most(proxy, 0.5, " ms"),
        ),
        *(
            Row(
                f"CPU of the {name} per session, its end included",
                f"{each[pair.via_grid][name]:.3f} ms",
                f"{each[pair.direct][name]:.3f} ms direct",
                f"{each[pair.via_grid][name] - each[pair.direct][name]:+.3f} ms",
            )
            for name in ("worker", "redis", "browser server", "load client")
        ),
    ]


COMPARES = (
    "One client at a time: a raw client connects, upgrades, sends `initialize` as Playwright's own does, and waits for "
    "the answer; real browser servers (Playwright's launchServer(), and the grid with one worker of 50 slots, embedded "
    "Redis, selection included), both in random order with random pauses of 30 to 250 ms, over "
    f"{PAIRS} pairs of a fresh server and a fresh grid. 50 at once: connect() to the "
    "end of the 101, with a fake browser server (tests/support/fake_launcher.cjs, 1,000 slots) that serves on a TCP "
    "port of its own, too: that is the direct path."
)
