"""Stand-in workers for bench/fleet.py: they register, and renew their registration, through the real scripts.

Run as `python -m bench.fleet_workers URL NUMBER LIVE INTERVAL_S TIMEOUT_S`: says `registered`, renews each worker once
in each interval until it hears a line, removes all of them, and says `gone`. That is a process of its own, so that its
CPU is not anybody else's.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from importlib import metadata

from pwgrid.common.reasons import EndReason, Reason
from pwgrid.common.session_lifecycle import SessionStatus
from pwgrid.common.types import BrowserType
from pwgrid.registry.records import WorkerRecord
from pwgrid.registry.registry import Registry
from pwgrid.registry.session_update import SessionEnd, SessionUpdate
from pwgrid.settings.model import Settings

HOSTS = 4
"""Simulated hosts: they differ in the names of their workers and endpoints alone, and each has one connection."""

SLOTS = 5
BROWSER_TYPE: BrowserType = "chromium"
POOL = "chromium"


@dataclass(slots=True)
class StandIn:
    """One worker, with the sessions that it reports as live."""

    record: WorkerRecord
    registry: Registry
    sessions: dict[str, SessionUpdate] = field(default_factory=dict)
    lifetime: int = 0

    @property
    def field(self) -> str:
        """Its name in the counters."""
        return f"{BROWSER_TYPE}:{self.record.worker_id}"

    async def register(self) -> None:
        await self.registry.register(self.record, lifetime=self.lifetime, sessions=self.sessions.values())

    async def beat(self) -> None:
        """Raises RuntimeError if Redis has lost the worker, or had a wrong counter for it."""
        reply = await self.registry.heartbeat(self.record, sessions=self.sessions.values(), lifetime=self.lifetime)
        if not reply.known or reply.repaired:
            raise RuntimeError(f"{self.field}: the heartbeat's answer was {reply}")

    async def start(self, session_id: str) -> None:
        """A client has come to the slot that a selection has leased here."""
        self.lifetime += 1
        self.sessions[session_id] = _live(session_id)
        await self.registry.write(self.sessions[session_id], (BROWSER_TYPE, self.record.worker_id))

    async def end(self, session_id: str) -> None:
        """That client is gone, and its slot is free."""
        started_at = self.sessions.pop(session_id).started_at
        end = SessionEnd(SessionStatus.COMPLETED, Reason(EndReason.CLIENT_DISCONNECTED), time.time())
        update = SessionUpdate(session_id, started_at, end=end)
        await self.registry.write(update, (BROWSER_TYPE, self.record.worker_id))

    async def leave(self) -> None:
        """Ends as a worker that stops, with its sessions."""
        await self.registry.reap_worker(BROWSER_TYPE, self.record.worker_id, Reason(EndReason.WORKER_STOPPED))


class Fleet:
    """So many workers, dealt out to HOSTS hosts, each with `live` sessions. Make it while an event loop runs."""

    def __init__(self, url: str, number: int, timeout_s: float, live: int = 0) -> None:
        self.registries = [Registry(url, Settings(redis_timeout=timeout_s)) for _ in range(HOSTS)]
        self.by_id: dict[str, StandIn] = {}
        for place in range(number):
            host = place % HOSTS
            worker_id = f"h{host}-{place // HOSTS:06x}"
            sessions = {each: _live(each) for each in (f"{worker_id}-{slot}" for slot in range(live))}
            self.by_id[worker_id] = StandIn(_record(host, worker_id), self.registries[host], sessions, live)

    async def register(self) -> None:
        """Raises RegistryUnavailable where there is no Redis."""
        for each in self.registries:
            await each.connected(1, 0)
        await self.on_each_host(StandIn.register)

    async def on_each_host(self, work: Callable[[StandIn], Awaitable[object]]) -> None:
        """Does this for every worker: one after the other on each host, since each real worker has a connection of its
        own, on which its commands do not go together with those of others."""
        await asyncio.gather(*(self._one_by_one(host, work) for host in range(HOSTS)))

    async def beat_for_ever(self, interval_s: float) -> None:
        """Renews every worker once in each interval, spread over it as those of real workers are."""
        await asyncio.gather(*(self._beat_host(host, interval_s) for host in range(HOSTS)))

    async def close(self) -> None:
        for each in self.registries:
            await each.close()

    def _of_host(self, host: int) -> list[StandIn]:
        return [*self.by_id.values()][host::HOSTS]

    async def _one_by_one(self, host: int, work: Callable[[StandIn], Awaitable[object]]) -> None:
        for each in self._of_host(host):
            await work(each)

    async def _beat_host(self, host: int, interval_s: float) -> None:
        """Waits for no answer before the next heartbeat: real workers do not wait for each other."""
        workers, turn_at, under_way = self._of_host(host), time.monotonic(), set[asyncio.Task[None]]()
        while workers:
            for each in workers:
                turn_at += interval_s / len(workers)
                await asyncio.sleep(max(0.0, turn_at - time.monotonic()))
                for beat in [beat for beat in under_way if beat.done()]:
                    under_way.discard(beat)
                    beat.result()
                under_way.add(asyncio.create_task(each.beat()))


def _live(session_id: str) -> SessionUpdate:
    return SessionUpdate(session_id, time.time(), "127.0.0.1:1")


def _record(host: int, worker_id: str) -> WorkerRecord:
    return WorkerRecord(
        browser_type=BROWSER_TYPE,
        worker_id=worker_id,
        ws_endpoint=f"ws://host{host}:8080/playwright/{BROWSER_TYPE}/{worker_id}.{'0' * 32}",
        started_at=time.time(),
        slots=SLOTS,
        playwright_version=metadata.version("playwright"),
        grid=f"host{host}",
        handoff=f"/run/pwgrid/8080/w/{worker_id}/handoff.sock",
        pid=1000 + host,
        rss_mib=180,
        pool=POOL,
    )


async def _main(url: str, number: int, live: int, interval_s: float, timeout_s: float) -> None:
    fleet = Fleet(url, number, timeout_s, live)
    await fleet.register()
    print("registered", flush=True)
    beats = asyncio.create_task(fleet.beat_for_ever(interval_s))
    over = asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    await asyncio.wait([beats, over], return_when=asyncio.FIRST_COMPLETED)
    if beats.done():
        beats.result()
    beats.cancel()
    await fleet.on_each_host(StandIn.leave)
    await fleet.close()
    print("gone", flush=True)


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]), float(sys.argv[5])))
