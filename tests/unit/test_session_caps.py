"""Which caps a client's session counts towards."""

from typing import Any

import pytest

from pwgrid.proxy.policy.access import Identity
from pwgrid.proxy.policy.session_caps import caps_of
from pwgrid.settings.model import Settings


def caps(
    settings: dict[str, Any],
    label: str = "AppA:Chromium",
    run: str = "nightly",
    token: str = "ci",
    max_of_token: int = 0,
) -> dict[str, int]:
    return caps_of(Settings(**settings), Identity(token, max_sessions=max_of_token), label=label, run=run)


def test_without_a_cap_in_the_settings_nothing_is_counted() -> None:
    assert caps({}) == {}


@pytest.mark.parametrize(
    ("setting", "cap"),
    [
        ("max_sessions_per_token", "token:ci"),
        ("max_sessions_per_run", "run:ci/nightly"),
        ("max_sessions_per_label", "label:appa:chromium"),
    ],
)
def test_each_cap_counts_what_it_is_named_after(setting: str, cap: str) -> None:
    assert caps({setting: 3}) == {cap: 3}


def test_runs_of_the_same_name_and_of_different_tokens_are_different_runs() -> None:
    limits = {"max_sessions_per_run": 3}
    assert caps(limits, token="a").keys().isdisjoint(caps(limits, token="b"))


def test_a_token_s_own_limit_comes_before_that_of_all_tokens() -> None:
    assert caps({"max_sessions_per_token": 3}, max_of_token=5) == {"token:ci": 5}
    assert caps({}, max_of_token=5) == {"token:ci": 5}


@pytest.mark.parametrize("missing", ["label", "run", "token"])
def test_a_client_that_does_not_say_a_name_has_no_cap_of_it(missing: str) -> None:
    limits = {f"max_sessions_per_{what}": 3 for what in ("label", "run", "token")}
    assert {name.split(":")[0] for name in caps(limits, **{missing: ""})} == {"label", "run", "token"} - {missing}
