"""What an operator's commands do to a grid that runs, without a browser."""

import json
from collections.abc import Iterator

import pytest

from tests.support.grid import Grid, running_grid


@pytest.fixture(scope="module")
def grid() -> Iterator[Grid]:
    with running_grid("--chromium", "1", environment={"MAX_QUEUE": "7"}, fake=True) as grid:
        yield grid


def test_config_show_asks_the_running_grid_for_its_settings(grid: Grid) -> None:
    shown = grid.command("config", "show", "--running")
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.startswith(f"# what the grid on port {grid.port} has since its start or last reload")
    rows = {line.split()[0]: line.split()[1:] for line in shown.stdout.splitlines()}
    assert rows["max_queue"] == ["7", "environment", "MAX_QUEUE"]
    table = json.loads(grid.command("config", "show", "--running", "--json").stdout)
    assert table["port"]["value"] == grid.port  # the flag was 0: any free one
    assert table["chromium_workers"] == {"value": 1, "unit": "", "source": "--chromium"}
    assert grid.command("config", "show", "--running", "--chromium", "3").returncode == 2
