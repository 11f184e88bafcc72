"""Refusals as a client gets them."""

import json
from typing import Any

import pytest

from pwgrid.proxy.policy.refusal import Refusal, RefusalReason, line_full, no_capacity, stopping, waited_in_vain
from pwgrid.settings.model import Settings
from tests.unit.test_connect_request import decided, headers, policy


def answer(refusal: Refusal) -> tuple[list[bytes], dict[str, Any]]:
    """Status line and headers, and the body."""
    head, _, body = refusal.response().partition(b"\r\n\r\n")
    return head.split(b"\r\n"), json.loads(body)


@pytest.mark.parametrize(
    ("waiting", "others"),
    [(0, "nobody else waits"), (1, "1 other client waits"), (7, "7 other clients wait")],
)
def test_who_waited_in_vain_is_told_how_many_wait_how_to_get_slots_and_when_to_come_back(
    waiting: int, others: str
) -> None:
    head, body = answer(waited_in_vain(Settings(), "firefox", waiting + 1, 1, borrows=False))
    assert body["error"] == (
        f"no firefox slot came free within 5 s: {others}; use fewer clients at once, add workers "
        "(pwgrid scale firefox=N) or slots (MAX_CONCURRENT_SESSIONS), or raise WORKER_SELECT_TIMEOUT"
    )
    assert head[0] == b"HTTP/1.1 503 Service Unavailable"
    assert b"Retry-After: 30" in head


def test_the_body_says_why_how_long_the_line_is_and_where_the_client_stood() -> None:
    _, body = answer(waited_in_vain(Settings(), "firefox", 12, 3, borrows=False))
    del body["error"]
    assert body == {"retryAfterS": 30, "reason": "waited too long", "queueLength": 12, "position": 3}


def test_who_borrows_is_told_of_its_own_settings() -> None:
    _, body = answer(waited_in_vain(Settings(), "firefox", 1, 1, borrows=True))
    assert "within 30 s" in body["error"]
    assert body["error"].endswith("or raise BORROW_QUEUE_TIMEOUT")


@pytest.mark.parametrize(
    ("limit", "reason", "sentence"),
    [
        ("grid", "queue full", "7 clients wait for a slot already: come back later, or add workers"),
        (
            "pool",
            "queue full",
            "7 clients wait to borrow a firefox slot already: come back later, add workers, or raise BORROW_QUEUE_MAX",
        ),
        (
            "run",
            "run full",
            "7 clients wait for a firefox slot in the run 'Smoke 12' already: let it ask for fewer at once, "
            "or raise BORROW_QUEUE_MAX_PER_RUN",
        ),
    ],
)
def test_a_full_line_says_what_it_is_full_of(limit: str, reason: str, sentence: str) -> None:
    head, body = answer(line_full("firefox", "Smoke 12", limit, 7, 20, 4))
    assert b"Retry-After: 30" in head
    assert body == {"error": sentence, "retryAfterS": 30, "reason": reason, "queueLength": 20, "position": 4}


@pytest.mark.parametrize(
    ("refusal", "reason"),
    [
        (Refusal(400, "what?"), "bad request"),
        (Refusal(401, "who?"), "token"),
        (Refusal(403, "from where?"), "forbidden"),
        (Refusal(404, "where?"), "not found"),
        (Refusal(408, "when?"), "slow head"),
        (Refusal(426, "how?"), "no WebSocket"),
        (Refusal(428, "since when?"), "version"),
        (Refusal(431, "how much?"), "head too large"),
        (Refusal(418, "a teapot"), "other"),
        (stopping(), "stopping"),
        (no_capacity("none"), "no capacity"),
    ],
)
def test_each_refusal_is_counted_by_one_of_a_closed_set_of_reasons(refusal: Refusal, reason: str) -> None:
    assert refusal.reason is RefusalReason(reason)


@pytest.mark.parametrize(
    ("target", "without", "reason"),
    [
        ("/?browser=lynx", "", "no such browser"),
        ("/?browser=webkit", "", "no such browser"),
        ("/?browser=chromium&browser=firefox", "", "no such browser"),
        ("/", "sec-websocket-key", "bad handshake"),
        ("/", "upgrade", "no WebSocket"),
        ("/nowhere", "", "not found"),
    ],
)
def test_what_a_request_lacks_is_such_a_reason_too(target: str, without: str, reason: str) -> None:
    with pytest.raises(Refusal) as caught:
        decided(target, headers(without=without), policy())
    assert caught.value.reason is RefusalReason(reason)
