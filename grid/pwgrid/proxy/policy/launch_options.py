"""Decides what becomes of the launch options that a client sends: which of them its browser has to be launched with,
which its pool's browsers have anyway, which are ignored, and which are refused."""

from __future__ import annotations

import base64
import binascii
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn

import orjson
from websockets.datastructures import Headers

from pwgrid.proxy.policy.refusal import Refusal
from pwgrid.proxy.roster import PoolView

HEADER: Final = "x-playwright-launch-options"

MAX_OPTIONS: Final = 20
_OPTION_CHARACTERS: Final = 40
_MOST_SLOW_MO_MS: Final = 60_000
_CHANNEL: Final = re.compile(r"[a-z0-9-]{1,40}")
_ODD: Final = re.compile(r"[^A-Za-z0-9_.-]")

_OF_THE_CLIENT: Final = frozenset(
    {"timeout", "handleSIGHUP", "handleSIGINT", "handleSIGTERM", "logger", "tracesDir", "artifactsDir"}
)
"""Playwright Test sends these with each connect; they are about the client's own processes and directories."""

_REFUSED: Final[Mapping[str, str]] = {
    "executablePath": "browsers are those of the grid's host: leave it out, or ask for a pool that has the browser",
    "env": "variables are the pool's own: leave it out, or have the grid's operator set env of a pool",
    "downloadsPath": "it would be a directory of the grid's host: leave it out, and fetch files by download.saveAs()",
    "userDataDir": "it would be a directory of the grid's host: leave it out, and bring a state by storageState",
}
"""Options that no client may set, with the reason and what to do instead."""

_OF_PLAYWRIGHT: Final = frozenset(
    {
        *("--disable-background-networking", "--disable-background-timer-throttling", "--no-default-browser-check"),
        *("--disable-backgrounding-occluded-windows", "--disable-component-update", "--disable-default-apps"),
        *("--disable-dev-shm-usage", "--disable-extensions", "--disable-hang-monitor", "--disable-infobars"),
        *("--disable-ipc-flooding-protection", "--disable-popup-blocking", "--disable-renderer-backgrounding"),
        *("--disable-search-engine-choice-screen", "--disable-sync", "--force-color-profile=srgb", "--no-first-run"),
        *("--metrics-recording-only", "--password-store=basic", "--use-mock-keychain"),
    }
)
"""Playwright launches every Chromium with these."""

_WITHOUT_SANDBOX: Final = frozenset({"--no-sandbox", "--disable-setuid-sandbox"})

_SANDBOX_PREFERENCES: Final = "security.sandbox."

_PROXY_KEYS: Final = frozenset({"server", "bypass", "username", "password"})
_PER_CONTEXT: Final = frozenset({"per-context", "http://per-context"})
"""What Playwright once wanted as the server of a browser whose contexts have proxies of their own."""


@dataclass(frozen=True, slots=True)
class LaunchRules:
    """What the grid does with launch options. `heed`: LAUNCH_OPTIONS; `allowed_args`: ALLOWED_BROWSER_ARGS."""

    heed: bool = True
    allowed_args: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LaunchOptions:
    """The outcome. `heeded` has those with which a browser has to be launched for the client, by Playwright's names:
    none if the pool's browsers will do. `ignored` are names of others, sorted. `timeout_s` is how long the client
    allows for a launch; the grid's own LAUNCH_TIMEOUT counts besides."""

    heeded: Mapping[str, object] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()
    timeout_s: float = math.inf


_NONE_ASKED: Final = LaunchOptions()


def judged(
    headers: Headers, parameters: Iterable[tuple[str, str]], pool: PoolView, rules: LaunchRules
) -> LaunchOptions:
    """Decides on all launch options of a client whose browser is one of this pool. Raises Refusal(400), which names the
    option and says what to do, but no value: it may be a secret."""
    parameters = [*parameters]
    if not rules.heed:
        return LaunchOptions(ignored=ignored_launch_options(headers, parameters, pool.options))
    if not (asked := _asked_options(headers, parameters)):
        return _NONE_ASKED
    heeded: dict[str, object] = {}
    ignored: dict[str, object] = {}
    for name, value in asked.items():
        if value is None or name in _OF_THE_CLIENT:
            continue
        if name in _REFUSED:
            if value:
                _refuse(name, _REFUSED[name])
        elif name in _JUDGES and not _is_of_no_use(name, value, pool):
            if (launch_with := _JUDGES[name](value, pool, rules)) is not None:
                heeded[name] = launch_with
        else:
            ignored[name] = value
    timeout_s = _timeout_s(asked.get("timeout")) if heeded else math.inf
    return LaunchOptions(heeded, _noted(ignored, pool.options), timeout_s)


def ignored_launch_options(
    headers: Headers, parameters: Iterable[tuple[str, str]], grid: Mapping[str, object]
) -> tuple[str, ...]:
    """Returns the names of launch options that a grid ignores which heeds none: sorted, without values, which may be
    secrets. Leaves out options that ask for nothing, or for what `grid` has anyway (Playwright's names and values).

    Playwright Test and pytest-playwright send launch options with each connect, as JSON in a header.
    """
    given = [value for name, value in parameters if name == "launch-options"]
    given = given or headers.get_all(HEADER)
    if not given:
        return ()
    try:
        options = orjson.loads(given[0])
    except orjson.JSONDecodeError:  # Playwright's own server ignores that, too
        return ()
    return _noted(options, grid) if isinstance(options, dict) else ()


def _noted(options: Mapping[str, Any], grid: Mapping[str, object]) -> tuple[str, ...]:
    names = [
        name
        for name, value in options.items()
        if name not in _OF_THE_CLIENT and (value not in (None, grid[name]) if name in grid else value)
    ]
    return tuple(_shown(name) for name in sorted(names)[:MAX_OPTIONS])


