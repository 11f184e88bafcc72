"""Spool files: what a worker could not write to Redis before it exited, for a proxy to write."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import orjson
import structlog

from pwgrid.common.atomic_write import write_whole
from pwgrid.common.types import BROWSER_TYPES, BrowserType
from pwgrid.registry.session_update import SessionUpdate
from pwgrid.runtime.directory import UNWRITTEN

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class SpoolFile:
    """The spool file of one worker that has exited."""

    browser_type: BrowserType
    worker_id: str
    updates: tuple[SessionUpdate, ...]
    path: Path

    def remove(self) -> None:
        """Removes the file, and with the last file the directory. Idempotent."""
        self.path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # it has other files
            self.path.parent.rmdir()


def write_spool_file(
    runtime: Path, browser_type: BrowserType, worker_id: str, updates: Iterable[SessionUpdate]
) -> None:
    """Writes a worker's spool file, whole or not at all. Raises OSError."""
    directory = runtime / UNWRITTEN
    content = {"browserType": browser_type, "workerId": worker_id, "entries": list(updates)}
    while True:
        directory.mkdir(mode=0o700, exist_ok=True)
        try:
            write_whole(directory / f"{worker_id}.json", orjson.dumps(content))
        except FileNotFoundError:
            continue  # a proxy has just removed the directory with its last file
        return


def read_spool_files(runtime: Path) -> Iterator[SpoolFile]:
    """Yields every worker's spool file. One that is broken is removed, with an error in the log; one that cannot be
    read for now (no free descriptor, an error of the disk) stays for a later look."""
    for path in sorted((runtime / UNWRITTEN).glob("*.json")):
        try:
            yield _read_spool_file(path)
        except FileNotFoundError:
            continue  # another proxy was faster
        except OSError as error:
            log.warning("session_updates_not_read_yet", path=str(path), error=repr(error))
        except (ValueError, TypeError, KeyError) as error:
            log.error("session_updates_not_readable", path=str(path), error=repr(error))
            with contextlib.suppress(OSError):  # of a disk that takes nothing: it is in nobody's way
                path.unlink(missing_ok=True)


def _read_spool_file(path: Path) -> SpoolFile:
    content = orjson.loads(path.read_bytes())
    if content["browserType"] not in BROWSER_TYPES:
        raise ValueError(f"{content['browserType']!r} is no browser type")
    updates = tuple(SessionUpdate.read(each) for each in content["entries"])
    return SpoolFile(content["browserType"], str(content["workerId"]), updates, path)
