"""Pools of several hosts, put together."""

from typing import Any

from pwgrid.common.sum_of_hosts import Figures
from pwgrid.proxy.policy.pools_of_all_hosts import whole_pools
from pwgrid.proxy.roster import Roster
from tests.support.state_frames import told_of_pool


def roster(**pools: Any) -> Roster:
    made = Roster()
    made.replace({"pools": pools})
    return made


COUNTED = ("wanted", "available", "suspect", "starting", "spare", "draining", "drain_timeouts")


def test_pools_of_one_name_are_one_with_the_sums_of_all_hosts() -> None:
    told = dict(
        zip(("wanted", "available", "suspect", "starting", "spare", "draining"), (3, 2, 1, 4, 5, 6), strict=True)
    )
    more = {"drainTimeouts": 7, "reason": "no browser"}
    found = whole_pools(
        {
            "a": roster(both=told_of_pool(slots=5, **told, **more), own=told_of_pool()),
            "b": roster(both=told_of_pool(slots=9, **told, **more | {"reason": None}), other=told_of_pool(wanted=8)),
        }
    )
    assert [*found] == ["both", "own", "other"]
    both = found["both"]
    assert [*both.hosts] == ["a", "b"]
    assert [getattr(both.whole, name) for name in COUNTED] == [6, 4, 2, 8, 10, 12, 14]
    assert (both.whole.slots, both.whole.reason) == (5, "a: no browser")
    assert (found["other"].whole.wanted, [*found["other"].hosts]) == (8, ["b"])


def test_what_a_master_tells_is_read_and_told_again_as_it_is() -> None:
    told = {name: number for number, name in enumerate(told_of_pool()) if name in {*COUNTED, "drainTimeouts"}}
    figures = {**told, "suspect": 9, "removed": True, "reason": "no browser"}
    assert Figures.read(figures).as_told() == figures


def test_a_pool_of_one_host_is_as_that_one_tells() -> None:
    alone = roster(one=told_of_pool(reason="no browser"))
    assert whole_pools({"": alone})["one"].whole is alone.pools["one"]


def test_a_pool_is_removed_once_no_host_has_it_in_its_configuration() -> None:
    here, gone = told_of_pool(), told_of_pool(removed=True)
    of = [whole_pools({"a": roster(p=first), "b": roster(p=gone)})["p"].whole.is_removed for first in (here, gone)]
    assert of == [False, True]
