"""The decision on an upgrade request, row by row."""

import base64
import contextlib
import re
from dataclasses import replace

import pytest
from hypothesis import given as examples
from hypothesis import settings
from hypothesis import strategies as st
from websockets.datastructures import Headers
from websockets.http11 import Request
from websockets.server import ServerProtocol

from pwgrid.common.label_keys import parse
from pwgrid.common.types import BrowserType
from pwgrid.proxy.policy.access import Access, Identity
from pwgrid.proxy.policy.arrival import Address, Arrival
from pwgrid.proxy.policy.connect_request import (
    ClientHead,
    ConnectRequest,
    LeasePath,
    Policy,
    SessionPath,
    browser_server_headers,
    decide,
    is_usual_handshake,
)
from pwgrid.proxy.policy.label_match import OfferedLabels
from pwgrid.proxy.policy.launch_options import LaunchRules
from pwgrid.proxy.policy.refusal import Refusal
from pwgrid.proxy.roster import PoolView
from pwgrid.tokens.tokens import Role, Tokens, make

KEY = base64.b64encode(b"0123456789abcdef").decode()
HANDSHAKE = [
    ("host", "grid:8080"),
    ("upgrade", "websocket"),
    ("connection", "Upgrade"),
    ("sec-websocket-key", KEY),
    ("sec-websocket-version", "13"),
]
Pairs = list[tuple[str, str]]


def pools(*given: tuple[str, BrowserType], **options: object) -> dict[str, PoolView]:
    served = {"playwright": "1.65", "versions": frozenset({"1.65"})}
    return {name: PoolView(1, 1, None, name, browser_type, options=options, **served) for name, browser_type in given}


CHROMIUM_AND_FIREFOX = pools(("chromium", "chromium"), ("firefox", "firefox"))


def policy(**changes: object) -> Policy:
    values: dict[str, object] = {
        "default_browser_type": "chromium",
        "pools": CHROMIUM_AND_FIREFOX,
    }
    return Policy(**{**values, **changes})  # type: ignore[arg-type]


def headers(*more: tuple[str, str], without: str = "") -> Pairs:
    return [pair for pair in HANDSHAKE if pair[0] != without] + list(more)


def decided(target: str, given: Pairs, policy: Policy, local: Address = ("10.0.0.5", 8080)) -> ConnectRequest:
    return decide(ClientHead(target, Headers(given)), policy, local)


def test_the_handshake_of_playwright_s_client_is_a_usual_one() -> None:
    extensions = ("sec-websocket-extensions", "permessage-deflate; client_max_window_bits")
    agent = ("user-agent", "Playwright/1.65.2 (x64; debian 12) node/20.20")
    assert is_usual_handshake(Request("/", Headers(headers(extensions, agent))))


VALUES = {
    "upgrade": ["websocket", "WebSocket", "h2c", "websocket, h2c", ""],
    "connection": ["Upgrade", "upgrade", "keep-alive", "keep-alive, Upgrade", ""],
    "sec-websocket-key": [KEY, KEY[:-1], KEY + "=", KEY[:-3] + "===", "A" * 24, "", "ä" + KEY[1:]],
    "sec-websocket-version": ["13", "8", "13, 8", " 13", ""],
    "sec-websocket-protocol": ["chat", "a b", ""],
    "sec-websocket-extensions": ["permessage-deflate", ";", ""],
    "origin": ["null", "https://a.example", ""],
}


@st.composite
def one_odd_header(draw: st.DrawFn) -> Pairs:
    """A usual handshake but for one of its headers: missing, another value, or two of them."""
    name = draw(st.sampled_from(sorted(VALUES)))
    odd = draw(st.lists(st.sampled_from(VALUES[name]), max_size=2))
    return draw(st.permutations(headers(*((name, value) for value in odd), without=name)))


@examples(given=one_odd_header(), method=st.sampled_from(["GET", "POST"]))
@settings(max_examples=500)
def test_what_looks_like_a_usual_handshake_is_one_that_websockets_accepts(given: Pairs, method: str) -> None:
    request = Request("/", Headers(given), method)
    if is_usual_handshake(request):
        ServerProtocol().process_request(request)


FIREFOX_CLIENT = ("x-playwright-browser", "firefox")


