"""A client gets a worker of its pool, also while Redis is away, and readiness looks at each pool."""

import asyncio
from collections.abc import Collection
from typing import Any, cast
from unittest import mock

import pytest

from pwgrid.common.errors import RegistryUnavailable
from pwgrid.common.reasons import OfferRefusal
from pwgrid.common.redis_faults import FaultKind, RedisFault
from pwgrid.common.session_lifecycle import HeldAs
from pwgrid.proxy.connect.connect_metrics import Waited
from pwgrid.proxy.connect.gateway import Gateway
from pwgrid.proxy.connect.handoff_link import Handoffs
from pwgrid.proxy.policy.access import Access
from pwgrid.proxy.readiness_check import Readiness, Verdict
from pwgrid.proxy.roster import Hosts, Roster
from pwgrid.proxy.select.claim import Claim
from pwgrid.proxy.select.selector import Selector
from pwgrid.proxy.select.worker_health import HANDOFF_TIMEOUT_S
from pwgrid.registry.records import RegistrySnapshot, WorkerRecord
from pwgrid.registry.registry import Registry
from pwgrid.settings.model import Settings
from tests.support.state_frames import told_of_pool

POOLS = {
    "appa": told_of_pool(slots=3, lifetime=30),
    "appb": told_of_pool(slots=1, lifetime=9),
}
WORKERS = [
    {"id": "a", "pool": "appa", "browserType": "chromium", "status": "available"},
    {"id": "b", "pool": "appb", "browserType": "chromium", "status": "available"},
]


def roster() -> Roster:
    made = Roster()
    made.replace({"pools": POOLS, "workers": WORKERS})
    return made


def claim(pool: str) -> Claim:
    return Claim(HeldAs.SESSION, "chromium", pool, None, "client", 1e9, session_id="s")


def selector(roster: Roster, lost: Collection[str] = ()) -> Selector:
    return Selector(Settings(), cast(Registry, None), roster, lost)


async def test_without_redis_a_client_gets_a_worker_of_its_pool() -> None:
    chooses = selector(roster())
    for pool, worker in (("appa", "a"), ("appb", "b"), ("appa", "a")):
        assert chooses.select_without_redis(claim(pool)) == worker
    assert selector(roster(), lost=("b",)).select_without_redis(claim("appb")) is None
    assert chooses.select_without_redis(claim("chromium")) is None


async def test_without_redis_the_workers_of_each_pool_take_turns_whatever_clients_of_others_come_between() -> None:
    made = Roster()
    more = [{**each, "id": each["id"] + "2"} for each in WORKERS]
    made.replace({"pools": POOLS, "workers": [*WORKERS, *more]})
    chooses = selector(made)
    chosen = [chooses.select_without_redis(claim(pool)) for pool in ("appa", "appb") * 4]
    assert chosen == ["a", "b", "a2", "b2"] * 2
    made.replace({"pools": POOLS, "workers": more})
    assert [chooses.select_without_redis(claim("appa")) for _ in range(2)] == ["a2", "a2"]


async def test_the_registry_is_asked_with_the_pool_its_slots_and_its_lifetime() -> None:
    asked: list[tuple[Any, Any, Any]] = []

    class OneRegistry:
        async def select(self, _browser_type: str, **wish: Any) -> None:
            asked.append((wish["pool"], wish["max_concurrent"], wish["max_lifetime"]))

    selector = Selector(Settings(), cast(Registry, OneRegistry()), roster(), ())
    for pool in ("appa", "appb", "gone"):
        assert await selector.select(claim(pool)) is None
    assert asked == [("appa", 3, 30), ("appb", 1, 9), ("gone", 5, 50)]


async def test_a_slot_is_leased_for_as_long_as_the_launch_of_an_own_browser_may_take() -> None:
    asked: list[float] = []

    class OneRegistry:
        async def select(self, _browser_type: str, *, lease_s: float, **_wish: Any) -> None:
            asked.append(lease_s)

    selector = Selector(Settings(), cast(Registry, OneRegistry()), roster(), ())
    for launch_s in (0.0, 60.0):
        wish = claim("appa")
        wish.launch_s = launch_s
        await selector.select(wish)
    assert asked == [2 * HANDOFF_TIMEOUT_S, 60.0 + 2 * HANDOFF_TIMEOUT_S]


