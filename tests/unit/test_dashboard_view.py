"""What the page is told: the tables, what has changed in them, and events as sentences."""

from dataclasses import replace
from typing import Any

import pytest

from pwgrid.proxy.dashboard.feed import MOST_EVENTS, MOST_SAMPLES, Recent, RecentEvents, Sample
from pwgrid.proxy.policy.fair_line import Waiting
from pwgrid.proxy.policy.page_content import Event, Sources, changes, happened, session_end, view
from pwgrid.proxy.policy.pools_of_all_hosts import WholePool
from pwgrid.proxy.roster import PoolView, Roster, WorkerView
from tests.support.state_frames import told_of_pool

STATUS: dict[str, Any] = {
    "master": {"pid": 1, "startedAt": 100.0},
    "host": {"availableMib": 5000, "guard": None, "memoryMetric": "pss"},
    "pools": [{"name": "chromium", "slots": 5, "memoryLimitMib": 600, "memoryHardLimitMib": 800}],
    "workers": [
        {"id": "a", "slots": 5, "lifetime": 7, "memoryMib": 300, "startedAt": 50.0, "drainLeftS": None, "reason": None},
        {"id": "b", "slots": 5, "lifetime": 9, "memoryMib": 200, "startedAt": 60.0, "drainLeftS": 12.3}
        | {"reason": "memory limit", "suspect": "no page", "launches": 4},
    ],
    "problems": [],
}


def pool(wanted: int, reason: str | None = None) -> PoolView:
    return PoolView(wanted, 1, reason, "chromium", "chromium", lifetime=50, starting=1, draining=1)


def whole(pool: PoolView) -> WholePool:
    return WholePool(pool, {"": pool})


def worker(worker_id: str, status: str, reason: str | None = None) -> WorkerView:
    return WorkerView(worker_id, "chromium", status, "1.65", "chromium", reason)


def sources(**changed: Any) -> Sources:
    values: dict[str, Any] = {
        "status": STATUS,
        "pools": [whole(pool(2))],
        "workers": [worker("a", "available"), worker("b", "draining")],
        "active": {"chromium:a": 2, "chromium:b": 1},
        "lifetime": {"chromium:a": 8},
        "sessions": {"s": {"id": "s", "status": "running"}},
        "waiting": [Waiting("chromium", "smoke", "", 4)],
        "status_at": 1000.0,
        "grid": {"ready": True},
    }
    return Sources(**{**values, **changed})


def test_a_view_puts_the_master_s_figures_and_the_counters_of_redis_together() -> None:
    found = view(sources())
    assert found["grid"] == {
        "active": 3,
        "slots": 5,
        "startedAt": 100.0,
        "hostAvailableMib": 5000,
        "memoryMetric": "pss",
        "problems": [],
        "ready": True,
    }
    assert found["workers"]["a"] == {
        **{"pool": "chromium", "browserType": "chromium", "status": "available", "active": 2, "slots": 5},
        **{"lifetime": 8, "memoryMib": 300, "startedAt": 50.0, "drainUntil": None, "reason": None},
        **{"suspect": None, "playwright": "1.65", "launches": 0},
    }
    assert found["workers"]["b"] == {
        **{"pool": "chromium", "browserType": "chromium", "status": "draining", "active": 1, "slots": 5},
        **{"lifetime": 9, "memoryMib": 200, "startedAt": 60.0, "drainUntil": 1012, "reason": "memory limit"},
        **{"suspect": "no page", "playwright": "1.65", "launches": 4},
    }
    assert found["queue"] == {
        "chromium  smoke": {"pool": "chromium", "run": "smoke", "token": "", "clients": 4},
    }
    assert found["sessions"] == {"s": {"id": "s", "status": "running"}}


def test_a_pool_says_against_what_its_workers_are_held() -> None:
    found = view(sources())["pools"]["chromium"]
    assert (found["lifetimeOfWorker"], found["memoryLimitMib"], found["memoryHardLimitMib"]) == (50, 600, 800)
    assert (found["wanted"], found["available"], found["starting"], found["draining"], found["slots"]) == (
        2,
        1,
        1,
        1,
        5,
    )


def test_a_pool_says_what_its_sessions_share() -> None:
    assert view(sources())["pools"]["chromium"]["isolation"] == "context"


def test_no_text_of_a_view_has_a_path_or_a_pid_of_the_host() -> None:
    short = pool(2, "chromium did not start: /opt/x/chrome is not there")
    found = view(sources(pools=[whole(short)]))["pools"]["chromium"]
    assert found["reason"] == "chromium did not start: chrome is not there"


def test_without_a_word_of_the_master_the_roster_s_is_shown() -> None:
    found = view(sources(status={}))
    assert found["pools"]["chromium"]["wanted"] == 2
    assert found["workers"]["a"]["status"] == "available"
    assert found["workers"]["a"]["memoryMib"] is None


def test_changes_hold_what_differs_and_nothing_else() -> None:
    before = {"grid": {"active": 1, "slots": 5}, "workers": {"a": {"x": 1}, "b": {"x": 2}}}
    after = {"grid": {"active": 2, "slots": 5}, "workers": {"a": {"x": 1}, "c": {"x": 3}}}
    assert changes(before, after) == {"grid": {"active": 2}, "workers": {"c": {"x": 3}, "b": None}}
    assert changes(after, after) == {}
    assert changes({}, after) == after


