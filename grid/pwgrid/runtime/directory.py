"""The private runtime directory of one grid: its path, its owner, its lock and its removal."""

from __future__ import annotations

import errno
import fcntl
import math
import os
import re
import select
import shutil
import stat
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import orjson

from pwgrid.common.errors import AlreadyRunning, GridError
from pwgrid.common.worker_id import is_worker_id
from pwgrid.runtime.display_sockets import DISPLAYS, remove_sockets
from pwgrid.runtime.process_identity import KILL_S, create_time, find_process

# A Unix socket path has 108 bytes, the last one a zero.
MAX_SOCKET_PATH_BYTES: Final = 107
_LONGEST: Final = "w/01234567/handoff.sock"
_LOCK: Final = "lock"
_DETACHED: Final = ("detachedAt", "graceS", "drainS")
UNWRITTEN: Final = "unwritten"
"""The directory for what workers could not write into Redis before they ended."""
CODE_CACHE: Final = "node"
"""The directory in which browser servers leave compiled code for each other."""

KEPT_FILES: Final = "files"
"""The directory for files of sessions that have ended (SESSION_FILES_TTL), by worker and session."""
SESSION_FILES: Final = "files"
"""In a worker's directory: a link for each session with files; its text is the name of the directory that has them."""

FORWARDER_SOCKET: Final = "forwarder.sock"
"""Where proxies offer clients whose workers are on other hosts."""

TLS_SOCKET: Final = "tls.sock"
"""Where proxies accept the clients whose TLS has ended in the TLS process."""

TLS_OUT_SOCKET: Final = "tls-out.sock"
"""Where the forwarder connects to reach a host that speaks TLS."""

PROTOCOLS: Final = "devtools"
"""The directory for descriptions of the DevTools protocol, by versions of Chromium."""

_VERSION: Final = re.compile(r"[0-9]+(\.[0-9]+){0,5}")

_MOST_BYTES: Final = 1 << 20
_TRIES: Final = 100
_TRY_MS: Final = 20

REDIS_S: Final = 5.0
"""The time for Redis to end, which the last child of a dead master gives it."""

LAST_CHILD_S: Final = REDIS_S + 2 * KILL_S + 2.0
"""The last child of a dead master has the lock for so long at the most: it may have to kill Redis, and what else is
left, and removes all files."""


class RuntimeDirError(GridError):
    """The directory cannot be used; the sentence says what to do."""


@dataclass(frozen=True, slots=True)
class LockContent:
    """Who holds the lock of a runtime directory, or held it last. `create_time` is that of `processes.create_time`.

    A master that has detached says when (Unix seconds), how many seconds its children wait for another one, and how
    many their sessions may go on after that.
    """

    pid: int
    create_time: float
    endpoint: str
    detached_at: float | None = None
    grace_s: float | None = None
    drain_s: float | None = None

    @property
    def is_held(self) -> bool:
        """Whether that master lives."""
        return find_process(self.pid, self.create_time) is not None


def protocol_file(runtime: Path, version: str) -> Path:
    """Where the protocol of this version of Chromium is described. Raises ValueError for what is no version."""
    if not _VERSION.fullmatch(version):
        raise ValueError(f"{version[:40]!r} is no version of a browser")
    return runtime / PROTOCOLS / f"{version}.json"


def base_dir(setting: str | None = None) -> Path:
    """The directory that holds one for each grid: the setting's, systemd's, or one under the temp directory."""
    if setting:
        return Path(setting).absolute()
    if managed := os.environ.get("RUNTIME_DIRECTORY", "").split(":")[0]:
        return Path(managed).resolve()  # with DynamicUser it is a link to /run/private, which root alone can make
    return default_base()


def default_base() -> Path:
    return base_of(os.getuid(), temporary_dir())


def base_of(uid: int, temporary: Path) -> Path:
    """The directory of a user's grids, below a directory for temporary files."""
    return temporary / f"pwgrid-{uid}"


