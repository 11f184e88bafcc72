"""The queue before the registry: order, wake-ups, deadlines, clients that go. The registry is a counter here."""

import asyncio
from collections.abc import Callable

import pytest

from pwgrid.common.session_lifecycle import HeldAs
from pwgrid.common.types import BrowserType
from pwgrid.proxy.policy.refusal import Refusal, RefusalReason, line_full
from pwgrid.proxy.select.claim import Claim, ClientGone
from pwgrid.proxy.select.queue import Queue
from pwgrid.settings.model import Settings

FOREVER = float("inf")


class Slots:
    """Stands in for the registry: a number of slots, and a gate that holds answers back."""

    def __init__(self, free: int) -> None:
        self.free = free
        self.asked: list[str] = []
        self.given: list[str] = []
        self.returned: list[str] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def select(self, claim: Claim) -> str | None:
        self.asked.append(claim.session_id)
        leased = self.free > 0 and "w" not in claim.excluded
        if leased:
            self.free -= 1
        await self.gate.wait()
        if not leased:
            return None
        self.given.append(claim.session_id)
        return "w"

    async def give_back(self, claim: Claim) -> None:
        self.returned.append(claim.session_id)
        self.free += 1


def claim(name: str, *, deadline: float = FOREVER, browser_type: BrowserType = "chromium") -> Claim:
    return Claim(HeldAs.SESSION, browser_type, browser_type, None, "client", deadline, session_id=name)


def of_run(name: str, run: str, *, token: str = "", borrows: bool = False) -> Claim:
    return Claim(
        HeldAs.LEASE if borrows else HeldAs.SESSION,
        "chromium",
        "chromium",
        None,
        "client",
        FOREVER,
        run=run,
        token=token,
        session_id=name,
    )


def queue_of(slots: Slots, **settings: int) -> Queue:
    return Queue(slots.select, slots.give_back, Settings(**settings))


async def stand_in_line(queue: Queue, *claims: Claim) -> list[asyncio.Task[str]]:
    tasks = []
    for each in claims:
        waiting = queue.waiting()
        tasks.append(asyncio.create_task(queue.acquire(each)))
        while queue.waiting() == waiting:
            await asyncio.sleep(0)
    return tasks


async def until_all_are_served(queue: Queue) -> None:
    """Who can have a slot now has it."""
    while queue._serving:
        await asyncio.sleep(0)


async def test_a_free_slot_is_given_at_once() -> None:
    slots = Slots(1)
    assert await queue_of(slots).acquire(claim("a")) == "w"


async def test_slots_that_come_free_go_to_those_who_came_first() -> None:
    slots = Slots(0)
    queue = queue_of(slots)
    tasks = await stand_in_line(queue, claim("a"), claim("b"), claim("c"))
    slots.free = 2
    queue.wake("chromium")
    await asyncio.gather(*tasks[:2])
    assert slots.given == ["a", "b"]
    assert queue.waiting() == 1
    tasks[2].cancel()


async def test_the_registry_is_asked_for_everyone_who_stands_in_line() -> None:
    """It tells of free slots only while it knows that somebody has asked in vain since the last one."""
    slots = Slots(0)
    queue, asked = queue_of(slots), slots.asked
    tasks = await stand_in_line(queue, claim("a"), claim("b"))
    for _ in range(10):
        await asyncio.sleep(0)
    asked.clear()
    tasks += await stand_in_line(queue, claim("c"))
    for _ in range(10):
        await asyncio.sleep(0)
    assert asked == ["a"]  # all three look alike: one question stands for them
    for task in tasks:
        task.cancel()


async def test_who_has_asked_in_vain_stands_in_line_without_another_question() -> None:
    slots = Slots(0)
    queue, asked = queue_of(slots), slots.asked
    (task,) = await stand_in_line(queue, claim("a"))
    await until_all_are_served(queue)
    assert asked == ["a"]
    slots.free = 1
    queue.wake("chromium")
    assert await task == "w"
    assert asked == ["a", "a"]


async def test_a_newcomer_does_not_pass_those_who_wait() -> None:
    slots = Slots(0)
    queue = queue_of(slots)
    first = await stand_in_line(queue, claim("a"))
    slots.free = 1  # free, but nobody has been woken yet
    second = asyncio.create_task(queue.acquire(claim("b")))
    await first[0]
    assert (slots.given, queue.waiting()) == (["a"], 1)
    second.cancel()


