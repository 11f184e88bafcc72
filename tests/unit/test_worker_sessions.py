"""When a worker records the starts and ends of its sessions, and answers their proxies."""

import asyncio
import contextlib
import json
import math
import os
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pwgrid.common.errors import BrowserServerGone
from pwgrid.common.launch_failure import BrowserLate, BrowserLaunchError
from pwgrid.common.profile_names import Profile, ProfileUse
from pwgrid.common.reasons import EndReason, OfferRefusal, Reason
from pwgrid.common.types import Isolation, Protocol
from pwgrid.common.worker_lifecycle import WorkerStatus
from pwgrid.profiles.store import ProfileStore
from pwgrid.registry.records import PROFILE
from pwgrid.tokens.file import changing
from pwgrid.tokens.tokens import Role, make
from pwgrid.worker import sessions as module
from pwgrid.worker.admission import Admission
from pwgrid.worker.handoff_server import HandoffServer
from pwgrid.worker.holders import End, Lease, LiveSession, OfferedClient, OwnBrowser, ProfileCopy, SessionClosed
from pwgrid.worker.leases import digest_of
from pwgrid.worker.slots import Slots

BOUND_S = 20.0


class Worker:
    """Its sessions, and what they had others do, in order. The browser server takes each client at once."""

    def __init__(self, directory: Path) -> None:
        self.tokens_file = directory / "tokens.json"
        self.done: list[str] = []
        self.offers = 0
        """How often it has said that it was offered something, as a spare has to."""
        self.told = asyncio.Event()
        self.slots = Slots(100)
        self.pid, self.profiles = os.getpid(), dict[str, Any]()
        settings = SimpleNamespace(borrow_reconnect_grace=0.0, profiles="off", max_concurrent_sessions=100)
        boot: Any = SimpleNamespace(
            directory=directory,
            worker_id="w",
            settings=settings,
            pool=SimpleNamespace(isolation=Isolation.CONTEXT, max_own_browsers=0),
            adopt_node_pid=None,
            tokens_file=self.tokens_file,
        )
        itself = cast("Any", self)
        handoff = HandoffServer(directory / "handoff.sock")
        self.admission = Admission(boot, self.slots, itself, handoff, self.on_offered, self.on_served)
        self.sessions = self.admission.sessions
        self.sessions.server = itself

    async def serve(self, *session_ids: str, **about: Any) -> None:
        """Serves clients, until the browser server has them."""
        ours, theirs = socket.socketpair()
        with ours, theirs:
            for session_id in session_ids:
                session = LiveSession(session_id, "c:1", **about)
                self.slots.admit(session)
                self.sessions.serve(OfferedClient(session, math.inf, {}, "", "", ours, self.answered))
            await asyncio.sleep(0)

    def answered(self, said: bytes) -> None:
        self.done.append(f"answer {json.loads(said)['session']}")

    def offered(self, token_id: str) -> str | None:
        """What a proxy hears that offers a client of the token ci; None if it hears nothing yet."""
        refused: list[str] = []
        self.slots.status = WorkerStatus.AVAILABLE
        with socket.socket() as sock:
            session = LiveSession(token_id, client_fields={"token": "ci"}, token_id=token_id)

            def answered(said: bytes) -> None:
                refused.append(json.loads(said)["refused"])

            self.admission._offered(OfferedClient(session, math.inf, {}, "", "", sock, answered))
        return refused[0] if refused else None

    async def joins(self, session_id: str, *, deadline: float = math.inf, keep_s: float = 0.0) -> str | None:
        """What a proxy hears whose client joins this session."""
        session = LiveSession("c1", protocol=Protocol.CDP, keep_s=keep_s)
        return await self._hears(session, deadline=deadline, joins=session_id)

    async def comes(
        self, session_id: str, *, token: str = "", lease: str = "", protocol: Protocol = Protocol.CDP
    ) -> str | None:
        """What a proxy hears whose client is to begin a session of this id."""
        self.slots.status = WorkerStatus.AVAILABLE
        session = LiveSession(session_id, lease_id=lease, protocol=protocol, client_fields={"token": token})
        return await self._hears(session)

    async def _hears(self, session: LiveSession, *, deadline: float = math.inf, joins: str = "") -> str | None:
        said: list[str | None] = []
        with socket.socket() as sock:
            client = OfferedClient(
                session,
                deadline,
                {},
                "",
                "x",
                sock,
                lambda packet: said.append(json.loads(packet)["refused"]),
                0.0,
                joins,
            )
            self.admission._offered(client)
            while not said:
                await asyncio.sleep(0)
        (refused,) = said
        return refused

    def on_offered(self) -> None:
        self.offers += 1

    def on_served(self) -> None:
        self.done.append("told")
        self.told.set()

    def end(self, session_id: str) -> None:
        """The browser server says that the session is over."""
        self.sessions.ended(SessionClosed(session_id, 1, 1, End("client", Reason(EndReason.CLIENT_DISCONNECTED))))

    # As its BrowserServer

    def hand_over(self, _client: OfferedClient) -> asyncio.Future[None]:
        taken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        taken.set_result(None)
        return taken

    async def acquire(self, session_id: str, *_: object) -> None:
        self.done.append(f"acquire {session_id}")
        await asyncio.Event().wait()

    def give_back(self, session_id: str) -> None:
        self.done.append(f"give back {session_id}")

    async def has_reported(self, _timeout_s: float) -> None:
        """Every end at once."""

    def end_kept(self, session_id: str, reason: str) -> None:
        self.close_session(session_id, reason, None)

    def close_session(self, session_id: str, reason: str, _text: str | None) -> None:
        self.done.append(f"close {session_id}: {reason}")

    # As its RegistrySync

    def mark_served(self, session: LiveSession) -> None:
        session.is_served = True

    def take_over(self, sessions: Iterable[str]) -> None:
        self.taken_over = [*sessions]

    def beat_soon(self) -> None:
        self.done.append("beat")

    def started(self, session: LiveSession) -> None:
        self.done.append(f"start {session.id}")

    def ended(self, closed: SessionClosed, _session: LiveSession | None, _on_record: Any) -> None:
        self.done.append(f"end {closed.session_id}")


