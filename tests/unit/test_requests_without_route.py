"""Every path with every method: whatever asks, also for what no route takes, meets the same rules."""

import itertools
import json
import re
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import FastAPI

from pwgrid.common.errors import Refused
from pwgrid.proxy.api.app import create_app
from pwgrid.proxy.policy.access import Access
from pwgrid.tokens.tokens import Role, Tokens, make
from tests.support.routes import CLIENT, OPEN, OPERATOR, ROUTES, in_app
from tests.unit.test_api import Grid

SETTINGS = "s3cret"
CI, CI_TEXT = make("ci", Role.CLIENT, 0, (), 0.0)

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND")
PATHS = sorted({path for _, path in ROUTES})
UNKNOWN = ("/none", "/v1", "/v1/none", "/metrics/none", "/v1/sessions/a/b", "//health", "/health//", "//")
LOCAL = ("127.0.0.1", 8080)

Answer = tuple[int, dict[str, str], bytes]

_peers = itertools.count()


@pytest.fixture(scope="module")
def api() -> FastAPI:
    async def refuses(*_: Any) -> None:
        raise Refused("no")

    grid = Grid()
    grid.master = SimpleNamespace(ask=refuses)  # type: ignore[attr-defined]
    access = Access(SETTINGS, loopback_listeners=frozenset({LOCAL}), tokens=lambda: Tokens([CI]))
    return create_app(grid, access)  # type: ignore[arg-type]


async def ask(api: FastAPI, method: str, target: str, token: str = "", **headers: str) -> Answer:
    path, _, query = target.partition("?")
    given = {"host": "localhost"} | ({"authorization": f"Bearer {token}"} if token else {}) | headers
    scope = {"type": "http", "method": method, "path": path, "query_string": query.encode(), "server": LOCAL}
    scope |= {"client": (f"10.0.{next(_peers)}", 1)}  # each wrong token is its peer's first
    scope |= {"headers": [(name.encode(), value.encode()) for name, value in given.items()], "http_version": "1.1"}
    said: list[dict[str, Any]] = []

    async def has_come() -> dict[str, Any]:
        return {"type": "http.request"}

    async def send(message: Any) -> None:
        said.append(message)

    await api(scope, has_come, send)
    answered = {name.decode().lower(): value.decode() for name, value in said[0]["headers"]}
    return said[0]["status"], answered, b"".join(each.get("body", b"") for each in said[1:])


def target_of(path: str) -> str:
    return re.sub(r"\{\w+(:path)?\}", "none", path)


def allowed_at(path: str) -> set[str]:
    methods = {method for method, at in ROUTES if at == path} | {"OPTIONS"}
    return methods | ({"HEAD"} if "GET" in methods else set())


def role_at(path: str) -> str:
    (role,) = {role for (_, at), role in ROUTES.items() if at == path}
    return role


def error_in(answer: Answer) -> str:
    _, headers, body = answer
    assert headers["content-type"] == "application/json"
    return str(json.loads(body)["error"])


def check_headers(path: str, headers: dict[str, str]) -> None:
    assert not [name for name in headers if name.startswith("access-control-")]
    assert ("location" in headers) <= (path == "/dashboard/")


def test_the_table_has_every_route_of_the_api() -> None:
    assert in_app() == set(ROUTES)


@pytest.mark.parametrize("path", [*PATHS, *UNKNOWN])
async def test_no_host_but_the_grid_s_own_is_answered(api: FastAPI, path: str) -> None:
    targets = (target_of(path), f"{target_of(path)}?token={SETTINGS}", f"{target_of(path)}/?token={SETTINGS}")
    for method, target in itertools.product(METHODS, targets):
        answer = await ask(api, method, target, host="evil.example")
        assert answer[0] == 403, (method, target)
        assert "ALLOWED_HOSTS" in error_in(answer)
        assert SETTINGS not in str(answer)
        check_headers("", answer[1])