@pytest.mark.parametrize(
    ("target", "more", "wanted"),
    [
        ("/", [], ConnectRequest("chromium", "chromium")),
        ("", [], ConnectRequest("chromium", "chromium")),
        ("/?browser=firefox", [], ConnectRequest("firefox", "firefox")),
        ("/?browser=FIREFOX", [], ConnectRequest("firefox", "firefox")),
        ("/", [FIREFOX_CLIENT], ConnectRequest("firefox", "firefox")),
        ("/?browser=firefox", [FIREFOX_CLIENT], ConnectRequest("firefox", "firefox")),
        (
            "/",
            [("user-agent", "Playwright/1.65.1 (x64; debian 12) python/3.11")],
            ConnectRequest("chromium", "chromium", "1.65"),
        ),
        ("/", [("user-agent", "curl/8")], ConnectRequest("chromium", "chromium")),
        (
            "/playwright/firefox/0a1b2c3d.s3cret",
            [],
            ConnectRequest("firefox", "firefox", None, "0a1b2c3d", "/playwright/firefox/0a1b2c3d.s3cret"),
        ),
    ],
)
def test_a_good_request_names_its_session(target: str, more: Pairs, wanted: ConnectRequest) -> None:
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
        ("/", headers(("user-agent", f"Playwright/1.{'9' * 9999}")), 428, f"Playwright 1.{'9' * 18}, and the chromium"),
        ("/", headers(("upgrade", "websocket")), 400, "more than one Upgrade header"),
        ("/", headers(("upgrade", "h2c")), 400, "more than one Upgrade header"),
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
        decided(target, headers(*more), policy(access=Access(token="s3cret")))
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
    assert decided(target, headers(*more), policy(access=Access(token="s3cret"))).browser_type == "chromium"


def test_an_allowed_origin_may_connect() -> None:
    allowed = policy(access=Access(allowed_origins=frozenset({"https://ours.example"})))
    assert decided("/", headers(("origin", "https://ours.example")), allowed).browser_type == "chromium"


LOOPBACK: Address = ("127.0.0.1", 8080)
ON_LOOPBACK = Access(loopback_listeners=frozenset({LOOPBACK, ("::1", 8080)}), own_hosts=frozenset({"127.0.0.1"}))


def host(*values: str) -> Pairs:
    return headers(*(("host", value) for value in values), without="host")


@pytest.mark.parametrize(
    "name",
    [
        *["localhost", "localhost:8080", "LOCALHOST", "localhost.", "a.localhost"],
        *["127.0.0.1", "127.0.0.1:80", "127.1.2.3", "[::1]", "[::1]:8080"],
    ],
)
@pytest.mark.parametrize("local", [LOOPBACK, ("::1", 8080)])
def test_on_the_loopback_a_client_asks_by_a_loopback_name(name: str, local: Address) -> None:
    assert decided("/", host(name), policy(access=ON_LOOPBACK), local).browser_type == "chromium"


@pytest.mark.parametrize(
    "name",
    [
        *["evil.example", "evil.example:8080", "localhost.evil.example", "127.0.0.1.evil.example", "notlocalhost"],
        *["10.0.0.5", "[::2]", "0.0.0.0", "grid", ":8080"],
    ],
)
@pytest.mark.parametrize("local", [LOOPBACK, ("::1", 8080)])
def test_on_the_loopback_no_other_name_is_answered(name: str, local: Address) -> None:
    with pytest.raises(Refusal) as caught:
        decided("/", host(name), policy(access=ON_LOOPBACK), local)
    assert (caught.value.status, "ALLOWED_HOSTS" in caught.value.error) == (403, True)


@pytest.mark.parametrize(
    "values",
    [
        *[(), ("localhost", "localhost"), ("localhost", "evil.example"), ("a b",), ("a,b",), ("u@a",), ("a/b",)],
        *[("a:b",), ("[::1",), ("::1",), ("a:1:2",), ("[a.example]",)],
    ],
)
@pytest.mark.parametrize("access", [Access(), ON_LOOPBACK, Access(allowed_hosts=frozenset({"*"}))])
def test_a_request_names_one_host(values: tuple[str, ...], access: Access) -> None:
    with pytest.raises(Refusal) as caught:
        decided("/", host(*values), policy(access=access), LOOPBACK)
    assert caught.value.status == 400


