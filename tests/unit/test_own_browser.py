"""Which clients get a browser of their own, and from which pool."""

import asyncio
import math
import socket
import time
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from websockets.datastructures import Headers

from pwgrid.common.client_marks import is_passed_on, is_served, mark_passed_on, mark_served
from pwgrid.common.label_keys import parse
from pwgrid.common.reasons import OfferRefusal
from pwgrid.common.types import BrowserType, Isolation
from pwgrid.proxy.api import models
from pwgrid.proxy.api.leases import _claim
from pwgrid.proxy.connect.connect import ConnectingClient, _fields
from pwgrid.proxy.connect.gateway import Gateway
from pwgrid.proxy.connect.handoff_link import HandoffFailure
from pwgrid.proxy.policy.access import ANYBODY, Access, Identity
from pwgrid.proxy.policy.connect_request import ClientHead, ConnectRequest, LeasePath, Policy, decide
from pwgrid.proxy.policy.label_match import OfferedLabels
from pwgrid.proxy.policy.own_browser import OwnBrowser, pool_with
from pwgrid.proxy.policy.refusal import Refusal, RefusalReason
from pwgrid.proxy.roster import PoolView, Roster
from pwgrid.proxy.select.claim import Claim, ClientGone
from pwgrid.proxy.select.selector import Selector
from pwgrid.settings.model import Settings
from tests.support.state_frames import told_of_pool

HANDSHAKE = [
    ("host", "grid:8080"),
    ("upgrade", "websocket"),
    ("connection", "Upgrade"),
    ("sec-websocket-key", "MDEyMzQ1Njc4OWFiY2RlZg=="),
    ("sec-websocket-version", "13"),
]
SLOW = ("x-playwright-launch-options", '{"slowMo": 50}')
EXPOSES = ("x-playwright-proxy", "<loopback>")


def view(name: str, isolation: str = "context", browser_type: BrowserType = "chromium") -> PoolView:
    options = {"headless": True, "args": []}
    return PoolView(1, 1, None, name, browser_type, isolation=isolation, options=options)


POOLS = {
    each.name: each
    for each in (view("chromium"), view("own", "browser"), view("alone", "process"), view("ff", "context", "firefox"))
}
DRAINING = {"gone": view("gone", "browser")}
WORKERS = {"c0": "chromium", "b0": "own", "a0": "alone", "f0": "ff", "d0": "gone"}
LABELS = OfferedLabels({parse("A:Chromium:UAT"): ("chromium",), parse("B:Chromium:UAT"): ("own",)})
POLICY = Policy("chromium", POOLS, labels=LABELS, draining=DRAINING, pools_of_workers=WORKERS)


def decided(target: str, *headers: tuple[str, str], policy: Policy = POLICY) -> ConnectRequest:
    found = decide(ClientHead(target, Headers([*HANDSHAKE, *headers])), policy, ("10.0.0.5", 8080))
    assert isinstance(found, ConnectRequest)
    return found


def with_lease(worker: str, *headers: tuple[str, str], query: str = "") -> OwnBrowser | None:
    target = f"/lease/chromium/{worker}/12.s{query}"
    found = decide(ClientHead(target, Headers([*HANDSHAKE, *headers])), POLICY, ("10.0.0.5", 8080))
    assert isinstance(found, LeasePath)
    return found.own


NO_OPTIONS = OwnBrowser()


