"""The one producer behind all pages: runs while somebody looks, tells what has changed, waits for no slow page."""

import asyncio
import itertools
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from pwgrid.common.errors import Refused, RegistryUnavailable
from pwgrid.common.redis_faults import FaultKind, RedisFault
from pwgrid.proxy.ask_master import AskMaster, MasterGone
from pwgrid.proxy.connect.connect_metrics import ConnectFigures
from pwgrid.proxy.dashboard import feed as module
from pwgrid.proxy.dashboard.feed import Feed, Page, ShownSessions
from pwgrid.proxy.roster import Roster
from pwgrid.proxy.select.claim import Claim
from pwgrid.proxy.select.queue import Queue
from pwgrid.registry.records import Activity, SessionRecord
from pwgrid.settings.model import Settings
from tests.support.lone_host import LoneHost
from tests.support.state_frames import told_of_pool

BOUND_S = 20.0


def record(session_id: str, status: str, reason: str | None = None) -> SessionRecord:
    ended_at = None if status in ("pending", "running") else 9.0
    return SessionRecord(session_id, "chromium", "a", status, reason, 1.0, 2.0, ended_at, "1.2.3.4:5", 0, 0, {})


class Registry:
    """Stands in for Redis: what there is, and what was asked of it."""

    def __init__(self) -> None:
        self.records: dict[str, SessionRecord] = {}
        self.looks = 0
        self.read: list[str] = []
        self.is_away = self.is_full = False
        self.kept: list[str] = []

    async def samples(self) -> list[str]:
        return list(self.kept)

    async def keep_sample(self, sample: str, *, at_most: int, ttl_s: float) -> None:
        if self.is_full:
            raise RegistryUnavailable("Redis refused: …", RedisFault(FaultKind.MEMORY_FULL, "OOM full"))
        self.kept = [*self.kept, sample][-at_most:]

    async def activity(self) -> Activity:
        self.looks += 1
        if self.is_away:
            raise RegistryUnavailable("Redis at /run/redis.sock is away")
        live = sum(each.status == "running" for each in self.records.values())
        return Activity({"chromium:a": live}, {"chromium:a": len(self.records)}, {"failed": self._ended()}, {}, None)

    async def session_ids(self, fields: list[str], **_: Any) -> tuple[dict[str, frozenset[str]], list[str]]:
        live = frozenset(key for key, each in self.records.items() if each.status in ("pending", "running"))
        return dict.fromkeys(fields, live), [*self.records]

    async def session_records(self, ids: list[str]) -> dict[str, SessionRecord]:
        if self.is_away:
            raise RegistryUnavailable("Redis at /run/redis.sock is away")
        self.read += ids
        return {key: self.records[key] for key in ids if key in self.records}

    def _ended(self) -> int:
        return sum(each.ended_at is not None for each in self.records.values())


class Master:
    asked = 0
    left_s: float | None = None
    """How long the sessions of the worker a have."""

    async def ask(self, _name: str) -> dict[str, Any]:
        self.asked += 1
        workers = [] if self.left_s is None else [{"id": "a", "drainLeftS": self.left_s}]
        return {"workers": workers, "pools": [], "host": {"availableMib": 77}}


class Grid:
    def __init__(self) -> None:
        self.roster = Roster()
        self.roster.replace({"pools": {"chromium": told_of_pool()}, "workers": []})
        self.registry = Registry()
        self.gateway = SimpleNamespace(figures=ConnectFigures())
        self.settings = Settings()
        self.master = Master()
        self.queue = Queue(self._never, self._never, Settings(max_queue=0))

    async def _never(self, _claim: Claim) -> None:
        raise AssertionError("nobody stands in line")


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TICK_S", "QUIET_TICK_S", "IDLE_TICK_S", "ROSTER_S"):
        monkeypatch.setattr(module, name, 0.001)


def made(grid: Grid) -> Feed:
    parts: Any = (grid.settings, grid.registry, grid.queue, grid.gateway.figures, grid.master, LoneHost(grid.roster))
    return Feed(*parts)


