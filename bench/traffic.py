"""Bench: traffic after the handoff, small and large, and the proxy's CPU meanwhile."""

from __future__ import annotations

import time
from statistics import median

from bench.client import Client
from bench.harness import CpuMeter, Options, Row, Verdict, at_most, cpu_ticks, cpu_us
from bench.servers import driver, fake_pair

TOLERANCE = 0.05
NOTHING_MS_S = 0.1
"""The proxy's own heartbeats cost about twice that, with traffic and without; a relay uses hundreds."""


def run(options: Options) -> list[Row]:
    rounds = options.pick(200, 20)
    with Client(driver().version) as client, fake_pair() as pair:
        meter = CpuMeter({"proxy": pair.pids["proxy"]})
        client.order("traffic", targets=[pair.direct, pair.via_grid], rounds=1, pings=1000, messages=50)
        idle_from, idle_s = cpu_us(pair.pids["proxy"]), options.pick(20, 2)
        time.sleep(idle_s)
        idle_ms_s = (cpu_us(pair.pids["proxy"]) - idle_from) / idle_s / 1000
        ticks, started = cpu_ticks(pair.pids["proxy"]), time.perf_counter()
        meter.start()
        direct, again, via_grid = client.order(
            "traffic", targets=[pair.direct, pair.direct, pair.via_grid], rounds=rounds, pings=200, messages=16
        )
        meter.stop()
        # The upgrade that began it is in here too: a fraction of a millisecond.
        ticks, seconds = cpu_ticks(pair.pids["proxy"]) - ticks, time.perf_counter() - started
    trip = {name: median(side["us"]) for name, side in (("direct", direct), ("again", again), ("grid", via_grid))}
    flow = {name: median(side["mib_s"]) for name, side in (("direct", direct), ("again", again), ("grid", via_grid))}
    busy_ms_s = meter.used["proxy"] / 1000 / seconds
    slower, faster = trip["grid"] / trip["direct"], flow["grid"] / flow["direct"]
    return [
        Row(
            "round trip of 100 bytes",
            f"{trip['grid']:.1f} µs",
            f"{trip['direct']:.1f} µs direct",
            f"{slower:.3f} ×",
            *_near_one(slower),
        ),
        Row(
            "echo of 1 MiB messages",
            f"{flow['grid']:.0f} MiB/s",
            f"{flow['direct']:.0f} MiB/s direct",
            f"{faster:.3f} ×",
            *_near_one(faster),
        ),
        Row(
            "noise: a second direct connection instead of the grid",
            f"{trip['again']:.1f} µs, {flow['again']:.0f} MiB/s",
            f"{trip['direct']:.1f} µs, {flow['direct']:.0f} MiB/s direct",
            f"{trip['again'] / trip['direct']:.3f} ×, {flow['again'] / flow['direct']:.3f} ×",
        ),
        Row(
            f"CPU of the proxy during {seconds:.0f} s of this",
            f"{busy_ms_s:.2f} ms/s ({ticks} ticks of 10 ms)",
            f"{idle_ms_s:.2f} ms/s without any traffic",
            f"{busy_ms_s - idle_ms_s:+.2f} ms/s",
            *at_most(busy_ms_s - idle_ms_s, NOTHING_MS_S, " ms/s"),
        ),
    ]


def _near_one(ratio: float) -> tuple[str, Verdict]:
    return f"1.00 × ± {TOLERANCE:.0%}", "pass" if abs(ratio - 1) <= TOLERANCE else "MISS"


COMPARES = (
    "Three WebSockets to the same fake browser server, which echoes: two opened directly over TCP, one handed off "
    "by the grid. They take turns in one client; the two direct ones against each other show how exact this "
    "machine is."
)
