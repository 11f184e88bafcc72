"""Which pool a client gets, by browser type, protocol, Playwright version, label key, named pool and token."""

import re

import orjson
import pytest

from pwgrid.common.label_keys import parse
from pwgrid.common.types import BrowserType, Protocol
from pwgrid.proxy.policy.access import ANYBODY, Identity
from pwgrid.proxy.policy.choose_pool import Choice, Offer, Wanted, choose_pool, no_longer_for, pool_of_label
from pwgrid.proxy.policy.label_match import OfferedLabels
from pwgrid.proxy.policy.refusal import Refusal
from pwgrid.proxy.roster import PoolView
from pwgrid.tokens.tokens import Role


def pool(name: str, version: str, *, leaving: str = "", browser: BrowserType = "chromium", like: str = "") -> PoolView:
    """A pool of this version; some of its workers still have the version `leaving`."""
    versions = frozenset({version, leaving} - {""})
    wanted = 0 if like else 1
    return PoolView(
        *(wanted, wanted, None, name, browser),
        playwright=version,
        versions=versions,
        like=like,
        is_on_demand=bool(like),
    )


def offer(*pools: PoolView, **labels: str) -> Offer:
    """These pools; `labels` are label keys of pools, several of them separated by spaces."""
    keys: dict[object, tuple[str, ...]] = {}
    for name, texts in labels.items():
        for text in texts.split():
            keys[parse(text)] = (*keys.get(parse(text), ()), name)
    return Offer({each.name: each for each in pools}, "chromium", OfferedLabels(keys))  # type: ignore[arg-type]


UAT, EU = "A:Chromium:UAT", "A:Chromium:UAT:EU"
OLD = pool("chromium-1.58", "1.58", like="chromium")
SHOP = offer(
    pool("chromium", "1.65"),
    pool("appa", "1.65"),
    pool("appb", "1.62"),
    pool("firefox", "1.65", browser="firefox"),
    pool("foxes", "1.62", browser="firefox"),
    OLD,
    appa=f"{UAT} {EU}",
    appb=UAT,
)
UPGRADING = offer(pool("chromium", "1.66", leaving="1.65"), pool("other", "1.64"), OLD)
BACK = offer(pool("chromium", "1.66", leaving="1.65"), pool("chromium-1.65", "1.65", like="chromium"))
UNKNOWN = Offer({"chromium": PoolView(1, 0, None, "chromium", "chromium")}, "chromium", OfferedLabels())
CDP = Protocol.CDP


def only(*pools: str) -> Identity:
    return Identity("a", Role.CLIENT, 0, frozenset(pools), "1")


@pytest.mark.parametrize(
    ("there", "wanted", "identity", "chosen"),
    [
        (SHOP, Wanted(), ANYBODY, "chromium"),
        (SHOP, Wanted("chromium", "1.65"), ANYBODY, "chromium"),
        (SHOP, Wanted("chromium", "1.62"), ANYBODY, "appb"),
        (SHOP, Wanted("chromium", "1.58"), ANYBODY, "chromium-1.58"),
        (SHOP, Wanted("firefox", "1.62"), ANYBODY, "foxes"),
        (SHOP, Wanted("firefox"), ANYBODY, "firefox"),
        (SHOP, Wanted(protocol=CDP), ANYBODY, "chromium"),  # speaks no version: the default pool
        (SHOP, Wanted(pool="chromium-1.58", protocol=CDP), ANYBODY, "chromium-1.58"),
        (SHOP, Wanted("chromium", "1.62", pool="appb"), ANYBODY, "appb"),
        # Tokens: the pools that they may use come first, and who may use a pool may use what is made after it.
        (SHOP, Wanted("chromium", "1.65"), only("appa"), "appa"),
        (SHOP, Wanted("chromium", "1.58"), only("chromium"), "chromium-1.58"),
        (SHOP, Wanted("chromium", "1.62"), only("appa"), "appb"),  # and is refused there
        # Label keys: the same key may be of pools of several versions.
        (SHOP, Wanted(None, "1.65", labels=UAT), ANYBODY, "appa"),
        (SHOP, Wanted(None, "1.62", labels=UAT), ANYBODY, "appb"),
        (SHOP, Wanted(None, "1.62", labels=EU), ANYBODY, "appb"),  # by its shorter key
        (SHOP, Wanted(None, None, labels=UAT), ANYBODY, "appa"),
        (SHOP, Wanted(None, None, "appb", UAT), ANYBODY, "appb"),
        # While a pool gets workers of another version it serves both.
        (UPGRADING, Wanted("chromium", "1.66"), ANYBODY, "chromium"),
        (UPGRADING, Wanted("chromium", "1.65"), ANYBODY, "chromium"),
        (BACK, Wanted("chromium", "1.65"), ANYBODY, "chromium-1.65"),
        (BACK, Wanted("chromium", "1.66"), ANYBODY, "chromium"),
        (UNKNOWN, Wanted("chromium", "1.40"), ANYBODY, "chromium"),
    ],
)
def test_a_client_gets_a_pool_of_its_version(there: Offer, wanted: Wanted, identity: Identity, chosen: str) -> None:
    assert choose_pool(there, wanted, identity).pool == chosen