async def test_those_whom_their_workers_did_not_take_have_the_places_that_they_had() -> None:
    slots = Slots(1)
    queue = queue_of(slots)
    at_once, *others = (of_run(name, run) for name, run in zip("abcde", ("r", "s", "r", "s", "s"), strict=True))
    await queue.acquire(at_once)
    tasks = await stand_in_line(queue, *others)
    slots.free = 3
    queue.wake("chromium")
    await until_all_are_served(queue)
    assert slots.given == ["a", "b", "c", "d"]
    e = tasks.pop()
    since = [each.waits_since for each in others]
    again = await stand_in_line(queue, others[1], others[2], at_once, others[0])
    slots.given.clear()
    slots.free = 5
    queue.wake("chromium")
    await asyncio.gather(*again, e)
    assert slots.given == ["a", "b", "c", "d", "e"]
    assert [each.waits_since for each in others] == since


async def test_a_slot_that_comes_free_between_the_answer_and_the_line_is_not_missed() -> None:
    slots = Slots(0)
    queue = queue_of(slots)
    slots.gate.clear()
    task = asyncio.create_task(queue.acquire(claim("a")))
    await asyncio.sleep(0)  # the registry has decided "none" and its answer is on the way
    slots.free = 1
    queue.wake("chromium")
    slots.gate.set()
    assert await task == "w"


async def test_a_wake_up_while_the_line_is_served_serves_it_again() -> None:
    slots = Slots(1)
    queue = queue_of(slots)
    slots.free = 0
    tasks = await stand_in_line(queue, claim("a"), claim("b"))
    slots.gate.clear()
    slots.free = 1
    queue.wake("chromium")
    await asyncio.sleep(0)
    slots.free += 1
    queue.wake("chromium")
    slots.gate.set()
    assert await asyncio.gather(*tasks) == ["w", "w"]


async def test_who_has_got_a_slot_goes_on_before_the_registry_is_asked_for_the_next() -> None:
    slots = Slots(0)
    happened: list[str] = []

    async def select(claim: Claim) -> str | None:
        happened.append(f"asked for {claim.session_id}")
        return await slots.select(claim)

    queue = Queue(select, slots.give_back, Settings())

    async def client(claim: Claim) -> None:
        await queue.acquire(claim)
        happened.append(f"{claim.session_id} goes on")

    tasks = [asyncio.create_task(client(claim(name))) for name in "ab"]
    for _ in range(10):
        await asyncio.sleep(0)
    happened.clear()
    slots.free = 1
    queue.wake("chromium")
    await tasks[0]
    for _ in range(10):
        await asyncio.sleep(0)
    assert happened == ["asked for a", "a goes on", "asked for b"]
    tasks[1].cancel()


async def test_who_waits_for_a_cap_is_asked_for_when_a_slot_comes_free_in_any_pool() -> None:
    slots = Slots(0)
    queue = queue_of(slots)
    capped = Claim(
        HeldAs.SESSION, "chromium", "chromium", None, "client", FOREVER, run="red", caps={"run:/red": 1}, session_id="a"
    )
    tasks = await stand_in_line(queue, capped, claim("b"))
    slots.free = 1
    queue.wake("firefox")
    assert await tasks[0] == "w"
    slots.free = 1
    queue.wake("firefox")
    for _ in range(10):
        await asyncio.sleep(0)
    assert (slots.given, queue.waiting("chromium")) == (["a"], 1)
    tasks[1].cancel()


async def test_room_under_a_cap_between_the_answer_and_the_line_is_not_missed_in_any_pool() -> None:
    slots = Slots(0)
    queue = queue_of(slots)
    slots.gate.clear()
    capped = Claim(
        HeldAs.SESSION, "chromium", "chromium", None, "client", FOREVER, run="red", caps={"run:/red": 1}, session_id="a"
    )
    task = asyncio.create_task(queue.acquire(capped))
    await asyncio.sleep(0)  # the registry has decided "none" and its answer is on the way
    slots.free = 1
    queue.wake("firefox")  # a session of the run has ended there
    slots.gate.set()
    async with asyncio.timeout(20):
        assert await task == "w"


