"""What a client of the DevTools protocol asks for by path and query, and what it hears where that is not possible."""

import pytest
from websockets.datastructures import Headers

from pwgrid.common.profile_names import Profile
from pwgrid.common.types import Isolation, Protocol
from pwgrid.proxy.policy.access import ANYBODY, DIRECT, Access
from pwgrid.proxy.policy.connect_request import ClientHead, ConnectRequest, LeasePath, Policy, SessionPath, decide
from pwgrid.proxy.policy.own_browser import OwnBrowser
from pwgrid.proxy.policy.refusal import Refusal
from pwgrid.proxy.roster import PoolView
from tests.unit.test_connect_request import headers, pools

OURS = "0123456789abcdef"
BOTH = pools(("firefox", "firefox"), ("chromium", "chromium"))


def asked(
    target: str, *more: tuple[str, str], of: dict[str, PoolView] = BOTH, is_new: bool = False, **changes: object
) -> ConnectRequest | LeasePath | SessionPath:
    values = {"default_browser_type": "firefox", "pools": of, "keep_max_s": 600.0}
    policy = Policy(**{**values, **changes})  # type: ignore[arg-type]
    return decide(ClientHead(target, Headers(headers(*more))), policy, ("10.0.0.5", 8080), DIRECT, is_new=is_new)


def refused(target: str, *more: tuple[str, str], **how: object) -> tuple[int, str]:
    with pytest.raises(Refusal) as caught:
        asked(target, *more, **how)  # type: ignore[arg-type]
    return caught.value.status, caught.value.error


@pytest.mark.parametrize("path", ["/cdp", "/devtools/browser/5a1b-uuid", f"/devtools/browser/{OURS}0"])
def test_a_cdp_client_gets_a_chromium_of_its_own_whatever_the_default_is(path: str) -> None:
    wanted = asked(path)
    assert isinstance(wanted, ConnectRequest)
    assert (wanted.browser_type, wanted.pool) == ("chromium", "chromium")
    assert (wanted.protocol, wanted.own, wanted.isolation) == (Protocol.CDP, OwnBrowser(), Isolation.BROWSER)
    assert (wanted.keep_s, wanted.session_id) == (0.0, "")


def test_the_path_of_a_session_is_joined_or_begins_one_with_its_id() -> None:
    path = f"/devtools/browser/{OURS}?keep=300"
    assert asked(path) == SessionPath(OURS, ANYBODY, 300.0)
    assert asked(path, of={}) == SessionPath(OURS, ANYBODY, 300.0)  # it goes on while its pool drains
    new = asked(path, is_new=True)
    assert isinstance(new, ConnectRequest)
    assert (new.session_id, new.keep_s) == (OURS, 300.0)


def test_a_connection_may_be_to_the_page_of_a_session() -> None:
    path = f"/devtools/page/{OURS}?keep=300"
    assert asked(path) == SessionPath(OURS, ANYBODY, 300.0, is_of_page=True)
    new = asked(path, is_new=True)
    assert isinstance(new, ConnectRequest)
    assert (new.session_id, new.is_of_page, new.protocol) == (OURS, True, Protocol.CDP)


def test_nobody_joins_a_session_without_a_token_where_there_are_tokens() -> None:
    assert refused(f"/devtools/browser/{OURS}", access=Access("s3cret"))[0] == 401
    assert isinstance(asked(f"/devtools/browser/{OURS}?token=s3cret", access=Access("s3cret")), SessionPath)


def test_all_that_other_clients_may_say_counts_for_cdp_clients_too() -> None:
    wanted = asked('/cdp?name=nightly&launch={"slowMo":5}', ("x-pwgrid-keep", "60"))
    assert isinstance(wanted, ConnectRequest)
    assert (wanted.name, wanted.keep_s, wanted.own) == ("nightly", 60.0, OwnBrowser({"slowMo": 5}))


