"""Remembers how the launches of `pwgrid setup` went, so that a grid takes no browser that did not start."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import version as version_of_package
from pathlib import Path
from typing import Any

from pwgrid.common.atomic_write import write_whole
from pwgrid.settings.model import Settings


@dataclass(frozen=True, slots=True)
class Trial:
    """The result of one launch. `fault` says in one sentence why no page could be opened; empty when one was."""

    fault: str
    version: str = ""
    """The version that the browser reported; empty when it failed before that."""
    seconds: float = 0.0


class Trials:
    """The trials in these files: reads all of them, writes the first that can be written.

    A trial counts only while the executable (path, size, time of change), Playwright and the settings for launching are
    the same.
    """

    def __init__(self, files: Sequence[Path]) -> None:
        self._files = files

    def of(self, executable: str, settings: Settings) -> Trial | None:
        """Returns the latest trial of this executable, or None if there is none."""
        conditions = _conditions(executable, settings)
        for file in self._files:
            entry = _read(file).get(os.path.realpath(executable), {})
            if entry.get("conditions") == conditions:
                return Trial(**entry["trial"])
        return None

    def is_unfit(self, executable: str, settings: Settings) -> bool:
        trial = self.of(executable, settings)
        return trial is not None and trial.fault != ""

    def put(self, executable: str, settings: Settings, trial: Trial) -> None:
        """Stores a trial. Raises OSError when no file can be written."""
        entry = {"conditions": _conditions(executable, settings), "trial": asdict(trial)}
        refused: OSError | None = None
        for file in self._files:
            kept = {path: each for path, each in _read(file).items() if os.path.exists(path)}
            try:
                _write(file, kept | {os.path.realpath(executable): entry})
            except OSError as error:
                refused = error
            else:
                return
        if refused is not None:
            raise refused


def _conditions(executable: str, settings: Settings) -> list[object]:
    try:
        file = os.stat(executable)
    except OSError:
        return []
    return [
        file.st_size,
        file.st_mtime_ns,
        _playwright_version(),
        settings.headless,
        settings.chromium_sandbox,
        [*settings.chromium_args],
        os.geteuid() == 0,
    ]


@cache
def _playwright_version() -> str:
    # Once: while pip replaces the package, there is none, and a reload looks for browsers, too.
    return version_of_package("playwright")


def _read(file: Path) -> dict[str, dict[str, Any]]:
    with contextlib.suppress(OSError, ValueError):
        found = json.loads(file.read_text())
        if isinstance(found, dict):
            return found
    return {}


def _write(file: Path, entries: dict[str, dict[str, Any]]) -> None:
    """Writes the file whole or not at all, readable for all users: a service may run as another one."""
    file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(file, json.dumps(entries, indent=1).encode(), mode=0o644)
