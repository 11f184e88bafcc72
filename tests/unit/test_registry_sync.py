"""When a worker's heartbeat is sent."""

import asyncio
from types import SimpleNamespace
from typing import Any

from pwgrid.common.worker_lifecycle import WorkerStatus
from pwgrid.registry.records import HeartbeatReply
from pwgrid.registry.session_update import SessionUpdate
from pwgrid.settings.model import Settings
from pwgrid.worker.holders import LiveSession
from pwgrid.worker.registry_sync import RegistrySync
from pwgrid.worker.slots import Slots

TAKES_S = 0.02


class SlowRegistry:
    """Answers each write after TAKES_S."""

    client = SimpleNamespace(on_connect=lambda _callback: None)

    def __init__(self) -> None:
        self.heartbeats = 0

    def now(self) -> float:
        return 1.0

    async def write(self, _update: SessionUpdate) -> None:
        await asyncio.sleep(TAKES_S)

    async def heartbeat(self, *_: object, **__: object) -> HeartbeatReply:
        self.heartbeats += 1
        return HeartbeatReply(known=True, command=None, repaired=0)


async def test_sessions_that_come_and_go_all_the_time_hold_no_heartbeat_up(tmp_path: Any) -> None:
    slots, registry = Slots(50), SlowRegistry()
    slots.status = WorkerStatus.AVAILABLE
    boot: Any = SimpleNamespace(
        browser_type="chromium",
        worker_id="a1b2c3d4",
        pool=Settings().short_form("chromium"),
        directory=tmp_path,
        settings=Settings(),
        adopt_node_pid=None,
    )
    stand_in: Any = registry
    sync = RegistrySync(boot, stand_in, slots)
    sync.started(LiveSession("first", "c:1"))
    beat = asyncio.create_task(sync.beat())
    for number in range(50):
        await asyncio.sleep(TAKES_S / 10)
        sync.started(LiveSession(f"s{number}", "c:1"))
    assert registry.heartbeats == 1
    await beat
    sync._write_log()
