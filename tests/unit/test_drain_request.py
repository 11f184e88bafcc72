"""A worker's drain: how long its sessions may go on when several want it to end, and why they are cut."""

from __future__ import annotations

import asyncio

import pytest

from pwgrid.common.reasons import EndReason, Reason, WorkerEnd
from pwgrid.common.worker_lifecycle import DrainTime
from pwgrid.worker.drain import Drain, DrainRequest
from pwgrid.worker.holders import LiveSession
from pwgrid.worker.slots import Slots

LONG_S = 3600.0


def with_a_session() -> Slots:
    slots = Slots(5)
    slots.admit(LiveSession("s"))
    return slots


async def test_who_asks_later_may_leave_the_sessions_less_time_and_is_why_they_are_cut() -> None:
    drain, slots = DrainRequest(), with_a_session()
    assert drain.ask(Drain("lifetime limit", LONG_S))
    cut = asyncio.create_task(drain.sessions_end(slots))
    await asyncio.sleep(0)  # it waits
    assert drain.ask(Drain("shutdown", 0.0))
    assert await asyncio.wait_for(cut, 30) is EndReason.DRAIN_TIMEOUT
    assert (drain.limit.reason, drain.outcome()) == ("shutdown", {"cut": 1, "timedOut": True})
    assert (await drain.asked()).reason == "lifetime limit"


async def test_who_asks_later_may_leave_less_time_before_anybody_waits_too() -> None:
    drain = DrainRequest()
    drain.ask(Drain("lifetime limit", LONG_S))
    drain.ask(Drain("browser crashed", 0.0, planned=False, cut=EndReason.BROWSER_CRASHED))
    assert await asyncio.wait_for(drain.sessions_end(with_a_session()), 30) is EndReason.BROWSER_CRASHED
    assert (await drain.asked()).planned


async def test_nobody_gives_them_more_time() -> None:
    drain = DrainRequest()
    drain.ask(Drain("shutdown", 0.0))
    assert not drain.ask(Drain("lifetime limit", LONG_S))
    assert await asyncio.wait_for(drain.sessions_end(with_a_session()), 30) is EndReason.DRAIN_TIMEOUT
    assert drain.limit.reason == "shutdown"


async def test_where_no_session_is_left_nothing_is_cut() -> None:
    drain, slots = DrainRequest(), with_a_session()
    drain.ask(Drain("lifetime limit", LONG_S))
    end = asyncio.create_task(drain.sessions_end(slots))
    await asyncio.sleep(0)
    slots.free("s")
    assert await asyncio.wait_for(end, 30) is None
    assert drain.outcome() == {"cut": 0, "timedOut": False}


@pytest.mark.parametrize("timeout_s", [0.0, LONG_S])
async def test_now_is_now_however_much_time_is_left(timeout_s: float) -> None:
    drain = DrainRequest()
    drain.ask(Drain("operator", timeout_s))
    drain.hurry()
    assert await asyncio.wait_for(drain.sessions_end(with_a_session()), 30) is EndReason.DRAINED_NOW
    assert drain.outcome() == {"cut": 1, "timedOut": False}


@pytest.mark.parametrize(
    ("kind", "within", "waits"),
    [
        (WorkerEnd.LIFETIME, DrainTime.RECYCLE, True),
        (WorkerEnd.MEMORY, DrainTime.RECYCLE, True),
        (WorkerEnd.LAUNCHES, DrainTime.RECYCLE, True),
        (WorkerEnd.TAKEN_OVER, DrainTime.END, True),
        (WorkerEnd.NO_MASTER, DrainTime.END, True),
        (WorkerEnd.OPERATOR, DrainTime.END, False),
        (WorkerEnd.SCALED_DOWN, DrainTime.RECYCLE, True),
        (WorkerEnd.CONFIGURATION, DrainTime.RECYCLE, True),
        (WorkerEnd.SHUTDOWN, DrainTime.END, False),
        (WorkerEnd.OPERATOR, DrainTime.NOW, False),
    ],
)
def test_no_drain_that_somebody_waits_for_waits_for_kept_sessions(
    kind: WorkerEnd, within: DrainTime, *, waits: bool
) -> None:
    assert Drain(Reason(kind), 30.0, within=within).waits_for_kept is waits