@pytest.mark.parametrize(
    ("target", "headers", "pool", "own", "isolation"),
    [
        ("/", [], "chromium", None, "context"),
        ("/", [("x-playwright-proxy", "")], "chromium", None, "context"),  # as Playwright sends it without one
        ("/?isolation=", [], "chromium", None, "context"),
        ("/?isolation=context", [], "chromium", None, "context"),
        ("/?isolation=browser", [], "chromium", NO_OPTIONS, "browser"),
        ("/?isolation=BROWSER", [], "chromium", NO_OPTIONS, "browser"),
        ("/", [("x-pwgrid-isolation", "browser")], "chromium", NO_OPTIONS, "browser"),
        ("/", [SLOW], "chromium", OwnBrowser({"slowMo": 50}), "browser"),
        ("/", [EXPOSES], "chromium", OwnBrowser({}, "<loopback>"), "browser"),
        ("/?isolation=context", [EXPOSES], "chromium", OwnBrowser({}, "<loopback>"), "browser"),
        ("/?isolation=browser", [SLOW, EXPOSES], "chromium", OwnBrowser({"slowMo": 50}, "<loopback>"), "browser"),
        ("/?pool=own", [], "own", NO_OPTIONS, "browser"),
        ("/?labels=B:Chromium:UAT", [], "own", NO_OPTIONS, "browser"),
        ("/?pool=own&isolation=browser", [SLOW], "own", OwnBrowser({"slowMo": 50}), "browser"),
        ("/?pool=alone", [], "alone", None, "process"),
        ("/?pool=alone&isolation=browser", [], "alone", None, "process"),  # more than is asked for
        ("/?pool=alone&isolation=process", [], "alone", None, "process"),
        ("/?pool=alone", [SLOW], "alone", OwnBrowser({"slowMo": 50}), "process"),
        ("/?isolation=process", [], "alone", None, "process"),
        ("/?isolation=process&browser=chromium", [EXPOSES], "alone", OwnBrowser({}, "<loopback>"), "process"),
        ("/playwright/chromium/b0.s", [], "chromium", NO_OPTIONS, "browser"),
        ("/playwright/chromium/a0.s?isolation=process", [], "chromium", None, "process"),
    ],
)
def test_what_a_client_gets(
    target: str, headers: list[tuple[str, str]], pool: str, own: OwnBrowser | None, isolation: str
) -> None:
    found = decided(target, *headers)
    assert (found.pool, found.own, found.isolation.value) == (pool, own, isolation)


@pytest.mark.parametrize(
    ("target", "headers", "sentence"),
    [
        ("/?isolation=vm", [], "isolation: there is no 'vm': use one of context, browser, process, or leave it out"),
        (
            "/?isolation=browser",
            [("x-pwgrid-isolation", "process")],
            "?isolation= and x-pwgrid-isolation say different",
        ),
        ("/?isolation=process&browser=firefox", [], "pool ff gives no session a process of its own: ask for isolation"),
        ("/?isolation=process&pool=own", [], "pool own gives no session a process of its own"),
        ("/?isolation=process&labels=A:Chromium:UAT", [], "pool chromium gives no session a process of its own"),
        ("/playwright/chromium/c0.s?isolation=process", [], "pool chromium gives no session a process of its own"),
        ("/?isolation=context&pool=own", [], "pool own has no shared browsers (its isolation is browser): leave the"),
        ("/?isolation=context&pool=alone", [], "pool alone has no shared browsers (its isolation is process)"),
        ("/playwright/chromium/b0.s?isolation=context", [], "pool own has no shared browsers"),
    ],
)
def test_what_no_pool_gives_is_refused_with_what_to_do(
    target: str, headers: list[tuple[str, str]], sentence: str
) -> None:
    with pytest.raises(Refusal) as refused:
        decided(target, *headers)
    assert (refused.value.status, refused.value.error[: len(sentence)]) == (400, sentence)


def test_who_says_how_to_get_a_process_of_ones_own_names_the_setting() -> None:
    with pytest.raises(Refusal, match=r'make a pool of firefox with isolation = "process" in \[\[pools\]\]'):
        decided("/?isolation=process&browser=firefox")


def test_of_several_pools_with_processes_those_come_first_that_the_token_may_use() -> None:
    pools = {**POOLS, "mine": view("mine", "process")}
    anybody, ci = Identity(), Identity("ci", pools=frozenset({"mine"}))
    assert pool_with(pools, "chromium", Isolation.PROCESS, anybody, is_named=False) == "alone"
    assert pool_with(pools, "chromium", Isolation.PROCESS, ci, is_named=False) == "mine"
    assert pool_with(pools, "mine", Isolation.PROCESS, anybody, is_named=False) == "mine"
    pools["mine-1.58"] = replace(view("mine-1.58", "process"), like="mine")  # made for clients of that version
    del pools["mine"]
    assert pool_with(pools, "chromium", Isolation.PROCESS, ci, is_named=False) == "mine-1.58"


def test_a_worker_has_as_long_as_the_client_allows_for_a_launch_and_not_longer_than_the_grid() -> None:
    launched = OwnBrowser({"slowMo": 50}, timeout_s=2.0)
    assert launched.for_worker(100.0, 130.0)["until"] == 102.0
    assert launched.for_worker(100.0, 101.0)["until"] == 101.0
    assert OwnBrowser(timeout_s=2.0).for_worker(100.0, 130.0)["until"] == 130.0, "a warm one is not launched for it"


