"""What `pwgrid top` draws, what its keys mean, and what it takes for news; no terminal and no grid."""

from __future__ import annotations

import select
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pwgrid.cli.top import app
from pwgrid.cli.top.draw import HELP, _age, draw
from pwgrid.cli.top.key_actions import Mode, Pane, Request, State, press, rows
from pwgrid.cli.top.snapshot import Event, Snapshot, events
from pwgrid.cli.top.terminal import Keys, Terminal
from pwgrid.cli.top.whole_grid import whole_status
from pwgrid.registry.host_records import HostRecord, HostsFound
from pwgrid.registry.records import RegistrySnapshot, WorkerRecord
from pwgrid.runtime.find_grids import RunningGrid
from tests.support.state_frames import told_of_pool

HOSTILE = "\x1b]0;owned\x07\x9b31m\u202e\n"


def worker(worker_id: str, **other: Any) -> dict[str, Any]:
    return {
        "id": worker_id,
        "pool": "chromium",
        "pid": 7,
        "status": "available",
        "active": 1,
        "slots": 5,
        "lifetime": 49,
        "memoryMib": 512,
        "startedAt": 940.0,
        "drainLeftS": None,
        "reason": None,
    } | other


def pool(**other: Any) -> dict[str, Any]:
    figures = {"wanted": 2, "available": 2, "spare": 1, "starting": 0, "draining": 0, "slots": 10, "reason": None}
    limits = {"lifetimeOfWorker": 250, "memoryLimitMib": 900}
    return {"name": "chromium", "drainTimeouts": 0, **figures, **limits} | other


def session(session_id: str, **other: Any) -> dict[str, Any]:
    return {
        "id": session_id,
        "pool": "chromium",
        "workerId": "aaaaaaaa",
        "status": "running",
        "reason": None,
        "createdAt": 990.0,
        "startedAt": 990.5,
        "endedAt": None,
        "client": "127.0.0.1:5000",
    } | other


def status(**other: Any) -> dict[str, Any]:
    return {
        "endpoint": "ws://127.0.0.1:8080",
        "ready": True,
        "reason": None,
        "stopping": False,
        "master": {"pid": 1, "startedAt": 1000.0 - 3700},
        "proxy": {"pid": 2},
        "waiting": 3,
        "waitingByRun": [{"pool": "chromium", "run": "", "token": "", "waiting": 3}],
        "redis": {"pid": 3, "url": "unix:///x"},
        "host": {"availableMib": 4000, "minAvailableMib": 256, "guard": None, "memoryMetric": "pss"},
        "pools": [pool()],
        "workers": [worker("aaaaaaaa"), worker("bbbbbbbb", active=2)],
        "drained": [],
        "problems": [],
    } | other


SESSIONS = [session("0123456789abcdef", name="checkout"), session("fedcba9876543210", status="pending")]
SNAPSHOT = Snapshot(1000.0, status(), SESSIONS)


def drawn(
    snapshot: Snapshot, state: State | None = None, news: tuple[Event, ...] = (), size: tuple[int, int] = (80, 24)
) -> list[str]:
    state = state or State()
    return [line.plain for line in draw(snapshot, rows(snapshot, news, state.filter), state, *size)]


def test_eighty_columns_hold_every_figure() -> None:
    lines = [line.rstrip() for line in drawn(SNAPSHOT, news=(Event(999.0, "something has happened"),))]
    assert len(lines) == 24
    assert lines[0].startswith("ws://127.0.0.1:8080  serving  up 1h01m")
    assert lines[1] == "sessions 3/10 [|||.....]  waiting 3  memory 1024 MiB, free 4000 (min 256)"
    assert lines[2].split() == ["POOL", "WANTED", "AVAIL", "SPARE", "START", "DRAIN", "WAIT", "SESSIONS/SLOTS"]
    assert lines[3].split() == ["chromium", "2", "2", "1", "0", "0", "3", "3/10", "[||||........]"]
    assert lines[4].split() == ["WORKER", "POOL", "STATUS", "SESS", "LIFE", "MEMORY", "AGE", "WHY"]
    assert lines[5].split() == ["aaaaaaaa", "chromium", "available", "1/5", "49/250", "512/900", "1m00s"]
    assert lines[7].split() == ["SESSION", "POOL", "WORKER", "STATUS", "AGE", "CLIENT", "NAME"]
    assert lines[8].split() == [
        "0123456789abcdef",
        "chromium",
        "aaaaaaaa",
        "running",
        "10s",
        "127.0.0.1:500",
        "checkout",
    ]
    nameless = drawn(replace(SNAPSHOT, sessions=[session("a" * 16, client="192.168.100.200:54321")]))
    assert nameless[8].rstrip().endswith(" 192.168.100.200:54321")
    assert lines[10:12] == ["EVENTS", lines[11]]
    assert lines[11].endswith(" something has happened")
    assert lines[-1] == "Tab table  Up/Down row  d drain  e end  / filter  ? help  q quit"


