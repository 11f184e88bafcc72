"""When a browser and its server are suspected, sick or hung. The browser server here answers as it is told."""

import asyncio
import itertools
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

import pytest

from pwgrid.common.tasks import end_task
from pwgrid.control.frozen_peer import LATE_S
from pwgrid.settings.model import Settings
from pwgrid.worker.browser import health
from pwgrid.worker.browser.health import BUSY_TRIES, CANARY_TRIES, Asked, BrowserHealth, CanaryResult, HealthTimes
from pwgrid.worker.browser.server import BrowserServer

WELL, SICK = CanaryResult(True, "", 20), CanaryResult(False, "no page", 30)
NEVER = 1000.0
TIMES = HealthTimes(silent_s=NEVER, ask_s=0.0, sign_s=NEVER, canary_interval_s=NEVER, canary_timeout_s=10.0, try_s=5.0)
BOUND_S = 30.0
LATE = CanaryResult(False, "no page in time", 5000)
NOT_BUSY = itertools.repeat(0.0)
NOT_TOLD = itertools.repeat(None)
BUSY = itertools.count(step=5.0)
"""For how long the host was short of processors, looked at before and after each try: all of it."""

Answer = asyncio.Future[None]


class Server:
    """Answers a question when a test says so, and the canary by a list."""

    def __init__(self, *results: CanaryResult, ends_after: int = 100) -> None:
        self.asked: dict[Asked, asyncio.Queue[Answer]] = {who: asyncio.Queue() for who in Asked}
        self.tried: asyncio.Queue[float] = asyncio.Queue()
        """The timeouts of the canaries."""
        self.browser_heard_at = 0.0
        self._results = list(results)
        self._ends_after = ends_after

    @property
    def is_gone(self) -> bool:
        return self.tried.qsize() >= self._ends_after

    @contextmanager
    def _ask(self, who: Asked) -> Iterator[Answer]:
        answer: Answer = asyncio.get_running_loop().create_future()
        self.asked[who].put_nowait(answer)
        yield answer

    def ping(self) -> Any:
        return self._ask(Asked.SERVER)

    def ask_browser(self) -> Any:
        return self._ask(Asked.BROWSER)

    async def canary(self, timeout_s: float) -> CanaryResult:
        self.tried.put_nowait(timeout_s)
        if not self._results:
            await asyncio.Event().wait()
        return self._results.pop(0)


class Watched(BrowserHealth):
    """Notes each suspicion, and the end of one."""

    def __init__(self, server: Server, short_of_cpu_s: Iterator[float | None] = NOT_BUSY, **times: float) -> None:
        self.suspected: asyncio.Queue[str | None] = asyncio.Queue()
        times_of_it = replace(TIMES, **times)
        super().__init__(
            cast(BrowserServer, server), times_of_it, self.suspected.put_nowait, lambda: next(short_of_cpu_s)
        )

    async def next(self) -> str | None:
        async with asyncio.timeout(BOUND_S):
            return await self.suspected.get()


async def found(watched: Watched) -> tuple[str | None, list[CanaryResult]]:
    tried: list[CanaryResult] = []
    async with asyncio.timeout(BOUND_S):
        return await watched.until_sick(tried.append), tried


# The times


@pytest.mark.parametrize("threshold", [10.0, 15.0, 30.0, 300.0])
def test_a_sign_and_all_tries_after_it_take_less_than_the_threshold(threshold: float) -> None:
    times = HealthTimes.of(Settings(worker_lost_threshold=threshold))
    assert times.sign_s + CANARY_TRIES * times.try_s < threshold
    assert times.ask_s + times.sign_s < threshold / 2, "it is suspected long before it is hung"
    assert times.try_s <= times.canary_timeout_s


def test_a_very_short_threshold_does_not_make_a_busy_host_look_like_a_sick_browser() -> None:
    times = HealthTimes.of(Settings(worker_lost_threshold=0.1))
    assert (times.silent_s, times.sign_s, times.try_s) == (3.0, 2.0, 2.0)


# Silence


@pytest.mark.parametrize("who", Asked)
async def test_who_leaves_a_question_unanswered_is_suspected_and_trusted_again_when_it_answers(who: Asked) -> None:
    server = Server()
    watched = Watched(server, sign_s=0.02)
    task = asyncio.create_task(watched.until_hung(who))
    answer = await server.asked[who].get()
    assert await watched.next() == f"the {who} does not answer"
    answer.set_result(None)
    while (suspicion := await watched.next()) is not None:
        assert suspicion == f"the {who} does not answer"  # said again while it lasts
    await end_task(task)


@pytest.mark.parametrize("who", Asked)
async def test_who_answers_nothing_for_too_long_is_hung(who: Asked) -> None:
    server = Server()
    task = asyncio.create_task(Watched(server, silent_s=0.1).until_hung(who))
    (await server.asked[who].get()).set_result(None)
    async with asyncio.timeout(BOUND_S):
        await task
    assert server.asked[who].qsize() == 1, "one question at a time"


async def test_a_browser_that_says_something_else_meanwhile_is_busy_and_not_hung() -> None:
    server, loop = Server(), asyncio.get_running_loop()
    watched = Watched(server, silent_s=0.2, sign_s=0.02)
    task = asyncio.create_task(watched.until_hung(Asked.BROWSER))
    until = loop.time() + 0.5
    while loop.time() < until:
        server.browser_heard_at = loop.time()
        await asyncio.sleep(0.01)
    assert not task.done()
    assert await watched.next() == "the browser does not answer"
    async with asyncio.timeout(BOUND_S):
        await task


