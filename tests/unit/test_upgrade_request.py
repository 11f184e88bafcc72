"""The decision on an upgrade request, row by row."""

import base64

import pytest
from websockets.datastructures import Headers
from websockets.http11 import Request
from websockets.server import ServerProtocol

from pwgrid.common.types import BrowserType
from pwgrid.proxy.policy.upgrade_request import Policy, Refusal, Wanted, browser_server_headers, decide

KEY = base64.b64encode(b"0123456789abcdef").decode()
HANDSHAKE = [
    ("host", "grid:8080"),
    ("upgrade", "websocket"),
    ("connection", "Upgrade"),
    ("sec-websocket-key", KEY),
    ("sec-websocket-version", "13"),
]
Pairs = list[tuple[str, str]]
CHROMIUM_AND_FIREFOX: frozenset[BrowserType] = frozenset({"chromium", "firefox"})


def policy(**changes: object) -> Policy:
    values: dict[str, object] = {
        "default_browser_type": "chromium",
        "pools": CHROMIUM_AND_FIREFOX,
        "versions": frozenset({"1.65"}),
    }
    return Policy(**{**values, **changes})  # type: ignore[arg-type]


def headers(*more: tuple[str, str], without: str = "") -> Pairs:
    return [pair for pair in HANDSHAKE if pair[0] != without] + list(more)


def decided(target: str, given: Pairs, policy: Policy) -> Wanted:
    return decide(ServerProtocol(), Request(target, Headers(given)), policy)


FIREFOX_CLIENT = ("x-playwright-browser", "firefox")


@pytest.mark.parametrize(
    ("target", "more", "wanted"),
    [
        ("/", [], Wanted("chromium")),
        ("", [], Wanted("chromium")),
        ("/?browser=firefox", [], Wanted("firefox")),
        ("/?browser=FIREFOX", [], Wanted("firefox")),
        ("/", [FIREFOX_CLIENT], Wanted("firefox")),
        ("/?browser=firefox", [FIREFOX_CLIENT], Wanted("firefox")),
        ("/", [("user-agent", "Playwright/1.65.1 (x64; debian 12) python/3.11")], Wanted("chromium", "1.65")),
        ("/", [("user-agent", "curl/8")], Wanted("chromium")),
        (
            "/playwright/firefox/0a1b2c3d.s3cret",
            [],
            Wanted("firefox", None, "0a1b2c3d", "/playwright/firefox/0a1b2c3d.s3cret"),
        ),
    ],
)
def test_a_good_request_names_its_session(target: str, more: Pairs, wanted: Wanted) -> None:
    assert decided(target, headers(*more), policy()) == wanted


@pytest.mark.parametrize(
    ("target", "given", "status", "sentence"),
    [
        ("/?browser=opera", headers(), 400, "unknown browser 'opera'"),
        ("/?browser=", headers(), 400, "unknown browser ''"),
        ("/", headers(("x-playwright-browser", "opera")), 400, "unknown browser 'opera'"),
        ("/?browser=chromium", headers(FIREFOX_CLIENT), 400, "the URL asks for chromium, but the client is firefox"),
        ("/?browser=chromium&browser=firefox", headers(), 400, "name one browser"),
        ("/?browser=webkit", headers(), 400, "runs no webkit workers (it has: chromium, firefox)"),
        ("/playwright/firefox/0a.s?browser=chromium", headers(), 400, "name one browser"),
        ("/nowhere", headers(), 404, "nothing at /nowhere"),
        ("/", headers(without="sec-websocket-key"), 400, "Sec-WebSocket-Key"),
        ("/", headers(("sec-websocket-key", KEY)), 400, "Sec-WebSocket-Key"),
        ("/", headers(("sec-websocket-key", "short"), without="sec-websocket-key"), 400, "Sec-WebSocket-Key"),
        ("/", headers(without="sec-websocket-version"), 400, "Sec-WebSocket-Version must be 13"),
        ("/", headers(("sec-websocket-version", "8"), without="sec-websocket-version"), 400, "must be 13"),
        ("/", headers(("origin", "https://evil.example")), 403, "ALLOWED_ORIGINS"),
        ("/", headers(("origin", "null")), 403, "ALLOWED_ORIGINS"),
        ("/", headers(("user-agent", "Playwright/1.40.0 (x64)")), 428, "this client is Playwright 1.40"),
    ],
)
def test_a_bad_request_is_refused_with_a_sentence(target: str, given: Pairs, status: int, sentence: str) -> None:
    with pytest.raises(Refusal) as caught:
        decided(target, given, policy())
    assert caught.value.status == status
    assert sentence in caught.value.error


