"""The API without a network, and without a registry that answers."""

import asyncio
import itertools
import json
import re
import subprocess
import sys
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import FastAPI
from structlog.testing import capture_logs

from pwgrid.common.errors import RegistryUnavailable
from pwgrid.common.histogram import Histogram
from pwgrid.proxy.api import bounded_body
from pwgrid.proxy.api.app import create_app
from pwgrid.proxy.connect.connect_metrics import ConnectFigures
from pwgrid.proxy.policy.access import Access
from pwgrid.proxy.policy.arrival import Arrivals
from pwgrid.proxy.protocol_description import ProtocolDescription
from pwgrid.proxy.readiness_check import Readiness
from pwgrid.proxy.roster import Roster
from pwgrid.settings.model import Settings
from tests.support.lone_host import LoneHost
from tests.support.state_frames import told_of_pool


class Away:
    """Stands in for a registry while Redis is away."""

    client = SimpleNamespace(exchanges=Histogram((1.0,)))

    def now(self) -> float:
        return 100.0

    def __getattr__(self, name: str) -> Any:
        async def fails(*_arguments: Any, **_named: Any) -> None:
            raise RegistryUnavailable("Redis is away")

        return fails


class Grid:
    roster = Roster()
    registry = Away()
    queue = SimpleNamespace(pools=list)
    settings = Settings()
    gateway = SimpleNamespace(figures=ConnectFigures(), forwarding=None, from_other_hosts=None)
    hosts = LoneHost(roster)
    readiness = Readiness(settings, roster, registry)  # type: ignore[arg-type]
    protocol = ProtocolDescription(Path("/nonexistent"), roster, None)  # type: ignore[arg-type]


Receive = Callable[[], Coroutine[Any, Any, dict[str, Any]]]


async def has_come() -> dict[str, Any]:
    """A request without a body."""
    return {"type": "http.request"}


async def ask(
    api: FastAPI,
    path: str,
    method: str = "GET",
    headers: Sequence[tuple[bytes, bytes]] = ((b"host", b"grid"),),
    receive: Receive = has_come,
    client: tuple[str, int] | None = None,
) -> tuple[int, bytes]:
    """One request without a network: status and body."""
    said: list[dict[str, Any]] = []
    path, _, query = path.partition("?")
    scope = {"type": "http", "method": method, "path": path, "query_string": query.encode(), "headers": list(headers)}
    scope["client"] = client

    async def send(message: Any) -> None:
        said.append(message)

    await api(scope, receive, send)
    return said[0]["status"], said[1]["body"]


async def get(api: FastAPI, path: str, **how: Any) -> tuple[int, dict[str, Any]]:
    """One request that is answered with JSON."""
    status, body = await ask(api, path, **how)
    return status, json.loads(body)


@pytest.mark.parametrize("path", ["/v1/status", "/v1/workers", "/v1/sessions", "/v1/sessions/a"])
async def test_what_needs_the_registry_says_that_it_is_away(path: str) -> None:
    api = create_app(Grid(), Access())  # type: ignore[arg-type]
    assert await get(api, path) == (503, {"error": "the registry does not answer: Redis is away", "retryAfterS": 5})


async def test_metrics_tell_that_redis_does_not_answer() -> None:
    api = create_app(Grid(), Access())  # type: ignore[arg-type]
    status, body = await ask(api, "/metrics")
    assert status == 200
    assert b"\npwgrid_redis_up 0.0\n" in body
    active = await get(api, "/metrics", headers=((b"host", b"grid"), (b"accept", b"application/json")))
    assert active == (503, {"error": "the registry does not answer: Redis is away", "retryAfterS": 5})


async def test_answers_are_counted_by_route_and_never_by_what_a_client_writes() -> None:
    api = create_app(Grid(), Access())  # type: ignore[arg-type]
    for path in ("/health", "/health", "/health/ready", "/v1/sessions/a", "/v1/sessions/b", "/none", "/playwright/x/y"):
        await ask(api, path)
    await ask(api, "/v1/workers/none/drain", method="POST")
    await ask(api, "/health", method="BREW")
    found = re.findall(
        r"^pwgrid_proxy_http_requests_total\{(.*)\} (.*)$", (await ask(api, "/metrics"))[1].decode(), re.M
    )
    assert {tuple(re.findall('"(.*?)"', labels)): float(count) for labels, count in found} == {
        ("GET", "/health", "200"): 2,
        ("GET", "/health/ready", "503"): 1,
        ("GET", "/v1/sessions/{id}", "503"): 2,
        ("GET", "/playwright/{path:path}", "426"): 1,
        ("GET", "unknown", "404"): 1,
        ("POST", "/v1/workers/{id}/drain", "404"): 1,
        ("unknown", "/health", "405"): 1,
    }


