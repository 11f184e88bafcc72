"""The end of a task that is cancelled."""

import asyncio
import contextlib

from pwgrid.common.waiting import end_task


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
