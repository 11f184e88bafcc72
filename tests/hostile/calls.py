"""Calls of a client that speaks Playwright's protocol, and what its session has left on the host."""

import base64
import os
from typing import Any

from tests.support.drivers import messages_of, under_test
from tests.support.protocol_client import ProtocolClient
from tests.support.stand_in_proxy import BOUND_S, Watched

NOTHING: dict[str, Any] = {"value": {"v": "undefined"}, "handles": []}
"""The argument of an evaluation that has none."""

DOWNLOAD = """(() => {
    const link = document.createElement('a');
    link.href = URL.createObjectURL(new Blob(['of the page']));
    link.download = 'x.txt';
    document.body.append(link);
    link.click();
})()"""


TRACED: dict[str, Any] = {"snapshotDom": True, "snapshots": True, "screencast": True, "screenshots": True}
"""All that a trace may have but pictures of single actions. A driver passes over names that it does not know."""


def recorder() -> str:
    """The message that starts the recorder."""
    return next(each for each in ("showRecorder", "enableRecorder") if has_message("BrowserContext", each))


def har_of(client: ProtocolClient, context: str) -> str:
    """What is asked for a HAR of this context."""
    return context if has_message("BrowserContext", "harStart") else tracing_of(client, context)


def has_message(kind: str, method: str) -> bool:
    """Whether the driver under test knows it."""
    return (kind, method) in messages_of(under_test())


def tracing_of(client: ProtocolClient, context: str) -> str:
    return str(client.objects[context][1]["tracing"]["guid"])


async def evaluate(client: ProtocolClient, page: str, expression: str) -> Any:
    answer = await client.send(
        client.frame(page),
        "evaluateExpression",
        expression=expression,
        isFunction=False,
        arg=NOTHING,
    )
    return answer["value"]


async def goto(client: ProtocolClient, page: str, url: str) -> None:
    await client.send(client.frame(page), "goto", url=url, timeout=BOUND_S * 1000, waitUntil="load")


async def title(client: ProtocolClient, page: str) -> str:
    return str((await client.send(client.frame(page), "title"))["value"])


async def read_stream(client: ProtocolClient, stream: str) -> bytes:
    data = b""
    while chunk := base64.b64decode((await client.send(stream, "read"))["binary"]):
        data += chunk
    return data


def left_behind(watched: Watched) -> list[str]:
    """What sessions have left in the directories that were made for them, also while they are being removed."""
    return sorted(
        os.path.relpath(os.path.join(place, name), watched.directory)
        for made in (*watched.directory.glob("node/playwright-*"), *watched.directory.glob("sessions/*"))
        if "profile" not in made.name
        for place, directories, files in os.walk(made)  # passes over what vanishes, where rglob() raises
        for name in (*directories, *files)
    )


async def targets(client: ProtocolClient, session: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await client.cdp(session, "Target.getTargets"))["targetInfos"]
    return found


async def browser_session(client: ProtocolClient) -> str:
    return str((await client.send(client.one("Browser"), "newBrowserCDPSession"))["session"]["guid"])


async def browser_pid(client: ProtocolClient) -> int:
    """The pid of the client's browser."""
    info = await client.cdp(await browser_session(client), "SystemInfo.getProcessInfo")
    return int(next(each["id"] for each in info["processInfo"] if each["type"] == "browser"))


async def page_session(client: ProtocolClient, context: str, page: str) -> str:
    return str((await client.send(context, "newCDPSession", page={"guid": page}))["session"]["guid"])