def test_what_is_isolated_is_said_only_of_those_that_are() -> None:
    sessions = [session("a" * 16, isolation="browser"), session("b" * 16, isolation="context")]
    pools = [pool(name="own", isolation="browser"), pool(isolation="context")]
    lines = drawn(replace(SNAPSHOT, status=status(pools=pools), sessions=sessions), size=(120, 24))
    assert lines[3].startswith("own (browser) ")
    assert lines[4].startswith("chromium ")
    head, first, second = (line.split() for line in lines[8:11])
    assert head == ["SESSION", "POOL", "WORKER", "STATUS", "AGE", "ISOLATED", "CLIENT"]
    assert (first[5:], second[5:]) == (["browser", "127.0.0.1:5000"], ["127.0.0.1:5000"])


def test_a_session_without_a_client_is_called_kept() -> None:
    sessions = [session("a" * 16, kept=True, keptUntil=1000.0), session("b" * 16, kept=False)]
    lines = drawn(replace(SNAPSHOT, sessions=sessions), size=(120, 24))
    assert [line.split()[3] for line in lines if line.startswith(("aaaaaaaaaaaa", "bbbbbbbbbbbb"))] == [
        "kept",
        "running",
    ]


def test_without_a_floor_for_the_hosts_memory_none_is_shown() -> None:
    host = {"availableMib": 4000, "minAvailableMib": 0, "guard": None, "memoryMetric": "pss"}
    assert drawn(replace(SNAPSHOT, status=status(host=host)))[1].endswith("free 4000")


def test_a_pool_s_own_limits_are_those_of_its_workers() -> None:
    pools = [pool(name="small", lifetimeOfWorker=10, memoryLimitMib=0), pool(name="chromium")]
    workers = [worker("aaaaaaaa", pool="small"), worker("bbbbbbbb")]
    lines = drawn(replace(SNAPSHOT, status=status(pools=pools, workers=workers)))
    assert lines[6].split()[:6] == ["aaaaaaaa", "small", "available", "1/5", "49/10", "512"]
    assert lines[7].split()[:6] == ["bbbbbbbb", "chromium", "available", "1/5", "49/250", "512/900"]


@given(
    width=st.integers(20, 200),
    height=st.integers(4, 60),
    counts=st.tuples(st.integers(0, 4), st.integers(0, 40), st.integers(0, 200)),
    pane=st.sampled_from(list(Pane)),
    mode=st.sampled_from(list(Mode)),
)
def test_any_grid_fits_any_terminal(
    width: int, height: int, counts: tuple[int, int, int], pane: Pane, mode: Mode
) -> None:
    pools, workers, sessions = counts
    found = status(
        pools=[pool(name=f"pool-{n}") for n in range(pools)],
        workers=[worker(f"w{n:07}", pool=f"pool-{n % pools}") for n in range(workers if pools else 0)],
    )
    snapshot = Snapshot(1000.0, found, [session(f"{n:016}") for n in range(sessions)])
    asked = Request("drain", {}, "drain it?")
    lines = draw(snapshot, rows(snapshot, [], ""), State(pane=pane, mode=mode, asked=asked), width, height)
    assert len(lines) == height
    assert all(line.cell_len <= width for line in lines)


def test_the_chosen_row_is_on_the_screen_also_of_many() -> None:
    snapshot = Snapshot(1000.0, status(), [session(f"{n:016}") for n in range(500)])
    state, _ = press(State(), "G", rows(snapshot, [], ""))
    assert any(line.startswith(f"{499:016}") for line in drawn(snapshot, state))


