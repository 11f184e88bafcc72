"""The worker's leases: a slot kept for one client at a time, until it is returned, expires, or its client goes."""

import asyncio
import json
import math
import socket
import time
from pathlib import Path
from typing import Any, cast

import pytest

from pwgrid.common.worker_lifecycle import WorkerStatus
from pwgrid.registry.records import lease_of
from pwgrid.worker.handoff_server import OfferedClient
from pwgrid.worker.leases import EXPIRED, RETURNED, End, Lease, Leases
from pwgrid.worker.registry_sync import RegistrySync
from pwgrid.worker.slots import LiveSession, Slots

LINK, OTHER_LINK = 1, 2
DISCONNECTED = End("client", "client disconnected")
BOUND_S = 20.0


class Worker:
    """Leases of a worker with two slots, and what they had others do. Clients are served at once."""

    def __init__(self, directory: Path, grace_s: float = 0.0, slots: int = 2) -> None:
        self.slots = Slots(slots)
        self.slots.status = WorkerStatus.AVAILABLE
        self.done: list[tuple[str, ...]] = []
        self.over = asyncio.Event()
        self.path = directory / "leases.json"
        self.leases = Leases(self.slots, self.path, grace_s, cast("RegistrySync", self), self)

    # As its RegistrySync

    def mark_served(self, held: LiveSession) -> None:
        held.is_served = True

    def lease_started(self, lease: Lease) -> None:
        self.done.append(("began", lease.id))

    def lease_ended(self, lease: Lease, end: End) -> None:
        self.done.append(("ended", lease.id, end.by, end.reason))
        self.over.set()

    def beat_soon(self) -> None:
        self.done.append(("changed",))

    # As its Sessions

    def serve(self, client: OfferedClient) -> None:
        self.done.append(("serve", client.session.session_id))
        client.answer(None)

    def end(self, session_id: str, reason: str) -> None:
        self.done.append(("close", session_id, reason))

    def lease_taken(self) -> None:
        self.done.append(("taken",))

    # What proxies and clients do

    def ask(self, do: str, lease_id: str = "l1", link: int = LINK, **more: Any) -> Any:
        answer = self.leases.asked(link, {"do": do, "id": lease_id, **more})
        return answer["refused"]

    def take(self, lease_id: str = "l1", link: int = LINK, ttl_s: float = 900.0, secret: str = "s") -> Any:
        told = {"labels": "AppA:Chromium:UAT", "name": "Smoke 12"}
        says = {"deadline": math.inf, "client": "1.2.3.4:5", "secret": secret, "expiresAt": time.time() + ttl_s}
        return self.ask("take", lease_id, link, told=told, **says)

    def borrow(self, lease_id: str = "l1", ttl_s: float = 900.0) -> None:
        self.keep(lease_id, ttl_s=ttl_s)
        assert self.ask("answered", lease_id) is None

    def keep(self, lease_id: str = "l1", ttl_s: float = 900.0, secret: str = "s") -> None:
        """The proxy is about to answer the borrow."""
        assert self.take(lease_id, ttl_s=ttl_s, secret=secret) is None
        assert self.ask("keep", lease_id, saysWhenAnswered=True) is None

    def connect(self, session_id: str = "l1~1", secret: str = "s", deadline: float = math.inf) -> list[str | None]:
        """The list gets the answer, when there is one."""
        answers: list[str | None] = []
        with socket.socket() as sock:
            session = LiveSession(session_id, "c", lease_id=lease_of(session_id) or "l1")

            def answered(said: bytes) -> None:
                answers.append(json.loads(said)["refused"])

            self.leases.offered(OfferedClient(session, deadline, {}, "", secret, sock, answered))
        return answers

    def leave(self, session_id: str = "l1~1", end: End = DISCONNECTED) -> None:
        self.slots.free(session_id)
        self.leases.disconnected(session_id, end)

    def not_served(self, session_id: str) -> None:
        """The browser server did not get this client."""
        self.slots.take_back(session_id)
        self.leases.disconnected(session_id, None)


@pytest.fixture
async def worker(tmp_path: Path) -> Worker:
    return Worker(tmp_path)


