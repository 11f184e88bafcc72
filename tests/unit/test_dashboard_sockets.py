"""Which upgrades are for the grid's own page. All others are sessions, as before."""

import pytest

from pwgrid.proxy.connect.dashboard_protocol import is_dashboard_head


@pytest.mark.parametrize("target", ["/v1/live", "/v1/live?token=a", "/v1/live/0123abcd", "/v1/live/0123abcd?x=/"])
def test_the_page_s_own_are_known_by_their_path(target: str) -> None:
    assert is_dashboard_head(f"GET {target} HTTP/1.1\r\nHost: a\r\n\r\n".encode())


@pytest.mark.parametrize(
    "target",
    [
        "/",
        "/?browser=chromium",
        "/v1",
        "/v1/lives",
        "/v1/live2",
        "/?x=/v1/live",
        "/lease/v1/live2",
        "/playwright/chromium/a.b",
    ],
)
def test_all_others_are_sessions(target: str) -> None:
    assert not is_dashboard_head(f"GET {target} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
