"""What the proxy tells a worker once a borrow is answered, or was not."""

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Any, cast
from unittest import mock

import pytest

from pwgrid.common.session_lifecycle import HeldAs
from pwgrid.proxy.api.leases import _lent
from pwgrid.proxy.connect import grant_lease as lending
from pwgrid.proxy.connect.gateway import Gateway
from pwgrid.proxy.connect.grant_lease import GrantedLease, LeaseId, answered, lend
from pwgrid.proxy.select.claim import Claim


class Handoffs:
    """Notes what the worker is asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Mapping[str, object]]] = []

    async def ask(self, worker_id: str, question: Mapping[str, object]) -> dict[str, Any]:
        self.asked.append((worker_id, question))
        return {"refused": None}


@pytest.mark.parametrize(("is_gone", "said"), [(False, "answered"), (True, "unanswered")])
async def test_the_worker_hears_whether_the_borrower_was_there_for_the_answer(is_gone: bool, said: str) -> None:
    handoffs = Handoffs()
    claim = mock.Mock(spec=Claim, abandoned=is_gone)
    watch = asyncio.create_task(asyncio.Event().wait())
    lent = GrantedLease(LeaseId("aa", "bb"), "/lease/chromium/aa/bb.s", 0.0)
    gateway = mock.Mock(ask=handoffs.ask)
    gateway.ask_worker = partial(Gateway.ask_worker, gateway)
    await answered(gateway, lent, claim, cast("Any", watch))
    assert handoffs.asked == [("aa", {"do": said, "id": "bb"})]
    with pytest.raises(asyncio.CancelledError):
        await watch


async def test_a_client_that_leaves_as_its_lease_comes_is_known_to_be_gone_before_the_answer() -> None:
    loop = asyncio.get_running_loop()
    lease_comes, client_goes = loop.create_future(), loop.create_future()
    claim = mock.Mock(spec=Claim, abandoned=False)

    async def watched() -> None:
        await client_goes
        claim.abandoned = True

    async def answers() -> bool:
        assert await _lent(lease_comes, watch) is lent
        return bool(claim.abandoned)

    lent = GrantedLease(LeaseId("aa", "bb"), "/lease/chromium/aa/bb.s", 0.0)
    watch, answering = asyncio.create_task(watched()), asyncio.create_task(answers())
    await asyncio.sleep(0)
    lease_comes.set_result(lent)
    client_goes.set_result(None)
    assert await answering


async def test_a_lease_lasts_from_its_slot_on_not_from_the_begin_of_the_wait_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [1000.0]
    monkeypatch.setattr(lending.time, "time", lambda: now[0])
    handoffs = Handoffs()
    gateway = mock.Mock(ask=handoffs.ask)
    gateway.ask_worker = partial(Gateway.ask_worker, gateway)
    gateway.closed.return_value = None

    async def a_slot_after_half_a_minute(_claim: Claim, _attempt: object) -> str:
        now[0] += 30.0
        return "aa"

    gateway.slot = a_slot_after_half_a_minute
    gateway.place = partial(Gateway.place, gateway)
    claim = Claim(HeldAs.LEASE, "chromium", "chromium", None, "1.2.3.4:5", deadline=0.0, session_id="bb")
    lent = await lend(gateway, claim, 60.0)
    assert lent.expires_at == 1090.0
    assert handoffs.asked[0][1]["expiresAt"] == 1090.0
