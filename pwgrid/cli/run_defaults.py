"""Defaults of `pwgrid run` that differ from the settings' own: a grid for one command needs other values."""

import os
from pathlib import Path
from typing import Final

from pwgrid.master.memory_readings import (
    BROWSER_MIB,
    CGROUPS,
    MEMBERSHIP,
    SESSION_MIB,
    available_mib,
    own_cgroups,
    text_of,
)
from pwgrid.settings.load import Loaded
from pwgrid.settings.model import DEFAULT, SETTINGS, Settings

QUEUE_TIMEOUT_S: Final = 600.0
"""A test worker keeps its slot until it has run all its tests; a client that waits for the slot waits as long."""

NEVER: Final = 1_000_000_000
"""Sessions until a worker is recycled: a recycle in the middle of a run would cut its longest tests."""

SAMPLE_S: Final = 1.0
"""Seconds between samples of memory: short enough for the peak of a command that runs for seconds."""

SLOTS_PER_CORE: Final = 4
"""A test waits for its pages most of the time: with fewer slots cores idle, with more, tests run into timeouts."""


def private_settings(loaded: Loaded) -> dict[str, object]:
    """Values by name, for those settings of a private grid that neither file nor environment nor flag has set."""
    settings = loaded.settings
    values: dict[str, object] = {
        "log_level": "warning",  # a CI log is about the command
        "memory_check_interval": SAMPLE_S,
        "max_concurrent_sessions": _slots(settings),
        "max_lifetime_sessions": NEVER,
        "worker_select_timeout": QUEUE_TIMEOUT_S,
    }
    return {name: value for name, value in values.items() if loaded.sources[name] == DEFAULT}


def _slots(settings: Settings) -> int:
    free_mib = available_mib() - settings.min_host_available_mib
    return slots_of_worker(sum(settings.workers_wanted().values()), usable_cores(), free_mib)


def slots_of_worker(workers: int, cores: float, free_mib: int) -> int:
    """The slots of each worker for which cores and memory (`free_mib`) suffice when all are taken; at least 1."""
    by_memory = (free_mib - workers * BROWSER_MIB) // SESSION_MIB
    return max(1, int(min(cores * SLOTS_PER_CORE, by_memory) // workers))


def usable_cores(cgroups: Path = CGROUPS, membership: Path = MEMBERSHIP) -> float:
    """The number of cores that this process may use: those it may run on, or less where its cgroup (v2) allows less."""
    shares = [float(len(os.sched_getaffinity(0)))]
    for group in own_cgroups(cgroups, membership):
        quota, _, period = text_of(group / "cpu.max").partition(" ")
        if quota.isdigit() and period.isdigit():
            shares.append(int(quota) / int(period))
    return min(shares)


def as_environment(values: dict[str, object]) -> dict[str, str]:
    """The values as environment variables of the grid, by the names that beat all others of the same settings."""
    return {SETTINGS[name].environments[0]: str(value) for name, value in values.items()}
