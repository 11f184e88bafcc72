"""Which pool's label key serves one that is asked for: the order of the ways, their switches, and ties; and how a key
is refused that none serves."""

from itertools import permutations

import pytest

from pwgrid.common.label_keys import RULE, parse
from pwgrid.proxy.policy.label_match import OfferedLabels
from pwgrid.proxy.policy.refusal import Refusal

DEFAULT = OfferedLabels()
NO_FALLBACK = OfferedLabels(trailing_fallback=False)
NO_EXPANSION = OfferedLabels(prefix_expand=False)
EXACT_ALONE = OfferedLabels(trailing_fallback=False, prefix_expand=False)
WILD = OfferedLabels(wildcards=True)
WILD_ALONE = OfferedLabels(trailing_fallback=False, prefix_expand=False, wildcards=True)

TABLE = [
    # asked for            offered                                                  switches      serves
    # exact, whatever the case; the key is shown as the pool has it
    ("AppA:Chromium:UAT", "AppA:Chromium:UAT AppA:Chromium AppA:Chromium:UAT:EU", DEFAULT, "AppA:Chromium:UAT"),
    ("appa:CHROMIUM:uat", "AppA:Chromium:UAT", EXACT_ALONE, "AppA:Chromium:UAT"),
    ("AppA:Chromium:UAT", "AppA:Chromium AppA:Chromium:UAT:EU", EXACT_ALONE, None),
    ("AppA:Chromium:UAT", "AppB:Chromium:UAT AppA:Firefox:UAT AppA:Chromium:Prod", DEFAULT, None),
    ("AppA:Chromium:UAT", "", DEFAULT, None),
    # trailing fallback: the longest that is left, never fewer than two segments, before any expansion
    ("A:Chromium:UAT:EU", "A:Chromium A:Chromium:UAT", DEFAULT, "A:Chromium:UAT"),
    ("A:Chromium:UAT:EU", "A:Chromium", DEFAULT, "A:Chromium"),
    ("A:Chromium:UAT", "A:Chromium A:Chromium:UAT:EU", DEFAULT, "A:Chromium"),
    ("A:Chromium:UAT", "A:Chromium A:Chromium:UAT:EU", NO_FALLBACK, "A:Chromium:UAT:EU"),
    ("A:Chromium:UAT:EU", "A:Chromium A:Chromium:UAT", NO_FALLBACK, None),
    ("A:Chromium:UAT", "A:Firefox", DEFAULT, None),
    ("a:chromium:c:d:e:f:g:h", "a:chromium a:chromium:c", DEFAULT, "a:chromium:c"),
    # what a shorter key would be expanded to is not looked for
    ("A:Chromium:UAT", "A:Chromium:Prod", DEFAULT, None),
    # prefix expansion: the shortest, then the first in the alphabet without regard to case
    ("B:Firefox", "B:Firefox:UAT B:Firefox:Prod:EU", DEFAULT, "B:Firefox:UAT"),
    ("B:Firefox", "B:Firefox:Prod:EU:Linux B:Firefox:UAT:EU", DEFAULT, "B:Firefox:UAT:EU"),
    ("B:Firefox", "B:Firefox:UAT B:Firefox:Prod B:Firefox:Staging", DEFAULT, "B:Firefox:Prod"),
    ("B:Firefox", "B:Firefox:b B:Firefox:A B:Firefox:C", DEFAULT, "B:Firefox:A"),
    ("B:Firefox", "B:Firefox:a-1 B:Firefox:a:b", DEFAULT, "B:Firefox:a-1"),
    ("B:Firefox", "B:Firefox:UAT", NO_EXPANSION, None),
    ("B:Firefox:U", "B:Firefox:UAT", DEFAULT, None),  # whole segments only
    # wildcards, last: the same length before longer ones
    ("A:*:UAT", "A:Firefox:UAT A:Chromium:UAT:EU", WILD, "A:Firefox:UAT"),
    ("A:*:UAT", "A:Firefox:UAT A:Chromium:UAT", WILD, "A:Chromium:UAT"),
    ("*:Firefox:Staging", "B:Firefox:Staging A:Firefox:Staging A:Chromium:Staging", WILD, "A:Firefox:Staging"),
    ("A:*:UAT", "A:Chromium:UAT:EU", WILD, "A:Chromium:UAT:EU"),
    ("A:*:UAT", "A:Chromium:UAT:EU", WILD_ALONE, None),
    ("A:*:UAT", "A:Chromium:UAT", WILD_ALONE, "A:Chromium:UAT"),
    ("A:*:UAT", "A:Chromium:UAT", DEFAULT, None),
    ("A:*:UAT", "A:Chromium B:Chromium:UAT", WILD, None),
    ("*:*", "B:WebKit A:Firefox:Prod", WILD, "B:WebKit"),
    # a segment that is dropped at the end comes before a wildcard
    ("A:Chromium:*", "A:Chromium A:Chromium:UAT", WILD, "A:Chromium"),
    ("A:Chromium:*", "A:Chromium A:Chromium:UAT", WILD_ALONE, "A:Chromium:UAT"),
    # the switch changes nothing for keys without one
    ("A:Chromium:UAT", "A:Chromium:Prod A:Firefox:UAT", WILD, None),
]


@pytest.mark.parametrize(("wanted", "offered", "switches", "serves"), TABLE)
def test_the_key_that_serves(wanted: str, offered: str, switches: OfferedLabels, serves: str | None) -> None:
    asked = parse(wanted, wildcards=True)
    keys = [parse(each) for each in offered.split()]
    for order in permutations(keys):
        found = switches.match(asked, order)
        assert (None if found is None else str(found)) == serves


KEYS = dict.fromkeys(map(parse, ("AppB:Firefox:UAT", "AppA:Chromium:UAT", "appA:Firefox:UAT")), "pool")


def refused(keys: OfferedLabels, text: str) -> Refusal:
    with pytest.raises(Refusal) as raised:
        keys.serving(text)
    return raised.value


def test_a_label_key_is_served_by_that_of_a_pool_as_the_pool_has_it() -> None:
    assert str(OfferedLabels(KEYS).serving(" appa:CHROMIUM:uat:eu ")) == "AppA:Chromium:UAT"


def test_what_is_no_label_key_is_400_with_the_rule() -> None:
    refusal = refused(OfferedLabels(KEYS), "AppA")
    assert (refusal.status, refusal.error) == (400, f"'AppA' is no label key (it has 1 segment): {RULE}")
    assert refused(OfferedLabels(KEYS), "*:Chromium:UAT").status == 400
    assert refused(OfferedLabels(KEYS, wildcards=True), "*:Webkit:UAT").status == 404


def test_a_label_key_without_a_pool_is_404_with_those_that_there_are() -> None:
    refusal = refused(OfferedLabels(KEYS), "AppC:Chromium:UAT")
    known = ["AppA:Chromium:UAT", "appA:Firefox:UAT", "AppB:Firefox:UAT"]
    assert (refusal.status, refusal.details) == (404, {"labelKeys": known})
    assert refusal.error == f"no pool serves the label key AppC:Chromium:UAT: there are {', '.join(known)}"
    assert refused(OfferedLabels(), "AppC:Chromium:UAT").error.endswith(": no pool of this grid has label keys")


def test_a_wildcard_for_the_browser_stands_for_the_client_s_own() -> None:
    offered = OfferedLabels(KEYS, wildcards=True)
    assert str(offered.serving("AppA:*:UAT")) == "AppA:Chromium:UAT"
    assert str(offered.serving("AppA:*:UAT", "firefox")) == "appA:Firefox:UAT"
