"""Waits for the first of several coroutines, and for the end of a cancelled task."""

import asyncio
from collections.abc import Coroutine
from typing import Any, Final

_CANCEL_AGAIN_S: Final = 0.05


async def first_of(*waits: Coroutine[Any, Any, Any]) -> None:
    """Returns when the first of these ends, or raises what it raised. The others are cancelled, and have ended by then;
    what they raise besides is logged by asyncio."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        for task in tasks:
            await end_task(task)
    for task in tasks:
        # One that was cancelled, as all are when a process stops, has only ended.
        if task in done and not task.cancelled() and (error := task.exception()) is not None:
            raise error


async def end_task(task: "asyncio.Task[Any]") -> None:
    """Cancels the task and returns once it has ended; what it raised is dropped.

    It cancels repeatedly, since a library may swallow a cancellation: redis-py does, in the turn of the loop in which
    it gets its connection.
    """
    while not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=_CANCEL_AGAIN_S)
