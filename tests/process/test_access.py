"""Tokens on a running grid: every endpoint with every role, limits at connect, and where a token must never be seen."""

import contextlib
import http.client
import itertools
import json
import os
import re
import signal
import socket
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pwgrid.cli import token as tokens
from pwgrid.proxy.api.app import create_app
from pwgrid.proxy.api.bounded_body import MAX_BODY_BYTES
from pwgrid.proxy.policy.access import MOST_FAILURES, WRONG_OR_REVOKED, Access
from pwgrid.runtime.find_grids import find_running
from pwgrid.tokens.tokens import Role
from tests.support import raw
from tests.support.grid import Grid, eventually, running_grid
from tests.support.routes import CLIENT, OPEN, OPERATOR, ROUTES, in_app

OPERATORS = "s3cret-of-the-settings"
WRONG = "pwg_00000000_" + "0" * 48

REVERSE_PROXY = "127.2.0.1"
"""The address of the one whose header fields count."""

POOL = """
[[pools]]
name = "chromium"
slots = 8
labels = ["AppA:Chromium:UAT"]
"""

_peers = itertools.count(2)


def new_peer() -> str:
    """An address of this host that nobody has failed from."""
    number = next(_peers)
    return f"127.1.{number // 250}.{number % 250 + 1}"


