"""Decides when a worker has served enough sessions, and which of its counts the master should hear; counts nothing."""

from __future__ import annotations

from typing import Final

REPORTS_A_LIFE: Final = 10
"""Reports at equal steps of a worker's life: they cost next to nothing beside the start of its browser."""


def is_used_up(lifetime: int, max_lifetime: float) -> bool:
    """Whether the worker has had its last session; live ones go on."""
    return lifetime >= max_lifetime


def is_worth_telling(lifetime: int, max_lifetime: int) -> bool:
    """Whether the master should hear of this session at once: after each tenth of a life, and of each near its end."""
    step = max(1, max_lifetime // REPORTS_A_LIFE)
    return lifetime % step == 0 or max_lifetime - lifetime < step
