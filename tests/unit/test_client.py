"""The client for borrowers: what it asks, what it returns whatever happens, and what it tells its user."""

import asyncio
import json
import socket
import threading
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from pwgrid.client import GridError, GridRefusal, Server, borrow

LENT = {
    "browserId": "aa-bb",
    "webSocketEndpoint": "ws://grid/lease/chromium/aa/bb.secret",
    "cdpEndpoint": "ws://grid/lease/chromium/aa/bb.secret/cdp",
    "browserType": "chromium",
    "labelKey": "AppA:Chromium:UAT",
    "expiresAt": 100.5,
}
BAD_ENDPOINTS = ("ws://h:x/?token=s3cret", "ws://h:99999", "ws://h:0", "ws://[::1:8080")
BOUND_S = 60.0
Answer = tuple[int, dict[str, Any], dict[str, str]]


class HttpServer(ThreadingHTTPServer):
    request_queue_size = 128  # with the 5 of the standard library, some of 40 that connect at once are reset


class Hub:
    """Stands in for a grid that says what a test wants it to say."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, dict[str, Any], str | None]] = []
        self.hub_secrets: set[str | None] = set()
        self.answers: dict[str, Callable[[], Answer]] = {
            "/session/borrow": lambda: (200, LENT, {}),
            "/session/return": lambda: (200, {"browserId": "aa-bb", "returned": True}, {}),
            "/v1/leases/aa-bb": lambda: (200, {"browserId": "aa-bb", "expiresAt": 200.5}, {}),
        }
        self.arrived = threading.Event()
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_arguments: Any) -> None: ...

            def answer(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                hub.asked.append((self.command, self.path, body, self.headers.get("Authorization")))
                hub.hub_secrets.add(self.headers.get("X-Hub-Secret"))
                hub.arrived.set()
                status, found, headers = hub.answers[self.path]()
                content = json.dumps(found).encode()
                with suppress(OSError):
                    self.send_response(status)
                    for name, value in {**headers, "Content-Length": str(len(content))}.items():
                        self.send_header(name, value)
                    self.end_headers()
                    self.wfile.write(content)

            do_POST = do_PATCH = answer  # noqa: N815 - as http.server calls them

        self._server = HttpServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def paths(self) -> list[str]:
        return [path for _, path, _, _ in self.asked]


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    for name in ("PWGRID_WS_ENDPOINT", "PWGRID_URL", "PWGRID_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    hub = Hub()
    yield hub
    hub.close()


def test_a_lease_is_for_the_length_of_a_block(hub: Hub) -> None:
    with borrow("appa:chromium:uat:eu", run="smoke", run_id="7", ttl_s=120, grid=hub.url, token="t") as lease:
        assert (lease.ws_endpoint, lease.browser_type) == (LENT["webSocketEndpoint"], "chromium")
        assert lease.cdp_endpoint == LENT["cdpEndpoint"]
        assert lease.extend(300).expires_at == 200.5
        assert (lease.label_key, lease.requested_label_key) == ("AppA:Chromium:UAT", "appa:chromium:uat:eu")
    assert hub.asked == [
        (
            "POST",
            "/session/borrow",
            {"labelKey": "appa:chromium:uat:eu", "runName": "smoke", "runId": "7", "ttlSeconds": 120},
            "Bearer t",
        ),
        ("PATCH", "/v1/leases/aa-bb", {"ttlSeconds": 300}, "Bearer t"),
        ("POST", "/session/return", {"labelKey": "AppA:Chromium:UAT", "browserId": "aa-bb"}, "Bearer t"),
    ]


async def test_however_many_tasks_wait_in_line_who_has_a_slot_can_give_it_back(hub: Hub) -> None:
    """asyncio has 32 threads at most."""
    slot = threading.Semaphore(1)

    def lends() -> Answer:
        assert slot.acquire(timeout=BOUND_S)
        return 200, LENT, {}

    def takes_back() -> Answer:
        slot.release()
        return 200, {"returned": True}, {}

    hub.answers |= {"/session/borrow": lends, "/session/return": takes_back}

    async def one_of_many() -> None:
        async with borrow("AppA:Chromium", grid=hub.url) as lease:
            await lease.extend_async(300)

    async with asyncio.timeout(BOUND_S), asyncio.TaskGroup() as tasks:
        for _ in range(40):
            tasks.create_task(one_of_many())
    assert hub.paths().count("/session/return") == 40


async def test_the_same_beside_other_tasks(hub: Hub) -> None:
    async with borrow("AppA:Chromium", grid=hub.url) as lease:
        assert (await lease.extend_async(300)).expires_at == 200.5
    assert hub.asked[0][2] == {"labelKey": "AppA:Chromium"}
    assert hub.paths() == ["/session/borrow", "/v1/leases/aa-bb", "/session/return"]


def test_the_grid_and_its_token_come_from_the_environment(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PWGRID_WS_ENDPOINT", f"{hub.url.replace('http', 'ws')}/?token=of-the-url")
    monkeypatch.setenv("PWGRID_TOKEN", "of-the-environment")
    for token, expected in ((None, "of-the-url"), ("given", "given")):
        with borrow("A:Chromium", token=token):
            pass
        assert hub.asked[-1][3] == f"Bearer {expected}"
    with borrow("A:Chromium", grid=hub.url):
        pass
    assert hub.asked[-1][3] == "Bearer of-the-environment"


def test_a_refusal_is_the_grids_sentence_and_says_when_to_come_back(hub: Hub) -> None:
    hub.answers["/session/borrow"] = lambda: (
        503,
        {"error": "no slot came free within 30 s", "queueLength": 3},
        {"Retry-After": "30"},
    )
    with (
        pytest.raises(GridRefusal, match="no slot came free within 30 s") as caught,
        borrow("A:Chromium", grid=hub.url),
    ):
        raise AssertionError("nothing was lent")
    assert (caught.value.status, caught.value.retry_after_s, caught.value.details["queueLength"]) == (503, 30.0, 3)
    assert hub.paths() == ["/session/borrow"]


def test_what_is_no_grid_is_named_by_its_address(hub: Hub) -> None:
    hub.answers["/session/borrow"] = lambda: (200, {"hello": "world"}, {})
    sentence = r"what answers at 127\.0\.0\.1:\d+ is no pwgrid: its answer has no 'browserId'"
    with pytest.raises(GridError, match=sentence), borrow("AppA:Chromium:UAT", grid=hub.url):
        pass


def test_what_went_wrong_in_the_block_is_told_also_when_the_return_fails(hub: Hub) -> None:
    hub.answers["/session/return"] = lambda: (503, {"error": "the grid is shutting down"}, {})
    with pytest.raises(ZeroDivisionError), borrow("A:Chromium", grid=hub.url):
        _ = 1 / 0
    assert hub.paths() == ["/session/borrow", "/session/return"]
    with pytest.raises(GridRefusal, match="shutting down"), borrow("A:Chromium", grid=hub.url):
        pass


async def test_two_tasks_do_not_give_back_the_lease_of_each_other(hub: Hub) -> None:
    browsers = iter(("aa-bb", "cc-dd"))
    hub.answers["/session/borrow"] = lambda: (200, {**LENT, "browserId": next(browsers)}, {})
    borrowing = borrow("A:Chromium", grid=hub.url)
    async with borrowing as first:
        with pytest.raises(RuntimeError, match=r"entered already.*call borrow\(\) again"):
            await borrowing.__aenter__()
        with pytest.raises(RuntimeError, match="entered already"), borrowing:
            raise AssertionError("nothing was lent")
    assert first.browser_id == "aa-bb"
    with borrowing as second:  # one after the other they may
        assert second.browser_id == "cc-dd"
    returned = [body["browserId"] for _, path, body, _ in hub.asked if path == "/session/return"]
    assert returned == ["aa-bb", "cc-dd"]


def test_who_was_refused_may_enter_again(hub: Hub) -> None:
    hub.answers["/session/borrow"] = lambda: (503, {"error": "no slot"}, {})
    borrowing = borrow("A:Chromium", grid=hub.url)
    for _ in range(2):
        with pytest.raises(GridRefusal, match="no slot"), borrowing:
            raise AssertionError("nothing was lent")


async def one_in_line(hub: Hub) -> tuple[asyncio.Task[None], threading.Event]:
    """A borrower whose question has arrived, and what lets the hub answer it with a lease."""
    lent = threading.Event()

    def later() -> Answer:
        lent.wait(30)
        return 200, LENT, {}

    hub.answers["/session/borrow"] = later

    async def enter() -> None:
        async with borrow("A:Chromium", grid=hub.url):
            raise AssertionError("nobody waits any more")

    task = asyncio.create_task(enter())
    await asyncio.to_thread(hub.arrived.wait, 30)
    return task, lent


async def test_who_gives_up_waiting_keeps_no_lease(hub: Hub) -> None:
    task, lent = await one_in_line(hub)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    lent.set()


async def test_a_lease_that_comes_as_its_borrower_gives_up_is_returned(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pwgrid.client import Call

    monkeypatch.setattr(Call, "cancel", lambda _call: None)  # the answer had come already
    task, lent = await one_in_line(hub)
    task.cancel()
    lent.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert hub.paths() == ["/session/borrow", "/session/return"]


def test_a_grid_that_is_not_there_is_one_sentence() -> None:
    with (
        pytest.raises(GridError, match=r"the grid at 127\.0\.0\.1:1 gives no answer"),
        borrow("A:B", grid="http://127.0.0.1:1"),
    ):
        raise AssertionError("there is no grid")
    for url in ("grid:8080", "ftp://grid", "http://", *BAD_ENDPOINTS):
        with pytest.raises(ValueError, match=r"is no URL of a grid: use ws://host:8080$") as caught:
            borrow("A:B", grid=url)
        assert "s3cret" not in str(caught.value)


def test_a_host_that_says_nothing_at_all_is_not_waited_for_as_long_as_a_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pwgrid.client.CONNECT_S", 0.1)
    with socket.create_server(("127.0.0.1", 0), backlog=0) as silent, ExitStack() as waiting:
        for _ in range(3):  # they fill its queue: who comes now hears nothing, as from a host that is gone
            sock = waiting.enter_context(socket.socket())
            sock.setblocking(False)
            sock.connect_ex(silent.getsockname())
        with pytest.raises(GridError, match="gives no answer: timed out"):
            borrow("A:B", grid=f"http://127.0.0.1:{silent.getsockname()[1]}").__enter__()


def test_a_server_never_shows_its_token() -> None:
    server = Server.at("wss://grid.example/?token=s3cret")
    assert (server.host, server.port, server.is_encrypted, server.token) == ("grid.example", 443, True, "s3cret")
    assert "s3cret" not in repr(server)


def test_behind_a_reverse_proxy_a_grid_has_a_path_and_perhaps_a_user(hub: Hub) -> None:
    hub.answers = {f"/under/grid{path}": answer for path, answer in hub.answers.items()}
    here = hub.url.removeprefix("http://")
    for endpoint, expected in (
        (
            f"ws://{here}/under/grid/lease/chromium/aa/bb.secret",
            f"ws://me:a%40b@{here}/under/grid/lease/chromium/aa/bb.secret",
        ),
        ("ws://else.where/lease/chromium/aa/bb.secret", "ws://else.where/lease/chromium/aa/bb.secret"),
        (f"ws://other@{here}/lease/chromium/aa/bb.secret", f"ws://other@{here}/lease/chromium/aa/bb.secret"),
    ):
        lent = {**LENT, "webSocketEndpoint": endpoint}
        hub.answers["/under/grid/session/borrow"] = lambda lent=lent: (200, lent, {})
        with borrow("A:B", grid=f"ws://me:a%40b@{here}/under/grid/?token=t") as lease:
            assert lease.ws_endpoint == expected
            lease.extend(5)
    assert set(hub.paths()) == {
        f"/under/grid{path}" for path in ("/session/borrow", "/session/return", "/v1/leases/aa-bb")
    }
    assert {each[3] for each in hub.asked} == {f"Basic {b64encode(b'me:a@b').decode()}"}
    assert hub.hub_secrets == {"t"}
    with borrow("A:B", grid=f"{hub.url}/under/grid", token="t"):
        pass
    assert hub.asked[-1][3] == "Bearer t"


def test_a_grid_below_a_path_is_named_with_it() -> None:
    server = Server.at("https://me:s3cret@grid.example/under/?token=s3cret")
    assert (str(server), repr(server)) == ("grid.example:443/under", "Server(grid.example:443/under)")
