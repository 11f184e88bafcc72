"""The worker's leases: a slot kept for one client at a time, until it is returned, expires, or its client goes."""

import asyncio
import json
import math
import socket
import time
from pathlib import Path
from typing import Any, cast

import pytest

from pwgrid.cli.token import Place, create, revoke
from pwgrid.common.reasons import EndReason, Reason
from pwgrid.common.worker_lifecycle import WorkerStatus
from pwgrid.tokens.file import load
from pwgrid.tokens.tokens import Role, operators_token_id
from pwgrid.worker.holders import EXPIRED, RETURNED, End, Lease, LiveSession, OfferedClient, OwnBrowser
from pwgrid.worker.leases import MOST_ENDED, TOKEN_CHECK_INTERVAL_S, Leases
from pwgrid.worker.registry_sync import RegistrySync
from pwgrid.worker.slots import Slots
from pwgrid.worker.token_check import TokenCheck

LINK, OTHER_LINK = 1, 2
DISCONNECTED = End("client", Reason(EndReason.CLIENT_DISCONNECTED))
BOUND_S = 20.0


class Worker:
    """Leases of a worker with two slots, and what they had others do. Clients are served at once."""

    def __init__(self, directory: Path, grace_s: float = 0.0, slots: int = 2) -> None:
        self.slots = Slots(slots)
        self.slots.status = WorkerStatus.AVAILABLE
        self.done: list[tuple[str, ...]] = []
        self.over = asyncio.Event()
        self.why_ended: str | None = None
        self.token = ("", "")
        """Name and id of the borrower's."""
        self.path = directory / "leases.json"
        self.tokens_file = directory / "tokens.json"
        self.tokens = TokenCheck(self.tokens_file)
        self.leases = Leases(self.slots, self.path, grace_s, cast("RegistrySync", self), self, self.tokens)

    # As its RegistrySync

    def mark_served(self, held: LiveSession) -> None:
        held.is_served = True

    def lease_started(self, lease: Lease) -> None:
        self.done.append(("began", lease.id))

    def lease_ended(self, lease: Lease, end: End) -> None:
        self.done.append(("ended", lease.id, end.by, end.reason.kind))
        self.over.set()

    def beat_soon(self) -> None:
        self.done.append(("changed",))

    # As its Sessions

    def serve(self, client: OfferedClient) -> None:
        self.done.append(("serve", client.session.id))
        client.answer(None)

    def end(self, session_id: str, reason: str) -> None:
        self.done.append(("close", session_id, reason.kind))

    def slot_taken(self) -> None:
        self.done.append(("taken",))

    # What proxies and clients do

    def ask(self, do: str, lease_id: str = "l1", link: int = LINK, **more: Any) -> Any:
        answer = self.leases.asked(link, {"do": do, "id": lease_id, **more})
        return answer["refused"]

    def take(self, lease_id: str = "l1", link: int = LINK, ttl_s: float = 900.0, secret: str = "s") -> Any:
        told = {"labels": "AppA:Chromium:UAT", "name": "Smoke 12", "token": self.token[0]}
        says = {"deadline": math.inf, "client": "1.2.3.4:5", "secret": secret, "expiresAt": time.time() + ttl_s}
        return self.ask("take", lease_id, link, clientFields=told, tokenId=self.token[1], **says)

    def borrow(self, lease_id: str = "l1", ttl_s: float = 900.0) -> None:
        self.keep(lease_id, ttl_s=ttl_s)
        assert self.ask("answered", lease_id) is None

    def keep(self, lease_id: str = "l1", ttl_s: float = 900.0, secret: str = "s") -> None:
        """The proxy is about to answer the borrow."""
        assert self.take(lease_id, ttl_s=ttl_s, secret=secret) is None
        assert self.ask("keep", lease_id) is None

    def connect(
        self,
        session_id: str = "s1",
        secret: str = "s",
        deadline: float = math.inf,
        *,
        lease_id: str = "l1",
        own: OwnBrowser | None = None,
    ) -> list[str | None]:
        """The list gets the answer, when there is one; `why_ended` what that says of a lease that is over."""
        answers: list[str | None] = []
        with socket.socket() as sock:
            session = LiveSession(session_id, "c", lease_id=lease_id, own=own)

            def answered(said: bytes) -> None:
                answers.append(json.loads(said)["refused"])
                self.why_ended = json.loads(said).get("ended")

            self.leases.offered(OfferedClient(session, deadline, {}, "", secret, sock, answered))
        return answers

    def leave(self, session_id: str = "s1", end: End = DISCONNECTED, *, lease_id: str = "l1") -> None:
        self.slots.free(session_id)
        self.leases.disconnected(session_id, lease_id, end)

    def not_served(self, session_id: str) -> None:
        """The browser server did not get this client."""
        self.slots.take_back(session_id)
        self.leases.disconnected(session_id, "l1", None)


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
    assert worker.slots.held["l1"].grace is None
    if is_successor:
        worker = Worker(tmp_path)
        worker.leases.adopt({})
    else:
        worker.leases.link_ended(LINK)
    assert worker.slots.taken == 2
    async with asyncio.timeout(BOUND_S):
        await worker.over.wait()
    assert worker.done[-1] == ("ended", "l1", "grid", "borrow not answered")
    assert worker.connect("s1") == ["no such lease"]
    assert worker.slots.held.keys() == {"l2"}
    assert [each["id"] for each in json.loads(worker.path.read_text())] == ["l2"]