async def test_a_lease_keeps_a_slot_until_it_is_returned(worker: Worker) -> None:
    worker.borrow("l1")
    worker.borrow("l2")
    assert (worker.slots.taken, worker.slots.lifetime) == (2, 2)
    assert worker.take("l3") == "full"
    assert worker.slots.refusal("x", math.inf, 0) == "full"
    assert worker.ask("return") is None
    assert worker.ask("return") == "no such lease"
    assert worker.take("l3") is None
    assert worker.done[:3] == [("taken",), ("began", "l1"), ("taken",)]
    assert ("ended", "l1", "grid", "returned") in worker.done


async def test_what_no_client_was_told_of_has_never_been(worker: Worker) -> None:
    worker.take("l1")
    assert worker.ask("drop", "l1") is None
    worker.take("l2", link=OTHER_LINK)
    worker.borrow("l3")
    worker.leases.link_ended(OTHER_LINK)
    worker.leases.link_ended(LINK)  # who has been told keeps it
    assert (worker.slots.taken, worker.slots.lifetime) == (1, 1)
    assert worker.ask("keep", "l2") == "no such lease"
    assert worker.ask("drop", "l3") is None
    assert worker.slots.taken == 1


@pytest.mark.parametrize("is_successor", [False, True])
async def test_a_lease_ends_whose_proxy_goes_before_it_says_that_the_borrow_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_successor: bool
) -> None:
    monkeypatch.setattr("pwgrid.worker.leases.UNANSWERED_S", 0.01)
    worker = Worker(tmp_path)
    worker.borrow("l2")
    worker.keep("l1")
    worker.leases.link_ended(OTHER_LINK)
    assert worker.slots.held["lease:l1"].grace is None
    if is_successor:
        worker = Worker(tmp_path)
        worker.leases.adopt(frozenset())
    else:
        worker.leases.link_ended(LINK)
    assert worker.slots.taken == 2
    async with asyncio.timeout(BOUND_S):
        await worker.over.wait()
    assert worker.done[-1] == ("ended", "l1", "grid", "borrow not answered")
    assert worker.connect("l1~1") == ["no such lease"]
    assert worker.slots.held.keys() == {"lease:l2"}
    assert [each["id"] for each in json.loads(worker.path.read_text())] == ["l2"]


@pytest.mark.parametrize("proof", ["answered", "connects", "extends"])
@pytest.mark.parametrize("is_successor", [False, True])
async def test_a_lease_stays_whose_borrower_has_the_answer(tmp_path: Path, is_successor: bool, proof: str) -> None:
    worker = Worker(tmp_path, grace_s=600.0)
    worker.keep("l1")
    if is_successor:
        worker = Worker(tmp_path, grace_s=600.0)
        worker.leases.adopt(frozenset())
    else:
        worker.leases.link_ended(LINK)
    lease = worker.slots.held["lease:l1"]
    ends = lease.grace
    assert ends is not None
    match proof:
        case "answered":
            assert worker.ask("answered", link=OTHER_LINK) is None
        case "connects":
            assert worker.connect("l1~1") == [None]
        case "extends":
            assert worker.ask("extend", ttlS=60) is None
    assert ends.cancelled()
    assert lease.grace is None
    (entry,) = json.loads(worker.path.read_text())
    assert entry["isAnswered"]


async def test_a_lease_ends_at_once_whose_borrower_left_before_the_answer(worker: Worker) -> None:
    worker.keep("l1")
    assert worker.ask("unanswered") is None
    assert worker.done[-1] == ("ended", "l1", "grid", "borrow not answered")
    assert worker.ask("answered") == "no such lease"
    assert worker.ask("unanswered") == "no such lease"
    assert (worker.slots.taken, worker.slots.lifetime) == (0, 1)


async def test_a_proxy_of_an_earlier_version_says_nothing_of_the_answer(worker: Worker) -> None:
    worker.take("l1")
    assert worker.leases.asked(LINK, {"do": "keep", "id": "l1"}) == {"refused": None}
    worker.leases.link_ended(LINK)
    assert worker.slots.held["lease:l1"].grace is None


