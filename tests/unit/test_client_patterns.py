"""Patterns of clients: which of them need a time limit, and what each client's may take (client_patterns.cjs)."""

import json
import subprocess
from typing import Any

import pytest
from playwright._impl._driver import compute_driver_executable

from pwgrid.worker.browser.launch import LAUNCHER, NODE_FLAGS

NODE, _ = compute_driver_executable()
MODULE = json.dumps(str(LAUNCHER.with_name("guard") / "client_patterns.cjs"))


def run(script: str, *arguments: Any) -> Any:
    """What the script returns, as JSON, where `given` are the arguments and `patterns` is the module."""
    head = (
        f"const patterns = require({MODULE}); const given = {json.dumps(arguments)};"
        f"console.log(JSON.stringify((() => {{ {script} }})()));"
    )
    done = subprocess.run([NODE, *NODE_FLAGS, "-e", head], capture_output=True, text=True, timeout=60, check=True)
    return json.loads(done.stdout)


def test_v8_says_which_patterns_it_can_match_without_backtracking() -> None:
    asked = [["(a+)+b", ""], ["[^/]*x", "gs"], ["(?=a)b", ""], ["(a)\\1", ""], ["(a+)+b", "i"], ["(a+)+b", "u"]]
    said = run("return given[0].map(each => patterns.isLinear(...each))", asked)
    assert said == [True, True, False, False, False, False]


@pytest.mark.parametrize(
    ("source", "length", "steps"),
    [
        ("^https://a/b$", 100, 101),
        ("/api/.*", 100, 101**2),
        ("^.*/api/.*$", 100, 101**3),
        ("\\.(png|jpe?g)$", 100, 101 * 4),
        ("x{3,}", 9, 10**2 * 2),
        ("(a|a)(a|a)", 1, 2 * 4),
        ("(a+)+b", 30, None),
        ("(?:ab){2,}", 30, None),
    ],
)
def test_the_ways_through_a_text_are_never_underrated(source: str, length: int, steps: int | None) -> None:
    assert run("return patterns.mostSteps(...given)", source, length) == steps  # null in JSON: no bound


BOUND = """
    const ended = [];
    const client = { session: { kind: '' } };
    patterns.boundPatterns(() => client, each => { each.session.kind = 'ended'; ended.push(each === client); });
"""


@pytest.mark.parametrize("flags", ["", "i"])
def test_a_pattern_that_backtracks_for_ever_is_answered_or_ends_its_session(flags: str) -> None:
    said = run(BOUND + "return [new RegExp('(a+)+b', given[0]).test('a'.repeat(40)), ended]", flags)
    assert said == [False, [] if flags == "" else [True]]  # V8 does the first one without backtracking


def test_other_patterns_do_what_they_did() -> None:
    script = """
        const each = new RegExp('a(?<n>b)', 'gi'), same = RegExp(/x/y);
        return [
          'xABab'.replace(each, '-'), [...'abAB'.matchAll(each)].map(({ groups }) => groups.n),
          each.lastIndex,
          each instanceof RegExp, /x/ instanceof RegExp, Object.prototype.toString.call(each),
          [each.source, each.flags],
          'a1b2'.split(new RegExp('\\\\d')), new RegExp('(a+)+b').exec('aab').index, [same.source, same.flags],
          same.test('x'),
          new URLPattern({ pathname: '/a/:id' }, { ignoreCase: true }).test('http://x/A/1'),
          new RegExp('(?=a)(a+)+b').test('xaab'),
        ];
    """
    assert run(BOUND + script) == [
        "x--",
        ["b", "B"],
        0,
        True,
        True,
        "[object RegExp]",
        ["a(?<n>b)", "gi"],
        ["a", "b", ""],
        0,
        ["x", "y"],
        True,
        True,
        True,
    ]


@pytest.mark.parametrize(
    "made",
    [
        "new RegExp('a'.repeat(5001))",
        "new RegExp('\\\\p{RGI_Emoji}'.repeat(21), 'v')",
        "new URLPattern({ pathname: 'a'.repeat(5001) })",
        "new RegExp('a', 'l')",
    ],
)
def test_a_pattern_that_takes_long_to_compile_is_refused(made: str) -> None:
    with pytest.raises(subprocess.CalledProcessError) as caught:
        run(BOUND + f"return {made}")
    assert "is too large for the grid" in caught.value.stderr or "Invalid flags" in caught.value.stderr


def test_many_slow_patterns_end_their_session_too() -> None:
    script = """
        const time = new patterns.PatternTime(0);
        const fed = [[400, 0], [90, 1], [50, 401], [49, 401], [10, 402], [400, 10000]];
        return fed.map(([ms, now]) => time.takes(ms, now));
    """
    assert run(script) == [True, True, True, False, False, True]


def test_no_pattern_matches_once_the_session_is_over() -> None:
    assert run(BOUND + "client.session.kind = 'x'; return new RegExp('a').test('a')") is False