@pytest.fixture
async def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Worker]:
    """It records nothing because of time alone."""
    monkeypatch.setattr(module, "RECORD_DELAY_S", 3600)
    worker = Worker(tmp_path)
    yield worker
    worker.admission.close()


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


@pytest.mark.parametrize("own", [None, OwnBrowser(math.inf)], ids=["in the shared browser", "in its own"])
async def test_a_spare_hears_of_the_session_for_which_it_has_to_serve(worker: Worker, own: OwnBrowser | None) -> None:
    await worker.serve("a", own=own)
    assert worker.offers == 1
    worker.slots.slots = 1
    assert await worker.comes("b") == "full"
    assert worker.offers == 1


async def test_a_spare_hears_of_the_lease_for_which_it_has_to_serve(worker: Worker) -> None:
    worker.slots.status = WorkerStatus.AVAILABLE
    asks = {"do": "take", "id": "l1", "client": "c:1", "clientFields": {}, "secret": "x"}
    asks |= {"expiresAt": time.time() + BOUND_S, "deadline": math.inf}
    assert worker.admission.asked(1, asks) == {"refused": None}
    assert worker.offers == 1


@contextlib.contextmanager
def asking_for_own_browser(worker: Worker, heard: Callable[[bytes], None]) -> Iterator[None]:
    """A client that waits for a browser of its own, for the length of the block; its proxy hears what is answered."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        session = LiveSession("a", "c:1", own=OwnBrowser(math.inf))
        worker.slots.admit(session)
        worker.sessions.serve(OfferedClient(session, math.inf, {}, "", "", ours, heard))
        yield


async def refusal_of_own_browser(worker: Worker) -> str:
    """Why such a client gets none."""
    return str((await answer_to_own_browser(worker))["refused"])


async def answer_to_own_browser(worker: Worker) -> dict[str, Any]:
    """What the proxy of such a client hears in the end."""
    refused = asyncio.get_running_loop().create_future()

    def heard(packet: bytes) -> None:
        if "refused" in (said := json.loads(packet)):
            refused.set_result(said)

    with asking_for_own_browser(worker, heard):
        async with asyncio.timeout(BOUND_S):
            found: dict[str, Any] = await refused
    return found


@pytest.mark.parametrize(
    ("in_use", "error", "reason", "detail"),
    [
        (2, BrowserLate("late"), OfferRefusal.OWN_FULL, "all 2 of its worker are in use (MAX_OWN_BROWSERS)"),
        (1, BrowserLate("late"), OfferRefusal.NOT_IN_TIME, "late"),
        (2, BrowserLaunchError("no such channel"), OfferRefusal.NOT_LAUNCHED, "no such channel"),
    ],
)
async def test_who_waited_in_vain_for_an_own_browser_to_end_hears_that_and_not_that_its_own_did_not_start(
    worker: Worker,
    monkeypatch: pytest.MonkeyPatch,
    in_use: int,
    error: BrowserLaunchError,
    reason: OfferRefusal,
    detail: str,
) -> None:
    async def acquire(*_: object) -> None:
        raise error

    worker.sessions._boot.pool.max_own_browsers = 2  # type: ignore[misc]
    for number in range(in_use):
        worker.slots.admit(LiveSession(f"has{number}", "c:1", own=OwnBrowser(math.inf)))
    monkeypatch.setattr(worker, "acquire", acquire)
    answer = await answer_to_own_browser(worker)
    assert (answer["refused"], answer["detail"]) == (reason, detail)
    assert worker.slots.taken == in_use


@pytest.mark.parametrize("has_begun", [False, True])
async def test_a_client_that_waits_for_its_own_browser_is_answered_when_its_worker_cuts_its_sessions(
    worker: Worker, has_begun: bool
) -> None:
    with asking_for_own_browser(worker, worker.answered):
        if has_begun:
            await asyncio.sleep(0)
        async with asyncio.timeout(BOUND_S):
            await worker.sessions.cut(Reason(EndReason.WORKER_STOPPED), None)
    # What it first hears is that it waits.
    assert worker.done == ["answer a", *(["acquire a"] * has_begun), "give back a", "answer a"]
    assert worker.slots.taken == 0


async def test_a_client_that_waits_for_its_own_browser_may_go_elsewhere_when_the_browser_server_is_gone(
    worker: Worker,
) -> None:
    heard: list[dict[str, Any]] = []
    await worker.serve("served")
    with asking_for_own_browser(worker, lambda packet: heard.append(json.loads(packet))):
        await asyncio.sleep(0)
        worker.admission.all_ended("browser", EndReason.BROWSER_SERVER_LOST)
    assert heard[-1]["refused"] == OfferRefusal.GONE
    assert [each for each in worker.done if each.startswith("end")] == ["end served"]
    assert worker.slots.taken == 0


async def test_a_client_on_its_way_to_a_browser_server_that_hangs_is_no_session_and_may_go_elsewhere(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[dict[str, Any]] = []
    on_its_way = asyncio.get_running_loop().create_future()
    monkeypatch.setattr(worker, "hand_over", lambda _client: on_its_way)
    with socket.socket() as sock:
        session = LiveSession("a", "c:1")
        worker.slots.admit(session)
        worker.sessions.serve(
            OfferedClient(session, math.inf, {}, "", "", sock, lambda packet: heard.append(json.loads(packet)))
        )
        worker.admission.all_ended("grid", EndReason.HUNG)
        assert heard == []  # it may still get there
        on_its_way.set_exception(BrowserServerGone())
        await asyncio.sleep(0)
    assert [each["refused"] for each in heard] == [OfferRefusal.GONE]
    assert worker.done == []
    assert worker.slots.taken == 0


async def test_the_browser_of_a_client_that_does_not_get_to_it_is_given_back(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def acquire(*_: object) -> None: ...

    async def hand_over() -> None:
        raise OSError("Node has no descriptor free")

    monkeypatch.setattr(worker, "acquire", acquire)
    monkeypatch.setattr(worker, "hand_over", lambda _client: asyncio.ensure_future(hand_over()))
    assert await refusal_of_own_browser(worker) == OfferRefusal.GONE
    assert "give back a" in worker.done
    assert worker.slots.taken == 0


async def test_the_proxy_of_a_client_that_waits_for_its_own_browser_hears_of_it_again_and_again(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PROMISE_AGAIN_S", 0)
    said: list[float] = []
    enough = asyncio.Event()

    def heard(packet: bytes) -> None:
        if promised := json.loads(packet).get("promised"):
            said.append(promised)
        if len(said) == 3:
            enough.set()

    with asking_for_own_browser(worker, heard):
        async with asyncio.timeout(BOUND_S):
            await enough.wait()
    assert said == sorted({*said})


@pytest.mark.parametrize("is_there", [False, True], ids=["on its way", "there"])
async def test_a_worker_that_was_frozen_meanwhile_ends_the_browser_and_refuses_the_client(
    worker: Worker, monkeypatch: pytest.MonkeyPatch, is_there: bool
) -> None:
    monkeypatch.setattr(module, "PROMISE_S", 0)
    monkeypatch.setattr(module, "PROMISE_AGAIN_S", 3600 if is_there else 0)

    async def acquire(*_: object) -> None:
        if not is_there:
            await asyncio.Event().wait()

    monkeypatch.setattr(worker, "acquire", acquire)
    assert await refusal_of_own_browser(worker) == "late"
    assert "give back a" in worker.done
    assert worker.slots.taken == 0


async def test_the_sessions_of_a_token_end_and_none_that_is_on_its_way_begins(worker: Worker) -> None:
    ci, again, other = (make(name, Role.CLIENT, 0, (), 0.0)[0] for name in ("ci", "ci", "other"))
    with changing(worker.tokens_file) as tokens:
        tokens["ci"], tokens["other"] = ci, other
    await worker.serve("a", client_fields={"token": "ci"}, token_id=ci.id)
    await worker.serve("b", client_fields={"token": "ci"}, token_id=ci.id)
    await worker.serve("c", client_fields={"token": "other"}, token_id=other.id)
    worker.done.clear()
    worker.admission.end_of_tokens(["ci"])  # which is there: the command takes it out of the file first
    assert worker.done == []
    with changing(worker.tokens_file) as tokens:
        del tokens["ci"]
    content = worker.tokens_file.read_bytes()
    worker.tokens_file.write_bytes(b"{")
    worker.admission.end_of_tokens(["ci"])
    assert worker.done == []  # nobody knows
    worker.tokens_file.write_bytes(content)
    worker.admission.end_of_tokens(["ci"])
    assert worker.done == ["close a: token revoked", "close b: token revoked"]
    for session_id in ("a", "b"):
        worker.slots.free(session_id)
    with changing(worker.tokens_file) as tokens:
        tokens["ci"] = again
    assert [worker.offered(token.id) for token in (ci, again)] == ["token revoked", None]
    worker.done.clear()
    worker.admission.end_of_tokens(["ci"])  # the next state of the master says it again
    assert worker.done == []


async def test_a_lease_of_such_a_token_ends_with_the_session_that_came_with_it(worker: Worker) -> None:
    lease = Lease("l1", client_fields={"token": "ci"}, token_id="aa", digest="", expires_at=0.0, connected="s1")
    worker.slots.hold(lease)
    await worker.serve("s1", lease_id="l1")
    with changing(worker.tokens_file):
        pass
    worker.done.clear()
    worker.admission.end_of_tokens(["ci"])
    assert worker.done == ["close s1: token revoked"]
    assert lease.over == End("grid", Reason(EndReason.TOKEN_REVOKED))


async def test_a_successor_ends_the_sessions_of_a_token_that_was_revoked_before_it_came(worker: Worker) -> None:
    (ci, _), (again, _) = (make("ci", Role.CLIENT, 0, (), 0.0) for _ in range(2))
    with changing(worker.tokens_file) as tokens:
        tokens["ci"] = again
    worker.admission.end_of_tokens(["ci"])
    live = {"a": {"token": "ci", "tokenId": ci.id}, "b": {"token": "ci", "tokenId": again.id}}
    worker.admission.adopt(cast("Any", worker), live)
    assert worker.done == ["close a: token revoked"]
    assert [each.client_fields for each in worker.slots.live.values()] == [{"token": "ci"}] * 2


async def test_a_successor_knows_the_lease_of_each_session_also_of_one_that_is_over(worker: Worker) -> None:
    worker.slots.hold(Lease("l1", digest="", expires_at=0.0))
    live = {"a": {"name": "Smoke 12", "lease": "l1"}, "b": {"lease": "not to be read"}, "c": {}}
    worker.sessions.adopt(cast("Any", worker), live)
    found = [(each.id, each.lease_id, each.client_fields) for each in worker.slots.live.values()]
    assert found == [("a", "l1", {"name": "Smoke 12"}), ("b", "", {}), ("c", "", {})]
    assert worker.slots.taken == 3
    over: list[tuple[str, str, End | None]] = []
    worker.sessions.on_over = lambda *what: over.append(what)
    worker.sessions._is_successor = True
    end = End("client", Reason(EndReason.CLIENT_DISCONNECTED))
    for closed in (SessionClosed("a", 1, 1, end, "l1"), SessionClosed("before", 1, 1, end, "l1")):
        worker.sessions.ended(closed)
    assert over == [("a", "l1", end), ("before", "l1", end)]


@pytest.mark.parametrize("lease_id", ["", "l1"], ids=["of a session", "of a lease"])
async def test_a_profile_that_is_being_saved_is_in_use_though_its_browser_server_has_ended(
    worker: Worker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lease_id: str
) -> None:
    """Also where the session's end has begun under this worker's predecessor, whose browser server told that."""
    profile, holder, may_save = Profile("", "shop"), f"w-{lease_id}" if lease_id else "a", threading.Event()
    settings = worker.sessions.profiles._settings
    settings.profiles_dir, settings.profile_max_mib = str(tmp_path / "profiles"), 1
    store, copy = ProfileStore(tmp_path / "profiles"), ProfileCopy(profile, tmp_path / "copy")
    monkeypatch.setattr(ProfileStore, "save", lambda *_: may_save.wait(BOUND_S))
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as node:
        worker.pid, worker.profiles = node.pid, {"a": copy}
        store.take(profile, ProfileUse(holder, 0.0), node.pid, 1)
        if lease_id:
            fields = {PROFILE: "shop"}
            worker.slots.hold(Lease(lease_id, client_fields=fields, digest="", expires_at=0.0, connected="a"))
        worker.sessions.adopt(cast("Any", worker), {"a": {"lease": lease_id} if lease_id else {}})
        end = End("grid", Reason(EndReason.WORKER_STOPPED))
        worker.admission.leases.cut(end)
        worker.sessions.ended(SessionClosed("a", 1, 1, end, lease_id, copy, is_in_order=True))
        await worker.sessions.profiles.settled()
    try:
        assert store.use_of(profile) == ProfileUse(holder, 0.0, is_ending=True)
        assert worker.admission.has_profiles
    finally:
        may_save.set()
    await worker.sessions.profiles_saved()
    assert store.use_of(profile) is None
    assert not worker.admission.has_profiles


async def test_half_a_copy_is_saved_by_no_successor(
    worker: Worker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker may be killed while it removes a copy that it has saved."""
    copy, removed = tmp_path / "own/profile-a", list[bool]()
    worker.sessions.profiles._settings.profiles_dir = str(tmp_path / "profiles")
    copy.mkdir(parents=True)
    monkeypatch.setattr(shutil, "rmtree", lambda *_, **__: removed.append(copy.exists()))
    await worker.sessions.profiles._let_go(Profile("", "shop"), "a", copy)
    assert removed
    assert not any(removed)


