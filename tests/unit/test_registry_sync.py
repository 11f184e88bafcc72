"""When a worker's heartbeat is sent."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pwgrid.common.errors import RegistryUnavailable
from pwgrid.common.redis_faults import FaultKind, RedisFault
from pwgrid.common.worker_lifecycle import WorkerStatus
from pwgrid.registry.records import HeartbeatReply
from pwgrid.registry.session_update import SessionUpdate
from pwgrid.settings.model import Settings
from pwgrid.worker.holders import LiveSession
from pwgrid.worker.registry_sync import RegistrySync
from pwgrid.worker.slots import Slots

TAKES_S = 0.02
BOUND_S = 5.0
"""Bounds a failure."""


class SlowRegistry:
    """Answers each write after TAKES_S."""

    client = SimpleNamespace(on_connect=lambda _callback: None)

    def __init__(self) -> None:
        self.heartbeats = 0
        self.on_command: Callable[[], None] = lambda: None
        self.on_register: Callable[[], None] = lambda: None

    def now(self) -> float:
        return 1.0

    async def write(self, _update: SessionUpdate) -> None:
        await asyncio.sleep(TAKES_S)

    async def heartbeat(self, *_: object, **__: object) -> HeartbeatReply:
        self.heartbeats += 1
        return HeartbeatReply(known=True, command=None, repaired=0)

    def subscribe_commands(self, _browser_type: str, _worker_id: str, callback: Callable[[], None]) -> None:
        self.on_command = callback

    async def register(self, *_: object, **__: object) -> None:
        self.on_register()


def synced(registry: SlowRegistry, directory: Path) -> RegistrySync:
    slots = Slots(50)
    slots.status = WorkerStatus.AVAILABLE
    boot: Any = SimpleNamespace(
        browser_type="chromium",
        worker_id="a1b2c3d4",
        pool=Settings().short_form("chromium"),
        directory=directory,
        settings=Settings(),
        adopt_node_pid=None,
        registry_seen=True,
    )
    stand_in: Any = registry
    return RegistrySync(boot, stand_in, slots)


async def test_a_command_that_comes_during_a_registration_makes_a_heartbeat_due(tmp_path: Path) -> None:
    registry = SlowRegistry()
    sync = synced(registry, tmp_path)
    await sync.register()
    registry.on_register = registry.on_command
    await sync.register()
    async with asyncio.timeout(BOUND_S):
        await sync.due(2 * BOUND_S)


async def test_a_heartbeat_that_was_due_is_due_still_if_a_registration_fails(tmp_path: Path) -> None:
    def fails() -> None:
        raise RegistryUnavailable("Redis is away", RedisFault(FaultKind.SILENT, "Redis is away"))

    registry = SlowRegistry()
    sync = synced(registry, tmp_path)
    registry.on_register = fails
    sync.beat_soon()
    await sync.register()  # it is put off
    async with asyncio.timeout(BOUND_S):
        await sync.due(2 * BOUND_S)


async def test_sessions_that_come_and_go_all_the_time_hold_no_heartbeat_up(tmp_path: Path) -> None:
    registry = SlowRegistry()
    sync = synced(registry, tmp_path)
    sync.started(LiveSession("first", "c:1"))
    beat = asyncio.create_task(sync.beat())
    for number in range(50):
        await asyncio.sleep(TAKES_S / 10)
        sync.started(LiveSession(f"s{number}", "c:1"))
    assert registry.heartbeats == 1
    await beat
    sync._write_log()
