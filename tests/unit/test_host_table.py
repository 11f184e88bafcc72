"""Which other hosts get clients, by what their proxies have told and when."""

from dataclasses import replace
from typing import Any

import pytest

from pwgrid.proxy.hosts.host_table import NAME_TAKEN_S, NO_WAY_S, UNREACHABLE_S, HostState, HostTable, NameWatch
from pwgrid.registry.host_records import HostRecord, HostsFound
from tests.support.state_frames import told_of_pool

HERE, THERE = "10.0.0.1:8080", "10.0.0.2:8080"
WORKER = {"id": "a1", "browserType": "chromium", "status": "available", "playwrightVersion": "1.65.1"}


def record(name: str = THERE, at: float = 1.0, **changes: Any) -> HostRecord:
    host, _, port = name.rpartition(":")
    made = HostRecord(name, (host, int(port)), at=at, pools={"chromium": told_of_pool()}, workers=(WORKER,))
    return replace(made, **changes)


def found(*records: HostRecord, drained: frozenset[str] = frozenset()) -> HostsFound:
    return HostsFound({each.name: each for each in records}, drained)


@pytest.fixture
def table() -> HostTable:
    made = HostTable(HERE)
    made.take(found(record(HERE), record()), now=100.0)
    return made


def state(table: HostTable, now: float) -> HostState:
    return table.states(now)[THERE]


def test_another_host_serves_and_is_found_by_its_workers_and_this_one_is_none_of_them(table: HostTable) -> None:
    assert [*table.others] == [THERE]
    assert [host.record.name for host in table.offering(100.0)] == [THERE]
    host = table.of_worker("a1")
    assert host is not None
    assert host.roster.workers["a1"].playwright_version == "1.65"
    assert (table.of_worker("b2"), table.avoided(100.0), table.is_drained) == (None, frozenset(), False)


def test_a_host_is_silent_when_its_record_stays_the_same_whatever_the_clocks_say(table: HostTable) -> None:
    table.take(found(record(at=1.0)), now=105.0)
    assert state(table, 109.9) is HostState.SERVING
    assert (state(table, 110.0), table.avoided(110.0)) == (HostState.SILENT, {THERE})
    table.take(found(record(at=0.5)), now=110.0)  # its clock was set back
    assert state(table, 119.9) is HostState.SERVING


def test_a_host_tells_itself_how_often_it_is_heard(table: HostTable) -> None:
    table.take(found(record(at=2.0, beat_s=0.5)), now=101.0)
    assert (state(table, 103.4), state(table, 103.5)) == (HostState.SERVING, HostState.SILENT)


def test_nobody_is_silent_because_redis_was_away(table: HostTable) -> None:
    table.take(found(record()), now=500.0, anew=True)
    assert (state(table, 500.0), table.lost(500.0, 30.0)) == (HostState.SERVING, [])


def test_pools_of_other_hosts_are_offered_while_nobody_can_be_heard(table: HostTable) -> None:
    assert [*table.offering(110.0)] == []
    table.is_deaf = True
    assert [host.record.name for host in table.offering(110.0)] == [THERE]
    assert table.avoided(110.0) == {THERE}
    table.take(found(record()), now=110.0)
    assert [*table.offering(110.0)] == []  # now it is known


def test_a_host_is_lost_after_its_time_but_never_before_it_is_silent(table: HostTable) -> None:
    assert table.lost(129.9, 30.0) == []
    assert [host.record.name for host in table.lost(130.0, 30.0)] == [THERE]
    assert table.lost(109.0, 2.0) == []


def test_a_host_that_is_drained_stops_or_cannot_be_reached_gets_no_clients(table: HostTable) -> None:
    table.take(found(record(at=2.0), drained=frozenset({THERE, HERE})), now=101.0)
    assert (state(table, 101.0), table.is_drained, [*table.offering(101.0)]) == (HostState.DRAINED, True, [])
    assert table.avoided(101.0) == {HERE, THERE}
    assert table.of_worker("a1") is not None  # its sessions and leases go on
    table.take(found(record(at=3.0, is_stopping=True)), now=102.0)
    assert (state(table, 102.0), table.is_drained) == (HostState.STOPPING, False)
    table.take(found(record(at=4.0)), now=103.0)
    table.unreachable(THERE, 103.0)
    assert state(table, 103.0) is HostState.UNREACHABLE
    assert [host.record.name for host in table.offering(103.0)] == [THERE]  # its clients wait
    table.take(found(record(at=5.0)), now=105.0)
    assert state(table, 105.0) is HostState.UNREACHABLE
    assert state(table, 103.0 + UNREACHABLE_S) is HostState.SERVING


