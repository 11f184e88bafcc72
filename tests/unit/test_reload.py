"""What a changed setting means for a running grid."""

from dataclasses import asdict, replace

import pytest

from pwgrid.master.policy.reload import PARTS, compare, concerning
from pwgrid.settings.load import Settings

BEFORE = Settings()


def after(**changed: object) -> dict[str, object]:
    return asdict(replace(BEFORE, **changed))  # type: ignore[arg-type]


def test_every_setting_has_its_line_in_the_table() -> None:
    assert set(PARTS) == set(asdict(BEFORE))


def test_no_change_means_nothing_to_do() -> None:
    change = compare(asdict(BEFORE), after())
    assert (change.changed, change.refused, change.scale, change.recycle, change.replace_proxy) == (
        (),
        (),
        {},
        (),
        False,
    )


@pytest.mark.parametrize("name", [name for name, parts in PARTS.items() if "fixed" in parts])
def test_what_cannot_change_is_refused_and_nothing_else_is_done(name: str) -> None:
    other = {str: "other", int: 7, float: 7.5}[type(getattr(BEFORE, name))]
    change = compare(asdict(BEFORE), after(**{name: other}, chromium_workers=9, max_queue=1))
    assert change.refused == (name,)
    assert (change.scale, change.recycle, change.replace_proxy) == ({}, (), False)


def test_a_pools_figure_only_scales_it() -> None:
    change = compare(asdict(BEFORE), after(firefox_workers=3))
    assert (change.scale, change.recycle, change.replace_proxy) == ({"firefox": 3}, (), False)


def test_a_browsers_setting_recycles_its_pool_alone() -> None:
    change = compare(asdict(BEFORE), after(firefox_executable="/opt/firefox"))
    assert (change.recycle, change.replace_proxy) == (("firefox",), False)


def test_a_proxys_setting_replaces_only_the_proxy() -> None:
    change = compare(asdict(BEFORE), after(token="secret"))
    assert (change.recycle, change.replace_proxy) == ((), True)


def test_a_setting_of_both_concerns_all() -> None:
    change = compare(asdict(BEFORE), after(max_concurrent_sessions=9))
    assert (change.recycle, change.replace_proxy) == (("chromium", "firefox", "webkit"), True)


def test_a_masters_setting_touches_no_child() -> None:
    change = compare(asdict(BEFORE), after(max_surge=2))
    assert (change.changed, change.recycle, change.replace_proxy) == (("max_surge",), (), False)


def test_an_unknown_setting_concerns_the_proxy_and_all_workers() -> None:
    change = compare({}, {"new_setting": 1})
    assert (change.recycle, change.replace_proxy) == (("chromium", "firefox", "webkit"), True)


def test_what_concerns_a_child_does_not_change_with_what_concerns_others() -> None:
    assert concerning(after(token="x"), "worker", "chromium") == concerning(after(), "worker", "chromium")
    assert concerning(after(chromium_args=("-x",)), "worker", "chromium") != concerning(after(), "worker", "chromium")
