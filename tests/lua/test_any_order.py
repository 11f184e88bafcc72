"""Whatever happens in whatever order: counters, leases and records never disagree, and no slot stays taken."""

import json
from dataclasses import dataclass, field

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from tests.lua.model import NOW, LuaGrid
from tests.support.redis import RedisServer

SLOTS = 3
CAPS = (("run:/nightly", 4), ("token:ci", 5))
TOLD = json.dumps({"caps": ",".join(name for name, _ in CAPS)})
MAX_LIFETIME = 6
LEASE_S = 5.0


@dataclass
class Worker:
    """A worker's own truth."""

    name: str
    alive: bool = True
    status: str = "available"
    live: set[str] = field(default_factory=set)
    lifetime: int = 0


class AnyOrder(RuleBasedStateMachine):
    """Real scripts on a real Redis, beside workers that know the truth about their sessions."""

    pending = Bundle("pending")

    def __init__(self, grid: LuaGrid) -> None:
        super().__init__()
        self.grid = grid
        self.grid.client.flushall()
        self.now = NOW
        self.workers: dict[str, Worker] = {}
        self.serial = 0
        self.late: list[tuple[str, str]] = []
        self.totals: dict[str, int] = {}

    # What happens

    @initialize()
    def two_workers_register(self) -> None:
        for _ in range(2):
            self.register()

    @rule(target=pending)
    def a_client_comes(self) -> str:
        self.serial += 1
        self.select(f"s{self.serial}")
        return f"s{self.serial}"

    @rule(session=consumes(pending), told=st.booleans())
    def the_worker_admits_it(self, session: str, told: bool) -> None:
        worker = self.worker_of(session)
        if worker is None or len(worker.live) >= SLOTS or worker.status != "available":
            self.grid.rollback(session)
            return
        worker.live.add(session)
        worker.lifetime += 1
        if told:
            self.grid.start(session, now=self.now, worker=worker.name, told=TOLD)

    @rule(session=consumes(pending), times=st.integers(1, 2), again=st.booleans())
    def the_handoff_fails(self, session: str, times: int, again: bool) -> None:
        worker = self.worker_of(session)
        for _ in range(times):
            self.grid.rollback(session)
        if again:
            self.select(session, exclude=worker.name if worker else "")

    @rule(target=pending, session=consumes(pending))
    def the_proxy_asks_again_elsewhere(self, session: str) -> str:
        worker = self.worker_of(session)
        self.select(session, exclude=worker.name if worker else "")
        return session

    @rule(data=st.data(), told=st.sampled_from(["now", "twice", "late", "never"]))
    def a_session_ends(self, data: st.DataObject, told: str) -> None:
        living = sorted((session, worker.name) for worker in self.workers.values() for session in worker.live)
        if not living:
            return
        session, name = data.draw(st.sampled_from(living))
        self.workers[name].live.remove(session)
        if told == "late":
            self.late.append((session, name))
        elif told != "never":
            for _ in range(2 if told == "twice" else 1):
                self.grid.release(session, "completed", "closed", now=self.now, worker=name)
            assert self.grid.status(session) == "completed"

    @rule()
    def what_was_kept_while_redis_was_away_is_told(self) -> None:
        for session, name in self.late:
            self.grid.release(session, "completed", "closed", now=self.now, worker=name)
            assert self.grid.status(session) == "completed"
        self.late.clear()

    @rule(seconds=st.sampled_from([1.0, 6.0]))
    def time_passes_and_workers_beat(self, seconds: float) -> None:
        self.now += seconds
        for worker in self.workers.values():
            if worker.alive:
                self.beat(worker)

    @rule(
        trouble=st.sampled_from(["dies", "dies seen", "drains", "stops", "silence", "reaper", "flush"]), data=st.data()
    )
    def something_goes_wrong(self, trouble: str, data: st.DataObject) -> None:
        worker = data.draw(st.sampled_from(sorted((w for w in self.workers.values() if w.alive), key=lambda w: w.name)))
        if trouble == "drains":
            worker.status = "draining"
            self.grid.drain(worker.name)
        elif trouble == "silence":
            self.now += 40
        elif trouble == "reaper":
            self.grid.reap(now=self.now)
        elif trouble == "flush":
            self.grid.client.flushall()
            self.totals = {}
        else:
            worker.alive = False
            worker.live.clear()
            if trouble == "dies seen":
                self.grid.reap(only=f"chromium:{worker.name}", now=self.now)
            elif trouble == "stops":
                self.grid.unregister(worker.name, now=self.now)
        if not worker.alive or worker.status != "available":
            self.register()

    # What must hold

    @invariant()
    def counters_are_the_number_of_leases(self) -> None:
        for name in self.workers:
            assert (self.grid.active(name) or 0) == len(self.grid.live(name))

    @invariant()
    def live_records_and_leases_are_the_same(self) -> None:
        leased = {session for name in self.workers for session in self.grid.live(name)}
        records = [key.rpartition(":")[2] for key in self.grid.client.keys(f"{self.grid.prefix}session:*")]
        statuses = {session: self.grid.status(session) for session in records}
        assert {session for session, status in statuses.items() if status in ("pending", "running")} == leased
        ended = [status for status in statuses.values() if status not in ("pending", "running")]
        assert sum(self.grid.outcomes().values()) - sum(self.grid.taken_back().values()) == len(ended)

    @invariant()
    def caps_count_live_sessions_and_leave_nothing_behind(self) -> None:
        leased = {session for name in self.workers for session in self.grid.live(name)}
        for name, _ in CAPS:
            assert self.grid.get("SMEMBERS", f"sessions:of:{name}") == leased

    @invariant()
    def totals_only_rise(self) -> None:
        totals = {**{f"-{name}": count for name, count in self.grid.taken_back().items()}, **self.grid.outcomes()}
        assert all(totals.get(name, 0) >= count for name, count in self.totals.items())
        self.totals = totals

    def teardown(self) -> None:
        """After a round of heartbeats, and of the reaper, Redis says exactly what the workers have."""
        self.now += 100
        for worker in self.workers.values():
            if worker.alive:
                self.beat(worker)
        self.grid.reap(now=self.now)
        for worker in self.workers.values():
            assert set(self.grid.live(worker.name)) == worker.live
            assert self.grid.active(worker.name) == (len(worker.live) if worker.alive else None)
            assert self.grid.lifetime(worker.name) == (worker.lifetime if worker.alive else None)
            assert [self.grid.status(session) for session in worker.live] == ["running"] * len(worker.live)
        self.live_records_and_leases_are_the_same()

    # Helpers

    def register(self) -> None:
        worker = Worker(f"w{len(self.workers)}")
        self.workers[worker.name] = worker
        self.grid.register(worker.name, slots=SLOTS, now=self.now)

    def select(self, session: str, exclude: str = "") -> None:
        before = {name: (self.grid.active(name), self.grid.lifetime(name)) for name in self.workers}
        had = self.grid.session(session).get("workerId")
        chosen = self.grid.select(
            session,
            max_active=SLOTS,
            max_lifetime=MAX_LIFETIME,
            lease=LEASE_S,
            exclude=exclude,
            now=self.now,
            extra=tuple(text for name, most in CAPS for text in (f"max:{name}", str(most))),
        )
        if chosen is not None and chosen != had:
            active, lifetime = before[chosen]
            assert active is not None
            assert lifetime is not None
            assert active < SLOTS
            assert lifetime < MAX_LIFETIME
            assert chosen != exclude
            assert (self.grid.active(chosen), self.grid.lifetime(chosen)) == (active + 1, lifetime + 1)

    def worker_of(self, session: str) -> Worker | None:
        record = self.grid.session(session)
        worker = self.workers.get(record.get("workerId", ""))
        return worker if worker is not None and worker.alive and record["status"] == "pending" else None

    def beat(self, worker: Worker) -> None:
        live = tuple(f"{session}@@{TOLD}" for session in sorted(worker.live))
        known, *_ = self.grid.heartbeat(
            worker.name, live, now=self.now, status=worker.status, lifetime=str(worker.lifetime)
        )
        if not known:
            self.grid.register(
                worker.name,
                slots=SLOTS,
                now=self.now,
                lifetime=worker.lifetime,
                sessions=live,
                status=worker.status,
            )


def test_nothing_leaks_in_any_order(redis: RedisServer) -> None:
    client = redis.client()
    grid = LuaGrid(client)
    checked = settings(
        max_examples=150,
        stateful_step_count=40,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
    )
    run_state_machine_as_test(lambda: AnyOrder(grid), settings=checked)  # type: ignore[no-untyped-call]
    client.close()
