"""Puts what other hosts tell into the status of one of them, so that it is that of the whole grid."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from pwgrid.cli.other_hosts import heard_of, pool_of, workers_of
from pwgrid.common.sum_of_hosts import Figures, whole
from pwgrid.registry.host_records import HostsFound
from pwgrid.registry.records import RegistrySnapshot


def whole_status(status: dict[str, Any], found: RegistrySnapshot, hosts: HostsFound, now: float) -> dict[str, Any]:
    """Returns the status with the pools, workers and waiting clients of all hosts, whose `hostNames` it has: pools of
    the same name are one, whose `hosts` have it, and each worker names its `host`. Hosts that are silent are left out.
    Where this one stands alone it is as it was. `now` is in Unix seconds."""
    own = status["host"].get("name", "")
    others = heard_of(hosts, own, now)
    if not own or not others:
        return status
    pools = defaultdict[str, dict[str, dict[str, Any]]](dict)
    for pool in status["pools"]:
        pools[pool["name"]][own] = pool
    for record in others:
        for name, told in record.pools.items():
            pools[name][record.name] = pool_of(name, told)
    workers = [{**worker, "host": own} for worker in status["workers"]]
    workers += [worker for record in others for worker in workers_of(record, found) if worker["startedAt"] is not None]
    waiting: list[dict[str, Any]] = [
        {"pool": pool, "run": "", "token": "", "waiting": count}
        for record in others
        for pool, count in record.waiting.items()
        if count
    ]
    return {
        **status,
        "hostNames": [own, *(record.name for record in others)],
        "pools": [_whole(own, of_hosts) for of_hosts in pools.values()],
        "workers": workers,
        "waiting": status["waiting"] + sum(line["waiting"] for line in waiting),
        "waitingByRun": [*status["waitingByRun"], *waiting],
    }


def _whole(own: str, hosts: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """A pool of the whole grid; what cannot be added up is as the first host has it."""
    figures = whole({host: Figures.read(pool) for host, pool in hosts.items()}).as_told()
    if figures["reason"] and own not in hosts and len(hosts) == 1:
        figures["reason"] = f"{next(iter(hosts))}: {figures['reason']}"
    slots = sum(pool["slots"] for pool in hosts.values())
    return {**next(iter(hosts.values())), **figures, "slots": slots, "hosts": list(hosts)}
