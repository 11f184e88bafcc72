"""The tables of status and sessions: whole in a pipe, no wider than a terminal."""

import re
import sys
from typing import Any

import pytest

from pwgrid.cli import exit_codes
from pwgrid.cli.sessions import sessions_text
from pwgrid.cli.status import exit_code, status_text

WORKER: dict[str, Any] = {
    "id": "8dd2f4ed",
    "pool": "chromium",
    "pid": 1038200,
    "status": "draining",
    "active": 3,
    "slots": 5,
    "lifetime": 49,
    "memoryMib": 1128,
    "rssMib": 2000,
    "drainLeftS": 12.3,
    "reason": "memory: above MAX_WORKER_MEMORY_MIB",
}
POOL: dict[str, Any] = {
    "name": "chromium",
    "labels": [],
    "removed": False,
    "wanted": 20,
    "available": 19,
    "spare": 2,
    "starting": 4,
    "draining": 1,
    "slots": 95,
    "reason": "the host is short of memory",
    "drainTimeouts": 6,
}
STATUS: dict[str, Any] = {
    "ready": True,
    "stopping": False,
    "endpoint": "ws://127.0.0.1:8080",
    "master": {"pid": 1},
    "proxy": {"pid": 2},
    "redis": {"pid": 3, "url": "unix:///run/redis.sock", "error": "away"},
    "host": {"availableMib": 100, "guard": "closed", "memoryMetric": "pss"},
    "problems": ["the disk is full"],
    "waitingByRun": [],
    "runs": [],
    "pools": [POOL],
    "workers": [WORKER, {**WORKER, "id": "ffffffff", "active": None, "memoryMib": None, "drainLeftS": None}],
}
SESSION: dict[str, Any] = {
    "id": "0123456789abcdef",
    "pool": "chromium",
    "workerId": "89abcdef",
    "status": "failed",
    "reason": "memory limit",
    "createdAt": 1_700_000_000.0,
    "endedAt": 1_700_000_012.5,
    "client": "127.0.0.1:54321",
}


@pytest.fixture(autouse=True)
def pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)


def test_the_status_has_every_figure_in_a_line_of_its_own() -> None:
    lines = status_text(STATUS).splitlines()
    assert lines[:4] == [
        "ws://127.0.0.1:8080  serving  master 1  proxy 2",
        "redis unix:///run/redis.sock  pid 3  (away)",
        "host 100 MiB available  (closed)",
        "PROBLEM: the disk is full",
    ]
    head, pool = (line.split(maxsplit=8) for line in lines[5:7])
    assert head == ["POOL", "WANTED", "AVAILABLE", "SPARE", "STARTING", "DRAINING", "SESSIONS", "SLOTS"]
    remarks = "the host is short of memory; 6 drains timed out"
    assert pool == ["chromium", "20", "19", "2", "4", "1", "3", "95", remarks]
    assert lines[8].split()[-2:] == ["MEMORY", "(PSS)"]
    first, second = lines[9:]
    assert first.split(maxsplit=8) == [
        *("8dd2f4ed", "chromium", "1038200", "draining", "3/5", "49", "1128", "MiB"),
        "memory: above MAX_WORKER_MEMORY_MIB (12 s left)",
    ]
    assert second.split()[4:8] == ["0/5", "49", "-", "memory:"]


def test_the_status_has_pools_and_workers_of_all_hosts_each_with_its_host() -> None:
    elsewhere = {
        **WORKER,
        "id": "cccccccc",
        "pid": None,
        "active": 1,
        "memoryMib": 70,
        "drainLeftS": None,
        "reason": None,
    }
    other = {
        "name": "10.0.0.2:80",
        "pools": [{**POOL, "wanted": 7, "reason": "no browser", "drainTimeouts": 0}],
        "workers": [{**elsewhere, "host": "10.0.0.2:80"}],
    }
    found = {**STATUS, "host": {**STATUS["host"], "name": "10.0.0.1:80"}, "otherHosts": [other]}
    rows = [re.split(r"  +", line) for line in status_text(found).splitlines()[5:]]
    assert [row[0] for row in rows] == [
        "POOL",
        "chromium",
        "chromium",
        "",
        "WORKER",
        "8dd2f4ed",
        "ffffffff",
        "cccccccc",
    ]
    assert [rows[0][8], *(row[8] for row in rows[1:3])] == ["HOST", "10.0.0.1:80", "10.0.0.2:80"]
    assert [row[1:9:5] + row[9:] for row in rows[2:3]] == [["7", "1", "no browser"]]
    assert rows[4][-1] == "HOST"
    assert [row[7] for row in rows[5:7]] == ["10.0.0.1:80"] * 2
    assert rows[7] == ["cccccccc", "chromium", "-", "draining", "1/5", "49", "-", "10.0.0.2:80"]
    healthy = {
        **found,
        "problems": [],
        "pools": [{**POOL, "reason": None}],
        "redis": {**STATUS["redis"], "error": None},
    }
    assert exit_code(healthy) == exit_codes.HEALTHY  # that of its own host