@pytest.mark.parametrize("proof", ["answered", "connects", "extends"])
@pytest.mark.parametrize("is_successor", [False, True])
async def test_a_lease_stays_whose_borrower_has_the_answer(tmp_path: Path, is_successor: bool, proof: str) -> None:
    worker = Worker(tmp_path, grace_s=600.0)
    worker.keep("l1")
    if is_successor:
        worker = Worker(tmp_path, grace_s=600.0)
        worker.leases.adopt({})
    else:
        worker.leases.link_ended(LINK)
    lease = worker.slots.held["l1"]
    ends = lease.grace
    assert ends is not None
    match proof:
        case "answered":
            assert worker.ask("answered", link=OTHER_LINK) is None
        case "connects":
            assert worker.connect("s1") == [None]
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


async def test_a_client_takes_no_further_slot_and_one_comes_at_a_time(worker: Worker) -> None:
    worker.borrow()
    assert worker.connect("s1") == [None]
    assert worker.slots.taken == 1
    waits = worker.connect("s2")
    assert waits == []
    assert worker.connect("s3") == ["in use"]
    worker.leave("s1")  # the one that waits is the next
    assert waits == [None]
    assert worker.slots.live.keys() == {"s2"}
    worker.leave("s2")
    assert worker.done[-1] == ("ended", "l1", "client", "client disconnected")
    assert (worker.slots.taken, worker.slots.lifetime) == (0, 1)


OWN = OwnBrowser(math.inf)
NEVER_CAME = End("grid", Reason(EndReason.TOO_LATE))


async def test_a_lease_takes_none_of_the_lifetime_if_its_clients_have_their_own_browsers(tmp_path: Path) -> None:
    worker = Worker(tmp_path, grace_s=60.0)
    worker.borrow()
    assert worker.slots.lifetime == 1
    assert worker.connect(own=OWN) == [None]
    assert (worker.slots.lifetime, worker.done.count(("changed",))) == (0, 1)
    successor = Worker(tmp_path)
    successor.leases.adopt({"s1": "l1"})
    assert successor.slots.lifetime == 0
    worker.leave()
    worker.connect("s2", own=OWN)
    worker.leave("s2")
    assert (worker.slots.lifetime, worker.done.count(("changed",))) == (0, 1)
    worker.connect("s3")  # one that shares the browser
    assert (worker.slots.lifetime, worker.done.count(("changed",))) == (1, 2)
    worker.leave("s3")
    worker.connect("s4", own=OWN)
    assert (worker.slots.lifetime, worker.done.count(("changed",))) == (1, 2)
    successor = Worker(tmp_path)
    successor.leases.adopt({"s4": "l1"})
    assert successor.slots.lifetime == 1