def test_the_worker_s_pool_is_what_options_are_held_against() -> None:
    headed = {**POOLS, "own": view("own", "browser"), "chromium": view("chromium")}
    headed["own"].options["headless"] = False  # type: ignore[index]
    policy = Policy("chromium", headed, pools_of_workers=WORKERS)
    asks = ("x-playwright-launch-options", '{"headless": false}')
    assert decided("/playwright/chromium/b0.s", asks, policy=policy).own == NO_OPTIONS
    other = decided("/playwright/chromium/c0.s", asks, policy=policy).own
    assert other is not None
    assert other.options == {"headless": False}
    drains = Policy(
        "chromium", {"chromium": POOLS["chromium"]}, draining={"own": headed["own"]}, pools_of_workers=WORKERS
    )
    assert decided("/playwright/chromium/b0.s", asks, policy=drains).own == NO_OPTIONS


def test_a_client_with_a_lease_asks_for_what_its_lease_may_not_say() -> None:
    assert with_lease("c0") is None
    assert with_lease("c0", SLOW) == OwnBrowser({"slowMo": 50})
    assert with_lease("c0", EXPOSES) == OwnBrowser({}, "<loopback>")
    assert with_lease("c0", query="?isolation=browser") == NO_OPTIONS
    assert (with_lease("b0"), with_lease("a0")) == (NO_OPTIONS, None)
    assert with_lease("b0", query="?isolation=context") == NO_OPTIONS  # the lease has said what it is
    assert with_lease("d0", SLOW) == OwnBrowser({"slowMo": 50})  # its pool is offered no more
    assert with_lease("99", SLOW) is None  # its worker has gone
    with pytest.raises(Refusal, match="launch option env"):
        with_lease("c0", ("x-playwright-launch-options", '{"env": {"A": "b"}}'))
    with pytest.raises(Refusal, match="pool chromium gives no session a process"):
        with_lease("c0", query="?isolation=process")


def gateway(**settings: Any) -> Gateway:
    roster = Roster()
    labels = {"chromium": "A:Chromium:UAT", "own": "B:Chromium:UAT", "alone": "C:Chromium:UAT"}
    roster.replace(
        {
            "pools": {
                name: told_of_pool(isolation=POOLS[name].isolation, labels=[label]) for name, label in labels.items()
            },
            "workers": [{"id": "c0", "pool": "chromium", "browserType": "chromium", "status": "available"}],
        }
    )
    return Gateway(Settings(**settings), roster, mock.Mock(), mock.Mock(), Access(), mock.Mock(), mock.Mock())


def test_the_gateway_s_policy_has_the_settings_and_the_pools_of_workers() -> None:
    policy = gateway(launch_options="ignore", allowed_browser_args=("*",)).policy()
    assert (policy.launch.heed, policy.launch.allowed_args) == (False, ("*",))
    assert policy.pool_of("c0") is policy.pools["chromium"]
    assert policy.pools["own"].isolation == "browser"


@pytest.mark.parametrize("told", [{"wanted": 0}, {"removed": True, "wanted": 0}])
def test_a_pool_that_is_offered_no_more_is_that_of_its_workers_as_long_as_they_have_leases(
    told: dict[str, Any],
) -> None:
    made = gateway(chromium_sandbox=True)
    made.roster.replace(
        {
            "pools": {"chromium": told_of_pool(), "gone": told_of_pool(args=["--x"], **told)},
            "workers": [{"id": "d0", "pool": "gone", "browserType": "chromium", "status": "draining"}],
        }
    )
    policy = made.policy()
    pool = policy.pool_of("d0")
    assert [*policy.pools] == ["chromium"]
    assert pool is not None
    assert pool.options == {"headless": True, "args": ["--x"], "chromiumSandbox": True}


def host_with_lease() -> Roster:
    elsewhere = Roster()
    workers = [{"id": "99", "pool": "there", "browserType": "chromium", "status": "available"}]
    elsewhere.replace({"pools": {"there": told_of_pool()}, "workers": workers})
    return elsewhere


def test_so_is_the_pool_of_a_host_that_gets_no_clients() -> None:
    made = gateway()
    made.roster.not_offering = (host_with_lease(),)
    assert "there" not in made.policy().pools
    pool = made.policy().pool_of("99")
    assert pool is not None
    assert pool.name == "there"
    assert made.roster.worker("99") is not None


