"""What a browser says, between its pipe and Playwright: what is too long is dropped whole; only its asker notices."""

import asyncio
import json
import shlex
import subprocess
from pathlib import Path

import pytest
from playwright._impl._driver import compute_driver_executable
from playwright.async_api import Browser, Page, async_playwright
from playwright.async_api import Error as PlaywrightError

from pwgrid.common.reasons import EndReason
from pwgrid.common.types import BrowserType
from pwgrid.worker.browser.launch import LAUNCHER
from tests.support import stand_in_proxy
from tests.support.browsers import fit_browser
from tests.support.grid import eventually_async
from tests.support.stand_in_proxy import BOUND_S, Watched, browser_server

NODE, _ = compute_driver_executable()
SUPPORT = Path(__file__).parents[1] / "support"

SPLIT = """
const { PipeMessages } = require(process.argv[1]);
const found = [];
const onTooLong = (head, tail, bytes) => found.push([head.slice(0, 8), tail.slice(-4), bytes]);
const messages = new PipeMessages(100, message => found.push(message.toString()), onTooLong);
for (const chunk of JSON.parse(require('node:fs').readFileSync(0)))
  messages.take(Buffer.from(chunk));
console.log(JSON.stringify(found));
"""

LONG = """
const { PipeMessages } = require(process.argv[1]);
const half = Buffer.alloc(64 * 1024, 'x');
const { length } = half;
let found = '';
const messages = new PipeMessages(1024 * 1024, text => { found += text; }, (head, tail, bytes) => { found += bytes; });
const before = process.memoryUsage().rss;
for (let bytes = 0; bytes < 2 ** 30; bytes += length)
  messages.take(half);
const grown = process.memoryUsage().rss - before;
messages.take(Buffer.from('\\0 and on\\0'));
console.log(JSON.stringify([found, grown]));
"""

ANSWER = """
const { answerFor } = require(process.argv[1]);
const given = JSON.parse(require('node:fs').readFileSync(0));
console.log(JSON.stringify(given.map(([head, tail, command, text]) => answerFor(head, tail, text, () => command))));
"""

TEXT = "what the browser answers has 600 MiB, and no message may have more than 256"
THROWN, REFUSED = {"exceptionDetails": {"text": TEXT}}, {"code": -32000, "message": TEXT}


def in_node(script: str, given: object = None) -> object:
    argv = [NODE, "-e", script, str(LAUNCHER.with_name("units") / "browser_messages.cjs")]
    done = subprocess.run(argv, input=json.dumps(given), capture_output=True, text=True, timeout=60, check=True)
    return json.loads(done.stdout)


def test_messages_are_told_apart_wherever_their_chunks_begin_and_end() -> None:
    said = "one\0" + "two" * 30 + "\0" + "long" * 26 + "\0" + "\0" + "ö\0"
    whole = ["one", "two" * 30, ["longlong", "long", 104], "", "ö"]
    data = said.encode()
    for size in (1, 3, 7, 50, len(data)):
        chunks = [[*data[start : start + size]] for start in range(0, len(data), size)]
        assert in_node(SPLIT, chunks) == whole


def test_a_message_that_is_too_long_takes_no_memory_and_the_next_one_is_whole() -> None:
    found, grown = in_node(LONG)  # type: ignore[misc]
    assert found == f"{2**30} and on"
    assert grown < 64 * 2**20


@pytest.mark.parametrize(
    ("head", "tail", "command", "answer"),
    [
        pytest.param(
            *('{"id":7,"result":{"result":…', '…},"sessionId":"AB1"}', "Runtime.callFunctionOn"),
            {"id": 7, "result": THROWN, "sessionId": "AB1"},
            id="chromium, a page's script",
        ),
        pytest.param(
            *('{"id":7,"result":{"data":"…', '…"},"sessionId":"AB1"}', "Page.captureScreenshot"),
            {"id": 7, "error": REFUSED, "sessionId": "AB1"},
            id="chromium, a page",
        ),
        pytest.param(
            *('{"id":7,"result":{"data":"…', '…"}}', "IO.read"), {"id": 7, "error": REFUSED}, id="chromium itself"
        ),
        pytest.param(
            *('{"id":7,"sessionId":"a-b/1","result":{…', "…}}", "Page.screenshot"),
            {"id": 7, "error": REFUSED, "sessionId": "a-b/1"},
            id="firefox",
        ),
        pytest.param(
            *('{"type":"success","id":7,"result":{…', "…}}", "browsingContext.captureScreenshot"),
            {"type": "error", "id": 7, "error": "unknown error", "message": TEXT},
            id="bidi",
        ),
        pytest.param(
            *('{"type":"success","id":7,"result":{…', "…}}", "script.callFunction"),
            {"type": "success", "id": 7, "result": {"type": "exception", **THROWN}},
            id="bidi, a page's script",
        ),
        pytest.param(*('{"result":{…', '…},"id":7}', None), {"id": 7, "error": REFUSED}, id="webkit"),
        pytest.param(*('{"method":"Runtime.consoleAPICalled",…', '…,"sessionId":"AB1"}', None), None, id="event"),
        pytest.param(
            *('{"method":"X","params":{"x":"\\"id\\":7,', '\\",\\"id\\":7}"}}', None), None, id="a page writes an id"
        ),
    ],
)
def test_an_answer_that_is_dropped_becomes_an_error_for_its_asker(
    head: str, tail: str, command: str | None, answer: object
) -> None:
    assert in_node(ANSWER, [[head, tail, command, TEXT]]) == [answer]


