"""What a client that gets no slot is told: of a cap, else why its pool can take nobody, else of the line."""

from unittest import mock

import pytest

from pwgrid.proxy.connect.gateway import Gateway
from pwgrid.proxy.policy.refusal import Refusal, RefusalReason, line_full, waited_in_vain
from pwgrid.proxy.select.queue import Ticket
from pwgrid.settings.model import Settings

IN_VAIN = waited_in_vain(Settings(), "chromium", 4, 2, borrows=False)
FULL = line_full("chromium", "nightly", "grid", 7, 4, 5)


async def told(refusal: Refusal, at_cap: list[str], shortage: str | None) -> Refusal:
    """What the client gets where the queue says this."""
    selector, readiness = mock.Mock(), mock.Mock()
    selector.queue.acquire = mock.AsyncMock(side_effect=refusal)
    selector.caps_reached = mock.AsyncMock(return_value=at_cap)
    readiness.shortage = mock.AsyncMock(return_value=shortage)
    gateway = Gateway(Settings(), mock.Mock(), selector, mock.Mock(), mock.Mock(), readiness)
    caps = {"run:ci/nightly": 3, "token:ci": 9}
    ticket = Ticket("s", "chromium", "chromium", None, "client", 0.0, run="nightly", token="ci", caps=caps)
    with pytest.raises(Refusal) as caught:
        await gateway.slot(ticket)
    return caught.value


async def test_who_waited_in_vain_for_room_under_a_cap_hears_of_the_cap_and_of_its_place_in_line() -> None:
    of_run = await told(IN_VAIN, ["run:ci/nightly"], "no browser starts")
    assert of_run.error.startswith("run 'nightly' has 3 sessions already")
    assert (of_run.status, of_run.reason) == (503, RefusalReason.CAP_REACHED)
    assert of_run.details == {"retryAfterS": 30, "reason": "run cap reached", "queueLength": 4, "position": 2}
    of_token = await told(IN_VAIN, ["token:ci"], None)
    assert of_token.error.startswith("the token ci has 9 live sessions")
    assert (of_token.status, of_token.details) == (429, {"retryAfterS": 5, "maxSessions": 9})


async def test_who_waited_in_vain_for_a_pool_that_takes_nobody_hears_why() -> None:
    found = await told(IN_VAIN, [], "no browser starts")
    assert (found.status, found.error, found.details) == (503, "no browser starts", {"retryAfterS": 5})


async def test_who_only_waited_in_vain_or_found_the_line_full_hears_what_the_queue_says() -> None:
    assert await told(IN_VAIN, [], None) is IN_VAIN
    assert await told(FULL, ["token:ci"], "no browser starts") is FULL
