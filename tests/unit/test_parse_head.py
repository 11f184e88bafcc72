"""The head of an upgrade: read whole, or refused."""

import pytest

from pwgrid.proxy.connect.first_bytes import parse_head
from pwgrid.proxy.policy.refusal import Refusal, RefusalReason

HEAD = b"GET /?browser=chromium HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n%s\r\n"


def test_a_head_is_read_with_its_target_and_all_its_fields() -> None:
    request, _ = parse_head(HEAD % b"X-A: one\r\nx-a: two\r\nUser-Agent: caf\xe9\r\nContent-Length: 0\r\n")
    assert (request.method, request.path) == ("GET", "/?browser=chromium")
    assert request.headers.get_all("x-a") == ["one", "two"]
    assert request.headers["user-agent"] == "café"


KEYS = ("AAAAAAAAAAAAAAAAAAAAAA==", "BBBBBBBBBBBBBBBBBBBBBB==")
KEY_LINE = b"Sec-WebSocket-Key: %s\r\n"


def test_heads_that_are_the_same_but_for_the_key_are_one_and_have_each_its_own() -> None:
    parsed = [parse_head(HEAD % (KEY_LINE % key.encode() + b"Cookie: a=b\r\n")) for key in KEYS]
    assert tuple(key for _, key in parsed) == KEYS
    assert parsed[0][0] is parsed[1][0]
    for head, key in parsed:
        assert head.headers.get_all("cookie") == ["a=b"]
        assert head.with_key(key).headers.get_all("sec-websocket-key") == [key]
        assert len([*head.with_key(key).headers.raw_items()]) == 5


def test_a_large_head_is_not_kept() -> None:
    head = HEAD % (KEY_LINE % KEYS[0].encode() + b"Cookie: %s\r\n" % (b"a" * 4096))
    (first, key), (second, _) = parse_head(head), parse_head(head)
    assert first is not second
    assert key == KEYS[0]
    assert first.with_key(key).headers.get_all("sec-websocket-key") == [key]


def test_a_key_is_read_that_is_written_otherwise_than_most_write_it() -> None:
    assert parse_head(HEAD % b"sec-websocket-key: no key\r\n")[1] == "no key"
    assert parse_head(HEAD % b"")[1] == ""


def test_of_two_keys_both_are_read() -> None:
    both = b"".join(KEY_LINE % key.encode() for key in KEYS)
    for _ in range(2):
        head, _ = parse_head(HEAD % both)
        assert len(head.headers.get_all("sec-websocket-key")) == 2


def test_a_key_that_goes_on_in_the_next_line_is_no_whole_one() -> None:
    folded = KEY_LINE % KEYS[0].encode() + b" more\r\n"
    with pytest.raises(Refusal):
        parse_head(HEAD % folded)


@pytest.mark.parametrize(
    ("head", "sentence"),
    [
        (HEAD % b"Content-Length: 5\r\n", "no body"),
        (HEAD % b"Transfer-Encoding: chunked\r\n", "no body"),
        (HEAD % b"bad field\r\n", "Invalid header token"),
        (HEAD % b"X-A: a\x01b\r\n", "Invalid header value"),
        (HEAD % b"Content-Length: 5\r\nContent-Length: 6\r\n", "bad WebSocket handshake"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", "bad WebSocket handshake"),
    ],
)
def test_what_is_no_head_of_an_upgrade_is_a_400(head: bytes, sentence: str) -> None:
    with pytest.raises(Refusal, match=sentence) as refused:
        parse_head(head)
    assert (refused.value.status, refused.value.reason) == (400, RefusalReason.BAD_HANDSHAKE)


@pytest.mark.parametrize(
    ("target", "path"),
    [
        (b"http://grid:8080/?browser=chromium", "/?browser=chromium"),
        (b"HTTPS://grid/a//b?c=http://d/", "/a//b?c=http://d/"),
        (b"http://grid:8080", "/"),
        (b"http://[::1]:8080?pool=a", "/?pool=a"),
        (b"//grid/x", "//grid/x"),
    ],
)
def test_the_whole_url_as_proxies_get_it_is_read_as_its_path(target: bytes, path: str) -> None:
    head, _ = parse_head((HEAD % b"").replace(b"/?browser=chromium", target))
    assert head.path == path
