"""Whatever happens in whatever order: what a selection finds in the index is what the rule finds in all workers."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from hypothesis import HealthCheck, event, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from pwgrid.registry.scripts import source_of
from tests.lua.model import NOW, LuaGrid, Seen, Wish, all_seen, plain_choice, plain_spare
from tests.support.redis import RedisServer

TYPES = ("chromium", "chromium", "chromium", "firefox")
POOLS = ("", "", "appa", "appb")
VERSIONS = ("1.65.1", "1.65.1", "1.64.0", "")
HOSTS = ("", "", "10.0.0.1:8080", "10.0.0.2:8080")
MOST_WORKERS, MOST_EDITED = 7, 3

WISHES = [
    Wish(),
    Wish(pool="appa"),
    Wish(pool="chromium", version="1.65"),
    Wish(max_active=5, max_lifetime=20),
    Wish(max_active=1),
    Wish(version="1.64"),
    Wish(pool="appb", max_active=2),
    Wish("firefox"),
    Wish(exclude="w0,w2"),
    Wish(max_lifetime=3),
    Wish(max_lifetime=8),
    Wish(pool="chromium", max_lifetime=5),
    Wish(pool="appa", version="1.65", exclude="w1"),
    Wish(only="w1"),
    Wish(pool="appb", version="1.64", max_lifetime=12),
    Wish(prefer=HOSTS[2]),
    Wish(pool="chromium", max_active=2, prefer=HOSTS[3]),
    Wish(pool="appa", prefer=HOSTS[2], avoid=HOSTS[3]),
    Wish(avoid=f"{HOSTS[2]},{HOSTS[3]}"),
    Wish(prefer=HOSTS[3], version="1.65", exclude="w1"),
]
ASKED_AT_ONCE = 3


@dataclass
class Worker:
    """A worker's own truth. `is_foreign`: it is a program that knows the schema alone, and runs none of the scripts."""

    name: str
    fields: dict[str, str]
    is_foreign: bool
    status: str = "available"
    live: set[str] = field(default_factory=set)
    lifetime: int = 0

    @property
    def id(self) -> str:
        return self.name.partition(":")[2]

    @property
    def browser(self) -> str:
        return self.name.partition(":")[0]


@dataclass
class Asked:
    """How many answers were compared, over all runs."""

    workers: int = 0
    nobody: int = 0


