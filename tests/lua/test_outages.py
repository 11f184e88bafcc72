"""Whatever outages come in whatever order: when Redis is back it says the same as if it had never been away."""

import asyncio
import shutil
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis import Redis

from pwgrid.common.errors import RegistryUnavailable
from pwgrid.common.reasons import EndReason, Reason
from pwgrid.common.worker_lifecycle import WorkerStatus
from pwgrid.proxy import reap_workers
from pwgrid.proxy.reap_workers import DeadWorkers
from pwgrid.registry.registry import Registry
from pwgrid.registry.session_update import SessionUpdate
from pwgrid.settings.model import Settings
from pwgrid.worker import registry_sync
from pwgrid.worker.holders import End, LiveSession, SessionClosed
from pwgrid.worker.registry_sync import RegistrySync
from pwgrid.worker.slots import Slots
from tests.support.redis import RedisServer

BOUND_S = 20.0
LEASE_S = 4.0
WORKER = "aabbccdd"
Line = Literal["up", "away", "unheard"]
Step = tuple[Any, ...]


class Cut:
    """The worker's or the proxy's connection: `away` nothing arrives, `unheard` it arrives and the reply is lost."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self.state: Line = "up"

    async def run(self, *arguments: Any) -> Any:
        if self.state == "away":
            raise RegistryUnavailable("away")
        reply = await self._client.run(*arguments)
        if self.state == "unheard":
            raise RegistryUnavailable("the reply is lost")
        return reply

    async def wait_connected(self) -> None:
        if self.state != "up":
            await asyncio.Event().wait()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)


class World:
    """One worker's registry and one proxy's selections on a real Redis, under a clock of their own."""

    def __init__(self, redis: RedisServer, client: Redis, runtime: Path, *, outages: bool) -> None:
        client.flushall()
        self.client = client
        self.runtime = runtime
        self.outages = outages
        self.clock = 1_700_000_000.0
        self.serial = 0
        self.ends: dict[str, SessionClosed] = {}
        """What the browser server has told and nobody has put on record."""
        self.ghosts: set[str] = set()
        """Selections that Redis made and that nobody heard of."""
        self.url = redis.url
        self.proxy = self.connect()
        self.employ(Slots(50))

    def connect(self) -> Registry:
        registry = Registry(self.url, Settings(redis_timeout=BOUND_S), lambda: self.clock)
        registry.client = Cut(registry.client)  # type: ignore[assignment]
        return registry

    def employ(self, slots: Slots) -> None:
        """A worker process begins."""
        self.slots = slots
        self.slots.status = WorkerStatus.AVAILABLE
        self.worker = self.connect()
        boot: Any = SimpleNamespace(
            registry_seen=True,
            browser_type="chromium",
            worker_id=WORKER,
            pool=Settings().short_form("chromium"),
            runtime=self.runtime,
            directory=self.runtime,
            settings=Settings(),
            adopt_node_pid=None,
        )
        self.sync = RegistrySync(boot, self.worker, self.slots)

    async def play(self, steps: list[Step]) -> None:
        await self.sync.register()
        for step in steps:
            self.clock += 1
            await getattr(self, step[0])(*step[1:])
            await asyncio.sleep(0)

    # What happens

    async def redis(self, state: Line) -> None:
        if self.outages:
            self.worker.client.state = self.proxy.client.state = state  # type: ignore[attr-defined]

    async def select(self) -> str:
        self.serial += 1
        session_id = f"s{self.serial}"
        try:
            await self.proxy.select(
                "chromium", max_concurrent=50, max_lifetime=10_000, session_id=session_id, lease_s=LEASE_S, client="c:1"
            )
        except RegistryUnavailable:
            self.ghosts.add(session_id)
            session_id += "local"
        return session_id

    async def a_client_comes_and_goes_too_soon(self) -> None:
        session_id = await self.select()
        try:
            await self.proxy.rollback(session_id)
        except RegistryUnavailable:
            self.ghosts.add(session_id)

    async def a_client_comes(self) -> None:
        session_id = await self.select()
        session = LiveSession(session_id, "c:1")
        self.slots.admit(session)
        self.sync.mark_served(session)
        self.sync.started(session)

    async def a_session_ends(self, choice: int, by: str, reason: str) -> None:
        if not self.slots.live:
            return
        session_id = sorted(self.slots.live)[choice % len(self.slots.live)]
        self.ends[session_id] = SessionClosed(session_id, 7, 9, End(by, Reason(EndReason(reason))))
        self.tell(session_id)

    def tell(self, session_id: str) -> None:
        """As a worker does with what its browser server tells."""
        session = self.slots.live.get(session_id)
        self.slots.free(session_id)
        self.sync.ended(self.ends[session_id], session, lambda: self.ends.pop(session_id, None))

    async def the_worker_beats(self) -> None:
        try:
            await self.sync.beat()
        except RegistryUnavailable:
            assert self.outages

    async def the_worker_dies(self) -> None:
        """Its successor hears from the browser server who lives, and of the ends that are on no record."""
        live = sorted(self.slots.live)
        await self.sync.close()
        state = self.worker.client.state  # type: ignore[attr-defined]
        self.employ(Slots(50))
        self.worker.client.state = state  # type: ignore[attr-defined]
        for session_id in live:
            self.slots.admit(LiveSession(session_id, is_served=True))
        await self.sync.register()
        for session_id in list(self.ends):
            self.tell(session_id)

    async def redis_loses_everything(self) -> None:
        self.client.flushall()

    # How it ends

    async def calm(self) -> None:
        """Redis is back for good, and every lease that nobody came for has run out."""
        await self.redis("up")
        await self.the_worker_beats()
        self.clock += 2 * LEASE_S
        await self.the_worker_beats()

    async def leave(self) -> None:
        """The worker leaves, Redis comes back, and the proxy looks after what was left."""
        await self.sync.leave()
        await self.redis("up")
        await DeadWorkers(self.proxy, self.runtime, lambda: None).clear()

    async def close(self) -> None:
        await self.sync.close()
        await self.proxy.close()

    def hash(self, key: str) -> dict[str, str]:
        found = dict(self.client.hgetall(key))
        found.pop("proxy", None)  # whose selection it was
        return found

    def sessions(self) -> dict[str, dict[str, str]]:
        """Those that somebody had; a ghost's record must have ended without a start."""
        found = {key.partition(":")[2]: self.hash(key) for key in self.client.keys("session:*")}
        for ghost in self.ghosts & found.keys():
            assert (found[ghost]["status"], "startedAt" in found[ghost]) in (("expired", False), ("failed", False))
        return {name.removesuffix("local"): each for name, each in found.items() if name not in self.ghosts}

    def outcomes(self) -> dict[str, int]:
        counts = {name: int(count) for name, count in self.hash("sessions:outcomes").items()}
        for ghost in self.ghosts:
            if status := self.hash(f"session:{ghost}").get("status"):
                counts[status] -= 1
        return {name: count for name, count in counts.items() if count}

    def says(self) -> dict[str, Any]:
        """All that Redis says."""
        live = self.client.zrange(f"sessions:live:chromium:{WORKER}", 0, -1, withscores=True)
        index = self.client.zrange("sessions:index", 0, -1, withscores=True)
        return {
            "sessions": self.sessions(),
            "outcomes": self.outcomes(),
            "active": self.hash("cluster:active_connections"),
            "lifetime": self.hash("cluster:lifetime_connections"),
            "live": {id_.removesuffix("local"): score for id_, score in live},
            "index": sorted((score, id_.removesuffix("local")) for id_, score in index if id_ not in self.ghosts),
        }