def temporary_dir() -> Path:
    """The host's directory for temporary files, as the environment names it.

    tempfile.gettempdir() would write a file to find out: on a full disk there would be no directory, or another one.
    """
    named = (os.environ.get(name, "") for name in ("TMPDIR", "TEMP", "TMP"))
    return Path(next((each for each in named if os.access(each, os.W_OK | os.X_OK)), "/tmp")).absolute()


def short_base() -> Path:
    """The base of a grid whose usual base has too long a path for sockets, if nobody has named that base."""
    return base_of(os.getuid(), Path("/tmp"))


def is_short_enough(base: Path) -> bool:
    """Whether the sockets of every grid below `base` have a path that the kernel takes."""
    return _longest_bytes(base / "65535") <= MAX_SOCKET_PATH_BYTES


def _longest_bytes(directory: Path) -> int:
    return len(os.fsencode(directory / _LONGEST))


class RuntimeDir:
    """The runtime directory of one grid: `directory` is its path. `locked` makes it, keeps it and removes it."""

    def __init__(self, base: Path, port: int, *, owns_base: bool) -> None:
        self.directory: Final = base / str(port)
        self._owns_base = owns_base
        self._lock_fd = -1
        self._unaged: list[int] = []
        """Descriptors by which systemd-tmpfiles passes over these directories."""
        self._is_kept = False
        self._endpoint = ""
        longest = _longest_bytes(self.directory)
        if longest > MAX_SOCKET_PATH_BYTES:
            raise RuntimeDirError(
                f"the runtime directory {self.directory} is too long: its socket paths would have {longest} bytes and "
                f"may have {MAX_SOCKET_PATH_BYTES}; choose a shorter one with PWGRID_RUNTIME_DIR"
            )

    @classmethod
    def create(cls, setting: str | None, port: int) -> RuntimeDir:
        """The directory for the grid on `port`. Raises RuntimeDirError when its path is too long for sockets."""
        base = base_dir(setting)
        return cls(base, port, owns_base=base in (default_base(), short_base()) or not base.exists())

    @contextmanager
    def locked(self, endpoint: str, lock_fd: int | None = None) -> Iterator[RuntimeDir]:
        """Make and lock the directory; at the end, remove all of it. If an earlier run left something there, everything
        stays at the end until `remove_all_but` or `remove_at_end` says otherwise: children of that run may live on.

        `lock_fd` is the lock that this process held before it executed itself. Raises AlreadyRunning, or
        RuntimeDirError when it cannot be made private, or written: then only what this call has made is removed.
        """
        try:
            self._lock_fd = _make_and_lock(self.directory) if lock_fd is None else lock_fd
        except OSError as error:
            reason = error.strerror or str(error)
            raise RuntimeDirError(f"cannot make the runtime directory {self.directory}: {reason}") from error
        self._unaged = _keep_from_ageing(self.directory.parent, self.directory)
        self._endpoint = endpoint
        self._is_kept = any(entry.name != _LOCK for entry in self.directory.iterdir())
        try:
            try:
                self._write_lock()
            except OSError as error:
                reason = error.strerror or str(error)
                raise RuntimeDirError(f"cannot write into the runtime directory {self.directory}: {reason}") from error
            yield self
        finally:
            self._remove()

    @property
    def lock_fd(self) -> int:
        """The lock's descriptor, which this process keeps when it executes itself."""
        return self._lock_fd

    def keep(self) -> None:
        """Leave everything where it is at the end: children live on in it."""
        self._is_kept = True

    def leave(self, grace_s: float, drain_s: float) -> None:
        """Keep everything, and write into the lock that the master leaves: its children wait `grace_s` for another one,
        then their sessions have `drain_s`."""
        self.keep()
        self._write_lock(dict(zip(_DETACHED, (time.time(), grace_s, drain_s), strict=True)))

    def remove_at_end(self) -> None:
        """Do not keep it after all: the caller has taken over what lives on in it, and ends that before it ends."""
        self._is_kept = False

    @property
    def control_path(self) -> Path:
        return self.directory / "control.sock"

    def remove_all_but(self, kept: Collection[str]) -> None:
        """Remove what an earlier run left, but for what is `kept` (paths in the directory). Without any of that,
        nothing is kept at the end."""
        removed = self._clear(kept)
        self._is_kept = bool(kept)
        # Each master leaves its socket to the next one, also where that was planned.
        stale = [name for name in removed if name != self.control_path.name]
        if stale:
            import structlog  # here: commands that only look for grids log nothing, and would take 60 ms more

            structlog.get_logger().warning("stale_runtime_removed", directory=str(self.directory), removed=stale)

    def _clear(self, kept: Collection[str] = ()) -> list[str]:
        """Remove everything but the lock and what is `kept`; returns the paths of what was removed."""
        workers = {f"w/{worker.name}": worker for worker in sorted((self.directory / "w").glob("*"))}
        others = {entry.name: entry for entry in sorted(self.directory.iterdir()) if entry.name not in (_LOCK, "w")}
        removed = {name: path for name, path in {**workers, **others}.items() if name not in kept}
        for name, path in removed.items():
            (_remove_worker_dir if name.startswith("w/") else _remove)(path)
        if not any(name.startswith("w/") for name in kept):
            _remove(self.directory / "w")
        return list(removed)

    def make_worker_dir(self, worker_id: str) -> Path:
        """The worker's own directory with its `tmp`, both new. Raises OSError."""
        path = worker_dir(self.directory, worker_id)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        path.mkdir(mode=0o700)
        (path / "tmp").mkdir(mode=0o700)
        return path

    def remove_worker_dir(self, worker_id: str) -> bool:
        """Remove the worker's directory; whether there was one."""
        path = worker_dir(self.directory, worker_id)
        existed = path.exists()
        _remove_worker_dir(path)
        return existed

    def _write_lock(self, more: Mapping[str, float] = {}) -> None:
        """Write into the lock who holds it, for commands and for a second master."""
        pid = os.getpid()
        content = {"pid": pid, "createTime": create_time(pid), "endpoint": self._endpoint, **more}
        # In this order, so that a full disk leaves what was written before.
        os.ftruncate(self._lock_fd, os.pwrite(self._lock_fd, orjson.dumps(content), 0))

    def _remove(self) -> None:
        """Unless it is kept, remove everything, the lock last, and the base too if it is ours and empty."""
        if not self._is_kept:
            with suppress(OSError):
                self._clear()
            with suppress(OSError):
                (self.directory / _LOCK).unlink()
            # Another grid may have come into the same place meanwhile: then these are not empty and stay.
            with suppress(OSError):
                self.directory.rmdir()
                if self._owns_base:
                    self.directory.parent.rmdir()
        for fd in (self._lock_fd, *self._unaged):
            os.close(fd)
        self._lock_fd, self._unaged = -1, []


