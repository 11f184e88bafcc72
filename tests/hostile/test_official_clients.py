"""The default guard refuses nothing that official clients do; each uses its whole API, and its messages are noted."""

import asyncio
from pathlib import Path

import pytest
from playwright._impl._driver import compute_driver_executable
from playwright.async_api import Playwright

from tests.hostile import messages
from tests.hostile.official_client import use_everything
from tests.hostile.test_messages import calls
from tests.support.recording_relay import recording_relay
from tests.support.stand_in_proxy import browser_server

BOUND_S = 120.0
NO_CLIENT_SENDS = {
    "Browser.close",  # a client that is connected closes its connection
    "Browser.killForTests",
    "Browser.defaultUserAgentForTest",
    "Debugger.enable",
    "Route.redirectNavigationRequest",
    "Page.setDockTile",
    "Worker.disconnect",
    "APIRequestContext.fetchLog",
}
NOT_IN_THIS_BROWSER = {"Frame.webmcpTools", "Frame.webmcpCallTool"}
SENDABLE = {".".join(call) for call in calls(messages.ALLOWED)} - NO_CLIENT_SENDS - NOT_IN_THIS_BROWSER

NOT_TRIED_IN_PYTHON = {
    "BindingCall.reject",
    "Browser.disconnectFromReusedContext",
    "Browser.newContextForReuse",
    "BrowserContext.exposeConsoleApi",
    "BrowserContext.registerSelectorEngine",
    "BrowserContext.setHTTPCredentials",
    "BrowserContext.setWebSocketInterceptionPatterns",
    "BrowserContext.startRecording",
    "BrowserContext.stopRecording",
    "Debugger.next",
    "Debugger.runTo",
    "Disposable.dispose",
    "Frame.ariaSnapshotJSON",
    "JSHandle.getPropertyList",
    "Page.cancelPickLocator",
    "Page.expectScreenshot",
    "Page.pickLocator",
    "Page.screencastRemoveOverlay",
    "Page.startCSSCoverage",
    "Page.startJSCoverage",
    "Page.stopCSSCoverage",
    "Page.stopJSCoverage",
    "WebSocketRoute.connect",
    "WebSocketRoute.sendToServer",
    "Worker.updateSubscription",
}
"""Most of these no Python client can send; the others are as in Node."""


@pytest.mark.parametrize("guard", ["compatible", "strict"])
async def test_all_that_playwrights_node_client_does_works(guard: str, tmp_path: Path) -> None:
    node, cli = compute_driver_executable()
    slots = 5 if guard == "compatible" else 1
    async with (
        browser_server(max_concurrent_sessions=slots, client_guard=guard) as watched,
        recording_relay(watched.endpoint) as relay,
    ):
        script = str(Path(__file__).with_name("official_client.cjs"))
        process = await asyncio.create_subprocess_exec(
            node, script, str(Path(cli).parent), relay.endpoint, str(tmp_path), stderr=asyncio.subprocess.PIPE
        )
        async with asyncio.timeout(BOUND_S):
            _, errors = await process.communicate()
        assert process.returncode == 0, errors.decode()
    assert relay.refusals == []
    assert SENDABLE - relay.sent == set()


async def test_all_that_playwrights_python_client_does_works(playwright: Playwright, tmp_path: Path) -> None:
    async with browser_server(max_concurrent_sessions=5) as watched, recording_relay(watched.endpoint) as relay:
        async with asyncio.timeout(BOUND_S):
            await use_everything(playwright, relay.endpoint, tmp_path)
    assert relay.refusals == []
    assert SENDABLE - relay.sent <= NOT_TRIED_IN_PYTHON
