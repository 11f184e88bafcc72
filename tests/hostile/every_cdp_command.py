"""Looks for commands over CDP that end or block a browser for the others in it.

Sends every command that the browser knows, with odd values of every parameter, on the session of a page in `strict`,
and asks a neighbour after each one:

    python -m tests.hostile.every_cdp_command [executable] [Domain or Domain.command ...]

Takes ten minutes, and is no test. What it finds belongs into CRASHES_THE_BROWSER of cdp_methods.cjs and messages.py.
"""

import asyncio
import contextlib
import json
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from websockets.exceptions import ConnectionClosed

from tests.hostile.calls import evaluate, goto, page_session
from tests.support.browsers import fit_browser
from tests.support.protocol_client import Refusal, protocol_client
from tests.support.stand_in_proxy import Watched, browser_server

ANSWERS_WITHIN_S, NEIGHBOUR_WITHIN_S = 3.0, 5.0
COMMANDS_FOR_EACH_BROWSER = 120
LONG = "x" * 1000
VALUES: list[dict[str, Any]] = [
    {"integer": 1, "number": 1.0, "boolean": True, "string": "x", "length": 1, "enum": 0, "optional": False},
    {"integer": 2**31 - 1, "number": 1e9, "boolean": True, "string": "9", "length": 1, "enum": -1, "optional": True},
    {"integer": -1, "number": -1e9, "boolean": False, "string": "", "length": 0, "enum": -1, "optional": True},
    {"integer": 0, "number": 0.0, "boolean": True, "string": "0", "length": 1, "enum": 0, "optional": True},
    {"integer": 65536, "number": 1e308, "boolean": True, "string": LONG, "length": 9, "enum": 0, "optional": True},
]
DEEPEST = 4


def protocol_of(executable: str) -> list[dict[str, Any]]:
    """The domains of the protocol, as the browser itself tells them."""
    with tempfile.TemporaryDirectory() as profile:
        arguments = ["--headless", "--no-sandbox", "--remote-debugging-port=0", f"--user-data-dir={profile}"]
        with subprocess.Popen([executable, *arguments], stderr=subprocess.PIPE, text=True) as browser:
            assert browser.stderr is not None
            try:
                said = next(line for line in browser.stderr if "ws://" in line)
                host = said.split("ws://")[1].split("/")[0]
                with urllib.request.urlopen(f"http://{host}/json/protocol") as answer:
                    domains: list[dict[str, Any]] = json.load(answer)["domains"]
            finally:
                browser.terminate()
                browser.stderr.read()
    return domains


def maker(domains: list[dict[str, Any]], values: dict[str, Any]) -> Callable[[str, dict[str, Any]], Any]:
    """Makes a value of a type of the protocol."""
    types = {f"{each['domain']}.{kind['id']}": kind for each in domains for kind in each.get("types", [])}

    def make(domain: str, kind: dict[str, Any], depth: int = 0) -> Any:
        if "$ref" in kind:
            name = kind["$ref"] if "." in kind["$ref"] else f"{domain}.{kind['$ref']}"
            return make(name.split(".")[0], types[name], depth)
        if "enum" in kind:
            return kind["enum"][values["enum"]]
        if kind["type"] == "array":
            return [make(domain, kind["items"], depth + 1)] * (values["length"] if depth < DEEPEST else 0)
        if kind["type"] == "object":
            return parameters(domain, kind.get("properties", []), depth + 1)
        return values.get(kind["type"], "x")

    def parameters(domain: str, kinds: list[dict[str, Any]], depth: int) -> dict[str, Any]:
        wanted = [each for each in kinds if values["optional"] or not each.get("optional")]
        return {each["name"]: make(domain, each, depth) for each in wanted} if depth <= DEEPEST else {}

    return lambda domain, command: parameters(domain, command.get("parameters", []), 0)


async def harm(watched: Watched, other: Any, page: str, method: str, params: dict[str, Any]) -> str:
    """What the command did to the page of another session; empty for nothing."""
    domain = method.split(".")[0]
    async with protocol_client(watched.endpoint) as client:
        context = await client.new_context()
        session = await page_session(client, context, await client.new_page(context))
        for command, carried in ((f"{domain}.enable", {}), (method, params)):
            with contextlib.suppress(Refusal, TimeoutError, ConnectionClosed):
                await asyncio.wait_for(client.cdp(session, command, **carried), ANSWERS_WITHIN_S)
        begun = time.monotonic()
        try:
            await asyncio.wait_for(evaluate(other, page, "1"), NEIGHBOUR_WITHIN_S)
        except (Refusal, TimeoutError, ConnectionClosed) as error:
            return f"{type(error).__name__} {error}"
    waited_s = time.monotonic() - begun
    return f"waited {waited_s:.1f} s" if waited_s > 1 or watched.gone.done() else ""


async def main(executable: str, only: list[str]) -> None:
    domains = protocol_of(executable)
    left = deque(
        (f"{domain['domain']}.{command['name']}", maker(domains, values)(domain["domain"], command))
        for domain in domains
        for command in domain["commands"]
        for values in VALUES
        if not only or {domain["domain"], f"{domain['domain']}.{command['name']}"} & set(only)
    )
    while left:
        async with (
            browser_server(max_concurrent_sessions=5, client_guard="strict", executable=executable) as watched,
            protocol_client(watched.endpoint) as other,
        ):
            page = await other.new_page()
            await goto(other, page, "data:text/html,<title>untouched</title>")
            for _ in range(min(COMMANDS_FOR_EACH_BROWSER, len(left))):
                method, params = left.popleft()
                with contextlib.suppress(asyncio.InvalidStateError):  # an answer that comes after its connection's end
                    if done := await harm(watched, other, page, method, params):
                        print(method, str(params)[:200], done, flush=True)  # noqa: T201 - its only output
                        break


if __name__ == "__main__":
    given = sys.argv[1:]
    named = given.pop(0) if given and Path(given[0]).exists() else fit_browser("chromium").executable
    asyncio.run(main(named, given))
