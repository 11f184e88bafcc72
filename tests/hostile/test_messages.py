"""The table of messages: it is complete, the guard keeps to it, and Playwright refuses what is left to it."""

import json
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from playwright._impl._driver import compute_driver_executable

from pwgrid.worker.browser.launch import LAUNCHER
from tests.hostile import messages
from tests.support.protocol_client import Refusal, protocol_client
from tests.support.stand_in_proxy import browser_server

NODE, CLI = compute_driver_executable()
GUARDS = ("compatible", "strict", "off")
JUDGE = """
const { judge, judgeNavigation } = require(process.argv[1]);
const calls = JSON.parse(require('node:fs').readFileSync(0));
console.log(JSON.stringify(calls.map(([type, method, params, client]) =>
  method === 'goto' ? judgeNavigation(params?.url, client) : judge(type, method, params, client))));
"""
LOOPBACK_PORT = 40404
Call = tuple[str, str, Any]


def calls(table: Mapping[str, str]) -> set[tuple[str, str]]:
    return {(each, method) for each, methods in table.items() for method in methods.split()}


EVERYTHING = [
    messages.ALLOWED,
    messages.COMPATIBLE_REFUSES,
    messages.STRICT_REFUSES,
    messages.ALWAYS_REFUSED,
    messages.REFUSED_BY_PLAYWRIGHT,
    messages.OF_NO_OBJECT,
]
OLDER = [
    messages.OLDER_ALLOWED,
    messages.OLDER_COMPATIBLE_REFUSES,
    messages.OLDER_REFUSED_BY_PLAYWRIGHT,
    messages.OLDER_OF_NO_OBJECT,
]


def refusals(asked: list[Call], guard: str, *, shared: bool = True, **client: Any) -> list[Call]:
    """Those of the calls that the guard refuses."""
    who = {"guard": guard, "isShared": shared, "blocksFileUrls": False, "ownsTracing": False, **client}
    who["loopbackPorts"] = [LOOPBACK_PORT]
    given = json.dumps([[*call, who] for call in asked])
    script = ["-e", JUDGE, str(LAUNCHER.with_name("guard") / "playwright_messages.cjs")]
    done = subprocess.run([NODE, *script], input=given, capture_output=True, text=True, timeout=60, check=True)
    return [call for call, verdict in zip(asked, json.loads(done.stdout), strict=True) if verdict]


def test_the_table_has_every_message_of_this_playwright_once() -> None:
    text = (Path(CLI).parent / "lib/coreBundle.js").read_text()
    table = text[text.index("methodMetainfo = ") :].partition("]);")[0]
    known = {tuple(name.split(".")) for name in re.findall(r'\["(\w+\.\w+)", \{', table)}
    assert len(known) > 300
    listed = [call for part in EVERYTHING for call in calls(part)]
    assert set(listed) == known
    assert len(listed) == len(known)


@pytest.mark.parametrize("guard", GUARDS)
@pytest.mark.parametrize("shared", [True, False])
def test_the_guard_refuses_what_the_table_says_and_nothing_else(guard: str, shared: bool) -> None:
    asked: list[Call] = sorted((*call, {}) for part in [*EVERYTHING, *OLDER] for call in calls(part))
    expected = calls(messages.ALWAYS_REFUSED)
    if guard != "off":
        expected |= calls(messages.COMPATIBLE_REFUSES) | calls(messages.OLDER_COMPATIBLE_REFUSES)
    if guard == "strict" and shared:
        expected |= calls(messages.STRICT_REFUSES)
    assert {(kind, method) for kind, method, _ in refusals(asked, guard, shared=shared)} == expected


@pytest.mark.parametrize("guard", GUARDS)
@pytest.mark.parametrize("shared", [True, False])
def test_by_what_they_carry(guard: str, shared: bool) -> None:
    asked: list[Call] = [(kind, method, params) for kind, method, params, _ in messages.BY_WHAT_THEY_CARRY]
    expected = [
        (kind, method, params)
        for kind, method, params, guards in messages.BY_WHAT_THEY_CARRY
        if guard in guards and (shared or guards == messages.COMPATIBLE)
    ]
    assert refusals(asked, guard, shared=shared) == expected


