"""Decides when a worker has had all its sessions, and which of its counts the master should hear. Counts nothing."""

from __future__ import annotations

from typing import Final

REPORTS_PER_LIFE: Final = 10
"""Reports at equal steps of a worker's life: together they cost far less than the start of its browser."""


def is_used_up(lifetime: int, max_lifetime: float) -> bool:
    """Whether the worker has admitted its last session; live ones go on."""
    return lifetime >= max_lifetime


def is_worth_telling(lifetime: int, max_lifetime: int) -> bool:
    """Whether the master should hear this count at once: at each tenth of a life, and at every session of the last."""
    step = max(1, max_lifetime // REPORTS_PER_LIFE)
    return lifetime % step == 0 or max_lifetime - lifetime < step
