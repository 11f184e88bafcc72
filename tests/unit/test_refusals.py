"""Refusals as a client gets them."""

import pytest

from pwgrid.proxy.connect import refusals


@pytest.mark.parametrize(
    ("waiting", "others"),
    [(0, "nobody else waits"), (1, "1 other client waits"), (7, "7 other clients wait")],
)
def test_who_waited_in_vain_is_told_how_many_wait_how_to_get_slots_and_when_to_come_back(
    waiting: int, others: str
) -> None:
    refusal = refusals.waited_too_long("firefox", 5.0, waiting)
    assert refusal.error == (
        f"no firefox slot came free within 5 s: {others}; use fewer clients at once, add workers "
        "(pwgrid scale firefox=N) or slots (MAX_CONCURRENT_SESSIONS), or raise WORKER_SELECT_TIMEOUT"
    )
    head = refusals.render(refusal).partition(b"\r\n\r\n")[0].split(b"\r\n")
    assert head[0] == b"HTTP/1.1 503 Service Unavailable"
    assert b"Retry-After: 5" in head
