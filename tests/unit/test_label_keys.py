"""What is a label key, what is none and why, and when two are the same."""

import pytest

from pwgrid.common.label_keys import RULE, LabelKeyError, parse


@pytest.mark.parametrize(
    ("text", "segments", "browser_type"),
    [
        ("AppA:Chromium:UAT", ("appa", "chromium", "uat"), "chromium"),
        ("AppA:firefox", ("appa", "firefox"), "firefox"),
        ("a:WebKit:b:c:d:e:f:g", ("a", "webkit", "b", "c", "d", "e", "f", "g"), "webkit"),
        ("  my.app_1-x:CHROMIUM:eu-west-1 ", ("my.app_1-x", "chromium", "eu-west-1"), "chromium"),
        (f"{'a' * 64}:chromium", ("a" * 64, "chromium"), "chromium"),
    ],
)
def test_a_label_key(text: str, segments: tuple[str, ...], browser_type: str) -> None:
    key = parse(text)
    assert (key.segments, key.browser_type, str(key)) == (segments, browser_type, text.strip())


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "it has 1 segment"),
        ("AppA", "it has 1 segment"),
        ("a:chromium:c:d:e:f:g:h:i", "it has 9 segments"),
        ("AppA::UAT", "segment 2 is empty"),
        (":chromium", "segment 1 is empty"),
        ("AppA:chromium:", "segment 3 is empty"),
        ("AppA:chrome:UAT", "its second segment is no browser"),
        ("UAT:AppA:chromium", "its second segment is no browser"),
        ("App A:chromium", "segment 1 is too long, or has other characters"),
        ("AppÄ:chromium", "segment 1 is too long, or has other characters"),
        ("A,B:chromium", "segment 1 is too long, or has other characters"),
        ("A=1:chromium", "segment 1 is too long, or has other characters"),
        ("A:chromium:x\n", None),  # what is around it is left out
        ("A:chromium:x\ny", "segment 3 is too long, or has other characters"),
        (f"{'a' * 65}:chromium", "segment 1 is too long, or has other characters"),
        ("*:chromium", "segment 1 is a wildcard, which may not be used here"),
        ("AppA:*:UAT", "segment 2 is a wildcard, which may not be used here"),
        ("AppA:chromium:UA*", "segment 3 is too long, or has other characters"),
    ],
)
def test_what_is_no_label_key_is_told_why_and_the_rule(text: str, fault: str | None) -> None:
    if fault is None:
        parse(text)
        return
    with pytest.raises(LabelKeyError) as refused:
        parse(text)
    assert str(refused.value) == f"{text!r} is no label key ({fault}): {RULE}"


def test_a_long_text_is_not_repeated_in_full() -> None:
    with pytest.raises(LabelKeyError) as refused:
        parse("x" * 100_000)
    assert len(str(refused.value)) < 500


def test_wildcards_are_whole_segments_where_they_are_allowed() -> None:
    key = parse("AppA:*:UAT", wildcards=True)
    assert (key.segments, key.browser_type, key.has_wildcards) == (("appa", "*", "uat"), None, True)
    assert not parse("AppA:chromium:UAT", wildcards=True).has_wildcards
    with pytest.raises(LabelKeyError, match="segment 3 is too long, or has other characters"):
        parse("AppA:chromium:U*", wildcards=True)


def test_keys_are_the_same_whatever_the_case_of_their_letters() -> None:
    one, other = parse("AppA:Chromium:UAT"), parse("appa:chromium:uat")
    assert one == other
    assert len({one, other}) == 1
    assert (str(one), str(other)) == ("AppA:Chromium:UAT", "appa:chromium:uat")
    assert one != parse("AppA:Chromium:UAT:EU")
