"""Bench: what the grid adds to a TCP connect with WebSocket upgrade, one after the other and 50 at once."""

from __future__ import annotations

from bench.client import Client, Target, load_client
from bench.harness import Bench, CpuMeter, Options, Row, at_least, median, p99, progress, within
from bench.servers import FakePair, direct_server, driver, fake_pair, grid_of, settled

AT_ONCE = 50


def run(options: Options) -> list[Row]:
    """All rows of this bench."""
    with load_client(driver().version) as client:
        with fake_pair() as pair:
            rows = _one_by_one(client, pair.direct, pair.via_grid, options.pick(40, 4), "")
            rows += _at_once(client, pair, options)
        with direct_server() as server, grid_of(environment={"MAX_CONCURRENT_SESSIONS": "50"}) as grid:
            via_grid = ("127.0.0.1", grid.port, "/")
            rows += _one_by_one(client, server.target, via_grid, options.pick(20, 2), ", real browser servers")
    return rows


def _one_by_one(client: Client, direct: Target, via_grid: Target, rounds: int, label: str) -> list[Row]:
    times = _in_turns(client, direct, via_grid, rounds, ping=False)
    middle = {target: median([median(taken) for taken in found]) for target, found in times.items()}
    late = {target: p99([value for taken in found for value in taken]) for target, found in times.items()}
    more, later = middle[via_grid] - middle[direct], late[via_grid] - late[direct]
    pinged = _in_turns(client, direct, via_grid, rounds // 2, ping=True)
    first = {target: median([median(taken) for taken in found]) for target, found in pinged.items()}
    return [
        Row(
            f"upgrade{label}, median",
            f"{middle[via_grid]:.3f} ms",
            f"{middle[direct]:.3f} ms direct",
            f"{more:+.3f} ms",
            "at most +0.45 ms",
            within(more, 0.45),
        ),
        Row(
            f"upgrade{label}, p99",
            f"{late[via_grid]:.2f} ms",
            f"{late[direct]:.2f} ms direct",
            f"{later:+.2f} ms",
            "at most +2 ms",
            within(later, 2.0),
        ),
        Row(
            f"upgrade{label} and the answer to a ping, median",
            f"{first[via_grid]:.3f} ms",
            f"{first[direct]:.3f} ms direct",
            f"{first[via_grid] - first[direct]:+.3f} ms",
        ),
    ]


def _in_turns(
    client: Client, direct: Target, via_grid: Target, rounds: int, *, ping: bool
) -> dict[Target, list[list[float]]]:
    """Milliseconds of each upgrade, by round."""
    for target in (direct, via_grid):
        client.order("latency", target=target, count=200, pause_ms=1, ping=ping)
    times: dict[Target, list[list[float]]] = {direct: [], via_grid: []}
    for number in range(rounds):
        for target in (direct, via_grid) if number % 2 else (via_grid, direct):
            times[target].append(client.order("latency", target=target, count=100, pause_ms=2, ping=ping))
    return times


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
            "at least 2,000/s",
            at_least(via_grid, 2000),
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
            "at most 0.5 ms",
            within(proxy, 0.5),
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


BENCH = Bench(
    "upgrade",
    "A raw-socket client connects and upgrades (connect() to the end of the 101). Direct is a TCP port of the "
    "same fake browser server (tests/support/fake_launcher.cjs, the same process) that the grid hands its sockets "
    "to; one worker with 1,000 slots, embedded Redis, selection included. Real browser servers: Playwright's "
    "launchServer(), with and without the grid; one worker with 50 slots. The 101 comes from the worker that has "
    "admitted the session, while the browser server gets the socket; the answer to a ping that follows it comes from "
    "the browser server itself.",
    run,
)
