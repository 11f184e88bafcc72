"""What the browser server uses of Playwright's private objects is in needs.cjs, by which set-up checks a driver."""

import json
import re
import subprocess
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from pwgrid.installed.driver import own_driver
from pwgrid.worker.browser.launch import LAUNCHER

HOME = LAUNCHER.parent
NEEDS = HOME / "playwright/needs.cjs"
CHECK = {NEEDS.name, "check_driver.cjs", "look_at_driver.cjs", "stand_in_browser.cjs"}
"""These are the check itself."""

OURS = {"_host", "_method", "_params", "_port", "_target", "_this"}  # parameters that a function does not use
OURS |= {"before", "environment"}  # of a browser that a client wants
OURS |= {"isGone"}  # of a page that Playwright is not attached to
OURS |= {"evaluate", "newPage", "version"}  # what Playwright's own client has for all
"""Names that are not private ones of Playwright."""

_OWNER = r"(?:browser|context|delegate|dispatcher|frame|page|screencast|screenshotter|transport)"
"""Variables in which the modules have Playwright's own objects."""

_COMMENT = re.compile(r"(?:^|\s)//.*", re.MULTILINE)
_PRIVATE = re.compile(r"(?<![\w$])_[A-Za-z]\w*")
_OF_PRIVATE = re.compile(r"(?<![\w$])(_[A-Za-z]\w*)\??\.(\w+)")
_OF_OWNER = re.compile(rf"\b{_OWNER}\??\.(\w+)")
_TAKEN_OUT = re.compile(rf"\{{([^{{}}]*)\}} = (?:[\w.]+\.)?(_[A-Za-z]\w*|browser\.options|{_OWNER})[;,]")
_TAKEN_OUT_OF_PARAMETER = re.compile(r"(?<![\w$])(_[A-Za-z]\w*): \{([^{}]*)\} \}")
_OF_OPTIONS = re.compile(r"\bbrowser\.options(?:\.|, ')(\w+)")
_OVERRIDDEN = re.compile(r"\b(?:override|wrap)\([\w.]+, '(\w+)'")


def used_in(source: str) -> Iterator[str]:
    """The private names in a module, and with a dot what it takes of an object with such a name. Elsewhere nothing in
    the text says whose a name is: it counts by itself."""
    code = _COMMENT.sub("", source)
    yield from ({*_PRIVATE.findall(code), *_OF_OWNER.findall(code)} - OURS)
    yield from _OVERRIDDEN.findall(code)
    yield from (f"{owner}.{name}" for owner, name in _OF_PRIVATE.findall(code))
    yield from (f"options.{name}" for name in _OF_OPTIONS.findall(code))
    for names, owner in _TAKEN_OUT.findall(code):
        of = "" if re.fullmatch(_OWNER, owner) else f"{owner.removeprefix('browser.')}."
        yield from (of + name for name in _names(names))
    for owner, names in _TAKEN_OUT_OF_PARAMETER.findall(code):
        yield from (f"{owner}.{name}" for name in _names(names))


def _names(taken_out: str) -> list[str]:
    """Those of `{ a, b: c }`, by which the object has them."""
    return [each.split(":")[0].strip() for each in taken_out.split(",") if each.strip()]


def needed() -> set[str]:
    """The names in needs.cjs, and each two of them with a dot of which the second is taken of the first."""
    table = NEEDS.read_text().split("const ANY_BROWSER")[1].split("\n};\n")[0]
    paths = [each.split(".") for each in re.findall(r"[\w.]+", table)]
    return {name for path in paths for name in path} | {".".join(pair) for path in paths for pair in pairwise(path)}


MODULES = sorted(path for path in HOME.rglob("*.cjs") if path.name not in CHECK)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(HOME)))
def test_each_private_name_is_one_that_set_up_looks_for(path: Path) -> None:
    unknown = sorted({*used_in(path.read_text())} - needed())
    assert not unknown, f"{path}: needs.cjs has not {', '.join(unknown)}"


@pytest.mark.parametrize(
    ("source", "used"),
    [
        ("page._secret();", {"_secret"}),
        ("if (unit.browser?.secret())", {"secret"}),
        ("const { secret, delegate } = page;", {"secret", "delegate"}),
        ("const { _secret: own } = page;", {"_secret"}),
        ("const { version } = given; browser.version(ours.secret);", set[str]()),
        ("dispatcher._object.secret.destroy();", {"_object", "_object.secret"}),
        ("dispatcher._object?.secret;", {"_object", "_object.secret"}),
        ("const { a: own, b } = dispatcher._object;", {"_object", "_object.a", "_object.b"}),
        ("function sizeOf({ _receiver: { length } }) {", {"_receiver", "_receiver.length"}),
        ("override(browser, 'secret', make => make());", {"secret"}),
        ("const name = old ? '_secret' : 'secret';", {"_secret"}),
        ("const { secret } = browser.options;", {"options", "options.secret"}),
        ("Object.defineProperty(browser.options, 'secret', {});", {"options", "options.secret"}),
        ("// what _secret is\nfetch('http://a.test'); // and ._that", set[str]()),
        ("const answer = my_name + other$_name;", set[str]()),
    ],
)
def test_private_names_are_found(source: str, used: set[str]) -> None:
    assert {*used_in(source)} == used


def test_private_names_are_found_in_the_modules() -> None:
    used = {each for path in MODULES for each in used_in(path.read_text())}
    assert used >= {"_dispatcherByGuid.get", "_object.stream", "_page.browserContext", "_contextForReuse"}
    assert used >= {"options.artifactsDir", "options.tracesDir", "doCreateNewContext", "_receiver._fragments"}


MISSING = """
const { missingIn } = require(process.argv[1]);
const meant = { 'a function': () => {}, 'a dir, undefined': { dir: undefined } };
const objects = JSON.parse(process.argv[2], (name, value) => meant[value] ?? value);
console.log(JSON.stringify(missingIn(objects, [...Object.keys(objects), 'what nobody needs'])));
"""
FUNCTION = "a function"
PAGE: dict[str, object] = {
    **dict.fromkeys(("isClosed", "mainFrame", "initializedOrUndefined"), FUNCTION),
    "browserContext": {},
    "delegate": {"navigateFrame": FUNCTION},
    "screenshotter": dict.fromkeys(("screenshotPage", "screenshotElement"), FUNCTION),
}
SCREENCAST: dict[str, object] = dict.fromkeys(("addClient", "removeClient"), FUNCTION)


@pytest.mark.parametrize(
    ("objects", "missing"),
    [
        ({"page": PAGE}, []),
        ({"page": {**PAGE, "mainFrame": {}}}, ["page.mainFrame()"]),
        ({"page": {**PAGE, "delegate": None}}, ["page.delegate.navigateFrame()"]),
        ({"page": {**PAGE, "screencast": SCREENCAST}}, ["page.screencast._clients.size"]),
        ({"page": {**PAGE, "screencast": {**SCREENCAST, "_clients": {"size": 0}}}}, []),
        ({"contextOptions": {"proxyOverride": {"server": ""}, "recordVideo": "a dir, undefined"}}, []),
        ({"contextOptions": {"proxyOverride": {"server": ""}, "recordVideo": {}}}, ["contextOptions.recordVideo.dir"]),
        ({"command": None}, ["command.error.method", "command.error.type"]),
    ],
)
def test_what_is_missing_is_named(objects: dict[str, object], missing: list[str]) -> None:
    command = [own_driver().node, "-e", MISSING, NEEDS, json.dumps(objects)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(done.stdout) == missing