@pytest.mark.parametrize("path", PATHS)
async def test_each_path_takes_its_role_and_its_methods_whatever_is_asked_for(api: FastAPI, path: str) -> None:
    role, allowed, target = role_at(path), allowed_at(path), target_of(path)
    everybody = (("nobody", ""), ("wrong", "x" * 20), (CLIENT, CI_TEXT), (OPERATOR, SETTINGS))
    for method, (who, token) in itertools.product(METHODS, everybody):
        answer = await ask(api, method, target, token)
        status, headers, _ = answer
        check_headers(path, headers)
        if role != OPEN and who in ("nobody", "wrong"):
            assert (status, bool(error_in(answer))) == (401, True)
        elif role == OPERATOR and who == CLIENT:
            assert (status, "takes an operator's" in error_in(answer)) == (403, True)
        elif method == "OPTIONS":
            assert (status, set(headers["allow"].split(", "))) == (204, allowed)
        elif method in allowed:
            assert status not in (401, 403, 405)
        else:
            assert (status, set(headers["allow"].split(", "))) == (405, allowed)
            assert headers["allow"] in error_in(answer)
        if path not in ("/", "/dashboard", "/dashboard/"):
            assert (await ask(api, method, f"{target}/", token))[0] == status, method


@pytest.mark.parametrize("path", PATHS)
async def test_a_web_page_of_another_site_is_answered_by_open_paths_alone(api: FastAPI, path: str) -> None:
    for method in METHODS:
        status, headers, _ = await ask(api, method, target_of(path), SETTINGS, origin="http://evil.example")
        check_headers(path, headers)
        assert (status == 403) == (role_at(path) != OPEN)


@pytest.mark.parametrize("path", [path for path in PATHS if "GET" in allowed_at(path)])
async def test_head_gets_what_get_does(api: FastAPI, path: str) -> None:
    (status, headers, _), (of_head, its_headers, _) = [
        await ask(api, method, target_of(path), SETTINGS) for method in ("GET", "HEAD")
    ]
    assert (of_head, its_headers.keys()) == (status, headers.keys())


@pytest.mark.parametrize("path", UNKNOWN)
async def test_an_unknown_path_says_what_to_do(api: FastAPI, path: str) -> None:
    for method, token in itertools.product(METHODS, (CI_TEXT, SETTINGS)):
        assert (await ask(api, method, path))[0] == 401  # as a connect there
        answer = await ask(api, method, path, token)
        assert answer[0] == 404
        assert error_in(answer) == (
            f"there is nothing at {path}: a Playwright client connects to ws://<host>:<port>/?browser=chromium; "
            "/docs has the paths of the API, and /dashboard shows the grid"
        )


async def test_options_of_the_server_itself_are_those_of_its_root(api: FastAPI) -> None:
    status, headers, _ = await ask(api, "OPTIONS", "*")
    assert (status, headers["allow"]) == (204, "GET, HEAD, OPTIONS, POST")
    assert (await ask(api, "GET", "*", SETTINGS))[0] == 404


async def test_a_websocket_that_no_route_takes_is_refused_as_any_other_request(api: FastAPI) -> None:
    for headers, expected in (
        ([(b"host", b"evil.example")], 403),
        ([(b"host", b"localhost")], 401),
        ([(b"host", b"localhost"), (b"x-hub-secret", SETTINGS.encode()), (b"origin", b"http://evil.example")], 403),
        ([(b"host", b"localhost"), (b"x-hub-secret", SETTINGS.encode())], 404),
    ):
        said: list[dict[str, Any]] = []

        async def send(message: Any, said: list[dict[str, Any]] = said) -> None:
            said.append(message)

        async def connects() -> dict[str, Any]:
            return {"type": "websocket.connect"}

        scope = {"type": "websocket", "path": "/v1/live/a/b", "query_string": b"", "headers": headers, "server": LOCAL}
        await api({**scope, "extensions": {"websocket.http.response": {}}}, connects, send)
        assert said[0]["status"] == expected
        assert json.loads(said[1]["body"])["error"]
