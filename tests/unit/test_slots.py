"""The worker's slots and its journal of registry writes."""

import asyncio

import pytest

from grid.core.admission import Offer
from grid.core.lifecycle import WorkerStatus
from grid.errors import RegistryUnavailable
from grid.registry.resp import RegistryError
from grid.worker.sessions import Journal, Slots

OPEN = WorkerStatus.AVAILABLE


async def test_a_worker_admits_as_many_sessions_as_it_has_slots() -> None:
    slots = Slots(2)
    assert slots.admit(Offer("a", 9), "client", OPEN, 0) is None
    assert slots.admit(Offer("b", 9), "client", OPEN, 0) is None
    assert slots.admit(Offer("c", 9), "client", OPEN, 0) == "full"
    slots.end("a")
    assert slots.admit(Offer("c", 9), "client", OPEN, 0) is None
    assert slots.lifetime == 3


@pytest.mark.parametrize("status", [status for status in WorkerStatus if status is not OPEN])
async def test_only_an_available_worker_admits(status: WorkerStatus) -> None:
    assert Slots(2).admit(Offer("a", 9), "client", status, 0) == "draining"


async def test_a_late_offer_is_refused_because_another_worker_has_the_client_by_then() -> None:
    assert Slots(2).admit(Offer("a", 9.0), "client", OPEN, 9.0) == "late"


async def test_a_session_that_the_browser_server_did_not_get_has_never_been() -> None:
    slots = Slots(1)
    slots.admit(Offer("a", 9), "client", OPEN, 0)
    slots.take_back("a")
    assert (slots.lifetime, slots.live) == (0, {})
    slots.take_back("a")
    assert slots.lifetime == 0


async def test_the_end_of_a_session_counts_once() -> None:
    slots = Slots(1)
    slots.admit(Offer("a", 9), "client", OPEN, 0)
    assert slots.end("a") is not None
    assert slots.end("a") is None


async def test_empty_waits_for_the_last_session() -> None:
    slots = Slots(2)
    slots.admit(Offer("a", 9), "client", OPEN, 0)
    slots.admit(Offer("b", 9), "client", OPEN, 0)
    empty = asyncio.create_task(slots.empty())
    slots.end("a")
    await asyncio.sleep(0)
    assert not empty.done()
    slots.end("b")
    await empty


class Registry:
    """Stands in for Redis: it can be away."""

    def __init__(self) -> None:
        self.away = False
        self.written: list[str] = []

    async def write(self, what: str) -> None:
        if self.away:
            raise RegistryUnavailable("away")
        self.written.append(what)


async def test_a_write_that_redis_will_never_take_does_not_block_the_others() -> None:
    registry, journal = Registry(), Journal()

    async def poison() -> None:
        raise RegistryError("WRONGTYPE")

    registry.away = True
    journal.write(lambda: registry.write("1"))
    await journal.settle()
    journal.write(poison)
    journal.write(lambda: registry.write("2"))
    registry.away = False
    assert await journal.replay()
    assert registry.written == ["1", "2"]


async def test_two_replays_at_once_make_each_write_once() -> None:
    registry, journal = Registry(), Journal()
    registry.away = True
    for what in "123":
        journal.write(lambda what=what: registry.write(what))  # type: ignore[misc]
    await journal.settle()
    registry.away = False
    assert await asyncio.gather(journal.replay(), journal.replay()) == [True, True]
    assert registry.written == list("123")


async def test_writes_are_kept_in_order_while_redis_is_away_and_replayed_before_newer_ones() -> None:
    registry, journal = Registry(), Journal()
    journal.write(lambda: registry.write("1"))
    await journal.settle()
    registry.away = True
    for what in "23":
        journal.write(lambda what=what: registry.write(what))  # type: ignore[misc]
    await journal.settle()
    assert not await journal.replay()
    registry.away = False
    journal.write(lambda: registry.write("4"))
    assert await journal.replay()
    journal.write(lambda: registry.write("5"))
    await journal.settle()
    assert registry.written == list("12345")


async def test_a_write_is_done_only_once_redis_has_it() -> None:
    registry, journal = Registry(), Journal()
    done: list[str] = []
    registry.away = True
    journal.write(lambda: registry.write("1"), lambda: done.append("1"))
    await journal.settle()
    journal.write(lambda: registry.write("2"), lambda: done.append("2"))
    assert (await journal.replay(), done) == (False, [])
    registry.away = False
    assert (await journal.replay(), done) == (True, ["1", "2"])
    journal.write(lambda: registry.write("3"), lambda: done.append("3"))
    await journal.settle()
    assert done == ["1", "2", "3"]
