"""The routes of the files of a session, for whoever may see the session."""

from contextlib import AsyncExitStack
from typing import Annotated, Any

from fastapi import APIRouter, Path
from starlette.responses import StreamingResponse

from pwgrid.proxy.api import models
from pwgrid.proxy.api.errors import problems
from pwgrid.proxy.api.file_download import ForwardedDownload, download, listed, no_such_file
from pwgrid.proxy.api.hosts import host_of_session
from pwgrid.proxy.api.roles import NEEDS_CLIENT, Client
from pwgrid.proxy.api.sessions import find_session
from pwgrid.proxy.connect.forwarding import Forwarding
from pwgrid.proxy.connect.handoff_link import HandoffFailure
from pwgrid.proxy.hosts.host_table import OtherHost
from pwgrid.proxy.policy.refusal import no_capacity
from pwgrid.proxy.services import Services
from pwgrid.registry.records import SessionRecord


def session_file_routes(grid: Services) -> APIRouter:
    """Makes the routes."""
    router = APIRouter(tags=["sessions"], dependencies=[NEEDS_CLIENT])

    @router.get("/v1/sessions/{id}/files", responses=problems(404, 503))
    async def files(session_id: Annotated[str, Path(alias="id")], identity: Client) -> models.SessionFiles:
        """What a CDP client's browser has downloaded, while the session lives and SESSION_FILES_TTL after it."""
        found = await find_session(grid, session_id, identity)
        if (host := host_of_session(grid, found)) is not None:
            try:
                return models.SessionFiles.model_validate(await _forwarding(grid).ask_proxy(host, _asked(found)))
            except HandoffFailure as failure:
                raise no_capacity(f"the files of this session cannot be had: {failure}") from None
        here = await listed(grid.files, found.worker_id, found.session_id)
        described = [models.SessionFile(name=each.name, size=each.size, modified=each.modified) for each in here]
        return models.SessionFiles(files=described)

    @router.get("/v1/sessions/{id}/files/{name}", response_class=StreamingResponse, responses=problems(404, 503))
    async def file(session_id: Annotated[str, Path(alias="id")], name: str, identity: Client) -> StreamingResponse:
        """One of these files."""
        found = await find_session(grid, session_id, identity)
        if (host := host_of_session(grid, found)) is not None:
            return await _download(grid, host, found, name)
        return await download(grid.files, found.worker_id, found.session_id, name)

    return router


async def _download(grid: Services, host: OtherHost, session: SessionRecord, name: str) -> StreamingResponse:
    """Returns the file of a session of another host. Raises Refusal."""
    async with AsyncExitStack() as stack:
        try:
            answer = _forwarding(grid).download(host, _asked(session, name))
            size, reader = await stack.enter_async_context(answer)
        except HandoffFailure as failure:
            if failure.is_refusal:
                raise no_such_file() from None
            raise no_capacity(f"the files of this session cannot be had: {failure}") from None
        return ForwardedDownload(stack.pop_all(), reader, name, size)


def _asked(session: SessionRecord, name: str | None = None) -> dict[str, Any]:
    """Returns what another host's proxy is asked."""
    return {"files": {"worker": session.worker_id, "session": session.session_id, "name": name}}


def _forwarding(grid: Services) -> Forwarding:
    """Returns the way to other hosts. Raises Refusal where this one stands alone (now)."""
    if grid.gateway.forwarding is None:
        raise no_capacity("the session is on another host, and this one stands alone: set ADVERTISED_HOST")
    return grid.gateway.forwarding