async def test_a_lease_whose_first_client_shares_the_browser_gives_no_lifetime_back(tmp_path: Path) -> None:
    worker = Worker(tmp_path, grace_s=60.0)
    worker.borrow()
    worker.connect()
    worker.leave()
    worker.connect("s2", own=OWN)
    assert (worker.slots.lifetime, worker.done.count(("changed",))) == (1, 0)


async def test_a_client_that_never_came_decides_nothing(tmp_path: Path) -> None:
    worker = Worker(tmp_path)
    worker.borrow()
    worker.connect()
    worker.leave(end=NEVER_CAME)
    worker.connect("s2", own=OWN)
    assert worker.slots.lifetime == 0


@pytest.mark.parametrize("why", ["it drains", "it is used up", "no browser is shared"])
async def test_a_lifetime_is_not_given_back_where(worker: Worker, why: str) -> None:
    worker.borrow()
    worker.slots.status = WorkerStatus.DRAINING if why == "it drains" else WorkerStatus.AVAILABLE
    worker.slots.max_lifetime = 1 if why == "it is used up" else math.inf
    worker.leases.shares_browser = why != "no browser is shared"
    worker.connect(own=OWN)
    assert (worker.slots.lifetime, worker.done.count(("changed",))) == (1, 0)


async def test_what_a_lease_takes_of_the_lifetime_is_told_by_heartbeats_alone(worker: Worker) -> None:
    """They change the counter in the same step."""
    worker.borrow()
    worker.connect(own=OWN)
    lease = worker.slots.held["l1"]
    assert (lease.client_fields["lifetime"], "lifetime" in lease.fields()) == ("0", False)


