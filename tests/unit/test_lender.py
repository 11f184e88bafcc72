"""What the proxy tells a worker once a borrow is answered, or was not."""

import asyncio
from collections.abc import Mapping
from typing import Any, cast
from unittest import mock

import pytest

from pwgrid.proxy.api.leases import _answered
from pwgrid.proxy.lender import LeaseId, Lender, Lent
from pwgrid.proxy.select.queue import Ticket


class Handoffs:
    """Notes what the worker is asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Mapping[str, object]]] = []

    async def ask(self, worker_id: str, question: Mapping[str, object]) -> dict[str, Any]:
        self.asked.append((worker_id, question))
        return {"refused": None}


@pytest.mark.parametrize(
    ("hears_of_answer", "is_gone", "said"),
    [(True, False, ["answered"]), (True, True, ["unanswered"]), (False, False, []), (False, True, [])],
)
async def test_the_worker_hears_whether_the_borrower_was_there_for_the_answer(
    hears_of_answer: bool, is_gone: bool, said: list[str]
) -> None:
    """A worker of an earlier version understands neither."""
    handoffs = Handoffs()
    lender = Lender(mock.Mock(), cast("Any", handoffs))
    ticket = mock.Mock(spec=Ticket, abandoned=is_gone)
    watch = asyncio.create_task(asyncio.Event().wait())
    lent = Lent(LeaseId("aa", "bb"), "/lease/chromium/aa/bb.s", 0.0, hears_of_answer)
    await _answered(lender, lent, ticket, cast("Any", watch))
    assert handoffs.asked == [("aa", {"do": each, "id": "bb"}) for each in said]
    with pytest.raises(asyncio.CancelledError):
        await watch
