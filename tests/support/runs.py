"""Clients of several runs that want sessions all the time, to see how many each run gets."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Mapping
from urllib.parse import quote

from tests.support.raw import PING, PONG, head

SESSION_S = (0.01, 0.04)
"""How long a session lasts: longer than the way back into the line."""


async def sessions_by_run(port: int, clients: Mapping[str, int], total: int) -> Counter[str]:
    """Lets so many clients of each run connect, again as soon as their session has ended, until there were `total`
    sessions of them all; how many of these each run had. Raises for a client that is refused."""
    had: Counter[str] = Counter()

    async def client(run: str) -> None:
        while had.total() < total:
            await _session(port, run)
            if had.total() < total:
                had[run] += 1

    async with asyncio.TaskGroup() as group:
        for run, number in clients.items():
            for _ in range(number):
                group.create_task(client(run))
    return had


async def _session(port: int, run: str) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(head(target=f"/?name={quote(run)}"))
        answer = await reader.readuntil(b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 101 "), answer + await reader.read()
        writer.write(PING)
        assert await reader.readexactly(len(PONG)) == PONG
        await asyncio.sleep(random.uniform(*SESSION_S))
    finally:
        writer.close()
