"""A client gets a worker of its pool, also while Redis is away, and readiness looks at each pool."""

import asyncio
from typing import Any, cast

from pwgrid.proxy.readiness_check import Readiness
from pwgrid.proxy.roster import Roster
from pwgrid.proxy.select.queue import Ticket
from pwgrid.proxy.select.selector import Selector
from pwgrid.proxy.select.without_redis import LocalSelection
from pwgrid.registry.records import RegistrySnapshot, Selection, WorkerRecord
from pwgrid.registry.registry import Registry
from pwgrid.settings.model import Settings

POOLS = {
    "appa": {"browserType": "chromium", "wanted": 1, "available": 1, "reason": None, "slots": 3, "lifetime": 30},
    "appb": {"browserType": "chromium", "wanted": 1, "available": 1, "reason": None, "slots": 1, "lifetime": 9},
}
WORKERS = [
    {"id": "a", "pool": "appa", "browserType": "chromium", "status": "available"},
    {"id": "b", "pool": "appb", "browserType": "chromium", "status": "available"},
]


def roster() -> Roster:
    made = Roster()
    made.replace({"pools": POOLS, "workers": WORKERS})
    return made


def ticket(pool: str) -> Ticket:
    return Ticket("s", "chromium", None, "client", 1e9, pool=pool)


def test_without_redis_a_client_gets_a_worker_of_its_pool() -> None:
    local = LocalSelection(roster())
    for pool, worker in (("appa", "a"), ("appb", "b"), ("appa", "a")):
        assert local.choose(ticket(pool), ()) == Selection("", worker)
    assert local.choose(ticket("appb"), ("b",)) is None
    assert local.choose(ticket("chromium"), ()) is None


async def test_the_registry_is_asked_with_the_pool_its_slots_and_its_lifetime() -> None:
    asked: list[tuple[Any, Any, Any]] = []

    class OneRegistry:
        async def select(self, _browser_type: str, **wish: Any) -> None:
            asked.append((wish["pool"], wish["max_concurrent"], wish["max_lifetime"]))

    selector = Selector(Settings(), cast(Registry, OneRegistry()), roster(), ())
    for pool in ("appa", "appb", "gone"):
        assert await selector.select(ticket(pool)) is None
    assert asked == [("appa", 3, 30), ("appb", 1, 9), ("gone", 5, 50)]


async def test_a_pool_of_which_redis_would_choose_no_worker_makes_the_grid_not_ready() -> None:
    class OneRegistry:
        def now(self) -> float:
            return 100.0

        async def snapshot(self) -> RegistrySnapshot:
            return found

    def record(worker: str, pool: str) -> WorkerRecord:
        return WorkerRecord("chromium", worker, "ws://x", pool=pool, last_heartbeat=100.0)

    readiness = Readiness(Settings(), roster(), cast(Registry, OneRegistry()))
    both = {"chromium:a": record("a", "appa"), "chromium:b": record("b", "appb")}
    found = RegistrySnapshot({}, {"chromium:a": 9, "chromium:b": 9}, both, {}, 0)
    used_up = "no appb worker can be chosen: in Redis 1 used up (cluster:lifetime_connections says 9 sessions or more)"
    assert await readiness.problem() == used_up
    assert (await readiness.shortage("appa"), await readiness.shortage("appb")) == (None, used_up)
    found = RegistrySnapshot({}, {}, {"chromium:a": both["chromium:a"]}, {}, 0)
    assert await readiness.problem() == "no appb worker can be chosen: in Redis none is registered"


async def test_clients_that_have_waited_in_vain_at_the_same_time_share_a_look_at_redis() -> None:
    looks: list[asyncio.Future[RegistrySnapshot]] = []

    class OneRegistry:
        def now(self) -> float:
            return 100.0

        async def snapshot(self) -> RegistrySnapshot:
            looks.append(asyncio.get_running_loop().create_future())
            return await looks[-1]

    readiness = Readiness(Settings(), roster(), cast(Registry, OneRegistry()))
    gone, *others = [asyncio.create_task(readiness.shortage("appa")) for _ in range(3)]
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.sleep(0)
    looks[0].set_result(RegistrySnapshot({}, {}, {}, {}, 0))
    why = "no appa worker can be chosen: in Redis none is registered"
    assert await asyncio.gather(*others) == [why, why]
    assert len(looks) == 1
