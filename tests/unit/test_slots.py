"""The worker's slots: who is admitted, who is not, and what counts."""

import asyncio

import pytest

from pwgrid.common.worker_lifecycle import WorkerStatus
from pwgrid.worker.policy.admission import Offer
from pwgrid.worker.slots import MOST_RUNS, LiveSession, Slots

OPEN = WorkerStatus.AVAILABLE


async def test_a_worker_admits_as_many_sessions_as_it_has_slots() -> None:
    slots = Slots(2)
    assert slots.admit(Offer("a", 9), OPEN, 0) is None
    assert slots.admit(Offer("b", 9), OPEN, 0) is None
    assert slots.admit(Offer("c", 9), OPEN, 0) == "full"
    slots.free("a")
    assert slots.admit(Offer("c", 9), OPEN, 0) is None
    assert slots.lifetime == 3


@pytest.mark.parametrize("status", [status for status in WorkerStatus if status not in (OPEN, WorkerStatus.SPARE)])
async def test_only_an_available_worker_admits(status: WorkerStatus) -> None:
    assert Slots(2).admit(Offer("a", 9), status, 0) == "draining"


async def test_a_spare_that_was_chosen_admits() -> None:
    slots = Slots(1)
    assert slots.admit(Offer("a", 9), WorkerStatus.SPARE, 0) is None
    assert slots.admit(Offer("b", 9), WorkerStatus.SPARE, 0) == "full"


async def test_a_late_offer_is_refused_because_another_worker_has_the_client_by_then() -> None:
    assert Slots(2).admit(Offer("a", 9.0), OPEN, 9.0) == "late"


async def test_a_session_that_the_browser_server_did_not_get_has_never_been() -> None:
    slots = Slots(1)
    slots.admit(Offer("a", 9), OPEN, 0)
    slots.take_back("a")
    assert (slots.lifetime, slots.live) == (0, {})
    slots.take_back("a")
    assert slots.lifetime == 0


async def test_a_free_slot_is_told_once_and_only_after_an_offer_found_none() -> None:
    told: list[int] = []
    slots = Slots(1, on_freed=lambda: told.append(slots.taken))
    slots.admit(Offer("a", 9), OPEN, 0)
    slots.free("a")
    assert told == [0], "its predecessor may have refused an offer"
    slots.admit(Offer("b", 9), OPEN, 0)
    slots.free("b")
    assert told == [0]
    slots.admit(Offer("c", 9), OPEN, 0)
    assert slots.admit(Offer("d", 9), OPEN, 0) == "full"
    assert slots.hold(Offer("lease:e", 9), OPEN, 0) == "full"
    slots.free("c")
    assert told == [0, 0]


async def test_the_end_of_a_session_counts_once() -> None:
    slots = Slots(1)
    slots.admit(Offer("a", 9), OPEN, 0)
    assert slots.free("a") is not None
    assert slots.free("a") is None


async def test_a_worker_admits_nobody_beyond_its_life() -> None:
    """While Redis is away nobody else counts it."""
    slots = Slots(5, max_lifetime=2)
    assert [slots.admit(Offer(name, 9), OPEN, 0) for name in "abc"] == [None, None, "used up"]
    slots.free("a")
    assert slots.admit(Offer("d", 9), OPEN, 0) == "used up"
    slots.take_back("b")
    assert slots.admit(Offer("e", 9), OPEN, 0) is None


async def test_who_was_leased_before_the_drain_is_admitted_and_waited_for() -> None:
    slots = Slots(3)
    slots.admit(Offer("a", 9), OPEN, 0)
    slots.expect({"a": 60.0, "b": 60.0, "c": 60.0, "d": 0.0})
    empty = asyncio.create_task(slots.empty())
    draining = WorkerStatus.DRAINING
    assert [slots.admit(Offer(name, 9), draining, 0) for name in "bex"] == [None, "draining", "draining"]
    assert slots.admit(Offer("c", 0), draining, 0) == "late"
    assert slots.admit(Offer("c", 9), WorkerStatus.STOPPED, 0) == "draining"
    slots.free("a")
    slots.free("b")
    await asyncio.sleep(0)
    assert not empty.done()
    assert slots.admit(Offer("c", 9), draining, 0) is None
    slots.take_back("c")
    async with asyncio.timeout(20):
        await empty  # once the lease of d is over, too
    assert slots.admit(Offer("d", 9), draining, 0) == "draining"


async def test_empty_waits_for_the_last_session() -> None:
    slots = Slots(2)
    slots.admit(Offer("a", 9), OPEN, 0)
    slots.admit(Offer("b", 9), OPEN, 0)
    empty = asyncio.create_task(slots.empty())
    slots.free("a")
    await asyncio.sleep(0)
    assert not empty.done()
    slots.free("b")
    await empty


async def test_who_has_the_slots_is_told_as_clients_have_said_it() -> None:
    slots = Slots(9)
    smoke = {"name": "Smoke 12", "labels": "AppA:Chromium:UAT"}
    assert slots.hold(Offer("lease:l1", 9, told=smoke), OPEN, 0) is None
    slots.admit_with_lease(Offer("l1~1", 9, told=smoke, lease_id="l1"))  # has no slot of its own
    for session_id, told in (("a", smoke), ("b", {"run": "r1"}), ("c", {}), ("d", {"token": "ci"})):
        assert slots.admit(Offer(session_id, 9, told=told), OPEN, 0) is None
    assert slots.taken == 5
    assert slots.runs() == [
        {"name": "Smoke 12", "run": "", "labels": "AppA:Chromium:UAT", "slots": 2},
        {"name": "", "run": "r1", "labels": "", "slots": 1},
    ]
    for index in range(30):
        slots.adopt_held(LiveSession(f"lease:{index}", told={"run": str(index)}))
    assert len(slots.runs()) == MOST_RUNS
