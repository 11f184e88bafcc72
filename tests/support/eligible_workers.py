"""Which workers a client may get: one table, by which the selection in Redis, the selection without it, and readiness
are all tested (tests/lua/test_eligible_workers.py, tests/unit/test_eligible_workers.py)."""

from dataclasses import dataclass

from pwgrid.common.worker_lifecycle import WorkerStatus

STALE_S, LIFETIME = 30, 50


@dataclass(frozen=True)
class Case:
    """One worker, in a pool of its own with no session, as a client that wants the pool `appa` finds it."""

    what: str
    eligible: bool
    status: str = WorkerStatus.AVAILABLE
    pool: str = "appa"
    silent_s: int = 0
    """How long ago its last heartbeat was."""
    lifetime: int = 0
    """How many sessions it has had."""
    only_redis_knows: bool = False
    """Whether the master's list of workers, by which is chosen without Redis, does not have what counts here."""

    def __str__(self) -> str:
        return self.what


CASES = [
    Case("it is available", True),
    Case("its heartbeat is as old as may be", True, silent_s=STALE_S),
    Case("it has one session left", True, lifetime=LIFETIME - 1),
    *(Case(f"it is {status}", False, status=status) for status in WorkerStatus if status is not WorkerStatus.AVAILABLE),
    Case("its status is none that we know", False, status="on holiday"),
    Case("it is of another pool", False, pool="appb"),
    Case("its heartbeat is too old", False, silent_s=STALE_S + 1, only_redis_knows=True),
    Case("it is used up", False, lifetime=LIFETIME, only_redis_knows=True),
    Case("it is used up by far", False, lifetime=LIFETIME + 7, only_redis_knows=True),
]
