"""What becomes of each launch option that a client sends."""

import base64
import json
import math
from typing import Any

import pytest
from websockets.datastructures import Headers

from pwgrid.common.types import BrowserType
from pwgrid.proxy.policy.launch_options import HEADER, MAX_OPTIONS, LaunchOptions, LaunchRules, judged
from pwgrid.proxy.policy.refusal import Refusal
from pwgrid.proxy.roster import PoolView
from pwgrid.settings.model import Settings

RULES = LaunchRules(allowed_args=Settings().allowed_browser_args)
NOTHING = LaunchOptions()

# What Playwright Test 1.65 sends with `use: {}`.
PLAYWRIGHT_TEST = {"handleSIGINT": False, "tracesDir": "/home/me/test-results/.playwright-artifacts-0/traces"}


def pool(browser_type: BrowserType = "chromium", *, channel: str = "", **options: object) -> PoolView:
    given = {"headless": True, "args": ["--pool-has=it"], "chromiumSandbox": False, **options}
    return PoolView(1, 1, None, "appa", browser_type, options=given, channel=channel)


def outcome(options: object, of: PoolView | None = None, rules: LaunchRules = RULES) -> LaunchOptions:
    return judged(Headers([(HEADER, json.dumps(options))]), (), of or pool(), rules)


@pytest.mark.parametrize(
    "options",
    [
        {},
        PLAYWRIGHT_TEST,
        {**PLAYWRIGHT_TEST, "headless": True, "timeout": 180_000},
        {"headless": None, "args": None, "proxy": None, "channel": None, "slowMo": None, "env": None},
        {"args": [], "env": {}, "slowMo": 0, "devtools": False, "channel": "", "proxy": {}, "executablePath": ""},
        {"args": ["--pool-has=it"]},
        {"args": ["--no-sandbox", "--disable-setuid-sandbox", "--disable-dev-shm-usage", "--no-first-run"]},
        {"proxy": {"server": "per-context"}},
        {"chromiumSandbox": False},
        {"firefoxUserPrefs": {}},
    ],
)
def test_what_asks_for_nothing_else_than_the_pool_has_costs_nothing(options: dict[str, Any]) -> None:
    assert outcome(options) == NOTHING


def test_what_differs_is_heeded_without_what_the_pool_has_anyway() -> None:
    proxy = {"server": "http://proxy:3128", "bypass": "", "username": "me", "password": "s3cret"}
    asked = {"args": ["--pool-has=it", "--lang=de", "--mute-audio"], "proxy": proxy, "slowMo": 50, "headless": True}
    without_bypass = {"server": "http://proxy:3128", "username": "me", "password": "s3cret"}
    assert outcome({**PLAYWRIGHT_TEST, **asked}) == LaunchOptions(
        {"args": ["--lang=de", "--mute-audio"], "proxy": without_bypass, "slowMo": 50}
    )


@pytest.mark.parametrize(("timeout", "seconds"), [(1500, 1.5), (0, math.inf), (None, math.inf), ("1", math.inf)])
def test_how_long_a_client_allows_for_a_launch_counts_where_one_is_launched_for_it(
    timeout: object, seconds: float
) -> None:
    assert outcome({"timeout": timeout, "slowMo": 50}).timeout_s == seconds
    assert outcome({"timeout": timeout}) == NOTHING


def test_a_browser_with_or_without_a_display_may_be_had_from_any_pool() -> None:
    assert outcome({"headless": False}).heeded == {"headless": False}
    with_display = pool(headless=False)
    assert outcome({"headless": True}, with_display).heeded == {"headless": True}
    assert outcome({"headless": False}, with_display) == NOTHING


def test_preferences_of_firefox_are_for_firefox() -> None:
    asked = {"firefoxUserPrefs": {"a.b": 1, "c": "x", "d": False}}
    assert outcome(asked, pool("firefox")) == LaunchOptions(asked)
    assert outcome(asked) == LaunchOptions(ignored=("firefoxUserPrefs",))