each_browser = pytest.mark.parametrize("browser_type", ["chromium", "firefox"], indirect=True)
"""Chromium speaks over a pipe, Firefox over a WebSocket."""

THE_REAL_ONE = (str(LAUNCHER.parent),)
"""What a launcher of the tests reads beside itself."""


@each_browser
async def test_who_asks_for_too_much_gets_an_error_and_nobody_else_notices(
    browser_type: BrowserType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stand_in_proxy, "LAUNCHER", SUPPORT / "small_messages_launcher.cjs")
    errors: list[tuple[dict[str, int], str]] = []
    reads = {"browser_read_paths": THE_REAL_ONE}
    async with browser_server(browser_type, **reads) as watched, async_playwright() as playwright:
        watched.server.on_errors = lambda counts, text, _session: errors.append((dict(counts), text))
        asker, neighbour = [await _page(playwright, watched, browser_type) for _ in range(2)]
        with pytest.raises(PlaywrightError, match="no message may have more than 1"):
            await asker.evaluate("'x'.repeat(3e6)")
        await asker.evaluate("console.log('x'.repeat(3e6))")
        assert [await page.evaluate("6 * 7") for page in (asker, neighbour)] == [42, 42]
        assert await asker.evaluate("'x'.repeat(9e5)") == "x" * 900_000
        assert (await watched.server.canary(BOUND_S)).ok
        await eventually_async(lambda: sum(counts["too long"] for counts, _ in errors) >= 2, "both are counted")
        assert watched.closed.empty()


async def test_an_answer_that_cannot_be_sent_is_an_error_and_without_an_event_its_session_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stand_in_proxy, "LAUNCHER", SUPPORT / "failing_messages_launcher.cjs")
    errors: asyncio.Queue[tuple[dict[str, int], str | None]] = asyncio.Queue()
    reads = {"browser_read_paths": THE_REAL_ONE}
    async with browser_server(**reads) as watched, async_playwright() as playwright:
        watched.server.on_errors = lambda counts, _text, session: errors.put_nowait((dict(counts), session))
        asker, neighbour = [await _page(playwright, watched, "chromium") for _ in range(2)]
        with pytest.raises(PlaywrightError, match="the answer cannot be sent: Invalid string length"):
            await asker.evaluate("'a message that ' + 'fails'")
        assert await asker.evaluate("6 * 7") == 42
        asker.on("console", lambda _: None)  # a client gets only the events that it asks for
        never = asker.evaluate("console.log('a message that ' + 'fails'); new Promise(() => {})")
        with pytest.raises(PlaywrightError, match="the browser server failed at one of its messages"):
            await asyncio.wait_for(never, BOUND_S)
        closed = await watched.next_closed()
        assert (closed.end.by, str(closed.end.reason)) == ("grid", EndReason.MESSAGE_FAILED)
        counts, session_id = await asyncio.wait_for(errors.get(), BOUND_S)
        assert (counts.keys(), session_id) == ({"client"}, closed.session_id)
        assert await neighbour.evaluate("6 * 7") == 42


async def _page(playwright: object, watched: Watched, browser_type: BrowserType) -> Page:
    browser: Browser = await getattr(playwright, browser_type).connect(watched.endpoint)
    return await browser.new_page()


async def test_what_is_no_json_ends_the_sessions_of_the_browser_with_that_reason(tmp_path: Path) -> None:
    """Nothing that it says can be told apart any more."""
    word = tmp_path / "now"
    program = tmp_path / "browser"
    real = shlex.quote(fit_browser("chromium").executable)
    wait = f"until [ -e {word} ]; do sleep 0.05; [ -e /proc/$$/exe ] || exit; done"
    program.write_text(f"#!/bin/sh\n({wait}; printf 'junk\\0' >&4) &\nexec {real} \"$@\"\n")
    program.chmod(0o755)
    async with browser_server(executable=str(program)) as watched, async_playwright() as playwright:
        page = await _page(playwright, watched, "chromium")
        word.touch()
        assert str(await watched.why_gone()) == (
            "the browser says what is no JSON: Unexpected token 'j', \"junk\" is not valid JSON"
        )
        assert watched.server.sessions_ended_for == EndReason.BROWSER_UNREADABLE
        closed = await watched.next_closed()
        assert (closed.end.by, str(closed.end.reason)) == ("browser", EndReason.BROWSER_UNREADABLE)
        with pytest.raises(PlaywrightError, match="its browser could not be understood any more; connect again"):
            await asyncio.wait_for(page.title(), BOUND_S)