async def test_a_pool_is_shown_as_the_master_has_told_of_it() -> None:
    grid, told = Grid(), {"browserType": "chromium", "wanted": 2, "available": 1, "reason": "no browser"}
    told |= {"labels": ["App:chromium"], "starting": 1, "spare": 3, "draining": 4, "drainTimeouts": 6}
    told |= {"slots": 5, "lifetime": 50, "isolation": "process"}
    told |= {"playwright": "1.58", "onDemand": True}
    grid.roster = Roster()
    grid.hosts = LoneHost(grid.roster)
    grid.roster.replace({"pools": {"fast": told_of_pool(**told)}})
    api = create_app(grid, Access())  # type: ignore[arg-type]
    assert await get(api, "/v1/pools") == (200, {"pools": [{"name": "fast", **told, "hosts": {}}]})


async def test_a_pool_s_drain_that_is_repeated_cuts_no_session() -> None:
    """A client repeats it after a 503 with Retry-After, which may have come too late: the master had heard it."""
    asked: list[tuple[str, dict[str, Any]]] = []

    async def answers(name: str, data: dict[str, Any]) -> dict[str, Any]:
        asked.append((name, data))
        return {"draining": ["a"]}

    grid = Grid()
    grid.master = SimpleNamespace(ask=answers)  # type: ignore[attr-defined]
    api = create_app(grid, Access())  # type: ignore[arg-type]
    assert await get(api, "/v1/pools/chromium/drain", method="POST") == (202, {"draining": ["a"]})
    assert asked == [("drain", {"pool": "chromium", "reason": "operator", "once": True})]


WITH_A_BODY = [
    ("POST", "/session/borrow"),
    ("POST", "/session/return"),
    ("PATCH", "/v1/leases/a"),
    ("POST", "/v1/pools/chromium/scale"),
]