async def test_one_that_waits_for_a_client_that_stays_is_refused(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pwgrid.worker.leases.HANDOVER_S", 0.01)
    worker.borrow()
    worker.connect("s1")
    refused = asyncio.get_running_loop().create_future()
    with socket.socket() as sock:
        session = LiveSession("s2", lease_id="l1")
        worker.leases.offered(OfferedClient(session, math.inf, {}, "", "s", sock, refused.set_result))
        async with asyncio.timeout(BOUND_S):
            assert json.loads(await refused)["refused"] == "in use"


@pytest.mark.parametrize(("secret", "lease"), [("t", "l1"), ("", "l1"), ("s", "l9")])
async def test_nobody_comes_without_the_secret(worker: Worker, secret: str, lease: str) -> None:
    worker.borrow()
    assert worker.connect("s1", secret, lease_id=lease) == ["no such lease"]
    assert worker.connect(secret="s", deadline=0) == ["late"]
    assert worker.slots.live == {}


async def test_a_lease_is_kept_for_a_client_that_comes_back_within_the_grace(tmp_path: Path) -> None:
    worker = Worker(tmp_path, grace_s=600.0)
    worker.borrow()
    worker.connect("s1")
    worker.leave("s1")
    assert worker.slots.taken == 1
    assert worker.connect("s2") == [None]
    assert worker.ask("return") is None
    worker.leave("s2", RETURNED)
    assert worker.slots.taken == 0


async def test_after_the_grace_it_is_over_as_its_last_client_was(tmp_path: Path) -> None:
    worker = Worker(tmp_path, grace_s=0.01)
    worker.borrow()
    worker.connect("s1")
    worker.leave("s1", End("grid", Reason(EndReason.PING_TIMEOUT)))
    async with asyncio.timeout(BOUND_S):
        await worker.over.wait()
    assert worker.done[-1] == ("ended", "l1", "grid", "ping timeout")


@pytest.mark.parametrize("comes_back", [False, True], ids=["stays away", "comes back"])
async def test_a_successor_waits_out_the_grace_of_a_client_that_left(tmp_path: Path, comes_back: bool) -> None:
    worker = Worker(tmp_path, grace_s=600.0)
    worker.borrow()
    worker.connect("s1")
    worker.leave("s1", End("grid", Reason(EndReason.PING_TIMEOUT)))
    if comes_back:
        worker.connect("s2")
    successor = Worker(tmp_path, grace_s=0.01)
    successor.leases.adopt({"s2": "l1"} if comes_back else {})
    assert (successor.slots.held["l1"].grace is None) == comes_back
    if not comes_back:
        async with asyncio.timeout(BOUND_S):
            await successor.over.wait()
        assert successor.done == [("ended", "l1", "grid", "ping timeout")]


async def test_a_lease_ends_by_its_time_and_its_client_is_told_why(worker: Worker) -> None:
    worker.borrow("l1", ttl_s=0.05)
    worker.borrow("l2", ttl_s=0.01)
    worker.connect("s1")
    async with asyncio.timeout(BOUND_S):
        await worker.over.wait()
        while ("close", "s1", "expired") not in worker.done:
            await asyncio.sleep(0)
    assert ("ended", "l2", "grid", "expired") in worker.done
    assert worker.connect("s2") == ["no such lease"]
    assert worker.slots.taken == 1  # until its client is gone
    worker.leave("s1", EXPIRED)
    assert worker.done[-1] == ("ended", "l1", "grid", "expired")
    assert worker.slots.taken == 0


async def test_a_lease_is_extended_and_never_shortened(worker: Worker) -> None:
    worker.borrow(ttl_s=900)
    before = worker.slots.held["l1"].expires_at
    assert worker.ask("extend", ttlS=60) is None
    assert worker.slots.held["l1"].expires_at == before
    assert worker.ask("extend", ttlS=3600) is None
    assert worker.slots.held["l1"].expires_at > before + 2000
    assert worker.done[-1] == ("changed",)
    assert worker.ask("extend", "l9", ttlS=60) == "no such lease"


async def test_only_the_token_that_borrowed_a_lease_and_operators_may_change_it(worker: Worker) -> None:
    worker.borrow()
    worker.slots.held["l1"].client_fields = {"token": "ci"}
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
    assert worker.connect("s1") == [None]
    await asyncio.sleep(0)
    assert not empty.done()
    worker.leave("s1")
    async with asyncio.timeout(BOUND_S):
        await empty


async def test_a_cut_ends_idle_leases_at_once_and_others_with_their_clients(worker: Worker) -> None:
    worker.borrow("l1")
    worker.borrow("l2")
    worker.connect("s1")
    worker.leases.cut(End("grid", Reason(EndReason.DRAIN_TIMEOUT, "shutdown")))
    assert worker.done[-1] == ("ended", "l2", "grid", "drain timeout")
    worker.leave("s1", End("grid", Reason(EndReason.DRAIN_TIMEOUT, "shutdown")))
    assert worker.done[-1] == ("ended", "l1", "grid", "drain timeout")
    assert worker.slots.taken == 0


async def test_a_lease_does_not_end_with_a_client_that_the_browser_server_did_not_get(worker: Worker) -> None:
    """That client was never connected. It may come again; a browser that has crashed ends the lease by itself."""
    worker.borrow()
    worker.connect("s1")
    second = worker.connect("s2")
    worker.not_served("s1")
    assert second == [None]
    worker.not_served("s2")
    assert (worker.slots.taken, worker.slots.lifetime) == (1, 1)
    worker.leases.cut(End("browser", Reason(EndReason.BROWSER_CRASHED)))
    assert [each for each in worker.done if each[0] == "ended"] == [("ended", "l1", "browser", "browser crashed")]


@pytest.mark.parametrize("reason", ["too late", "handshake refused"])
async def test_a_lease_does_not_end_with_a_client_that_the_browser_server_did_not_take(
    worker: Worker, reason: str
) -> None:
    worker.borrow()
    worker.connect("s1")
    worker.leave("s1", End("grid", Reason(EndReason(reason))))
    assert worker.connect("s2") == [None]
    worker.leave("s2")
    assert worker.done[-1] == ("ended", "l1", "client", "client disconnected")


async def test_a_grace_goes_on_after_a_client_that_the_browser_server_did_not_get(tmp_path: Path) -> None:
    worker = Worker(tmp_path, grace_s=0.01)
    worker.borrow()
    worker.connect("s1")
    worker.leave("s1", End("browser", Reason(EndReason.BROWSER_CRASHED)))
    worker.connect("s2")
    worker.not_served("s2")
    async with asyncio.timeout(BOUND_S):
        await worker.over.wait()
    assert worker.done[-1] == ("ended", "l1", "browser", "browser crashed")


async def test_a_lease_that_ended_meanwhile_is_over_with_a_client_that_was_not_served(worker: Worker) -> None:
    worker.borrow()
    worker.connect("s1")
    assert worker.ask("return") is None
    worker.not_served("s1")
    assert worker.done[-1] == ("ended", "l1", "grid", "returned")
    assert worker.slots.taken == 0


async def test_a_successor_has_the_leases_that_were_kept(worker: Worker, tmp_path: Path) -> None:
    worker.borrow("l1")
    worker.borrow("l2")
    worker.take("l3")
    worker.connect("s1")
    assert worker.path.stat().st_mode & 0o077 == 0
    successor = Worker(tmp_path)
    live = {"s1": "l1", "0123": ""}
    successor.leases.adopt(live)
    for session_id, lease_id in live.items():
        successor.slots.admit(LiveSession(session_id, lease_id=lease_id))
    assert successor.slots.taken == 3
    assert successor.slots.held.keys() == {"l1", "l2"}
    assert successor.slots.held["l1"].fields() == worker.slots.held["l1"].fields()
    assert successor.connect("s1", lease_id="l2") == [None]
    assert successor.ask("return") is None
    assert successor.done[-1] == ("close", "s1", "returned")
    successor.leave("s1", RETURNED)
    assert successor.slots.taken == 2


async def test_the_file_for_a_successor_has_no_secret(tmp_path: Path) -> None:
    worker = Worker(tmp_path)
    worker.keep(secret="of-the-borrower")
    written = worker.path.read_text()
    assert "of-the-borrower" not in written
    (entry,) = json.loads(written)
    successor = Worker(tmp_path)
    successor.leases.adopt({})
    assert successor.connect(secret=entry["digest"]) == ["no such lease"]
    assert successor.connect(secret="of-the-borrower") == [None]


async def test_a_lease_that_ran_out_without_a_worker_ends_with_its_successor(worker: Worker, tmp_path: Path) -> None:
    worker.borrow("l1")
    entries = json.loads(worker.path.read_text())
    entries[0]["expiresAt"] = time.time() - 5
    worker.path.write_text(json.dumps(entries))
    successor = Worker(tmp_path)
    successor.leases.adopt({})
    async with asyncio.timeout(BOUND_S):
        await successor.over.wait()
    assert successor.done == [("ended", "l1", "grid", "expired")]


@pytest.mark.parametrize("content", [None, b"", b"{]"])
async def test_a_successor_does_without_a_file_that_is_not_there(tmp_path: Path, content: bytes | None) -> None:
    worker = Worker(tmp_path)
    if content is not None:
        worker.path.write_bytes(content)
    worker.leases.adopt({})
    assert worker.slots.held == {}


async def test_a_lease_whose_client_is_back_is_not_ended_by_an_end_of_before(tmp_path: Path) -> None:
    worker = Worker(tmp_path, grace_s=BOUND_S)
    worker.borrow()
    waits = []
    for session_id in ("s1", "s2"):  # as a successor hears of them
        worker.leases.disconnected(session_id, "l1", DISCONNECTED)
        waits.append(worker.slots.held["l1"].grace)
    assert worker.connect("s3") == [None]
    assert [wait is not None and wait.cancelled() for wait in waits] == [True, True]


# The grid stops


async def test_a_lease_that_no_client_has_come_with_does_not_hold_up_a_stop(tmp_path: Path) -> None:
    worker = Worker(tmp_path, grace_s=600.0, slots=9)
    for lease_id in ("unused", "used", "between"):
        worker.borrow(lease_id)
    worker.take("under way")
    worker.connect("s1", lease_id="used")
    worker.connect("s2", lease_id="between")
    worker.leave("s2", lease_id="between")
    for _ in range(2):
        worker.leases.grid_stops()
    assert worker.slots.held.keys() == {"used", "between"}
    assert [each for each in worker.done if each[0] == "ended"] == [("ended", "unused", "grid", "grid stopped")]
    assert worker.ask("keep", "under way") == "no such lease"
    assert worker.take("later") == "draining"
    assert worker.connect("s4", lease_id="between") == [None]
    assert (worker.connect("s3", lease_id="unused"), worker.why_ended) == (["no such lease"], "grid stopped")
    assert [each["id"] for each in json.loads(worker.path.read_text())] == ["used", "between"]


async def test_a_lease_whose_first_client_is_not_served_while_the_grid_stops_is_over(worker: Worker) -> None:
    worker.borrow()
    worker.connect("s1")
    worker.leases.grid_stops()
    worker.not_served("s1")
    assert worker.done[-1] == ("ended", "l1", "grid", "grid stopped")


async def test_who_comes_with_a_lease_that_has_ended_hears_why_if_it_has_the_secret(worker: Worker) -> None:
    worker.borrow()
    assert worker.ask("return") is None
    for secret, why in (("s", "returned"), ("t", None), ("", None)):
        assert (worker.connect("s1", secret), worker.why_ended) == (["no such lease"], why)
    for number in range(MOST_ENDED):
        worker.borrow(f"l{number + 2}")
        assert worker.ask("return", f"l{number + 2}") is None
    assert (worker.connect("s1"), worker.why_ended) == (["no such lease"], None)


# The token that a lease was borrowed with


@pytest.fixture
def guarded(worker: Worker) -> Worker:
    """Its leases are borrowed with the token ci."""
    return with_token(worker)


def with_token(worker: Worker, name: str = "ci") -> Worker:
    create(Place(worker.tokens_file), name, Role.CLIENT, 0, ())
    worker.token = name, next(token.id for token in load(worker.tokens_file).all if token.name == name)
    return worker


def looks(worker: Worker, times: int = 2) -> None:
    for _ in range(times):
        worker.leases._look_at_tokens()


async def test_a_lease_ends_with_its_token_and_its_client_hears_that_at_once(guarded: Worker) -> None:
    guarded.borrow()
    looks(guarded)
    assert guarded.slots.taken == 1
    revoke(Place(guarded.tokens_file), "ci")
    assert (guarded.connect("s1"), guarded.why_ended) == (["no such lease"], "token revoked")
    assert guarded.slots.taken == 1
    looks(guarded)
    assert guarded.done[-1] == ("ended", "l1", "grid", "token revoked")
    assert (guarded.slots.taken, guarded.leases._next_look) == (0, None)
    assert (guarded.connect("s1"), guarded.why_ended) == (["no such lease"], "token revoked")


async def test_it_looks_by_itself_as_long_as_there_is_such_a_lease(
    guarded: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert TOKEN_CHECK_INTERVAL_S <= 1
    monkeypatch.setattr("pwgrid.worker.leases.TOKEN_CHECK_INTERVAL_S", 0.01)
    guarded.borrow()
    revoke(Place(guarded.tokens_file), "ci")
    async with asyncio.timeout(BOUND_S):
        await guarded.over.wait()
    assert guarded.leases._next_look is None


async def test_a_live_session_goes_on_and_is_its_lease_s_last_one(tmp_path: Path) -> None:
    worker = with_token(Worker(tmp_path, grace_s=600.0))
    worker.borrow()
    worker.connect("s1")
    waits = worker.connect("s2")
    revoke(Place(worker.tokens_file), "ci")
    looks(worker)
    assert waits == ["no such lease"]
    assert worker.slots.live.keys() == {"s1"}
    assert worker.connect("s3") == ["no such lease"]
    worker.leave("s1")
    assert worker.done[-1] == ("ended", "l1", "grid", "token revoked")
    assert worker.slots.taken == 0


async def test_a_token_of_the_same_name_is_another_one(guarded: Worker) -> None:
    guarded.borrow("l1")
    revoke(Place(guarded.tokens_file), "ci")
    with_token(guarded)
    guarded.borrow("l2")
    looks(guarded)
    assert guarded.slots.held.keys() == {"l2"}


async def test_a_file_that_is_replaced_in_two_steps_ends_no_lease(guarded: Worker) -> None:
    guarded.borrow()
    content = guarded.tokens_file.read_bytes()
    for _ in range(3):
        guarded.tokens_file.unlink()
        looks(guarded, 1)
        guarded.tokens_file.write_bytes(content)
        looks(guarded, 1)
    assert guarded.connect("s1") == [None]
    guarded.leave("s1", End("grid", Reason(EndReason.TOO_LATE)))
    guarded.tokens_file.unlink()  # for good: so are all its tokens
    looks(guarded)
    assert guarded.done[-1] == ("ended", "l1", "grid", "token revoked")


async def test_while_the_file_cannot_be_read_no_client_comes_and_no_lease_ends(guarded: Worker) -> None:
    guarded.borrow()
    content = guarded.tokens_file.read_bytes()
    guarded.tokens_file.write_bytes(b"{")
    assert guarded.connect("s1") == ["its token cannot be checked"]
    looks(guarded, 5)
    guarded.tokens_file.write_bytes(content)
    assert guarded.connect("s2") == [None]


async def test_a_lease_that_was_borrowed_without_a_token_goes_on_when_there_are_some(worker: Worker) -> None:
    worker.borrow()
    assert worker.leases._next_look is None
    create(Place(worker.tokens_file), "ci", Role.CLIENT, 0, ())
    looks(worker)
    assert worker.connect("s1") == [None]


@pytest.mark.parametrize("now", ["", "another"])
async def test_a_lease_ends_with_the_token_of_the_settings(worker: Worker, now: str) -> None:
    worker.token = "PWGRID_TOKEN", operators_token_id("s3cret")
    worker.borrow()
    looks(worker)  # the master has not told it yet
    worker.tokens.operators = operators_token_id("s3cret")
    looks(worker)
    assert worker.slots.taken == 1
    worker.tokens.operators = operators_token_id(now)
    assert worker.connect("s1") == ["no such lease"]
    looks(worker)
    assert worker.done[-1] == ("ended", "l1", "grid", "token revoked")


async def test_a_successor_ends_the_leases_of_a_token_that_was_revoked_without_a_worker(
    guarded: Worker, tmp_path: Path
) -> None:
    guarded.borrow("l1")
    guarded.borrow("l2")
    guarded.connect("s1", lease_id="l2")
    revoke(Place(guarded.tokens_file), "ci")
    successor = Worker(tmp_path)
    successor.leases.adopt({"s1": "l2"})
    assert successor.leases._next_look is not None
    assert successor.connect("s1") == ["no such lease"]
    looks(successor)
    assert successor.done == [("ended", "l1", "grid", "token revoked")]
    successor.leases.disconnected("s1", "l2", DISCONNECTED)
    assert successor.done[-1] == ("ended", "l2", "grid", "token revoked")
