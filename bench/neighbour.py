"""A client that asks Node something all the time, in a process of its own: `python -m bench.neighbour ENDPOINT`.

Prints `ready`; then, for each line that it reads, its longest wait for an answer since the last one, in milliseconds.
"""

from __future__ import annotations

import asyncio
import sys
import time

from tests.support.protocol_client import protocol_client

PAUSE_S = 0.005


async def main(endpoint: str) -> None:
    async with protocol_client(endpoint) as client:
        browser = client.one("Browser")
        longest = 0.0
        asked_since = time.perf_counter()

        async def ask() -> None:
            nonlocal longest, asked_since
            while True:
                asked_since = time.perf_counter()
                await client.send(browser, "defaultUserAgentForTest")
                longest = max(longest, time.perf_counter() - asked_since)
                await asyncio.sleep(PAUSE_S)

        asking = asyncio.create_task(ask())
        print("ready", flush=True)
        while await asyncio.to_thread(sys.stdin.readline):
            if asking.done():
                await asking
            print(f"{max(longest, time.perf_counter() - asked_since) * 1000:.1f}", flush=True)
            longest = 0.0
        asking.cancel()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
