"""From which client a request has come, and to which address of the grid: whom of those before us to believe."""

from typing import Any

import pytest
from websockets.datastructures import Headers

from pwgrid.common.grid_url import GridUrl
from pwgrid.proxy.policy.access import Access, Identity
from pwgrid.proxy.policy.arrival import Arrival, Arrivals
from pwgrid.proxy.policy.refusal import Refusal

PROXY, LOCAL = ("10.0.0.1", 50000), ("10.0.0.9", 8080)
TRUSTED = ("10.0.0.1", "192.168.0.0/16", "fd00::/8")


def arrived(headers: dict[str, str], peer: tuple[str, int] | None = PROXY, local: Any = LOCAL, **more: Any) -> Arrival:
    given = Headers({"Host": "grid:8080", **headers})
    return Arrivals(**{"trusted": TRUSTED, **more}).of(given.get_all, peer, local)


def client(value: str, field: str = "X-Forwarded-For", **more: Any) -> str:
    return str(arrived({field: value}, **more))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("1.2.3.4", "1.2.3.4"),
        ("1.2.3.4:567", "1.2.3.4:567"),
        ("2001:db8::1", "2001:db8::1"),
        ("[2001:db8::1]:567", "2001:db8::1:567"),
        ("6.6.6.6, 1.2.3.4", "1.2.3.4"),  # the client's own invention stands first
        ("6.6.6.6, 1.2.3.4, 192.168.3.3", "1.2.3.4"),
        ("1.2.3.4, 192.168.3.3, fd00::1", "1.2.3.4"),
        ("192.168.3.3", "192.168.3.3"),  # all of them are trusted
        ("unknown", "10.0.0.1:50000"),
        ("1.2.3.4, _hidden, 192.168.3.3", "192.168.3.3"),
        ("evil\\r\\n", "10.0.0.1:50000"),
        ("999.1.1.1", "10.0.0.1:50000"),
        ("", "10.0.0.1:50000"),
        (" , ,", "10.0.0.1:50000"),
    ],
)
def test_the_client_is_the_last_one_that_is_no_trusted_reverse_proxy(value: str, expected: str) -> None:
    assert client(value) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("for=1.2.3.4", "1.2.3.4"),
        ('For="[2001:db8::1]:567";proto=https', "2001:db8::1:567"),
        ("for=6.6.6.6;by=x, for=1.2.3.4, for=192.168.3.3;host=grid", "1.2.3.4"),
        ('host="a,b;for=6.6.6.6";for=1.2.3.4', "1.2.3.4"),
        ('host="a\\"for=6.6.6.6";for=1.2.3.4', "1.2.3.4"),
        ("for=_hidden", "10.0.0.1:50000"),
        ("for=1.2.3.4; =", "10.0.0.1:50000"),  # malformed: nothing of it counts
        ('for="1.2.3.4', "10.0.0.1:50000"),
    ],
)
def test_the_same_by_the_header_of_the_standard(value: str, expected: str) -> None:
    assert client(value, "Forwarded") == expected


@pytest.mark.parametrize("peer", [("10.0.0.2", 1), ("::1", 1, 0, 0), None, ("testclient", 1), ("fe80::1%eth0", 1)])
def test_who_is_not_trusted_is_not_believed_and_it_is_told(peer: Any) -> None:
    told: list[str] = []
    said = {
        "X-Forwarded-For": "1.2.3.4",
        "X-Forwarded-Host": "evil",
        "X-Forwarded-Proto": "https",
        "Forwarded": "for=6.6.6.6",
    }
    found = arrived({**said, "X-Forwarded-Prefix": "/evil"}, peer, on_disbelieved=told.append)
    assert (found.client, found.host, found.prefix) == (peer[0] if peer else "", "", "")
    assert found.endpoint == "ws://grid:8080"
    assert told == [peer[0] if peer else ""]
    assert arrived({}, peer, on_disbelieved=told.append).client == found.client
    assert len(told) == 1


def test_a_unix_socket_is_trusted_where_it_is_named_and_nobody_else_by_that() -> None:
    assert client("1.2.3.4", peer=None, local=("/run/grid.sock", None), trusted=("unix",)) == "1.2.3.4"
    assert client("1.2.3.4", peer=None, local=LOCAL, trusted=("unix",)) == "unknown"  # has left already
    assert client("1.2.3.4", trusted=("unix",)) == "10.0.0.1:50000"


def test_an_ipv4_address_on_a_listener_for_both_is_the_same() -> None:
    assert client("1.2.3.4", peer=("::ffff:10.0.0.1", 1)) == "1.2.3.4"