class Leases:
    """Stands in for the registry: what it answers to selections, and the ids that are given back to it."""

    def __init__(self, *answers: str | RegistryUnavailable | None) -> None:
        self.answers = [*answers]
        self.given_back: list[str] = []
        self.away: RegistryUnavailable | None = None
        self.kinds: list[HeldAs] = []

    async def select(self, _browser_type: str, *, kind: HeldAs, **_wish: Any) -> str | None:
        self.kinds.append(kind)
        answer = self.answers.pop(0)
        if isinstance(answer, RegistryUnavailable):
            raise answer
        return answer

    async def rollback(self, session_id: str, kind: HeldAs) -> None:
        if self.away is not None:
            raise self.away
        self.given_back.append(session_id)
        self.kinds.append(kind)


@pytest.mark.parametrize("kind", HeldAs)
async def test_the_registry_is_told_how_the_slot_will_be_held(kind: HeldAs) -> None:
    leases = Leases("a")
    selector, asks = Selector(Settings(), cast(Registry, leases), roster(), ()), claim("appa")
    asks.kind = kind
    assert await selector.select(asks) == "a"
    await selector.give_back(asks)
    assert leases.kinds == [kind, kind]


async def test_a_slot_that_redis_has_not_leased_is_not_given_back_to_it() -> None:
    leases = Leases(RegistryUnavailable("Redis is away"), "a")
    selector, asks = Selector(Settings(), cast(Registry, leases), roster(), ()), claim("appa")
    assert await selector.queue.acquire(asks) == "a"
    await selector.give_back(asks)
    assert leases.given_back == []
    assert await selector.queue.acquire(asks) == "a"  # Redis is back
    await selector.give_back(asks)
    assert leases.given_back == [asks.session_id]


async def test_what_redis_has_not_answered_is_given_back_once_it_is_there_again() -> None:
    away = RegistryUnavailable("Redis is away")
    leases = Leases(away, "a")
    selector, asks = Selector(Settings(), cast(Registry, leases), roster(), ()), claim("appa")
    asked_as = asks.session_id
    assert await selector.queue.acquire(asks) == "a"
    assert asks.session_id != asked_as
    leases.away = away
    await selector.give_back_unanswered()  # it is gone again at once
    leases.away = None
    assert await selector.queue.acquire(asks) == "a"
    await selector.give_back_unanswered()
    assert leases.given_back == [asked_as]
    await selector.give_back_unanswered()
    assert leases.given_back == [asked_as]


async def test_a_slot_that_cannot_be_given_back_is_given_back_later() -> None:
    leases = Leases("a")
    selector, asks = Selector(Settings(), cast(Registry, leases), roster(), ()), claim("appa")
    assert await selector.queue.acquire(asks) == "a"
    asked_as, leases.away = asks.session_id, RegistryUnavailable("Redis is away")
    await selector.give_back(asks)
    assert asks.session_id != asked_as  # a later selection of this client is another one
    leases.away = None
    await selector.give_back_unanswered()
    assert leases.given_back == [asked_as]


async def test_a_client_that_is_tried_again_counts_once_among_those_that_stood_in_line() -> None:
    chosen = "a"
    leases = Leases(None, chosen, chosen, RegistryUnavailable("Redis is away"))
    selector, asks = Selector(Settings(), cast(Registry, leases), roster(), ()), claim("appa")
    readiness = Readiness(Settings(), roster(), cast(Registry, leases))
    gateway = Gateway(Settings(), roster(), selector, cast(Handoffs, None), Access(), readiness, mock.Mock())
    waits = asyncio.create_task(gateway.slot(asks))
    while not selector.queue.waiting() or selector.queue._serving:
        await asyncio.sleep(0)
    selector.queue.wake()
    assert await waits == chosen
    assert asks.selection_s > 0
    assert await gateway.slot(asks) == chosen
    assert await gateway.slot(asks) == "a"
    assert asks.selection_s == 0  # Redis has not chosen it
    await asyncio.sleep(0)
    pool = ("chromium", "appa")
    assert sum(gateway.figures.waits[pool, Waited.SERVED].counts) == 1
    assert sum(gateway.figures.phases[pool].queue.counts) == 3