@pytest.mark.parametrize(
    ("allowed", "name", "is_good"),
    [
        ((), "whatever.example", True),  # who opens the listener to others without naming hosts is asked by any name
        (("grid.example",), "grid.example", True),
        (("grid.example",), "GRID.example.:8080", True),
        (("Grid.Example",), "grid.example", True),
        (("grid.example",), "evil.example", False),
        (("grid.example",), "a.grid.example", False),
        (("grid.example",), "told.example", True),  # ADVERTISED_HOST
        (("grid.example",), "localhost", True),
        (("grid.example",), "10.0.0.5", True),
        (("grid.example",), "[fe80::1]:8080", True),
        (("*.example",), "a.b.example", True),
        (("*.example",), "example", False),
        (("*.example",), "notexample", False),
        (("*",), "evil.test", True),
    ],
)
def test_elsewhere_the_allowed_hosts_count(allowed: tuple[str, ...], name: str, is_good: bool) -> None:
    access = Access(allowed_hosts=frozenset(allowed), own_hosts=frozenset({"told.example"}))
    with contextlib.nullcontext() if is_good else pytest.raises(Refusal, match="ALLOWED_HOSTS"):
        decided("/", host(name), policy(access=access))


@pytest.mark.parametrize(("name", "is_good"), [("grid.example", True), ("evil.example", False), ("localhost", True)])
def test_behind_a_proxy_on_the_same_host_its_name_is_allowed(name: str, is_good: bool) -> None:
    access = Access(allowed_hosts=frozenset({"grid.example"}), loopback_listeners=frozenset({LOOPBACK}))
    with contextlib.nullcontext() if is_good else pytest.raises(Refusal, match="ALLOWED_HOSTS"):
        decided("/", host(name), policy(access=access), LOOPBACK)


def test_while_no_version_is_known_every_version_may_wait() -> None:
    agent = ("user-agent", "Playwright/1.40.0 (x64)")
    unknown = {"chromium": PoolView(1, 0, None, "chromium", "chromium")}
    assert decided("/", headers(agent), policy(pools=unknown)).playwright_version == "1.40"


