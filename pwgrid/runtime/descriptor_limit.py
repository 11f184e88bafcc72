"""How many descriptors a process may have, and what that is enough for. Raises the limit as far as it may."""

import os
import resource
from typing import Final

from pwgrid.settings.model import Settings

RAISE_IT: Final = "raise the limit of open files: ulimit -n, or LimitNOFILE= of the service"
_OTHERS: Final = 64
"""What a proxy has open beside its clients and workers, generously."""

_PASSING: Final = 12
"""What it opens later, or for a moment: connections to Redis and to the master, a file."""

_FEWEST: Final = 8


def raise_limit() -> int:
    """Raises the soft limit of this process, and of those that it starts from now on, to the hard one; returns that."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def wanted(settings: Settings) -> int:
    """What the proxy, which needs most, has open at the worst: a link to each worker, and all who may wait."""
    return _OTHERS + _links(settings) + settings.max_queue


def room_for_clients(settings: Settings) -> int:
    """How many clients this process, a proxy, may have at once so that descriptors are left for all else it opens."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(soft - len(os.listdir("/proc/self/fd")) - _links(settings) - _PASSING, _FEWEST)


def _links(settings: Settings) -> int:
    return sum(settings.workers_wanted().values()) + settings.max_surge