async def test_the_worker_of_a_lease_that_another_host_has_not_told_of_yet_is_looked_for_before_options_are_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = Client()

    async def host_of(worker_id: str) -> str:
        client.gateway.roster.others = (host_with_lease(),)
        client.gateway.roster_changed()
        return f"the host of {worker_id}"

    async def offer(_host: str, *offered: Any) -> float:
        return await client.offer(*offered)

    client.gateway.selector.queue.pools.return_value = []  # type: ignore[attr-defined]
    client.gateway.forwarding = SimpleNamespace(host_of=host_of, offer=offer)  # type: ignore[assignment]
    await client.comes("/lease/chromium/99/12.s", SLOW, monkeypatch=monkeypatch)
    ((request, _),) = client.offers
    assert request["own"]["options"] == {"slowMo": 50}


@pytest.mark.parametrize(
    ("label", "asked", "isolation"),
    [
        ("A:Chromium:UAT", None, None),
        ("A:Chromium:UAT", "context", None),
        ("A:Chromium:UAT", "browser", "browser"),
        ("B:Chromium:UAT", None, "browser"),
        ("C:Chromium:UAT", None, "process"),
        ("C:Chromium:UAT", "browser", "process"),
        ("C:Chromium:UAT", "process", "process"),
    ],
)
async def test_a_lease_says_what_its_clients_get(label: str, asked: str | None, isolation: str | None) -> None:
    wanted = models.Borrow.model_validate({"labelKey": label, "isolation": asked})
    claim, _ = _claim(gateway(), wanted, ANYBODY, "client")
    assert claim.fields.get("isolation") == isolation
    assert claim.client_fields().get("isolation") == isolation


@pytest.mark.parametrize(
    ("target", "headers", "lifetime"),
    [
        ("/", [], None),
        ("/?isolation=browser", [], "0"),
        ("/", [SLOW], "0"),
        ("/", [EXPOSES], "0"),
        ("/cdp", [], "0"),
        ("/?pool=own", [], None),  # there the lifetime is a number of own browsers
        ("/cdp?pool=own", [], None),
        ("/?pool=alone", [], None),
        ("/?pool=alone", [SLOW], None),  # a worker for one session, whatever browser that has
        ("/playwright/chromium/b0.s?isolation=browser", [], None),
        ("/playwright/chromium/c0.s?isolation=browser", [], "0"),
    ],
)
def test_a_session_with_an_own_browser_beside_a_shared_one_takes_none_of_the_lifetime(
    target: str, headers: list[tuple[str, str]], lifetime: str | None
) -> None:
    assert _fields(decided(target, *headers)).get("lifetime") == lifetime


@pytest.mark.parametrize(
    ("label", "asked", "lifetime"),
    [("A:Chromium:UAT", None, None), ("A:Chromium:UAT", "browser", "0"), ("B:Chromium:UAT", "browser", None)],
)
async def test_so_does_a_lease_whose_sessions_all_have_one(label: str, asked: str | None, lifetime: str | None) -> None:
    claim, _ = _claim(gateway(), models.Borrow.model_validate({"labelKey": label, "isolation": asked}), ANYBODY, "me")
    assert claim.fields.get("lifetime") == claim.client_fields().get("lifetime") == lifetime


@pytest.mark.parametrize(("label", "asked"), [("A:Chromium:UAT", "process"), ("B:Chromium:UAT", "context")])
async def test_a_lease_of_what_its_pool_does_not_give_is_refused(label: str, asked: str) -> None:
    wanted = models.Borrow.model_validate({"labelKey": label, "isolation": asked})
    with pytest.raises(Refusal, match=r"^pool (chromium|own) "):
        _claim(gateway(), wanted, ANYBODY, "client")


