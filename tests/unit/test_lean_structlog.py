"""What the grid's processes need not load."""

import subprocess
import sys

import pytest

pytest.importorskip("rich")

_LOADED = "import {first}, sys; print('rich' in sys.modules); import rich.console"


@pytest.mark.parametrize(("first", "loaded"), [("structlog", "True"), ("pwgrid.cli.serve", "False")])
def test_the_grid_keeps_rich_out_of_its_processes_and_hides_it_from_nobody(first: str, loaded: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _LOADED.format(first=first)], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == loaded
