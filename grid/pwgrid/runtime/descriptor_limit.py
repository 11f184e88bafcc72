"""Raises the limit of open descriptors as far as it may, and says how many clients a proxy can have under it."""

import os
import resource
from typing import Final

from pwgrid.settings.model import Settings

RAISE_IT: Final = "raise the limit of open files: ulimit -n, or LimitNOFILE= of the service"
_OTHERS: Final = 64
"""A generous bound for the descriptors of a proxy that belong to no client or worker."""

_PASSING: Final = 12
"""Those that it opens later, or for a moment: connections to Redis and to the master, a file."""

_FEWEST: Final = 8


def raise_limit() -> int:
    """Raises the soft limit of this process, and of those that it starts from now on, to the hard one; returns that."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def wanted(settings: Settings) -> int:
    """The most descriptors that a proxy, which needs more than any other process, has: for all workers and all waiting
    clients."""
    return _OTHERS + _links(settings) + settings.max_queue


def room_for_clients(settings: Settings) -> int:
    """How many clients this proxy may have at once, with enough descriptors left for all else that it opens."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(soft - len(os.listdir("/proc/self/fd")) - _links(settings) - _PASSING, _FEWEST)


def _links(settings: Settings) -> int:
    return sum(settings.workers_wanted().values()) + settings.max_surge