def test_nothing_that_others_say_steers_the_terminal() -> None:
    hostile = [session("0123456789abcdef", name=HOSTILE, client=HOSTILE)]
    found = status(reason=HOSTILE, ready=False, problems=[HOSTILE], workers=[worker("aaaaaaaa", reason=HOSTILE)])
    snapshot = Snapshot(1000.0, found, hostile, problem=HOSTILE)
    for state in (State(message=HOSTILE), State(mode=Mode.CONFIRM, asked=Request("x", {}, HOSTILE)), State(filter="")):
        for line in drawn(snapshot, state, (Event(1.0, HOSTILE),), (200, 40)):
            assert line.isprintable(), line


def test_who_waits_is_shown_by_pool_and_run_in_the_order_of_turns() -> None:
    said = [("chromium", "checkout", "ci", 4), ("chromium", "nightly", "", 2), ("firefox", "", "", 1)]
    line = [dict(zip(("pool", "run", "token", "waiting"), each, strict=True)) for each in said]
    lines = drawn(replace(SNAPSHOT, status=status(waiting=7, waitingByRun=line)))
    assert lines[2].rstrip() == "waiting by run: checkout (ci) 4, nightly 2"
    assert lines[4].split()[:8] == ["chromium", "2", "2", "1", "0", "0", "6", "3/10"]


def test_a_grid_that_does_not_answer_is_shown_as_it_was_with_the_reason() -> None:
    lines = drawn(Snapshot(1000.0, status(), SESSIONS, problem="the master (pid 1) does not answer"))
    assert lines[0] == "the master (pid 1) does not answer"
    assert lines[1].startswith("ws://127.0.0.1:8080")
    assert drawn(Snapshot(1000.0, {}, problem="there is none"))[0] == "there is none"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (59.9, "59s"), (60, "1m00s"), (3599, "59m59s"), (3600, "1h00m"), (86400 * 99, "99d00h"), (1e7, "115d")],
)
def test_an_age_has_at_most_six_characters(seconds: float, text: str) -> None:
    assert _age(seconds) == text


# Keys


def pressed(*keys: str, state: State | None = None, snapshot: Snapshot = SNAPSHOT) -> tuple[State, Request | None]:
    state, wanted = state or State(), None
    for key in keys:
        state, wanted = press(state, key, rows(snapshot, [], state.filter))
    return state, wanted


def test_only_a_yes_ends_a_session() -> None:
    state, wanted = pressed("down", "e")
    assert (state.mode, wanted) == (Mode.CONFIRM, None)
    state, wanted = pressed("y", state=state)
    assert isinstance(wanted, Request)
    assert (wanted.name, wanted.data) == ("end_session", {"worker": "aaaaaaaa", "session": "fedcba9876543210"})
    for key in ("n", "enter", "q", "escape", "e"):
        state, wanted = pressed("e", key)
        assert (state.mode, state.message, wanted) == (Mode.TABLES, "nothing was done", None)


def test_what_a_drain_means_depends_on_the_table() -> None:
    def asked(*keys: str, snapshot: Snapshot = SNAPSHOT) -> dict[str, Any]:
        _, wanted = pressed(*keys, "d", "y", snapshot=snapshot)
        assert isinstance(wanted, Request)
        assert wanted.name == "drain"
        return dict(wanted.data)

    assert asked("backtab", "end") == {"worker": "bbbbbbbb"}
    assert asked("tab") == {"pool": "chromium"}
    draining = Snapshot(1.0, status(workers=[worker("cccccccc", status="draining")]))
    assert asked("left", snapshot=draining) == {"worker": "cccccccc", "now": True}
    state, wanted = pressed("d")
    assert (state.mode, wanted) == (Mode.TABLES, None)
    assert "Tab" in state.message


def test_keys_do_no_harm_where_there_is_nothing() -> None:
    empty = Snapshot(1.0, status(pools=[], workers=[]))
    for pane in ("", "tab", "backtab"):
        for key in ("d", "e", "up", "down", "end", "x"):
            state, wanted = pressed(*filter(None, (pane, key)), snapshot=empty)
            assert (state.mode, wanted) == (Mode.TABLES, None)


def test_a_filter_takes_every_character_and_keeps_the_choice_in_sight() -> None:
    state, wanted = pressed("/", *"qed", "backspace", "?")
    assert (state.mode, state.filter, wanted) == (Mode.FILTER, "qe?", None)
    state, _ = pressed("enter", state=state)
    assert (state.mode, state.filter) == (Mode.TABLES, "qe?")
    assert pressed("escape", state=state)[0].filter == ""
    state, _ = pressed("down", "/", *"CHECKout", "enter")
    there = rows(SNAPSHOT, [], state.filter)
    assert [each["id"] for each in there.sessions] == ["0123456789abcdef"]
    _, wanted = pressed("e", "y", state=state)
    assert isinstance(wanted, Request)
    assert wanted.data["session"] == "0123456789abcdef"  # the chosen one is not shown any more


