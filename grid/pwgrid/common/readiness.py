"""Decides whether the grid is ready: its start is over, and each pool that should have workers can take a session now.
Where several hosts are one grid, a host is ready that can have its clients served by another one.

The ready line, `/health/ready`, the service manager's READY, `pwgrid run` and `pwgrid status` all use this.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class PoolFigures:
    """How many workers a pool wants and has, and why it is short of them, without paths and pids. `suspect`: how many
    of the available ones take no new client now, since their browser may be sick."""

    wanted: int
    available: int
    reason: str | None
    suspect: int = field(default=0, kw_only=True)
    is_on_demand: bool = field(default=False, kw_only=True)
    """Whether it starts when a client comes: the grid is ready without it."""


def shortage(name: str, pool: PoolFigures) -> str | None:
    """Why the pool cannot take a session at all; None when it can."""
    if pool.available > pool.suspect:
        return None
    if pool.available:
        return f"no {name} worker takes clients now: the browser of each may be sick, and is being tried"
    return f"no {name} worker is available" + (f": {pool.reason}" if pool.reason else "")


def why_not_ready(
    pools: Mapping[str, PoolFigures],
    *,
    is_started: bool,
    is_stopping: bool,
    host_guard: str | None,
    elsewhere: Collection[str] = (),
    drained: str = "",
) -> str | None:
    """The sentence that says why the grid is not ready; None when it is.

    `is_started`: since the start each pool has been complete once, or known not to start; a grid that another master
    started is. `host_guard`: why the host can take no session now. `elsewhere`: the pools of which another host that
    gets clients can take one. `drained`: the name of this host if an operator has drained it.
    """
    if is_stopping:
        return "the grid is shutting down"
    if drained:
        return f"an operator has drained this host ({drained}): clients get other hosts"
    pools = {name: pool for name, pool in pools.items() if not pool.is_on_demand}
    wanted = {name: pool for name, pool in pools.items() if pool.wanted > 0 and name not in elsewhere}
    if elsewhere and not wanted:
        return None
    if host_guard:
        return host_guard
    if not wanted:
        return f"no pool has workers: scale one up, for example `pwgrid scale {next(iter(pools), 'chromium')}=1`"
    if not is_started and not any(pool.reason for pool in wanted.values()):
        figures = ", ".join(f"{pool.available} of {pool.wanted} {name} workers" for name, pool in wanted.items())
        return f"the grid is starting: {figures} are available"
    return "; ".join(filter(None, (shortage(name, pool) for name, pool in wanted.items()))) or None