def worker_dir(runtime: Path, worker_id: str) -> Path:
    """The directory of one worker: no other place makes a path of a worker's id. Raises ValueError for an id that is
    none: whoever can write to Redis does not choose which sockets are connected to."""
    if not is_worker_id(worker_id):
        raise ValueError(f"{worker_id!r:.80} is no worker's id")
    return runtime / "w" / worker_id


@contextmanager
def locked_without_master(directory: Path) -> Iterator[RuntimeDir | None]:
    """Lock the directory of a master that is gone, as one of its children; at the end, remove all of it.

    Yields None, and removes nothing, when another process keeps the lock, usually a master that lives.
    """
    runtime = RuntimeDir(directory.parent, int(directory.name), owns_base=directory.parent == default_base())
    fd = _lock_without_master(directory)
    if fd is None:
        yield None
        return
    runtime._lock_fd = fd
    try:
        yield runtime
    finally:
        runtime._remove()


def _lock_without_master(directory: Path) -> int | None:
    for _ in range(_TRIES):
        try:
            fd = _flock(directory / _LOCK)
        except (OSError, RuntimeDirError):  # another child has removed everything
            return None
        if fd is not None or _holder_of(directory) is not None:
            return fd
        select.poll().poll(_TRY_MS)  # another child of that master has the lock for a moment
    return None


