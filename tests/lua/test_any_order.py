"""Whatever happens in whatever order: counters, leases and records never disagree, and no slot stays taken."""

import json
from dataclasses import dataclass, field
from typing import Any

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

from tests.lua.model import NOW, Holder, Lease, Leased, LuaGrid, kind_id_lease
from tests.support.redis import RedisServer

SLOTS = 3
CAPS = (("run:/nightly", 4), ("token:ci", 5))
OWN = {"lifetime": "0"}
"""The field of the record of a holder with a browser of its own beside the shared one."""
MAX_LIFETIME = 6
LEASE_S = 5.0
LIVE = ("pending", "running")


@dataclass
class Worker:
    """A worker's own truth."""

    name: str
    alive: bool = True
    status: str = "available"
    live: set[Holder] = field(default_factory=set)
    """Sessions and leases, each in a slot, and sessions in the slots of their leases."""
    lifetime: int = 0

    @property
    def taken(self) -> int:
        return sum(not isinstance(each, Leased) for each in self.live)

    def with_lease(self, lease: Holder) -> list[Holder]:
        return [each for each in self.live if isinstance(each, Leased) and Lease(each.lease) == lease]


def takes_lifetime(holder: Holder) -> bool:
    return not kind_id_lease(holder)[1].startswith("own")


def client_fields(holder: Holder) -> str:
    own = {} if takes_lifetime(holder) else OWN
    return json.dumps({"caps": ",".join(name for name, _ in CAPS), **own})


def reported(holder: Holder) -> Holder:
    """As a worker tells of it that was told of its client. A session that came with a lease counts towards no cap."""
    if isinstance(holder, str):
        return f"{holder}@@{client_fields(holder)}"
    return Lease(f"{holder.id}@@{client_fields(holder)}") if isinstance(holder, Lease) else holder


