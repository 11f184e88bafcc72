"""Puts the pools of several hosts together: pools of the same name are one pool, with the figures of each host."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace

from pwgrid.common.sum_of_hosts import Figures, whole
from pwgrid.proxy.roster import PoolView, Roster


@dataclass(frozen=True, slots=True)
class WholePool:
    """A pool of the whole grid: `whole` counts the workers of all `hosts`, by whose names are their own views. What
    cannot be added up (slots of a worker, label keys, …) is as the first host has it, which is the one that answers if
    it has the pool."""

    whole: PoolView
    hosts: Mapping[str, PoolView]


def whole_pools(rosters: Mapping[str, Roster]) -> dict[str, WholePool]:
    """Returns the pools by their names, in the order of the first host that has them. `rosters` are by host."""
    found = defaultdict[str, dict[str, PoolView]](dict)
    for host, roster in rosters.items():
        for name, pool in roster.pools.items():
            found[name][host] = pool
    return {name: WholePool(_sum(hosts), hosts) for name, hosts in found.items()}


def _sum(hosts: Mapping[str, PoolView]) -> PoolView:
    figures = {host: Figures(*(getattr(pool, name) for name in Figures._fields)) for host, pool in hosts.items()}
    first = next(iter(hosts.values()))
    return first if len(hosts) == 1 else replace(first, **whole(figures)._asdict())