async def test_a_profile_is_told_of_when_it_is_taken(worker: Worker, tmp_path: Path) -> None:
    """So the master knows what its worker has to save before it may ask that to end."""
    settings, told = worker.sessions.profiles._settings, list[bool]()
    settings.profiles_dir, settings.profiles_max = str(tmp_path / "profiles"), 2
    worker.sessions.profiles.on_taken = lambda: told.append(worker.admission.has_profiles)
    (tmp_path / "own").mkdir()
    assert not worker.admission.has_profiles
    await worker.sessions.profiles.take(LiveSession("a"), Profile("", "shop"), os.getpid(), math.inf)
    worker.sessions.profiles.drop("a")
    lease = Lease("l1", client_fields={PROFILE: "other"}, digest="", expires_at=0.0)
    worker.slots.hold(lease)
    await worker.sessions.profiles.take_for_lease(lease, Profile("", "other"), os.getpid())
    assert told == [True, True]
    worker.slots.free("l1")
    assert not worker.admission.has_profiles
    await worker.sessions.profiles_saved()


async def test_a_proxy_ends_a_session_that_is_there_and_hears_of_one_that_is_not(worker: Worker) -> None:
    await worker.serve("a")
    assert worker.admission.asked(1, {"do": "end session", "id": "b"}) == {"refused": "no such session"}
    assert not any(each.startswith("close") for each in worker.done)
    assert worker.admission.asked(1, {"do": "end session", "id": "a"}) == {"refused": None}
    assert "close a: ended by operator" in worker.done


