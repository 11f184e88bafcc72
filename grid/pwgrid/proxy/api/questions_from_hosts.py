"""The route for what other hosts' proxies ask this one: files of its sessions, its master, its workers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any, Final

from fastapi import APIRouter, Path

from pwgrid.common.session_lifecycle import LIVE
from pwgrid.proxy.api.file_download import FileDownload, download, listed
from pwgrid.proxy.api.hosts import ask_own_master
from pwgrid.proxy.api.roles import OPEN_TO_ALL
from pwgrid.proxy.policy.forward_message import PATH, forward_in
from pwgrid.proxy.policy.refusal import Refusal, nothing_at
from pwgrid.proxy.services import Services
from pwgrid.registry.records import SessionRecord

FOR_MASTERS: Final = frozenset({"drain", "scale", "end_session"})
"""What another host's master may be asked."""

MOST_SESSIONS: Final = 10_000
"""How many live sessions of a worker are looked at."""


def questions_route(grid: Services) -> APIRouter:
    """Makes the route for other hosts' proxies. It asks for no token: whoever knows the id of what was left in Redis
    has been told it by who has left it there."""
    router = APIRouter(dependencies=[OPEN_TO_ALL], include_in_schema=False)

    @router.post("/forwarded/{id}", response_model=None)
    async def question(forward_id: Annotated[str, Path(alias="id")]) -> dict[str, Any] | FileDownload:
        """Answers for the files of a session of this host, ends what a token has here, or passes a question on to its
        master or a worker."""
        if (others := grid.gateway.from_other_hosts) is None or not forward_in(f"{PATH}{forward_id}"):
            raise nothing_at(f"{PATH}{forward_id}")
        forward = await others.taken(forward_id)
        if "files" in forward:
            return await _of_files(grid, forward["files"])
        if "token" in forward:
            return await _end_of_token(grid, str(forward["token"]))
        return await _of_master(grid, forward["master"]) if "master" in forward else await others.answer(forward)

    return router


async def _of_files(grid: Services, asked: Mapping[str, Any]) -> dict[str, Any] | FileDownload:
    """Returns the files of a session of this host, or the one that is asked for. Raises Refusal."""
    session, name = (str(asked["worker"]), str(asked["session"])), asked.get("name")
    if name is None:
        return {"files": [asdict(each) for each in await listed(grid.files, *session)]}
    return await download(grid.files, *session, str(name))


async def _of_master(grid: Services, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what this host's master answers another host, or why it refuses. Raises Refusal for what nobody asks."""
    if (name := str(asked["name"])) not in FOR_MASTERS:
        raise Refusal(400, f"no host asks another one for {name[:40]!r}")
    try:
        return {"reply": await ask_own_master(grid, name, asked["data"])}
    except Refusal as refusal:
        return {"refused": refusal.error, "status": refusal.status}


async def _end_of_token(grid: Services, name: str) -> dict[str, Any]:
    """Ends what a token that was revoked on another host has on this one. Where this one's file still has a token of
    that name, only sessions: the next client of it is served again, which is what the answer says. Raises Refusal or
    RegistryUnavailable."""
    is_here = any(token.name == name for token in grid.gateway.access.tokens().all)
    if not is_here:
        await ask_own_master(grid, "end_sessions", {"token": name})
    for session in await _live_sessions(grid, name) if is_here else ():
        await grid.gateway.ask_worker(session.worker_id, {"do": "end session", "id": session.session_id}, "a session")
    return {"isHere": is_here}


async def _live_sessions(grid: Services, token: str) -> list[SessionRecord]:
    """Those that this token has on this host."""
    fields = [worker.counter for worker in grid.roster.workers.values()]
    live, _ = await grid.registry.session_ids(fields, newest=1, at_most=MOST_SESSIONS)
    records = await grid.registry.session_records([each for ids in live.values() for each in ids])
    return [each for each in records.values() if each.token == token and each.status in LIVE]