async def test_a_client_takes_no_further_slot_and_one_comes_at_a_time(worker: Worker) -> None:
    worker.borrow()
    assert worker.connect("l1~1") == [None]
    assert worker.slots.taken == 1
    waits = worker.connect("l1~2")
    assert waits == []
    assert worker.connect("l1~3") == ["in use"]
    worker.leave("l1~1")  # the one that waits is the next
    assert waits == [None]
    assert worker.slots.live.keys() == {"l1~2"}
    worker.leave("l1~2")
    assert worker.done[-1] == ("ended", "l1", "client", "client disconnected")
    assert (worker.slots.taken, worker.slots.lifetime) == (0, 1)


async def test_one_that_waits_for_a_client_that_stays_is_refused(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pwgrid.worker.leases.HANDOVER_S", 0.01)
    worker.borrow()
    worker.connect("l1~1")
    refused = asyncio.get_running_loop().create_future()
    with socket.socket() as sock:
        session = LiveSession("l1~2", lease_id="l1")
        worker.leases.offered(OfferedClient(session, math.inf, {}, "", "s", sock, refused.set_result))
        async with asyncio.timeout(BOUND_S):
            assert json.loads(await refused)["refused"] == "in use"


@pytest.mark.parametrize(("secret", "lease"), [("t", "l1"), ("", "l1"), ("s", "l9")])
async def test_nobody_comes_without_the_secret(worker: Worker, secret: str, lease: str) -> None:
    worker.borrow()
    assert worker.connect(f"{lease}~1", secret) == ["no such lease"]
    assert worker.connect(secret="s", deadline=0) == ["late"]
    assert worker.slots.live == {}


async def test_a_lease_is_kept_for_a_client_that_comes_back_within_the_grace(tmp_path: Path) -> None:
    worker = Worker(tmp_path, grace_s=600.0)
    worker.borrow()
    worker.connect("l1~1")
    worker.leave("l1~1")
    assert worker.slots.taken == 1
    assert worker.connect("l1~2") == [None]
    assert worker.ask("return") is None
    worker.leave("l1~2", RETURNED)
    assert worker.slots.taken == 0


async def test_after_the_grace_it_is_over_as_its_last_client_was(tmp_path: Path) -> None:
    worker = Worker(tmp_path, grace_s=0.01)
    worker.borrow()
    worker.connect("l1~1")
    worker.leave("l1~1", End("grid", "ping timeout"))
    async with asyncio.timeout(BOUND_S):
        await worker.over.wait()
    assert worker.done[-1] == ("ended", "l1", "grid", "ping timeout")


@pytest.mark.parametrize("comes_back", [False, True], ids=["stays away", "comes back"])
async def test_a_successor_waits_out_the_grace_of_a_client_that_left(tmp_path: Path, comes_back: bool) -> None:
    worker = Worker(tmp_path, grace_s=600.0)
    worker.borrow()
    worker.connect("l1~1")
    worker.leave("l1~1", End("grid", "ping timeout"))
    if comes_back:
        worker.connect("l1~2")
    successor = Worker(tmp_path, grace_s=0.01)
    successor.leases.adopt(frozenset({"l1~2"} if comes_back else ()))
    assert (successor.slots.held["lease:l1"].grace is None) == comes_back
    if not comes_back:
        async with asyncio.timeout(BOUND_S):
            await successor.over.wait()
        assert successor.done == [("ended", "l1", "grid", "ping timeout")]


async def test_a_lease_ends_by_its_time_and_its_client_is_told_why(worker: Worker) -> None:
    worker.borrow("l1", ttl_s=0.05)
    worker.borrow("l2", ttl_s=0.01)
    worker.connect("l1~1")
    async with asyncio.timeout(BOUND_S):
        await worker.over.wait()
        assert worker.done[-1] == ("ended", "l2", "grid", "expired")
        while worker.done[-1][0] != "close":
            await asyncio.sleep(0)
    assert worker.done[-1] == ("close", "l1~1", "expired")
    assert worker.connect("l1~2") == ["no such lease"]
    assert worker.slots.taken == 1  # until its client is gone
    worker.leave("l1~1", EXPIRED)
    assert worker.done[-1] == ("ended", "l1", "grid", "expired")
    assert worker.slots.taken == 0


async def test_a_lease_is_extended_and_never_shortened(worker: Worker) -> None:
    worker.borrow(ttl_s=900)
    before = worker.slots.held["lease:l1"].expires_at
    assert worker.ask("extend", ttlS=60) is None
    assert worker.slots.held["lease:l1"].expires_at == before
    assert worker.ask("extend", ttlS=3600) is None
    assert worker.slots.held["lease:l1"].expires_at > before + 2000
    assert worker.done[-1] == ("changed",)
    assert worker.ask("extend", "l9", ttlS=60) == "no such lease"


async def test_only_the_token_that_borrowed_a_lease_and_operators_may_change_it(worker: Worker) -> None:
    worker.borrow()
    worker.slots.held["lease:l1"].told = {"token": "ci"}
    assert worker.ask("extend", ttlS=60, token="other") == "no such lease"
    assert worker.ask("return", token="other") == "no such lease"
    assert worker.ask("extend", ttlS=60, token="ci") is None
    assert worker.ask("extend", ttlS=60) is None
    assert worker.ask("return", token="ci") is None


async def test_a_drain_waits_for_leases_and_lets_their_clients_come(worker: Worker) -> None:
    worker.borrow()
    worker.slots.status = WorkerStatus.DRAINING
    empty = asyncio.create_task(worker.slots.empty())
    assert worker.take("l2") == "draining"
    assert worker.connect("l1~1") == [None]
    await asyncio.sleep(0)
    assert not empty.done()
    worker.leave("l1~1")
    async with asyncio.timeout(BOUND_S):
        await empty


async def test_a_cut_ends_idle_leases_at_once_and_others_with_their_clients(worker: Worker) -> None:
    worker.borrow("l1")
    worker.borrow("l2")
    worker.connect("l1~1")
    worker.leases.cut(End("grid", "drain timeout: shutdown"))
    assert worker.done[-1] == ("ended", "l2", "grid", "drain timeout: shutdown")
    worker.leave("l1~1", End("grid", "drain timeout: shutdown"))
    assert worker.done[-1] == ("ended", "l1", "grid", "drain timeout: shutdown")
    assert worker.slots.taken == 0


async def test_a_lease_does_not_end_with_a_client_that_the_browser_server_did_not_get(worker: Worker) -> None:
    """That client was never connected. It may come again; a browser that has crashed ends the lease by itself."""
    worker.borrow()
    worker.connect("l1~1")
    second = worker.connect("l1~2")
    worker.not_served("l1~1")
    assert second == [None]
    worker.not_served("l1~2")
    assert (worker.slots.taken, worker.slots.lifetime) == (1, 1)
    worker.leases.cut(End("browser", "browser crashed"))
    assert [each for each in worker.done if each[0] == "ended"] == [("ended", "l1", "browser", "browser crashed")]


@pytest.mark.parametrize("reason", ["too late", "handshake refused"])
async def test_a_lease_does_not_end_with_a_client_that_the_browser_server_did_not_take(
    worker: Worker, reason: str
) -> None:
    worker.borrow()
    worker.connect("l1~1")
    worker.leave("l1~1", End("grid", reason))
    assert worker.connect("l1~2") == [None]
    worker.leave("l1~2")
    assert worker.done[-1] == ("ended", "l1", "client", "client disconnected")


async def test_a_grace_goes_on_after_a_client_that_the_browser_server_did_not_get(tmp_path: Path) -> None:
    worker = Worker(tmp_path, grace_s=0.01)
    worker.borrow()
    worker.connect("l1~1")
    worker.leave("l1~1", End("browser", "page crashed"))
    worker.connect("l1~2")
    worker.not_served("l1~2")
    async with asyncio.timeout(BOUND_S):
        await worker.over.wait()
    assert worker.done[-1] == ("ended", "l1", "browser", "page crashed")


async def test_a_lease_that_ended_meanwhile_is_over_with_a_client_that_was_not_served(worker: Worker) -> None:
    worker.borrow()
    worker.connect("l1~1")
    assert worker.ask("return") is None
    worker.not_served("l1~1")
    assert worker.done[-1] == ("ended", "l1", "grid", "returned")
    assert worker.slots.taken == 0


async def test_a_successor_has_the_leases_that_were_kept(worker: Worker, tmp_path: Path) -> None:
    worker.borrow("l1")
    worker.borrow("l2")
    worker.take("l3")
    worker.connect("l1~1")
    assert worker.path.stat().st_mode & 0o077 == 0
    successor = Worker(tmp_path)
    successor.leases.adopt(frozenset({"l1~1", "0123"}))
    for session_id in ("l1~1", "0123"):
        successor.slots.admit(LiveSession(session_id, lease_id=lease_of(session_id)))
    assert successor.slots.taken == 3
    assert successor.slots.held.keys() == {"lease:l1", "lease:l2"}
    assert successor.slots.held["lease:l1"].fields() == worker.slots.held["lease:l1"].fields()
    assert successor.connect("l2~1") == [None]
    assert successor.ask("return") is None
    assert successor.done[-1] == ("close", "l1~1", "returned")
    successor.leave("l1~1", RETURNED)
    assert successor.slots.taken == 2


async def test_the_file_for_a_successor_has_no_secret(tmp_path: Path) -> None:
    worker = Worker(tmp_path)
    worker.keep(secret="of-the-borrower")
    written = worker.path.read_text()
    assert "of-the-borrower" not in written
    (entry,) = json.loads(written)
    successor = Worker(tmp_path)
    successor.leases.adopt(frozenset())
    assert successor.connect(secret=entry["secret"]) == ["no such lease"]
    assert successor.connect(secret="of-the-borrower") == [None]


async def test_a_successor_takes_the_secret_that_a_worker_of_an_earlier_version_has_written(tmp_path: Path) -> None:
    worker = Worker(tmp_path)
    worker.keep(secret="of-the-borrower")
    entries = json.loads(worker.path.read_text())
    entries[0]["secret"] = "of-the-borrower"
    worker.path.write_text(json.dumps(entries))
    successor = Worker(tmp_path)
    successor.leases.adopt(frozenset())
    assert successor.connect(secret="another") == ["no such lease"]
    assert successor.connect(secret="of-the-borrower") == [None]


async def test_a_lease_that_ran_out_without_a_worker_ends_with_its_successor(worker: Worker, tmp_path: Path) -> None:
    worker.borrow("l1")
    entries = json.loads(worker.path.read_text())
    entries[0]["expiresAt"] = time.time() - 5
    worker.path.write_text(json.dumps(entries))
    successor = Worker(tmp_path)
    successor.leases.adopt(frozenset())
    async with asyncio.timeout(BOUND_S):
        await successor.over.wait()
    assert successor.done == [("ended", "l1", "grid", "expired")]


@pytest.mark.parametrize("content", [None, b"", b"{]"])
async def test_a_successor_does_without_a_file_that_is_not_there(tmp_path: Path, content: bytes | None) -> None:
    worker = Worker(tmp_path)
    if content is not None:
        worker.path.write_bytes(content)
    worker.leases.adopt(frozenset())
    assert worker.slots.held == {}


def test_the_lease_of_a_session() -> None:
    assert [lease_of(each) for each in ("l1~1", "0123", "lease:l1")] == ["l1", "", ""]


async def test_a_lease_whose_client_is_back_is_not_ended_by_an_end_of_before(tmp_path: Path) -> None:
    worker = Worker(tmp_path, grace_s=BOUND_S)
    worker.borrow()
    waits = []
    for session_id in ("l1~1", "l1~2"):  # as a successor hears of them
        worker.leases.disconnected(session_id, DISCONNECTED)
        waits.append(worker.slots.held["lease:l1"].grace)
    assert worker.connect("l1~3") == [None]
    assert [wait is not None and wait.cancelled() for wait in waits] == [True, True]