async def test_a_pool_of_which_redis_would_choose_no_worker_makes_the_grid_not_ready() -> None:
    class OneRegistry:
        def now(self) -> float:
            return 100.0

        async def look(self, *_: object) -> RegistrySnapshot:
            return found

    def record(worker: str, pool: str) -> WorkerRecord:
        return WorkerRecord("chromium", worker, "ws://x", pool=pool, last_heartbeat=100.0)

    readiness = Readiness(Settings(), roster(), cast(Registry, OneRegistry()))
    both = {"chromium:a": record("a", "appa"), "chromium:b": record("b", "appb")}
    found = RegistrySnapshot({}, {"chromium:a": 9, "chromium:b": 9}, both, {}, 0)
    used_up = "no appb worker can be chosen: in Redis 1 used up (cluster:lifetime_connections says 9 sessions or more)"
    assert await readiness.verdict() == Verdict(used_up)
    assert (await readiness.shortage("appa"), await readiness.shortage("appb")) == (None, used_up)
    found = RegistrySnapshot({}, {}, {"chromium:a": both["chromium:a"]}, {}, 0)
    assert await readiness.verdict() == Verdict("no appb worker can be chosen: in Redis none is registered")


async def test_while_redis_takes_no_writes_the_grid_is_as_ready_as_its_roster_and_says_what_it_does_without() -> None:
    fault = RedisFault(FaultKind.MEMORY_FULL, "OOM it is full")
    answers: list[RegistrySnapshot | RegistryUnavailable] = [
        RegistrySnapshot({}, {}, {}, {}, 0, write_fault=fault),
        RegistryUnavailable("Redis at redis://secret-host is away", fault),
    ]

    class OneRegistry:
        def now(self) -> float:
            return 100.0

        async def look(self, *_: object) -> RegistrySnapshot:
            if isinstance(answers[0], RegistryUnavailable):
                raise answers[0]
            return answers[0]

    while answers:
        readiness = Readiness(Settings(), roster(), cast(Registry, OneRegistry()))
        assert await readiness.verdict() == Verdict(None, f"clients are served without Redis: {fault.what}")
        assert await readiness.shortage("appa") is None
        answers.pop(0)
    nobody = Roster()
    readiness = Readiness(Settings(), nobody, cast(Registry, OneRegistry()))
    assert await readiness.verdict() == Verdict(nobody.not_ready())


@pytest.mark.parametrize("own", [{}, {"appc": told_of_pool(wanted=0, removed=True)}])
async def test_a_pool_that_only_another_host_offers_is_short_of_what_that_host_says(own: dict[str, Any]) -> None:
    made, other = roster(), Roster()
    other.replace({"pools": {"appc": told_of_pool(available=0, reason="no display")}})
    made.replace({"pools": {**POOLS, **own}, "workers": WORKERS, "hostGuard": "this host is short of memory"})
    made.others = (other,)
    readiness = Readiness(Settings(), made, cast(Registry, None))  # what Redis has of this host tells nothing of it
    assert await readiness.shortage("appc") == "no appc worker is available: no display"
    assert await readiness.shortage("appa") == "this host is short of memory"
    made.host_guard, made.others = None, ()
    assert await readiness.shortage("appc") == "there is no pool appc any more"


async def test_clients_that_have_waited_in_vain_at_the_same_time_share_a_look_at_redis() -> None:
    looks: list[asyncio.Future[RegistrySnapshot]] = []

    class OneRegistry:
        def now(self) -> float:
            return 100.0

        async def look(self, *_: object) -> RegistrySnapshot:
            looks.append(asyncio.get_running_loop().create_future())
            return await looks[-1]

    readiness = Readiness(Settings(), roster(), cast(Registry, OneRegistry()))
    gone, *others = [asyncio.create_task(readiness.shortage("appa")) for _ in range(3)]
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.sleep(0)
    looks[0].set_result(RegistrySnapshot({}, {}, {}, {}, 0))
    why = "no appa worker can be chosen: in Redis none is registered"
    assert await asyncio.gather(*others) == [why, why]
    assert len(looks) == 1