def test_the_browser_server_learns_nothing_it_need_not_know() -> None:
    given = headers(
        ("authorization", "Bearer s3cret"),
        ("cookie", "a="),
        ("x-forwarded-for", "10.0.0.1"),
        ("traceparent", f"00-{'1' * 32}-{'2' * 16}-01"),
        ("user-agent", "Playwright/1.65.1"),
        ("x-playwright-proxy", "*"),
        ("X-Playwright-Launch-Options", '{"proxy": {"server": "http://proxy", "password": "s3cret"}}'),
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
    for given in (headers(without="upgrade"), headers(without="connection")):
        with pytest.raises(Refusal) as caught:
            decided("/", given, policy())
        assert caught.value.status == 426
        assert "connect a Playwright client" in caught.value.error


POOLS = {
    **pools(("appa", "chromium"), headless=False),
    **pools(("appb", "chromium"), ("chromium", "chromium"), ("foxes", "firefox")),
}


@pytest.mark.parametrize(
    ("target", "more", "wanted"),
    [
        ("/", [], "chromium"),
        ("/?browser=firefox", [], "foxes"),
        ("/", [FIREFOX_CLIENT], "foxes"),
        ("/?pool=appb", [], "appb"),
        ("/?pool=APPB&browser=chromium", [], "appb"),
        ("/?pool=foxes", [FIREFOX_CLIENT], "foxes"),
        ("/?pool=", [], "chromium"),
    ],
)
def test_the_pool_is_the_named_one_else_that_of_the_browser_type(target: str, more: Pairs, wanted: str) -> None:
    assert decided(target, headers(*more), policy(pools=POOLS)).pool == wanted


def test_a_pool_that_was_scaled_to_0_is_there_and_says_how_it_serves_again() -> None:
    offered = {name: offer for name, offer in POOLS.items() if name != "appa"}
    gone = {"appa": POOLS["appa"], "old": replace(POOLS["appb"], name="old", is_removed=True)}
    with pytest.raises(Refusal) as refused:
        decided("/?pool=appa", headers(), policy(pools=offered, draining=gone))
    assert (refused.value.status, "`pwgrid scale appa=1`" in refused.value.error) == (503, True)
    with pytest.raises(Refusal, match="there is no pool 'old'") as refused:
        decided("/?pool=old", headers(), policy(pools=offered, draining=gone))
    assert refused.value.status == 404


def test_without_one_named_like_it_the_first_pool_of_a_browser_type_is_taken() -> None:
    pools = {name: offer for name, offer in POOLS.items() if name != "chromium"}
    assert decided("/", headers(), policy(pools=pools)).pool == "appa"


@pytest.mark.parametrize(
    ("target", "status", "sentence"),
    [
        ("/?pool=nope", 404, "there is no pool 'nope'; pools are: appa, appb, chromium, foxes"),
        ("/?pool=appa&pool=appb", 400, "the URL asks for the pools appa and appb: name one"),
        ("/?pool=appa", 400, "pool appa has chromium browsers, and firefox is asked for: make them agree"),
    ],
)
def test_a_pool_that_is_not_there_or_contradicts_the_client_is_refused(target: str, status: int, sentence: str) -> None:
    with pytest.raises(Refusal) as refused:
        decided(target, headers(FIREFOX_CLIENT), policy(pools=POOLS))
    assert (refused.value.status, refused.value.error) == (status, sentence)


def test_launch_options_are_held_against_those_of_the_pool() -> None:
    asked = headers(("x-playwright-launch-options", '{"headless": false, "devtools": true}'))
    ignores = LaunchRules(heed=False)
    for rules in (ignores, LaunchRules()):
        found = decided("/?pool=appa", asked, policy(pools=POOLS, launch=rules))
        assert (found.ignored_options, found.own) == (("devtools",), None)
    headless = pools(("appb", "chromium"), headless=True)
    found = decided("/?pool=appb", asked, policy(pools=headless, launch=ignores))
    assert (found.ignored_options, found.own) == (("devtools", "headless"), None)
    own = decided("/?pool=appb", asked, policy(pools=headless)).own
    assert own is not None
    assert own.options == {"headless": False}


LABELS = OfferedLabels({parse("AppA:Chromium:UAT"): ("appa",), parse("AppB:Firefox:UAT"): ("foxes",)})


@pytest.mark.parametrize(
    ("target", "more", "wanted"),
    [
        ("/?labels=appa:chromium:uat&name=Smoke%2012", [], ("appa", "appa:chromium:uat", "Smoke 12")),
        ("/?labels=AppB:Firefox:UAT:EU", [FIREFOX_CLIENT], ("foxes", "AppB:Firefox:UAT:EU", "")),
        ("/", [("x-pwgrid-labels", "AppB:Firefox"), ("x-pwgrid-name", " a ")], ("foxes", "AppB:Firefox", "a")),
        ("/?labels=AppB:Firefox&name=a", [("x-pwgrid-labels", "AppB:Firefox")], ("foxes", "AppB:Firefox", "a")),
        ("/?name=a&labels=", [], ("chromium", "", "a")),
    ],
)
def test_a_label_key_and_a_name_come_in_the_url_or_in_headers(
    target: str, more: Pairs, wanted: tuple[str, str, str]
) -> None:
    found = decided(target, headers(*more), policy(pools=POOLS, labels=LABELS))
    assert (found.pool, found.labels, found.name) == wanted


@pytest.mark.parametrize(("client", "pool"), [("chromium", "appa"), ("firefox", "foxes")])
def test_a_label_key_for_any_browser_gets_the_clients_own(client: str, pool: str) -> None:
    labels = OfferedLabels({parse("AppA:Chromium"): ("appa",), parse("AppA:Firefox"): ("foxes",)}, wildcards=True)
    asked = headers(("x-playwright-browser", client))
    assert decided("/?labels=AppA:*", asked, policy(pools=POOLS, labels=labels)).pool == pool


@pytest.mark.parametrize(
    ("target", "more", "status", "sentence"),
    [
        ("/?labels=AppA", [], 400, "is no label key"),
        ("/?labels=AppC:Chromium:UAT", [], 404, "there are AppA:Chromium:UAT, AppB:Firefox:UAT"),
        ("/?labels=AppA:Chromium:UAT", [FIREFOX_CLIENT], 400, "pool appa has chromium browsers, and firefox"),
        ("/?labels=AppA:Chromium:UAT&browser=firefox", [], 400, "pool appa has chromium browsers, and firefox"),
        (
            "/?labels=AppA:Chromium:UAT&pool=appb",
            [],
            400,
            "the label key is of pool appa, and the URL asks for pool appb",
        ),
        ("/?labels=a:b&labels=c:d", [], 400, "two ?labels= say different things"),
        ("/?name=a", [("x-pwgrid-name", "b")], 400, "say different things"),
        ("/?name=a%2Fb", [], 400, "name: use at most 128 letters"),
    ],
)
def test_bad_label_keys_and_names_are_refused(target: str, more: Pairs, status: int, sentence: str) -> None:
    with pytest.raises(Refusal, match=re.escape(sentence)) as refused:
        decided(target, headers(*more), policy(pools=POOLS, labels=LABELS))
    assert refused.value.status == status


LEASE = "/lease/firefox/0a1b2c3d/0123456789abcdef.s3-cr_et"


def test_a_client_never_gets_what_another_one_has_asked_for() -> None:
    (one, of_one), (two, of_two) = (
        make(name, Role.CLIENT, 0, [allowed], 0.0) for name, allowed in (("one", "old"), ("two", "new"))
    )
    offered = pools(("old", "chromium"), ("new", "chromium"), ("firefox", "firefox"))
    is_known = {"pools": offered, "access": Access(tokens=lambda: Tokens([one, two])), "keep_max_s": 60.0}
    shared = policy(**is_known)
    session = "/devtools/browser/0123456789abcdef"
    # Each differs from one before it in a single thing.
    clients: list[tuple[str, str, Pairs, bool]] = [
        ("/", of_one, [], False),
        ("/", of_two, [], False),
        ("/?browser=firefox", of_one, [], False),
        ("/?name=a", of_one, [], False),
        ("/?name=b", of_one, [], False),
        ("/", of_one, [("x-pwgrid-name", "a")], False),
        ("/", of_one, [("X-PwGrid-Name", "b")], False),
        ("/", of_one, [FIREFOX_CLIENT], False),
        ("/", of_one, [("user-agent", "Playwright/1.65.0")], False),
        ("/", of_one, [("x-playwright-launch-options", '{"slowMo": 50}')], False),
        ("/", of_one, [("x-playwright-proxy", "*")], False),
        ("/cdp", of_one, [], False),
        ("/cdp", of_one, [("x-pwgrid-keep", "5")], False),
        (session, of_one, [], False),
        (session, of_one, [], True),
    ]

    heads: dict[str, ClientHead] = {}

    def wanted(client: tuple[str, str, Pairs, bool], now: Policy, heads: dict[str, ClientHead]) -> object:
        target, token, more, is_new = client
        given = headers(*more, ("authorization", f"Bearer {token}"))
        head = heads.setdefault(repr((target, given)), ClientHead(target, Headers(given)))  # as `parse_head` keeps it
        return decide(head, now, ("10.0.0.5", 8080), is_new=is_new)

    for client in clients * 2:
        assert wanted(client, shared, heads) == wanted(client, policy(**is_known), {}), client
    assert len(heads) == len(clients) - 1  # the last two differ only in what is on record


@pytest.mark.parametrize(
    ("access", "local", "host"),
    [
        (Access(loopback_listeners=frozenset({LOOPBACK})), LOOPBACK, ""),
        (Access(allowed_hosts=frozenset({"grid"})), ("10.0.0.5", 8080), "evil.example"),
    ],
)
def test_a_head_that_was_let_in_before_is_not_where_its_host_may_not_be_asked_for(
    access: Access, local: Address, host: str
) -> None:
    head, now = ClientHead("/", Headers(headers())), policy(access=access)
    wanted = decide(head, now, ("10.0.0.5", 8080))
    with pytest.raises(Refusal, match="by this name"):
        decide(head, now, local, Arrival(host=host))
    assert decide(head, now, ("10.0.0.5", 8080)) is wanted


def test_what_a_head_has_got_before_it_gets_again_only_under_the_same() -> None:
    ci, of_ci = make("ci", Role.CLIENT, 0, ["old"], 0.0)
    known = [ci]
    access = Access(tokens=lambda: Tokens(known))
    both = pools(("old", "chromium"), ("new", "chromium"))
    now, here, behind = policy(pools=both, access=access), ("10.0.0.5", 8080), Arrival("10.0.0.9", 7, prefix="/grid")
    head = ClientHead("/grid", Headers(headers(("authorization", f"Bearer {of_ci}"))))
    wanted = decide(head, now, here, behind)
    assert decide(head, now, here, behind) is wanted
    assert decide(head, policy(pools=both, access=access), here, behind) is wanted  # most rosters change no policy
    with pytest.raises(Refusal, match="there is nothing at"):
        decide(head, now, here, behind._replace(prefix=""))
    known[:] = [ci.model_copy(update={"pools": ("new",)})]
    assert decide(head, now, here, behind) == wanted._replace(
        pool="new", identity=Identity("ci", Role.CLIENT, 0, frozenset({"new"}), ci.id)
    )
    firefox = policy(pools=pools(("new", "firefox")), default_browser_type="firefox", access=access)
    assert decide(head, firefox, here, behind)[0] == "firefox"
    known[:] = [make("ci", Role.CLIENT, 0, [], 0.0)[0]]
    with pytest.raises(Refusal, match="wrong, or was revoked"):
        decide(head, now, here, behind)
    session, open_to_all = ClientHead("/devtools/browser/0123456789abcdef", Headers(headers())), policy()
    assert isinstance(decide(session, open_to_all, here), SessionPath)
    assert isinstance(decide(session, open_to_all, here, is_new=True), ConnectRequest)


@pytest.mark.parametrize("target", [LEASE, "/playwright/firefox/0a1b2c3d.s3cret"])
def test_a_client_of_another_version_than_its_lease_or_named_worker_hears_it(target: str) -> None:
    there = policy(versions_of_workers={"0a1b2c3d": "1.58"}, pools_of_workers={"0a1b2c3d": "firefox"})
    with pytest.raises(
        Refusal, match=r"this client is Playwright 1\.65, and the worker .* is for Playwright 1\.58: "
    ) as no:
        decided(target, headers(("user-agent", "Playwright/1.65.1")), there)
    assert (no.value.status, no.value.details) == (428, {"versions": ["1.58"]})
    for agent in ("Playwright/1.58.2", "curl/8"):
        decided(target, headers(("user-agent", agent)), there)


def test_the_endpoint_of_a_lease_is_its_holder_s_right_without_a_token_and_whatever_the_grid_offers() -> None:
    guarded = policy(access=Access(token="t0ken"), pools={})
    given = headers(FIREFOX_CLIENT, ("user-agent", "Playwright/1.65.1"))
    assert decided(LEASE, given, guarded) == LeasePath("firefox", "0a1b2c3d", "0123456789abcdef", "s3-cr_et")


@pytest.mark.parametrize(
    ("target", "given", "status", "sentence"),
    [
        (LEASE, headers(("x-playwright-browser", "chromium")), 400, "the lease is for firefox, but the client is"),
        (LEASE.replace("firefox", "opera"), headers(), 400, "unknown browser 'opera'"),
        (LEASE, headers(("origin", "https://evil.example")), 403, "a web page may not drive the grid"),
        (LEASE, headers(without="sec-websocket-key"), 400, "bad WebSocket handshake"),
        (LEASE + "/..", headers(), 404, "there is nothing at"),
        (LEASE.replace("0a1b2c3d", ".."), headers(), 404, "there is nothing at"),
    ],
)
def test_a_bad_request_with_a_lease_is_refused(target: str, given: Pairs, status: int, sentence: str) -> None:
    with pytest.raises(Refusal, match=re.escape(sentence)) as refused:
        decided(target, given, policy())
    assert refused.value.status == status


@pytest.mark.parametrize(
    ("host", "origin", "access", "is_own"),
    [
        ("127.0.0.1:8080", "http://127.0.0.1:8080", Access(), True),
        ("localhost:8080", "http://localhost:8080", Access(), True),
        ("10.0.0.5:8080", "http://10.0.0.5:8080", Access(), True),
        ("10.0.0.5:8080", "https://10.0.0.5:8080", Access(), True),  # TLS ends in front of the grid
        ("grid.example.org", "https://grid.example.org", Access(allowed_hosts=frozenset({"*.example.org"})), True),
        ("grid.example.org", "https://grid.example.org", Access(own_hosts=frozenset({"grid.example.org"})), True),
        ("127.0.0.1:8080", "http://127.0.0.1:9090", Access(), False),  # another program on this host
        ("127.0.0.1:8080", "http://evil.example", Access(), False),
        ("127.0.0.1:8080", "null", Access(), False),
        ("evil.example:8080", "http://evil.example:8080", Access(), False),  # its name may mean us by rebinding
        ("evil.example:8080", "http://evil.example:8080", Access(allowed_hosts=frozenset({"*"})), False),
    ],
)
def test_only_the_grid_s_own_page_may_ask_what_it_needs(host: str, origin: str, access: Access, is_own: bool) -> None:
    given = Headers([("host", host), ("origin", origin)])
    with contextlib.nullcontext() if is_own else pytest.raises(Refusal, match="a web page may not drive the grid"):
        access.check(given, [], ("10.0.0.5", 8080), from_own_page=True)
    with pytest.raises(Refusal, match="a web page may not drive the grid"):  # not even that page gets a session
        access.check(given, [], ("10.0.0.5", 8080))
