"""`python -m tests.support.fake_grid` is `pwgrid` with a fake browser server: the same processes, and no browser.

What the fake does is told by variables of the environment (fake_launcher.cjs); `FAKE_LAUNCHER` names another script.
`FAKE_LOADED` names a directory where each process writes at its end which modules it has loaded. A master cannot start
while the file is there that `FAKE_CANNOT_START` names; a check of the code does not come so far.
"""

import contextlib
import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from pwgrid.__main__ import main
from pwgrid.cli.serve import before_code_is_loaded
from pwgrid.common.errors import GridError

FAKE_LAUNCHER = Path(__file__).with_name("fake_launcher.cjs")
PROGRAM = (sys.executable, "-m", "tests.support.fake_grid")


@contextlib.contextmanager
def launching(script: Path) -> Iterator[None]:
    """Browser servers that are started in this block are `script`, which gets the variables that it is told by."""
    from pwgrid.worker.browser import launch

    needed = re.compile(rf"FAKE_\w+|{launch._NEEDED.pattern}")
    with mock.patch.object(launch, "LAUNCHER", script), mock.patch.object(launch, "_NEEDED", needed):
        yield


@contextlib.contextmanager
def noting_modules(directory: Path, role: str) -> Iterator[None]:
    """Writes down what the process has loaded at the end of the block."""
    try:
        yield
    finally:
        (directory / f"{role}-{os.getpid()}").write_text(json.dumps([*sys.modules]))


@contextlib.contextmanager
def roles_noting_modules(directory: Path) -> Iterator[None]:
    """The same for the master and the children that it forks in this block."""
    from pwgrid.cli import start_master

    def noting(role: str, run_role: Callable[..., int]) -> Callable[..., int]:
        def run_and_note(*boot: Any) -> int:
            with noting_modules(directory, role):
                return run_role(*boot)

        return run_and_note

    proxy, worker = noting("proxy", start_master.run_proxy), noting("worker", start_master.run_worker)
    patches = mock.patch.object(start_master, "run_proxy", proxy), mock.patch.object(start_master, "run_worker", worker)
    with patches[0], patches[1], noting_modules(directory, "master"):
        yield


if __name__ == "__main__":
    with contextlib.ExitStack() as fakes:
        if sys.argv[1] == "run":
            fakes.enter_context(mock.patch("pwgrid.cli.run.PROGRAM", PROGRAM))
        else:
            before_code_is_loaded()  # as `pwgrid serve` has it, so that a fake grid is as cheap and as small
            fakes.enter_context(launching(Path(os.environ.get("FAKE_LAUNCHER", FAKE_LAUNCHER))))
        if os.path.exists(os.environ.get("FAKE_CANNOT_START", "")):
            cannot = mock.Mock(side_effect=GridError("it cannot start"))
            fakes.enter_context(mock.patch("pwgrid.registry.embedded_redis_config.prepare", cannot))
        if "FAKE_LOADED" in os.environ:
            fakes.enter_context(roles_noting_modules(Path(os.environ["FAKE_LOADED"])))
        main()
