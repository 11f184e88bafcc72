"""How much memory is to be had and how much processes take, from /proc and the cgroup; decides nothing.

Nothing here waits or keeps a descriptor. A process that has ended takes no memory; that is no error.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from pwgrid.runtime.process_tree import read_small

MIB: Final = 1 << 20
PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_CGROUPS: Final = Path("/sys/fs/cgroup")
_METRIC_LINES: Final = {"pss": (b"Pss:",), "uss": (b"Private_Clean:", b"Private_Dirty:", b"Private_Hugetlb:")}


def memory_bytes(pid: int, metric: str) -> int:
    """PSS or USS of one process."""
    try:
        rollup = read_small(f"/proc/{pid}/smaps_rollup")
    except PermissionError:
        return _anonymous_bytes(pid)
    except (FileNotFoundError, ProcessLookupError):
        return 0
    wanted = _METRIC_LINES[metric]
    return sum(int(line.split()[1]) << 10 for line in rollup.splitlines() if line.startswith(wanted))


def _anonymous_bytes(pid: int) -> int:
    """A sandboxed browser process lets only root read its maps; what is its own alone comes nearest."""
    try:
        _, resident, shared, *_ = read_small(f"/proc/{pid}/statm").split()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return (int(resident) - int(shared)) * PAGE_BYTES


def available_mib(cgroups: Path = _CGROUPS, membership: Path = Path("/proc/self/cgroup")) -> int:
    """What can still be used: the host's available memory, or less where our cgroup (v2) allows less."""
    host = next(line for line in Path("/proc/meminfo").read_bytes().splitlines() if line.startswith(b"MemAvailable:"))
    return min([int(host.split()[1]) << 10, *_headrooms(cgroups, membership)]) // MIB


def _headrooms(cgroups: Path, membership: Path) -> Iterator[int]:
    """What each limited cgroup from ours up to the root leaves us. Pages of files that are idle can be had back."""
    ours = next((line[3:] for line in membership.read_text().splitlines() if line.startswith("0::")), None)
    if ours is None:
        return
    directory = cgroups / ours.lstrip("/")
    for group in (directory, *directory.parents):
        if not group.is_relative_to(cgroups):
            return
        limits = [int(text) for name in ("memory.max", "memory.high") if (text := _text(group / name)).isdigit()]
        if limits:
            used = int(_text(group / "memory.current") or 0)
            stat = dict(line.split() for line in _text(group / "memory.stat").splitlines())
            yield max(0, min(limits) - used + int(stat.get("inactive_file", 0)))


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:  # the root has no limits, and a cgroup may go while we look
        return ""
