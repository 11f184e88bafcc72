"""Who waits for whichever comes first, and for the end of what is cancelled, misses nothing."""

import asyncio
import contextlib

import pytest

from pwgrid.common.tasks import end_task, first_of


async def test_a_task_that_swallows_a_cancellation_is_cancelled_again() -> None:
    began = asyncio.Event()

    async def swallows_one() -> None:
        began.set()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        await asyncio.Event().wait()

    task = asyncio.create_task(swallows_one())
    await began.wait()
    async with asyncio.timeout(20):
        await end_task(task)
        await end_task(task)  # again there is nothing to do
    assert task.cancelled()


async def test_what_an_ended_task_raised_is_dropped() -> None:
    async def fails() -> None:
        raise ValueError

    task = asyncio.create_task(fails())
    await asyncio.wait([task])
    await end_task(task)
    assert isinstance(task.exception(), ValueError)


async def ends() -> None:
    await asyncio.sleep(0)


async def fails() -> None:
    await asyncio.sleep(0)
    raise ValueError("a bug")


class Waits:
    """Waits for ever, and says in `has_ended` once it has tidied up."""

    def __init__(self) -> None:
        self.has_ended = False

    async def __call__(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            self.has_ended = True


async def test_the_others_have_ended_when_the_first_one_has() -> None:
    waits = Waits()
    async with asyncio.timeout(20):
        await first_of(waits(), ends())
    assert waits.has_ended


async def test_what_the_first_one_raises_is_raised_once_the_others_have_ended() -> None:
    waits = Waits()
    async with asyncio.timeout(20):
        with pytest.raises(ValueError, match="a bug"):
            await first_of(waits(), fails())
    assert waits.has_ended


async def test_what_one_raises_while_another_ends_well_is_raised() -> None:
    with pytest.raises(ValueError, match="a bug"):
        await first_of(ends(), fails())


async def test_a_wait_that_is_cancelled_ends_all_and_is_no_error() -> None:
    waits = Waits()
    waiting = asyncio.create_task(first_of(waits(), Waits()()))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await end_task(waiting)
    assert waiting.cancelled()
    assert waits.has_ended


async def test_the_first_one_may_be_cancelled_by_others_without_being_an_error() -> None:
    """As all tasks are at the end of a process, in whatever order."""
    task: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def awaits() -> None:
        await task

    waiting = asyncio.create_task(first_of(awaits(), Waits()()))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    async with asyncio.timeout(20):
        await waiting


async def test_time_that_runs_out_meanwhile_is_told_as_that() -> None:
    waits = Waits()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await first_of(waits(), Waits()())
    assert waits.has_ended
