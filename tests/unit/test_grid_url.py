"""The URL of a grid: what it says, and what of it is shown."""

import pytest

from pwgrid.common.grid_url import GridUrl, is_path, without_secrets


@pytest.mark.parametrize(
    ("url", "said", "web_socket", "origin"),
    [
        ("http://grid", GridUrl(False, "grid"), "ws://grid", "http://grid"),
        ("wss://Grid:8443/", GridUrl(True, "grid", 8443), "wss://grid:8443", "https://grid:8443"),
        ("https://grid:443/", GridUrl(True, "grid", 443), "wss://grid:443", "https://grid"),
        (
            "ws://[::1]:8080/?token=a%20b",
            GridUrl(False, "::1", 8080, token="a b"),
            "ws://[::1]:8080",
            "http://[::1]:8080",
        ),
        (
            "https://me:a%40b@grid/under/here/",
            GridUrl(True, "grid", None, "/under/here", "me:a%40b"),
            "wss://me:a%40b@grid/under/here",
            "https://grid",
        ),
    ],
)
def test_it_is_taken_apart_and_put_together(url: str, said: GridUrl, web_socket: str, origin: str) -> None:
    assert GridUrl.parse(url) == said
    assert (said.web_socket, said.origin) == (web_socket, origin)


@pytest.mark.parametrize(
    "url", ["", "grid:8080", "ftp://grid", "http://", "ws://h:x", "ws://h:99999", "ws://h:0", "ws://[::1"]
)
def test_what_is_none_is_refused_without_its_secrets(url: str) -> None:
    with pytest.raises(ValueError, match="is no URL of a grid: use ws://host:8080"):
        GridUrl.parse(url)
    with pytest.raises(ValueError) as caught:
        GridUrl.parse(f"ftp://me:s3cret@grid/?token=s3cret{url}")
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(("text", "is_good"), [("", True), ("/a/b", True), ("/%C3%BC", True)])
@pytest.mark.parametrize("end", ["", "/", "//", " ", "ü", "?", "#", "%", "/../%2"])
def test_a_path_is_one_that_needs_no_escaping(text: str, is_good: bool, end: str) -> None:
    assert is_path(text + end) is (is_good and not end)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("ws://127.0.0.1:8080/?browser=chromium", "ws://127.0.0.1:8080/?browser=chromium"),
        ("wss://me:s3cret@grid:1/p", "wss://me:***@grid:1/p"),
        ("wss://s3cret@grid", "wss://***@grid"),
        ("wss://me:s3/cr?et@grid", "wss://me:***@grid"),
        ("ws://grid/?token=s3cret&name=a#b", "ws://grid/?token=***&name=a#b"),
        ("ws://grid/?TOKEN=s3c@ret&name=a", "ws://***@***&name=a"),
        (
            "ws://me:s3cret@grid/?x-hub-secret=s3cret&sslpassword=s3cret",
            "ws://me:***@grid/?x-hub-secret=***&sslpassword=***",
        ),
        ("ws://grid/lease/chromium/aa/bb.s3cret", "ws://grid/lease/chromium/aa/bb.***"),
        ("ws://grid/under/playwright/firefox/aa.s3cret?name=a", "ws://grid/under/playwright/firefox/aa.***?name=a"),
        ("me:s3cret@grid", "me:***@grid"),
        ("", ""),
    ],
)
def test_secrets_are_not_shown(url: str, shown: str) -> None:
    assert without_secrets(url) == shown
