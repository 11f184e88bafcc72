"""When a worker records the starts and ends of its sessions, and answers their proxies."""

import asyncio
import json
import math
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pwgrid.common.worker_lifecycle import WorkerStatus
from pwgrid.tokens.file import changing
from pwgrid.tokens.tokens import Role, make
from pwgrid.worker import sessions as module
from pwgrid.worker.browser.server import SessionClosed
from pwgrid.worker.handoff_server import HandoffServer, OfferedClient
from pwgrid.worker.sessions import Sessions
from pwgrid.worker.slots import LiveSession, Slots

BOUND_S = 20.0


class Worker:
    """Its sessions, and what they had others do, in order. The browser server takes each client at once."""

    def __init__(self, directory: Path) -> None:
        self.tokens_file = directory / "tokens.json"
        self.done: list[str] = []
        self.told = asyncio.Event()
        self.slots = Slots(100)
        settings = SimpleNamespace(borrow_reconnect_grace=0.0)
        boot: Any = SimpleNamespace(
            directory=directory, settings=settings, adopt_node_pid=None, tokens_file=self.tokens_file
        )
        itself = cast("Any", self)
        handoff = HandoffServer(directory / "handoff.sock")
        self.sessions = Sessions(boot, self.slots, itself, handoff, lambda: None, self.on_served)
        self.sessions.server = itself

    async def serve(self, *session_ids: str, **about: Any) -> None:
        """Serves clients, until the browser server has them."""
        ours, theirs = socket.socketpair()
        with ours, theirs:
            for session_id in session_ids:
                session = LiveSession(session_id, "c:1", **about)
                self.slots.admit(session)
                self.sessions.serve(OfferedClient(session, 1.0, {}, "", "", ours, self.answered))
            await asyncio.sleep(0)

    def answered(self, said: bytes) -> None:
        self.done.append(f"answer {json.loads(said)['session']}")

    def on_served(self) -> None:
        self.done.append("told")
        self.told.set()

    def end(self, session_id: str) -> None:
        """The browser server says that the session is over."""
        self.sessions.ended(SessionClosed(session_id, 1, 1, "client", "client disconnected"))

    # As its BrowserServer

    def hand_over(self, _client: OfferedClient) -> asyncio.Future[None]:
        taken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        taken.set_result(None)
        return taken

    def close_session(self, session_id: str, reason: str, _text: str | None) -> None:
        self.done.append(f"close {session_id}: {reason}")

    # As its RegistrySync

    def mark_served(self, session: LiveSession) -> None:
        session.is_served = True

    def started(self, session: LiveSession) -> None:
        self.done.append(f"start {session.session_id}")

    def ended(self, closed: SessionClosed, _session: LiveSession | None, _on_record: Any) -> None:
        self.done.append(f"end {closed.session_id}")


@pytest.fixture
async def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Worker]:
    """It records nothing because of time alone."""
    monkeypatch.setattr(module, "RECORD_DELAY_S", 3600)
    worker = Worker(tmp_path)
    yield worker
    worker.sessions.close()


async def test_a_session_s_own_start_comes_before_its_end(worker: Worker) -> None:
    await worker.serve("a", "b")
    assert worker.done == []
    worker.end("a")
    assert worker.done == ["answer a", "start a", "answer b", "start b", "told", "end a"]


async def test_starts_are_recorded_with_the_next_end_and_behind_it(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RECORD_AT_ONCE", 1)
    await worker.serve("a")
    monkeypatch.setattr(module, "RECORD_AT_ONCE", 32)
    worker.done.clear()
    await worker.serve("b")
    worker.end("a")
    assert worker.done == ["end a", "answer b", "start b", "told"]


async def test_a_start_without_an_end_is_recorded_in_time(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RECORD_DELAY_S", 0)
    await worker.serve("a")
    async with asyncio.timeout(BOUND_S):
        await worker.told.wait()
    assert worker.done == ["answer a", "start a", "told"]


async def test_not_more_than_some_wait_for_their_record(worker: Worker) -> None:
    served = [f"{number}" for number in range(module.RECORD_AT_ONCE)]
    await worker.serve(*served[:-1])
    assert worker.done == []
    await worker.serve(served[-1])
    assert [each for each in worker.done if each.startswith("start")] == [f"start {each}" for each in served]


async def test_the_sessions_of_a_token_end_and_none_that_is_on_its_way_begins(worker: Worker) -> None:
    (ci, _), (again, _) = (make("ci", Role.CLIENT, 0, (), 0.0) for _ in range(2))
    with changing(worker.tokens_file) as tokens:
        tokens["ci"] = again
    await worker.serve("a", told={"token": "ci"}, token_id=ci.id)
    await worker.serve("b", told={"token": "ci"})  # of this worker's predecessor, which told no id
    await worker.serve("c", told={"token": "ci"}, token_id=again.id)
    await worker.serve("d", told={"token": "other"}, token_id="x")
    worker.done.clear()
    worker.sessions.end_of_token("ci", ci.id)
    assert worker.done == ["close a: token revoked", "close b: token revoked"]
    refused: list[Any] = []
    for token in (ci, again):
        with socket.socket() as sock:
            session = LiveSession(token.id, told={"token": "ci"}, token_id=token.id)
            client = OfferedClient(session, math.inf, {}, "", "", sock, lambda said: refused.append(json.loads(said)))
            worker.slots.status = WorkerStatus.AVAILABLE
            worker.sessions._on_offer(client)
    assert [(each["session"], each["refused"]) for each in refused] == [(ci.id, "token revoked")]
    assert again.id in worker.slots.live