def test_the_browser_of_a_channel_is_launched_where_the_pool_has_another_one() -> None:
    assert outcome({"channel": "chrome"}, pool(channel="chrome")) == NOTHING
    # Playwright's own Firefox is what a pool without a channel has, or nearly. Chromium has two, and is mostly a shell.
    assert outcome({"channel": "firefox"}, pool("firefox")) == LaunchOptions(ignored=("channel",))
    for asked, of in (("chromium", pool()), ("chromium", pool(channel="chrome")), ("msedge-beta", pool())):
        assert outcome({"channel": asked}, of) == LaunchOptions({"channel": asked})


def test_what_nobody_knows_is_ignored_and_named() -> None:
    asked = {"devtools": True, "chromiumSandbox": True, "stealth": "s3cret", "a,b\x1b": 1, "slowMo": 1}
    found = outcome(asked)
    assert found == LaunchOptions({"slowMo": 1}, ("a?b?", "chromiumSandbox", "devtools", "stealth"))
    assert len(outcome({f"option{number}": 1 for number in range(1000)}).ignored) == MAX_OPTIONS


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"executablePath": "/s3cret"}, "executablePath: browsers are those of the grid's host: leave it out, or ask"),
        ({"env": {"A": "s3cret"}}, "env: variables are the pool's own: leave it out, or have the grid's operator set"),
        ({"downloadsPath": "/s3cret"}, "downloadsPath: it would be a directory of the grid's host: leave it out"),
        ({"userDataDir": "/s3cret"}, "userDataDir: it would be a directory of the grid's host: leave it out"),
        ({"headless": "s3cret"}, "headless: it must be true or false"),
        ({"channel": "/s3cret"}, "channel: it must be a channel of Playwright, like chrome"),
        ({"channel": 7}, "channel: it must be a text"),
        ({"args": "--lang=s3cret"}, "args: it must be a list of texts"),
        ({"args": ["--lang", 7]}, "args: it must be a list of texts"),
        ({"args": ["--user-data-dir=/s3cret"]}, "args: --user-data-dir: it is not allowed here: leave it out, or have"),
        ({"args": ["--lang-x=s3cret"]}, "args: --lang-x: it is not allowed here"),
        ({"args": [""]}, "args: an empty text: it is not allowed here"),
        ({"args": ["--lang=s3cret\n"]}, "args: --lang: it has control characters"),
        ({"proxy": "http://s3cret"}, "proxy: it must have a server like"),
        ({"proxy": {"bypass": "s3cret"}}, "proxy: it must have a server like"),
        ({"proxy": {"server": "http://x", "s3cret": "1"}}, "proxy: it must have a server like"),
        ({"proxy": {"server": ["s3cret"]}}, "proxy: it must have a server like"),
        ({"slowMo": -1}, "slowMo: it must be a number of milliseconds, 0 to 60000"),
        ({"slowMo": 60_001}, "slowMo: it must be a number of milliseconds, 0 to 60000"),
        ({"slowMo": True}, "slowMo: it must be a number of milliseconds, 0 to 60000"),
        ({"slowMo": "s3cret"}, "slowMo: it must be a number of milliseconds, 0 to 60000"),
    ],
)
def test_what_may_not_be_is_named_without_its_value(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(Refusal) as refused:
        outcome(options)
    assert (refused.value.status, refused.value.error.startswith(f"launch option {sentence}")) == (400, True)
    assert "s3cret" not in refused.value.error
    assert outcome(options, rules=LaunchRules(heed=False)).heeded == {}


@pytest.mark.parametrize("preferences", [[1], {"a": None}, {"a": {}}, {"security.sandbox.content.level": 0}])
def test_no_client_changes_the_sandbox_of_firefox_or_sets_what_is_no_preference(preferences: object) -> None:
    with pytest.raises(Refusal, match="launch option firefoxUserPrefs: "):
        outcome({"firefoxUserPrefs": preferences}, pool("firefox"))


def test_no_client_takes_the_sandbox_away_where_there_is_one() -> None:
    for switch in ("--no-sandbox", "--disable-setuid-sandbox"):
        with pytest.raises(Refusal, match=f"args: {switch}: it is not allowed here"):
            outcome({"args": [switch]}, pool(chromiumSandbox=True))


@pytest.mark.parametrize(
    ("allowed", "switch", "is_allowed"),
    [
        (("--a",), "--a=1", True),
        (("--a",), "--ab", False),
        (("--a*",), "--ab=1", True),
        (("--a*",), "--b", False),
        (("*",), "--user-data-dir=/x", True),
        ((), "--lang", False),
    ],
)
def test_switches_are_allowed_by_their_name_or_by_how_that_begins(
    allowed: tuple[str, ...], switch: str, is_allowed: bool
) -> None:
    rules = LaunchRules(allowed_args=allowed)
    if is_allowed:
        assert outcome({"args": [switch]}, rules=rules).heeded == {"args": [switch]}
    else:
        with pytest.raises(Refusal, match="ALLOWED_BROWSER_ARGS"):
            outcome({"args": [switch]}, rules=rules)


def test_no_switch_that_starts_a_program_opens_a_port_or_names_a_file_is_allowed_by_default() -> None:
    for name in (
        *("--user-data-dir", "--remote-debugging-port", "--remote-debugging-pipe", "--remote-debugging-address"),
        *("--load-extension", "--renderer-cmd-prefix", "--gpu-launcher", "--browser-subprocess-path", "--log-file"),
        *("--ssl-key-log-file", "--trace-startup-file", "--use-file-for-fake-video-capture", "--disk-cache-dir"),
        *("--allow-file-access-from-files", "--disable-web-security", "--no-sandbox", "--js-flags", "--proxy-server"),
    ):
        with pytest.raises(Refusal):
            outcome({"args": [f"{name}=x"]})


ASKED = '{"slowMo": 50}'


@pytest.mark.parametrize(
    ("parameters", "header"),
    [
        ([], ASKED),
        ([("launch-options", ASKED)], '{"slowMo": 1}'),
        ([("launch", ASKED)], '{"slowMo": 1}'),
        ([("launch", base64.b64encode(ASKED.encode()).decode())], ""),
        ([("launch", '{"slowMo": 1}'), ("launch-options", ASKED)], ""),
        ([("launch-options", ""), ("launch", "")], ASKED),
        ([("launch-options", ASKED), ("launch-options", '{"slowMo": 1}')], ""),
    ],
)
def test_they_come_in_the_url_or_in_a_header(parameters: list[tuple[str, str]], header: str) -> None:
    assert judged(Headers([(HEADER, header)]), parameters, pool(), RULES).heeded == {"slowMo": 50}


@pytest.mark.parametrize("text", ["{", "[1]", "7", '"x"', "[" * 30_000])
def test_what_is_no_json_object_is_told_so(text: str) -> None:
    for name in ("launch-options", "launch"):
        with pytest.raises(Refusal, match=rf"^\?{name}= must be launch options as a JSON object"):
            judged(Headers(), [(name, text)], pool(), RULES)
    with pytest.raises(Refusal, match=f"^the header {HEADER} must be launch options as a JSON object"):
        judged(Headers([(HEADER, text)]), (), pool(), RULES)


def test_where_none_is_heeded_all_is_as_if_there_were_no_own_browsers() -> None:
    ignores = LaunchRules(heed=False)
    asked = {"headless": False, "args": ["--pool-has=it"], "slowMo": 50, "executablePath": "/x"}
    assert outcome(asked, rules=ignores) == LaunchOptions(ignored=("executablePath", "headless", "slowMo"))
    assert judged(Headers([(HEADER, "{")]), [("launch", ASKED)], pool(), ignores) == NOTHING