async def told(page: Page) -> dict[str, Any]:
    async with asyncio.timeout(BOUND_S):
        message: dict[str, Any] = orjson.loads(await page.messages.get())
    return message


async def test_a_page_is_told_everything_and_then_only_what_has_changed() -> None:
    grid = Grid()
    feed = made(grid)
    async with feed.page() as page:
        first = await told(page)
        assert first["all"] is True
        assert first["set"]["grid"]["hostAvailableMib"] == 77
        assert first["set"]["sessions"] == {}
        grid.registry.records["s"] = record("s", "running")
        second = await told(page)
        assert second["set"]["grid"] == {"active": 1}
        assert second["set"]["sessions"].keys() == {"s"}
        assert second["set"]["sessions"]["s"]["status"] == "running"
        grid.registry.records["s"] = record("s", "failed", "memory limit")
        third = await told(page)
        assert third["set"]["sessions"]["s"]["reason"] == "memory limit"
        assert [each["text"] for each in third["events"]] == ["session s failed: memory limit"]


async def test_where_nobody_has_a_session_it_is_looked_at_again_once_a_client_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "IDLE_TICK_S", 3600)
    grid = Grid()
    feed = made(grid)
    async with feed.page() as page:
        await told(page)
        await asyncio.sleep(0.05)
        looks = grid.registry.looks
        assert looks == 1  # although it has found something new
        grid.registry.records["s"] = record("s", "running")
        await asyncio.sleep(0.05)
        assert (grid.registry.looks, page.messages.empty()) == (looks, True)
        feed.client_came()
        assert (await told(page))["set"]["grid"] == {"active": 1}
        grid.registry.records["s"] = record("s", "completed", "client disconnected")
        assert (await told(page))["set"]["grid"]["active"] == 0  # nobody has told of that


async def test_short_sessions_that_no_look_finds_are_no_reason_to_look_at_each_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "TICK_S", 3600)
    monkeypatch.setattr(module, "IDLE_TICK_S", 3600)
    grid = Grid()
    feed = made(grid)
    async with feed.page() as page:
        await told(page)
        await asyncio.sleep(0)
        grid.registry.records["s"] = record("s", "completed")
        feed.client_came()
        assert (await told(page))["set"]["sessions"].keys() == {"s"}
        await asyncio.sleep(0)
        grid.registry.records["t"] = record("t", "completed")
        feed.client_came()
        await asyncio.sleep(0.05)
        assert page.messages.empty()  # it is told with the next tick


async def test_a_second_page_is_told_everything_at_once_and_the_first_nothing_again() -> None:
    feed = made(Grid())
    async with feed.page() as page:
        await told(page)
        async with feed.page() as other:
            assert (await told(other))["all"] is True
            assert page.messages.empty()


async def test_nobody_asks_redis_or_the_master_for_a_page_that_nobody_looks_at() -> None:
    grid = Grid()
    feed = made(grid)
    async with feed.page() as page:
        await told(page)
    looks, asked = grid.registry.looks, grid.master.asked
    await asyncio.sleep(0.05)
    assert (grid.registry.looks, grid.master.asked) == (looks, asked)
    assert [task.get_name() for task in asyncio.all_tasks() if task.get_name() == "dashboard"] == []


async def test_the_history_is_kept_without_a_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PERIOD_S", 0.001)
    grid = Grid()
    grid.registry.records["s"] = record("s", "running")
    feed = made(grid)
    grid.gateway.figures.handed_off = 3
    grid.gateway.figures.note_wait(1.25)
    keeping = asyncio.create_task(feed.keep_history())
    async with asyncio.timeout(BOUND_S):
        while feed.history.last < 2:
            await asyncio.sleep(0)
    keeping.cancel()
    first, second = feed.history.since(0)[:2]
    assert first[1:] == (1, 3, 0, 0, 1.25, 0)
    assert second[1:] == (1, 0, 0, 0, 0.0, 0)