async def test_nothing_is_said_of_the_browser_while_its_server_is_silent() -> None:
    server = Server()
    watched = Watched(server, silent_s=0.1, sign_s=0.02)
    watched._doubt(Asked.SERVER, "the browser server does not answer")
    task = asyncio.create_task(watched.until_hung(Asked.BROWSER))
    await server.asked[Asked.BROWSER].get()
    await asyncio.sleep(0.3)
    assert not task.done()
    watched._trust(Asked.SERVER)
    async with asyncio.timeout(BOUND_S):
        await task


async def test_who_answered_while_the_worker_stood_still_is_neither_hung_nor_suspected() -> None:
    limit_s = 0.4
    server = Server()
    watched = Watched(server, silent_s=limit_s, sign_s=limit_s / 2)
    task = asyncio.create_task(watched.until_hung(Asked.BROWSER))
    answer = await server.asked[Asked.BROWSER].get()
    # The loop stands still, as on a host that does. Its timers come before what its sockets have got meanwhile.
    time.sleep(limit_s + LATE_S + 0.1)
    asyncio.get_running_loop().call_later(limit_s / 8, answer.set_result, None)
    async with asyncio.timeout(BOUND_S):
        await server.asked[Asked.BROWSER].get()
    assert not task.done()
    assert watched.suspected.empty()
    await end_task(task)


# The canary


async def test_two_tries_in_vain_are_a_sickness_and_one_is_not() -> None:
    watched = Watched(Server(WELL, SICK, WELL, SICK, SICK), canary_interval_s=0.001)
    assert await found(watched) == ("no page", [WELL, SICK, WELL, SICK, SICK])


async def test_nobody_is_admitted_from_the_first_try_in_vain_until_one_succeeds() -> None:
    watched = Watched(Server(SICK, WELL, ends_after=3), canary_interval_s=0.001)
    task = asyncio.create_task(found(watched))
    assert [await watched.next(), await watched.next()] == ["the canary failed: no page", None]
    await end_task(task)


async def test_a_sign_starts_the_canary_at_once_and_keeps_clients_away_until_it_has_succeeded() -> None:
    server = Server(WELL)
    watched = Watched(server)
    task = asyncio.create_task(found(watched))
    watched.sign("newPage is unanswered")
    watched.sign("newPage is unanswered")
    assert [await watched.next(), await watched.next()] == ["newPage is unanswered", None]
    assert server.tried.get_nowait() == TIMES.try_s
    assert server.tried.empty(), "one try answers all signs before it"
    await end_task(task)


async def test_a_page_that_makes_signs_keeps_nobody_away_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(WELL)
    watched = Watched(server)
    task = asyncio.create_task(found(watched))
    watched.sign("a page")
    assert [await watched.next(), await watched.next()] == ["a page", None]
    monkeypatch.setattr(health, "REST_S", 0.0)
    watched.sign("a page")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(watched.suspected.get(), 0.2)
    await end_task(task)


async def test_without_an_interval_only_a_sign_starts_the_canary() -> None:
    server = Server(SICK, SICK)
    watched = Watched(server, canary_interval_s=0.0)
    task = asyncio.create_task(found(watched))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(server.tried.get(), 0.1)
    watched.sign("a page's process: failed to launch")
    assert await task == ("no page", [SICK, SICK])


@pytest.mark.parametrize(
    ("result", "short_of_cpu_s", "tries"),
    [
        (LATE, BUSY, CANARY_TRIES + BUSY_TRIES),
        (LATE, NOT_BUSY, CANARY_TRIES),
        (LATE, NOT_TOLD, CANARY_TRIES),
        (SICK, BUSY, CANARY_TRIES),  # it answered, and in time
    ],
)
async def test_a_browser_that_is_late_gets_some_more_tries_where_its_host_is_short_of_processors(
    result: CanaryResult, short_of_cpu_s: Iterator[float | None], tries: int
) -> None:
    watched = Watched(Server(*[result] * 10), short_of_cpu_s)
    watched.sign("newPage is unanswered")
    assert await found(watched) == (result.error, [result] * tries)


async def test_a_browser_that_answers_when_its_host_is_less_busy_is_well() -> None:
    watched = Watched(Server(*[LATE] * 3, WELL, LATE, LATE), iter([0.0, 5.0] * 2 + [9.0] * 20), canary_interval_s=0.001)
    watched.sign("newPage is unanswered")
    assert await found(watched) == (LATE.error, [LATE, LATE, LATE, WELL, LATE, LATE])


async def test_a_browser_server_that_ends_while_its_browser_is_tried_is_not_sick_but_dead() -> None:
    watched = Watched(Server(WELL, SICK, SICK, ends_after=2), canary_interval_s=0.001)
    assert await found(watched) == (None, [WELL])


async def test_the_workers_of_a_host_do_not_all_try_their_browsers_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float | None] = []

    def timeout(seconds: float | None) -> asyncio.Timeout:
        waits.append(seconds)
        return asyncio.Timeout(asyncio.get_running_loop().time())  # is over

    monkeypatch.setattr("pwgrid.worker.browser.health.asyncio.timeout", timeout)
    watched = Watched(Server(*[WELL] * 20, ends_after=20), canary_interval_s=30.0)
    await watched.until_sick(lambda _: None)
    assert len({*waits}) > 1
    assert all(each is not None and 27.0 <= each <= 33.0 for each in waits)