class IndexInAnyOrder(RuleBasedStateMachine):
    """Real scripts on a real Redis. After each step some selections are made on a copy of it: the index stays as it is.

    What was changed by hand since the scripts last read it counts later: until then an answer may be that of the rule
    with these workers as they were, but the worker has to be eligible as it is. Selections notice who comes or goes by
    hand by the number of counters, so there is one after each such step: two that leave the number are noticed later.
    """

    def __init__(self, grid: LuaGrid, asked: Asked) -> None:
        super().__init__()
        self.grid, self.asked = grid, asked
        self.grid.client.flushall()
        self.now = NOW
        self.workers: dict[str, Worker] = {}
        self.sessions: dict[str, str] = {}
        self.edited: dict[str, list[Seen | None]] = {}
        """Workers that were changed by hand, each as it was before each change."""
        self.serial = self.turn = 0
        self.is_edited = False
        """Whether anything is done by hand in this run. Each answer has to be exact if not."""

    # What happens

    @initialize(data=st.data(), is_edited=st.booleans())
    def workers_register(self, data: st.DataObject, is_edited: bool) -> None:
        self.is_edited = is_edited
        for _ in range(3):
            drawn = (data.draw(st.sampled_from(each)) for each in (TYPES, POOLS, VERSIONS, HOSTS))
            browser, pool, version, host = drawn
            lifetime = data.draw(st.integers(0, 4))
            self.a_worker_registers("available", False, browser, pool, version, 2, lifetime, host)

    @rule()
    def used_up_workers_are_replaced(self) -> None:
        for name, each in all_seen(self.grid).items():
            if name in self.workers and each.lifetime >= 5:
                self.grid.reap(only=name, now=self.now)
                worker = self.workers[name]
                self.those_that_are_gone([name])
                self.another_takes_its_place(worker)

    @precondition(lambda self: len(self.workers) < MOST_WORKERS)
    @rule(
        status=st.sampled_from(["available", "available", "spare"]),
        is_foreign=st.booleans(),
        browser=st.sampled_from(TYPES),
        pool=st.sampled_from(POOLS),
        version=st.sampled_from(VERSIONS),
        slots=st.sampled_from([None, 1, 2, 5]),
        lifetime=st.integers(0, 4),
        host=st.sampled_from(HOSTS),
    )
    def a_worker_registers(
        self,
        status: str,
        is_foreign: bool,
        browser: str,
        pool: str,
        version: str,
        slots: int | None,
        lifetime: int = 0,
        host: str = "",
    ) -> None:
        name = f"{browser}:w{self.serial}"
        self.serial += 1
        fields = {"wsEndpoint": f"ws://host:8080/playwright/{browser}/{name.partition(':')[2]}.secret"}
        fields |= {"pool": pool} if pool else {}
        fields |= {"playwrightVersion": version} if version else {}
        fields |= {"slots": str(slots)} if slots else {}
        fields |= {"host": host} if host else {}
        self.workers[name] = worker = Worker(name, fields, is_foreign, status, lifetime=lifetime)
        self.register(worker)

    @rule(data=st.data())
    def a_worker_beats(self, data: st.DataObject) -> None:
        self.beat(self.any_worker(data))

    @rule()
    def all_workers_beat(self) -> None:
        for worker in self.workers.values():
            self.beat(worker)

    @rule(
        wishes=st.lists(st.sampled_from(WISHES), min_size=1, max_size=4),
        starts=st.booleans(),
        lived=st.sampled_from([1, 1, 0]),
    )
    def clients_come(self, wishes: list[Wish], starts: bool, lived: int) -> None:
        for wish in wishes:
            self.a_client_comes(wish, starts, lived)

    def a_client_comes(self, wish: Wish, starts: bool, lived: int) -> None:
        """`lived`: how much of its worker's lifetime its session takes, none if it has a browser of its own."""
        self.serial += 1
        session, seen = f"s{self.serial}", all_seen(self.grid)
        arguments = [*wish.arguments(self.now, self.grid.prefix), "lifetime", str(lived)]
        arguments[6] = session
        endpoint = self.grid.eval("selector", self.grid.counters, *arguments)
        if endpoint is None:
            return
        name = f"{wish.browser}:{self.grid.session(session)['workerId']}"
        self.check(wish, name, seen)
        self.its_counters_are_read(name)
        self.sessions[session] = name
        assert self.grid.lifetime(name.partition(":")[2], wish.browser) == seen[name].lifetime + lived
        if seen[name].lifetime + lived >= wish.max_lifetime:
            self.a_spare_has_its_place(name, seen)
        if starts:
            self.workers[name].live.add(session)
            self.workers[name].lifetime += lived
            self.grid.start(session, now=self.now, worker=self.workers[name].id, browser=wish.browser)

    @precondition(lambda self: self.sessions)
    @rule(data=st.data())
    def a_session_ends(self, data: st.DataObject) -> None:
        self.one_ends(data)

    @precondition(lambda self: len(self.sessions) > 1)
    @rule(data=st.data())
    def some_sessions_end(self, data: st.DataObject) -> None:
        for _ in range(len(self.sessions) // 2):
            self.one_ends(data)

    def one_ends(self, data: st.DataObject) -> None:
        session = data.draw(st.sampled_from(sorted(self.sessions)))
        name = self.sessions.pop(session)
        if name in self.workers and session in self.workers[name].live:
            self.workers[name].live.remove(session)
            self.grid.release(session, now=self.now)
        else:
            self.grid.rollback(session)
        self.its_counters_are_read(name)

    @rule(data=st.data())
    def a_caller_without_a_session_comes(self, data: st.DataObject) -> None:
        wish, seen = data.draw(st.sampled_from(WISHES)), all_seen(self.grid)
        endpoint = self.grid.eval("selector", self.grid.counters, *wish.arguments(self.now, self.grid.prefix))
        if endpoint is not None:
            name = f"{wish.browser}:{endpoint.rpartition('/')[2].partition('.')[0]}"
            self.check(wish, name, seen)
            self.its_counters_are_read(name)

    @rule(data=st.data())
    def a_worker_drains(self, data: st.DataObject) -> None:
        worker = self.any_worker(data)
        worker.status = "draining"
        if self.grid.drain(worker.id, worker.browser):
            self.edited.pop(worker.name, None)
        self.another_takes_its_place(worker)

    @rule(seconds=st.sampled_from([1, 4]))
    def a_little_time_passes(self, seconds: int) -> None:
        self.now += seconds

    @rule(seconds=st.sampled_from([11, 11, 40]))
    def much_time_passes(self, seconds: int) -> None:
        """After which a selection believes nothing without reading it again."""
        self.now += seconds
        self.edited.clear()

    @rule()
    def the_reaper_runs(self) -> None:
        self.grid.reap(now=self.now)
        self.those_that_are_gone(name for name in self.workers if name not in all_seen(self.grid))

    @precondition(lambda self: len(self.workers) > 1)
    @rule(data=st.data())
    def a_worker_ends(self, data: st.DataObject) -> None:
        worker = self.any_worker(data)
        self.grid.reap(only=worker.name, now=self.now)
        self.those_that_are_gone([worker.name])

    @rule(data=st.data())
    def all_data_is_lost(self, data: st.DataObject) -> None:
        self.grid.client.flushall()
        self.edited.clear()
        self.sessions = {session: name for session, name in self.sessions.items() if session in self.workers[name].live}
        if data.draw(st.integers(0, 3)):
            self.all_workers_beat()

    @rule()
    def redis_is_started_again_with_its_data(self) -> None:
        self.grid.client.execute_command("DEBUG", "RELOAD")

    # What is done by hand

    @precondition(lambda self: self.may_be_edited)
    @rule(data=st.data(), status=st.sampled_from(["available", "draining", "spare", "on holiday"]))
    def a_status_is_set_by_hand(self, data: st.DataObject, status: str) -> None:
        self.edit(self.any_worker(data), "status", status)

    @precondition(lambda self: self.may_be_edited)
    @rule(data=st.data(), pool=st.sampled_from(["appa", "appb", "chromium"]), version=st.sampled_from(VERSIONS[1:3]))
    def a_pool_is_set_by_hand(self, data: st.DataObject, pool: str, version: str) -> None:
        self.edit(self.any_worker(data), "pool", pool, "playwrightVersion", version)

    @precondition(lambda self: self.may_be_edited)
    @rule(data=st.data(), host=st.sampled_from(HOSTS))
    def a_host_is_set_by_hand(self, data: st.DataObject, host: str) -> None:
        self.edit(self.any_worker(data), "host", host)

    @precondition(lambda self: self.may_be_edited)
    @rule(data=st.data(), number=st.integers(0, 5), counter=st.sampled_from([0, 1]))
    def a_counter_is_set_by_hand(self, data: st.DataObject, number: int, counter: int) -> None:
        worker = self.any_worker(data)
        if worker.name in all_seen(self.grid):
            self.remember(worker.name)
            self.grid.client.hset(self.grid.counters[counter], worker.name, number)

    @precondition(lambda self: self.may_be_edited)
    @rule(data=st.data(), which=st.sampled_from(["active", "lifetime", "both"]))
    def a_counter_is_deleted_by_hand(self, data: st.DataObject, which: str) -> None:
        worker = self.any_worker(data)
        if which == "lifetime":  # the size of the other one does not tell it
            self.remember(worker.name)
        else:
            self.edited.pop(worker.name, None)
        for counter in self.grid.counters:
            if which == "both" or which in counter:
                self.grid.client.hdel(counter, worker.name)
        self.a_selection_notices()

    @precondition(lambda self: self.may_be_edited)
    @rule(data=st.data())
    def a_worker_s_hash_is_deleted(self, data: st.DataObject) -> None:
        worker = self.any_worker(data)
        self.remember(worker.name)
        self.grid.client.delete(f"{self.grid.prefix}worker:{worker.name}")

    @precondition(lambda self: self.is_edited)
    @rule(data=st.data())
    def a_key_of_the_index_is_deleted(self, data: st.DataObject) -> None:
        keys = sorted(
            set(self.grid.client.keys(f"{self.grid.prefix}cluster:index:*"))
            - {f"{self.grid.prefix}cluster:index:spares"}
        )
        if keys:
            self.grid.client.delete(data.draw(st.sampled_from(keys)))
            self.a_selection_notices()  # else a worker that beats meanwhile could hide that it is lost

    # What must hold

    @invariant()
    def the_index_says_what_the_rule_says(self) -> None:
        wishes = [WISHES[(self.turn + each) % len(WISHES)] for each in range(ASKED_AT_ONCE)]
        self.turn += ASKED_AT_ONCE
        seen = all_seen(self.grid)
        for wish, endpoint in zip(wishes, self.asked_on_a_copy(wishes), strict=True):
            chosen = endpoint and f"{wish.browser}:{endpoint.rpartition('/')[2].partition('.')[0]}"
            self.check(wish, chosen, seen)

    def check(self, wish: Wish, chosen: str | None, seen: dict[str, Seen]) -> None:
        if chosen is None:
            self.asked.nobody += 1
        else:
            self.asked.workers += 1
            assert seen[chosen].may_be_chosen(wish, chosen, self.now)
        right = {plain_choice(view, wish, self.now) for view in self.views(seen)}
        assert chosen in right, f"{wish}: {chosen}, not {right}"
        event("changed by hand" if len(right) > 1 else "exact")

    def views(self, seen: dict[str, Seen]) -> Iterator[dict[str, Seen]]:
        """All that the index may say: of each worker that was changed by hand, what it was or what it is."""
        for were in itertools.product(*([*states, seen.get(name)] for name, states in self.edited.items())):
            view = seen | dict(zip(self.edited, were, strict=True))
            yield {name: each for name, each in view.items() if each is not None}

    def a_spare_has_its_place(self, name: str, seen: dict[str, Seen]) -> None:
        if not self.edited:
            browser, fields = name.partition(":")[0], seen[name].fields
            spare = plain_spare(seen, browser, fields.get("pool", browser), self.now, seen[name].host)
            replacement = self.grid.hash(f"worker:{name}").get("replacement")
            assert replacement == (spare and spare.partition(":")[2])

    # Helpers

    def a_selection_notices(self) -> None:
        self.the_index_says_what_the_rule_says()
        for browser in sorted(set(TYPES)):
            self.grid.eval("selector", self.grid.counters, *Wish(browser, 0).arguments(self.now, self.grid.prefix))

    def another_takes_its_place(self, worker: Worker) -> None:
        """As in a grid: so that most selections find a worker."""
        drained = [each for each in self.workers.values() if each.status == "draining" and each is not worker]
        if drained:
            self.grid.reap(only=drained[0].name, now=self.now)
            self.those_that_are_gone([drained[0].name])
        if len(self.workers) < MOST_WORKERS:
            fields = worker.fields
            slots = int(fields["slots"]) if "slots" in fields else None
            pool, version = fields.get("pool", ""), fields.get("playwrightVersion", "")
            host = fields.get("host", "")
            self.a_worker_registers("available", worker.is_foreign, worker.browser, pool, version, slots, host=host)

    @property
    def may_be_edited(self) -> bool:
        return self.is_edited and sum(map(len, self.edited.values())) < MOST_EDITED

    def any_worker(self, data: st.DataObject) -> Worker:
        return self.workers[data.draw(st.sampled_from(sorted(self.workers)))]

    def asked_on_a_copy(self, wishes: list[Wish]) -> list[str | None]:
        keys = self.grid.client.keys("*")
        source = source_of("selector")
        with self.grid.client.pipeline(transaction=False) as pipeline:
            for database, wish in enumerate(wishes, start=1):
                for key in keys:
                    pipeline.execute_command("COPY", key, key, "DB", database)
                pipeline.execute_command("SELECT", database)
                arguments = wish.arguments(self.now, self.grid.prefix)
                pipeline.eval(source, 2, *self.grid.counters, *arguments)
                pipeline.flushdb()
                pipeline.execute_command("SELECT", 0)
            replies = pipeline.execute()
        each = len(keys) + 4
        return [replies[number * each + len(keys) + 1] for number in range(len(wishes))]

    def remember(self, name: str) -> None:
        states, now = self.edited.setdefault(name, []), all_seen(self.grid).get(name)
        if now not in states:
            states.append(now)

    def its_counters_are_read(self, name: str) -> None:
        now = all_seen(self.grid).get(name)
        if now is not None:
            for was in [each for each in self.edited.get(name, []) if each is not None]:
                state = replace(was, active=now.active, lifetime=now.lifetime)
                if state not in self.edited[name]:
                    self.edited[name].append(state)

    def edit(self, worker: Worker, *fields: str) -> None:
        key = f"{self.grid.prefix}worker:{worker.name}"
        if self.grid.client.exists(key):
            self.remember(worker.name)
            self.grid.client.execute_command("HSET", key, *fields)

    def register(self, worker: Worker) -> None:
        if worker.is_foreign:
            key = f"{self.grid.prefix}worker:{worker.name}"
            head = {"status": worker.status, "lastHeartbeat": str(int(self.now))}
            self.grid.client.hset(key, mapping=worker.fields | head)
            self.grid.client.expire(key, 1000)
            for counter, value in zip(self.grid.counters, (0, worker.lifetime), strict=True):
                self.grid.client.hsetnx(counter, worker.name, value)
            self.a_selection_notices()
            return
        flat = [text for pair in (worker.fields | {"status": worker.status}).items() for text in pair]
        live = [text for each in sorted(worker.live) for text in ("session", each, "", "", "", "")]
        head = (worker.browser, worker.id, self.now, worker.lifetime, 1000, self.grid.prefix, 900, len(worker.live))
        self.grid.eval("register", self.grid.counters, *head, *live, *flat)
        self.edited.pop(worker.name, None)

    def beat(self, worker: Worker) -> None:
        if worker.is_foreign:
            if worker.name not in all_seen(self.grid) or not self.grid.hash(f"worker:{worker.name}"):
                self.remember(worker.name)
                self.register(worker)
            else:
                self.remember(worker.name)
                self.edit(worker, "lastHeartbeat", str(int(self.now)))
            return
        fields = tuple(text for pair in worker.fields.items() for text in pair)
        known, *_ = self.grid.beat(
            worker.id,
            tuple(sorted(worker.live)),
            now=self.now,
            browser=worker.browser,
            status=worker.status,
            lifetime=str(worker.lifetime),
            fields=fields,
        )
        if not known:
            self.register(worker)
        self.edited.pop(worker.name, None)

    def those_that_are_gone(self, names: Iterator[str] | list[str]) -> None:
        for name in list(names):
            del self.workers[name]
            self.edited.pop(name, None)
            self.sessions = {session: of for session, of in self.sessions.items() if of != name}
        if not self.workers:
            self.a_worker_registers("available", False, "chromium", "", "1.65.1", 2)


def test_the_index_says_what_the_rule_says_in_any_order(redis: RedisServer) -> None:
    client, asked = redis.client(), Asked()
    grid = LuaGrid(client)
    checked = settings(
        max_examples=50,  # half a minute and more; each run tries others
        stateful_step_count=40,
        database=None,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
    )
    run_state_machine_as_test(lambda: IndexInAnyOrder(grid, asked), settings=checked)  # type: ignore[no-untyped-call]
    client.close()
    assert asked.workers > asked.nobody / 2, asked  # else most comparisons were of nothing with nothing
