"""What a client that gets no slot is told: of a cap, else why its pool can take nobody, else of the line."""

import asyncio
from unittest import mock

import pytest

from pwgrid.common.session_lifecycle import HeldAs
from pwgrid.proxy.connect.gateway import Gateway
from pwgrid.proxy.connect.handoff_link import HandoffFailure
from pwgrid.proxy.policy.refusal import Refusal, RefusalReason, line_full, waited_in_vain
from pwgrid.proxy.roster import Roster
from pwgrid.proxy.select.claim import Claim, ClientGone
from pwgrid.settings.model import Settings
from tests.support.state_frames import told_of_pool

IN_VAIN = waited_in_vain(Settings(), "chromium", 4, 2, borrows=False)
FULL = line_full("chromium", "nightly", "grid", 7, 4, 5)


async def told(refusal: Refusal, at_cap: list[str], shortage: str | None) -> Refusal:
    """What the client gets where the queue says this."""
    selector, readiness = mock.Mock(), mock.Mock()
    selector.queue.acquire = mock.AsyncMock(side_effect=refusal)
    selector.caps_reached = mock.AsyncMock(return_value=at_cap)
    readiness.shortage = mock.AsyncMock(return_value=shortage)
    gateway = Gateway(Settings(), mock.Mock(), selector, mock.Mock(), mock.Mock(), readiness, mock.Mock())
    caps = {"run:ci/nightly": 3, "token:ci": 9}
    claim = Claim(
        HeldAs.SESSION,
        "chromium",
        "chromium",
        None,
        "client",
        0.0,
        run="nightly",
        token="ci",
        caps=caps,
        session_id="s",
    )
    with pytest.raises(Refusal) as caught:
        await gateway.slot(claim)
    return caught.value


async def test_who_waited_in_vain_for_room_under_a_cap_hears_of_the_cap_and_of_its_place_in_line() -> None:
    of_run = await told(IN_VAIN, ["run:ci/nightly"], "no browser starts")
    assert of_run.error.startswith("run 'nightly' has 3 sessions already")
    assert (of_run.status, of_run.reason) == (503, RefusalReason.CAP_REACHED)
    assert of_run.details == {"retryAfterS": 30, "reason": "run cap reached", "queueLength": 4, "position": 2}
    of_token = await told(IN_VAIN, ["token:ci"], None)
    assert of_token.error.startswith("the token ci has 9 live sessions")
    assert (of_token.status, of_token.details) == (429, {"retryAfterS": 5, "maxSessions": 9})


async def test_who_waited_in_vain_for_a_pool_that_takes_nobody_hears_why() -> None:
    found = await told(IN_VAIN, [], "no browser starts")
    assert (found.status, found.error, found.details) == (503, "no browser starts", {"retryAfterS": 5})


async def test_who_only_waited_in_vain_or_found_the_line_full_hears_what_the_queue_says() -> None:
    assert await told(IN_VAIN, [], None) is IN_VAIN
    assert await told(FULL, ["token:ci"], "no browser starts") is FULL


async def test_who_waited_in_vain_after_its_browser_did_not_start_hears_of_that() -> None:
    workers = Workers(HandoffFailure("its browser did not start", is_refusal=True, detail="no display"))
    claim = claimed(HeldAs.SESSION)

    async def acquire(claim: Claim) -> str:
        if workers.given_back:
            raise IN_VAIN
        return await Workers.acquire(workers, claim)

    workers.acquire = acquire  # type: ignore[method-assign]
    with pytest.raises(Refusal) as caught:
        await workers.place(claim)
    assert (caught.value.status, caught.value.error) == (
        503,
        "no browser of its own started for this client: no display",
    )
    assert (claim.trouble, workers.given_back) == ("no display", ["first"])


class Workers:
    """Stands in for the registry and its workers: those with a slot, and what each answers to an offer."""

    def __init__(self, *answers: Exception | None) -> None:
        self.answers = list(answers)
        self.offered: list[tuple[str, str]] = []
        self.given_back: list[str] = []
        self.served_nevertheless: str | None = None

    async def acquire(self, _claim: Claim) -> str:
        return f"w{len(self.given_back) + 1}"

    async def give_back(self, claim: Claim) -> None:
        self.given_back.append(claim.session_id)

    async def place(self, claim: Claim) -> str:
        """As the gateway does, with this as its selector, queue and delivery."""
        self.claim = claim
        selector = mock.Mock(queue=self, give_back=self.give_back)
        gateway = Gateway(Settings(), mock.Mock(), selector, mock.Mock(), mock.Mock(), mock.Mock(), mock.Mock())
        return await gateway.place(claim, self)

    async def offer(self, worker_id: str) -> str:
        self.offered.append((worker_id, self.claim.session_id))
        if (answer := self.answers.pop(0)) is not None:
            raise answer
        return worker_id

    async def taken_all_the_same(self, _worker_id: str, _failure: HandoffFailure) -> str | None:
        return self.served_nevertheless


def claimed(kind: HeldAs) -> Claim:
    return Claim(kind, "chromium", "chromium", None, "client", 0.0, session_id="first")