def test_no_host_gets_clients_while_this_one_has_no_way_to_any_which_says_nothing_of_them(table: HostTable) -> None:
    before = table.avoided(103.0)
    table.no_way_until = 103.0 + NO_WAY_S
    assert table.avoided(103.0) == before | {THERE}
    assert state(table, 103.0) is HostState.SERVING
    assert table.avoided(103.0 + NO_WAY_S) == before


def test_a_host_that_is_not_in_redis_any_more_is_none(table: HostTable) -> None:
    table.take(found(record(HERE)), now=101.0)
    assert (table.others, table.of_worker("a1")) == ({}, None)


@pytest.mark.parametrize("changes", [{"pools": {"chromium": {"wanted": 1}}}, {"workers": ({"status": "available"},)}])
def test_a_host_whose_record_makes_no_sense_is_left_out_and_named(table: HostTable, changes: dict[str, Any]) -> None:
    table.take(found(record(at=2.0, **changes)), now=101.0)
    assert (table.others, table.unreadable) == ({}, {THERE})


def test_a_roster_is_read_again_only_when_it_is_another_one(table: HostTable) -> None:
    before = table.others[THERE].roster
    table.take(found(record(at=2.0)), now=101.0)
    assert table.others[THERE].roster is before
    table.take(found(record(at=3.0, workers=())), now=102.0)
    assert table.others[THERE].roster is not before
    assert table.of_worker("a1") is None


def test_a_record_is_read_as_it_was_written() -> None:
    told = record(at=7.5, version="0.1", is_stopping=True, waiting={"chromium": 3}, beat_s=0.5)
    told = replace(told, instance="a", is_name_taken=True)
    assert HostRecord.read(THERE, told.as_json()) == told


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"address": "x", "at": 1, "pools": {}, "workers": []}', "nonsense"])
def test_what_is_no_record_is_none(text: str) -> None:
    assert HostRecord.read(THERE, text) is None


def test_a_host_s_room_is_that_of_its_workers() -> None:
    more = ({**WORKER, "pool": "chromium"}, {**WORKER, "id": "b2", "pool": "chromium", "status": "draining"})
    spare = {**WORKER, "id": "c3", "pool": "chromium", "status": "spare"}
    active = {"chromium:a1": 2, "chromium:b2": 1, "chromium:elsewhere": 7}
    assert record(workers=(*more, spare)).room(active) == (1, 5, 3, 1)


def test_a_worker_of_a_pool_that_is_called_as_its_browser_has_that_pool_s_slots() -> None:
    assert record(workers=(WORKER,)).room({}) == (1, 5, 0, 0)  # a master leaves the pool's name out


def test_pools_are_available_elsewhere_where_a_host_that_gets_clients_has_a_worker_that_is_well() -> None:
    pools = {
        "free": told_of_pool(),
        "none": told_of_pool(available=0),
        "sick": told_of_pool(suspect=1),
    }
    told = record(at=100.0, pools=pools)
    table = HostTable(HERE)
    for changes, drained, now, expected in (
        ({}, frozenset[str](), 100.0, {"free"}),
        ({"is_stopping": True}, frozenset[str](), 100.0, set[str]()),
        ({}, frozenset({THERE}), 100.0, set[str]()),
        ({}, frozenset[str](), 200.0, set[str]()),  # silent
    ):
        seen = found(replace(told, **changes), record(HERE), drained=drained)
        table.take(seen, now=100.0)
        assert table.available_pools(now) == seen.available_elsewhere(HERE, now) == expected
    assert found(told).available_elsewhere(THERE, 100.0) == set()
    table.take(found(told), now=101.0)
    table.unreachable(THERE, 101.0)
    assert table.available_pools(101.0) == set()


def test_a_silent_host_is_not_heard(table: HostTable) -> None:
    assert ([host.record.name for host in table.heard(100.0)], [*table.heard(110.0)]) == ([THERE], [])


def name(at: float, instance: str = "other") -> HostRecord:
    return record(HERE, at=at, instance=instance)


def test_a_name_is_taken_when_another_grid_tells_of_itself_again_and_again() -> None:
    watch = NameWatch("own")
    for seen in (None, name(1.0, "own"), name(1.0, ""), name(1.0)):
        watch.look(seen, 100.0)
        assert not watch.is_taken(100.0)
    watch.look(name(2.0, "own"), 102.0)
    watch.look(name(3.0), 104.0)
    assert (watch.is_taken(104.0), watch.is_taken(104.0 + NAME_TAKEN_S)) == (True, False)


@pytest.mark.parametrize(("at", "after_s"), [(1.0, 2.0), (2.0, NAME_TAKEN_S)])
def test_a_record_of_an_earlier_grid_that_comes_back_is_none_that_has_the_name(at: float, after_s: float) -> None:
    watch = NameWatch("own")
    watch.look(name(1.0), 100.0)  # as it starts again
    watch.look(name(at), 100.0 + after_s)  # Redis has it from a backup
    assert not watch.is_taken(100.0 + after_s)
