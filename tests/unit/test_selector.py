"""Which workers are chosen by nobody for now, and when their clients are asked again. Redis is one worker with room."""

import asyncio
from typing import Any, cast

import pytest

from pwgrid.common.reasons import OfferRefusal
from pwgrid.common.types import Protocol
from pwgrid.proxy.roster import Roster
from pwgrid.proxy.select.claim import Claim
from pwgrid.proxy.select.selector import Selector
from pwgrid.registry.registry import Registry
from pwgrid.settings.model import Settings


class OneWorker:
    """Stands in for a Redis that chooses the worker "w" for everyone who does not exclude it."""

    async def select(self, _browser_type: str, *, exclude: set[str], **_wish: Any) -> str | None:
        return None if "w" in exclude else "w"


@pytest.fixture
async def selector() -> Selector:
    return Selector(Settings(), cast(Registry, OneWorker()), Roster(), ())


def claim(session_id: str) -> Claim:
    return Claim(session_id, "chromium", "chromium", None, "client", deadline=float("inf"))


async def waits(selector: Selector, asks: Claim) -> asyncio.Task[str]:
    """Returns its wait, once the line has been served in vain."""
    before = selector.queue.waiting()
    task = asyncio.create_task(selector.queue.acquire(asks))
    while selector.queue.waiting() == before or selector.queue._serving:
        await asyncio.sleep(0)
    return task


@pytest.mark.parametrize("reason", ["full", "suspect"])
async def test_who_was_refused_by_such_a_worker_gets_its_next_slot_and_nobody_is_offered_to_it_before(
    selector: Selector, reason: str
) -> None:
    """Redis does not know that it is suspect, nor for a moment, as after an outage, that it is full."""
    first, second = claim("s1"), claim("s2")
    assert await selector.queue.acquire(first) == "w"
    selector.not_taken(first, "w", reason)
    tasks = [await waits(selector, each) for each in (first, second)]
    selector.health.freed("w")
    async with asyncio.timeout(30):
        assert await asyncio.gather(*tasks) == ["w", "w"]


async def test_who_was_not_answered_by_a_worker_gets_it_once_it_answers_again(selector: Selector) -> None:
    asks = claim("s1")
    selector.health.silent("w")
    selector.not_taken(asks, "w", OfferRefusal.SILENT)
    task = await waits(selector, asks)
    selector.health.awake("w")
    async with asyncio.timeout(30):
        assert await task == "w"


async def test_a_worker_that_drains_is_not_chosen_again_for_whom_it_refused(selector: Selector) -> None:
    asks = claim("s1")
    selector.not_taken(asks, "w", "draining")
    task = await waits(selector, asks)
    selector.health.freed("w")
    while selector.queue._serving:
        await asyncio.sleep(0)
    assert not task.done()
    task.cancel()


async def test_no_client_of_cdp_is_offered_to_a_worker_of_before_an_upgrade_that_has_none(selector: Selector) -> None:
    """It tells of no protocols. A worker that has only begun has told nothing at all."""
    told = {"id": "w", "browserType": "chromium", "status": "available", "playwrightVersion": "1.65.1"}
    starting = {**told, "status": "starting", "playwrightVersion": None}
    speaks = {**told, "protocols": ["playwright", "cdp"]}
    for workers, chosen in (([told], None), ([speaks], "w"), ([starting], "w")):
        selector._roster.replace({"workers": workers})
        asks = claim("s1")
        asks.protocol = Protocol.CDP
        assert await selector.select(asks) == chosen
        assert await selector.select(claim("s2")) == "w"
    selector._roster.replace({"workers": [told]})
    asks = claim("s3")
    asks.protocol = Protocol.CDP
    assert selector.select_without_redis(asks) is None
    assert selector.select_without_redis(claim("s4")) == "w"