@dataclass(frozen=True)
class Guarded:
    """A grid with tokens: their texts by what they are called here."""

    grid: Grid
    place: tokens.Place
    texts: dict[str, str]

    def ask(
        self, method: str, path: str, token: str = "", *, peer: str = "", body: str | None = None, **headers: str
    ) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body of an answer of the API."""
        connection = http.client.HTTPConnection(
            "127.0.0.1", self.grid.port, timeout=30, source_address=(peer or new_peer(), 0)
        )
        given = {"Authorization": f"Bearer {token}"} if token else {}
        with contextlib.closing(connection):
            connection.request(method, path, body, given | headers)
            answer = connection.getresponse()
            return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()

    def json(self, path: str, token: str, method: str = "GET", sent: object = None) -> tuple[int, Any]:
        more = {} if sent is None else {"body": json.dumps(sent), "content-type": "application/json"}
        status, _, body = self.ask(method, path, token, **more)
        return status, json.loads(body)

    def connect(self, token: str = "", target: str = "/", peer: str = "", **headers: str) -> socket.socket:
        """A connection on which an upgrade was asked for."""
        sock = socket.create_connection(("127.0.0.1", self.grid.port), 30, (peer or new_peer(), 0))
        if token:
            headers["Authorization"] = f"Bearer {token}"
        sock.sendall(raw.head(target=target, **headers))
        return sock

    def answer(self, token: str = "", target: str = "/", **more: str) -> tuple[int, dict[str, Any]]:
        """Status and body of the answer to an upgrade; of one that is served the status alone."""
        with self.connect(token, target, **more) as sock:
            first = sock.recv(65536)
            if first.startswith(b"HTTP/1.1 101 "):
                return 101, {}
            head, _, body = (first + raw.read_all(sock)).partition(b"\r\n\r\n")
            return int(head.split()[1]), json.loads(body)


@pytest.fixture(scope="module")
def guarded() -> Iterator[Guarded]:
    with tempfile.TemporaryDirectory(prefix="pgtok-") as directory:
        config = Path(directory) / "grid.toml"
        config.write_text(POOL)
        environment = {
            "PWGRID_CONFIG": str(config),
            "PWGRID_TOKEN": OPERATORS,
            "WORKER_SELECT_TIMEOUT": "0.5",
            "LOG_LEVEL": "debug",
            "TRUSTED_PROXIES": REVERSE_PROXY,
            "FORWARDED_ALLOW_IPS": "*",  # uvicorn's own variable, which is none of this grid's settings
        }
        with running_grid(environment=environment, fake=True) as grid:
            place = tokens.Place(config.with_name("tokens.json"))

            def made(name: str, role: Role, most: int = 0, *pools: str) -> str:
                return tokens.create(place, name, role, most, pools)[0]

            texts = {
                CLIENT: made("ci", Role.CLIENT),
                OPERATOR: made("ops", Role.OPERATOR),
                "settings": OPERATORS,
                "other": made("other", Role.CLIENT),
                "two": made("two", Role.CLIENT, 2),
                "elsewhere": made("elsewhere", Role.CLIENT, 0, "appa"),
                "revoked": made("gone", Role.OPERATOR),
            }
            tokens.revoke(place, "gone")
            yield Guarded(grid, place, texts)


def test_the_table_has_every_route_of_the_api() -> None:
    assert in_app() == set(ROUTES)


@pytest.mark.parametrize("who", ["nobody", "wrong", "revoked", CLIENT, OPERATOR, "settings"])
def test_every_endpoint_answers_every_role_as_the_table_says(guarded: Guarded, who: str) -> None:
    text = {"nobody": "", "wrong": WRONG}.get(who) if who in ("nobody", "wrong") else guarded.texts[who]
    for (method, path), least in ROUTES.items():
        target = re.sub(r"\{\w+(:path)?\}", "none", path)
        status, headers, body = guarded.ask(method, target, text or "")
        expected = None
        if least != OPEN and who in ("nobody", "wrong", "revoked"):
            expected = 401
        elif least == OPERATOR and who == CLIENT:
            expected = 403
        if expected is None:
            assert status not in (401, 403, 429, 500), (who, method, path, status)
        else:
            assert status == expected, (who, method, path)
            assert json.loads(body)["error"]
            assert ("www-authenticate" in headers) == (expected == 401)


def with_a_body() -> list[tuple[str, str]]:
    """Method and path of each route that reads a body."""
    paths = create_app(None, Access()).openapi()["paths"]  # type: ignore[arg-type] # no route is called
    return [
        (method.upper(), path)
        for path, methods in paths.items()
        for method, told in methods.items()
        if "requestBody" in told
    ]


def test_nobody_has_the_proxy_take_more_of_a_body_than_it_may_have(guarded: Guarded) -> None:
    """Without a token: a body is read before anything of its request is checked."""
    found = with_a_body()
    assert len(found) > 3
    for method, path in found:
        target, announced = re.sub(r"\{\w+\}", "none", path), {"Content-Length": "1000000000"}
        with socket.create_connection(("127.0.0.1", guarded.grid.port), 30, (new_peer(), 0)) as sock:
            sock.sendall(raw.head(method, target, Upgrade=None, Connection=None, **announced))
            sock.sendall(b"[" * (MAX_BODY_BYTES + 1))  # it would wait for the rest
            answer = raw.read_all(sock)
        assert answer.startswith(b"HTTP/1.1 413 "), (method, path, answer)
        assert f"the body is longer than {MAX_BODY_BYTES} bytes".encode() in answer


@pytest.mark.parametrize("target", ["/", "/?browser=chromium", "/?token={token}"])
@pytest.mark.parametrize(
    ("who", "status"),
    [("nobody", 401), ("wrong", 401), ("revoked", 401), (CLIENT, 101), (OPERATOR, 101), ("settings", 101)],
)
def test_every_role_connects_and_nobody_else(guarded: Guarded, who: str, status: int, target: str) -> None:
    text = {"nobody": "", "wrong": WRONG}.get(who, guarded.texts.get(who, ""))
    if "{token}" in target:
        assert guarded.answer(target=target.format(token=text))[0] == status
        assert text == "" or guarded.answer(x_hub_secret=text)[0] == status
    else:
        assert guarded.answer(text, target)[0] == status


def test_a_workers_own_endpoint_takes_a_token_too(guarded: Guarded) -> None:
    _, found = guarded.json("/v1/workers", OPERATORS)
    path = found["workers"][0]["wsEndpoint"].partition("/playwright/")[2]
    assert guarded.answer(target=f"/playwright/{path}")[0] == 401
    assert guarded.answer(guarded.texts["elsewhere"], f"/playwright/{path}")[0] == 403
    assert guarded.answer(guarded.texts[CLIENT], f"/playwright/{path}")[0] == 101


def test_a_client_sees_and_ends_its_own_sessions_alone(guarded: Guarded) -> None:
    mine, other = guarded.texts[CLIENT], guarded.texts["other"]
    with guarded.connect(mine) as one, guarded.connect(other) as another, guarded.connect(OPERATORS) as third:
        for sock in (one, another, third):
            assert sock.recv(4096).startswith(b"HTTP/1.1 101 ")

        def running(token: str) -> list[Any]:
            return list(guarded.json("/v1/sessions?status=running", token)[1]["sessions"])

        eventually(lambda: len(running(OPERATORS)) == 3, "all are on record")
        assert sorted(each["token"] for each in running(guarded.texts[OPERATOR])) == ["PWGRID_TOKEN", "ci", "other"]
        (ours,), (theirs,) = running(mine), running(other)
        assert (ours["token"], theirs["token"]) == ("ci", "other")
        assert guarded.json(f"/v1/sessions/{ours['id']}", mine)[0] == 200
        for method in ("GET", "DELETE"):
            status, body = guarded.json(f"/v1/sessions/{theirs['id']}", mine, method)
            assert (status, body) == (404, {"error": "there is no such session (any more)"})
        view = f"/v1/live/{ours['id']}"
        assert guarded.answer(other, view) == (404, {"error": "there is no such session (any more)"})
        assert guarded.answer(mine, view)[0] == 503  # it may look, and the fake browser server shows nothing
        assert guarded.json(f"/v1/sessions/{ours['id']}", mine, "DELETE")[0] == 202
        assert b"an operator ended it" in raw.read_all(one)
        assert raw.goes_on(another)
        assert raw.goes_on(third)
        # Everything that has ever been, too
        assert {each["token"] for each in guarded.json("/v1/sessions", mine)[1]["sessions"]} == {"ci"}


def test_a_client_sees_extends_and_returns_its_own_leases_alone(guarded: Guarded) -> None:
    mine, other = guarded.texts[CLIENT], guarded.texts["other"]
    wanted = {"labelKey": "AppA:Chromium:UAT"}
    status, lease = guarded.json("/session/borrow", mine, "POST", wanted)
    assert status == 200
    path, returned = f"/v1/leases/{lease['browserId']}", {"browserId": lease["browserId"]}
    assert guarded.json(path, mine)[1]["token"] == "ci"
    assert guarded.json(path, other)[0] == 404
    assert guarded.json(path, other, "PATCH", {"ttlSeconds": 3600})[0] == 404
    assert guarded.json("/session/return", other, "POST", returned)[1]["returned"] is False
    for token, seen in ((mine, 1), (other, 0), (OPERATORS, 1)):
        assert len(guarded.json("/v1/leases", token)[1]["leases"]) == seen
    target = lease["webSocketEndpoint"].partition(str(guarded.grid.port))[2]
    assert guarded.answer(target=target)[0] == 101  # the endpoint is its holder's right, without a token
    eventually(lambda: guarded.json(path, mine)[1]["status"] == "returned", "its client has gone")
    assert guarded.json("/session/borrow", guarded.texts["elsewhere"], "POST", wanted)[0] == 403
    two = guarded.texts["two"]
    held = [guarded.json("/session/borrow", two, "POST", wanted)[1]["browserId"] for _ in range(2)]
    assert guarded.answer(two)[0] == 429  # leases count as sessions
    for each in held:
        assert guarded.json("/session/return", OPERATORS, "POST", {"browserId": each})[1]["returned"] is True


def test_a_token_has_its_limit_and_a_place_is_free_as_soon_as_one_of_its_sessions_ends(guarded: Guarded) -> None:
    two = guarded.texts["two"]
    first = guarded.connect(two)
    with first, guarded.connect(two) as second:
        for sock in (first, second):
            assert sock.recv(4096).startswith(b"HTTP/1.1 101 ")
        status, body = guarded.answer(two)
        assert (status, body["maxSessions"]) == (429, 2)
        assert body["error"].startswith("the token two has 2 live sessions, which is its limit")
        assert guarded.answer(guarded.texts[CLIENT])[0] == 101  # the grid has slots for others
        with guarded.connect(two) as third:  # waits, as for a slot
            first.close()
            assert third.recv(4096).startswith(b"HTTP/1.1 101 ")
            assert guarded.answer(two)[0] == 429


def test_a_token_may_use_its_own_pools_alone(guarded: Guarded) -> None:
    status, body = guarded.answer(guarded.texts["elsewhere"])
    assert (status, body) == (
        403,
        {"error": "the token elsewhere may not use the pool chromium: it may use appa", "pools": ["appa"]},
    )


def test_a_token_counts_at_once_and_no_more_at_once_without_a_reload(guarded: Guarded) -> None:
    pid = guarded.grid.ask("status")["proxy"]["pid"]
    done = guarded.grid.command("token", "create", "--name", "new")
    assert done.returncode == 0, done.stderr
    text = done.stdout.strip()
    with guarded.connect(text) as sock:
        assert sock.recv(4096).startswith(b"HTTP/1.1 101 ")
        assert guarded.grid.command("token", "revoke", "new").returncode == 0
        assert guarded.answer(text)[0] == 401
        assert raw.goes_on(sock)  # what lives is not cut
    assert guarded.grid.ask("status")["proxy"]["pid"] == pid


def test_what_was_got_with_a_token_ends_with_it_and_live_sessions_if_asked(guarded: Guarded) -> None:
    grid = guarded.grid
    text = tokens.create(guarded.place, "leaves", Role.CLIENT, 0, ())[0]
    wanted = {"labelKey": "AppA:Chromium:UAT"}
    idle, used = (guarded.json("/session/borrow", text, "POST", wanted)[1] for _ in range(2))
    targets = [lease["webSocketEndpoint"].partition(str(grid.port))[2] for lease in (idle, used)]
    with guarded.connect(target=targets[1]) as leased, guarded.connect(text) as plain:
        for sock in (leased, plain):
            assert sock.recv(4096).startswith(b"HTTP/1.1 101 ")
            assert raw.goes_on(sock)
        eventually(lambda: running_of(guarded, "leaves") == 2, "both are on record")
        done = grid.command("token", "revoke", "leaves")
        assert (done.returncode, done.stdout) == (0, "revoked leaves\n")
        assert done.stderr == (
            f"pwgrid: 2 live sessions go on in the grid on port {grid.port}; "
            "to end what lives: pwgrid token revoke leaves --end-sessions\n"
        )
        ended = {"error": "this lease has ended (token revoked): borrow another one", "reason": "token revoked"}
        for target in targets:
            assert guarded.answer(target=target) == (404, ended)
        path = f"/v1/leases/{idle['browserId']}"
        eventually(lambda: guarded.json(path, OPERATORS)[1]["status"] == "ended", "its slot is free")
        assert guarded.json(path, OPERATORS)[1]["reason"] == "token revoked"
        assert raw.goes_on(leased)
        assert raw.goes_on(plain)
        done = grid.command("token", "revoke", "leaves", "--end-sessions")
        assert (done.returncode, done.stdout) == (0, "")  # the token itself is gone already
        assert done.stderr == f"pwgrid: 2 live sessions are ended in the grid on port {grid.port}\n"
        for sock in (leased, plain):
            assert b"the grid closed this session: its token was revoked" in raw.read_all(sock)
    eventually(lambda: running_of(guarded, "leaves") == 0, "both are over")
    found = guarded.json("/v1/sessions?status=ended", OPERATORS)[1]["sessions"]
    assert [each["reason"] for each in found if each["token"] == "leaves"] == ["token revoked"] * 2
    assert guarded.json(f"/v1/leases/{used['browserId']}", OPERATORS)[1]["reason"] == "token revoked"
    done = grid.command("token", "revoke", "leaves", "--end-sessions")
    assert (done.returncode, "there is no token 'leaves' in" in done.stderr) == (1, True)


def running_of(guarded: Guarded, name: str) -> int:
    found = guarded.json("/v1/sessions?status=running", OPERATORS)[1]["sessions"]
    return sum(each["token"] == name for each in found)


def test_a_worker_that_was_frozen_admits_nobody_with_a_lease_of_a_token_that_is_gone(guarded: Guarded) -> None:
    text = tokens.create(guarded.place, "frozen", Role.CLIENT, 0, ())[0]
    _, lease = guarded.json("/session/borrow", text, "POST", {"labelKey": "AppA:Chromium:UAT"})
    (worker,) = (each["pid"] for each in guarded.grid.status()["workers"])
    os.kill(worker, signal.SIGSTOP)
    try:
        client = guarded.connect(target=lease["webSocketEndpoint"].partition(str(guarded.grid.port))[2])
        tokens.revoke(guarded.place, "frozen")
    finally:
        os.kill(worker, signal.SIGCONT)
    with client:
        answer = raw.read_all(client)
    assert answer.startswith(b"HTTP/1.1 404 ")
    assert b"this lease has ended (token revoked)" in answer


def test_the_token_of_the_settings_is_revoked_by_a_reload_as_any_other(tmp_path: Path) -> None:
    """Also in the proxy that retires: a connection that was kept, a live page, and leases."""
    old, new = "the-first-token-0123456789", "the-second-token-0123456789"
    file, config = tmp_path / "token", tmp_path / "grid.toml"
    file.write_text(old)
    config.write_text(POOL)
    environment = {"PWGRID_CONFIG": str(config), "PWGRID_TOKEN_FILE": str(file)}
    with running_grid(environment=environment, fake=True) as grid:
        guarded = Guarded(grid, tokens.Place(config.with_name("tokens.json")), {})
        _, lease = guarded.json("/session/borrow", old, "POST", {"labelKey": "AppA:Chromium:UAT"})
        target = lease["webSocketEndpoint"].partition(str(grid.port))[2]
        kept = http.client.HTTPConnection("127.0.0.1", grid.port, timeout=30)
        with contextlib.closing(kept), guarded.connect(old) as session, guarded.connect(old, "/v1/live") as page:
            assert session.recv(4096).startswith(b"HTTP/1.1 101 ")
            assert page.recv(4096).startswith(b"HTTP/1.1 101 ")
            assert asked(kept, old)[0] == 200
            file.write_text(new)
            done = grid.command("reload")
            assert done.stdout == "changed: token; replacing the proxy\n", done
            status, headers, body = asked(kept, old)
            assert (status, headers["connection"]) == (503, "close")
            assert b"this grid has another PWGRID_TOKEN now: connect again" in body
            assert [guarded.answer(text)[0] for text in (old, new)] == [401, 101]
            assert guarded.answer(target=target)[0] == 404
            is_closed(page)
            assert raw.goes_on(session)
        path = f"/v1/leases/{lease['browserId']}"
        eventually(lambda: guarded.json(path, new)[1]["reason"] == "token revoked", "it has ended")
        sessions_end_although_their_worker_is_frozen_and_killed(guarded)


def sessions_end_although_their_worker_is_frozen_and_killed(guarded: Guarded) -> None:
    """By its successor, which knows whose they are."""
    text = tokens.create(guarded.place, "ci", Role.CLIENT, 0, ())[0]
    with guarded.connect(text) as session:
        assert session.recv(4096).startswith(b"HTTP/1.1 101 ")
        assert raw.goes_on(session)
        (worker,) = (each["pid"] for each in guarded.grid.status()["workers"])
        os.kill(worker, signal.SIGSTOP)
        assert guarded.grid.command("token", "revoke", "ci", "--end-sessions").returncode == 0
        tokens.create(guarded.place, "ci", Role.CLIENT, 0, ())  # of the same name, and another
        os.kill(worker, signal.SIGKILL)
        assert b"the grid closed this session: its token was revoked" in raw.read_all(session)


def asked(connection: http.client.HTTPConnection, token: str) -> tuple[int, dict[str, str], bytes]:
    connection.request("GET", "/v1/sessions", headers={"Authorization": f"Bearer {token}"})
    answer = connection.getresponse()
    return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()


def test_who_waits_in_line_with_a_token_that_is_revoked_gets_no_slot(guarded: Guarded) -> None:
    text, _ = tokens.create(guarded.place, "waits", Role.CLIENT, 1, ())
    with guarded.connect(text) as first, ThreadPoolExecutor() as threads:
        assert first.recv(4096).startswith(b"HTTP/1.1 101 ")
        borrow = threads.submit(guarded.json, "/session/borrow", text, "POST", {"labelKey": "AppA:Chromium:UAT"})
        eventually(lambda: guarded.json("/v1/status", OPERATORS)[1]["waiting"] == 1, "it waits for its token")
        tokens.revoke(guarded.place, "waits")
        first.close()
        assert borrow.result() == (401, {"error": WRONG_OR_REVOKED})


def test_a_page_that_looks_at_the_grid_ends_with_its_token(guarded: Guarded) -> None:
    text, _ = tokens.create(guarded.place, "looks", Role.OPERATOR, 0, ())
    with guarded.connect(text, "/v1/live") as page:
        assert page.recv(4096).startswith(b"HTTP/1.1 101 ")
        tokens.revoke(guarded.place, "looks")
        is_closed(page)


def is_closed(page: socket.socket) -> None:
    """Reads up to the close frame, 1012: connect again. uvicorn waits for the page's own then."""
    said = b""
    while not said.endswith(b"\x88\x02\x03\xf4"):
        part = page.recv(65536)
        assert part, said[-200:]
        said += part


