"""What a changed setting means for a running grid."""

from typing import Any

import pytest

from pwgrid.master.policy import reload
from pwgrid.master.policy.reload import Change, concerning
from pwgrid.runtime.child_files import digest
from pwgrid.settings.kinds import Secret
from pwgrid.settings.model import CONCERNS, Settings

BEFORE = Settings().plain()


def after(**changed: Any) -> dict[str, object]:
    return Settings().model_copy(update=changed).plain()


def compare(old: dict[str, object], new: dict[str, object]) -> Change:
    return reload.compare(CONCERNS, old, new)


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
    other = {str: "other", int: 7, float: 7.5}[type(BEFORE[name])]
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


def test_a_masters_setting_touches_no_child() -> None:
    change = compare(BEFORE, after(max_surge=2))
    assert (change.changed, change.recycle, change.replace_proxy) == (("max_surge",), (), False)


def test_a_secret_that_changes_is_seen() -> None:
    assert compare(after(token=Secret("a")), after(token=Secret("b"))).changed == ("token",)
    assert len({digest(concerning(CONCERNS, after(token=Secret(each)), "proxy")) for each in "ab"}) == 2


def test_what_concerns_a_child_does_not_change_with_what_concerns_others() -> None:
    assert concerning(CONCERNS, after(token=Secret("x")), "worker", "chromium") == concerning(
        CONCERNS, after(), "worker", "chromium"
    )
    assert concerning(CONCERNS, after(chromium_args=("-x",)), "worker", "chromium") != concerning(
        CONCERNS, after(), "worker", "chromium"
    )