def test_a_profile_is_asked_for_by_query_or_header() -> None:
    for wanted in (
        asked("/cdp?profile=shop", profiles="on"),
        asked("/cdp", ("x-pwgrid-profile", "shop"), profiles="on"),
    ):
        assert isinstance(wanted, ConnectRequest)
        assert wanted.own == OwnBrowser(profile=Profile("", "shop"))
    assert refused("/cdp?profile=shop")[0] == 403
    status, sentence = refused("/?profile=shop&isolation=browser", profiles="on")
    assert (status, "connect_over_cdp()" in sentence) == (400, True)


def test_the_browser_of_a_lease_has_no_profile() -> None:
    status, sentence = refused("/lease/chromium/0a1b/0123.secret/cdp?profile=shop", profiles="on")
    assert (status, sentence[:40]) == (400, "profile: a lease has the profile that it")


def test_any_version_of_playwright_speaks_cdp() -> None:
    assert isinstance(asked("/cdp", ("user-agent", "Playwright/1.40.0 (x64; debian 12) python/3.11")), ConnectRequest)


def test_in_a_pool_of_processes_a_cdp_client_has_an_own_browser_as_well() -> None:
    alone = {"alone": PoolView(1, 1, None, "alone", "chromium", isolation="process")}
    wanted = asked("/cdp", of=alone)
    assert isinstance(wanted, ConnectRequest)
    assert (wanted.own, wanted.isolation) == (OwnBrowser(), Isolation.PROCESS)


def test_a_lease_has_an_endpoint_for_cdp_as_well() -> None:
    lease = asked("/lease/chromium/0a1b/0123.secret/cdp?keep=5")
    assert isinstance(lease, LeasePath)
    assert (lease.protocol, lease.keep_s, lease.own) == (Protocol.CDP, 5.0, OwnBrowser())
    assert asked("/lease/chromium/0a1b/0123.secret") == LeasePath("chromium", "0a1b", "0123", "secret")


@pytest.mark.parametrize(
    ("target", "status", "says"),
    [
        ("/cdp?browser=firefox", 400, "Firefox has no CDP"),
        ("/cdp?browser=webkit", 400, "WebKit has no CDP"),
        ("/cdp?pool=firefox", 400, "Firefox has no CDP"),
        ("/lease/firefox/0a1b/0123.secret/cdp", 400, "Firefox has no CDP"),
        ("/cdp?isolation=context", 400, "has a browser of its own"),
        ("/lease/chromium/0a1b/0123.secret/cdp?isolation=context", 400, "has a browser of its own"),
        ("/cdp?keep=601", 400, "no browser longer than 600 s (KEEP_MAX=600)"),
        ("/cdp?keep=long", 400, "'long' is no number of seconds"),
        ("/cdp?keep=-1", 400, "no number of seconds"),
        ("/cdp?keep=nan", 400, "no number of seconds"),
        ("/cdp?keep=inf", 400, "no number of seconds"),
        ("/?keep=5", 400, "connect_over_cdp()"),
        ("/devtools/page/1A2B", 404, "Target.attachToTarget"),
        ("/devtools/browser/", 404, "there is nothing at"),
        ("/devtools/inspector.html", 404, "there is nothing at"),
        ("/cdp/", 404, "there is nothing at"),
    ],
)
def test_what_is_not_possible_is_said(target: str, status: int, says: str) -> None:
    found = refused(target)
    assert (found[0], says in found[1]) == (status, True), found


def test_a_grid_may_keep_nothing() -> None:
    assert "no browser without a client (KEEP_MAX=0)" in refused("/cdp?keep=1", keep_max_s=0.0)[1]
    assert isinstance(asked("/cdp?keep=0", keep_max_s=0.0), ConnectRequest)
    assert isinstance(asked("/?keep=0", keep_max_s=0.0), ConnectRequest)


def test_a_grid_without_chromium_says_so() -> None:
    assert "this grid runs no chromium workers" in refused("/cdp", of=pools(("firefox", "firefox")))[1]
