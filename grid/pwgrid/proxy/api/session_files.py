"""The routes of the files of a session, for whoever may see the session."""

import asyncio
from typing import Annotated

from fastapi import APIRouter, Path
from starlette.responses import StreamingResponse

from pwgrid.proxy.api import models
from pwgrid.proxy.api.errors import problems
from pwgrid.proxy.api.file_download import FileDownload
from pwgrid.proxy.api.roles import NEEDS_CLIENT, Client
from pwgrid.proxy.api.sessions import find_session
from pwgrid.proxy.policy.refusal import Refusal
from pwgrid.proxy.services import Services


def session_file_routes(grid: Services) -> APIRouter:
    """Makes the routes."""
    router = APIRouter(tags=["sessions"], dependencies=[NEEDS_CLIENT])

    @router.get("/v1/sessions/{id}/files", responses=problems(404))
    async def files(session_id: Annotated[str, Path(alias="id")], identity: Client) -> models.SessionFiles:
        """What a CDP client's browser has downloaded, while the session lives and SESSION_FILES_TTL after it."""
        found = await find_session(grid, session_id, identity)
        listed = await asyncio.to_thread(grid.files.listed, found.worker_id, found.session_id)
        described = [models.SessionFile(name=each.name, size=each.size, modified=each.modified) for each in listed]
        return models.SessionFiles(files=described)

    @router.get("/v1/sessions/{id}/files/{name}", response_class=StreamingResponse, responses=problems(404))
    async def file(session_id: Annotated[str, Path(alias="id")], name: str, identity: Client) -> FileDownload:
        """One of these files."""
        found = await find_session(grid, session_id, identity)
        try:
            opened, status = await asyncio.to_thread(grid.files.open, found.worker_id, found.session_id, name)
        except OSError:
            raise Refusal(404, "the session has no such file (any more)") from None
        return FileDownload(opened, name, status.st_size)

    return router
