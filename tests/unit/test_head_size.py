"""The refusal of a request head that is too large names what made it so."""

import pytest

from pwgrid.proxy.connect.bounded_http import parts_of
from pwgrid.proxy.policy.refusal import head_too_large

OPTIONS = "x-playwright-launch-options"


@pytest.mark.parametrize(
    ("parts", "sentence"),
    [
        (
            [("", 2), ("host", 10), ("X-Playwright-Launch-Options", 51_200)],
            f"of which its header {OPTIONS} has at least 51200: pass fewer launch options",
        ),
        ([("", 40_000), ("host", 10)], "of which its URL has at least 40000: shorten it"),
        ([("a", 99)] * 400, "of which its header a has at least 99: shorten it, or leave it out"),
        ([("Cookie", 40_000)], "of which its header cookie has at least 40000: a client needs none"),
        ([("b\x1b[2Jü" + "x" * 50_000, 50_000)], f"of which its header b??2j?{'x' * 34} has at least 50000"),
        ([], "of which its URL has at least 0: shorten it"),
    ],
)
def test_it_names_the_largest_part(parts: list[tuple[str, int]], sentence: str) -> None:
    refusal = head_too_large(32_768, parts)
    assert refusal.status == 431
    assert refusal.error.startswith(f"the request head is larger than 32768 bytes, {sentence}")
    assert len(refusal.error) < 300


def test_the_parts_of_a_head_that_is_cut_off() -> None:
    head = b"\r\nGET /?browser=chromium HTTP/1.1\r\nHost: a\r\nA : b\r\nx-playwright-launch-options: {"
    assert list(parts_of(head)) == [("", 33), ("Host", 9), ("A", 7), (OPTIONS, 32)]