@pytest.mark.parametrize(("method", "path"), WITH_A_BODY)
async def test_a_body_that_does_not_arrive_is_not_waited_for(
    method: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounded_body, "BODY_S", 0.05)

    async def never() -> dict[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError

    api = create_app(Grid(), Access("s3cret"))  # type: ignore[arg-type]
    async with asyncio.timeout(20):
        answer = await get(api, path, method=method, receive=never)
    assert answer == (408, {"error": "the body did not arrive within 0.05 s"})


@pytest.mark.parametrize(("method", "path"), WITH_A_BODY)
async def test_a_client_that_leaves_within_its_body_is_no_failure_of_the_grid(method: str, path: str) -> None:
    async def leaves() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    api = create_app(Grid(), Access())  # type: ignore[arg-type]
    with capture_logs() as logs:
        assert (await ask(api, path, method=method, receive=leaves))[0] == 499
    assert logs == []


async def test_what_needs_no_registry_goes_on_without_it() -> None:
    api = create_app(Grid(), Access())  # type: ignore[arg-type]
    assert (await get(api, "/health"))[0] == 200
    assert (await get(api, "/health/ready"))[0] == 503


@pytest.mark.parametrize(
    ("query", "sentence"),
    [
        ("limit=0", "bad query: limit: Input should be greater than or equal to 1"),
        ("limit=1001", "bad query: limit: Input should be less than or equal to 1000"),
        ("limit=none", "bad query: limit: Input should be a valid integer"),
        (
            "status=none",
            "bad query: status: Input should be 'pending', 'running', 'completed', 'ended', 'failed' or 'expired'",
        ),
        ("browserType=x", "bad query: browserType: Input should be 'chromium', 'firefox' or 'webkit'"),
    ],
)
async def test_a_bad_query_is_told_what_may_be_asked(query: str, sentence: str) -> None:
    status, body = await get(create_app(Grid(), Access()), f"/v1/sessions?{query}")  # type: ignore[arg-type]
    assert status == 400
    assert body["error"].startswith(sentence)


@pytest.mark.parametrize(("method", "path"), WITH_A_BODY)
async def test_a_body_that_is_no_json_object_is_one_plain_sentence(method: str, path: str) -> None:
    api = create_app(Grid(), Access())  # type: ignore[arg-type]
    sentence = "bad body: send one JSON object, with Content-Type: application/json"
    contents = (b"", b"{", b"[]", b'"a"', b"null", b"\xff", b"[" * 10_000)
    kinds = ((), ((b"content-type", b"application/json"),), ((b"content-type", b"application/x-www-form-urlencoded"),))
    for content, kind in itertools.product(contents, kinds):

        async def body(content: bytes = content) -> dict[str, Any]:
            return {"type": "http.request", "body": content}

        headers = ((b"host", b"grid"), *kind)
        assert await get(api, path, method=method, headers=headers, receive=body) == (400, {"error": sentence})


async def test_the_endpoint_is_told_as_playwrights_own_server_does_without_a_token() -> None:
    api = create_app(Grid(), Access("s3cret"))  # type: ignore[arg-type]
    assert await get(api, "/json") == (200, {"wsEndpointPath": "/"})


@pytest.mark.parametrize("path", ["/json/version", "/json/version/"])
async def test_a_client_of_the_devtools_protocol_is_sent_to_a_session_s_url_each_time(path: str) -> None:
    api = create_app(Grid(), Access("s3cret"))  # type: ignore[arg-type]
    urls = []
    for _ in range(2):
        status, answer = await get(api, f"{path}?token=s3cret&keep=300", headers=[(b"host", b"grid:8080")])
        assert (status, answer["Protocol-Version"]) == (200, "1.3")
        urls.append(answer["webSocketDebuggerUrl"])
    assert all(
        re.fullmatch(r"ws://grid:8080/devtools/browser/[0-9a-f]{16}\?token=s3cret&keep=300", url) for url in urls
    )
    assert urls[0] != urls[1]


@pytest.mark.parametrize("path", ["/json/list", "/json/list/"])
async def test_the_page_of_a_new_session_is_listed_each_time(path: str) -> None:
    api = create_app(Grid(), Access("s3cret"))  # type: ignore[arg-type]
    ids = []
    for _ in range(2):
        listed = json.loads((await ask(api, f"{path}?token=s3cret&keep=300"))[1])
        (page,) = listed
        assert (page["type"], page["url"]) == ("page", "about:blank")
        url = f"ws://grid/devtools/page/{page['id']}?token=s3cret&keep=300"
        assert page["webSocketDebuggerUrl"] == url
        ids.append(page["id"])
    assert ids[0] != ids[1]


@pytest.mark.parametrize("query", ["", "?about:blank"])
async def test_a_new_page_is_that_of_a_new_session(query: str) -> None:
    _, page = await get(create_app(Grid(), Access()), f"/json/new{query}", method="PUT")  # type: ignore[arg-type]
    assert page["webSocketDebuggerUrl"] == f"ws://grid/devtools/page/{page['id']}"


async def test_it_is_told_of_the_browser_once_a_worker_has_one() -> None:
    grid = Grid()
    grid.roster = Roster()
    workers = [{"id": "0a1b", "browserType": "chromium", "status": "available", "browserVersion": "156.0.7000.1"}]
    grid.roster.replace({"workers": workers})
    _, answer = await get(create_app(grid, Access()), "/json/version")  # type: ignore[arg-type]
    assert answer["Browser"] == "Chrome/156.0.7000.1"
    assert "HeadlessChrome/156.0.0.0" in answer["User-Agent"]


async def test_the_trusted_reverse_proxy_s_scheme_is_in_the_url() -> None:
    access = Access(arrivals=Arrivals(trusted=("10.0.0.1",)))
    api = create_app(Grid(), access)  # type: ignore[arg-type]
    told = [(b"host", b"grid"), (b"x-forwarded-proto", b"https"), (b"x-forwarded-for", b"192.0.2.7")]
    _, answer = await get(api, "/json/version", headers=told, client=("10.0.0.1", 5))
    assert answer["webSocketDebuggerUrl"].startswith("wss://grid/devtools/browser/")


async def test_what_chromium_has_and_the_grid_has_not_is_said() -> None:
    api = create_app(Grid(), Access("s3cret"))  # type: ignore[arg-type]
    for path, status, says in (
        ("/json/new?https://example.com", 404, "Page.navigate"),
        ("/json/close/1A", 404, "DELETE /v1/sessions/{id}"),
        ("/cdp", 426, "connect a Playwright client"),
        ("/devtools/browser/x", 426, "connect a Playwright client"),
    ):
        found = await get(api, path)
        assert (found[0], says in found[1]["error"]) == (status, True), found


@pytest.mark.parametrize("path", ["/session", "/wd/hub/session"])
async def test_a_webdriver_client_is_told_in_the_form_of_its_protocol(path: str) -> None:
    status, said = await get(create_app(Grid(), Access()), path, method="POST")  # type: ignore[arg-type]
    assert (status, said["value"]["error"]) == (400, "session not created")
    assert "speaks no WebDriver" in said["value"]["message"] == said["error"]


def test_a_proxy_starts_without_the_models_that_only_the_api_s_description_is_made_of() -> None:
    built = "OpenAPI.__pydantic_complete__, Problem.__pydantic_complete__"
    models = "from fastapi.openapi.models import OpenAPI; from pwgrid.proxy.api.models import Problem"
    imports = f"import pwgrid.proxy.api.app; {models}"
    done = subprocess.run(
        [sys.executable, "-c", f"{imports}; print({built})"], capture_output=True, text=True, check=True
    )
    assert done.stdout == "False True\n"


async def test_the_api_describes_itself() -> None:
    api = create_app(Grid(), Access("s3cret"))  # type: ignore[arg-type]
    status, described = await get(api, "/openapi.json")
    assert status == 200
    assert {"/health", "/metrics", "/v1/status", "/v1/workers", "/v1/sessions/{id}"} <= set(described["paths"])
    answers = [each["responses"] for path in described["paths"].values() for each in path.values()]
    assert not [each for each in answers if "422" in each]  # FastAPI's own, where a route names no other
    worker = described["components"]["schemas"]["Worker"]["properties"]
    assert {"browserType", "rssMib", "wsEndpoint"} <= set(worker)
    assert (await get(api, "/v1/status"))[0] == 401
