"""What the log says of clients that are refused again and again."""

import asyncio
from typing import Any

import pytest
from structlog.testing import capture_logs

from pwgrid.proxy.connect import refusal_log
from pwgrid.proxy.connect.refusal_log import RefusalLog
from pwgrid.proxy.policy.upgrade_request import Refusal

NO_TOKEN, LATE = Refusal(401, "no token"), Refusal(503, "no slot")


def lines(captured: list[Any]) -> list[tuple[Any, ...]]:
    return [(each["event"], each.get("times"), each["status"], each.get("host")) for each in captured]


async def test_the_first_refusal_is_a_line_and_the_next_ones_are_a_count() -> None:
    counting = RefusalLog()
    with capture_logs() as captured:
        for port in range(1000):
            counting.note(NO_TOKEN, "10.0.0.1", f"10.0.0.1:{port}")
        counting.note(LATE, "10.0.0.1", "10.0.0.1:1")
        counting.note(NO_TOKEN, "10.0.0.2", "10.0.0.2:1")
        counting.flush()
        counting.flush()
    assert lines(captured) == [
        ("upgrade_refused", None, 401, None),
        ("upgrade_refused", None, 503, None),
        ("upgrade_refused", None, 401, None),
        ("upgrades_refused", 999, 401, "10.0.0.1"),
    ]


async def test_as_long_as_it_goes_on_there_is_one_line_a_window(monkeypatch: pytest.MonkeyPatch) -> None:
    due: list[Any] = []
    loop = asyncio.get_running_loop()
    monkeypatch.setattr(loop, "call_later", lambda _delay_s, callback, key: due.append((callback, key)))
    counting = RefusalLog()
    with capture_logs() as captured:
        for refusals in (3, 2, 0, 1):
            for _ in range(refusals):
                counting.note(NO_TOKEN, "10.0.0.1", "10.0.0.1:1")
            if due:
                callback, key = due.pop()
                callback(key)
    assert lines(captured) == [
        ("upgrade_refused", None, 401, None),
        ("upgrades_refused", 2, 401, "10.0.0.1"),
        ("upgrades_refused", 2, 401, "10.0.0.1"),
        ("upgrade_refused", None, 401, None),
    ]


async def test_hosts_without_number_share_a_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refusal_log, "MAX_HOSTS", 10)
    counting = RefusalLog()
    with capture_logs() as captured:
        for host in range(100):
            counting.note(NO_TOKEN, f"10.0.0.{host}", f"10.0.0.{host}:1")
        counting.flush()
    assert len(captured) == 12
    assert lines(captured)[-1] == ("upgrades_refused", 89, 401, "others")