async def test_the_history_goes_on_with_what_the_proxy_before_has_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PERIOD_S", 0.001)
    grid, now = Grid(), time.time()
    old, good = [now - 4000, 1, 2, 3, 4, 0.5, 6], [now - 20, None, 2, 3, 4, 0.5, None]
    grid.registry.kept = [orjson.dumps(each).decode() for each in (old, good, [now], "x", [now, "a", 1, 1, 1, 1, 1])]
    grid.registry.kept += ["no JSON"]
    feed = made(grid)
    keeping = asyncio.create_task(feed.keep_history())
    async with asyncio.timeout(BOUND_S):
        while feed.history.last < 2:
            await asyncio.sleep(0)
    keeping.cancel()
    first, second = feed.history.since(0)[:2]
    assert first == tuple(good)
    assert orjson.loads(grid.registry.kept[6]) == list(second)


async def test_the_end_of_a_drain_does_not_move_while_the_master_is_not_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The master says how long is left; that was so when it said it."""
    clock = itertools.count(1000.0)
    monkeypatch.setattr(module, "time", SimpleNamespace(time=lambda: next(clock), monotonic=time.monotonic))
    grid = Grid()
    worker = {"id": "a", "browserType": "chromium", "status": "draining"}
    grid.roster.replace({"pools": {"chromium": told_of_pool()}, "workers": [worker]})
    feed = made(grid)
    grid.master.left_s = 30.0
    async with feed.page() as page:
        assert (await told(page))["set"]["workers"]["a"]["drainUntil"] == 1030
        grid.registry.records["s"] = record("s", "completed")
        assert (await told(page))["set"]["workers"]["a"]["drainUntil"] == 1030


async def test_a_master_that_is_lost_is_not_asked() -> None:
    grid = Grid()
    grid.roster.lost = "the master has said nothing for 30 s"
    feed = made(grid)
    async with feed.page() as page:
        assert "the master has said nothing for 30 s" in (await told(page))["set"]["grid"]["stale"]
    assert grid.master.asked == 0


async def test_a_record_that_cannot_have_changed_is_not_read_again() -> None:
    grid = Grid()
    grid.registry.records = {"old": record("old", "completed"), "live": record("live", "running")}
    feed = made(grid)
    async with feed.page() as page:
        await told(page)
        grid.registry.records["new"] = record("new", "running")
        await told(page)
    assert sorted(grid.registry.read) == ["live", "new", "old"]


async def test_a_session_that_is_still_on_its_way_and_one_that_is_touched_are_read_again() -> None:
    registry = Registry()
    shown = ShownSessions(registry, lambda _record: None)  # type: ignore[arg-type]
    registry.records = {"p": record("p", "pending"), "r": record("r", "running")}
    await shown.refresh(await registry.activity())
    registry.records["p"] = record("p", "running")
    await shown.refresh(await registry.activity())
    assert shown.rows["p"]["status"] == "running"
    shown.touch("r")
    await shown.refresh(await registry.activity())
    assert registry.read == ["p", "r", "p", "r"]
    shown.touch("r")
    activity = await registry.activity()
    registry.is_away = True
    with pytest.raises(RegistryUnavailable):
        await shown.refresh(activity)
    registry.is_away = False
    await shown.refresh(activity)
    assert registry.read == ["p", "r", "p", "r", "r"]


async def test_a_page_that_does_not_read_waits_for_nobody_and_gets_everything_later() -> None:
    grid = Grid()
    feed = made(grid)
    async with feed.page() as slow, feed.page() as quick:
        await told(quick)
        for number in range(30):
            grid.registry.records[f"s{number}"] = record(f"s{number}", "running")
            assert "sessions" in (await told(quick))["set"]
        assert slow.messages.qsize() <= module._UNSENT
        messages = [await told(slow) for _ in range(slow.messages.qsize())]
    assert messages[0]["all"] is True
    sessions: dict[str, Any] = {}
    for message in messages:
        sessions |= message["set"].get("sessions", {})
    assert len(sessions) == 30


async def test_a_redis_that_is_away_is_said_without_its_path() -> None:
    grid = Grid()
    feed = made(grid)
    async with feed.page() as page:
        await told(page)
        grid.registry.is_away = True
        stale = (await told(page))["set"]["grid"]["stale"]
        assert stale == ["the registry does not answer: Redis at redis.sock is away"]
        grid.registry.is_away = False
        assert (await told(page))["set"]["grid"]["stale"] == []


async def test_a_redis_that_takes_no_writes_is_said_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pwgrid.proxy.dashboard.feed.PERIOD_S", 0.01)
    grid = Grid()
    feed = made(grid)
    keeps = asyncio.create_task(feed.keep_history())
    async with feed.page() as page:
        await told(page)
        grid.registry.is_full = True
        why = "clients are served without Redis: it takes no writes, since its memory is full (OOM full)"
        while (await told(page))["set"].get("grid", {}).get("stale") != [why]:
            pass
        grid.registry.is_full = False
        while (await told(page))["set"].get("grid", {}).get("stale") != []:
            pass
    keeps.cancel()


async def test_a_feed_that_ends_sends_its_pages_away() -> None:
    feed = made(Grid())
    async with feed.page() as page:
        feed.close()
        assert page.ended.is_set()


async def test_a_fault_of_the_producer_sends_its_pages_away_and_the_next_one_starts_another() -> None:
    grid = Grid()
    feed = made(grid)
    async with feed.page() as page:
        queue, feed._queue = feed._queue, None  # type: ignore[assignment]
        async with asyncio.timeout(BOUND_S):
            await page.ended.wait()
    feed._queue = queue
    async with feed.page() as page:
        assert (await told(page))["all"] is True


# The master


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as made:
        made.bind(str(tmp_path / "c"))
        made.listen()
        made.setblocking(False)
        yield made


async def accepted(listener: socket.socket) -> socket.socket:
    connection, _ = await asyncio.get_running_loop().sock_accept(listener)
    return connection


async def answer(connection: socket.socket, frame: dict[str, Any]) -> dict[str, Any]:
    loop = asyncio.get_running_loop()
    question: dict[str, Any] = orjson.loads(await loop.sock_recv(connection, 65536))
    await loop.sock_sendall(connection, orjson.dumps(frame))
    return question


async def test_each_question_to_the_master_has_a_connection_of_its_own(listener: socket.socket, tmp_path: Path) -> None:
    master = AskMaster(tmp_path / "c")
    asked = [asyncio.create_task(master.ask(*each)) for each in (("status",), ("scale", {"chromium": 3}))]
    with await accepted(listener) as first:
        assert await answer(first, {"t": "reply", "data": {"n": 1}}) == {"t": "request", "name": "status", "data": {}}
        assert await asked[0] == {"n": 1}
        assert first.recv(1) == b""
    with await accepted(listener) as second:
        assert (await answer(second, {"t": "error", "error": "the grid is stopping"}))["data"] == {"chromium": 3}
        with pytest.raises(Refused, match="the grid is stopping"):
            await asked[1]


async def test_a_master_that_ends_with_the_question_is_gone(listener: socket.socket, tmp_path: Path) -> None:
    asked = asyncio.create_task(AskMaster(tmp_path / "c").ask("status"))
    (await accepted(listener)).close()
    with pytest.raises(MasterGone, match="the master does not answer"):
        await asked


async def test_a_frozen_master_is_asked_once(
    listener: socket.socket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pwgrid.proxy.ask_master.ANSWER_S", 0.05)
    master = AskMaster(tmp_path / "c")
    for _ in range(3):
        with pytest.raises(MasterGone, match="the master does not answer"):
            await master.ask("status")
    connection = await accepted(listener)
    with pytest.raises(BlockingIOError):
        listener.accept()
    connection.close()


async def test_no_master_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(MasterGone, match="the master does not answer"):
        await AskMaster(tmp_path / "c").ask("status")


async def test_records_of_sessions_that_may_be_kept_are_read_again_while_there_are_any() -> None:
    registry = Registry()
    shown = ShownSessions(registry, lambda _record: None)  # type: ignore[arg-type]

    def cdp(**fields: str) -> SessionRecord:
        return SessionRecord.read("c", {"status": "running", "protocol": "cdp", **fields})

    registry.records = {"c": cdp(), "r": record("r", "running")}
    await shown.refresh(await registry.activity())
    registry.read.clear()
    shown.kept(0)
    await shown.refresh(await registry.activity())
    assert registry.read == []
    registry.records["c"] = cdp(keptUntil="1017.5")
    shown.kept(1)
    await shown.refresh(await registry.activity())
    assert (registry.read, shown.rows["c"]["kept"]) == (["c"], True)
    registry.records["c"] = cdp(keptUntil="")
    shown.kept(0)
    await shown.refresh(await registry.activity())
    assert (registry.read, shown.rows["c"]["kept"]) == (["c", "c"], False)
    shown.kept(0)
    await shown.refresh(await registry.activity())
    assert registry.read == ["c", "c"]


async def test_a_session_that_ends_as_one_begins_that_no_lifetime_counts_is_seen_to_end() -> None:
    registry = Registry()
    shown = ShownSessions(registry, lambda _record: None)  # type: ignore[arg-type]

    def activity(newest: str, **outcomes: int) -> Activity:
        return Activity({"chromium:a": 1}, {"chromium:a": 5}, outcomes, {}, newest)

    registry.records = {"x": record("x", "running")}
    await shown.refresh(activity("x"))
    own = {"browserType": "chromium", "workerId": "a", "status": "running", "lifetime": "0"}
    registry.records = {"x": record("x", "completed"), "y": SessionRecord.read("y", own)}
    for _ in range(2):
        await shown.refresh(activity("y", completed=1))
    assert [shown.rows[each]["status"] for each in "xy"] == ["completed", "running"]
    registry.read.clear()
    for _ in range(3):
        await shown.refresh(activity("y", completed=1))
    assert registry.read == []  # once it is known, nothing is read again


def test_a_sample_has_no_memory_as_long_as_no_worker_was_measured() -> None:
    feed = made(Grid())
    measured = []
    for workers in ([], [{}, {"memoryMib": None}], [{}, {"rssMib": 3}], [{"memoryMib": 2, "rssMib": 9}, {"rssMib": 3}]):
        feed._status = {"workers": workers}
        measured.append(feed._sample()[6])
    assert measured == [0, None, 3, 5]


async def test_the_true_end_of_a_session_is_told_after_one_that_was_only_presumed() -> None:
    registry, events = Registry(), module.RecentEvents(lambda: 7.0)
    shown = ShownSessions(registry, events.session_ended, events.session_goes_on)  # type: ignore[arg-type]

    def activity(*, live: int, taken_back: int) -> Activity:
        return Activity({"chromium:a": live}, {"chromium:a": 2}, {}, {"failed": taken_back}, "y")

    async def looks(live: int, taken_back: int, **status: tuple[str, str | None]) -> None:
        registry.records = {each: record(each, *found) for each, found in status.items()}
        for _ in range(2):
            await shown.refresh(activity(live=live, taken_back=taken_back))

    lost, running = ("failed", "worker lost"), ("running", None)
    await looks(0, 0, x=lost, y=lost)
    await looks(1, 2, x=running, y=("failed", "browser gone"))  # its worker had more to tell than that it lives
    await looks(0, 2, x=lost, y=("failed", "browser gone"))
    assert [each["text"] for each in events.since(0)] == [
        "session x failed: worker lost",
        "session y failed: worker lost",
        "session x goes on after all: its end was only presumed",
        "session y failed: browser gone",
        "session x failed: worker lost",
    ]
    assert shown.rows["y"]["reason"] == "browser gone"
