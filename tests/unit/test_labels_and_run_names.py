"""What a client says of its session beside the browser: a label key, the name of its run; and how both are refused."""

import pytest

from pwgrid.common.label_keys import RULE, parse
from pwgrid.proxy.policy.label_match import Switches
from pwgrid.proxy.policy.labels_and_run_names import NAME_RULE, Offered, run_name
from pwgrid.proxy.policy.refusal import Refusal

KEYS = dict.fromkeys(map(parse, ("AppB:Firefox:UAT", "AppA:Chromium:UAT", "appA:Firefox:UAT")), "pool")


def refused(keys: Offered, text: str) -> Refusal:
    with pytest.raises(Refusal) as raised:
        keys.serving(text)
    return raised.value


def test_a_label_key_is_served_by_that_of_a_pool_as_the_pool_has_it() -> None:
    assert str(Offered(KEYS).serving(" appa:CHROMIUM:uat:eu ")) == "AppA:Chromium:UAT"


def test_what_is_no_label_key_is_400_with_the_rule() -> None:
    refusal = refused(Offered(KEYS), "AppA")
    assert (refusal.status, refusal.error) == (400, f"'AppA' is no label key (it has 1 segment): {RULE}")
    assert refused(Offered(KEYS), "*:Chromium:UAT").status == 400
    assert refused(Offered(KEYS, Switches(wildcards=True)), "*:Webkit:UAT").status == 404


def test_a_label_key_without_a_pool_is_404_with_those_that_there_are() -> None:
    refusal = refused(Offered(KEYS), "AppC:Chromium:UAT")
    known = ["AppA:Chromium:UAT", "appA:Firefox:UAT", "AppB:Firefox:UAT"]
    assert (refusal.status, refusal.details) == (404, {"labelKeys": known})
    assert refusal.error == f"no pool serves the label key AppC:Chromium:UAT: there are {', '.join(known)}"
    assert refused(Offered(), "AppC:Chromium:UAT").error.endswith(": no pool of this grid has label keys")


def test_a_wildcard_for_the_browser_stands_for_the_client_s_own() -> None:
    offered = Offered(KEYS, Switches(wildcards=True))
    assert str(offered.serving("AppA:*:UAT")) == "AppA:Chromium:UAT"
    assert str(offered.serving("AppA:*:UAT", "firefox")) == "appA:Firefox:UAT"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (" Smoke 12 ", "Smoke 12"),
        ("a.b_c-D 9", "a.b_c-D 9"),
        ("x" * 128, "x" * 128),
        (" " * 200, ""),
        ("", ""),
        (None, ""),
    ],
)
def test_the_name_of_a_run(text: str | None, name: str) -> None:
    assert run_name(text, "runName") == name


@pytest.mark.parametrize("text", ["x" * 129, "a/b", "a\nb", "<b>", "ü", "a:b", 'a"b', "a,b", "a\tb", "\U0001f600"])
def test_a_name_that_breaks_the_rule_is_400_with_the_rule_and_not_repeated(text: str) -> None:
    with pytest.raises(Refusal) as raised:
        run_name(text, "runName")
    assert (raised.value.status, raised.value.error) == (400, f"runName: use {NAME_RULE}")
