"""How a proxy finds the session of a URL: by Redis, or by its workers while that is away."""

from collections.abc import Mapping
from typing import Any, cast

import pytest

from pwgrid.common.errors import RegistryUnavailable
from pwgrid.proxy.connect.find_session import FoundSession, SessionFinder
from pwgrid.proxy.connect.handoff_link import HandoffFailure, Handoffs
from pwgrid.proxy.policy.access import ANYBODY, Identity
from pwgrid.proxy.policy.refusal import Refusal
from pwgrid.proxy.roster import Roster, WorkerView
from pwgrid.registry.records import SessionRecord
from pwgrid.registry.registry import Registry

CI = Identity("ci")


def record(**fields: str) -> SessionRecord:
    return SessionRecord.read("s1", {"workerId": "0a1b2c3d", "status": "running", "protocol": "cdp", **fields})


class Known:
    """A registry with these records; None: Redis is away."""

    def __init__(self, sessions: Mapping[str, SessionRecord] | None, leases: Mapping[str, SessionRecord]) -> None:
        self.sessions, self.leases = sessions, leases

    async def session(self, session_id: str) -> SessionRecord | None:
        if self.sessions is None:
            raise RegistryUnavailable("Redis is away")
        return self.sessions.get(session_id)

    async def lease(self, lease_id: str) -> SessionRecord | None:
        return self.leases.get(lease_id)


class Workers:
    """Their answers, by their ids."""

    def __init__(self, answers: Mapping[str, dict[str, Any] | Exception]) -> None:
        self.answers = answers

    async def ask(self, worker_id: str, question: Mapping[str, object]) -> dict[str, Any]:
        assert question == {"do": "tell of session", "id": "s1"}
        answer = self.answers[worker_id]
        if isinstance(answer, Exception):
            raise answer
        return answer


def finder(
    sessions: Mapping[str, SessionRecord] | None,
    leases: Mapping[str, SessionRecord] | None = None,
    workers: Mapping[str, dict[str, Any] | Exception] | None = None,
) -> SessionFinder:
    roster = Roster(
        workers={
            each: WorkerView(each, "firefox" if each == "fox" else "chromium", "available", None, "p")
            for each in (*(workers or ()), "fox")
        }
    )
    registry = cast(Registry, Known(sessions, leases or {}))
    return SessionFinder(registry, roster, cast(Handoffs, Workers(workers or {})))


async def refusal(sessions: SessionFinder, identity: Identity = ANYBODY) -> tuple[int, str]:
    with pytest.raises(Refusal) as caught:
        await sessions.find("s1", identity)
    return caught.value.status, caught.value.error


async def test_a_live_session_is_found_at_its_worker() -> None:
    assert await finder({"s1": record()}).find("s1", ANYBODY) == FoundSession("s1", "0a1b2c3d")
    assert await finder({"s1": record(status="pending")}).find("s1", ANYBODY) == FoundSession("s1", "0a1b2c3d", True)
    assert await finder({}).find("s1", ANYBODY) is None


async def test_one_that_has_ended_says_why() -> None:
    status, error = await refusal(finder({"s1": record(status="completed", reason="keep time over")}))
    assert (status, "has ended (completed: keep time over)" in error) == (404, True)


async def test_nobody_finds_that_of_another_token_whatever_its_role() -> None:
    mine, none = record(token="ci"), record()
    assert await finder({"s1": mine}).find("s1", CI) == FoundSession("s1", "0a1b2c3d")
    assert {await refusal(finder({"s1": each}), who) for each, who in ((mine, ANYBODY), (none, CI))} == {
        (404, "there is no such session (any more): connect to /cdp for a browser")
    }


async def test_a_session_in_playwright_s_protocol_is_joined_by_nobody() -> None:
    assert (await refusal(finder({"s1": record(protocol="")})))[0] == 409


async def test_no_session_gets_the_id_of_a_lease() -> None:
    assert (await refusal(finder({}, {"s1": record()})))[0] == 404


async def test_while_redis_is_away_the_workers_tell() -> None:
    here: dict[str, Any] = {"refused": None, "token": "ci", "protocol": "cdp"}
    gone = HandoffFailure("the worker is gone")
    workers = {"0a1b": {"refused": "no such session"}, "0a1c": gone, "0a1d": here}
    assert await finder(None, workers=workers).find("s1", CI) == FoundSession("s1", "0a1d")
    assert (await refusal(finder(None, workers=workers), ANYBODY))[0] == 404
    assert await finder(None, workers={"0a1b": {"refused": "no such session"}}).find("s1", CI) is None


async def test_a_session_that_got_another_id_is_found_by_its_url() -> None:
    sessions = finder({"s1": record()})
    sessions.renamed("asked", "s1")
    sessions.renamed("same", "same")
    assert await sessions.find("asked", ANYBODY) == FoundSession("s1", "0a1b2c3d")
    assert await sessions.find("same", ANYBODY) is None
    for number in range(1000):
        sessions.renamed(f"other {number}", "x")
    assert await sessions.find("asked", ANYBODY) is None  # the oldest is forgotten