def test_q_quits_and_help_goes_back_with_any_key() -> None:
    assert pressed("q")[0].mode is Mode.QUIT
    state, _ = pressed("?")
    assert state.mode is Mode.HELP
    assert any("drain the chosen worker" in line for line in drawn(SNAPSHOT, state))
    assert max(map(len, HELP.splitlines())) < 80
    assert pressed("q", state=state) == (State(), None)


def test_keys_are_put_together_from_pieces() -> None:
    keys = Keys()
    assert keys.feed(b"a\x1b[A\x1bOB\t\r\x7f") == ["a", "up", "down", "tab", "enter", "backspace"]
    assert (keys.feed(b"\x1b"), keys.is_pending) == ([], True)
    assert keys.feed(b"[") == []
    assert keys.feed(b"5~") == ["pageup"]
    assert keys.feed("ä".encode()[:1]) == []
    assert keys.feed("ä".encode()[1:]) == ["ä"]
    assert keys.feed(b"\x1b[99;5u\x1b[200~x\x01") == ["x"]  # unknown ones are nothing
    assert keys.feed(b"\x1b") == []
    assert (keys.nothing_follows(), keys.is_pending) == (["escape"], False)


# News


@pytest.mark.parametrize("broken", [{}, {"url": "unix:///x"}])
def test_an_error_that_ends_the_watcher_ends_top_with_its_traceback(
    broken: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a master of another version answers with other fields."""
    grid = RunningGrid(Path("/nonexistent"), 8080, 1, "ws://127.0.0.1:8080")
    monkeypatch.setattr(app, "find_grid", lambda *_: grid)
    monkeypatch.setattr(app, "ask", lambda *_: status())
    monkeypatch.setattr("pwgrid.cli.ask_grid.ask", lambda *_: broken)
    watching = app.Watcher(None, None, every_s=1.0)
    watching.start()
    with pytest.raises(KeyError) as raised:
        app._Screen(watching, cast(Terminal, WithoutKeys())).run()
    watching.join()
    assert any(entry.name == "redis_of" for entry in raised.traceback)


class WithoutKeys:
    """A terminal on which nobody presses a key."""

    size = (80, 24)

    def wait(self, readable: int) -> tuple[list[str], bool]:
        assert select.select([readable], [], [], 30)[0], "the screen would stand still"
        return [], True

    def show(self, _lines: object) -> None:
        raise AssertionError("there is nothing to show")


def texts(before: Snapshot, now: Snapshot, *ended: dict[str, Any]) -> list[str]:
    return [event.text for event in events(before, now, ended)]


def test_two_snapshots_tell_what_has_happened() -> None:
    drained = {"id": "bbbbbbbb", "cut": 2, "timedOut": True, "lost": None}
    now = status(
        ready=False,
        reason="no chromium worker is available",
        proxy={"pid": 22},
        host={"availableMib": 1, "minAvailableMib": 256, "guard": "the host is short of memory", "memoryMetric": "pss"},
        pools=[pool(reason="it does not start")],
        workers=[worker("aaaaaaaa", status="draining", reason="memory"), worker("cccccccc", status="starting")],
        drained=[drained],
    )
    assert texts(SNAPSHOT, Snapshot(1001.0, now)) == [
        "not ready: no chromium worker is available",
        "another proxy: 2 → 22",
        "host guard: the host is short of memory",
        "pool chromium: it does not start",
        "worker bbbbbbbb: gone, 2 sessions cut: its time ran out",
        "worker aaaaaaaa: available → draining: memory",
        "worker cccccccc of chromium: starting",
    ]
    assert texts(Snapshot(1001.0, now), Snapshot(1002.0, now)) == []
    assert "the grid is ready" in texts(Snapshot(1001.0, now), SNAPSHOT)
    assert texts(SNAPSHOT, Snapshot(1001.0, SNAPSHOT.status, problem="gone")) == ["gone"]


def test_sessions_tell_of_their_begin_and_their_end_at_their_own_time() -> None:
    begun = session("b" * 16)
    failed = session("f" * 16, status="failed", reason="memory limit", endedAt=1000.0, name="checkout")
    found = events(SNAPSHOT, SNAPSHOT, [failed, begun])
    assert [(event.at, event.is_bad) for event in found] == [(990.5, False), (1000.0, True)]
    assert found[0].text == f"session {'b' * 16} running in aaaaaaaa"
    assert found[1].text == f"session {'f' * 16} (checkout) failed after 10.0 s: memory limit"


# Several hosts

OWN, OTHER, SILENT = "10.0.0.1:8080", "10.0.0.2:8080", "10.0.0.3:8080"


def of_hosts(own: str = OWN, others: tuple[str, ...] = (OTHER, SILENT)) -> Snapshot:
    """The whole grid of `SNAPSHOT` and two other hosts, of which one is silent."""
    told = {
        "chromium": told_of_pool(wanted=3, available=2, slots=5, reason="no browser"),
        "firefox": told_of_pool(browserType="firefox", reason="no display"),
    }
    like = {"browserType": "chromium", "status": "available"}
    workers = ({"id": "cccccccc", **like}, {"id": "unknown", **like})
    made = {"pools": told, "workers": workers, "waiting": {"chromium": 4, "firefox": 0}}
    records = {
        name: HostRecord(name, ("10.0.0.2", 8080), at=0.0 if name == SILENT else 999.0, **made) for name in others
    }
    there = WorkerRecord("chromium", "cccccccc", "", started_at=940.0, slots=5, rss_mib=77)
    found = RegistrySnapshot({"chromium:cccccccc": 3}, {"chromium:cccccccc": 9}, {"chromium:cccccccc": there}, {}, 0)
    alone = status(host={**status()["host"], "name": own})
    whole = whole_status(alone, found, HostsFound(records, frozenset()), 1000.0)
    sessions = [session("a" * 16, host=OWN), session("b" * 16, workerId="cccccccc", host=OTHER)]
    return Snapshot(1000.0, whole, sessions)


def test_the_pools_workers_and_waiting_clients_of_all_hosts_are_shown() -> None:
    lines = [line.split() for line in drawn(of_hosts(), size=(120, 24))]
    assert lines[1][:4] == ["sessions", "6/25", "[||......]", "waiting"]
    assert lines[1][4] == "7"
    assert lines[3][:9] == ["chromium", "5", "4", "1", "0", "0", "7", f"{OTHER}:", "no"]
    assert lines[4][:3] == ["firefox", "1", "1"]
    assert lines[5][:4] == ["WORKER", "POOL", "HOST", "STATUS"]
    assert [line[2] for line in lines[6:9]] == [OWN, OWN, OTHER]
    assert lines[8][:7] == ["cccccccc", "chromium", OTHER, "available", "3/5", "9/250", "77/900"]
    assert lines[9][:5] == ["SESSION", "POOL", "WORKER", "HOST", "STATUS"]
    assert [line[3] for line in lines[10:12]] == [OWN, OTHER]


@pytest.mark.parametrize("alone", [of_hosts(own=""), of_hosts(others=(SILENT,)), of_hosts(others=())])
def test_nothing_is_said_of_hosts_where_there_is_one(alone: Snapshot) -> None:
    lines = drawn(replace(alone, sessions=SESSIONS))
    assert lines[2:] == drawn(SNAPSHOT)[2:]


def test_a_key_is_for_the_host_that_has_the_row() -> None:
    snapshot = of_hosts()
    for pane, keys, hosts in (
        (Pane.SESSIONS, "e", (OWN,)),
        (Pane.SESSIONS, "je", (OTHER,)),
        (Pane.WORKERS, "Gd", (OTHER,)),
        (Pane.POOLS, "d", (OWN, OTHER)),
        (Pane.POOLS, "jd", (OTHER,)),
    ):
        _, asked = pressed(*keys, "y", state=State(pane=pane), snapshot=snapshot)
        assert asked is not None
        assert asked.hosts == hosts


def test_a_worker_of_another_host_that_is_gone_is_no_bad_news() -> None:
    before = of_hosts()
    after = replace(before, status={**before.status, "workers": before.status["workers"][:2]})
    (event,) = events(before, after, [])
    assert (event.text, event.is_bad) == (f"worker cccccccc of {OTHER}: gone", False)
