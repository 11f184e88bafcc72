"""The files of sessions: what a CDP client has downloaded, while its session lives and SESSION_FILES_TTL after it.

The browser server writes for each session that lives which of its directories has the files: `w/{id}/files/{session}`,
which no browser can read, is a link whose text is that name. When the session ends, it moves them to
`files/{id}/{session}` if they are to be kept. Here they are read, and removed when their time is over: so it matters to
nobody whether a worker or a browser server is busy, frozen or gone.

A browser that was broken into, or a browser server, may have put anything there: only plain files are read, by their
names in an open directory, and no link is followed.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import BinaryIO, Final, NoReturn

import structlog

from pwgrid.runtime.directory import KEPT_FILES, SESSION_FILES, worker_dir

log = structlog.get_logger()

MOST_FILES: Final = 1_000
"""That are listed."""

UNFINISHED: Final = ".crdownload"
"""How Chromium's names of downloads end that are under way."""

MIB: Final = 1024 * 1024

_INTERVAL_S: Final = 5.0
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE: Final = (
    os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
)  # to open a FIFO does not wait for its other end
_ID: Final = re.compile("[0-9a-f]{1,64}")
_NAME: Final = re.compile("[0-9a-f]{32}")
"""Of a session's directory, as the browser server and confined_paths.py make them."""

_NOT_THERE: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.ENXIO})
"""What opening a file fails with if there is none of that name, or a link or a socket; every other error passes."""


@dataclass(frozen=True, slots=True)
class SessionFile:
    name: str
    size: int
    """Bytes."""
    modified: float
    """Unix seconds."""


class SessionFiles:
    """The files of all sessions of the grid whose runtime directory this is. Ended sessions' are kept for `ttl_s`, and
    `most_bytes` of all of them."""

    def __init__(self, runtime: Path, ttl_s: float, most_bytes: int) -> None:
        self._runtime = runtime
        self._ttl_s = ttl_s
        self._most_bytes = most_bytes

    def listed(self, worker_id: str, session_id: str) -> list[SessionFile]:
        """Those of one session by their names, MOST_FILES at most. Raises OSError if they cannot be read now."""
        try:
            directory = self._open(worker_id, session_id)
        except OSError as error:
            if not is_not_there(error):
                raise
            return []
        try:
            with os.scandir(directory) as entries:
                files = [_described(each) for each in islice(_plain(entries), MOST_FILES)]
        finally:
            os.close(directory)
        return sorted((each for each in files if each), key=lambda each: each.name)

    def open(self, worker_id: str, session_id: str, name: str) -> tuple[BinaryIO, os.stat_result]:
        """Opens one of them. Raises OSError, of which `is_not_there` tells whether there is no plain file of that
        name."""
        if name in ("", ".", "..") or "/" in name or "\0" in name:
            raise _no_file(name)
        directory = self._open(worker_id, session_id)
        try:
            fd = os.open(name, _FILE, dir_fd=directory)
        finally:
            os.close(directory)
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            os.close(fd)
            raise _no_file(name)
        return os.fdopen(fd, "rb", buffering=0), status

    def _open(self, worker_id: str, session_id: str) -> int:
        """Opens the directory of a session. Raises OSError."""
        if not _ID.fullmatch(session_id):
            raise _no_file(session_id)
        try:
            worker = worker_dir(self._runtime, worker_id)
        except ValueError:  # whatever is in Redis
            raise _no_file(worker_id) from None
        try:
            name = os.readlink(worker / SESSION_FILES / session_id)
            if _NAME.fullmatch(name):
                return os.open(worker / "sessions" / name, _DIRECTORY)
        except OSError as error:
            if not is_not_there(error) and error.errno != errno.EINVAL:  # the latter: it is no link
                raise
        return os.open(self._runtime / KEPT_FILES / worker_id / session_id, _DIRECTORY)

    # What is kept

    async def keep_removing(self) -> NoReturn:
        """Removes what is kept when its time is over, and the oldest of what is too much. What a grid with other
        settings has kept goes at once."""
        while True:
            try:
                await asyncio.to_thread(self.remove_old, time.time())
            except OSError as error:  # perhaps only for now: no descriptor is free
                log.warning("session_files_not_removed", error=str(error))
            await asyncio.sleep(_INTERVAL_S if self._ttl_s else 3600)

    def remove_old(self, now: float) -> None:
        """`now` is Unix seconds. Other proxies may do the same at the same time."""
        kept = sorted(self._kept(), key=lambda each: each[1], reverse=True)
        total = 0
        for path, ended_at, size in kept:
            total += size
            if now - ended_at >= self._ttl_s or total > self._most_bytes:
                shutil.rmtree(path, ignore_errors=True)
        for worker in self._workers():
            with suppress(OSError):  # it is not empty
                if not (self._runtime / "w" / worker.name).exists():
                    worker.rmdir()

    def _kept(self) -> Iterator[tuple[Path, float, int]]:
        """The directory of each session of which something is kept, when it ended, and how many bytes that is."""
        for worker in self._workers():
            with suppress(OSError):
                for path in list(worker.iterdir()):
                    with suppress(OSError):  # another proxy removes it
                        sizes = [each.lstat().st_size for each in path.iterdir()]
                        yield path, path.stat().st_mtime, sum(sizes)

    def _workers(self) -> list[Path]:
        try:
            return list((self._runtime / KEPT_FILES).iterdir())
        except FileNotFoundError:
            return []


def is_not_there(error: OSError) -> bool:
    """Whether `error` says that there is no such file, and not that it cannot be read now."""
    return error.errno in _NOT_THERE


def _no_file(name: str) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)


def _plain(entries: Iterator[os.DirEntry[str]]) -> Iterator[os.DirEntry[str]]:
    for each in entries:
        if each.is_file(follow_symlinks=False) and not each.name.endswith(UNFINISHED) and each.name.isprintable():
            yield each


def _described(entry: os.DirEntry[str]) -> SessionFile | None:
    try:
        status = entry.stat(follow_symlinks=False)
    except FileNotFoundError:  # removed meanwhile
        return None
    return SessionFile(entry.name, status.st_size, status.st_mtime)