def test_the_command_finds_the_file_by_the_running_grid(guarded: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PWGRID_CONFIG", raising=False)
    base = str(guarded.grid.runtime.parent)
    assert [grid.port for grid in find_running(base)] == [guarded.grid.port]
    found = tokens.place(None, guarded.grid.port, base)
    assert (found.path, found.reader) == (guarded.place.path, guarded.grid.runtime.stat().st_uid)


def test_wrong_tokens_of_one_peer_are_limited_and_no_other_peer_is(guarded: Guarded) -> None:
    peer, another = new_peer(), new_peer()
    statuses = [guarded.ask("GET", "/v1/sessions", WRONG, peer=peer)[0] for _ in range(MOST_FAILURES - 1)]
    assert [*statuses, guarded.answer(WRONG, peer=peer)[0]] == [401] * MOST_FAILURES
    status, headers, _ = guarded.ask("GET", "/v1/sessions", WRONG, peer=peer)
    assert status == 429
    assert 0 < int(headers["retry-after"]) <= 60
    status, body = guarded.answer(WRONG, peer=peer)
    assert status == 429
    assert 0 < body["retryAfterS"] <= 60
    assert guarded.answer(WRONG, peer=another)[0] == 401
    assert guarded.answer(guarded.texts[CLIENT], peer=peer)[0] == 101


def test_a_peer_does_not_choose_the_address_that_its_wrong_tokens_count_for(guarded: Guarded) -> None:
    peer = new_peer()
    asked = [
        guarded.ask("GET", "/v1/sessions", WRONG, peer=peer, **{"X-Forwarded-For": f"10.0.0.{number}"})[0]
        for number in range(MOST_FAILURES + 1)
    ]
    assert asked == [401] * MOST_FAILURES + [429]


@pytest.mark.parametrize(
    ("peer", "more", "begins"),
    [
        (REVERSE_PROXY, {}, "ws://127.0.0.1:"),
        (REVERSE_PROXY, {"X-Forwarded-Proto": "https"}, "wss://127.0.0.1:"),
        ("127.2.0.2", {"X-Forwarded-Proto": "https"}, "ws://127.0.0.1:"),
    ],
)
def test_a_borrower_behind_a_proxy_that_speaks_tls_gets_an_endpoint_that_does(
    guarded: Guarded, peer: str, more: dict[str, str], begins: str
) -> None:
    headers = {"content-type": "application/json", **more}
    sent = json.dumps({"labelKey": "AppA:Chromium:UAT"})
    _, _, body = guarded.ask("POST", "/session/borrow", guarded.texts[CLIENT], peer=peer, body=sent, **headers)
    lease = json.loads(body)
    guarded.json("/session/return", guarded.texts[CLIENT], "POST", lease)
    assert lease["webSocketEndpoint"].startswith(begins)


def test_no_token_is_in_a_log_a_file_or_a_process_of_the_grid(guarded: Guarded) -> None:
    with guarded.connect(guarded.texts[CLIENT], f"/?token={guarded.texts[CLIENT]}") as sock:
        assert sock.recv(4096).startswith(b"HTTP/1.1 101 ")
        status = guarded.grid.ask("status")
        nodes = [each["nodePid"] for each in status["workers"]]
        found = [guarded.grid.output(), guarded.place.path.read_text(), json.dumps(status)]
        found += [Path(f"/proc/{pid}/cmdline").read_text() for pid in (status["proxy"]["pid"], *nodes)]
        found += [Path(f"/proc/{node}/environ").read_text() for node in nodes]
        found += [str(guarded.grid.redis("HGETALL", key)) for key in guarded.grid.redis("KEYS", "session:*")]
    for text in (*guarded.texts.values(), WRONG):
        assert not any(text in each for each in found)


async def test_a_browser_server_is_told_no_token() -> None:
    from websockets.datastructures import Headers

    from pwgrid.proxy.policy.connect_request import browser_server_headers

    given = Headers({"Authorization": f"Bearer {WRONG}", "x-hub-secret": WRONG, "x-playwright-browser": "chromium"})
    assert WRONG not in str(browser_server_headers(given, compression=True))
