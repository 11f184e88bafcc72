"""Remembers how the launches of `pwgrid setup` went, so that a grid takes no browser that did not start."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import version as version_of_package
from pathlib import Path
from typing import Any

from pwgrid.settings.model import Settings


@dataclass(frozen=True, slots=True)
class Trial:
    """One launch. `fault` is why no page could be opened, in one sentence; empty when one was."""

    fault: str
    version: str = ""
    """What the browser said of itself; empty when it did not come so far."""
    seconds: float = 0.0


class Trials:
    """The record, in the first of these files that can be written; all of them are read.

    A launch counts only for the same file (path, size, time of change), the same Playwright and the same way of
    launching: what was changed since has not been tried.
    """

    def __init__(self, files: Sequence[Path]) -> None:
        self._files = files

    def of(self, executable: str, settings: Settings) -> Trial | None:
        """How the latest launch of this executable went; None when there was none."""
        conditions = _conditions(executable, settings)
        for file in self._files:
            entry = _read(file).get(os.path.realpath(executable), {})
            if entry.get("conditions") == conditions:
                return Trial(**entry["trial"])
        return None

    def is_unfit(self, executable: str, settings: Settings) -> bool:
        """Whether it is known that it does not start."""
        trial = self.of(executable, settings)
        return trial is not None and trial.fault != ""

    def put(self, executable: str, settings: Settings, trial: Trial) -> None:
        """Writes down how a launch went. Raises OSError when no file can be written."""
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
    return version_of_package("playwright")


def _read(file: Path) -> dict[str, dict[str, Any]]:
    with contextlib.suppress(OSError, ValueError):
        found = json.loads(file.read_text())
        if isinstance(found, dict):
            return found
    return {}


def _write(file: Path, entries: dict[str, dict[str, Any]]) -> None:
    """Whole or not at all; readable for all users, as a service may run as another."""
    file.parent.mkdir(parents=True, exist_ok=True)
    descriptor, unfinished = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}-")
    try:
        with os.fdopen(descriptor, "w") as out:
            json.dump(entries, out, indent=1)
        os.chmod(unfinished, 0o644)
        os.replace(unfinished, file)
    except BaseException:
        os.unlink(unfinished)
        raise
