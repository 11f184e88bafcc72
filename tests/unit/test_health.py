"""When a browser counts as sick, and its server as hung. The browser server here is one that answers as it is told."""

import asyncio
import socket
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from pwgrid.common.tasks import end_task
from pwgrid.control.frozen_peer import LATE_S
from pwgrid.worker.browser.server import BrowserServer, CanaryResult

WELL, SICK = CanaryResult(True, "", 20), CanaryResult(False, "no page", 30)


class Server:
    wait_until_sick = BrowserServer.wait_until_sick

    def __init__(self, *results: CanaryResult, ends_after: int = 100) -> None:
        self._results = list(results)
        self._ends_after = ends_after
        self.tries = 0

    @property
    def is_gone(self) -> bool:
        return self.tries >= self._ends_after

    async def canary(self, timeout_s: float) -> CanaryResult:
        self.tries += 1
        return self._results.pop(0)


async def found(server: Server) -> tuple[str | None, list[CanaryResult]]:
    tried: list[CanaryResult] = []
    return await server.wait_until_sick(lambda: True, 0.0, 1.0, tried.append), tried


async def test_two_tries_in_vain_are_a_sickness_and_one_is_not() -> None:
    assert await found(Server(WELL, SICK, WELL, SICK, SICK)) == ("no page", [WELL, SICK, WELL, SICK, SICK])


async def test_a_browser_server_that_ends_while_its_browser_is_tried_is_not_sick_but_dead() -> None:
    assert await found(Server(WELL, SICK, SICK, ends_after=2)) == (None, [WELL])


async def test_the_workers_of_a_host_do_not_all_try_their_browsers_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr("pwgrid.worker.browser.server.asyncio.sleep", sleep)
    server = Server(*[WELL] * 20, ends_after=20)
    await server.wait_until_sick(lambda: True, 30.0, 1.0, lambda _: None)
    assert len({*slept}) > 1
    assert all(27.0 <= each <= 33.0 for each in slept)


class Pinged:
    """Answers over a socket, as a browser server does, and notes the second ping."""

    wait_until_hung = BrowserServer.wait_until_hung

    def __init__(self) -> None:
        self._here, self.there = socket.socketpair()
        self._here.setblocking(False)
        self.first, self.second = asyncio.Event(), asyncio.Event()

    def close(self) -> None:
        self._here.close()
        self.there.close()

    @contextmanager
    def _ask(self, _question: object, _answer_kind: str) -> Iterator[asyncio.Future[bytes]]:
        if self.first.is_set():
            self.second.set()
        self.first.set()
        answer = asyncio.ensure_future(asyncio.get_running_loop().sock_recv(self._here, 1))
        try:
            yield answer
        finally:
            answer.cancel()


async def test_a_browser_server_that_answers_no_ping_is_hung() -> None:
    with closing(Pinged()) as server:
        await asyncio.wait_for(server.wait_until_hung(0.05), 30)


async def test_one_whose_answer_came_while_the_worker_stood_still_is_not_hung() -> None:
    limit_s = 0.4
    with closing(Pinged()) as server:
        watch = asyncio.create_task(server.wait_until_hung(limit_s))
        await server.first.wait()
        server.there.send(b".")
        time.sleep(
            limit_s + LATE_S
        )  # the loop stands still, as on a host that does; its timers come before its sockets
        asked_again = asyncio.create_task(server.second.wait())
        await asyncio.wait([watch, asked_again], return_when=asyncio.FIRST_COMPLETED)
        assert not watch.done()
        await end_task(watch)