# Several hosts

HERE, THERE = "10.0.0.1:8080", "10.0.0.2:8080"


@pytest.mark.parametrize(
    ("hosts", "guard", "fields", "preferred", "avoided"),
    [
        (Hosts(), None, {}, "", set()),
        (Hosts(HERE), "no memory", {}, "", set()),  # nobody else could have its clients
        (Hosts(HERE, others=frozenset({THERE})), None, {}, HERE, set()),
        (Hosts(HERE, is_own_first=False, others=frozenset({THERE})), None, {}, "", set()),
        (Hosts(HERE, others=frozenset({THERE})), "no memory", {}, HERE, {HERE}),
        (Hosts(HERE, others=frozenset({THERE}), avoided=frozenset({THERE})), None, {}, HERE, {THERE}),
        (Hosts(HERE, others=frozenset({THERE})), None, {"profile": "shop"}, HERE, {THERE}),
    ],
)
async def test_the_registry_is_asked_for_the_hosts_that_may_have_the_client(
    hosts: Hosts, guard: str | None, fields: dict[str, str], preferred: str, avoided: set[str]
) -> None:
    asked: list[tuple[str, set[str]]] = []

    class OneRegistry:
        async def select(self, _browser_type: str, **wish: Any) -> None:
            asked.append((wish["prefer_host"], {*wish["avoid_hosts"]}))

    made, wish = roster(), claim("appa")
    made.hosts, made.host_guard, wish.fields = hosts, guard, fields
    await Selector(Settings(), cast(Registry, OneRegistry()), made, ()).select(wish)
    assert asked == [(preferred, avoided)]


async def test_without_redis_a_host_among_others_serves_nobody_while_it_is_short_of_memory() -> None:
    made = roster()
    made.hosts, made.host_guard = Hosts(HERE, others=frozenset({THERE})), "no memory"
    chooses = selector(made)
    assert chooses.select_without_redis(claim("appa")) is None
    made.host_guard = None
    assert chooses.select_without_redis(claim("appa")) == "a"


async def test_another_host_s_pool_counts_with_its_own_slots_and_lifetime() -> None:
    asked: list[tuple[int, int]] = []

    class OneRegistry:
        async def select(self, _browser_type: str, **wish: Any) -> None:
            asked.append((wish["max_concurrent"], wish["max_lifetime"]))

    made, other = roster(), Roster()
    other.replace({"pools": {"elsewhere": told_of_pool(slots=7, lifetime=70), "appa": told_of_pool(slots=9)}})
    made.others = (other,)
    selector = Selector(Settings(), cast(Registry, OneRegistry()), made, ())
    for pool in ("elsewhere", "appa"):
        await selector.select(claim(pool))
    assert asked == [(7, 70), (3, 30)]


async def test_a_full_worker_of_another_host_which_does_not_tell_of_its_slots_is_left_alone_for_a_while() -> None:
    made = roster()
    made.hosts = Hosts(HERE, others=frozenset({THERE}))
    selector, asks = Selector(Settings(), cast(Registry, None), made, ()), claim("appa")
    selector.not_taken(asks, "elsewhere", OfferRefusal.FULL)
    assert (selector.health.not_to_choose(), asks.excluded) == ({"elsewhere"}, set())
    selector.health.freed("elsewhere")  # another worker's word
    assert selector.health.not_to_choose() == {"elsewhere"}
    selector.not_taken(asks, "elsewhere", OfferRefusal.DRAINING)
    assert asks.excluded == {"elsewhere"}
    selector.not_taken(asks, "a", OfferRefusal.FULL)
    selector.health.freed("a")
    assert selector.health.not_to_choose() == {"elsewhere"}