async def test_who_may_have_no_slot_any_more_hears_so_at_its_turn_and_takes_none() -> None:
    slots, refusal = Slots(0), ValueError("revoked")
    queue = queue_of(slots)
    revoked = Claim(HeldAs.SESSION, "chromium", "chromium", None, "client", FOREVER, session_id="a")
    tasks = await stand_in_line(queue, revoked, claim("b"))
    await until_all_are_served(queue)
    revoked.refusal = lambda: refusal
    slots.free = 1
    queue.wake("chromium")
    async with asyncio.timeout(20):
        assert await asyncio.gather(*tasks, return_exceptions=True) == [refusal, "w"]
    assert (slots.given, slots.returned, queue.waiting()) == (["b"], [], 0)


async def test_types_wait_in_lines_of_their_own() -> None:
    slots = Slots(0)
    queue = queue_of(slots)
    tasks = await stand_in_line(queue, claim("a"), claim("b", browser_type="firefox"))
    slots.free = 1
    queue.wake("firefox")
    await tasks[1]
    assert (queue.waiting("chromium"), queue.waiting("firefox")) == (1, 0)
    tasks[0].cancel()


async def test_who_cannot_be_served_does_not_hold_up_who_can() -> None:
    slots = Slots(0)
    queue = queue_of(slots)
    picky = claim("picky")
    picky.excluded.add("w")
    tasks = await stand_in_line(queue, picky, claim("b"))
    slots.free = 1
    queue.wake("chromium")
    await tasks[1]
    assert slots.given == ["b"]
    tasks[0].cancel()


async def test_who_wants_a_session_s_id_that_somebody_else_has_holds_nobody_up() -> None:
    slots = Slots(0)
    queue = queue_of(slots)
    select = slots.select

    async def select_others(claim: Claim) -> str | None:
        return None if claim.keeps_id else await select(claim)

    slots.select = select_others  # type: ignore[method-assign]
    queue = queue_of(slots)
    same_url = claim("a")
    same_url.keeps_id = True
    waits, served = await stand_in_line(queue, same_url, claim("b"))
    slots.free = 1
    queue.wake("chromium")
    assert await served == "w"
    waits.cancel()
    await asyncio.gather(waits, return_exceptions=True)


async def test_the_wait_ends_at_the_deadline_and_leaves_the_line() -> None:
    slots = Slots(0)
    queue = queue_of(slots)
    with pytest.raises(Refusal) as caught:
        await queue.acquire(claim("a", deadline=asyncio.get_running_loop().time()))
    assert caught.value.reason is RefusalReason.WAITED_TOO_LONG
    assert queue.waiting() == 0


async def test_a_slot_that_is_granted_in_the_turn_of_the_deadline_is_taken() -> None:
    slots = Slots(0)
    queue = queue_of(slots)
    loop = asyncio.get_running_loop()
    late = claim("a", deadline=loop.time() + 0.02)
    (task,) = await stand_in_line(queue, late)
    assert late.granted is not None
    in_the_turn_of_its_deadline(late, late.granted.set_result, "w")
    assert await task == "w"


async def test_who_is_refused_in_the_turn_of_the_deadline_is_told_why() -> None:
    slots = Slots(0)
    queue = queue_of(slots)
    late = claim("a", deadline=asyncio.get_running_loop().time() + 0.02)
    (task,) = await stand_in_line(queue, late)
    in_the_turn_of_its_deadline(late, queue.refuse, "chromium", RuntimeError("no such pool"))
    with pytest.raises(RuntimeError, match="no such pool"):
        await task


def in_the_turn_of_its_deadline(late: Claim, callback: Callable[..., object], *arguments: object) -> None:
    """Has the callback run right before the deadline, in one turn of the loop."""
    loop = asyncio.get_running_loop()
    loop.call_at(late.deadline - 0.001, callback, *arguments)

    def block_the_loop() -> None:
        while loop.time() < late.deadline + 0.005:
            pass

    loop.call_at(late.deadline - 0.01, block_the_loop)


async def test_a_queue_that_was_closed_may_open_again() -> None:
    slots = Slots(1)
    queue = queue_of(slots)
    queue.close(RuntimeError("stopping"))
    queue.reopen()
    assert await queue.acquire(claim("a")) == "w"


async def test_a_full_line_refuses_the_next() -> None:
    slots = Slots(0)
    queue = queue_of(slots, max_queue=1)
    tasks = await stand_in_line(queue, claim("a"))
    with pytest.raises(Refusal) as caught:
        await queue.acquire(claim("b"))
    assert caught.value.reason is RefusalReason.QUEUE_FULL
    tasks[0].cancel()


