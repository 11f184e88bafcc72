"""What the other hosts of a grid tell of their pools and workers, in the form of a status."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pwgrid.registry.host_records import HostRecord, HostsFound
from pwgrid.registry.records import RegistrySnapshot


def heard_of(found: HostsFound, own: str, now: float) -> list[HostRecord]:
    """Returns the other hosts than `own` whose figures are of now (Unix seconds): those that are not silent."""
    states = found.states(now)
    return [record for name, record in found.records.items() if name != own and states[name] != "silent"]


def other_hosts(found: HostsFound, own: str, registry: RegistrySnapshot, now: float) -> list[dict[str, Any]]:
    """Returns the pools and workers of the other hosts, each with its `name`."""
    return [
        {
            "name": record.name,
            "pools": [pool_of(name, told) for name, told in record.pools.items()],
            "workers": list(workers_of(record, registry)),
        }
        for record in heard_of(found, own, now)
    ]


def pool_of(name: str, told: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the pool of another host as a status has it; of what only a master tells there is nothing."""
    return {
        **told,
        "name": name,
        "slots": told["slots"] * told["available"],
        "lifetimeOfWorker": told["lifetime"],
        "memoryLimitMib": None,
    }


def workers_of(host: HostRecord, registry: RegistrySnapshot) -> Iterator[dict[str, Any]]:
    """Yields the workers of another host: what it tells, and Redis' counters. What only Redis' record of a worker has
    is None where that was not read."""
    for told in host.workers:
        field = f"{told['browserType']}:{told['id']}"
        pool = told.get("pool", told["browserType"])
        record = registry.workers.get(field)
        yield {
            "id": told["id"],
            "pool": pool,
            "pid": None,
            "status": told["status"],
            "active": registry.active.get(field, 0),
            "slots": record.slots if record else host.pools.get(pool, {}).get("slots"),
            "lifetime": registry.lifetime.get(field, 0),
            "memoryMib": record.rss_mib if record else None,
            "startedAt": record.started_at if record else None,
            "playwrightVersion": told.get("playwrightVersion"),
            "drainLeftS": None,
            "reason": None,
            "suspect": told.get("suspect"),
            "host": host.name,
        }
