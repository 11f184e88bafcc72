"""Decides when a worker has served enough sessions, and when its replacement should start to get warm."""


def is_used_up(lifetime: int, max_lifetime: float) -> bool:
    """Whether the worker has had its last session; live ones go on."""
    return lifetime >= max_lifetime


def is_nearly_used_up(lifetime: int, max_lifetime: int, slots: int) -> bool:
    """Whether the replacement should start now, so that it is warm when this worker goes and capacity never dips.

    As many sessions ahead as may come at once, but not more than a fifth of a life: else most workers would be spares.
    """
    ahead = max(1, min(slots, max_lifetime // 5))
    return lifetime >= max_lifetime - ahead