async def test_runs_take_turns_however_many_clients_each_has_in_line() -> None:
    slots = Slots(0)
    queue = queue_of(slots)
    claims = (of_run("r1", "red"), of_run("r2", "red"), of_run("r3", "red"), of_run("b1", "blue"), claim("plain"))
    tasks = await stand_in_line(queue, *claims)
    other = await stand_in_line(queue, claim("f", browser_type="firefox"))
    of_chromium = [("chromium", "red", "", 3), ("chromium", "blue", "", 1), ("chromium", "", "", 1)]
    assert queue.waiting_by_run() == [*of_chromium, ("firefox", "", "", 1)]
    other[0].cancel()
    await asyncio.gather(*other, return_exceptions=True)
    assert (queue.waiting_by_run(), queue.pools()) == (of_chromium, ["chromium"])
    slots.free = 4
    queue.wake("chromium")
    await asyncio.gather(*(tasks[each] for each in (0, 1, 3, 4)))
    assert slots.given == ["r1", "b1", "plain", "r2"]
    tasks[2].cancel()


async def test_a_line_is_full_for_borrowers_before_it_is_for_others_and_for_one_run_before_that() -> None:
    slots = Slots(0)
    queue = queue_of(slots, max_queue=5, borrow_queue_max=3, borrow_queue_max_per_run=2)

    async def is_refused(claim: Claim, limit: str, most: int, length: int, position: int) -> bool:
        with pytest.raises(Refusal) as caught:
            await queue.acquire(claim)
        return caught.value.body() == line_full(claim.pool, claim.run, limit, most, length, position).body()

    tasks = await stand_in_line(queue, *(of_run(name, "red", borrows=True) for name in ("r1", "r2")))
    assert await is_refused(of_run("r3", "red", borrows=True), "run", 2, 2, 3)
    other = of_run("c1", "red", token="ci", borrows=True)
    tasks += await stand_in_line(queue, other)  # another token's run of this name
    assert await is_refused(of_run("b1", "blue", borrows=True), "pool", 3, 3, 3)
    tasks += await stand_in_line(queue, of_run("r4", "red"), claim("plain"))  # who does not borrow
    assert await is_refused(claim("one too many"), "grid", 5, 5, 5)
    queue.abandon(other)
    assert queue.waiting() == 4
    tasks += await stand_in_line(queue, of_run("b1", "blue", borrows=True))
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert (queue.waiting(), queue.pools()) == (0, [])


async def test_borrowers_without_a_run_are_not_counted_as_one() -> None:
    slots = Slots(0)
    queue = queue_of(slots, max_queue=10, borrow_queue_max=10, borrow_queue_max_per_run=1)
    tasks = await stand_in_line(queue, *(of_run(name, "", borrows=True) for name in ("a", "b", "c")))
    assert queue.waiting() == 3
    for task in tasks:
        task.cancel()


@pytest.mark.parametrize(("borrows", "setting"), [(False, "WORKER_SELECT_TIMEOUT"), (True, "BORROW_QUEUE_TIMEOUT")])
async def test_who_waits_in_vain_is_told_of_the_setting_that_bounds_its_wait(borrows: bool, setting: str) -> None:
    queue = queue_of(Slots(0))
    now = asyncio.get_running_loop().time()
    with pytest.raises(Refusal, match=f"or raise {setting}$"):
        await queue.acquire(
            Claim(
                HeldAs.LEASE if borrows else HeldAs.SESSION, "chromium", "chromium", None, "client", now, session_id="a"
            )
        )


async def test_who_waits_in_vain_hears_where_it_stood() -> None:
    def stood(refusal: Refusal) -> tuple[object, object, object]:
        return refusal.reason, refusal.details["queueLength"], refusal.details["position"]

    slots = Slots(0)
    queue = queue_of(slots)
    tasks = await stand_in_line(queue, of_run("r1", "red"), of_run("r2", "red"), of_run("b1", "blue"))
    soon = asyncio.get_running_loop().time() + 0.01
    with pytest.raises(Refusal) as caught:
        await queue.acquire(
            Claim(HeldAs.SESSION, "chromium", "chromium", None, "client", soon, run="red", session_id="r3")
        )
    assert stood(caught.value) == (RefusalReason.WAITED_TOO_LONG, 4, 4)
    with pytest.raises(Refusal) as caught:
        await queue.acquire(
            Claim(HeldAs.SESSION, "chromium", "chromium", None, "client", soon, run="white", session_id="w1")
        )
    assert stood(caught.value) == (RefusalReason.WAITED_TOO_LONG, 4, 3)
    for task in tasks:
        task.cancel()