@pytest.mark.parametrize("guard", GUARDS)
def test_blocked_file_urls_are_refused_with_every_guard(guard: str) -> None:
    asked: list[Call] = [
        ("Frame", "goto", {"url": "file:///etc/passwd"}),
        ("Frame", "goto", {"url": "view-source:FILE:/etc/passwd"}),
        ("CDPSession", "send", {"method": "Page.navigate", "params": {"url": "file:///etc/passwd"}}),
    ]
    assert refusals(asked, guard, shared=False, blocksFileUrls=True) == asked
    open_ones: list[Call] = [
        ("Frame", "goto", {"url": "https://example.org/file:/x"}),
        ("Frame", "goto", {"url": "about:blank"}),
        ("CDPSession", "send", {"method": "Page.navigate", "params": {"url": "data:text/html,file:"}}),
    ]
    assert refusals(open_ones, guard, shared=False, blocksFileUrls=True) == []


def going(url: str) -> list[Call]:
    """The ways there."""
    inner = {"method": "Page.navigate", "params": {"url": url, "transitionType": "address_bar"}}
    tunnelled = {"method": "Target.sendMessageToTarget", "params": {"sessionId": "x", "message": json.dumps(inner)}}
    return [
        ("Frame", "goto", {"url": url}),
        ("CDPSession", "send", inner),
        ("CDPSession", "send", {"method": "Target.createTarget", "params": {"url": url}}),
        ("CDPSession", "send", tunnelled),
    ]


@pytest.mark.parametrize("guard", GUARDS)
@pytest.mark.parametrize("shared", [True, False])
def test_a_browser_that_others_share_opens_no_page_of_its_own(guard: str, shared: bool) -> None:
    asked = [call for url in messages.PLACES_OF_THE_BROWSER for call in going(url)]
    level = {"isBrowserLevel": True}  # else `strict` refuses some of these for another reason
    assert refusals(asked, guard, shared=shared, **level) == (asked if shared and guard != "off" else [])
    open_ones = [call for url in messages.PLACES_FOR_ALL for call in going(url)]
    assert refusals(open_ones, guard, shared=shared, **level) == []


@pytest.mark.parametrize("guard", GUARDS)
@pytest.mark.parametrize("shared", [True, False])
def test_what_crashes_a_shared_browser_is_refused(guard: str, shared: bool) -> None:
    asked: list[Call] = [
        ("CDPSession", "send", {"method": method, "params": params}) for method, params in messages.CRASHES_THE_BROWSER
    ]
    assert refusals(asked, guard, shared=shared) == (asked if shared and guard != "off" else [])


@pytest.mark.parametrize("guard", GUARDS)
@pytest.mark.parametrize("address", ["127.1.2.3", "localhost", "[::ffff:7f01:203]", "http=x:1;socks=127.1"])
def test_no_context_that_is_made_over_cdp_has_a_certificate_port_as_its_proxy(guard: str, address: str) -> None:
    asked: list[Call] = [
        ("CDPSession", "send", {"method": "Target.createBrowserContext", "params": {"proxyServer": proxy}})
        for proxy in (f"socks5://{address}:{LOOPBACK_PORT}", f"{address}:0{LOOPBACK_PORT},direct://")
    ]
    assert refusals(asked, guard, isBrowserLevel=True) == asked


def test_who_started_the_record_of_a_browser_may_stop_it() -> None:
    asked: list[Call] = [("Browser", "stopTracing", {})]
    assert refusals(asked, "strict", ownsTracing=True) == []


async def test_playwright_itself_refuses_what_is_left_to_it() -> None:
    parameters = {
        "launch": {},
        "launchPersistentContext": {"userDataDir": "/tmp/x"},
        "connectOverCDP": {"endpointURL": "http://127.0.0.1:1"},
        "connectToWorker": {"endpoint": "http://127.0.0.1:1"},
    }
    async with browser_server(client_guard="off") as watched, protocol_client(watched.endpoint) as client:
        for kind, method in sorted(calls(messages.REFUSED_BY_PLAYWRIGHT)):
            with pytest.raises(Refusal, match="not allowed"):
                await client.send(client.one(kind), method, timeout=5000, **parameters.get(method, {}))
        await client.new_page()
        assert not {kind for kind, _ in client.objects.values()} & set(messages.OF_NO_OBJECT)
        for kind, method in sorted(calls(messages.OF_NO_OBJECT)):
            for guid in (kind, kind[0].lower() + kind[1:], ""):
                with pytest.raises(Refusal):
                    await client.send(guid, method)