async def test_a_client_joins_a_cdp_session_and_no_other_one(worker: Worker) -> None:
    cdp, playwright = LiveSession("cdp", protocol=Protocol.CDP), LiveSession("pw")
    coming = LiveSession("coming", protocol=Protocol.CDP)
    for each in (cdp, playwright, coming):
        worker.slots.admit(each)
    cdp.is_served = playwright.is_served = True
    cdp.keep_s = 60.0
    assert await worker.joins("cdp") is None
    assert await worker.joins("pw") == "no such session"
    assert await worker.joins("unknown") == "no such session"
    assert await worker.joins("coming") == "not yet"
    assert await worker.joins("cdp", deadline=0.0) == "late"
    assert cdp.keep_s == 60.0
    await worker.joins("cdp", keep_s=5.0)
    assert cdp.keep_s == 5.0  # the last one that says counts
    assert worker.slots.taken == 3


async def test_who_asks_for_a_session_that_another_proxy_has_begun_joins_it_if_it_is_the_same_owner_s(
    worker: Worker,
) -> None:
    session = LiveSession("s1", protocol=Protocol.CDP, is_served=True, client_fields={"token": "ci"})
    worker.slots.admit(session)
    assert await worker.comes("s1", token="ci") is None
    assert await worker.comes("s1", token="other") == "no such session"
    worker.slots.hold(Lease("l1", digest="", expires_at=0.0))
    assert await worker.comes("l1", token="ci") == "no such session"
    assert worker.slots.taken == 2


