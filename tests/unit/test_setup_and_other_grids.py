"""Which running grids `pwgrid setup --remove` asks: what they answer is given here."""

from pathlib import Path

import pytest

from pwgrid.cli import ask_grid, setup
from pwgrid.runtime import find_grids
from pwgrid.runtime.find_grids import RunningGrid
from pwgrid.settings.model import Settings

POOLS = [{"name": "chromium", "playwright": "1.58"}]


def test_a_grid_of_a_version_without_drivers_of_its_own_uses_none(monkeypatch: pytest.MonkeyPatch) -> None:
    older, other, ours = (RunningGrid(Path(f"/run/{pid}"), pid, pid, "ws://127.0.0.1:8080/") for pid in (1, 2, 3))
    settings = {
        older: {"pools": {"value": POOLS}},
        other: {"pools": {"value": POOLS}, "drivers_dir": {"value": "/elsewhere"}},
        ours: {"pools": {"value": POOLS}, "drivers_dir": {"value": "/drivers"}},
    }
    monkeypatch.setattr(find_grids, "find_running", lambda *, elsewhere=False: [older, ours] if elsewhere else [other])
    monkeypatch.setattr(ask_grid, "ask", lambda grid, _what: {"settings": settings[grid]})
    assert [*setup._grids_with(Settings(drivers_dir="/drivers"))] == [(ours, POOLS)]
