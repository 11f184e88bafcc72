"""The worker's slots: who is admitted, who is not, and what counts."""

import asyncio
import math
from collections.abc import Callable

import pytest

from pwgrid.common.reasons import OfferRefusal
from pwgrid.common.worker_lifecycle import WorkerStatus
from pwgrid.worker.holders import Lease, LiveSession
from pwgrid.worker.slots import MOST_RUNS, Slots

OPEN = WorkerStatus.AVAILABLE


def open_slots(slots: int, max_lifetime: float = math.inf, on_freed: Callable[[], None] = lambda: None) -> Slots:
    opened = Slots(slots, max_lifetime, on_freed)
    opened.status = OPEN
    return opened


def offer(slots: Slots, session_id: str, deadline: float = 9.0, **told: str) -> OfferRefusal | None:
    """A proxy offers a session at second 0."""
    refused = slots.refusal(session_id, deadline, 0.0)
    if refused is None:
        slots.admit(LiveSession(session_id, client_fields=told))
    return refused


async def test_a_worker_admits_as_many_sessions_as_it_has_slots() -> None:
    slots = open_slots(2)
    assert offer(slots, "a") is None
    assert offer(slots, "b") is None
    assert offer(slots, "c") == "full"
    slots.free("a")
    assert offer(slots, "c") is None
    assert slots.lifetime == 3


@pytest.mark.parametrize("status", [status for status in WorkerStatus if status not in (OPEN, WorkerStatus.SPARE)])
async def test_only_an_available_worker_admits(status: WorkerStatus) -> None:
    slots = Slots(2)
    slots.status = status
    assert offer(slots, "a") == "draining"


async def test_a_spare_that_was_chosen_admits() -> None:
    slots = open_slots(1)
    slots.status = WorkerStatus.SPARE
    assert offer(slots, "a") is None
    assert offer(slots, "b") == "full"


async def test_a_late_offer_is_refused_because_another_worker_has_the_client_by_then() -> None:
    assert open_slots(2).refusal("a", 9.0, 9.0) == "late"


async def test_a_session_that_the_browser_server_did_not_get_has_never_been() -> None:
    slots = open_slots(1)
    offer(slots, "a")
    slots.take_back("a")
    assert (slots.lifetime, slots.live) == (0, {})
    slots.take_back("a")
    assert slots.lifetime == 0


OWN = {"lifetime": "0"}
"""What a proxy tells of a client with a browser of its own beside the shared one."""


async def test_an_own_browser_takes_a_slot_and_none_of_the_lifetime() -> None:
    slots = open_slots(2, max_lifetime=1)
    assert offer(slots, "a", **OWN) is None
    assert (slots.taken, slots.lifetime, slots.is_used_up) == (1, 0, False)
    slots.launched(slots.live["a"])
    slots.take_back("a")
    assert (slots.taken, slots.lifetime, slots.launches) == (0, 0, 1)
    offer(slots, "b")
    assert slots.is_used_up
    slots.take_back("b")
    assert slots.lifetime == 0


async def test_each_own_browser_counts_once_towards_the_lifetime_or_among_the_launches() -> None:
    slots = open_slots(9)
    offer(slots, "own beside a shared one", **OWN)
    offer(slots, "of a pool in which each has one")
    slots.hold(Lease("plain", digest="", expires_at=9.0))
    slots.hold(Lease("of own browsers", digest="", expires_at=9.0, client_fields=OWN))
    for lease_id in (*slots.held,):
        slots.admit(LiveSession(f"{lease_id}: first", lease_id=lease_id))
        slots.admit(LiveSession(f"{lease_id}: second", lease_id=lease_id))
    assert (slots.taken, slots.lifetime) == (4, 2)
    for session in slots.live.values():
        slots.launched(session)
    assert slots.launches == 5
    slots.take_back("of own browsers")
    assert slots.lifetime == 2


