"""Bench: what the guard at Playwright's dispatcher costs, with real Chromiums and raw clients.

Both the messages of each client, and its neighbours, who wait while Node works on heavy ones.
"""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import PIPE
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, ExitStack
from statistics import median

from bench.harness import Options, Row, at_most, cpu_us, progress
from bench.servers import DirectServer, grid_of, pids_of
from tests.hostile.heavy_calls import HEAVY, site
from tests.support.protocol_client import ProtocolClient, protocol_client

WAIT_MS = 1000
SIDES = ("compatible", "off", "direct")

Call = Callable[[], Awaitable[object]]


def run(options: Options) -> list[Row]:
    with ExitStack() as stack:
        server = stack.enter_context(DirectServer())
        endpoints, nodes = {"direct": server.endpoint}, {"direct": server.process.pid}
        for guard in ("compatible", "off"):
            grid = stack.enter_context(grid_of(environment={"CLIENT_GUARD": guard}))
            endpoints[guard], nodes[guard] = grid.endpoint, pids_of(grid)["browser server"]
        return [*asyncio.run(_measured(endpoints, nodes, options)), *asyncio.run(_waits(endpoints["compatible"]))]


async def _measured(endpoints: dict[str, str], nodes: dict[str, int], options: Options) -> list[Row]:
    async with AsyncExitStack() as stack:
        calls: dict[str, dict[str, Call]] = {"a message that Node answers by itself": {}, "evaluate()": {}}
        for side in SIDES:
            client = await stack.enter_async_context(protocol_client(endpoints[side]))
            for each, call in zip(calls.values(), await _calls(client), strict=True):
                each[side] = call
        return [row for name, by_side in calls.items() for row in await _rows(name, by_side, nodes, options)]


async def _waits(endpoint: str) -> list[Row]:
    """A row for each heavy call: the longest wait of a neighbour meanwhile, and until Node has removed what it made."""
    argv = (sys.executable, "-m", "bench.neighbour", endpoint)
    neighbour = await asyncio.create_subprocess_exec(*argv, stdin=PIPE, stdout=PIPE)
    assert neighbour.stdin is not None
    assert neighbour.stdout is not None
    try:
        await neighbour.stdout.readline()
        rows = []
        async with site() as address:
            for heavy in HEAVY:
                neighbour.stdin.write(b"\n")
                await neighbour.stdout.readline()
                await heavy.once(endpoint, address)
                neighbour.stdin.write(b"\n")
                wait_ms = float(await neighbour.stdout.readline())
                what = f"a neighbour's longest wait: {heavy.name.replace('_', ' ')}"
                rows.append(Row(what, f"{wait_ms:.0f} ms", "", "", *at_most(wait_ms, WAIT_MS, " ms")))
        return rows
    finally:
        neighbour.stdin.close()
        await neighbour.wait()


async def _calls(client: ProtocolClient) -> tuple[Call, Call]:
    """The shortest message there is, in which the browser takes no part, and what clients send most."""
    browser, frame = client.one("Browser"), client.frame(await client.new_page())
    nothing = {"value": {"v": "undefined"}, "handles": []}
    return (
        lambda: client.send(browser, "defaultUserAgentForTest"),
        lambda: client.send(frame, "evaluateExpression", expression="1", isFunction=False, arg=nothing),
    )


async def _rows(name: str, calls: dict[str, Call], nodes: dict[str, int], options: Options) -> list[Row]:
    rounds, count = options.pick(40, 4), options.pick(200, 30)
    times: dict[str, list[float]] = {side: [] for side in SIDES}
    for side in SIDES:
        await _microseconds(calls[side], nodes[side], count)
    for number in range(rounds):
        for shift in range(len(SIDES)):
            side = SIDES[(number + shift) % len(SIDES)]
            times[side].append(await _microseconds(calls[side], nodes[side], count))
    progress(f"  {name}: " + ", ".join(f"{side} {median(times[side]):.0f} µs" for side in SIDES))
    rows = []
    for other, limit in (("off", 1.03), ("direct", 1.1)):
        # Of each round on its own: the machine is faster and slower for seconds at a time.
        ratio = median([mine / theirs for mine, theirs in zip(times["compatible"], times[other], strict=True)])
        against = "CLIENT_GUARD=off" if other == "off" else "direct"
        rows.append(
            Row(
                f"{name}, the guard against {'none' if other == 'off' else 'no grid'}: Node's CPU",
                f"{median(times['compatible']):.0f} µs",
                f"{median(times[other]):.0f} µs {against}",
                f"{ratio:.3f} ×",
                *at_most(ratio, limit, " ×"),
            )
        )
    return rows


async def _microseconds(call: Call, node: int, count: int) -> float:
    """Node's CPU for one call, on average."""
    before = cpu_us(node)
    for _ in range(count):
        await call()
    return (cpu_us(node) - before) / count


COMPARES = (
    "Three raw clients take turns, each with a page in a Chromium of its own: a grid with CLIENT_GUARD=compatible, one "
    "with CLIENT_GUARD=off, launchServer() without a grid. No process of a grid touches their bytes, so the "
    "difference is what the launcher does with each message: CPU of the Node process, all its threads, for one call. "
    "Then a client sends what tests/hostile/heavy_calls.py has, one after the other, and a neighbour in the same "
    "browser, a process of its own, asks Node something every 5 ms."
)
