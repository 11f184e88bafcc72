"""Tasks of asyncio: runs them in the background of a process, which hears when one fails; waits for the first of
several, and for the end of a cancelled one."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

import structlog

log = structlog.get_logger()

_CANCEL_INTERVAL_S: Final = 0.05


class BackgroundTasks:
    """Keeps each task until it ends. When one fails, logs that and calls `on_failure(name, error)`."""

    def __init__(self, on_failure: Callable[[str, BaseException], None]) -> None:
        self._on_failure = on_failure
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Runs `work` as a task until it ends or is cancelled."""
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def cancel_all_but(self, *names: str) -> None:
        for task in self._tasks:
            if task.get_name() not in names:
                task.cancel()

    def cancel_named(self, name: str) -> None:
        for task in self._tasks:
            if task.get_name() == name:
                task.cancel()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("background_task_failed", task=task.get_name(), error=repr(error))
            self._on_failure(task.get_name(), error)


async def first_of(*waits: Coroutine[Any, Any, Any]) -> None:
    """Waits for the first of these to end, and raises what it raised. By then the others have been cancelled and have
    ended, too; asyncio logs what they raised."""
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
        await asyncio.wait([task], timeout=_CANCEL_INTERVAL_S)
