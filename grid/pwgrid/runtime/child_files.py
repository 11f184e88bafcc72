"""Writes and reads a small JSON file for each child of the master, in the private runtime directory.

By these the next master, or the last child, can tell the children from other processes.
"""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any, Final

import orjson
import psutil

from pwgrid.common.atomic_write import write_whole
from pwgrid.common.types import ChildKind
from pwgrid.common.worker_id import is_worker_id
from pwgrid.runtime.directory import read_plain, worker_dir
from pwgrid.runtime.process_identity import find_process

WORKER_FILE: Final = "worker.json"
RETIRING: Final = "retiring"
"""The status of a proxy or TLS process that accepts no more clients."""
COMING: Final = "coming"
"""The status of a proxy that does not listen yet."""
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")  # not psutil's boot time: that moves with the clock


@dataclass(slots=True)
class ChildState:
    """One child. `create_time` is in seconds since boot, `forked_at` in monotonic (of a proxy or Redis its
    `create_time`), `started_at` in Unix seconds;
    `sessions_until` (monotonic) is how long the sessions of a drain may go on.

    `registry`, `settings` and `version` are digests: of the Redis that it uses, and of the settings and the code with
    which it was forked.
    """

    kind: ChildKind
    name: str
    pid: int
    create_time: float
    registry: str
    settings: str
    version: str
    forked_at: float
    started_at: float
    boot_id: str = ""
    browser_type: str = ""
    pool: str = ""
    launched: dict[str, Any] = field(default_factory=dict)
    status: str = ""
    reason: dict[str, str] | None = None
    recycle: dict[str, str] | None = None
    spare: bool = False
    purpose: str = ""
    """What the master wants of a worker, by name; empty in a file of an older version, which had `spare` alone."""
    is_successor: bool = False
    sessions_until: float | None = None
    uid: int = field(default_factory=os.getuid)
    """The owner of the file, as the kernel says: a file is believed only about its owner's processes."""

    def path(self, runtime: Path) -> Path:
        return state_path(runtime, self.kind, self.name)

    def write(self, runtime: Path) -> None:
        """Write its file, whole or not at all. Raises OSError."""
        self.boot_id = self.boot_id or boot_id()
        path = self.path(runtime)
        # A worker's directory is made when it is forked, and must not come back after its end.
        if self.kind != "worker":
            path.parent.mkdir(mode=0o700, exist_ok=True)
        write_whole(path, orjson.dumps(self))

    @property
    def process(self) -> psutil.Process | None:
        """The process if it lives: its pid, create time, boot and owner are those in the file."""
        process = find_process(self.pid, self.create_time) if self.boot_id == boot_id() else None
        try:
            return process if process is not None and process.uids().real == self.uid else None
        except psutil.NoSuchProcess:
            return None


def state_path(runtime: Path, kind: ChildKind, name: str) -> Path:
    if kind == "worker":
        return worker_dir(runtime, name) / WORKER_FILE
    return runtime / "redis" / "server.json" if kind == "redis" else runtime / kind / f"{name}.json"


def remove_state(runtime: Path, kind: ChildKind, name: str) -> None:
    """Remove a child's file. Idempotent."""
    with suppress(OSError):
        state_path(runtime, kind, name).unlink(missing_ok=True)


def read_states(runtime: Path) -> Iterator[ChildState]:
    """Every child that has a file in `runtime`; skips files that cannot be read."""
    others = ("proxy/*.json", "forwarder/*.json", "tls/*.json", "redis/server.json")
    paths = [*runtime.glob(f"w/*/{WORKER_FILE}"), *itertools.chain.from_iterable(map(runtime.glob, others))]
    for path in sorted(paths):
        state = _read(path)
        if state is not None and state.path(runtime) == path:
            yield state


def digest(value: object) -> str:
    """A short fingerprint of `value`, from which nothing of it can be read."""
    return hashlib.sha256(repr(value).encode()).hexdigest()[:16]


def registry_of(redis_url: str, key_prefix: str) -> str:
    """A name for a Redis and a key prefix, from which no password can be read."""
    return digest((redis_url, key_prefix))


@cache
def boot_id() -> str:
    """The kernel's id of this boot, or "": create times of another boot mean nothing."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _read(path: Path) -> ChildState | None:
    known = {part.name for part in fields(ChildState)}
    try:
        text, uid = read_plain(path)
        content = orjson.loads(text)
        state = ChildState(**{name: value for name, value in content.items() if name in known})
        if state.kind == "worker" and not is_worker_id(state.name):
            return None
        state.uid = uid
        state.pid, state.create_time = int(state.pid), float(state.create_time)
        state.forked_at, state.started_at = float(state.forked_at), float(state.started_at)
        if state.sessions_until is not None:
            state.sessions_until = float(state.sessions_until)
    except (OSError, ValueError, TypeError, AttributeError):
        return None
    return state
