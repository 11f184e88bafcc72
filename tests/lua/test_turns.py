"""Lines of several hosts are one line: runs take turns at all slots. Queues, scripts and messages are real, the clock
is the test's."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from pwgrid.common.session_lifecycle import HeldAs
from pwgrid.proxy.policy.fair_line import FairLine, Head, Party, Turn
from pwgrid.proxy.select.claim import Claim
from pwgrid.proxy.select.queue import Queue
from pwgrid.proxy.select.turns_over_hosts import LINE_PATIENCE_S, Turns
from pwgrid.settings.model import Settings
from tests.lua.model import LuaGrid
from tests.support.redis import RedisServer

PREFIX, POOL = "{pwgrid}:", "chromium"
PATIENCE_MS = round(LINE_PATIENCE_S * 1000)
SLOTS = 10
UNKNOWN_VERSION = "1.60"
"""Which no worker has, so that its clients are passed over."""


@dataclass(eq=False)
class Host(Turns):
    """A proxy with its line."""

    name: str
    lines: Lines
    is_frozen: bool = False
    asked: int = 0
    """For a turn."""
    are_shared: bool = True
    frees_behind: str = ""
    """After the next selection for this run that finds no slot, or the next turn of it, one comes free."""

    def __post_init__(self) -> None:
        self.queue = Queue(self.select, self.give_back, Settings(), self)

    async def take(
        self, pool: str, heads: Sequence[Head[Claim]], served: Party | None, *, has_caps: bool
    ) -> Turn | None:
        self.asked += 1
        came, parties = self.lines.came, {f"{head.party.token}/{head.party.run}": head for head in heads}
        told = [
            text
            for name, head in parties.items()
            for text in (name, came[head.first.session_id], came[head.asking.session_id] if head.asking else "")
        ]
        party = f"{served.token}/{served.run}" if served else ""
        now = self.lines.now_ms
        head = (PREFIX, pool, self.name, now, PATIENCE_MS, party, "1" if has_caps else "", now)
        party, is_held, is_new_round = self.lines.grid.eval("take_turn", [f"{PREFIX}cluster:line:{pool}"], *head, *told)
        self._happens(f"turn of {party.rpartition('/')[2]}")
        return Turn(parties[party].party if party else None, bool(is_held), bool(is_new_round))

    async def select(self, claim: Claim) -> str | None:
        caps = tuple(text for of, most in claim.caps.items() for text in (f"max:{of}", str(most)))
        behind = ("behind:line", "1") if claim.granted is None else ("turn:of", self.name)
        version = claim.playwright_version or ""
        found = self.lines.grid.select(
            claim.session_id,
            max_active=1000,
            max_lifetime=10**9,
            pool=claim.pool,
            version=version,
            extra=(*caps, *behind),
        )

        if found is None:
            self._happens(f"selection of {claim.run}")
        return found

    def _happens(self, what: str) -> None:
        if what == self.frees_behind:
            self.frees_behind = ""
            self.lines.grid.release(self.lines.taken.pop(0))

    async def give_back(self, claim: Claim) -> None:
        self.lines.grid.rollback(claim.session_id)


@dataclass
class Lines:
    """The lines of three hosts at one Redis, whose worker's slots are all taken at first."""

    grid: LuaGrid
    now_ms: int = 1_000_000
    came: dict[str, int] = field(default_factory=dict)
    served: list[str] = field(default_factory=list)
    """The names of clients, in the order in which they got slots."""
    waiting: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    claims: dict[str, Claim] = field(default_factory=dict)
    """Of those who wait."""

    def __post_init__(self) -> None:
        self.hosts = [Host(name, self) for name in "abc"]
        self._messages = self.grid.client.pubsub()
        self._messages.psubscribe(f"{PREFIX}slots:*")
        assert self._messages.get_message(timeout=20) is not None
        self.grid.register(slots=SLOTS)
        self.taken: list[str] = []
        for number in range(SLOTS):
            self.taken.append(f"first-{number}")
            assert self.grid.select(self.taken[-1], max_active=1000, max_lifetime=10**9, pool=POOL)

    def close(self) -> None:
        self._messages.close()

    async def comes(self, host: int, run: str, *, version: str | None = None, cap: int = 0, capped: str = "") -> str:
        """A client, by its name. `cap` is that of its run, or of the one that is `capped`."""
        name = f"{run}-{len(self.came)}"
        self.now_ms += 1
        self.came[name] = self.now_ms
        caps = {f"run:{capped or run}": cap} if cap else {}
        claim = Claim(
            *(HeldAs.SESSION, "chromium", POOL, version, "client", float("inf")), run=run, caps=caps, session_id=name
        )

        async def gets_a_slot() -> None:
            await self.hosts[host].queue.acquire(claim)
            del self.waiting[name], self.claims[name]
            self.served.append(name)
            self.taken.append(name)

        self.claims[name] = claim
        self.waiting[name] = asyncio.create_task(gets_a_slot())
        await self.settled()
        return name

    async def leaves(self, name: str) -> None:
        task = self.waiting.pop(name)
        del self.claims[name]
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await self.settled()

    async def frees(self, slots: int = 1) -> None:
        self.now_ms += 1
        for _ in range(slots):
            self.grid.release(self.taken.pop(0))
        await self.settled()

    async def patience_ends(self) -> None:
        self.now_ms += PATIENCE_MS
        for host in self.hosts:
            if host.queue._held:
                host.queue.wake()
        await self.settled()

    async def settled(self) -> None:
        """All that was published is heard, nobody serves a line, and who was granted a slot has it."""
        while self._hear() or self._is_anybody_at_it():
            await asyncio.sleep(0)

    def _is_anybody_at_it(self) -> bool:
        if any(host.queue._serving for host in self.hosts):
            return True
        asked = (claim.granted for claim in self.claims.values())
        return any(granted is None or granted.done() for granted in asked)

    def _hear(self) -> bool:
        self.grid.client.publish(f"{PREFIX}slots:all", "")
        has_heard = False
        while (message := self._messages.get_message(timeout=20))["channel"] != f"{PREFIX}slots:all":
            has_heard = True
            pool, _, line = message["channel"].removeprefix(f"{PREFIX}slots:").partition("@")
            for host in self.hosts:
                if line in ("", host.name) and not host.is_frozen:
                    host.queue.wake(pool)
        return has_heard

    async def end(self) -> None:
        for task in self.waiting.values():
            task.cancel()
        await asyncio.gather(*self.waiting.values(), return_exceptions=True)
        self.claims.clear()
        await self.settled()
        for host in self.hosts:
            for handle in host.queue._held.values():
                handle.cancel()