async def test_a_free_slot_is_told_once_and_only_after_an_offer_found_none() -> None:
    told: list[int] = []
    slots = open_slots(1, on_freed=lambda: told.append(slots.taken))
    offer(slots, "a")
    slots.free("a")
    assert told == [0], "its predecessor may have refused an offer"
    offer(slots, "b")
    slots.free("b")
    assert told == [0]
    offer(slots, "c")
    assert offer(slots, "d") == "full"
    assert slots.refusal("e", 9, 0) == "full"
    slots.free("c")
    assert told == [0, 0]


async def test_a_suspect_worker_admits_nobody_and_tells_those_whom_it_refused_when_it_is_trusted_again() -> None:
    told: list[int] = []
    slots = open_slots(2, on_freed=lambda: told.append(slots.taken))
    offer(slots, "a")
    slots.suspect("no page")
    slots.suspect("the browser does not answer")
    assert [offer(slots, "b"), slots.refusal("c", 9, 0)] == ["suspect", "suspect"]
    slots.suspect(None)
    assert told == [1]
    slots.suspect("no page")
    slots.suspect(None)
    assert told == [1], "nobody was refused"
    assert offer(slots, "b") is None
    slots.suspect("no page")
    assert offer(slots, "d") == "suspect"
    slots.suspect(None)
    assert told == [1], "there is no slot"
    slots.free("a")
    assert told == [1, 1]


async def test_the_end_of_a_session_counts_once() -> None:
    slots = open_slots(1)
    offer(slots, "a")
    assert slots.free("a") is not None
    assert slots.free("a") is None


async def test_a_worker_admits_nobody_beyond_its_life() -> None:
    """While Redis is away nobody else counts it."""
    slots = open_slots(5, max_lifetime=2)
    assert [offer(slots, name) for name in "abc"] == [None, None, "used up"]
    slots.free("a")
    assert offer(slots, "d") == "used up"
    slots.take_back("b")
    assert offer(slots, "e") is None


async def test_who_was_leased_before_the_drain_is_admitted_and_waited_for() -> None:
    slots = open_slots(3)
    offer(slots, "a")
    slots.expect({"a": 60.0, "b": 60.0, "c": 60.0, "d": 0.0})
    empty = asyncio.create_task(slots.empty())
    slots.status = WorkerStatus.DRAINING
    assert [offer(slots, name) for name in "bex"] == [None, "draining", "draining"]
    assert offer(slots, "c", 0) == "late"
    slots.status = WorkerStatus.STOPPED
    assert offer(slots, "c") == "draining"
    slots.status = WorkerStatus.DRAINING
    slots.free("a")
    slots.free("b")
    await asyncio.sleep(0)
    assert not empty.done()
    assert offer(slots, "c") is None
    slots.take_back("c")
    async with asyncio.timeout(20):
        await empty  # once the lease of d is over, too
    assert offer(slots, "d") == "draining"


async def test_empty_waits_for_the_last_session() -> None:
    slots = open_slots(2)
    offer(slots, "a")
    offer(slots, "b")
    empty = asyncio.create_task(slots.empty())
    slots.free("a")
    await asyncio.sleep(0)
    assert not empty.done()
    slots.free("b")
    await empty


async def test_who_has_the_slots_is_told_as_clients_have_said_it() -> None:
    slots = open_slots(9)
    smoke = {"name": "Smoke 12", "labels": "AppA:Chromium:UAT"}
    slots.hold(Lease("l1", client_fields=smoke, digest="", expires_at=9.0))
    slots.admit(LiveSession("s1", client_fields=smoke, lease_id="l1"))  # has no slot of its own
    for session_id, told in (("a", smoke), ("b", {"run": "r1"}), ("c", {}), ("d", {"token": "ci"})):
        assert offer(slots, session_id, **told) is None
    assert slots.taken == 5
    assert slots.runs() == [
        {"name": "Smoke 12", "run": "", "labels": "AppA:Chromium:UAT", "slots": 2},
        {"name": "", "run": "r1", "labels": "", "slots": 1},
    ]
    for index in range(30):
        slots.hold(Lease(f"l{index}", client_fields={"run": str(index)}, digest="", expires_at=9.0))
    assert len(slots.runs()) == MOST_RUNS