class Client:
    """A client on its way, its socket, and the offers that are made of it; each is answered as is said here."""

    def __init__(self, *answers: HandoffFailure) -> None:
        self.answers = [*answers]
        self.offers: list[tuple[dict[str, Any], float]] = []
        self.gateway = gateway(launch_timeout=30.0)
        self.gateway.handoffs = SimpleNamespace(offer=self.offer)  # type: ignore[assignment]
        self.gateway.selector.queue.acquire = mock.AsyncMock(return_value="c0")  # type: ignore[method-assign]
        self.gateway.selector.give_back = mock.AsyncMock()  # type: ignore[method-assign]
        made = ConnectingClient(
            self.gateway, config=mock.Mock(), server_state=mock.Mock(connections=set()), app_state={}
        )
        self.transport = mock.Mock()
        self.transport.is_closing.return_value = False
        self.transport.get_extra_info = {"sockname": ("10.0.0.5", 8080), "peername": ("10.0.0.9", 7)}.get
        made.connection_made(self.transport)
        self.made = made

    async def offer(self, _worker: str, _session: str, request: dict[str, Any], _sock: object, until: float) -> float:
        self.offers.append((request, until))
        if self.answers:
            raise self.answers.pop(0)
        return time.monotonic()

    async def comes(self, target: str, *headers: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("pwgrid.proxy.connect.connect.clear_marks", lambda _sock: None)
        monkeypatch.setattr("pwgrid.proxy.connect.connect.may_be_served", mock.AsyncMock(return_value=False))
        await self.made._decide(ClientHead(target, Headers([*HANDSHAKE, *headers])))


async def test_the_worker_gets_the_browser_that_is_asked_for_and_until_when_it_may_serve(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client, since = Client(), time.monotonic()
    await client.comes("/?isolation=browser", SLOW, EXPOSES, monkeypatch=monkeypatch)
    ((request, until),) = client.offers
    assert 30.0 <= until - since <= time.monotonic() - since + 30.0
    assert request["own"] == {"options": {"slowMo": 50}, "network": "<loopback>", "until": until}
    assert request["clientFields"] == {"isolation": "browser", "lifetime": "0"}
    assert "x-playwright-launch-options" not in request["headers"]
    (claim,) = (each.args[0] for each in client.gateway.selector.queue.acquire.call_args_list)  # type: ignore[attr-defined]
    assert claim.launch_s == 30.0


@pytest.mark.parametrize("waits_in_line", [False, True])
async def test_each_offer_is_of_a_socket_without_marks(monkeypatch: pytest.MonkeyPatch, waits_in_line: bool) -> None:
    client, found = Client(), list[bool]()

    async def acquire(_claim: Claim) -> str:
        for _ in range(3 * waits_in_line):
            await asyncio.sleep(0)
        return "c0"

    async def offer(_worker: str, _session: str, _request: object, sock: socket.socket, _until: float) -> float:
        found.extend((is_passed_on(sock), is_served(sock)))
        mark_passed_on(sock)
        mark_served(sock)
        if len(found) < 6:
            raise HandoffFailure(OfferRefusal.FULL, is_refusal=True)
        return time.monotonic()

    client.gateway.selector.queue.acquire = acquire  # type: ignore[method-assign]
    client.gateway.handoffs = SimpleNamespace(offer=offer)  # type: ignore[assignment]
    monkeypatch.setattr("pwgrid.proxy.connect.connect.may_be_served", mock.AsyncMock(return_value=False))
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as sock:
        mark_served(sock)  # as uvloop does
        client.transport.get_extra_info = {"sockname": ("10.0.0.5", 8080), "socket": sock}.get
        await client.made._decide(ClientHead("/", Headers(HANDSHAKE)))
    assert found == [False] * 6


async def test_the_slot_of_a_session_that_another_client_has_begun_stays_that_one_s(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two proxies may get clients of one new session's URL at the same moment: Redis gives both the same slot."""
    client = Client(HandoffFailure(OfferRefusal.NOT_YET, is_refusal=True))
    client.gateway.selector.give_back = partial(Selector.give_back, client.gateway.selector)  # type: ignore[method-assign]
    with pytest.raises(Refusal, match="the session of this URL is only beginning: connect again"):
        await client.comes("/", monkeypatch=monkeypatch)
    assert len(client.offers) == 1
    client.gateway.selector._registry.rollback.assert_not_called()  # type: ignore[attr-defined]


async def test_who_goes_before_it_stands_in_line_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client()
    client.gateway.selector.queue.acquire.side_effect = ClientGone  # type: ignore[attr-defined]
    client.made.eof_received()
    with pytest.raises(ClientGone):
        await client.comes("/", monkeypatch=monkeypatch)
    (claim,) = (each.args[0] for each in client.gateway.selector.queue.acquire.call_args_list)  # type: ignore[attr-defined]
    assert claim.abandoned  # so that the line does not take it
    assert client.offers == []


async def test_who_shares_a_browser_is_offered_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client()
    await client.comes("/", monkeypatch=monkeypatch)
    ((request, _),) = client.offers
    assert request.keys() == {"client", "headers", "early"}
    (claim,) = (each.args[0] for each in client.gateway.selector.queue.acquire.call_args_list)  # type: ignore[attr-defined]
    assert claim.launch_s == 0.0


async def test_with_a_lease_the_worker_hears_until_when_it_may_serve_since_it_alone_knows_the_lease(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = Client()
    await client.comes("/lease/chromium/c0/12.s", monkeypatch=monkeypatch)
    ((request, until),) = client.offers
    assert ("own" in request, request["until"], request["lease"]) == (False, until, ["12", "s"])


def not_launched() -> HandoffFailure:
    return HandoffFailure(OfferRefusal.NOT_LAUNCHED, is_refusal=True, detail="no such proxy: /opt/chrome")


async def test_a_browser_that_does_not_start_with_the_client_s_options_is_tried_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = Client(not_launched())
    with pytest.raises(Refusal) as refused:
        await client.comes("/", SLOW, monkeypatch=monkeypatch)
    sentence = "no browser started with the client's launch options (slowMo): no such proxy: chrome"
    assert (refused.value.status, refused.value.error, len(client.offers)) == (400, sentence, 1)
    assert client.gateway.selector.give_back.await_count == 1  # type: ignore[attr-defined]


@pytest.mark.parametrize(("timeout_s", "fails"), [(1.0, True), (30.0, False), (math.inf, False)])
def test_one_that_is_late_by_its_client_s_own_limit_would_be_late_everywhere(timeout_s: float, fails: bool) -> None:
    own = OwnBrowser({"slowMo": 50}, timeout_s=timeout_s)
    assert own.fails_everywhere(OfferRefusal.NOT_IN_TIME, 30.0) is fails
    assert own.fails_everywhere(OfferRefusal.NOT_LAUNCHED, 30.0)
    assert not OwnBrowser(timeout_s=timeout_s).fails_everywhere(OfferRefusal.NOT_LAUNCHED, 30.0)


OWN_FULL = HandoffFailure(OfferRefusal.OWN_FULL, is_refusal=True, detail="all 2 are in use (MAX_OWN_BROWSERS)")
FULL_SENTENCE = "no browser of its own started for this client: all 2 are in use (MAX_OWN_BROWSERS)"


@pytest.mark.parametrize("reason", [OfferRefusal.OWN_FULL, OfferRefusal.NOT_IN_TIME])
async def test_where_own_browsers_only_have_to_wait_another_worker_is_tried_whatever_the_client_s_options(
    monkeypatch: pytest.MonkeyPatch, reason: OfferRefusal
) -> None:
    client = Client(HandoffFailure(reason, is_refusal=True, detail="others came first"))
    not_taken = client.gateway.selector.not_taken
    await client.comes("/", SLOW, monkeypatch=monkeypatch)
    assert len(client.offers) == 2
    (asked,) = not_taken.call_args_list  # type: ignore[attr-defined]
    assert asked.args[1:] == ("c0", reason)


async def test_who_gets_no_other_worker_either_may_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client(OWN_FULL)
    in_vain = Refusal(503, "no slot came free", reason=RefusalReason.WAITED_TOO_LONG)
    client.gateway.selector.queue.acquire.side_effect = ["c0", in_vain]  # type: ignore[attr-defined]
    with pytest.raises(Refusal) as refused:
        await client.comes("/", SLOW, monkeypatch=monkeypatch)
    assert (refused.value.status, refused.value.error) == (503, FULL_SENTENCE)
    assert "Retry-After" in dict(refused.value.headers)


async def test_so_may_the_client_of_a_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client(OWN_FULL)
    with pytest.raises(Refusal) as refused:
        await client.comes("/lease/chromium/c0/12.s", SLOW, monkeypatch=monkeypatch)
    assert (refused.value.status, refused.value.error) == (503, FULL_SENTENCE)


async def test_a_browser_that_does_not_start_as_its_pool_s_do_is_tried_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = Client(not_launched())
    await client.comes("/?isolation=browser", EXPOSES, monkeypatch=monkeypatch)
    assert len(client.offers) == 2


@pytest.mark.parametrize(
    ("headers", "status", "sentence"),
    [
        ((SLOW,), 400, "no browser started with the client's launch options (slowMo): no such proxy: chrome"),
        ((), 503, "no browser of its own started for this client: no such proxy: chrome"),
    ],
)
async def test_the_client_of_a_lease_hears_why_no_browser_started(
    headers: tuple[tuple[str, str], ...], status: int, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Client(not_launched())
    with pytest.raises(Refusal) as refused:
        await client.comes("/lease/chromium/c0/12.s", *headers, monkeypatch=monkeypatch)
    assert (refused.value.status, refused.value.error) == (status, sentence)
    await asyncio.sleep(0)