@pytest.mark.parametrize("kind", HeldAs)
async def test_what_a_worker_does_not_take_goes_to_another_one_under_another_id(kind: HeldAs) -> None:
    workers = Workers(HandoffFailure("draining", is_refusal=True), None)
    claim = claimed(kind)
    assert await workers.place(claim) == "w2"
    assert workers.offered == [("w1", "first"), ("w2", claim.session_id)]
    assert (workers.given_back, claim.session_id != "first") == (["first"], True)


@pytest.mark.parametrize("kind", HeldAs)
async def test_a_slot_is_given_back_before_its_client_is_refused_or_given_up(kind: HeldAs) -> None:
    for error in (ClientGone(), Refusal(413, "too large")):
        workers = Workers(error)
        with pytest.raises(type(error)):
            await workers.place(claimed(kind))
        assert workers.given_back == ["first"]
    workers, claim = Workers(HandoffFailure("silent")), claimed(kind)
    claim.abandoned = True
    with pytest.raises(ClientGone):
        await workers.place(claim)
    assert workers.given_back == ["first"]


async def test_whom_a_silent_worker_serves_all_the_same_keeps_the_slot() -> None:
    workers = Workers(HandoffFailure("silent"))
    workers.served_nevertheless = "w1"
    assert await workers.place(claimed(HeldAs.SESSION)) == "w1"
    assert workers.given_back == []


@pytest.mark.parametrize("kind", HeldAs)
async def test_whose_token_was_revoked_behind_its_selection_is_offered_to_nobody(kind: HeldAs) -> None:
    """Its proxy may have been frozen between both."""
    workers, claim, revoked = Workers(), claimed(kind), Refusal(401, "revoked")
    claim.refusal = lambda: revoked
    with pytest.raises(Refusal) as caught:
        await workers.place(claim)
    assert (caught.value, workers.offered, workers.given_back) == (revoked, [], ["first"])


# Pools that start on demand, and pools that get another Playwright version


def gateway_with(queue: mock.Mock, **told: object) -> Gateway:
    """A gateway whose roster has a pool, of which this is told, and one of a newer version."""
    roster = Roster()
    pools = {"old": told_of_pool(**{"playwright": "1.58", **told}), "new": told_of_pool(playwright="1.65")}
    roster.replace({"pools": pools})
    selector = mock.Mock(queue=queue)
    return Gateway(Settings(), roster, selector, mock.Mock(), mock.Mock(), mock.Mock(), mock.Mock())


ON_DEMAND = {"onDemand": True, "wanted": 0, "available": 0}


async def test_who_wants_a_pool_that_cannot_start_hears_why_and_stands_in_no_line() -> None:
    gateway = gateway_with(queue := mock.Mock(), **ON_DEMAND, reason="no display")
    claim = Claim(HeldAs.SESSION, "chromium", "old", "1.58", "client", 0.0)
    with pytest.raises(
        Refusal, match="pool old, which starts when a client comes, does not start now: no display"
    ) as no:
        await gateway.slot(claim)
    assert (no.value.status, no.value.details) == (503, {"retryAfterS": 5})
    queue.acquire.assert_not_called()


async def test_why_a_pool_did_not_start_that_this_host_has_no_more_is_nothing_to_whom_another_host_serves() -> None:
    queue = mock.Mock(acquire=mock.AsyncMock(return_value="w1"))
    gateway, other = gateway_with(queue, **ON_DEMAND, removed=True, reason="no display"), Roster()
    other.replace({"pools": {"old": told_of_pool(playwright="1.58", available=0)}})
    gateway.roster.others = (other,)
    assert await gateway.slot(Claim(HeldAs.SESSION, "chromium", "old", "1.58", "client", 0.0)) == "w1"


async def test_who_waits_for_a_pool_that_starts_may_wait_for_a_launch_as_well() -> None:
    now, settings = asyncio.get_running_loop().time(), Settings()
    for told, more_s in ((ON_DEMAND, settings.launch_timeout), ({"onDemand": True}, 0.0), ({"available": 0}, 0.0)):
        assert gateway_with(mock.Mock(), **told).deadline("old", 5.0) - now == pytest.approx(5.0 + more_s, abs=1.0)


@pytest.mark.parametrize(
    ("told", "refused", "ended"),
    [
        ({**ON_DEMAND, "wanted": 1}, None, {}),
        ({**ON_DEMAND, "reason": "no display"}, 503, {}),
        ({"removed": True, "wanted": 0}, None, {"1.58": 428, None: 503}),  # the other pool has another version
        ({"playwright": "1.62"}, None, {"1.58": 428}),  # its last worker of the other version is gone
    ],
)
def test_when_a_pool_serves_those_in_its_line_no_more_they_hear_it(
    told: dict[str, object], refused: int | None, ended: dict[str | None, int]
) -> None:
    waiting = [Claim(HeldAs.SESSION, "chromium", "old", version, "client", 0.0) for version in ("1.58", None)]
    queue = mock.Mock()
    queue.pools.return_value, queue.waiting_in.return_value = ["old"], waiting
    gateway_with(queue, **told).roster_changed()
    assert [each.args[1].status for each in queue.refuse.mock_calls] == ([refused] if refused else [])
    assert {each.args[0].playwright_version: each.args[1].status for each in queue.end_wait.mock_calls} == ended
