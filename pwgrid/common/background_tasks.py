"""Runs background tasks beside the main task of a process, and tells the process when one fails."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import structlog

log = structlog.get_logger()


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