def test_each_worker_has_its_playwright_where_they_have_several() -> None:
    workers = [
        {**WORKER, "playwrightVersion": "1.58.0", "reason": None, "drainLeftS": None, "suspect": "the canary failed"},
        {**WORKER, "playwrightVersion": "1.65.1", "reason": None, "drainLeftS": None},
        {**WORKER, "playwrightVersion": None},
    ]
    first, second, third = status_text({**STATUS, "workers": workers}).splitlines()[9:]
    assert first.endswith("  Playwright 1.58.0; the canary failed")
    assert second.endswith("  Playwright 1.65.1")
    assert third.endswith("  memory: above MAX_WORKER_MEMORY_MIB (12 s left)")
    assert "Playwright" not in status_text({**STATUS, "workers": workers[:1]})


def test_the_status_of_a_grid_that_is_not_ready_says_why() -> None:
    lines = status_text({**STATUS, "ready": False, "reason": "no firefox worker is available"}).splitlines()
    assert lines[0] == "ws://127.0.0.1:8080  not ready  master 1  proxy 2"
    assert lines[3:5] == ["NOT READY: no firefox worker is available", "PROBLEM: the disk is full"]


WAITING: list[dict[str, Any]] = [
    {"pool": "chromium", "run": "Smoke 12", "token": "ci", "waiting": 7},
    {"pool": "firefox", "run": "", "token": "", "waiting": 12},
]


def test_the_status_says_who_waits_for_what_where_somebody_does() -> None:
    lines = status_text({**STATUS, "waiting": 19, "waitingByRun": WAITING}).splitlines()
    assert lines[7:12] == [
        "",
        "WAITING FOR  RUN       TOKEN  CLIENTS",
        "chromium     Smoke 12  ci     7",
        "firefox                       12",
        "",
    ]
    assert "WAITING" not in status_text({**STATUS, "waiting": 0, "waitingByRun": []})


def test_sessions_are_listed_with_their_reason() -> None:
    head, row = sessions_text([SESSION]).splitlines()
    assert head.split() == ["SESSION", "POOL", "WORKER", "STATUS", "BEGAN", "LASTED", "CLIENT", "REASON"]
    assert row.split()[:4] == ["0123456789abcdef", "chromium", "89abcdef", "failed"]
    assert "12.5 s" in row
    assert row.endswith("127.0.0.1:54321  memory limit")


def test_what_is_isolated_is_said_only_of_those_that_are() -> None:
    assert "isolation" not in sessions_text([SESSION, {**SESSION, "isolation": "context"}])
    assert sessions_text([{**SESSION, "isolation": "browser"}]).endswith("memory limit; isolation browser")
    assert "isolation" not in status_text({**STATUS, "pools": [{**POOL, "isolation": "context"}]})
    isolated = status_text({**STATUS, "pools": [{**POOL, "isolation": "process"}]})
    assert "isolation process; the host is short of memory" in isolated


def test_a_session_s_names_label_key_and_lease_are_shown() -> None:
    named = {
        "name": "Smoke 12",
        "run": "build-71",
        "labels": "AppA:Chromium:UAT",
        "lease": "89abcdef-01",
        "token": None,
    }
    (_, row) = sessions_text([{**SESSION, **named}]).splitlines()
    assert row.endswith("memory limit; name Smoke 12; run build-71; labels AppA:Chromium:UAT; lease 89abcdef-01")


def test_the_status_shows_who_has_the_slots_where_clients_have_said_so() -> None:
    assert "LABELS" not in status_text(STATUS)
    run = {"name": "Smoke 12", "run": "", "labels": "AppA:Chromium:UAT", "slots": 3}
    lines = [line.split() for line in status_text({**STATUS, "runs": [run]}).splitlines()]
    head = lines.index(["NAME", "RUN", "LABELS", "SLOTS"])
    assert lines[head + 1] == ["Smoke", "12", "AppA:Chromium:UAT", "3"]


def test_on_eighty_columns_no_line_is_longer_and_nothing_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "dumb")  # 80 columns, and no codes for bold
    long = {"pool": "chromium", "run": "x" * 128, "token": "y" * 60, "waiting": 7}
    for text, words in (
        (status_text(STATUS), ("chromium", "1038200", "draining", "1128 MiB", "short of", "timed", "12 s")),
        (status_text({**STATUS, "waitingByRun": [*WAITING, long]}), ("Smoke 12", "xxx", "yyy", "firefox", "12")),
        (
            sessions_text([SESSION]),
            ("0123456789abcdef", "89abcdef", "failed", "12.5 s", "127.0.0.1", ":54321", "memory"),
        ),
    ):
        assert max(map(len, text.splitlines())) <= 80
        assert all(word in text for word in words)
        assert "…" not in text


@pytest.mark.parametrize("variable", ["FORCE_COLOR", "TTY_COMPATIBLE"])
def test_a_pipe_gets_whole_lines_also_where_colours_are_asked_for(
    variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "1")
    assert len(sessions_text([SESSION, SESSION]).splitlines()) == 3


def test_a_reason_cannot_steer_the_terminal() -> None:
    assert "\x1b" not in sessions_text([{**SESSION, "reason": "\x1b[31mred\n"}])


def test_what_a_grid_says_outside_of_the_tables_steers_no_terminal_either() -> None:
    hostile = "\x1b[2J\x9b31m\nPROBLEM: none"
    text = status_text({**STATUS, "endpoint": hostile, "redis": {**STATUS["redis"], "error": hostile}})
    assert all(line.isprintable() for line in text.split("\n"))
    assert sum(line.startswith("PROBLEM: ") for line in text.split("\n")) == 1
