"""What a changed setting means for a running grid."""

from typing import Any

import pytest

from pwgrid.common.types import Isolation
from pwgrid.master.policy.changed_settings import compare, concerning, concerning_pool
from pwgrid.runtime.child_files import digest
from pwgrid.settings.model import SETTINGS, Settings
from pwgrid.settings.pools import PoolTable
from pwgrid.settings.value_types import Secret

BEFORE = Settings()


def after(**changed: Any) -> Settings:
    return Settings().model_copy(update=changed)


def with_pools(*tables: dict[str, Any], **changed: Any) -> Settings:
    pools = tuple(PoolTable.model_validate(table) for table in tables)
    return after(pools=pools, chromium_workers=0, **changed)


def recycled(before: Settings, now: Settings) -> tuple[str, ...]:
    """The pools whose workers were forked with other settings than are wanted now."""
    had, has = before.pools_wanted(), now.pools_wanted()
    return tuple(
        name for name in has if name in had and concerning_pool(before, had[name]) != concerning_pool(now, has[name])
    )


def test_no_change_means_nothing_to_do() -> None:
    change = compare(BEFORE, after())
    assert (change.changed, change.refused, change.scale, change.replace_proxy) == ((), (), {}, False)
    assert recycled(BEFORE, after()) == ()


@pytest.mark.parametrize("name", [name for name, each in SETTINGS.items() if "fixed" in each.concerns])
def test_what_cannot_change_is_refused_and_nothing_else_is_done(name: str) -> None:
    other = {str: "other", int: 7, float: 7.5}[type(BEFORE.plain()[name])]
    change = compare(BEFORE, after(**{name: other}, chromium_workers=9, max_queue=1))
    assert change.refused == (name,)
    assert (change.scale, change.replace_proxy) == ({}, False)


def test_a_pools_figure_only_scales_it() -> None:
    before, now = BEFORE, after(firefox_workers=3)
    change = compare(before, now)
    assert (change.scale, recycled(before, now), change.replace_proxy) == ({"firefox": 3}, (), False)


def test_a_browsers_setting_recycles_its_pool_alone() -> None:
    before, now = BEFORE, after(firefox_executable="/opt/firefox")
    change = compare(before, now)
    assert (recycled(before, now), change.replace_proxy) == (("firefox",), False)


@pytest.mark.parametrize(
    ("isolation", "name", "value", "is_recycled"),
    [
        ("context", "warm_browsers", 5, False),
        ("browser", "warm_browsers", 5, True),
        ("context", "max_own_browsers", 5, True),
        ("context", "isolation", Isolation.BROWSER, True),
        ("process", "max_concurrent_sessions", 9, False),
    ],
)
def test_what_own_browsers_a_worker_makes_recycles_it_where_it_makes_any(
    isolation: str, name: str, value: object, is_recycled: bool
) -> None:
    before = after(isolation=Isolation(isolation))
    now = before.model_copy(update={name: value})
    assert bool(recycled(before, now)) == is_recycled


def test_what_clients_may_ask_of_a_launch_concerns_the_proxy_alone() -> None:
    for name, value in (("launch_options", "ignore"), ("allowed_browser_args", ("*",))):
        now = after(**{name: value})
        assert (recycled(BEFORE, now), compare(BEFORE, now).replace_proxy) == ((), True)


def test_a_proxys_setting_replaces_only_the_proxy() -> None:
    before, now = BEFORE, after(token=Secret("secret"))
    change = compare(before, now)
    assert (recycled(before, now), change.replace_proxy) == ((), True)


def test_a_setting_of_both_concerns_all() -> None:
    before, now = BEFORE, after(max_concurrent_sessions=9)
    change = compare(before, now)
    assert (recycled(before, now), change.replace_proxy) == (("chromium", "firefox", "webkit"), True)


@pytest.mark.parametrize(
    ("name", "value"), [("compression", "on"), ("session_history_max", 1), ("shutdown_command_ttl", 99)]
)
def test_a_reload_of_what_no_worker_uses_recycles_none(name: str, value: object) -> None:
    before, now = BEFORE, after(**{name: value})
    change = compare(before, now)
    assert (recycled(before, now), change.replace_proxy) == ((), True)


@pytest.mark.parametrize(
    ("name", "value", "pools"),
    [
        ("chromium_sandbox", True, ("chromium",)),  # clients may ask for it: the proxy says that it is ignored
        ("drain_timeout", 99.0, ("chromium", "firefox", "webkit")),  # the proxy goes last where the master is gone
        ("reaper_run_interval", 999.0, ("chromium", "firefox", "webkit")),  # how long workers keep session records
    ],
)
def test_a_reload_of_what_both_use_replaces_both(name: str, value: object, pools: tuple[str, ...]) -> None:
    before, now = BEFORE, after(**{name: value})
    change = compare(before, now)
    assert (recycled(before, now), change.replace_proxy) == (pools, True)


def test_a_masters_setting_touches_no_child() -> None:
    before, now = BEFORE, after(max_surge=2)
    change = compare(before, now)
    assert (change.changed, recycled(before, now), change.replace_proxy) == (("max_surge",), (), False)


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
    before, now = with_pools(A), with_pools(A, B)
    change = compare(before, now)
    assert (change.changed, change.added, change.removed, recycled(before, now)) == (("pools",), ("b",), (), ())
    before, now = with_pools(A, B), with_pools(B)
    change = compare(before, now)
    assert (change.added, change.removed, change.scale, recycled(before, now)) == ((), ("a",), {}, ())
    assert not change.replace_proxy


def test_a_pools_number_of_workers_only_scales_it() -> None:
    before, now = with_pools(A, B), with_pools(A | {"workers": 3}, B)
    change = compare(before, now)
    assert (change.scale, recycled(before, now), change.added, change.removed) == ({"a": 3}, (), (), ())


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
    assert recycled(with_pools(A, B), with_pools(A | changed, B)) == ("a",)


def test_a_limit_of_memory_that_changes_recycles_nobody() -> None:
    assert recycled(with_pools(A), with_pools(A | {"max_memory_mib": 500})) == ()


def test_a_global_setting_recycles_the_pools_that_do_not_say_it_themselves() -> None:
    tables = (A | {"slots": 3}, B)
    assert recycled(with_pools(*tables), with_pools(*tables, max_concurrent_sessions=9)) == ("b",)
