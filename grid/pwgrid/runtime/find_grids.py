"""Finds the grids of this host by their files: those that run, those whose master is gone, and other users'."""

from __future__ import annotations

import math
import os
import pwd
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pwgrid.runtime.child_files import ChildState, read_states
from pwgrid.runtime.directory import LockContent, RuntimeDirError, base_dir, default_base, read_lock

SERVICE_BASE: Final = Path("/run/pwgrid")
"""What RUNTIME_DIRECTORY is in our systemd unit; an operator's shell does not know it."""
_BOUND_SOCKETS: Final = Path("/proc/net/unix")
_SOCKET_OF_A_GRID: Final = re.compile(r"(/.+/\d{1,5})/(?:control\.sock|redis/redis\.sock|w/[0-9a-f]{8}/[a-z]+\.sock)")


@dataclass(frozen=True, slots=True)
class RunningGrid:
    """A grid whose master lives."""

    directory: Path
    port: int
    pid: int
    endpoint: str


@dataclass(frozen=True, slots=True)
class GridWithoutMaster:
    """A grid whose master is gone while `children` of it live on. `lock` is what that master wrote last."""

    directory: Path
    port: int
    lock: LockContent
    children: tuple[ChildState, ...]

    @property
    def refuses_at(self) -> float:
        """When it will refuse clients and drain if no other master comes (Unix seconds); infinity if its master did not
        detach."""
        return (self.lock.detached_at or math.inf) + (self.lock.grace_s or 0)

    @property
    def ends_at(self) -> float:
        """When that drain is over (Unix seconds)."""
        return self.refuses_at + (self.lock.drain_s or 0)


@dataclass(frozen=True, slots=True)
class OtherGrid:
    """A grid of another user, as far as everybody may know of it."""

    directory: Path
    port: int
    uid: int

    @property
    def user(self) -> str:
        """The user's name, or the number of one that has none."""
        try:
            return pwd.getpwuid(self.uid).pw_name
        except KeyError:
            return f"uid {self.uid}"

    def __str__(self) -> str:
        return f"a grid of {self.user}"


def find_running(setting: str | None = None, *, elsewhere: bool = False) -> list[RunningGrid]:
    """The running grids, by path, in the base that `setting` names; without one, in the default base and the service's.
    With `elsewhere`, all of this user, also those started with another TMPDIR or runtime directory.

    Root also gets other users' grids, from a base that it names and from the service's. Raises RuntimeDirError when
    this user may not look into the base that `setting` names.
    """
    found = _trusted_locks(setting, elsewhere=elsewhere)
    return [RunningGrid(path, int(path.name), lock.pid, lock.endpoint) for path, lock in found if lock.is_held]


def find_without_master(setting: str | None = None, *, elsewhere: bool = False) -> list[GridWithoutMaster]:
    """The grids without a master where `find_running` looks."""
    found = []
    for path, lock in _trusted_locks(setting, elsewhere=elsewhere):
        if not lock.is_held:
            children = tuple(child for child in read_states(path) if child.process is not None)
            if children:
                found.append(GridWithoutMaster(path, int(path.name), lock, children))
    return found


def pids_of_grids_on(port: int, setting: str | None = None, *, elsewhere: bool = False) -> set[int]:
    """The masters and their children, as far as they live, of the grids on this port where `find_running` looks."""
    found = set()
    for path, lock in _trusted_locks(setting, elsewhere=elsewhere):
        if path.name == str(port):
            found |= {child.pid for child in read_states(path) if child.process is not None}
            found |= {lock.pid} if lock.is_held else set()
    return found


def find_others() -> list[OtherGrid]:
    """The grids of other users that have sockets in this network namespace, by path; nothing of theirs is read."""
    found = [(directory, _owner(directory.parent)) for directory in sorted(_directories_with_sockets())]
    return [OtherGrid(path, int(path.name), uid) for path, uid in found if uid is not None and uid != os.geteuid()]


def bases(setting: str | None = None) -> list[Path]:
    """Where `find_running` looks."""
    return [base_dir(setting)] if setting else sorted({base_dir(), default_base(), SERVICE_BASE.resolve()})


def _directories_in_bases(setting: str | None) -> Iterator[Path]:
    for base in bases(setting):
        try:
            yield from (base / name for name in os.listdir(base) if name.isdigit())
        except PermissionError:
            if setting:
                raise RuntimeDirError(f"may not look into {base}: ask as its owner, or as root") from None
        except OSError:
            continue


def _trusted_locks(setting: str | None, *, elsewhere: bool) -> Iterator[tuple[Path, LockContent]]:
    for directory in sorted(_directories_with_sockets() if elsewhere else _directories_in_bases(setting)):
        if _may_be_used(directory, is_named=bool(setting)) and (lock := read_lock(directory)) is not None:
            yield directory, lock


def _may_be_used(directory: Path, *, is_named: bool) -> bool:
    """Whether to trust what is in the directory: it is ours, or we are root and it is the service's or was named."""
    if os.geteuid() == 0 and (is_named or directory.parent == SERVICE_BASE.resolve()):
        return True
    return _owner(directory) == _owner(directory.parent) == os.geteuid()


def _owner(path: Path) -> int | None:
    try:
        return path.lstat().st_uid
    except OSError:
        return None


def _directories_with_sockets() -> set[Path]:
    """All runtime directories with bound sockets, wherever they are. The kernel shows everybody the paths."""
    try:
        lines = _BOUND_SOCKETS.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return set()
    paths = (line.split(maxsplit=7)[7:] for line in lines)
    matches = (_SOCKET_OF_A_GRID.fullmatch(path[0]) for path in paths if path)
    return {Path(match[1]) for match in matches if match}


def is_service_hidden() -> bool:
    """Whether the service's directory is there, but only its own user and root may look into it."""
    return os.path.lexists(SERVICE_BASE) and not os.access(SERVICE_BASE, os.R_OK | os.X_OK)