@contextlib.asynccontextmanager
async def lines_of(redis: RedisServer) -> AsyncIterator[Lines]:
    redis.command("FLUSHALL")
    with redis.client() as client, contextlib.closing(Lines(LuaGrid(client, PREFIX))) as lines:
        yield lines
        await lines.end()


@pytest.fixture
async def lines(redis: RedisServer) -> AsyncIterator[Lines]:
    async with lines_of(redis) as own:
        yield own


HERE, THERE, ELSEWHERE = 0, 1, 2


async def test_a_run_with_many_clients_at_one_host_and_one_with_few_at_another_take_turns(lines: Lines) -> None:
    for _ in range(5):
        await lines.comes(HERE, "large")
    for _ in range(2):
        await lines.comes(THERE, "small")
    for _ in range(5):
        await lines.frees()
    assert lines.served == ["large-0", "small-5", "large-1", "small-6", "large-2"]


async def test_several_slots_at_once_go_to_runs_of_all_hosts_in_their_turns(lines: Lines) -> None:
    for host, run in [(HERE, "x"), (HERE, "x"), (THERE, "y"), (ELSEWHERE, "z"), (THERE, "y"), (HERE, "x")]:
        await lines.comes(host, run)
    await lines.frees(5)
    assert lines.served == ["x-0", "y-2", "z-3", "x-1", "y-4"]


async def test_clients_of_one_run_are_served_in_the_order_of_their_coming_whichever_host_they_came_to(
    lines: Lines,
) -> None:
    for host in (HERE, THERE, THERE, ELSEWHERE, HERE):
        await lines.comes(host, "x")
    await lines.frees(3)
    await lines.frees(2)
    assert lines.served == ["x-0", "x-1", "x-2", "x-3", "x-4"]


async def test_who_comes_to_a_host_without_a_line_does_not_get_before_those_who_wait_at_another(lines: Lines) -> None:
    await lines.comes(HERE, "x")
    lines.hosts[HERE].is_frozen = True  # it hears a moment later of the slot that comes free
    await lines.frees()
    await lines.comes(THERE, "y")
    assert lines.served == []
    lines.hosts[HERE].is_frozen = False
    lines.hosts[HERE].queue.wake()
    await lines.settled()
    assert lines.served == ["x-0"]


async def test_a_client_that_need_not_wait_asks_for_no_turn(lines: Lines) -> None:
    await lines.frees(2)
    await lines.comes(HERE, "x")
    await lines.comes(THERE, "y")
    assert lines.served == ["x-0", "y-1"]
    assert [host.asked for host in lines.hosts] == [0, 0, 0]


async def test_a_host_that_says_nothing_is_waited_for_once(lines: Lines) -> None:
    await lines.comes(HERE, "x")
    for _ in range(3):
        await lines.comes(THERE, "y")
    lines.hosts[HERE].is_frozen = True
    await lines.frees()
    assert lines.served == []
    await lines.patience_ends()
    assert lines.served == ["y-1"]
    await lines.frees()
    assert lines.served == ["y-1", "y-2"]
    lines.hosts[HERE].is_frozen = False
    lines.hosts[HERE].queue.wake()
    await lines.settled()
    await lines.frees()
    assert lines.served == ["y-1", "y-2", "x-0"]


