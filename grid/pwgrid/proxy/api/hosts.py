"""The routes of hosts: those that one grid has, for operators, and the questions that hosts ask each other."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Path

from pwgrid.proxy.api import models
from pwgrid.proxy.api.file_download import FileDownload, download
from pwgrid.proxy.api.roles import NEEDS_OPERATOR, OPEN_TO_ALL
from pwgrid.proxy.hosts.host_table import HostState, OtherHost
from pwgrid.proxy.policy.forward import PATH, forward_in
from pwgrid.proxy.policy.refusal import Refusal, nothing_at
from pwgrid.proxy.services import Services
from pwgrid.registry.hosts import HostRecord
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


def forwarded_route(grid: Services) -> APIRouter:
    """Makes the route for other hosts' proxies. It asks for no token: whoever knows the id of what was left in Redis
    has been told it by who has left it there."""
    router = APIRouter(dependencies=[OPEN_TO_ALL], include_in_schema=False)

    @router.post("/forwarded/{id}", response_model=None)
    async def question(forward_id: Annotated[str, Path(alias="id")]) -> dict[str, Any] | FileDownload:
        """Answers for the files of a session of this host, or passes a question on to a worker."""
        if (forwarding := grid.gateway.forwarding) is None or not forward_in(f"{PATH}{forward_id}"):
            raise nothing_at(f"{PATH}{forward_id}")
        forward = await forwarding.taken(forward_id)
        return await _of_files(grid, forward["files"]) if "files" in forward else await forwarding.answer(forward)

    return router


async def _of_files(grid: Services, asked: Mapping[str, Any]) -> dict[str, Any] | FileDownload:
    """Returns the files of a session of this host, or the one that is asked for. Raises Refusal."""
    session, name = (str(asked["worker"]), str(asked["session"])), asked.get("name")
    if name is None:
        return {"files": [asdict(each) for each in await asyncio.to_thread(grid.files.listed, *session)]}
    return await download(grid.files, *session, str(name))


def host_of_session(grid: Services, session: SessionRecord) -> OtherHost | None:
    """Returns the other host that has this session, or has had it; None for one of this host. Raises Refusal if that
    host is gone."""
    if not session.host or session.host == grid.hosts.name:
        return None
    if (host := grid.hosts.table.others.get(session.host)) is None:
        raise Refusal(404, f"the host of this session, {session.host}, is gone, and its files with it")
    return host


def hosts_of(grid: Services, active: Mapping[str, int]) -> list[models.Host]:
    """Returns all hosts by their names. `active` are the live sessions by worker field."""
    keeper = grid.hosts
    if not keeper.name:
        return []
    states = keeper.table.states(time.monotonic())
    found = {name: _host(host.record, states[name], active) for name, host in keeper.table.others.items()}
    if (own := keeper.own_record()) is not None:
        found[own.name] = _host(own, keeper.own_state(), active, is_own=True)
    return [found[name] for name in sorted(found)]


def check_is_here(grid: Services, session: SessionRecord, what: str) -> None:
    """Raises Refusal, which names the host, for what only the host of a session has, if that is another one."""
    if session.host and grid.hosts.name and session.host != grid.hosts.name:
        raise Refusal(
            409,
            f"{what} of this session are on the host that has it, {session.host}: ask there",
            details={"host": session.host},
        )


def _host(record: HostRecord, state: HostState, active: Mapping[str, int], *, is_own: bool = False) -> models.Host:
    room = record.room(active)
    return models.Host(
        name=record.name,
        is_own=is_own,
        state=state.value,
        version=record.version,
        last_heartbeat=record.at,
        workers=room.workers,
        pools=[*record.pools],
        room=models.Room(slots=room.slots, busy=room.busy, waiting=sum(record.waiting.values()), spare=room.spare),
    )