async def test_a_client_that_goes_leaves_the_line_at_once() -> None:
    slots = Slots(0)
    queue = queue_of(slots)
    gone = claim("a")
    tasks = await stand_in_line(queue, gone, claim("b"))
    queue.abandon(gone)
    assert queue.waiting() == 1
    with pytest.raises(ClientGone):
        await tasks[0]
    slots.free = 1
    queue.wake("chromium")
    await tasks[1]
    assert slots.given == ["b"]


async def test_a_lease_for_a_client_that_went_meanwhile_is_given_back() -> None:
    slots = Slots(0)
    queue = queue_of(slots)
    gone = claim("a")
    tasks = await stand_in_line(queue, gone)
    slots.gate.clear()
    slots.free = 1
    queue.wake("chromium")
    await asyncio.sleep(0)
    queue.abandon(gone)
    slots.gate.set()
    with pytest.raises(ClientGone):
        await tasks[0]
    while not slots.returned:
        await asyncio.sleep(0)
    assert (slots.returned, slots.free) == (["a"], 1)


async def test_closing_ends_every_wait_and_refuses_who_comes_later() -> None:
    slots = Slots(0)
    queue = queue_of(slots)
    tasks = await stand_in_line(queue, claim("a"))
    queue.close(RuntimeError("stopping"))
    for attempt in (tasks[0], queue.acquire(claim("b"))):
        with pytest.raises(RuntimeError, match="stopping"):
            await attempt


async def test_while_paused_even_free_slots_wait() -> None:
    slots = Slots(1)
    queue = queue_of(slots)
    queue.pause(True)
    tasks = await stand_in_line(queue, claim("a"))
    queue.wake("chromium")
    assert slots.given == []
    queue.pause(False)
    assert await tasks[0] == "w"


async def test_a_pause_stops_a_line_that_is_being_served() -> None:
    slots = Slots(0)
    queue = queue_of(slots)
    tasks = await stand_in_line(queue, claim("a"), claim("b"))
    await until_all_are_served(queue)
    slots.free = 2
    slots.gate.clear()
    queue.wake("chromium")
    await asyncio.sleep(0)  # the registry is asked for the first one
    queue.pause(True)
    slots.gate.set()
    await until_all_are_served(queue)
    assert slots.given == ["a"]
    queue.pause(False)
    assert await asyncio.gather(*tasks) == ["w", "w"]


async def test_who_waits_for_its_token_is_woken_by_a_slot_of_any_pool() -> None:
    slots = Slots(0)
    queue = queue_of(slots)
    limited = Claim(
        HeldAs.SESSION, "chromium", "chromium", None, "client", FOREVER, caps={"token:ci": 1}, session_id="limited"
    )
    of_token, plain = await stand_in_line(queue, limited, claim("plain", browser_type="webkit"))
    await until_all_are_served(queue)
    slots.free = 1
    queue.wake("firefox")  # a session of the token has ended there
    assert await of_token == "w"
    slots.free = 1
    queue.wake("firefox")
    await until_all_are_served(queue)
    assert not plain.done()
    queue.wake("webkit")
    assert await plain == "w"
    assert queue.waiting() == 0


async def test_one_token_that_has_what_it_may_keeps_no_other_back() -> None:
    slots = Slots(0)

    async def select(claim: Claim) -> str | None:
        return None if claim.token == "full" else await slots.select(claim)

    queue = Queue(select, slots.give_back, Settings())
    full = Claim(
        HeldAs.SESSION,
        "chromium",
        "chromium",
        None,
        "client",
        FOREVER,
        token="full",
        caps={"token:full": 1},
        session_id="full",
    )
    of_token, plain = await stand_in_line(queue, full, claim("plain"))
    await until_all_are_served(queue)
    slots.free = 1
    queue.wake("chromium")
    assert await plain == "w"
    assert not of_token.done()
    queue.abandon(full)
    with pytest.raises(ClientGone):
        await of_token