async def test_a_host_whose_clients_have_left_is_not_waited_for(lines: Lines) -> None:
    left = await lines.comes(HERE, "x")
    await lines.comes(THERE, "y")
    await lines.leaves(left)
    await lines.frees()
    assert lines.served == ["y-1"]
    assert lines.grid.get("EXISTS", "cluster:line:chromium") == 0


async def test_a_run_at_its_cap_is_passed_over_and_has_its_turn_once_there_is_room(lines: Lines) -> None:
    await lines.frees()
    await lines.comes(HERE, "capped", cap=1)
    await lines.comes(HERE, "capped", cap=1)
    await lines.comes(THERE, "capped", cap=1)
    await lines.comes(THERE, "y")
    await lines.frees()
    assert lines.served == ["capped-0", "y-3"]
    lines.taken.insert(0, lines.taken.pop(lines.taken.index("capped-0")))
    await lines.frees()
    assert lines.served == ["capped-0", "y-3", "capped-1"]


@pytest.mark.parametrize("behind", ["selection of x", "turn of y"])
async def test_a_slot_that_comes_free_while_a_line_is_served_goes_to_who_is_first_in_turn(
    lines: Lines, behind: str
) -> None:
    await lines.comes(HERE, "x", cap=5)
    lines.hosts[HERE].frees_behind = behind  # x has asked in vain for another time, and y has not asked yet
    await lines.comes(HERE, "y", cap=5)
    assert lines.served == ["x-0"]


async def test_room_under_a_cap_that_comes_free_in_another_pool_goes_to_who_is_first_in_turn(lines: Lines) -> None:
    lines.grid.register("w2", pool="elsewhere")
    assert lines.grid.select("far", pool="elsewhere", extra=("max:run:all", "1"))
    await lines.comes(HERE, "x", cap=1, capped="all")
    await lines.comes(THERE, "y", cap=1, capped="all")
    await lines.frees(2)
    lines.hosts[HERE].is_frozen = True  # it hears a moment later
    lines.grid.release("far")
    await lines.settled()
    assert lines.served == []
    lines.hosts[HERE].is_frozen = False
    lines.hosts[HERE].queue.wake()
    await lines.settled()
    assert lines.served == ["x-0"]


async def test_a_line_s_clients_came_when_it_told_so_fastest(lines: Lines) -> None:
    def told(line: str, party: str, since: int, clock: int, now: int) -> list[object]:
        head = (PREFIX, "other", line, clock, PATIENCE_MS, "", "", now)
        found: list[object] = lines.grid.eval("take_turn", [f"{PREFIX}cluster:line:other"], *head, party, since, since)
        return found

    assert told("a", "x", 1000, 1000, 5000) == ["x", 0, 1]
    assert told("b", "y", 20, 20, 5020) == ["", 1, 1]
    assert told("a", "x", 1000, 1040, 5090) == ["x", 0, 0]  # 50 ms on its way


async def test_lines_that_redis_has_lost_are_told_again(lines: Lines) -> None:
    await lines.comes(HERE, "x")
    await lines.comes(HERE, "x")
    await lines.comes(THERE, "y")
    for key in lines.grid.client.scan_iter(f"{PREFIX}cluster:line*"):
        lines.grid.client.delete(key)
    await lines.frees()
    await lines.frees()
    assert sorted(lines.served) == ["x-0", "y-2"]


async def test_what_another_program_has_left_there_is_taken_out(lines: Lines) -> None:
    lines.grid.client.hset(f"{PREFIX}cluster:line:{POOL}", mapping={"one": "nonsense", "two": '{"heads": 7}'})
    await lines.comes(HERE, "x")
    await lines.frees()
    assert lines.served == ["x-0"]
    assert lines.grid.get("EXISTS", "cluster:line:chromium") == 0


COMES = st.tuples(st.integers(0, 2), st.sampled_from("xyz"), st.sampled_from([None, None, None, UNKNOWN_VERSION]))
STEPS = st.lists(st.one_of(COMES, COMES, st.integers(1, 3), st.just("leaves")), min_size=4, max_size=25)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
def test_lines_of_three_hosts_serve_as_one_line_would(redis: RedisServer, steps: list[object]) -> None:
    async def compared() -> None:
        async with lines_of(redis) as lines:
            one, free, expected = FairLine[str](), 0, list[str]()

            def serve() -> None:
                nonlocal free
                while free and (name := one.first({UNKNOWN_VERSION})) is not None:
                    one.serve(name)
                    expected.append(name)
                    free -= 1

            for step in steps:
                if isinstance(step, tuple):
                    host, run, version = step
                    name = await lines.comes(host, run, version=version)
                    one.join(name, Party("", run), version)
                elif isinstance(step, int):
                    free += (slots := min(step, len(lines.taken)))
                    await lines.frees(slots)
                else:  # the last one that came, of those that wait
                    if not (waiting := list(one)):
                        continue
                    one.leave(waiting[-1])
                    await lines.leaves(waiting[-1])
                serve()
                assert lines.served == expected, steps
                assert all(not host.queue._held for host in lines.hosts) or not free
            event(f"{len(expected) // 4 * 4}+ were served")

    asyncio.run(compared())
