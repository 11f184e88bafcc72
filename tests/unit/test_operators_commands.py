"""What operators' commands make of their arguments and of what the master tells."""

from __future__ import annotations

import os
import socket
import tempfile
from pathlib import Path
from typing import Any

import click
import pytest

from pwgrid.cli import exit_codes, upgrade
from pwgrid.cli.ask_grid import ask, find_grid
from pwgrid.cli.drain import describe_end, is_good, progress
from pwgrid.cli.reload import reload_text
from pwgrid.cli.scale import read_scale
from pwgrid.cli.upgrade import wait_for_replacements
from pwgrid.common.errors import GridError
from pwgrid.runtime.directory import RuntimeDir
from pwgrid.runtime.find_grids import RunningGrid
from tests.support.display import Recorded


def test_what_systemd_starts_means_its_own_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reload of a user's service, beside a `pwgrid run` of that user."""
    monkeypatch.setattr("pwgrid.runtime.find_grids.SERVICE_BASE", Path("/nowhere"))
    with tempfile.TemporaryDirectory(prefix="pg-", dir="/tmp") as temporary:  # short enough for sockets
        service, private = f"{temporary}/run", f"{temporary}/pwgrid-{os.getuid()}"
        monkeypatch.setenv("TMPDIR", temporary)
        with (
            RuntimeDir.create(service, 8080).locked("ws://127.0.0.1:8080"),
            RuntimeDir.create(private, 9000).locked("ws://127.0.0.1:9000"),
        ):
            monkeypatch.setenv("RUNTIME_DIRECTORY", service)
            assert find_grid(None, None).port == 8080
            assert find_grid(9000, None).port == 9000


