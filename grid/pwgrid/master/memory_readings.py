"""Reads how much memory there is, and how much processes take.

A process that has ended takes no memory; that is no error.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import psutil

MIB: Final = 1 << 20
CGROUPS: Final = Path("/sys/fs/cgroup")
MEMBERSHIP: Final = Path("/proc/self/cgroup")

BROWSER_MIB: Final = 256
"""A guess, before anything is measured: what an idle worker takes with its Node and its browser (PSS)."""

SESSION_MIB: Final = 256
"""The same for the most that a session with a page or two takes."""


def rss_bytes(process: psutil.Process) -> int:
    """Resident memory, shared pages in full. Takes 30 µs."""
    try:
        rss: int = process.memory_info().rss
    except psutil.Error:
        return 0
    return rss


def memory_bytes(process: psutil.Process, metric: str) -> int:
    """Memory by `metric`, "pss" or "uss". The kernel walks all pages: 15 to 30 µs for each MiB of RSS."""
    try:
        return int(getattr(process.memory_full_info(), metric))
    except psutil.AccessDenied:
        return _anonymous_bytes(process)
    except psutil.Error:
        return 0


def _anonymous_bytes(process: psutil.Process) -> int:
    """Unshared memory, which is closest to PSS and USS where only root may read a (sandboxed) process's maps."""
    try:
        info = process.memory_info()
    except psutil.Error:
        return 0
    return int(info.rss - info.shared)


def available_mib(cgroups: Path = CGROUPS, membership: Path = MEMBERSHIP) -> int:
    """The host's available memory, or less where our cgroup (v2) allows less. psutil does not read cgroups."""
    return min([int(psutil.virtual_memory().available), *_headrooms(cgroups, membership)]) // MIB


def own_cgroups(cgroups: Path = CGROUPS, membership: Path = MEMBERSHIP) -> Iterator[Path]:
    """The directories of the cgroups (v2) whose limits apply to this process: its own, and all above it. None where
    that cannot be read: see `cgroup_problem`."""
    try:
        lines = membership.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return
    ours = next((line[3:] for line in lines if line.startswith("0::")), None)
    if ours is None:
        return
    directory = cgroups / ours.lstrip("/")
    for group in (directory, *directory.parents):
        if not group.is_relative_to(cgroups):
            return
        yield group


def cgroup_problem(membership: Path = MEMBERSHIP) -> str | None:
    """Why limits of cgroups are not known; None if they are."""
    try:
        membership.read_text(errors="surrogateescape")
    except OSError as error:
        return f"{membership} cannot be read: {error.strerror}"
    return None


def _headrooms(cgroups: Path, membership: Path) -> Iterator[int]:
    """The bytes that each cgroup with a limit, from ours up to the root, leaves us. Inactive file pages count as free:
    the kernel reclaims them."""
    for group in own_cgroups(cgroups, membership):
        limits = [int(text) for name in ("memory.max", "memory.high") if (text := text_of(group / name)).isdigit()]
        if limits:
            used = int(text_of(group / "memory.current") or 0)
            stat = dict(line.split() for line in text_of(group / "memory.stat").splitlines())
            yield max(0, min(limits) - used + int(stat.get("inactive_file", 0)))


def text_of(path: Path) -> str:
    """The text of a cgroup's file; empty if it is missing: the root has none, and a cgroup may be removed."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""
