"""The routes of hosts: those that one grid has, for operators, and the questions that hosts ask each other."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import asdict
from typing import Annotated, Any, Final

from fastapi import APIRouter, Path

from pwgrid.common.errors import GridError, Refused
from pwgrid.common.session_lifecycle import LIVE
from pwgrid.proxy.api import models
from pwgrid.proxy.api.file_download import FileDownload, download
from pwgrid.proxy.api.roles import NEEDS_OPERATOR, OPEN_TO_ALL
from pwgrid.proxy.ask_master import ANSWER_S as MASTER_S
from pwgrid.proxy.connect.handoff_link import HandoffFailure
from pwgrid.proxy.hosts.host_table import HostState, OtherHost
from pwgrid.proxy.policy.forward_message import PATH, forward_in
from pwgrid.proxy.policy.refusal import Refusal, no_capacity, nothing_at
from pwgrid.proxy.services import Services
from pwgrid.registry.hosts import NAME_TAKEN, HostRecord
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
        """Answers for the files of a session of this host, ends what a token has here, or passes a question on to its
        master or a worker."""
        if (forwarding := grid.gateway.forwarding) is None or not forward_in(f"{PATH}{forward_id}"):
            raise nothing_at(f"{PATH}{forward_id}")
        forward = await forwarding.taken(forward_id)
        if "files" in forward:
            return await _of_files(grid, forward["files"])
        if "token" in forward:
            return await _end_of_token(grid, str(forward["token"]))
        return await _of_master(grid, forward["master"]) if "master" in forward else await forwarding.answer(forward)

    return router


async def _of_files(grid: Services, asked: Mapping[str, Any]) -> dict[str, Any] | FileDownload:
    """Returns the files of a session of this host, or the one that is asked for. Raises Refusal."""
    session, name = (str(asked["worker"]), str(asked["session"])), asked.get("name")
    if name is None:
        return {"files": [asdict(each) for each in await asyncio.to_thread(grid.files.listed, *session)]}
    return await download(grid.files, *session, str(name))


FOR_MASTERS: Final = frozenset({"drain", "scale", "end_session"})
"""What another host's master may be asked."""


MOST_SESSIONS: Final = 10_000
"""How many live sessions of a worker are looked at."""


async def ask_master(grid: Services, host: str, name: str, data: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the answer of the master of a host to a request; `host` is empty where this one stands alone. Raises
    Refusal with that one's sentence, or if it does not answer."""
    if host == grid.hosts.name:
        return await _ask_own_master(grid, name, data)
    forwarding, other = grid.gateway.forwarding, grid.hosts.table.others.get(host)
    if forwarding is None or other is None:
        raise _no_such_host(grid, host)
    try:
        answer = await forwarding.ask_proxy(other, {"master": {"name": name, "data": dict(data)}}, MASTER_S)
    except HandoffFailure as failure:
        raise no_capacity(f"host {host} was not asked: {failure}") from None
    if (refused := answer.get("refused")) is not None:
        raise Refusal(int(answer.get("status", 400)), str(refused))
    return dict(answer.get("reply", {}))


async def _ask_own_master(grid: Services, name: str, data: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return await grid.master.ask(name, dict(data))
    except Refused as refused:
        raise Refusal(400, str(refused)) from None
    except GridError as gone:
        raise no_capacity(str(gone)) from None


async def _of_master(grid: Services, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what this host's master answers another host, or why it refuses. Raises Refusal for what nobody asks."""
    if (name := str(asked["name"])) not in FOR_MASTERS:
        raise Refusal(400, f"no host asks another one for {name[:40]!r}")
    try:
        return {"reply": await _ask_own_master(grid, name, asked["data"])}
    except Refusal as refusal:
        return {"refused": refusal.error, "status": refusal.status}


async def _end_of_token(grid: Services, name: str) -> dict[str, Any]:
    """Ends what a token that was revoked on another host has on this one. Where this one's file still has a token of
    that name, only sessions: the next client of it is served again, which is what the answer says. Raises Refusal or
    RegistryUnavailable."""
    is_here = any(token.name == name for token in grid.gateway.access.tokens().all)
    if not is_here:
        await _ask_own_master(grid, "end_sessions", {"token": name})
    for session in await _live_sessions(grid, name) if is_here else ():
        await grid.gateway.ask_worker(session.worker_id, {"do": "end session", "id": session.session_id}, "a session")
    return {"isHere": is_here}


async def _live_sessions(grid: Services, token: str) -> list[SessionRecord]:
    """Those that this token has on this host."""
    fields = [worker.counter for worker in grid.roster.workers.values()]
    live, _ = await grid.registry.session_ids(fields, newest=1, at_most=MOST_SESSIONS)
    records = await grid.registry.session_records([each for ids in live.values() for each in ids])
    return [each for each in records.values() if each.token == token and each.status in LIVE]


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