def reading(key: str) -> tuple[Any, ...] | None:
    """The command that reads a key; None for one that is not compared."""
    if ":live:" in key:
        return "ZRANGE", key, 0, -1
    if key.startswith("sessions:of:"):
        return "SMEMBERS", key
    compared = (":outcomes", ":taken_back", ":active_connections")
    if key.startswith(("session:", "lease:", "sessions:leased:")) or key.endswith(compared):
        return "HGETALL", key
    return None


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
        self.late: list[tuple[Holder, str]] = []
        self.totals: dict[str, int] = {}

    # What happens

    @initialize()
    def two_workers_register(self) -> None:
        for _ in range(2):
            self.register()

    @rule(target=pending, borrows=st.booleans(), has_own=st.booleans())
    def a_client_comes(self, borrows: bool, has_own: bool) -> Holder:
        self.serial += 1
        named = f"{'own' if has_own else ''}{self.serial}"
        holder = Lease(named) if borrows else named
        self.select(holder)
        return holder

    @rule(holder=consumes(pending), told=st.booleans())
    def the_worker_admits_it(self, holder: Holder, told: bool) -> None:
        worker = self.worker_of(holder)
        if worker is None or worker.taken >= SLOTS or worker.status != "available":
            self.grid.rollback(holder)
            return
        worker.live.add(holder)
        worker.lifetime += takes_lifetime(holder)
        if told:
            self.grid.start(holder, now=self.now, worker=worker.name, client_fields=client_fields(holder))

    @rule(holder=consumes(pending), times=st.integers(1, 2), again=st.booleans())
    def the_handoff_fails(self, holder: Holder, times: int, again: bool) -> None:
        worker = self.worker_of(holder)
        for _ in range(times):
            self.grid.rollback(holder)
        if again:
            self.select(holder, exclude=worker.name if worker else "")

    @rule(target=pending, holder=consumes(pending))
    def the_proxy_asks_again_elsewhere(self, holder: Holder) -> Holder:
        worker = self.worker_of(holder)
        self.select(holder, exclude=worker.name if worker else "")
        return holder

    @rule(data=st.data(), told=st.booleans())
    def a_client_comes_with_a_lease(self, data: st.DataObject, told: bool) -> None:
        leases = [(each, name) for each, name in self.living() if isinstance(each, Lease)]
        if not leases:
            return
        lease, name = data.draw(st.sampled_from(leases))
        self.serial += 1
        session = Leased(f"s{self.serial}", lease.id)
        self.workers[name].live.add(session)
        if told:
            self.grid.start(session, now=self.now, worker=name)

    @rule(data=st.data(), told=st.sampled_from(["now", "twice", "late", "never"]))
    def something_ends(self, data: st.DataObject, told: str) -> None:
        """A session, or a lease with all that came with it."""
        living = self.living()
        if not living:
            return
        chosen, name = data.draw(st.sampled_from(living))
        for holder in (*self.workers[name].with_lease(chosen), chosen):
            self.workers[name].live.remove(holder)
            if told == "late":
                self.late.append((holder, name))
            elif told != "never":
                for _ in range(2 if told == "twice" else 1):
                    self.grid.release(holder, "completed", "closed", now=self.now, worker=name)
                assert self.grid.status(holder) == "completed"

    @rule()
    def what_was_kept_while_redis_was_away_is_told(self) -> None:
        for holder, name in self.late:
            self.grid.release(holder, "completed", "closed", now=self.now, worker=name)
            assert self.grid.status(holder) == "completed"
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
    def redis_agrees_with_itself(self) -> None:
        seen = self.everything()
        live = {each for name in self.workers for each in self.live_in(seen, name)}
        self.counters_are_the_number_of_slots(seen)
        for kind in ("session", "lease"):
            self.live_records_and_live_sets_are_the_same(seen, kind, {id_ for of, id_, _ in live if of == kind})
        for name, _ in CAPS:  # they count who has a slot, and leave nothing behind
            slots = {f"{kind}:{id_}" for kind, id_, lease in live if not lease}
            assert seen.get(f"sessions:of:{name}", set()) == slots
        self.totals_only_rise(seen)

    def counters_are_the_number_of_slots(self, seen: dict[str, Any]) -> None:
        active = seen.get("cluster:active_connections", {})
        for name in self.workers:
            slots = [each for each in self.live_in(seen, name) if not each[2]]
            assert int(active.get(f"chromium:{name}", 0)) == len(slots)

    def live_records_and_live_sets_are_the_same(self, seen: dict[str, Any], kind: str, live: set[str]) -> None:
        records = {key.rpartition(":")[2]: record for key, record in seen.items() if key.startswith(f"{kind}:")}
        assert all(record["kind"] == kind for record in records.values())
        assert {id_ for id_, record in records.items() if record["status"] in LIVE} == live
        outcomes, taken_back = seen.get(f"{kind}s:outcomes", {}), seen.get(f"{kind}s:taken_back", {})
        ended = sum(map(int, outcomes.values())) - sum(map(int, taken_back.values()))
        assert ended == len(records) - len(live)

    def totals_only_rise(self, seen: dict[str, Any]) -> None:
        totals = {
            f"{key} {name}": int(count)
            for key in seen
            if key.endswith((":outcomes", ":taken_back"))
            for name, count in seen[key].items()
        }
        assert all(totals.get(name, 0) >= count for name, count in self.totals.items())
        self.totals = totals

    def teardown(self) -> None:
        """After a round of heartbeats, and of the reaper, Redis says exactly what the workers have."""
        self.now += 100
        for worker in self.workers.values():
            if worker.alive:
                self.beat(worker)
        self.grid.reap(now=self.now)
        seen = self.everything()
        for worker in self.workers.values():
            assert self.live_in(seen, worker.name) == set(map(kind_id_lease, worker.live))
            assert self.grid.active(worker.name) == (worker.taken if worker.alive else None)
            assert self.grid.lifetime(worker.name) == (worker.lifetime if worker.alive else None)
            assert [self.grid.status(holder) for holder in worker.live] == ["running"] * len(worker.live)
        self.redis_agrees_with_itself()

    # Helpers

    def register(self) -> None:
        worker = Worker(f"w{len(self.workers)}")
        self.workers[worker.name] = worker
        self.grid.register(worker.name, slots=SLOTS, now=self.now)

    def living(self) -> list[tuple[Holder, str]]:
        """What is live, each with its worker, in an order that can be repeated."""
        living = [(holder, worker.name) for worker in self.workers.values() for holder in worker.live]
        return sorted(living, key=lambda each: kind_id_lease(each[0]))

    def everything(self) -> dict[str, Any]:
        """All keys that are compared, with what they hold."""
        reads = {key: read for key in self.grid.client.keys("*") if (read := reading(key))}
        with self.grid.client.pipeline(transaction=False) as pipeline:
            for read in reads.values():
                pipeline.execute_command(*read)
            return dict(zip(reads, pipeline.execute(), strict=True))

    @staticmethod
    def live_in(seen: dict[str, Any], name: str) -> set[tuple[str, str, str]]:
        """What Redis has as live in this worker, as kind, id and lease."""
        own = {
            (kind, id_, "") for kind in ("session", "lease") for id_ in seen.get(f"{kind}s:live:chromium:{name}", ())
        }
        return own | {("session", *each) for each in seen.get(f"sessions:leased:chromium:{name}", {}).items()}

    def select(self, holder: Holder, exclude: str = "") -> None:
        before = {name: (self.grid.active(name), self.grid.lifetime(name)) for name in self.workers}
        had = self.grid.record(holder).get("workerId")
        own = () if takes_lifetime(holder) else tuple(OWN.items())
        chosen = self.grid.select(
            holder,
            max_active=SLOTS,
            max_lifetime=MAX_LIFETIME,
            lease=LEASE_S,
            exclude=exclude,
            now=self.now,
            extra=tuple(text for pair in (*((f"max:{name}", str(most)) for name, most in CAPS), *own) for text in pair),
        )
        if chosen is not None and chosen != had:
            active, lifetime = before[chosen]
            assert active is not None
            assert lifetime is not None
            assert active < SLOTS
            assert lifetime < MAX_LIFETIME
            assert chosen != exclude
            lived = lifetime + takes_lifetime(holder)
            assert (self.grid.active(chosen), self.grid.lifetime(chosen)) == (active + 1, lived)

    def worker_of(self, holder: Holder) -> Worker | None:
        record = self.grid.record(holder)
        worker = self.workers.get(record.get("workerId", ""))
        return worker if worker is not None and worker.alive and record["status"] == "pending" else None

    def beat(self, worker: Worker) -> None:
        live = tuple(reported(holder) for holder in sorted(worker.live, key=kind_id_lease))
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
        max_examples=60,  # half a minute; each run tries others
        stateful_step_count=40,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
    )
    run_state_machine_as_test(lambda: AnyOrder(grid), settings=checked)  # type: ignore[no-untyped-call]
    client.close()
