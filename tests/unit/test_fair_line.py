"""The line that takes turns: literal orders, and properties of whatever may happen in it."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pwgrid.proxy.policy.fair_line import FairLine, Party

RED, BLUE, WHITE = (Party("", name) for name in ("red", "blue", "white"))


def served(line: FairLine[str]) -> list[str]:
    """Who gets the next slots, each of which is for everybody."""
    order = []
    while (waiter := line.first()) is not None:
        line.serve(waiter)
        order.append(waiter)
    return order


def line_of(*waiters: tuple[str, Party]) -> FairLine[str]:
    line: FairLine[str] = FairLine()
    for name, party in waiters:
        line.join(name, party)
    return line


def test_within_a_party_it_is_first_come_first_served() -> None:
    assert served(line_of(("a", RED), ("b", RED), ("c", RED))) == ["a", "b", "c"]


def test_parties_take_turns_however_many_of_each_wait() -> None:
    line = line_of(("r1", RED), ("r2", RED), ("r3", RED), ("r4", RED), ("b1", BLUE), ("b2", BLUE), ("w1", WHITE))
    assert served(line) == ["r1", "b1", "w1", "r2", "b2", "r3", "r4"]


def test_the_same_run_with_another_token_is_another_party() -> None:
    line = line_of(("a", Party("ci", "smoke")), ("b", Party("ci", "smoke")), ("c", Party("lab", "smoke")))
    assert served(line) == ["a", "c", "b"]


def test_a_party_that_was_just_served_and_comes_again_is_the_last_of_the_round() -> None:
    line = line_of(("r1", RED), ("b1", BLUE), ("w1", WHITE))
    line.serve("r1")
    line.join("r2", RED)
    assert served(line) == ["b1", "w1", "r2"]


def test_those_who_come_back_have_the_places_that_they_had_in_whatever_order_they_come() -> None:
    line = line_of(("r1", RED), ("r2", RED), ("b1", BLUE), ("w1", WHITE), ("r3", RED))
    had = {name: line.serve(name) for name in ("r1", "b1", "w1", "r2")}
    line.join("r4", RED)
    for name, party in (("w1", WHITE), ("r2", RED), ("r1", RED), ("b1", BLUE)):
        line.join(name, party, None, had[name])
    assert list(line.by_party().items()) == [(RED, 4), (BLUE, 1), (WHITE, 1)]
    assert served(line) == ["r1", "b1", "w1", "r2", "r3", "r4"]


def test_one_who_came_before_all_others_is_before_them_although_it_never_stood_in_line() -> None:
    line = line_of()
    early = line.arrive()
    line.join("b1", BLUE)
    line.join("r2", RED)
    line.join("r1", RED, None, early)
    assert served(line) == ["r1", "b1", "r2"]


def test_a_party_whose_only_waiter_came_back_and_left_has_no_turn_from_before() -> None:
    line = line_of(("r1", RED), ("b1", BLUE))
    line.join("r1", RED, None, line.serve("r1"))
    line.leave("r1")
    line.join("r2", RED)
    line.join("b1", BLUE, None, line.serve("b1"))
    assert served(line) == ["b1", "r2"]


def test_who_may_not_have_a_slot_keeps_the_turn() -> None:
    line: FairLine[str] = FairLine()
    line.join("r1", RED, "old")
    line.join("b1", BLUE, "new")
    line.join("b2", BLUE, "new")
    assert line.first({"old"}) == "b1"
    line.serve("b1")
    assert served(line) == ["r1", "b2"]


def test_a_fellow_who_may_have_it_passes_one_who_may_not_and_takes_no_turn_from_another_party() -> None:
    line: FairLine[str] = FairLine()
    for name, party, kind in (("r1", RED, "old"), ("r2", RED, "new"), ("b1", BLUE, "new")):
        line.join(name, party, kind)
    assert line.first({"old"}) == "r2"
    line.serve("r2")
    assert served(line) == ["b1", "r1"]


def test_who_leaves_is_not_served_and_leaves_once() -> None:
    line = line_of(("r1", RED), ("b1", BLUE))
    assert (line.leave("r1"), line.leave("r1")) == (True, False)
    assert (len(line), "r1" in line, served(line)) == (1, False, ["b1"])


def test_nobody_stands_in_line_twice_and_nobody_is_served_who_does_not_stand_there() -> None:
    line = line_of(("a", RED))
    with pytest.raises(ValueError, match="in line already"):
        line.join("a", BLUE)
    with pytest.raises(KeyError):
        line.serve("b")


def test_it_tells_who_waits_in_the_order_of_their_turns() -> None:
    line = line_of(("r1", RED), ("r2", RED), ("b1", BLUE))
    line.serve("r1")
    assert list(line.by_party().items()) == [(BLUE, 1), (RED, 1)]
    assert repr(line) == "<FairLine /blue: 1, /red: 1>"
    assert repr(FairLine()) == "<FairLine empty>"


@pytest.mark.parametrize("seed", range(5))
def test_three_runs_with_4_10_and_40_clients_on_6_slots_get_a_third_of_the_sessions_each(seed: int) -> None:
    chance, line, total = random.Random(seed), FairLine[tuple[str, int]](), 3000
    clients = [(run, number) for run, count in (("red", 4), ("blue", 10), ("white", 40)) for number in range(count)]
    chance.shuffle(clients)
    live, had = clients[:6], Counter[str]()
    for client in clients[6:]:
        line.join(client, Party("", client[0]))
    for _ in range(total):
        ended = live.pop(chance.randrange(len(live)))  # sessions are of any length
        next_one = line.first()
        assert next_one is not None
        line.serve(next_one)
        live.append(next_one)
        had[next_one[0]] += 1
        line.join(ended, Party("", ended[0]))  # and its client comes again
    assert all(0.9 <= sessions / (total / 3) <= 1.1 for sessions in had.values()), had


# Whatever happens

PARTIES = st.sampled_from([RED, BLUE, WHITE, Party("ci", "red")])
SLOTS = st.integers(0, 2)
JOINS = st.tuples(st.just("join"), PARTIES, st.frozensets(SLOTS, min_size=1))
LEAVES = st.tuples(st.just("leave"), st.integers(0, 100), st.none())
FREES = st.tuples(st.just("free"), SLOTS, st.none())


@dataclass(eq=False)
class Client:
    number: int
    party: Party
    fit: frozenset[int]
    """The slots that it may have."""
    passed_by: set[Party] = field(default_factory=set)
    """Other parties that had a slot which this one might have had, since it came and since its own party's turn."""


