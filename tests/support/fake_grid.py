"""`python -m tests.support.fake_grid` is `pwgrid` with a fake browser server: the same processes, and no browser.

What the fake does is told by variables of the environment (fake_launcher.cjs); `FAKE_LAUNCHER` names another script.
"""

import contextlib
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

from pwgrid.cli import run
from pwgrid.cli.main import main
from pwgrid.worker.browser import launch

FAKE_LAUNCHER = Path(__file__).with_name("fake_launcher.cjs")
PROGRAM = (sys.executable, "-m", "tests.support.fake_grid")


@contextlib.contextmanager
def launching(script: Path) -> Iterator[None]:
    """Browser servers that are started in this block are `script`, which gets the variables that it is told by."""
    needed = re.compile(rf"FAKE_\w+|{launch._NEEDED.pattern}")
    with mock.patch.object(launch, "LAUNCHER", script), mock.patch.object(launch, "_NEEDED", needed):
        yield


if __name__ == "__main__":
    with launching(Path(os.environ.get("FAKE_LAUNCHER", FAKE_LAUNCHER))), mock.patch.object(run, "PROGRAM", PROGRAM):
        main(prog_name="pwgrid")
