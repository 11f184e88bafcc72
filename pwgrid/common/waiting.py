"""Waiting for whichever comes first, and for the end of what is cancelled. Starts nothing that outlives the wait."""

import asyncio
from collections.abc import Coroutine
from typing import Any, Final

_CANCEL_AGAIN_S: Final = 0.05


async def first_of(*waits: Coroutine[Any, Any, Any]) -> None:
    """Returns when the first of these ends; the others are cancelled."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()


async def end_task(task: "asyncio.Task[Any]") -> None:
    """Cancels the task and returns once it has ended; what it raised is dropped.

    A library may swallow the cancellation: redis-py does, in the turn of the loop in which it gets its connection. Then
    the task waits on, and is cancelled again.
    """
    while not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=_CANCEL_AGAIN_S)
