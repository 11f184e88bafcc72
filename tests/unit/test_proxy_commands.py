"""What a proxy writes into Redis when its master tells it of a worker."""

import asyncio
from typing import Any, cast
from unittest import mock

import pytest
from structlog.testing import capture_logs

from pwgrid.common.errors import RegistryUnavailable
from pwgrid.common.tasks import BackgroundTasks
from pwgrid.proxy.main import Proxy

OF_WORKER = {"workerId": "0123abcd", "browserType": "chromium"}

COMMANDS = [
    ("worker_taken_over", "mark_draining", "worker_not_marked_draining"),
    ("leave_drain", "send_drain", "drain_not_written_to_redis"),
]


def proxy_with(call: str, registry_does: Any) -> tuple[Any, BackgroundTasks]:
    """What a command needs of a proxy whose registry does that when `call` is called."""
    tasks = BackgroundTasks(lambda name, error: None)
    made = mock.Mock(spec_set=["registry", "feed", "selector", "handoffs", "_background_tasks", "_write_of_worker"])
    made.registry = mock.Mock(**{call: registry_does})
    made._background_tasks = tasks
    made._write_of_worker = Proxy._write_of_worker.__get__(made)
    return cast(Any, made), tasks


@pytest.mark.parametrize(("command", "call", "event"), COMMANDS)
async def test_while_redis_is_away_a_worker_that_is_not_written_is_named_in_the_log(
    command: str, call: str, event: str
) -> None:
    asked = mock.AsyncMock(side_effect=RegistryUnavailable("away"))
    proxy, tasks = proxy_with(call, asked)
    with capture_logs() as lines:
        Proxy._on_command(proxy, command, OF_WORKER)
        await asyncio.wait(tasks._tasks)
    asked.assert_awaited_once_with("chromium", "0123abcd")
    assert lines == [{"event": event, "log_level": "warning", "worker": "0123abcd", "error": "away"}]


@pytest.mark.parametrize(("command", "call", "event"), COMMANDS)
async def test_a_command_in_the_turn_in_which_the_proxy_ends_leaves_nothing_behind(
    command: str, call: str, event: str
) -> None:
    """Python itself would complain on stderr of a call that was made and is never waited for."""

    async def write(browser_type: str, worker_id: str) -> None:
        raise AssertionError(event)

    proxy, tasks = proxy_with(call, write)
    Proxy._on_command(proxy, command, OF_WORKER)
    (task,) = tasks._tasks
    tasks.cancel_all_but()
    await asyncio.wait([task])
    assert task.cancelled()