def test_two_headers_that_name_different_clients_are_refused_since_one_is_the_client_s_own() -> None:
    with pytest.raises(Refusal) as caught:
        arrived({"X-Forwarded-For": "1.2.3.4", "Forwarded": "for=6.6.6.6"})
    assert caught.value.status == 400
    agreed = arrived({"X-Forwarded-For": "1.2.3.4", "Forwarded": 'for="1.2.3.4:567"'})
    assert str(agreed) == "1.2.3.4:567"


ALL = {"X-Forwarded-Proto": "https", "X-Forwarded-Host": "grid.example:8443", "X-Forwarded-Prefix": "/under/"}
ADVERTISED = GridUrl.parse("https://me:pw@told.example/there/")


@pytest.mark.parametrize(
    ("headers", "more", "endpoint"),
    [
        ({}, {}, "ws://grid:8080"),
        (ALL, {}, "wss://grid.example:8443/under"),
        ({"Forwarded": 'proto=https;host="grid.example:8443"'}, {}, "wss://grid.example:8443"),
        ({"X-Forwarded-Proto": "HTTPS"}, {}, "wss://grid:8080"),
        ({"X-Forwarded-Proto": "http, https"}, {}, "wss://grid:8080"),  # the one nearest to us has said so
        ({"X-Forwarded-Prefix": "no path"}, {}, "ws://grid:8080"),
        ({"X-Forwarded-Prefix": "/"}, {}, "ws://grid:8080"),
        (ALL, {"advertised": ADVERTISED}, "wss://me:pw@told.example/there"),
        ({}, {"advertised": ADVERTISED, "peer": None}, "wss://me:pw@told.example/there"),
        ({}, {"advertised_host": "told.example"}, "ws://told.example:19131"),
        (ALL, {"advertised_host": "told.example"}, "wss://told.example:8443/under"),
        ({"X-Forwarded-Proto": "https"}, {"advertised_host": "told.example"}, "wss://told.example"),
        ({"X-Forwarded-Host": "grid.example"}, {"advertised_host": "fd00::7"}, "ws://[fd00::7]"),
    ],
)
def test_the_endpoint_for_a_client_is_whole(headers: dict[str, str], more: dict[str, Any], endpoint: str) -> None:
    assert arrived(headers, **{"listener": GridUrl(False, "127.0.0.1", 19131), **more}).endpoint == endpoint


def test_a_request_without_a_host_gets_the_listener_s_address() -> None:
    listener = GridUrl(False, "::1", 8080)
    assert Arrivals(listener).of(lambda _: [], PROXY, LOCAL).endpoint == "ws://[::1]:8080"


@pytest.mark.parametrize(
    ("path", "own"),
    [
        ("/grid/v1/status", "/v1/status"),
        ("/v1/status", "/v1/status"),  # the reverse proxy has taken it away
        ("/grid", "/"),
        ("/grid/", "/"),
        ("/gridlock/", "/gridlock/"),
        ("/grid/grid/", "/grid/"),
        ("", ""),
        ("/", "/"),
    ],
)
def test_a_prefix_is_taken_away_once_if_it_is_there(path: str, own: str) -> None:
    assert Arrival(prefix="/grid").without_prefix(path) == own
    assert Arrival().without_prefix(path) == path


# The Host and the Origin that count


def asked(access: Access, host: str, forwarded: str = "", origin: str = "") -> Identity:
    headers = Headers({"Host": host} | ({"Origin": origin} if origin else {}))
    arrival = Arrival("1.2.3.4", host=forwarded)
    return access.check(headers, [], ("127.0.0.1", 8080), arrival, from_own_page=True)


def test_the_host_that_a_reverse_proxy_tells_must_be_a_name_of_the_grid_too() -> None:
    access = Access(allowed_hosts=frozenset({"grid.example"}), loopback_listeners=frozenset({("127.0.0.1", 8080)}))
    asked(access, "127.0.0.1:8080", "grid.example:8443")
    for host, forwarded in (("127.0.0.1:8080", "evil.example"), ("evil.example", "grid.example")):  # DNS rebinding
        with pytest.raises(Refusal, match="ALLOWED_HOSTS"):
            asked(access, host, forwarded)
    with pytest.raises(Refusal, match="names one host"):
        asked(access, "127.0.0.1:8080", "grid.example, evil")


def test_the_dashboard_s_own_origin_is_that_of_the_host_that_its_browser_has_asked_for() -> None:
    access = Access(allowed_hosts=frozenset({"grid.example"}), own_origins=frozenset({"https://told.example"}))
    asked(access, "127.0.0.1:8080", "grid.example", "https://grid.example")
    asked(access, "127.0.0.1:8080", origin="https://told.example")  # ADVERTISED_URL's
    for origin in ("https://evil.example", "https://127.0.0.1:8080"):
        with pytest.raises(Refusal, match="ALLOWED_ORIGINS"):
            asked(access, "127.0.0.1:8080", "grid.example", origin)
