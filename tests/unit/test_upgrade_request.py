"""The decision on an upgrade request, row by row."""

import base64

import pytest

from pwgrid.common.types import BrowserType
from pwgrid.proxy.policy.upgrade_request import Policy, Refusal, Wanted, browser_server_headers, decide

KEY = base64.b64encode(b"0123456789abcdef")
HANDSHAKE = [
    (b"host", b"grid:8080"),
    (b"upgrade", b"websocket"),
    (b"connection", b"Upgrade"),
    (b"sec-websocket-key", KEY),
    (b"sec-websocket-version", b"13"),
]
CHROMIUM_AND_FIREFOX: frozenset[BrowserType] = frozenset({"chromium", "firefox"})


def policy(**changes: object) -> Policy:
    values: dict[str, object] = {
        "default_browser_type": "chromium",
        "pools": CHROMIUM_AND_FIREFOX,
        "versions": frozenset({"1.65"}),
    }
    return Policy(**{**values, **changes})  # type: ignore[arg-type]


def headers(*more: tuple[bytes, bytes], without: bytes = b"") -> list[tuple[bytes, bytes]]:
    return [pair for pair in HANDSHAKE if pair[0] != without] + list(more)


FIREFOX_CLIENT = (b"x-playwright-browser", b"firefox")


@pytest.mark.parametrize(
    ("target", "more", "wanted"),
    [
        (b"/", [], Wanted("chromium")),
        (b"", [], Wanted("chromium")),
        (b"/?browser=firefox", [], Wanted("firefox")),
        (b"/?browser=FIREFOX", [], Wanted("firefox")),
        (b"/", [FIREFOX_CLIENT], Wanted("firefox")),
        (b"/?browser=firefox", [FIREFOX_CLIENT], Wanted("firefox")),
        (b"/", [(b"user-agent", b"Playwright/1.65.1 (x64; debian 12) python/3.11")], Wanted("chromium", "1.65")),
        (b"/", [(b"user-agent", b"curl/8")], Wanted("chromium")),
        (
            b"/playwright/firefox/0a1b2c3d.s3cret",
            [],
            Wanted("firefox", None, "0a1b2c3d", "/playwright/firefox/0a1b2c3d.s3cret"),
        ),
    ],
)
def test_a_good_request_names_its_session(target: bytes, more: list[tuple[bytes, bytes]], wanted: Wanted) -> None:
    assert decide(target, headers(*more), policy()) == wanted


@pytest.mark.parametrize(
    ("target", "given", "status", "sentence"),
    [
        (b"/?browser=opera", headers(), 400, "unknown browser 'opera'"),
        (b"/?browser=", headers(), 400, "unknown browser ''"),
        (b"/", headers((b"x-playwright-browser", b"opera")), 400, "unknown browser 'opera'"),
        (b"/?browser=chromium", headers(FIREFOX_CLIENT), 400, "the URL asks for chromium, but the client is firefox"),
        (b"/?browser=chromium&browser=firefox", headers(), 400, "name one browser"),
        (b"/?browser=webkit", headers(), 400, "runs no webkit workers (it has: chromium, firefox)"),
        (b"/playwright/firefox/0a.s?browser=chromium", headers(), 400, "name one browser"),
        (b"/nowhere", headers(), 404, "nothing at /nowhere"),
        (b"/", headers(without=b"sec-websocket-key"), 400, "Sec-WebSocket-Key"),
        (b"/", headers((b"sec-websocket-key", KEY)), 400, "Sec-WebSocket-Key"),
        (b"/", headers((b"sec-websocket-key", b"short"), without=b"sec-websocket-key"), 400, "Sec-WebSocket-Key"),
        (b"/", headers(without=b"sec-websocket-version"), 400, "Sec-WebSocket-Version must be 13"),
        (b"/", headers((b"sec-websocket-version", b"8"), without=b"sec-websocket-version"), 400, "must be 13"),
        (b"/", headers((b"origin", b"https://evil.example")), 403, "ALLOWED_ORIGINS"),
        (b"/", headers((b"origin", b"null")), 403, "ALLOWED_ORIGINS"),
        (b"/", headers((b"user-agent", b"Playwright/1.40.0 (x64)")), 428, "this client is Playwright 1.40"),
    ],
)
def test_a_bad_request_is_refused_with_a_sentence(
    target: bytes, given: list[tuple[bytes, bytes]], status: int, sentence: str
) -> None:
    with pytest.raises(Refusal) as caught:
        decide(target, given, policy())
    assert caught.value.status == status
    assert sentence in caught.value.error


@pytest.mark.parametrize(
    ("target", "more"),
    [
        (b"/", []),
        (b"/?token=wrong", []),
        (b"/", [(b"authorization", b"Bearer wrong")]),
        (b"/", [(b"authorization", b"Basic s3cret")]),
        (b"/?token=", []),
    ],
)
def test_without_the_token_nothing_is_served(target: bytes, more: list[tuple[bytes, bytes]]) -> None:
    with pytest.raises(Refusal) as caught:
        decide(target, headers(*more), policy(token="s3cret"))
    assert caught.value.status == 401
    assert ("WWW-Authenticate", 'Bearer realm="pwgrid"') in caught.value.headers


@pytest.mark.parametrize(
    ("target", "more"),
    [
        (b"/?token=s3cret", []),
        (b"/", [(b"authorization", b"Bearer s3cret")]),
        (b"/", [(b"authorization", b"bearer s3cret")]),
    ],
)
def test_the_token_is_taken_from_the_url_or_a_bearer_header(target: bytes, more: list[tuple[bytes, bytes]]) -> None:
    assert decide(target, headers(*more), policy(token="s3cret")).browser_type == "chromium"


def test_an_allowed_origin_may_connect() -> None:
    allowed = policy(allowed_origins=frozenset({"https://ours.example"}))
    assert decide(b"/", headers((b"origin", b"https://ours.example")), allowed).browser_type == "chromium"


def test_while_no_version_is_known_every_version_may_wait() -> None:
    agent = (b"user-agent", b"Playwright/1.40.0 (x64)")
    assert decide(b"/", headers(agent), policy(versions=frozenset())).playwright_version == "1.40"


def test_the_browser_server_learns_nothing_it_need_not_know() -> None:
    given = headers(
        (b"authorization", b"Bearer s3cret"),
        (b"cookie", b"a=b"),
        (b"x-forwarded-for", b"10.0.0.1"),
        (b"user-agent", b"Playwright/1.65.1"),
        (b"x-playwright-proxy", b"*"),
        (b"sec-websocket-extensions", b"permessage-deflate"),
    )
    lines = browser_server_headers(given, compression=False).split(b"\r\n")
    assert lines == [
        b"host: localhost",
        b"upgrade: websocket",
        b"connection: Upgrade",
        b"sec-websocket-key: " + KEY,
        b"sec-websocket-version: 13",
        b"user-agent: Playwright/1.65.1",
        b"x-playwright-proxy: *",
        b"",
        b"",
    ]


def test_compression_is_offered_on_when_it_is_wanted() -> None:
    given = headers((b"sec-websocket-extensions", b"permessage-deflate"))
    assert b"sec-websocket-extensions: permessage-deflate\r\n" in browser_server_headers(given, compression=True)
