"""Which launch options of a client are noted where LAUNCH_OPTIONS is ignore."""

import json

import pytest
from websockets.datastructures import Headers

from pwgrid.proxy.policy.launch_options import MAX_OPTIONS, ignored_launch_options

GRID: dict[str, object] = {"headless": True, "chromiumSandbox": False, "args": []}

# What Playwright Test 1.65 sends with `use: {}`.
PLAYWRIGHT_TEST = {"handleSIGINT": False, "tracesDir": "/home/me/test-results/.playwright-artifacts-0/traces"}


def noted(options: object, parameters: tuple[tuple[str, str], ...] = ()) -> tuple[str, ...]:
    return ignored_launch_options(Headers([("x-playwright-launch-options", json.dumps(options))]), parameters, GRID)


@pytest.mark.parametrize(
    ("options", "names"),
    [
        (PLAYWRIGHT_TEST, ()),
        ({**PLAYWRIGHT_TEST, "headless": True}, ()),
        ({**PLAYWRIGHT_TEST, "headless": False}, ("headless",)),
        ({"headless": None, "args": [], "env": {}, "slowMo": 0, "devtools": False, "channel": ""}, ()),
        ({"channel": "chrome", "args": ["--mute-audio"]}, ("args", "channel")),
        ({"proxy": {"server": "http://proxy:3128", "password": "s3cret"}}, ("proxy",)),
        ({"chromiumSandbox": False}, ()),
        (
            {"chromiumSandbox": True, "executablePath": "/opt/chrome", "slowMo": 50},
            ("chromiumSandbox", "executablePath", "slowMo"),
        ),
        ([1, 2], ()),
        ("headless", ()),
        ({"a,b\x1b": 1, "x" * 100: 1}, ("a?b?", "x" * 40)),
    ],
)
def test_what_a_shared_browser_cannot_heed_is_noted_by_name(options: object, names: tuple[str, ...]) -> None:
    assert noted(options) == names


def test_they_may_come_in_the_url_and_that_counts_first() -> None:
    in_url = (("launch-options", '{"channel": "chrome"}'),)
    assert ignored_launch_options(Headers(), in_url, GRID) == ("channel",)
    assert noted({"headless": False}, in_url) == ("channel",)


def test_no_options_and_broken_ones_are_none() -> None:
    assert ignored_launch_options(Headers(), (), GRID) == ()
    for broken in ("{", "[" * 30_000):
        assert ignored_launch_options(Headers([("x-playwright-launch-options", broken)]), (), GRID) == ()


def test_their_number_is_bounded() -> None:
    assert len(noted({f"option{number}": 1 for number in range(1000)})) == MAX_OPTIONS
