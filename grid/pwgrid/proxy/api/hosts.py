"""The route of the hosts that one grid has, for operators, and which of them a request is for."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from fastapi import APIRouter

from pwgrid.common.errors import GridError, Refused
from pwgrid.proxy.api import models
from pwgrid.proxy.api.roles import NEEDS_OPERATOR
from pwgrid.proxy.ask_master import ANSWER_S as MASTER_S
from pwgrid.proxy.connect.handoff_link import HandoffFailure, HostSilent
from pwgrid.proxy.hosts.host_table import HostState, OtherHost
from pwgrid.proxy.policy.refusal import Refusal, no_capacity
from pwgrid.proxy.services import Services
from pwgrid.registry.host_records import NAME_TAKEN, HostRecord
from pwgrid.registry.records import SessionRecord


def host_routes(grid: Services) -> APIRouter:
    """Makes the route of operators."""
    router = APIRouter(tags=["hosts"], dependencies=[NEEDS_OPERATOR])

    @router.get("/v1/hosts")
    async def hosts() -> models.Hosts:
        """The hosts that form this grid, which name the same Redis, as this one sees them; none where it stands
        alone."""
        active = (await grid.registry.activity()).active
        return models.Hosts(hosts=hosts_of(grid, active))

    return router


async def ask_master(grid: Services, host: str, name: str, data: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the answer of the master of a host to a request; `host` is empty where this one stands alone. Raises
    Refusal with that one's sentence, or if it does not answer: then it says whether that one may do it all the same."""
    if host == grid.hosts.name:
        return await ask_own_master(grid, name, data)
    forwarding, other = grid.gateway.forwarding, grid.hosts.table.others.get(host)
    if forwarding is None or other is None:
        raise _no_such_host(grid, host)
    try:
        answer = await forwarding.ask_proxy(other, {"master": {"name": name, "data": dict(data)}}, MASTER_S)
    except HostSilent as silent:
        raise no_capacity(f"host {host} may have been asked: look before you repeat it: {silent}") from None
    except HandoffFailure as failure:
        raise no_capacity(f"host {host} was not asked: {failure}") from None
    if (refused := answer.get("refused")) is not None:
        raise Refusal(int(answer.get("status", 400)), str(refused))
    return dict(answer.get("reply", {}))


async def ask_own_master(grid: Services, name: str, data: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the answer of this host's master. Raises Refusal with its sentence, or if it does not answer."""
    try:
        return await grid.master.ask(name, dict(data))
    except Refused as refused:
        raise Refusal(400, str(refused)) from None
    except GridError as gone:
        raise no_capacity(str(gone)) from None


def host_named(grid: Services, named: str | None, has_it: Collection[str]) -> str:
    """Returns the name of the host that a request is for: the one that is named, else this one if it is one of those
    that have what the request is about (`has_it`) or nobody has, else the only one that has. Raises Refusal."""
    keeper = grid.hosts
    if named is not None:
        if named not in (keeper.name, *keeper.table.others) or not named:
            raise _no_such_host(grid, named)
        return named
    if keeper.name in has_it or not has_it:
        return keeper.name
    if len(has_it) == 1:
        return next(iter(has_it))
    hosts = sorted(has_it)
    raise Refusal(409, f"several hosts have it, name one with ?host=: {', '.join(hosts)}", details={"hosts": hosts})


def _no_such_host(grid: Services, named: str) -> Refusal:
    hosts = sorted(filter(None, (grid.hosts.name, *grid.hosts.table.others)))
    there = f"hosts are {', '.join(hosts)}" if hosts else "this one stands alone"
    return Refusal(404, f"there is no host {named[:100]!r}: {there}", details={"hosts": hosts})


def host_of_session(grid: Services, session: SessionRecord) -> OtherHost | None:
    """Returns the other host that has this session, or has had it; None for one of this host. Raises Refusal if that
    host is gone."""
    if not session.host or session.host == grid.hosts.name:
        return None
    if (host := grid.hosts.table.others.get(session.host)) is None:
        raise Refusal(404, f"the host of this session, {session.host}, is gone, and what it had of it")
    return host


def hosts_of(grid: Services, active: Mapping[str, int]) -> list[models.Host]:
    """Returns all hosts by their names. `active` are the live sessions by worker field."""
    own = grid.hosts.name
    return [_host(record, state, active, is_own=record.name == own) for record, state in grid.hosts.all_hosts()]


def _host(record: HostRecord, state: HostState, active: Mapping[str, int], *, is_own: bool = False) -> models.Host:
    room, is_taken = record.room(active), record.is_name_taken
    return models.Host(
        name=record.name,
        is_own=is_own,
        state=state.value,
        version=record.version,
        last_heartbeat=record.at,
        workers=room.workers,
        pools=[*record.pools],
        problem=NAME_TAKEN if is_taken else None,
        room=models.Room(slots=room.slots, busy=room.busy, waiting=sum(record.waiting.values()), spare=room.spare),
    )
