"""Reads who uses the processors and who waits for them, and changes priorities.

A process or thread that has ended uses none; that is no error.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

import psutil

from pwgrid.master.memory_readings import own_cgroups, text_of

ROOT: Final = Path("/")
_CAP_SYS_NICE: Final = 1 << 23
_NICE_0: Final = 20
"""What RLIMIT_NICE has to be so that a process may get the nice value 0 back: 20 less that value (getrlimit(2))."""


def is_shared_by_sessions(root: Path = ROOT) -> bool:
    """Whether the kernel gives each of its sessions, so each browser, one share of the processors (autogroup)."""
    return is_autogroup_on(root) and not is_in_cpu_group(root)


def is_autogroup_on(root: Path = ROOT) -> bool:
    """Whether it does so at all. In a cgroup for processors it does not all the same (task_wants_autogroup() in
    kernel/sched/autogroup.c)."""
    return text_of(root / "proc/sys/kernel/sched_autogroup_enabled") == "1"


def is_in_cpu_group(root: Path = ROOT) -> bool:
    """Whether this process is in a cgroup that is for processors, too, other than the first of all."""
    membership = root / "proc/self/cgroup"
    if any((group / "cpu.weight").exists() for group in own_cgroups(root / "sys/fs/cgroup", membership)):
        return True
    lines = (line.split(":", 2) for line in text_of(membership).splitlines())
    return any("cpu" in controllers.split(",") and path != "/" for _, controllers, path in lines)  # cgroups (v1)


def may_restore_nice(root: Path = ROOT) -> bool:
    """Whether the kernel lets this process give others of its user its own nice value back: by RLIMIT_NICE, which they
    inherit, or by a capability that counts in the first user namespace alone (setpriority(2))."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NICE)
    if limit == resource.RLIM_INFINITY or limit >= _NICE_0 - usual_nice():
        return True
    status = (line.partition(":\t") for line in text_of(root / "proc/self/status").splitlines())
    effective = next((int(value, 16) for name, _, value in status if name == "CapEff"), 0)
    is_first = text_of(root / "proc/self/uid_map").split() == ["0", "0", "4294967295"]
    return bool(effective & _CAP_SYS_NICE) and is_first


def usual_nice() -> int:
    """This process's nice value, which its children start with."""
    return os.getpriority(os.PRIO_PROCESS, 0)


def nice_of(process: psutil.Process) -> int | None:
    """The nice value of its main thread; None if it has ended."""
    try:
        return os.getpriority(os.PRIO_PROCESS, process.pid)
    except OSError:
        return None


def cpu_s(process: psutil.Process) -> float:
    """How long it has used processors, in seconds, with all its threads."""
    try:
        times = process.cpu_times()
    except psutil.Error:
        return 0.0
    return float(times.user + times.system)


def waited_s(process: psutil.Process) -> float:
    """For how long its main thread has waited for a processor, in seconds; 0 where the kernel does not tell (built
    without CONFIG_SCHED_INFO). Source: Documentation/scheduler/sched-stats.rst, /proc/<pid>/schedstat."""
    fields = text_of(Path(f"/proc/{process.pid}/schedstat")).split()
    return int(fields[1]) / 1e9 if len(fields) > 1 else 0.0


def set_nice(processes: Iterable[psutil.Process], nice: int, was: int) -> None:
    """Gives all threads this nice value in place of `was`; those of a lower priority keep theirs. New threads have the
    value of the one that starts them.

    Raises PermissionError where one may not be lowered again.
    """
    for process in processes:
        for thread in _threads(process):
            with suppress(ProcessLookupError):
                if os.getpriority(os.PRIO_PROCESS, thread) <= max(was, nice):
                    os.setpriority(os.PRIO_PROCESS, thread, nice)


def _threads(process: psutil.Process) -> list[int]:
    try:
        return [int(each) for each in os.listdir(f"/proc/{process.pid}/task")]
    except OSError:
        return []