def test_the_choice_has_the_pool_s_label_key() -> None:
    assert choose_pool(SHOP, Wanted(None, "1.62", labels=EU), ANYBODY) == Choice("appb", parse(UAT))
    assert choose_pool(SHOP, Wanted(), ANYBODY).label_key is None


@pytest.mark.parametrize(
    ("wanted", "status", "sentence", "versions"),
    [
        (
            Wanted("chromium", "1.60"),
            428,
            "this client is Playwright 1.60, and the chromium browsers of this grid are for Playwright 1.58, 1.62 and "
            "1.65: install Playwright 1.65 on the client, or have the grid's operator run `pwgrid setup --playwright "
            "1.60`",
            ["1.58", "1.62", "1.65"],
        ),
        (
            Wanted("firefox", "1.58"),
            428,
            "this client is Playwright 1.58, and the firefox browsers of this grid are for Playwright 1.62 and 1.65: "
            "install Playwright 1.65 on the client, or have the grid's operator run `pwgrid setup --playwright 1.58`",
            ["1.62", "1.65"],
        ),
        (
            Wanted(None, "1.58", "appa"),
            428,
            "this client is Playwright 1.58, and pool appa is for Playwright 1.65: install Playwright 1.65 on the "
            "client, or leave out ?pool=, since other pools are for it",
            ["1.65"],
        ),
        (
            Wanted(None, "1.60", "appa"),
            428,
            "this client is Playwright 1.60, and pool appa is for Playwright 1.65: install Playwright 1.65 on the "
            'client, or have the grid\'s operator make a pool for it, with playwright = "1.60" in [[pools]]',
            ["1.65"],
        ),
        (
            Wanted(None, "1.58", labels=EU),
            428,
            "this client is Playwright 1.58, and the label key A:Chromium:UAT:EU is served by pool appa, which is for "
            "Playwright 1.65: install Playwright 1.65 on the client, or leave out the label key, since other pools are "
            "for it",
            ["1.65"],
        ),
        (Wanted(None, "1.65", "appb", EU), 400, "the label key is of pool appa, and the URL asks for pool appb", None),
        (Wanted("firefox", pool="appa"), 400, "pool appa has chromium browsers, and firefox is asked for", None),
        (Wanted(pool="foxes", protocol=CDP), 400, "Firefox has no CDP", None),
        (Wanted("webkit", "1.65"), 400, "this grid runs no webkit workers (it has: chromium, firefox)", None),
    ],
)
def test_without_a_pool_of_its_version_a_client_hears_what_there_is(
    wanted: Wanted, status: int, sentence: str, versions: list[str] | None
) -> None:
    with pytest.raises(Refusal, match=re.escape(sentence)) as refused:
        choose_pool(SHOP, wanted, ANYBODY)
    assert refused.value.status == status
    body = orjson.loads(refused.value.body())
    assert body.get("versions") == versions
    is_addable = status == 428 and not (wanted.pool or wanted.labels)
    assert body.get("command") == (f"pwgrid setup --playwright {wanted.version}" if is_addable else None)


@pytest.mark.parametrize(
    ("text", "version", "chosen"),
    [(UAT, None, "appa"), (UAT, "1.65", "appa"), (UAT, "1.62", "appb"), (EU, "1.65", "appa"), (EU, "1.62", "appb")],
)
def test_a_borrow_gets_the_pool_of_its_label_key_and_version(text: str, version: str | None, chosen: str) -> None:
    assert pool_of_label(SHOP.labels, SHOP.pools, text, version)[0] == chosen


def test_a_borrow_of_another_version_hears_which_there_are() -> None:
    with pytest.raises(Refusal) as refused:
        pool_of_label(SHOP.labels, SHOP.pools, UAT, "1.58")
    assert (refused.value.status, refused.value.details) == (428, {"versions": ["1.62", "1.65"]})
    assert refused.value.error == (
        "Playwright 1.58 is asked for, and the pools of the label key A:Chromium:UAT are for Playwright 1.62 and 1.65: "
        'have the grid\'s operator make a pool for it, with playwright = "1.58" in [[pools]]'
    )


def test_who_waits_hears_of_it_when_the_last_worker_of_its_version_is_replaced() -> None:
    refusal = no_longer_for(pool("chromium", "1.66"), "1.65")
    assert (refusal.status, refusal.details["command"]) == (428, "pwgrid setup --playwright 1.65")
    assert "pool chromium is now for Playwright 1.66" in refusal.error
