"""What a worker could not write because Redis was away when it left: a file, for the proxy. Talks to no Redis."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import structlog

from pwgrid.common.types import BROWSER_TYPES, BrowserType
from pwgrid.registry.entries import Entry
from pwgrid.runtime.directory import UNWRITTEN

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Left:
    """One worker that has gone, and what it had to say last."""

    browser_type: BrowserType
    worker_id: str
    entries: tuple[Entry, ...]
    path: Path

    def remove(self) -> None:
        """It is written. Harmless when said twice."""
        self.path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # there are others
            self.path.parent.rmdir()


def leave(runtime: Path, browser_type: BrowserType, worker_id: str, entries: Iterable[Entry]) -> None:
    """Leaves it for whoever finds it, whole or not at all. Raises OSError."""
    directory = runtime / UNWRITTEN
    content = {"browserType": browser_type, "workerId": worker_id, "entries": [each.as_json() for each in entries]}
    unfinished = directory / f"{worker_id}.part"
    while True:
        directory.mkdir(mode=0o700, exist_ok=True)
        try:
            unfinished.write_text(json.dumps(content), encoding="utf-8")
            os.replace(unfinished, directory / f"{worker_id}.json")
        except FileNotFoundError:
            continue  # the proxy has just written the last of the others
        return


def left_behind(runtime: Path) -> Iterator[Left]:
    """What workers have left. A file that is none of ours is removed, with an error in the log."""
    for path in sorted((runtime / UNWRITTEN).glob("*.json")):
        try:
            yield _read(path)
        except FileNotFoundError:
            continue  # another proxy was faster
        except (OSError, ValueError, TypeError, KeyError) as error:
            log.error("unwritten_not_readable", path=str(path), error=repr(error))
            path.unlink(missing_ok=True)


def _read(path: Path) -> Left:
    content = json.loads(path.read_bytes())
    if content["browserType"] not in BROWSER_TYPES:
        raise ValueError(f"{content['browserType']!r} is no browser type")
    entries = tuple(Entry.read(each) for each in content["entries"])
    return Left(content["browserType"], str(content["workerId"]), entries, path)
