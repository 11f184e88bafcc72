"""What operators' commands make of their arguments and of what the master tells."""

from __future__ import annotations

from pathlib import Path

import pytest

from pwgrid.cli.drain import describe_end, is_good, progress
from pwgrid.cli.operate import find_grid, read_scale, sessions_table
from pwgrid.common.errors import GridError


def test_who_may_not_look_at_the_service_s_grid_is_told_who_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """/run/pwgrid links into a directory of root's. Nothing is hidden from root; a link to nowhere is alike for it."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("pwgrid.runtime.directory.SERVICE_BASE", tmp_path / "pwgrid")
    with pytest.raises(GridError, match="start one with pwgrid serve"):
        find_grid(None, None)
    (tmp_path / "pwgrid").symlink_to(tmp_path / "private")
    with pytest.raises(GridError, match="run this as root"):
        find_grid(None, None)


def test_scale_reads_pools_and_figures() -> None:
    assert read_scale(["chromium=4", "firefox=0"]) == {"chromium": 4, "firefox": 0}


@pytest.mark.parametrize("text", ["chromium", "chromium=", "chromium=-1", "chromium=two", "=", "4"])
def test_scale_refuses_what_is_no_figure(text: str) -> None:
    with pytest.raises(GridError, match="POOL=N"):
        read_scale([text])


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


def test_sessions_are_listed_with_their_reason() -> None:
    session = {
        "id": "0123456789abcdef",
        "browserType": "chromium",
        "workerId": "89abcdef",
        "status": "failed",
        "reason": "memory limit",
        "createdAt": 1_700_000_000.0,
        "endedAt": 1_700_000_012.5,
        "client": "127.0.0.1:5",
    }
    row = sessions_table([session]).splitlines()[1]
    assert "12.5 s" in row
    assert row.endswith("memory limit")
