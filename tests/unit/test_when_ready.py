"""When the grid is called ready, or not ready: tables of what the pools and the proxy are, and what is told."""

from types import SimpleNamespace
from typing import Any

import pytest

from pwgrid.common.worker_lifecycle import BEFORE_A_DRAIN, WorkerStatus
from pwgrid.master.reports import Reports

SHORT = "the host is short of memory"


class Start:
    """The start of a grid with one pool. `told` has what was called, in order; `reason` says why it is not ready."""

    def __init__(self, pool: SimpleNamespace, *, adopted: bool = False) -> None:
        self.told: list[str] = []
        self.progress: list[str] = []
        self.reason: str | None = None
        config = SimpleNamespace(
            messages=SimpleNamespace(
                ready=lambda status: self.told.append(f"ready {status['ready']}"),
                not_ready=lambda status: self.told.append(f"not ready: {status['reason']}"),
                progress=self.progress.append,
            ),
            kept_open=None,
            leftovers=SimpleNamespace(workers=["a"] if adopted else []),
        )
        self._pool = pool
        self._proxy = SimpleNamespace(listening=False, ready=False)
        workers, proxies = SimpleNamespace(pools={"chromium": pool}), SimpleNamespace(current=self._proxy)
        services = SimpleNamespace(proxies=proxies, forwarder=None, tls=None, redis=None)
        stand_ins: Any = (config, workers, services, None, None)
        self.report = Reports(*stand_ins)
        self.report.status = self.status  # type: ignore[method-assign]

    def status(self) -> dict[str, Any]:
        return {"ready": self.reason is None and self.report.is_started, "reason": self.reason}

    def tell(self, *records: SimpleNamespace, listens: bool = True, ready: bool = False) -> list[str]:
        self._pool.members = records
        self._proxy.listening, self._proxy.ready = listens, ready
        self.report.tell_start()
        return self.told


def pool(*, workers: int = 2, complete: bool = True, guard: str | None = None, fails: bool = False) -> SimpleNamespace:
    return SimpleNamespace(name="chromium", workers=workers, is_complete=complete, host_guard=guard, cannot_start=fails)


@pytest.mark.parametrize(
    ("found", "why_not", "listens", "ready", "told"),
    [
        (pool(complete=False), "no chromium worker is available", True, False, []),
        (pool(complete=False), None, True, False, []),
        (pool(), None, False, False, []),
        (pool(), None, True, False, []),  # the proxy would still answer 503
        (pool(), None, True, True, ["ready True"]),
        (pool(complete=False, fails=True), "it fails", False, False, []),
        (pool(complete=False, fails=True), "it fails", True, False, ["not ready: it fails"]),
        (pool(complete=False, fails=True), None, True, True, ["ready True"]),  # some of its workers did start
        (pool(complete=False, guard=SHORT), SHORT, True, False, [f"not ready: {SHORT}"]),
        (pool(guard=SHORT), SHORT, True, False, [f"not ready: {SHORT}"]),
        (pool(guard=SHORT), SHORT, True, True, [f"not ready: {SHORT}"]),  # the proxy has not heard of it yet
        (pool(workers=0), "no pool has workers", True, False, ["not ready: no pool has workers"]),
    ],
)
def test_the_grid_is_called_what_the_proxy_would_call_it_once_the_start_is_over(
    found: SimpleNamespace, why_not: str | None, listens: bool, ready: bool, told: list[str]
) -> None:
    start = Start(found)
    start.reason = why_not
    for _ in range(2):
        assert start.tell(listens=listens, ready=ready) == told


def test_the_start_is_over_before_the_proxy_can_call_the_grid_ready() -> None:
    found = pool(complete=False)
    start = Start(found)
    start.tell()
    assert not start.report.is_started
    found.is_complete = True
    assert start.tell() == []
    assert start.report.is_started
    assert start.tell(ready=True) == ["ready True"]


def test_a_grid_that_was_not_ready_is_called_ready_when_it_is_although_a_worker_is_missing_still() -> None:
    found = pool(complete=False, fails=True)
    start = Start(found)
    start.reason = "it fails"
    start.tell()
    found.cannot_start, start.reason = False, None
    assert start.tell(ready=True) == ["not ready: it fails", "ready True"]
    assert start.report.is_ready


def test_what_another_master_had_started_is_started_but_called_ready_only_when_it_is_whole() -> None:
    found = pool(complete=False)
    start = Start(found, adopted=True)
    assert start.report.is_started
    assert start.tell(ready=True) == []
    found.is_complete = True
    assert start.tell(ready=True) == ["ready True"]


def worker(status: WorkerStatus) -> SimpleNamespace:
    return SimpleNamespace(life=SimpleNamespace(status=status, is_capacity=status in BEFORE_A_DRAIN))


def test_no_more_workers_are_launched_than_are_wanted_also_while_one_is_replaced() -> None:
    start = Start(pool(complete=False))
    starting, available, draining = map(worker, (WorkerStatus.STARTING, WorkerStatus.AVAILABLE, WorkerStatus.DRAINING))
    for records in (
        [starting],
        [available, starting],
        [available, starting, starting],
        [available, draining, available],
        [available, available, available],
    ):
        start.tell(*records, listens=False)
    assert start.progress == [
        "launching 1 of 2 workers (0 ready)",
        "launching 2 of 2 workers (1 ready)",
        "launching 2 of 2 workers (2 ready)",
    ]
