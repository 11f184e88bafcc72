"""Sessions and workers over the HTTP API, against a real grid."""

import json
import urllib.request
from typing import Any

import pytest
from playwright.async_api import Error, Playwright

from tests.support.grid import Grid, eventually_async


def api(grid: Grid, path: str, method: str = "GET", **headers: str) -> tuple[int, Any]:
    request = urllib.request.Request(grid.http + path, method=method, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=20) as response:
            return response.status, json.loads(response.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


async def the_running_one(grid: Grid) -> dict[str, Any]:
    """The record of the only session: a client is served before it is written."""
    path = "/v1/sessions?status=running"
    (session,) = await eventually_async(lambda: api(grid, path)[1]["sessions"], "its start is on record")
    found: dict[str, Any] = session
    return found


async def test_a_session_is_recorded_from_its_start_to_its_end(grid: Grid, playwright: Playwright) -> None:
    browser = await playwright.chromium.connect(grid.endpoint)
    session = await the_running_one(grid)
    assert session["client"].startswith("127.0.0.1:")
    await (await browser.new_page()).evaluate("1")
    await browser.close()

    def ended() -> Any:
        _, found = api(grid, f"/v1/sessions/{session['id']}")
        return found if found["status"] != "running" else None

    found = await eventually_async(ended, "the session has ended")
    assert (found["status"], found["reason"]) == ("completed", "client disconnected")
    assert found["createdAt"] <= found["startedAt"] <= found["endedAt"]
    assert found["bytesIn"] > 0
    assert found["bytesOut"] > 0


async def test_an_operator_ends_a_session_and_the_client_is_told_why(grid: Grid, playwright: Playwright) -> None:
    browser = await playwright.chromium.connect(grid.endpoint)
    session = await the_running_one(grid)
    assert api(grid, f"/v1/sessions/{session['id']}", "DELETE") == (202, {"ending": session["id"]})
    await eventually_async(lambda: not browser.is_connected() or None, "the client sees the end")
    with pytest.raises(Error, match="the grid closed this session: an operator ended it"):
        await browser.new_context()

    def ended() -> Any:
        _, found = api(grid, f"/v1/sessions/{session['id']}")
        return found if found["status"] != "running" else None

    found = await eventually_async(ended, "the session has ended")
    assert (found["status"], found["reason"]) == ("ended", "ended by operator")
    status, body = api(grid, f"/v1/sessions/{session['id']}", "DELETE")
    assert (status, "has ended already" in body["error"]) == (409, True)


async def test_launch_options_that_nobody_heeds_are_noted_on_the_session_and_counted(
    grid: Grid, playwright: Playwright
) -> None:
    counted = api(grid, "/v1/status")[1]["clients"]["optionsIgnored"]
    options = {"devtools": True, "chromiumSandbox": True, "stealth": "s3cret", "handleSIGINT": False}
    browser = await playwright.chromium.connect(
        grid.endpoint, headers={"x-playwright-launch-options": json.dumps(options)}
    )
    session = await the_running_one(grid)
    assert session["ignoredOptions"] == ["chromiumSandbox", "devtools", "stealth"]
    assert (session["isolation"], session["protocol"]) == ("context", "playwright")
    await browser.close()
    await (await playwright.chromium.connect(grid.endpoint)).close()
    assert api(grid, "/v1/status")[1]["clients"]["optionsIgnored"] == counted + 1
    assert "launch options ignored: chromiumSandbox, devtools, stealth" in grid.command("sessions").stdout
    assert f"launch_options_ignored session={session['id']}" in grid.output()
    assert "s3cret" not in grid.output()


async def test_sessions_are_paged_and_filtered(grid: Grid, playwright: Playwright) -> None:
    for _ in range(3):
        await (await playwright.chromium.connect(grid.endpoint)).close()
    _, first = api(grid, "/v1/sessions?limit=2&browserType=chromium")
    _, second = api(grid, f"/v1/sessions?limit=2&browserType=chromium&cursor={first['cursor']}")
    ids = [session["id"] for page in (first, second) for session in page["sessions"]]
    assert len(ids) == len(set(ids)) >= 3
    assert api(grid, "/v1/sessions?browserType=firefox")[1]["sessions"] == []
    _, all_of_them = api(grid, "/v1/sessions?status=&browserType=&workerId=&limit=&cursor=")
    assert {session["id"] for session in all_of_them["sessions"]} >= set(ids)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/sessions/none", 404),
        ("DELETE", "/v1/sessions/none", 404),
        ("GET", "/v1/sessions?limit=none", 400),
        ("GET", "/v1/sessions?limit=0", 400),
        ("GET", "/v1/sessions?cursor=none", 400),
        ("GET", "/v1/sessions?status=none", 400),
        ("GET", "/v1/sessions?browserType=none", 400),
        ("POST", "/v1/workers/none/drain", 404),
        ("PUT", "/v1/sessions", 405),
    ],
)
def test_bad_requests_are_refused_with_a_sentence(grid: Grid, method: str, path: str, status: int) -> None:
    got, body = api(grid, path, method)
    assert got == status
    assert body["error"]


def test_a_web_page_may_not_use_the_api(grid: Grid) -> None:
    status, _ = api(grid, "/v1/sessions", Origin="https://evil.example")
    assert status == 403


def test_the_workers_are_listed(grid: Grid) -> None:
    _, found = api(grid, "/v1/workers")
    assert {worker["id"] for worker in found["workers"]} >= {
        worker["id"] for worker in grid.status()["workers"] if worker["status"] == "available"
    }
