"""What the master writes down about its children, so that the next master, or the last child, knows them again.

One small JSON file for each child, in the private runtime directory. Starts, ends and signals no process.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Final

from pwgrid.common.types import ChildKind
from pwgrid.runtime.directory import process_start_time

WORKER_FILE: Final = "worker.json"
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


@dataclass(slots=True)
class ChildState:
    """One child. `start_time` is in clock ticks since boot, `forked_at` in monotonic, `started_at` in Unix seconds.

    `registry` and `settings` are digests: of the Redis that it uses, and of the settings that it was forked with.
    """

    kind: ChildKind
    name: str
    pid: int
    start_time: int
    registry: str
    settings: str
    version: str
    forked_at: float
    started_at: float
    boot_id: str = ""
    browser_type: str = ""
    launched: dict[str, Any] = field(default_factory=dict)
    status: str = ""
    reason: str | None = None
    recycle: str | None = None
    spare: bool = False
    is_successor: bool = False

    def path(self, runtime: Path) -> Path:
        """Where it is written down."""
        return state_path(runtime, self.kind, self.name)

    def write(self, runtime: Path) -> None:
        """Write it down, whole or not at all. Raises OSError."""
        self.boot_id = self.boot_id or boot_id()
        path = self.path(runtime)
        if self.kind != "worker":  # a worker's directory is made with it, and must not come back after its end
            path.parent.mkdir(mode=0o700, exist_ok=True)
        draft = path.with_suffix(".new")
        try:
            draft.write_text(json.dumps(asdict(self)), encoding="utf-8")
            draft.replace(path)
        except OSError:
            with suppress(OSError):
                draft.unlink()
            raise

    def remove(self, runtime: Path) -> None:
        """Strike it out. Idempotent."""
        with suppress(OSError):
            self.path(runtime).unlink(missing_ok=True)

    def is_alive(self) -> bool:
        """Whether this very process lives: pid, start time, boot and owner are those that were written down."""
        if self.boot_id != boot_id() or process_start_time(self.pid) != self.start_time:
            return False
        try:
            return Path(f"/proc/{self.pid}").stat().st_uid in (os.geteuid(), 0)
        except OSError:
            return False


def state_path(runtime: Path, kind: ChildKind, name: str) -> Path:
    """Where a child is written down."""
    if kind == "worker":
        return runtime / "w" / name / WORKER_FILE
    return runtime / "redis" / "server.json" if kind == "redis" else runtime / "proxy" / f"{name}.json"


def read_states(runtime: Path) -> Iterator[ChildState]:
    """Every child that is written down in `runtime`; files that cannot be read say nothing."""
    paths = [*runtime.glob(f"w/*/{WORKER_FILE}"), *runtime.glob("proxy/*.json"), *runtime.glob("redis/server.json")]
    for path in sorted(paths):
        state = _read(path)
        if state is not None and state.path(runtime) == path:
            yield state


def digest(value: object) -> str:
    """A short fingerprint of settings; nothing can be read from it."""
    return hashlib.sha256(repr(value).encode()).hexdigest()[:16]


def boot_id() -> str:
    """The kernel's name for this boot: start times of another one mean nothing."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _read(path: Path) -> ChildState | None:
    known = {part.name for part in fields(ChildState)}
    try:
        content = json.loads(path.read_bytes())
        state = ChildState(**{name: value for name, value in content.items() if name in known})
        int(state.pid), int(state.start_time), float(state.forked_at), float(state.started_at)
    except (OSError, ValueError, TypeError, AttributeError):
        return None
    return state
