"""What the proxy tells a worker once a borrow is answered, or was not."""

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Any, cast
from unittest import mock

import pytest

from pwgrid.proxy.api import leases
from pwgrid.proxy.api.leases import GrantedLease, LeaseId, _lent, answered, lend
from pwgrid.proxy.connect.gateway import Gateway
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
    ticket = mock.Mock(spec=Ticket, abandoned=is_gone)
    watch = asyncio.create_task(asyncio.Event().wait())
    lent = GrantedLease(LeaseId("aa", "bb"), "/lease/chromium/aa/bb.s", 0.0, hears_of_answer)
    gateway = mock.Mock(handoffs=handoffs)
    gateway.ask_worker = partial(Gateway.ask_worker, gateway)
    await answered(gateway, lent, ticket, cast("Any", watch))
    assert handoffs.asked == [("aa", {"do": each, "id": "bb"}) for each in said]
    with pytest.raises(asyncio.CancelledError):
        await watch


async def test_a_client_that_leaves_as_its_lease_comes_is_known_to_be_gone_before_the_answer() -> None:
    loop = asyncio.get_running_loop()
    lease_comes, client_goes = loop.create_future(), loop.create_future()
    ticket = mock.Mock(spec=Ticket, abandoned=False)

    async def watched() -> None:
        await client_goes
        ticket.abandoned = True

    async def answers() -> bool:
        assert await _lent(lease_comes, watch) is lent
        return bool(ticket.abandoned)

    lent = GrantedLease(LeaseId("aa", "bb"), "/lease/chromium/aa/bb.s", 0.0, hears_of_answer=True)
    watch, answering = asyncio.create_task(watched()), asyncio.create_task(answers())
    await asyncio.sleep(0)
    lease_comes.set_result(lent)
    client_goes.set_result(None)
    assert await answering


async def test_a_lease_lasts_from_its_slot_on_not_from_the_begin_of_the_wait_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [1000.0]
    monkeypatch.setattr(leases.time, "time", lambda: now[0])
    handoffs = Handoffs()
    gateway = mock.Mock(handoffs=handoffs)
    gateway.ask_worker = partial(Gateway.ask_worker, gateway)
    gateway.closed.return_value = None

    async def a_slot_after_half_a_minute(_ticket: Ticket, _attempt: object) -> str:
        now[0] += 30.0
        return "aa"

    gateway.slot = a_slot_after_half_a_minute
    ticket = Ticket("bb", "chromium", "chromium", None, "1.2.3.4:5", deadline=0.0)
    lent = await lend(gateway, ticket, 60.0)
    assert lent.expires_at == 1090.0
    assert handoffs.asked[0][1]["expiresAt"] == 1090.0