NO_TOKEN = (
    "this grid asks for a token: send the header 'Authorization: Bearer <token>' or add ?token=<token> to the URL"
)
WRONG_TOKEN = "the token is wrong: it is not the one that this grid was started with (PWGRID_TOKEN)"


@pytest.mark.parametrize(
    ("target", "more", "sentence"),
    [
        ("/", [], NO_TOKEN),
        ("/?token=wrong", [], WRONG_TOKEN),
        ("/", [("authorization", "Bearer wrong")], WRONG_TOKEN),
        ("/", [("authorization", "Basic s3cret")], NO_TOKEN),
        ("/?token=", [], NO_TOKEN),
        ("/?token=", [("authorization", "Bearer wrong")], WRONG_TOKEN),
    ],
)
def test_without_the_token_nothing_is_served_and_a_wrong_one_is_told_from_none(
    target: str, more: Pairs, sentence: str
) -> None:
    with pytest.raises(Refusal) as caught:
        decided(target, headers(*more), policy(token="s3cret"))
    assert (caught.value.status, caught.value.error) == (401, sentence)
    assert ("WWW-Authenticate", 'Bearer realm="pwgrid"') in caught.value.headers


@pytest.mark.parametrize(
    ("target", "more"),
    [
        ("/?token=s3cret", []),
        ("/", [("authorization", "Bearer s3cret")]),
        ("/", [("authorization", "bearer s3cret")]),
    ],
)
def test_the_token_is_taken_from_the_url_or_a_bearer_header(target: str, more: Pairs) -> None:
    assert decided(target, headers(*more), policy(token="s3cret")).browser_type == "chromium"


def test_an_allowed_origin_may_connect() -> None:
    allowed = policy(allowed_origins=frozenset({"https://ours.example"}))
    assert decided("/", headers(("origin", "https://ours.example")), allowed).browser_type == "chromium"


def test_while_no_version_is_known_every_version_may_wait() -> None:
    agent = ("user-agent", "Playwright/1.40.0 (x64)")
    assert decided("/", headers(agent), policy(versions=frozenset())).playwright_version == "1.40"


def test_the_browser_server_learns_nothing_it_need_not_know() -> None:
    given = headers(
        ("authorization", "Bearer s3cret"),
        ("cookie", "a="),
        ("x-forwarded-for", "10.0.0.1"),
        ("user-agent", "Playwright/1.65.1"),
        ("x-playwright-proxy", "*"),
        ("sec-websocket-extensions", "permessage-deflate"),
    )
    assert browser_server_headers(Headers(given), compression=False) == {
        "host": "localhost",
        "upgrade": "websocket",
        "connection": "Upgrade",
        "sec-websocket-key": KEY,
        "sec-websocket-version": "13",
        "user-agent": "Playwright/1.65.1",
        "x-playwright-proxy": "*",
    }


def test_compression_is_offered_on_when_it_is_wanted() -> None:
    given = Headers(headers(("sec-websocket-extensions", "permessage-deflate")))
    offered = browser_server_headers(given, compression=True)
    assert offered["sec-websocket-extensions"] == "permessage-deflate"


def test_a_header_that_comes_twice_is_one_list() -> None:
    given = Headers(headers(("x-playwright-proxy", "a"), ("X-Playwright-Proxy", "b")))
    assert browser_server_headers(given, compression=False)["x-playwright-proxy"] == "a, b"


def test_what_is_no_websocket_handshake_is_told_what_this_is() -> None:
    for given in (headers(without="upgrade"), headers(without="connection"), [*headers(), ("upgrade", "h2c")]):
        with pytest.raises(Refusal) as caught:
            decided("/", given, policy())
        assert caught.value.status == 426
        assert "connect a Playwright client" in caught.value.error
