"""What the log says of clients that are refused again and again."""

import asyncio
from typing import Any

import pytest
from structlog.testing import capture_logs

from pwgrid.proxy.connect import refusal_log
from pwgrid.proxy.connect.refusal_log import RefusalLog
from pwgrid.proxy.dashboard.feed import RecentEvents
from pwgrid.proxy.policy.refusal import Refusal

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
        ("connect_refused", None, 401, None),
        ("connect_refused", None, 503, None),
        ("connect_refused", None, 401, None),
        ("connects_refused", 999, 401, "10.0.0.1"),
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
        ("connect_refused", None, 401, None),
        ("connects_refused", 2, 401, "10.0.0.1"),
        ("connects_refused", 2, 401, "10.0.0.1"),
        ("connect_refused", None, 401, None),
    ]


async def test_hosts_without_number_share_a_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refusal_log, "MAX_HOSTS", 10)
    counting = RefusalLog()
    with capture_logs() as captured:
        for host in range(100):
            counting.note(NO_TOKEN, f"10.0.0.{host}", f"10.0.0.{host}:1")
        counting.flush()
    assert len(captured) == 12
    assert lines(captured)[-1] == ("connects_refused", 89, 401, "others")


async def test_a_borrow_is_told_as_a_borrow_and_counted_apart() -> None:
    events = RecentEvents(lambda: 1.0)
    counting = RefusalLog(events.refused)
    with capture_logs() as captured:
        counting.note(LATE, "10.0.0.1", "10.0.0.1:1")
        for _ in range(3):
            counting.note(LATE, "10.0.0.1", "10.0.0.1:2", "borrow")
        counting.flush()
    assert lines(captured) == [
        ("connect_refused", None, 503, None),
        ("borrow_refused", None, 503, None),
        ("borrows_refused", 2, 503, "10.0.0.1"),
    ]
    assert [each["text"] for each in events.since(0)] == [
        "a client was refused (503): no slot",
        "a borrow was refused (503): no slot",
        "2 more borrows were refused (503): no slot",
    ]
