"""What a changed setting means for a running grid."""

from typing import Any

import pytest

from pwgrid.master.policy.changed_settings import compare, concerning, concerning_pool
from pwgrid.runtime.child_files import digest
from pwgrid.settings.model import CONCERNS, Settings
from pwgrid.settings.pools import PoolTable
from pwgrid.settings.value_types import Secret

BEFORE = Settings()


def after(**changed: Any) -> Settings:
    return Settings().model_copy(update=changed)


def with_pools(*tables: dict[str, Any], **changed: Any) -> Settings:
    pools = tuple(PoolTable.model_validate(table) for table in tables)
    return after(pools=pools, chromium_workers=0, **changed)


def test_no_change_means_nothing_to_do() -> None:
    change = compare(BEFORE, after())
    assert (change.changed, change.refused, change.scale, change.recycle, change.replace_proxy) == (
        (),
        (),
        {},
        (),
        False,
    )


@pytest.mark.parametrize("name", [name for name, parts in CONCERNS.items() if "fixed" in parts])
def test_what_cannot_change_is_refused_and_nothing_else_is_done(name: str) -> None:
    other = {str: "other", int: 7, float: 7.5}[type(BEFORE.plain()[name])]
    change = compare(BEFORE, after(**{name: other}, chromium_workers=9, max_queue=1))
    assert change.refused == (name,)
    assert (change.scale, change.recycle, change.replace_proxy) == ({}, (), False)


def test_a_pools_figure_only_scales_it() -> None:
    change = compare(BEFORE, after(firefox_workers=3))
    assert (change.scale, change.recycle, change.replace_proxy) == ({"firefox": 3}, (), False)


def test_a_browsers_setting_recycles_its_pool_alone() -> None:
    change = compare(BEFORE, after(firefox_executable="/opt/firefox"))
    assert (change.recycle, change.replace_proxy) == (("firefox",), False)


def test_a_proxys_setting_replaces_only_the_proxy() -> None:
    change = compare(BEFORE, after(token=Secret("secret")))
    assert (change.recycle, change.replace_proxy) == ((), True)


def test_a_setting_of_both_concerns_all() -> None:
    change = compare(BEFORE, after(max_concurrent_sessions=9))
    assert (change.recycle, change.replace_proxy) == (("chromium", "firefox", "webkit"), True)


@pytest.mark.parametrize(
    ("name", "value"), [("compression", "on"), ("session_history_max", 1), ("shutdown_command_ttl", 99)]
)
def test_a_reload_of_what_no_worker_uses_recycles_none(name: str, value: object) -> None:
    change = compare(BEFORE, after(**{name: value}))
    assert (change.recycle, change.replace_proxy) == ((), True)


@pytest.mark.parametrize(
    ("name", "value", "pools"),
    [
        ("chromium_sandbox", True, ("chromium",)),  # clients may ask for it: the proxy says that it is ignored
        ("drain_timeout", 99.0, ("chromium", "firefox", "webkit")),  # the proxy goes last where the master is gone
        ("reaper_run_interval", 999.0, ("chromium", "firefox", "webkit")),  # how long workers keep session records
    ],
)
def test_a_reload_of_what_both_use_replaces_both(name: str, value: object, pools: tuple[str, ...]) -> None:
    change = compare(BEFORE, after(**{name: value}))
    assert (change.recycle, change.replace_proxy) == (pools, True)


def test_a_masters_setting_touches_no_child() -> None:
    change = compare(BEFORE, after(max_surge=2))
    assert (change.changed, change.recycle, change.replace_proxy) == (("max_surge",), (), False)


def test_a_secret_that_changes_is_seen() -> None:
    assert compare(after(token=Secret("a")), after(token=Secret("b"))).changed == ("token",)
    assert len({digest(concerning(after(token=Secret(each)).plain(), "proxy")) for each in "ab"}) == 2


def test_what_concerns_a_child_does_not_change_with_what_concerns_others() -> None:
    (pool, *_) = BEFORE.pools_wanted().values()
    assert concerning_pool(after(token=Secret("x")), pool) == concerning_pool(after(), pool)
    others = after(chromium_args=("-x",))
    assert concerning_pool(others, others.pools_wanted()["chromium"]) != concerning_pool(after(), pool)


A = {"name": "a", "browser": "chromium", "workers": 2}
B = {"name": "b", "browser": "firefox"}


def test_pools_that_come_and_go_are_told_and_the_others_stay_as_they_are() -> None:
    change = compare(with_pools(A), with_pools(A, B))
    assert (change.changed, change.added, change.removed, change.recycle) == (("pools",), ("b",), (), ())
    change = compare(with_pools(A, B), with_pools(B))
    assert (change.added, change.removed, change.scale, change.recycle) == ((), ("a",), {}, ())
    assert not change.replace_proxy


def test_a_pools_number_of_workers_only_scales_it() -> None:
    change = compare(with_pools(A, B), with_pools(A | {"workers": 3}, B))
    assert (change.scale, change.recycle, change.added, change.removed) == ({"a": 3}, (), (), ())


@pytest.mark.parametrize(
    "changed",
    [
        {"slots": 9},
        {"lifetime": 9},
        {"headless": False},
        {"args": ["--x"]},
        {"executable": "/x"},
        {"channel": "chrome"},
        {"proxy": "http://p"},
        {"env": {"A": "1"}},
        {"labels": ["A:Chromium"]},
    ],
)
def test_what_changes_in_a_pool_recycles_that_pool_alone(changed: dict[str, Any]) -> None:
    assert compare(with_pools(A, B), with_pools(A | changed, B)).recycle == ("a",)


def test_a_limit_of_memory_that_changes_recycles_nobody() -> None:
    assert compare(with_pools(A), with_pools(A | {"max_memory_mib": 500})).recycle == ()


def test_a_global_setting_recycles_the_pools_that_do_not_say_it_themselves() -> None:
    tables = (A | {"slots": 3}, B)
    assert compare(with_pools(*tables), with_pools(*tables, max_concurrent_sessions=9)).recycle == ("b",)