def test_who_may_not_look_at_the_service_s_grid_is_told_who_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """/run/pwgrid links into a directory of root's. Nothing is hidden from root; a link to nowhere is alike for it."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("pwgrid.runtime.find_grids._BOUND_SOCKETS", tmp_path / "none")
    monkeypatch.setattr("pwgrid.runtime.find_grids.SERVICE_BASE", tmp_path / "pwgrid")
    with pytest.raises(GridError, match="start one with pwgrid serve"):
        find_grid(None, None)
    (tmp_path / "pwgrid").symlink_to(tmp_path / "private")
    with pytest.raises(GridError, match="run this as root"):
        find_grid(None, None)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a directory away")
def test_nothing_is_asked_where_somebody_else_than_the_directory_s_owner_would_answer(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as control:
        control.bind(str(tmp_path / "control.sock"))
        control.listen()
        os.chown(tmp_path, 12345, 12345)
        with pytest.raises(GridError, match="belongs to uid 12345, but uid 0 answers there"):
            ask(RunningGrid(tmp_path, 8080, os.getpid(), "ws://x"), "redis")
        visitor, _ = control.accept()
        with visitor:
            assert visitor.recv(4096) == b""


NOTHING: dict[str, Any] = {"changed": [], "added": [], "removed": [], "scaled": {}, "recycled": [], "proxy": False}


def test_a_reload_says_that_the_proxy_does_not_know_yet_also_where_nothing_has_changed() -> None:
    assert reload_text(NOTHING | {"proxyKnows": True}) == "nothing has changed"
    unconfirmed = "nothing has changed; the proxy has not confirmed the configuration yet"
    assert reload_text(NOTHING | {"proxyKnows": False}) == unconfirmed
    done = NOTHING | {"changed": ["host"], "proxy": True, "proxyKnows": False}
    assert reload_text(done) == "changed: host; replacing the proxy; the proxy has not confirmed it yet"


def test_scale_reads_pools_and_figures() -> None:
    assert read_scale(["chromium=4", "firefox=0"]) == {"chromium": 4, "firefox": 0}


@pytest.mark.parametrize("text", ["chromium", "chromium=", "chromium=-1", "chromium=two", "=", "4"])
def test_scale_refuses_what_is_no_figure(text: str) -> None:
    with pytest.raises(click.UsageError, match="POOL=N") as refused:
        read_scale([text])
    assert refused.value.exit_code == exit_codes.REFUSED


@pytest.mark.parametrize(
    ("outcome", "text", "good"),
    [
        ({"cut": 0, "timedOut": False, "lost": None}, "w: gone, no session was cut", True),
        ({"cut": 2, "timedOut": True, "lost": None}, "w: gone, 2 sessions cut: its time ran out", False),
        ({"cut": 1, "timedOut": False, "lost": None}, "w: gone, 1 session cut: it was told to end now", True),
        ({"cut": 0, "timedOut": False, "lost": "memory limit"}, "w: lost: memory limit", False),
        (None, "w: gone, and nobody knows how", False),
    ],
)
def test_the_end_of_a_drain_is_told(outcome: dict[str, object] | None, text: str, good: bool) -> None:
    assert describe_end("w", outcome) == text
    assert is_good(outcome) == good


def test_progress_shows_sessions_and_time() -> None:
    worker = {"id": "w", "status": "draining", "active": 2, "drainLeftS": 12.3}
    assert progress(worker) == "w: draining, 2 sessions left, 12 s left"
    assert progress({**worker, "active": 0}) == "w: draining, no session left"


GRID = RunningGrid(Path("/nonexistent"), 8080, 1, "ws://127.0.0.1:8080")


def looks_like(*workers: dict[str, Any], proxy: int = 20, replacing: bool = False, reason: str = "") -> dict[str, Any]:
    """A status with these workers."""
    return {
        "version": "2",
        "proxy": {"pid": proxy, "beingReplaced": replacing},
        "workers": [
            {"active": 0, "pid": 1, "status": "available", "drainLeftS": None, "reason": None, "reasonKind": None}
            | worker
            for worker in workers
        ],
        "pools": [{"name": "chromium", "reason": reason}],
    }


A, B, NEW = {"id": "a"}, {"id": "b"}, {"id": "new"}
UNMARKED = {"reason": None, "reasonKind": None}
MARKED = {"reason": "upgrade", "reasonKind": "upgrade"}


def change(monkeypatch: pytest.MonkeyPatch, *looks: dict[str, Any]) -> tuple[str, list[str]]:
    """What `pwgrid upgrade` shows at last, and before that, when the grid looks like this one time after the other."""
    shown = Recorded()
    monkeypatch.setattr(upgrade, "watch", lambda *_: iter(looks))
    return wait_for_replacements(GRID, looks_like(A, B, proxy=10), shown), shown.lines


LINGERS = {"status": "draining", "active": 3, "drainLeftS": 3581.4}


def test_a_version_change_is_shown_until_the_last_old_worker_serves_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    done, lines = change(
        monkeypatch,
        looks_like(A, B, proxy=10, replacing=True),
        looks_like(A | MARKED, B | MARKED, reason="it does not start"),
        looks_like(A | MARKED, B | MARKED, NEW),
        looks_like(A | MARKED, B | MARKED, {"id": "late"} | MARKED, NEW),
        looks_like(A | MARKED | LINGERS, B | MARKED, NEW),
        looks_like(B | MARKED, NEW),
        looks_like(B | MARKED | LINGERS | {"active": 0}, NEW, {"id": "newer"}),
        looks_like(A),
    )
    assert lines == [
        "replacing the proxy",
        "0 of 2 workers replaced; chromium: it does not start",
        "0 of 2 workers replaced",
        "0 of 3 workers replaced",
        "2 of 3 workers replaced; 3 live sessions go on in 1 old worker, for 3581 s at the most",
        "2 of 3 workers replaced",
    ]
    assert done == "the master, the proxy and 3 workers run the new code (version 2)"


def test_a_version_change_waits_for_no_session_and_says_how_many_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    done, lines = change(
        monkeypatch,
        looks_like(A | MARKED | LINGERS, B | MARKED, NEW),
        looks_like(A | MARKED | LINGERS, B | MARKED | LINGERS | {"active": 1, "drainLeftS": 3600.0}, NEW),
        looks_like(NEW),
    )
    assert lines == ["1 of 2 workers replaced; 3 live sessions go on in 1 old worker, for 3581 s at the most"]
    assert done == (
        "the master, the proxy and 2 workers run the new code (version 2); "
        "4 live sessions go on in 2 old workers, for 3600 s at the most"
    )


def test_workers_that_lingered_before_the_version_change_are_none_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upgrade, "watch", lambda *_: iter([looks_like(B | LINGERS | MARKED, NEW)]))
    done = wait_for_replacements(GRID, looks_like(A, B | LINGERS, proxy=10), Recorded())
    assert done == "the master, the proxy and 1 worker run the new code (version 2)"


def test_a_version_change_that_the_master_could_not_make_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(GridError, match="could not execute the new code"):
        change(monkeypatch, looks_like(A, B, proxy=10))


def test_a_version_change_that_left_the_old_proxy_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(GridError, match="the proxy is not"):
        change(monkeypatch, looks_like(A | MARKED, proxy=10), looks_like(NEW, proxy=10))
