"""Puts what other hosts tell into the status of one of them, so that it is that of the whole grid."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from pwgrid.registry.hosts import HostRecord, HostsFound
from pwgrid.registry.records import RegistrySnapshot

_COUNTED: Final = ("wanted", "available", "starting", "spare", "draining", "drainTimeouts", "slots")


def whole_status(status: dict[str, Any], found: RegistrySnapshot, hosts: HostsFound, now: float) -> dict[str, Any]:
    """Returns the status with the pools, workers and waiting clients of all hosts, whose `hostNames` it has: pools of
    the same name are one, whose `hosts` have it, and each worker names its `host`. Hosts that are silent are left out.
    Where this one stands alone it is as it was. `now` is in Unix seconds."""
    own, states = status["host"].get("name", ""), hosts.states(now)
    others = [record for name, record in hosts.records.items() if name != own and states[name] != "silent"]
    if not own or not others:
        return status
    pools = {pool["name"]: {**pool, "hosts": [own]} for pool in status["pools"]}
    for record in others:
        for name, told in record.pools.items():
            pools[name] = _added(pools.get(name), _pool(name, told), record.name, own)
    workers = [{**worker, "host": own} for worker in status["workers"]]
    waiting: list[dict[str, Any]] = [
        {"pool": pool, "run": "", "token": "", "waiting": count}
        for record in others
        for pool, count in record.waiting.items()
        if count
    ]
    return {
        **status,
        "hostNames": [own, *(record.name for record in others)],
        "pools": list(pools.values()),
        "workers": [*workers, *(worker for record in others for worker in _workers(record, found))],
        "waiting": status["waiting"] + sum(line["waiting"] for line in waiting),
        "waitingByRun": [*status["waitingByRun"], *waiting],
    }


def _pool(name: str, told: Mapping[str, Any]) -> dict[str, Any]:
    """The pool of another host as a status has it; of what only a master tells there is nothing."""
    return {
        **told,
        "name": name,
        "slots": told["slots"] * told["available"],
        "lifetimeOfWorker": told["lifetime"],
        "memoryLimitMib": None,
    }


def _added(pool: Mapping[str, Any] | None, more: dict[str, Any], host: str, own: str) -> dict[str, Any]:
    """The pool with what a further host has of it."""
    reason = f"{host}: {more['reason']}" if more["reason"] else None
    if pool is None:
        return {**more, "reason": reason, "hosts": [host]}
    before = f"{own}: {pool['reason']}" if pool["reason"] and pool["hosts"] == [own] else pool["reason"]
    return {
        **pool,
        **{what: pool[what] + more[what] for what in _COUNTED},
        "reason": "; ".join(filter(None, (before, reason))) or None,
        "hosts": [*pool["hosts"], host],
    }


def _workers(host: HostRecord, found: RegistrySnapshot) -> Iterator[dict[str, Any]]:
    """The workers of another host that Redis knows, too."""
    for told in host.workers:
        field = f"{told['browserType']}:{told['id']}"
        if (record := found.workers.get(field)) is not None:
            yield {
                "id": told["id"],
                "pool": told.get("pool", told["browserType"]),
                "status": told["status"],
                "active": found.active.get(field, 0),
                "slots": record.slots,
                "lifetime": found.lifetime.get(field, 0),
                "memoryMib": record.rss_mib,
                "startedAt": record.started_at,
                "drainLeftS": None,
                "reason": None,
                "suspect": told.get("suspect"),
                "host": host.name,
            }
