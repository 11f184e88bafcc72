"""Finds in the measured figures where the throughput bends, and the settings that follow."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from pwgrid.common.wording import counted

ENOUGH: Final = 0.9
"""This part of the highest throughput is enough: more clients for the rest would make every session slower."""

OF_MEMORY: Final = 0.8
"""The part of the host's available memory that may be used: MemoryHigh of the shipped unit."""

SLOTS_OF_WORKER: Final = 5
"""The most slots of a worker: a browser that crashes ends so many sessions. Fewer would take more browsers' memory."""

SOFT, HARD, STEP_MIB = 2.0, 3.0, 50
"""A worker is recycled at twice the memory of one with all slots taken, and killed at three times that."""

START_SHARE: Final = 0.02
"""The part of the processor time of a worker's sessions that the launch of its replacement may take."""

LEAST_LIFETIME, MOST_LIFETIME = 50, 1000


KEYS_OF_A_POOL: Final = {
    "max_concurrent_sessions": "slots",
    "max_lifetime_sessions": "lifetime",
    "max_worker_memory_mib": "max_memory_mib",
    "max_worker_memory_hard_mib": "max_memory_hard_mib",
}
"""What settings are called in a table [[pools]]; the number of workers is `workers` there."""


@dataclass(frozen=True, slots=True)
class Step:
    """The figures for one number of clients: how many sessions they had, in how many seconds, and how long one session
    took."""

    clients: int
    sessions: int
    failed: int
    seconds: float
    p50_s: float
    p95_s: float
    busy_cores: float
    """On the whole host, the clients included."""

    @property
    def per_s(self) -> float:
        """Sessions per second."""
        return self.sessions / self.seconds if self.seconds else 0.0


@dataclass(frozen=True, slots=True)
class Measured:
    """The figures of this host; memory in MiB by `metric`."""

    cores: float
    available_mib: int
    metric: str
    worker_mib: float
    """An idle worker with its browser."""
    session_mib: float
    """One live session, beside the worker."""
    growth_mib: float
    """What an ended session leaves behind, caches included, which need not grow any further."""
    launch_s: float
    launches_per_s: float
    """With several launches at once."""
    cpu_s: float
    """Processor seconds of one session in the worker and its browser, without the client."""
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Proposal:
    """Settings by name, and the sentences that say why."""

    settings: dict[str, int]
    reasons: tuple[str, ...]


def for_a_pool(settings: Mapping[str, int]) -> dict[str, int]:
    """The proposed settings by the keys of a table [[pools]]."""
    return {KEYS_OF_A_POOL.get(name, "workers"): value for name, value in settings.items()}


def bend(steps: Sequence[Step]) -> Step:
    """The step with the fewest clients whose throughput is at least ENOUGH of the highest."""
    best = max(step.per_s for step in steps)
    return next(step for step in sorted(steps, key=lambda step: step.clients) if step.per_s >= ENOUGH * best)


def goes_on(steps: Sequence[Step]) -> bool:
    """Whether more clients may bring more throughput: not if the last two steps added less than a tenth."""
    if len(steps) < 3:
        return True
    before = max(step.per_s for step in steps[:-2])
    return max(step.per_s for step in steps[-2:]) > before * (2 - ENOUGH)


def propose(found: Measured, browser_type: str, floor_mib: int) -> Proposal:
    """Settings for a host that does nothing else; `floor_mib` is MIN_HOST_AVAILABLE_MIB."""
    best = bend(found.steps)
    memory_mib = found.available_mib * OF_MEMORY - floor_mib
    workers = max(1, math.ceil(best.clients / SLOTS_OF_WORKER), min(2, best.clients))
    # _sessions counts one worker more: a recycle starts the replacement before the old worker ends.
    while workers > 1 and _sessions(found, memory_mib, workers) < workers:
        workers -= 1
    by_memory = max(1, _sessions(found, memory_mib, workers))
    at_once = min(best.clients, by_memory)
    slots = max(1, math.ceil(at_once / workers))
    while slots > 1 and slots * workers > by_memory:
        slots -= 1
    full_mib = found.worker_mib + slots * found.session_mib
    soft_mib, hard_mib = (_rounded(full_mib * factor) for factor in (SOFT, HARD))
    lifetime = _lifetime(found, soft_mib - full_mib)
    limit = "memory" if by_memory < best.clients else "the processor"
    return Proposal(
        {
            f"{browser_type}_workers": workers,
            "max_concurrent_sessions": slots,
            "max_lifetime_sessions": lifetime,
            "max_worker_memory_mib": soft_mib,
            "max_worker_memory_hard_mib": hard_mib,
        },
        (
            f"{counted(best.clients, 'client brings', 'clients at once bring')} {best.per_s:.2f} sessions/s, at least "
            f"{ENOUGH:.0%} of what there is",
            f"memory has room for {counted(by_memory, 'session')} in {counted(workers, 'worker')}, and for one more "
            "while one is replaced",
            f"so it is {limit} that decides: {counted(workers, 'worker')} with {counted(slots, 'slot')}",
            f"a full worker takes {full_mib:.0f} MiB: replaced at {SOFT:g} times that, killed at {HARD:g}",
            f"a launch takes {found.launch_s:.1f} s, a session {found.cpu_s:.2f} s of a core: "
            f"{counted(lifetime, 'session')} for each browser{_grows(found, lifetime)}",
        ),
    )


def as_data(found: Measured, proposal: Proposal) -> dict[str, Any]:
    steps = [asdict(step) | {"per_s": round(step.per_s, 3)} for step in found.steps]
    return {
        "measured": asdict(found) | {"steps": steps},
        "bend": bend(found.steps).clients,
        "proposal": proposal.settings,
        "reasons": list(proposal.reasons),
    }


def _sessions(found: Measured, memory_mib: float, workers: int) -> int:
    """How many live sessions fit into `memory_mib` beside `workers` idle workers and one more."""
    return int((memory_mib - (workers + 1) * found.worker_mib) // max(1.0, found.session_mib))


def _rounded(mib: float) -> int:
    return math.ceil(mib / STEP_MIB) * STEP_MIB


def _lifetime(found: Measured, slack_mib: float) -> int:
    cheap = math.ceil(found.launch_s / (START_SHARE * max(0.01, found.cpu_s)))
    lifetime = max(LEAST_LIFETIME, min(MOST_LIFETIME, cheap))
    if found.growth_mib > 0:
        lifetime = min(lifetime, max(LEAST_LIFETIME, int(slack_mib / 2 / found.growth_mib)))
    return lifetime


def _grows(found: Measured, lifetime: int) -> str:
    if found.growth_mib * lifetime < STEP_MIB:
        return ""
    return f", which grows by {found.growth_mib:.2f} MiB with each"