def _asked_options(headers: Headers, parameters: Collection[tuple[str, str]]) -> Mapping[str, Any]:
    """Returns the options of the URL (?launch-options=, or ?launch= as other services call it, perhaps in base64), else
    those of the header. Raises Refusal for what is no JSON object."""
    in_header = headers.get_all(HEADER)
    if not (parameters or in_header):
        return {}
    by_name = {name: value for name, value in reversed([*parameters]) if value}
    launch = by_name.get("launch")
    places = {
        "?launch-options=": by_name.get("launch-options", ""),
        "?launch=": _without_base64(launch) if launch else "",
        f"the header {HEADER}": next(iter(in_header), ""),
    }
    for place, text in places.items():
        if not text.strip():
            continue
        try:
            options = orjson.loads(text)
        except orjson.JSONDecodeError:
            options = None
        if not isinstance(options, dict):
            raise Refusal(400, f'{place} must be launch options as a JSON object, like {{"slowMo": 50}}')
        return options
    return {}


def _without_base64(text: str) -> str:
    if text.lstrip().startswith("{"):
        return text
    try:
        return base64.b64decode(text.replace(" ", "+"), validate=True).decode()
    except (binascii.Error, ValueError):
        return text


def _is_of_no_use(name: str, value: object, pool: PoolView) -> bool:
    """Whether no browser of this type could heed the option; then it is ignored, as an unknown one is."""
    if name == "firefoxUserPrefs":
        return pool.browser_type != "firefox"
    # Playwright's own Firefox and WebKit: a pool that was given no channel has that browser, or one that is as good.
    return name == "channel" and value == pool.browser_type != "chromium" and not pool.channel


# One function for each option that is heeded: what to launch with, or None where it asks for nothing else than the pool
# has. Each raises Refusal.


def _headless(value: Any, pool: PoolView, _rules: LaunchRules) -> bool | None:
    if not isinstance(value, bool):
        _refuse("headless", "it must be true or false")
    return None if value == pool.options.get("headless", True) else value


def _args(value: Any, pool: PoolView, rules: LaunchRules) -> list[str] | None:
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        _refuse("args", "it must be a list of texts")
    there = {*_list_of(pool.options.get("args"))}
    if pool.browser_type == "chromium":
        there |= _OF_PLAYWRIGHT | (frozenset() if pool.options.get("chromiumSandbox") else _WITHOUT_SANDBOX)
    more = [each for each in value if each not in there]
    for each in more:
        name = each.partition("=")[0]
        if not any(_matches(name, allowed) for allowed in rules.allowed_args):
            _refuse(
                f"args: {_shown(name) or 'an empty text'}",
                "it is not allowed here: leave it out, or have the grid's operator add it to ALLOWED_BROWSER_ARGS",
            )
        if not each.isprintable():
            _refuse(f"args: {_shown(name)}", "it has control characters: leave them out")
    return more or None


def _proxy(value: Any, _pool: PoolView, _rules: LaunchRules) -> dict[str, str] | None:
    if not value:
        return None
    if (
        not isinstance(value, dict)
        or not value.keys() <= _PROXY_KEYS
        or not all(isinstance(each, str) and each.isprintable() for each in value.values() if each is not None)
        or not value.get("server")
    ):
        _refuse("proxy", "it must have a server like http://proxy:3128, and perhaps bypass, username and password")
    if value["server"] in _PER_CONTEXT:
        return None
    return {name: text for name, text in value.items() if text}


def _firefox_preferences(
    value: Any, _pool: PoolView, _rules: LaunchRules
) -> dict[str, str | int | float | bool] | None:
    if not isinstance(value, dict) or not all(isinstance(each, str | int | float) for each in value.values()):
        _refuse("firefoxUserPrefs", "it must be an object of texts, numbers, true and false")
    if any(name.startswith(_SANDBOX_PREFERENCES) for name in value):
        _refuse("firefoxUserPrefs", f"no client may change {_SANDBOX_PREFERENCES}*: leave that out")
    return value or None


def _slow_mo(value: Any, _pool: PoolView, _rules: LaunchRules) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not is_number or not 0 <= value <= _MOST_SLOW_MO_MS:
        _refuse("slowMo", f"it must be a number of milliseconds, 0 to {_MOST_SLOW_MO_MS}")
    delay_ms: float = value
    return delay_ms or None


def _timeout_s(value: Any) -> float:
    """For Playwright 0 is none, too. Anything else costs nothing, as the other options of the client's own."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value / 1000 if is_number and value > 0 else math.inf


def _channel(value: Any, pool: PoolView, _rules: LaunchRules) -> str | None:
    """Whether the host has that browser its worker finds out."""
    if not isinstance(value, str):
        _refuse("channel", "it must be a text")
    if value and not _CHANNEL.fullmatch(value):
        _refuse("channel", "it must be a channel of Playwright, like chrome or msedge")
    return value if value and value != pool.channel else None


_JUDGES: Final[Mapping[str, Callable[[Any, PoolView, LaunchRules], object | None]]] = {
    "headless": _headless,
    "args": _args,
    "proxy": _proxy,
    "firefoxUserPrefs": _firefox_preferences,
    "slowMo": _slow_mo,
    "channel": _channel,
}


def _matches(name: str, allowed: str) -> bool:
    return name.startswith(allowed[:-1]) if allowed.endswith("*") else name == allowed


def _list_of(given: object) -> Iterable[str]:
    return map(str, given) if isinstance(given, list | tuple) else ()


def _shown(name: str) -> str:
    return _ODD.sub("?", name[:_OPTION_CHARACTERS])


def _refuse(option: str, why: str) -> NoReturn:
    raise Refusal(400, f"launch option {option}: {why}")