def _make_and_lock(path: Path) -> int:
    """Tries again when another grid, at its end, removes the base, the directory or the lock file meanwhile."""
    deadline = math.inf
    while True:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _check_owner(path.parent, "may be written only by its owner", stat.S_IWGRP | stat.S_IWOTH)
        try:
            path.mkdir(mode=0o700, exist_ok=True)
            _check_owner(path, "must be private (mode 0700)", stat.S_IRWXG | stat.S_IRWXO)
            fd = _flock(path / _LOCK, os.O_CREAT)
        except FileNotFoundError:
            continue
        if fd is not None:
            return fd
        holder, now = _holder_of(path), time.monotonic()
        deadline = min(deadline, now + LAST_CHILD_S)
        if holder is not None or now >= deadline:
            raise AlreadyRunning(holder.pid if holder else None)
        select.poll().poll(_TRY_MS)  # the last child of a dead master ends its grid


def _keep_from_ageing(*directories: Path) -> list[int]:
    """Lock directories in the way that tells systemd-tmpfiles to remove nothing below them (man tmpfiles.d): in /tmp it
    removes what nobody has used for ten days. Others may lock them in this way, too. Returns the locks' descriptors."""
    fds: list[int] = []
    for directory in directories:
        with suppress(OSError):  # the file system has no locks
            fds.append(os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC))
            for _ in range(_TRIES):
                with suppress(BlockingIOError):
                    fcntl.flock(fds[-1], fcntl.LOCK_SH | fcntl.LOCK_NB)
                    break
                select.poll().poll(_TRY_MS)  # systemd-tmpfiles looks at it now
    return fds


def _flock(path: Path, flags: int = 0) -> int | None:
    """Open a lock file and lock it; None if another process has it, or has removed it meanwhile. Raises OSError."""
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | flags, 0o600)
    is_ours = False
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise RuntimeDirError(f"{path} is not a plain file: remove it")
        with suppress(BlockingIOError, FileNotFoundError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_ours = os.path.samestat(os.fstat(fd), path.stat())
    finally:
        if not is_ours:
            os.close(fd)
    return fd if is_ours else None


def _check_owner(path: Path, rule: str, forbidden_bits: int) -> None:
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode):
        raise RuntimeDirError(f"{path} is not a directory; remove it or choose another runtime directory")
    if status.st_uid != os.geteuid():
        raise RuntimeDirError(
            f"{path} belongs to uid {status.st_uid}, not to us (uid {os.geteuid()}); choose another one"
        )
    if status.st_mode & forbidden_bits:
        raise RuntimeDirError(f"{path} has mode {stat.S_IMODE(status.st_mode):04o}, but {rule}: chmod 700 {path}")


def read_lock(directory: Path) -> LockContent | None:
    """Reads who holds the lock, or held it last. Does not lock it, which would stop a starting master."""
    try:
        content = orjson.loads(read_plain(directory / _LOCK)[0])
        detached = (float(content[name]) for name in _DETACHED) if "detachedAt" in content else (None, None, None)
        return LockContent(int(content["pid"]), float(content["createTime"]), str(content["endpoint"]), *detached)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def read_plain(path: Path) -> tuple[bytes, int]:
    """The content of a small plain file, perhaps another user's, and the uid of its owner. Raises OSError where the
    directory has another owner, for a link, which leads elsewhere, and for a pipe, whose reader would wait."""
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
    directory = os.open(path.parent, flags | os.O_DIRECTORY)
    try:
        fd = os.open(path.name, flags | os.O_NONBLOCK, dir_fd=directory)
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode) or status.st_uid != os.fstat(directory).st_uid:
                raise OSError(errno.EPERM, "not a file of its directory's owner", str(path))
            return os.read(fd, _MOST_BYTES), status.st_uid
        finally:
            os.close(fd)
    finally:
        os.close(directory)


def _holder_of(directory: Path) -> LockContent | None:
    """The lock's content if its holder lives."""
    content = read_lock(directory)
    return content if content is not None and content.is_held else None


def _remove_worker_dir(path: Path) -> None:
    remove_sockets(path / DISPLAYS)
    _remove(path)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