async def test_a_session_is_kept_until_a_client_comes_back(worker: Worker) -> None:
    await worker.serve("a", "b", protocol=Protocol.CDP)
    worker.sessions.on_kept = lambda: worker.done.append(f"kept {[each.id for each in worker.slots.kept()]}")
    worker.done.clear()
    worker.sessions.has_clients("b", 60.0)
    worker.sessions.has_clients("a", 30.0)
    worker.sessions.has_clients("unknown", 30.0)
    assert worker.done == ["beat", "kept ['b']", "beat", "kept ['b', 'a']"]
    assert worker.slots.taken == 2
    worker.sessions.has_clients("b", None)
    assert worker.done[-1] == "kept ['a']"
    worker.sessions.end_kept(Reason(EndReason.KEPT_IN_DRAIN, "shutdown"))
    assert worker.done[-1] == "close a: its worker drained while it was kept: shutdown"
    worker.sessions.end_kept(Reason(EndReason.KEPT_FOR_MEMORY), "b")
    assert worker.done[-1].startswith("close a")  # that has a client


async def test_a_worker_tells_proxies_whose_session_it_is(worker: Worker) -> None:
    worker.slots.hold(Lease("l1", client_fields={"token": "ci"}, digest="", expires_at=0.0))
    worker.slots.admit(LiveSession("s1", lease_id="l1", protocol=Protocol.CDP))
    worker.slots.admit(LiveSession("s2", client_fields={"token": "other"}))
    assert worker.admission.asked(1, {"do": "tell of session", "id": "s1"}) == {
        "refused": None,
        "token": "ci",
        "protocol": "cdp",
    }
    assert worker.admission.asked(1, {"do": "tell of session", "id": "s2"})["protocol"] == "playwright"
    assert worker.admission.asked(1, {"do": "tell of session", "id": "l1"}) == {"refused": "no such session"}


async def test_cdp_clients_with_one_lease_share_its_browser(worker: Worker) -> None:
    worker.slots.hold(lease := Lease("l1", digest=digest_of("x"), expires_at=math.inf, is_answered=True))
    session = LiveSession("s1", lease_id="l1", protocol=Protocol.CDP, is_served=True)
    worker.slots.admit(session)
    lease.connected = "s1"
    assert await worker.comes("s2", lease="l1", protocol=Protocol.CDP) is None
    assert worker.slots.live.keys() == {"s1"}
    assert lease.connected == "s1"


async def test_a_successor_knows_which_sessions_speak_cdp(worker: Worker) -> None:
    worker.admission.adopt(cast("Any", worker), {"a": {"protocol": "cdp"}, "b": {}})
    assert worker.sessions.speaks_cdp("a")
    assert not worker.sessions.speaks_cdp("b")
    assert worker.taken_over == ["a"]  # whose records may say that they are kept
