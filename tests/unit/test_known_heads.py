"""What is remembered of an upgrade head gives just what judging it again would give."""

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pwgrid.proxy.connect.known_heads import LONGEST_HEAD_BYTES, MOST_HEADS, KnownHeads
from pwgrid.proxy.policy.upgrade_request import Wanted, browser_server_headers

WANTED = Wanted("chromium", "1.65")
KEY = "dGhlIHNhbXBsZSBub25jZQ=="


def head(key: str = KEY, agent: str = "Playwright/1.65.2", more: str = "") -> bytes:
    return (
        f"GET /?browser=chromium HTTP/1.1\r\nHost: grid:8080\r\nSec-WebSocket-Version: 13\r\n"
        f"Sec-WebSocket-Key: {key}\r\nUser-Agent: {agent}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n{more}\r\n"
    ).encode()


def lines(raw: bytes, *, compression: bool = False) -> bytes:
    pairs = [line.split(b": ", 1) for line in raw.split(b"\r\n")[1:-2]]
    return browser_server_headers([(name.lower(), value) for name, value in pairs], compression=compression)


def knowing(raw: bytes) -> KnownHeads:
    known = KnownHeads()
    known.keep(raw, WANTED, lines(raw), compression=False)
    return known


@given(st.binary(min_size=16, max_size=16))
def test_the_same_head_with_any_other_key_is_known_and_gets_that_key(nonce: bytes) -> None:
    other = head(base64.b64encode(nonce).decode())
    assert knowing(head()).find(other, compression=False) == (WANTED, lines(other))


@pytest.mark.parametrize(
    "other",
    [
        head(agent="Playwright/1.64.0"),
        head(more="Origin: https://evil.example\r\n"),
        head(key="dGhlIHNhbXBsZSBub25jZQ="),
        head(key="dGhlIHNhbXBsZSBub25jZ\r\n="),
        head(key="dGhlIHNhbXBsZSBub25jZQ=\n"),
        head(key="x" * 24),
        head()[:-1],
        head() + b"early bytes",
        head().replace(b"browser=chromium", b"browser=firefox"),
        head().replace(b"Sec-WebSocket-Key: ", b"Sec-WebSocket-Kex: "),
        b"",
        b"GET / HTTP/1.1\r\n\r\n",
    ],
)
def test_a_head_that_differs_in_more_than_a_good_key_is_not_known(other: bytes) -> None:
    assert knowing(head()).find(other, compression=False) is None


def test_what_was_judged_for_a_client_on_this_host_is_not_known_for_another_one() -> None:
    assert knowing(head()).find(head(), compression=True) is None


@pytest.mark.parametrize(
    "odd",
    [
        head(more=f"x-long: {'x' * LONGEST_HEAD_BYTES}\r\n"),
        head(more=f"x-playwright-copy: {KEY}\r\n"),
        head(key="not a key"),
        head().replace(b"Sec-WebSocket-Key: ", b"sec-websocket-key: "),
        head(more=f"Sec-WebSocket-Key: {KEY}\r\n"),
        b"",
    ],
)
def test_a_head_that_is_long_or_odd_is_not_remembered(odd: bytes) -> None:
    assert knowing(odd).find(odd, compression=False) is None


def test_when_what_is_allowed_changes_all_is_forgotten() -> None:
    known = knowing(head())
    known.forget_all()
    assert known.find(head(), compression=False) is None


def test_only_so_many_heads_are_remembered() -> None:
    known = KnownHeads()
    for number in range(3 * MOST_HEADS):
        raw = head(agent=f"Playwright/1.65.2 run {number}")
        known.keep(raw, WANTED, lines(raw), compression=False)
        assert known.find(raw, compression=False) == (WANTED, lines(raw))
    assert repr(known) == f"<KnownHeads {MOST_HEADS}>"
