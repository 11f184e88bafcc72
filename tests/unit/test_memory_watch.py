"""The meter on this very process as its only worker, and a host whose memory the test decides."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from structlog.testing import capture_logs

from pwgrid.common.reasons import Reason, WorkerEnd
from pwgrid.common.types import Isolation
from pwgrid.common.worker_lifecycle import WorkerStatus
from pwgrid.master import memory_watch as memory
from pwgrid.master.memory_watch import MemoryWatch
from pwgrid.master.policy.validate_reports import KeptSession
from pwgrid.master.policy.worker_state_machine import Purpose, WorkerLife
from pwgrid.master.workers.worker import Worker
from pwgrid.runtime.browser_process_tree import Table, Tree, process_table
from pwgrid.settings.model import Settings
from pwgrid.settings.pools import PoolTable


class OneLink:
    def __init__(self) -> None:
        self.pushed: list[dict[str, Any]] = []
        self.sent: list[tuple[str, dict[str, Any]]] = []

    def send(self, name: str, data: dict[str, Any]) -> None:
        self.sent.append((name, data))

    def push_state(self, state: dict[str, Any]) -> None:
        self.pushed.append(state)


class FakeWorkers:
    """As much of Workers as the meter uses; its one worker is this test process."""

    def __init__(self, *, started_at: float = 0.0) -> None:
        self.killed: list[tuple[str, str]] = []
        self.marked: list[tuple[str, str]] = []
        self.link = OneLink()
        self.worker = self.make(started_at)
        self.by_id: dict[str, Any] = {"w": self.worker}

    def learn_trees(self) -> Table:
        return process_table()

    def make(self, started_at: float) -> Any:
        workers = self

        class MeteredWorker(Worker):
            """Notes what it is told, and does none of it."""

            def mark(self, reason: Reason | None) -> None:
                self.recycle = reason
                workers.marked.append((self.worker_id, str(reason)))

            def takes_too_much_memory(self, reason: Reason) -> None:
                self.life.status = WorkerStatus.LOST
                workers.killed.append((self.worker_id, str(reason)))

        class OneChild:
            pid = os.getpid()

        life, tree = WorkerLife(Purpose.SERVE, WorkerStatus.AVAILABLE), Tree(os.getpid(), Path("/nowhere"))
        pool = SimpleNamespace(name="chromium")
        arguments: tuple[Any, ...] = (None, "w", pool, "chromium", life, OneChild(), tree)
        return MeteredWorker(*arguments, started_at, "1", link=self.link, slots=5)  # type: ignore[arg-type]


def metered(workers: FakeWorkers, available: int = 100_000, **settings: Any) -> MemoryWatch:
    config = SimpleNamespace(settings=Settings(**settings))  # type: ignore[arg-type]
    return MemoryWatch(config, workers, lambda: available)  # type: ignore[arg-type]


def test_the_rss_is_told_to_the_worker_when_it_changes() -> None:
    workers = FakeWorkers()
    meter = metered(workers)
    assert meter.tick(100.0) == 105.0
    assert meter.tick(104.9) == 105.0  # not due
    assert [list(state) for state in workers.link.pushed] == [["rssMib"]]
    assert workers.worker.memory.rss_mib == workers.link.pushed[0]["rssMib"] > 10


@pytest.mark.parametrize(
    ("settings", "reads"),
    [
        ({}, 2),
        ({"max_worker_memory_mib": 100_000}, 2),
        ({"max_worker_memory_mib": 16}, 24),
        ({"max_worker_memory_mib": 16, "memory_metric": "rss"}, 0),
    ],
)
def test_without_need_the_metric_is_read_once_in_twelve_samples(
    settings: dict[str, Any], reads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[float] = []

    def counted(process: psutil.Process, metric: str) -> int:
        assert (process.pid, metric) == (os.getpid(), "pss")
        read.append(now)
        return 17 << 20

    monkeypatch.setattr(memory, "memory_bytes", counted)
    workers = FakeWorkers()
    meter = metered(workers, **settings)
    for sample in range(24):
        now = 100.0 + 5 * sample
        meter.tick(now)
        expected = workers.worker.memory.rss_mib if settings.get("memory_metric") else 17
        assert workers.worker.memory.memory_mib == expected
    assert len(read) == reads
    assert read[:1] == [100.0][:reads]


def test_not_all_are_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    monkeypatch.setattr(memory, "memory_bytes", lambda _process, _metric: read.append(1) or 17 << 20)
    workers = FakeWorkers()
    workers.by_id = {name: workers.make(0.0) for name in "abcdefghijklmnopqrst"}
    for name, record in workers.by_id.items():
        record.worker_id = name
    meter = metered(workers)
    counts = []
    for sample in range(24):
        meter.tick(100.0 + 5 * sample)
        counts.append(len(read))
        read.clear()
    assert max(counts) == 2
    assert sum(counts) == 40
    assert all(record.memory.memory_mib == 17 for record in workers.by_id.values())


def test_the_peak_is_known_also_between_two_regular_readings(monkeypatch: pytest.MonkeyPatch) -> None:
    rss_mib, reads = 0, []
    monkeypatch.setattr(memory, "rss_bytes", lambda _process: rss_mib << 20)
    monkeypatch.setattr(memory, "memory_bytes", lambda _process, _metric: reads.append(rss_mib) or rss_mib << 19)
    meter = metered(FakeWorkers())
    for sample, rss_mib in enumerate((100, 105, 110, 111, 200, 120, 215, 230)):  # noqa: B007
        meter.tick(100.0 + 5 * sample)
    assert reads == [100, 111, 200, 230]
    assert meter.peak_mib == 115


@pytest.mark.parametrize("metric", ["rss", "pss", "uss"])
def test_over_the_soft_limit_twice_marks_the_worker(metric: str) -> None:
    workers = FakeWorkers()
    meter = metered(workers, max_worker_memory_mib=16, memory_metric=metric)
    meter.tick(100.0)
    assert workers.worker.recycle is None
    meter.tick(105.0)
    assert workers.worker.recycle.kind is WorkerEnd.MEMORY
    assert workers.killed == []


def test_over_the_hard_limit_kills_once() -> None:
    workers = FakeWorkers()
    meter = metered(workers, max_worker_memory_hard_mib=16)
    meter.tick(100.0)
    meter.tick(105.0)
    assert workers.killed == [("w", "memory limit")]


def test_age_does_not_wait_for_a_sample() -> None:
    workers = FakeWorkers(started_at=100.0)
    meter = metered(workers, max_worker_age=2.0)
    assert meter.tick(100.0) == 102.0
    assert meter.tick(102.0) == 105.0
    assert workers.marked == [("w", "age: older than 2 s")]  # so that the next master knows it, too


def test_a_worker_over_the_hard_limit_that_is_too_old_keeps_no_processor_busy() -> None:
    workers = FakeWorkers(started_at=100.0)
    kept(workers, w=20.0)
    meter = metered(workers, max_worker_memory_hard_mib=16, max_worker_age=2.0, memory_metric="rss")
    meter.tick(100.0)
    assert [name for name, _ in workers.link.sent] == ["end_kept"]  # the next sample tells whether that was enough
    assert meter.tick(102.0) == 105.0
    assert workers.marked == [("w", "age: older than 2 s")]


def test_a_host_without_memory_starts_nothing_and_recovers() -> None:
    workers = FakeWorkers()
    available = [100]
    config = SimpleNamespace(settings=Settings(min_host_available_mib=256))
    meter = MemoryWatch(config, workers, lambda: available[0])  # type: ignore[arg-type]
    meter.tick(100.0)
    closed = meter.guard.reason
    assert closed is not None
    assert meter.room() == 0
    peak_mib = workers.worker.memory.memory_mib
    assert meter.status_reply() == {
        "availableMib": 100,
        "minAvailableMib": config.settings.min_host_available_mib,
        "guard": closed,
        "peakMib": peak_mib,
        "memoryMetric": "pss",
    }
    available[0] = 300
    meter.tick(105.0)
    assert meter.guard.reason is not None
    available[0] = 100_000
    meter.tick(110.0)
    assert meter.guard.reason is None
    assert meter.room() > 100


def test_a_reload_that_leaves_the_floor_as_it_is_opens_no_guard() -> None:
    available = [100]
    config = SimpleNamespace(settings=Settings(min_host_available_mib=256))
    meter = MemoryWatch(config, FakeWorkers(), lambda: available[0])  # type: ignore[arg-type]
    with capture_logs() as logs:
        meter.tick(100.0)
        available[0] = 300  # above the floor, and below the mark at which it opens
        config.settings = Settings(min_host_available_mib=256, max_queue=7)
        meter.tick(101.0)
        assert meter.guard.reason is not None
        assert (meter.host_available_mib, [each["event"] for each in logs]) == (300, ["host_guard_closed"])
        config.settings = Settings(min_host_available_mib=128)
        meter.tick(102.0)
        assert meter.guard.reason is None


def test_workers_that_started_since_the_sample_use_up_the_room() -> None:
    workers = FakeWorkers(started_at=50.0)
    meter = metered(workers)
    meter.tick(100.0)
    room = meter.room()
    workers.by_id["new"] = workers.make(101.0)
    assert meter.room() == room - 1


def test_workers_that_were_not_measured_yet_do_not_count_as_small_ones() -> None:
    workers = FakeWorkers()
    workers.by_id["gone"] = workers.make(0.0)
    meter = metered(workers)
    meter.tick(100.0)
    room = meter.room()
    del workers.by_id["gone"]
    workers.by_id |= {name: workers.make(90.0) for name in ("new", "newer")}
    meter.tick(101.0)  # the host is looked at without a sample, since a worker has gone
    assert meter.room() == room


def test_when_a_worker_has_gone_the_host_is_looked_at_at_once_and_no_worker_is_sampled() -> None:
    workers = FakeWorkers()
    workers.by_id["gone"] = workers.make(0.0)
    available = [300]
    config = SimpleNamespace(settings=Settings(min_host_available_mib=256))
    meter = MemoryWatch(config, workers, lambda: available[0])  # type: ignore[arg-type]
    meter.tick(100.0)
    assert meter.room() == 0
    available[0] = 100_000
    meter.tick(101.0)
    assert meter.room() == 0
    samples = workers.worker.memory.samples_since
    del workers.by_id["gone"]
    meter.tick(102.0)
    assert meter.room() > 0
    assert workers.worker.memory.samples_since == samples


def test_a_worker_is_held_to_the_limits_of_its_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "memory_bytes", lambda _process, _metric: 17 << 20)
    table = PoolTable.model_validate({"name": "small", "browser": "chromium", "max_memory_mib": 16})
    for pool, is_over in (("small", True), ("chromium", False)):
        workers = FakeWorkers()
        workers.worker.pool = SimpleNamespace(name=pool)
        meter = metered(workers, pools=(table,), max_worker_memory_mib=1000)
        meter.tick(100.0)
        meter.tick(105.0)
        assert (workers.worker.recycle is not None) is is_over
    workers = FakeWorkers()
    workers.worker.pool = SimpleNamespace(name="small")
    hard = table.model_copy(update={"max_memory_mib": None, "max_memory_hard_mib": 16})
    metered(workers, pools=(hard,)).tick(100.0)
    assert workers.killed == [("w", "memory limit")]


def test_a_cgroup_that_cannot_be_read_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "cgroup_problem", lambda: "it cannot be read")
    with capture_logs() as logs:
        found = metered(FakeWorkers())
        for now in (0.0, 1000.0, 2000.0):
            found.tick(now)
    said = [line for line in logs if line["event"] == "cgroup_limits_unknown"]
    assert [line["reason"] for line in said] == ["it cannot be read"]


def kept(workers: FakeWorkers, **since: float) -> None:
    """Workers of these ids have kept a session each."""
    for name, at in since.items():
        workers.by_id[name] = workers.worker if name == "w" else workers.make(0.0)
        workers.by_id[name].worker_id = name
        workers.by_id[name].kept = 1
        workers.by_id[name].oldest_kept = KeptSession(f"of {name}", at)


def test_a_host_short_of_memory_ends_one_kept_session_at_each_sample_the_oldest_first() -> None:
    workers = FakeWorkers()
    kept(workers, w=20.0, v=10.0)
    meter = metered(workers, available=100, min_host_available_mib=200)
    for number, ended in enumerate((["of v"], ["of v", "of w"], ["of v", "of w"])):
        meter.tick(100.0 + 5 * number)
        assert [data["sessionId"] for name, data in workers.link.sent if name == "end_kept"] == ended
    assert workers.killed == []


def test_a_host_with_memory_ends_none() -> None:
    workers = FakeWorkers()
    kept(workers, w=20.0)
    metered(workers, available=300, min_host_available_mib=200).tick(100.0)
    assert workers.link.sent == []


def test_over_the_hard_limit_kept_sessions_end_before_the_worker_is_killed() -> None:
    workers = FakeWorkers()
    kept(workers, w=20.0)
    meter = metered(workers, max_worker_memory_hard_mib=16, memory_metric="rss")
    meter.tick(100.0)
    assert (workers.link.sent, workers.killed) == ([("end_kept", {"sessionId": None})], [])
    meter.tick(101.0)  # no sample: nothing is known of what has become free
    assert workers.killed == []
    meter.tick(105.0)
    assert (len(workers.link.sent), workers.killed) == (1, [("w", "memory limit")])


def test_over_the_hard_limit_the_session_with_the_largest_browser_ends_before_the_worker_is_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    workers = FakeWorkers()
    workers.worker.launched = {"nodePid": os.getpid()}
    meter = metered(workers, max_worker_memory_hard_mib=16, memory_metric="rss")
    with psutil.Popen(["sleep", "600"]) as small, psutil.Popen(["sleep", "600"]) as large:
        sizes = {os.getpid(): 17 << 20, small.pid: 1, large.pid: 2}
        monkeypatch.setattr(memory, "rss_bytes", lambda process: sizes.get(process.pid, 0))
        for at_s, asked in ((100.0, [large.pid]), (101.0, [large.pid]), (105.0, [large.pid])):
            if at_s == 105.0:
                large.kill()
                large.wait()
                asked = [large.pid, small.pid]
            meter.tick(at_s)
            assert [data["pid"] for name, data in workers.link.sent if name == "end_browser"] == asked
        meter.tick(110.0)  # it has not ended
        assert workers.killed == [("w", "memory limit")]
        small.kill()


@pytest.mark.parametrize(
    ("isolation", "is_killed"), [(Isolation.CONTEXT, True), (Isolation.PROCESS, True), (Isolation.BROWSER, False)]
)
def test_where_the_largest_browser_is_shared_the_worker_is_killed_at_once(
    monkeypatch: pytest.MonkeyPatch, isolation: Isolation, is_killed: bool
) -> None:
    workers = FakeWorkers()
    meter = metered(workers, max_worker_memory_hard_mib=16, memory_metric="rss", isolation=isolation)
    with psutil.Popen(["sleep", "600"]) as small, psutil.Popen(["sleep", "600"]) as large:
        workers.worker.launched = {"nodePid": os.getpid(), "browserPid": large.pid}
        sizes = {os.getpid(): 17 << 20, small.pid: 1, large.pid: 2}
        monkeypatch.setattr(memory, "rss_bytes", lambda process: sizes.get(process.pid, 0))
        meter.tick(100.0)
        small.kill()
        large.kill()
    assert [data["pid"] for name, data in workers.link.sent if name == "end_browser"] == [large.pid] * (not is_killed)
    assert workers.killed == [("w", "memory limit")] * is_killed
