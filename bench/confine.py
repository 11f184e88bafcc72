"""Bench: what it costs that the kernel keeps browsers from the host's files, with real Chromiums and raw clients."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from statistics import median

from bench.harness import Options, Row, at_most, progress
from tests.support.protocol_client import ProtocolClient, protocol_client
from tests.support.stand_in_proxy import browser_server

SIDES = ("on", "off")
PAGE = "data:text/html,<title>first</title>"


def run(options: Options) -> list[Row]:
    return asyncio.run(_measured(options))


async def _measured(options: Options) -> list[Row]:
    launches: dict[str, list[float]] = {side: [] for side in SIDES}
    for number in range(options.pick(40, 3)):
        for side in _in_turns(number):
            launches[side].append(await _launch_ms(side))
    pages: dict[str, list[float]] = {side: [] for side in SIDES}
    async with AsyncExitStack() as stack:
        clients = {}
        for side in SIDES:
            watched = await stack.enter_async_context(browser_server(confine=side, block_file_urls="off"))
            clients[side] = await stack.enter_async_context(protocol_client(watched.endpoint))
            await _first_page_ms(clients[side])
        for number in range(options.pick(200, 10)):
            for side in _in_turns(number):
                pages[side].append(await _first_page_ms(clients[side]))
    return [_row("launch, until a page has computed something", launches, 1.1), _row("first page", pages, 1.05)]


def _in_turns(number: int) -> tuple[str, ...]:
    return SIDES if number % 2 else SIDES[::-1]


async def _launch_ms(side: str) -> float:
    started = time.perf_counter()
    async with browser_server(confine=side, block_file_urls="off"):
        return (time.perf_counter() - started) * 1000


async def _first_page_ms(client: ProtocolClient) -> float:
    started = time.perf_counter()
    context = await client.new_context()
    frame = client.frame(await client.new_page(context))
    await client.send(frame, "goto", url=PAGE, timeout=30_000, waitUntil="load")
    await client.send(frame, "title")
    took_ms = (time.perf_counter() - started) * 1000
    await client.send(context, "close")
    return took_ms


def _row(what: str, times: dict[str, list[float]], limit: float) -> Row:
    # Of each round on its own: the machine is faster and slower for seconds at a time.
    ratio = median([mine / theirs for mine, theirs in zip(times["on"], times["off"], strict=True)])
    progress(f"  {what}: " + ", ".join(f"{side} {median(times[side]):.1f} ms" for side in SIDES))
    return Row(
        what,
        f"{median(times['on']):.1f} ms",
        f"{median(times['off']):.1f} ms CONFINE=off",
        f"{ratio:.3f} ×",
        *at_most(ratio, limit, " ×"),
    )


COMPARES = (
    "Browser servers with CONFINE=on and CONFINE=off in turns: their launch, each with a new Node and a new Chromium; "
    "then the first page of a client (context, page, `data:` URL, title) in two that run."
)