def unfit(clients: Collection[Client], slot: int) -> set[frozenset[int]]:
    return {each.fit for each in clients if slot not in each.fit}


@given(st.lists(st.one_of(JOINS, FREES, LEAVES), max_size=60))
def test_a_free_slot_goes_to_one_who_may_have_it_and_nobody_waits_for_more_than_one_round(
    steps: list[tuple[str, object, object]],
) -> None:
    line: FairLine[Client] = FairLine()
    numbers, waiting = count(), list[Client]()
    for step, one, other in steps:
        if step == "join":
            assert isinstance(one, Party)
            assert isinstance(other, frozenset)
            waiting.append(client := Client(next(numbers), one, other))
            line.join(client, client.party, client.fit)
        elif step == "leave" and waiting:
            assert isinstance(one, int)
            assert line.leave(waiting.pop(one % len(waiting)))
        elif step == "free":
            assert isinstance(one, int)
            fit = [each for each in waiting if one in each.fit]
            chosen = line.first(unfit(waiting, one))
            if not fit:
                assert chosen is None
                continue
            assert chosen in fit
            assert chosen.number == min(each.number for each in fit if each.party == chosen.party)
            for each in waiting:
                if each.party == chosen.party:
                    each.passed_by.clear()
                elif one in each.fit:
                    assert chosen.party not in each.passed_by, f"{chosen} is served twice before {each}"
                    each.passed_by.add(chosen.party)
            line.serve(chosen)
            waiting.remove(chosen)
        assert len(line) == len(waiting)
        assert set(line) == set(waiting)


@given(st.lists(st.one_of(JOINS, FREES, LEAVES), max_size=40), PARTIES)
def test_a_position_is_the_number_of_slots_until_ones_own(
    steps: list[tuple[str, object, object]], newcomer: Party
) -> None:
    line: FairLine[str] = FairLine()
    numbers = count()
    for step, one, other in steps:
        if step == "join":
            assert isinstance(one, Party)
            line.join(str(next(numbers)), one, other)
        elif waiting := list(line):
            assert isinstance(one, int)
            if step == "leave":
                line.leave(waiting[one % len(waiting)])
            elif (chosen := line.first()) is not None:
                line.serve(chosen)
    expected = line.position_of_next(newcomer)
    line.join("newcomer", newcomer)
    assert line.position("newcomer") == expected
    positions = {waiter: line.position(waiter) for waiter in line}
    assert positions == {waiter: number for number, waiter in enumerate(served(line), 1)}