COME = st.sampled_from([("a_client_comes",), ("a_client_comes",), ("a_client_comes_and_goes_too_soon",)])
END = st.tuples(
    st.just("a_session_ends"),
    st.integers(0, 9),
    st.sampled_from(["client", "grid", "browser"]),
    st.sampled_from(["client disconnected", "idle timeout", "browser crashed"]),
)
BEAT = st.just(("the_worker_beats",))
REDIS = st.tuples(st.just("redis"), st.sampled_from(["up", "away", "unheard"]))
DIE = st.just(("the_worker_dies",))
FLUSH = st.just(("redis_loses_everything",))

Play = Callable[[list[Step], bool], Awaitable[Any]]


@pytest.fixture
def play(redis: RedisServer, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs steps in a new world and returns what `judge` makes of it."""
    monkeypatch.setattr(registry_sync, "SETTLE_S", 0.0)
    monkeypatch.setattr(reap_workers, "LAST_S", 0.0)
    client = redis.client()
    runner = asyncio.Runner()

    def run(steps: list[Step], end: str, judge: Callable[[World], Any], *, outages: bool) -> Any:
        async def live() -> Any:
            runtime = Path(tempfile.mkdtemp(prefix="pgo-"))
            world = World(redis, client, runtime, outages=outages)
            try:
                await world.play(steps)
                await getattr(world, end)()
                assert list(runtime.glob("unwritten/*")) == []
                return judge(world)
            finally:
                await world.close()
                shutil.rmtree(runtime)

        return runner.run(live())

    yield run
    runner.close()
    client.close()


CHECKED = settings(
    max_examples=120,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large],
)


@CHECKED
@given(steps=st.lists(st.one_of(COME, END, BEAT, REDIS), max_size=40))
def test_after_any_outages_redis_says_the_same_as_after_none(play: Any, steps: list[Step]) -> None:
    says = play(steps, "calm", World.says, outages=True)
    assert says == play(steps, "calm", World.says, outages=False)


@CHECKED
@given(steps=st.lists(st.one_of(COME, END, BEAT, REDIS), max_size=40))
def test_a_worker_that_leaves_in_an_outage_leaves_nothing_unsaid(play: Any, steps: list[Step]) -> None:
    """The sessions that it still has then are lost with it; in the grid there are none."""
    steps = [*steps, *[("a_session_ends", 0, "client", "client disconnected")] * 40]
    says = play(steps, "leave", World.says, outages=True)
    assert says == play(steps, "leave", World.says, outages=False)
    assert (says["active"], says["lifetime"], says["live"]) == ({}, {}, {})


def known(world: World) -> dict[str, Any]:
    """What no death and no outage may change."""
    sessions = world.sessions()
    assert {name for name, each in sessions.items() if each["status"] == "running"} == {
        name.removesuffix("local") for name in world.slots.live
    }
    assert world.hash("cluster:active_connections") == {f"chromium:{WORKER}": str(len(world.slots.live))}
    assert sum(world.outcomes().values()) == len(sessions) - len(world.slots.live)
    facts = ("status", "reason", "bytesIn", "bytesOut", "workerId")
    return {name: {fact: each.get(fact) for fact in facts} for name, each in sessions.items()}


@CHECKED
@given(steps=st.lists(st.one_of(COME, END, BEAT, REDIS, DIE), max_size=40))
def test_after_any_outages_and_deaths_every_session_has_the_end_that_it_had(play: Any, steps: list[Step]) -> None:
    assert play(steps, "calm", known, outages=True) == play(
        [step for step in steps if step[0] != "the_worker_dies"], "calm", known, outages=False
    )


@CHECKED
@given(steps=st.lists(st.one_of(COME, END, BEAT, REDIS, FLUSH), max_size=40))
def test_a_redis_that_lost_its_data_has_a_true_record_of_all_that_lives(play: Any, steps: list[Step]) -> None:
    def judge(world: World) -> dict[str, dict[str, str]]:
        known(world)
        return world.sessions()

    found = play(steps, "calm", judge, outages=True)
    calm = [("redis", "up") if step == ("redis_loses_everything",) else step for step in steps]
    expected = play(calm, "calm", judge, outages=False)
    assert found.items() <= expected.items()
    assert {name for name, each in expected.items() if each["status"] == "running"} <= found.keys()


async def test_a_heartbeat_that_redis_refuses_is_sent_again_soon_and_says_why(
    own_redis: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No event tells when a Redis that answers takes writes again."""
    monkeypatch.setattr(registry_sync, "REFUSED_S", 0.01)
    with own_redis.client() as client:
        world = World(own_redis, client, tmp_path, outages=False)
        try:
            await world.sync.register()
            own_redis.command("CONFIG", "SET", "maxmemory", "1")
            world.sync._writer.keep(SessionUpdate("s"))  # before which nothing newer is written
            async with asyncio.timeout(BOUND_S):
                for _ in range(2):
                    with pytest.raises(RegistryUnavailable, match="its memory is full"):
                        await world.sync.beat()
                    await world.sync.due(10 * BOUND_S)
                own_redis.command("CONFIG", "SET", "maxmemory", "0")
                assert (await world.sync.beat()).known
            assert not world.sync._is_refused
        finally:
            await world.sync.close()
            await world.proxy.close()
