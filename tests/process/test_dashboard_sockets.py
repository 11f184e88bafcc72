"""The WebSockets of the grid's own page, with a fake browser server: nothing that a page does is an error."""

import contextlib
import json
import socket
import struct
from collections.abc import Iterator

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.frames import CloseCode
from websockets.sync.client import connect

from pwgrid.proxy.dashboard.feed import MOST_PAGES
from tests.support import raw
from tests.support.grid import Grid, running_grid

SENSELESS = ("", "{", "null", "7", "[]", '"x"', '{"page":7}', b"\xff\x00", b"{}")
NOT_UTF_8 = b"\x81\x84\0\0\0\0\xff\xfe\x80\x80"
"""A masked frame of text."""

RESET = struct.pack("ii", 1, 0)
MALFORMED = (
    b"\r\nX A: 1",
    b"\r\nno colon",
    b"\r\nA: 1\nB: 2",
    b"\r\nContent-Length: 1",
    b"\r\nA: " + b"a" * 10_000,
    b"".join(b"\r\nA%d: 1" % number for number in range(200)),
)
"""What is behind the other headers."""

REFUSED = (("/v1/live/0123", "", 403), ("/v1/live/0123/4", "", 404), ("/v1/live", "http://evil.example", 403))


@pytest.fixture(scope="module")
def grid() -> Iterator[Grid]:
    """Shows nobody a session."""
    environment = {"LIVE_VIEW": "false", "TRUSTED_PROXIES": "127.0.0.1"}
    with running_grid("--chromium", "1", fake=True, environment=environment) as made:
        yield made


def errors(grid: Grid) -> list[str]:
    """Of its log, once the proxy has done with all pages before."""
    with connect(f"{grid.endpoint}/v1/live") as page:
        page.recv(timeout=30)
        page.recv(timeout=30)
    return [line for line in grid.output().splitlines() if "[error" in line]


def test_the_feed_goes_on_whatever_a_page_says(grid: Grid) -> None:
    with connect(f"{grid.endpoint}/v1/live") as page:
        for each in SENSELESS:
            page.send(each)
        page.socket.sendall(NOT_UTF_8)
        with contextlib.closing(raw.session(grid.port)):
            while not json.loads(page.recv(timeout=30)).get("set", {}).get("sessions"):
                pass
    assert errors(grid) == []


def test_a_page_comes_by_a_reverse_proxy_that_tells_its_address_in_fields_of_any_case(grid: Grid) -> None:
    told = {"X_Forwarded_Host": "127.0.0.1:9", "X-FORWARDED-PROTO": "https", "x-forwarded-prefix": "/grid"}
    with contextlib.closing(raw.connect(grid.port)) as page:
        page.sendall(raw.head(target="/grid/v1/live", Origin="https://127.0.0.1:9", **told))
        assert page.recv(4096).startswith(b"HTTP/1.1 101 ")


@pytest.mark.parametrize(("target", "origin", "status"), REFUSED)
def test_a_page_that_is_refused_is_no_error(grid: Grid, target: str, origin: str, status: int) -> None:
    with contextlib.closing(raw.connect(grid.port)) as page:
        page.sendall(raw.head(target=target, Origin=origin or None))
        assert raw.read_all(page).startswith(b"HTTP/1.1 %d " % status)
    assert errors(grid) == []


@pytest.mark.parametrize("more", MALFORMED)
def test_a_head_that_cannot_be_read_is_answered_and_its_connection_closed(grid: Grid, more: bytes) -> None:
    with contextlib.closing(raw.connect(grid.port)) as page:
        page.sendall(raw.head(target="/v1/live").replace(b"\r\n\r\n", more + b"\r\n\r\n"))
        assert raw.read_all(page).startswith(b"HTTP/1.1 400 ")
    assert errors(grid) == []


def test_a_target_that_is_not_ascii_is_answered_and_its_connection_closed(grid: Grid) -> None:
    with contextlib.closing(raw.connect(grid.port)) as page:
        page.sendall(raw.head(target="/v1/live?x").replace(b"?x", b"?\xff"))
        assert raw.read_all(page).startswith(b"HTTP/1.1 400 ")
    assert errors(grid) == []


@pytest.mark.parametrize("frame", [b"\xff\xff", b"\x89\x80\0\0\0\0", NOT_UTF_8])
def test_who_speaks_before_the_answer_is_disconnected(grid: Grid, frame: bytes) -> None:
    with contextlib.closing(raw.connect(grid.port)) as page:
        page.sendall(raw.head(target="/v1/live") + frame)
        with contextlib.suppress(ConnectionResetError):
            assert raw.read_all(page) == b""
    assert errors(grid) == []


def test_a_page_that_is_gone_before_it_is_told_anything_is_no_error(grid: Grid) -> None:
    for _ in range(50):
        with contextlib.closing(raw.connect(grid.port)) as page:
            page.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            page.sendall(raw.head(target="/v1/live"))
    assert errors(grid) == []


def test_a_page_hears_that_as_many_look_as_may(grid: Grid) -> None:
    with contextlib.ExitStack() as pages:
        for _ in range(MOST_PAGES):
            page = pages.enter_context(connect(f"{grid.endpoint}/v1/live"))
            assert "you" in json.loads(page.recv(timeout=30))
        with connect(f"{grid.endpoint}/v1/live") as late:
            assert json.loads(late.recv(timeout=30)) == {"full": MOST_PAGES}
            with pytest.raises(ConnectionClosed) as ended:
                late.recv(timeout=30)
            assert ended.value.rcvd is not None
            assert ended.value.rcvd.code == CloseCode.TRY_AGAIN_LATER
    assert errors(grid) == []