def roster(*workers: WorkerView, pools: tuple[PoolView, ...] = (pool(2),), **state: Any) -> Roster:
    by_id = {each.worker_id: each for each in workers}
    return Roster(is_started=True, pools={each.name: each for each in pools}, workers=by_id, **state)


SERVES = worker("a", "available")
NONE_LEFT = replace(pool(2, "no /x/y found"), available=0)


@pytest.mark.parametrize(
    ("after", "told"),
    [
        (roster(SERVES), []),
        (roster(), []),  # that it was lost the master tells
        (
            roster(worker("a", "draining", "memory limit")),
            [Event("worker", "worker a of chromium drains: memory limit")],
        ),
        (roster(SERVES, worker("b", "starting")), [Event("worker", "worker b of chromium starts")]),
        (
            roster(SERVES, pools=(NONE_LEFT,)),
            [
                Event("pool", "pool chromium is short of workers: no y found", "warning"),
                Event("grid", "the grid is not ready: no chromium worker is available: no y found", "warning"),
            ],
        ),
        (
            roster(SERVES, lost="the master has said nothing for 9 s"),
            [Event("grid", "the grid is not ready: the master has said nothing for 9 s", "warning")],
        ),
        (roster(SERVES, pools=(pool(3),)), [Event("pool", "pool chromium wants 3 workers, it wanted 2")]),
        (roster(SERVES, stopping=True), [Event("grid", "the grid is shutting down", "warning")]),
    ],
)
def test_what_happens_between_two_states_is_told_with_its_reason(after: Roster, told: list[Event]) -> None:
    assert list(happened(roster(SERVES), after)) == told


def test_the_end_of_a_drained_worker_and_of_a_trouble_are_told() -> None:
    before = roster(worker("a", "draining", "operator"), pools=(NONE_LEFT,))
    assert [event.text for event in happened(before, roster())] == [
        "pool chromium has its workers again",
        "worker a of chromium has ended: operator",
        "the grid is ready",
    ]


def test_events_compare_a_roster_with_what_it_was_before() -> None:
    """The proxy has one roster, which takes over each state of the master."""
    events, changing = RecentEvents(now=lambda: 5.0), Roster()
    said = {"pools": {"chromium": told_of_pool()}}
    for status in ("available", "available", "draining"):
        changing.replace({**said, "workers": [{"id": "a", "browserType": "chromium", "status": status}]})
        events.roster_changed(changing)
    changing.stopping = True
    events.roster_changed(changing)
    assert [each["text"] for each in events.since(0)] == [
        "worker a of chromium drains",
        "the grid is shutting down",
    ]


def test_only_ends_that_their_clients_did_not_cause_are_events() -> None:
    assert session_end("s", None, "completed", "client disconnected") is None
    assert session_end("s", "smoke", "failed", "drain timeout: shutdown") == Event(
        "session", "session s (smoke) failed: drain timeout: shutdown", "error"
    )
    assert session_end("s", None, "ended", "ended by operator") == Event(
        "session", "session s was ended: ended by operator"
    )


def test_events_are_numbered_and_bounded() -> None:
    events = RecentEvents(now=lambda: 5.0)
    for _ in range(MOST_EVENTS + 7):
        events.refused("connect", 1, 503, "no slot")
    assert len(events.since(0)) == MOST_EVENTS
    assert events.since(MOST_EVENTS + 6) == [
        {
            "n": MOST_EVENTS + 7,
            "at": 5.0,
            "kind": "refusal",
            "level": "warning",
            "text": "a client was refused (503): no slot",
        }
    ]


def test_the_history_holds_an_hour() -> None:
    history = Recent[Sample](MOST_SAMPLES)
    for number in range(400):
        history.add((float(number), 0, 0, 0, 0, 0.0, None))
    assert len(history.since(0)) == 360
    assert [sample[0] for sample in history.since(398)] == [398.0, 399.0]
    assert history.since(400) == []


def test_a_view_of_several_hosts_says_where_each_worker_is_and_adds_the_slots_of_all_up() -> None:
    here, there = "10.0.0.1:8080", "10.0.0.2:8080"
    more = {"host": there, "slots": 7, "memoryMib": 70, "startedAt": 5.0}
    found = view(
        sources(
            pools=[WholePool(pool(3), {here: pool(2), there: pool(1)})],
            workers=[*sources().workers, worker("c", "available"), worker("d", "draining")],
            host=here,
            hosts={here: {"state": "serving"}, there: {"state": "silent"}},
            elsewhere={"c": more, "d": more},
            waiting_elsewhere={there: {"chromium": 2, "firefox": 0}},
        )
    )
    assert {name: row["host"] for name, row in found["workers"].items()} == {
        "a": here,
        "b": here,
        "c": there,
        "d": there,
    }
    assert [found["workers"]["c"][name] for name in ("slots", "memoryMib", "startedAt")] == [7, 70, 5.0]
    alone = view(sources())
    assert found["grid"]["slots"] == alone["grid"]["slots"] + 7  # of those that serve
    assert found["pools"]["chromium"]["slots"] == alone["pools"]["chromium"]["slots"] + 7
    assert found["pools"]["chromium"]["hosts"] == {
        here: {"wanted": 2, "available": 1},
        there: {"wanted": 1, "available": 1},
    }
    assert found["hosts"][there] == {"state": "silent"}
    (line,) = [row for row in found["queue"].values() if "host" in row]
    assert (line["host"], line["clients"]) == (there, 2)
    assert "host" not in alone["workers"]["a"]
    assert "hosts" not in alone["pools"]["chromium"]
    assert alone["hosts"] == {}
