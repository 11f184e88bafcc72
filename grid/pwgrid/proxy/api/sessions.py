"""The routes of sessions: a client sees and ends its own, an operator all."""

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query

from pwgrid.common.session_lifecycle import LIVE, SessionStatus
from pwgrid.common.types import BrowserType
from pwgrid.proxy.api import models
from pwgrid.proxy.api.errors import problems
from pwgrid.proxy.api.models import Cursor, NoneIfEmpty, PageSize
from pwgrid.proxy.api.roles import NEEDS_CLIENT, Client
from pwgrid.proxy.policy.access import Identity
from pwgrid.proxy.policy.refusal import Refusal
from pwgrid.proxy.services import Services
from pwgrid.registry.records import SessionRecord


async def find_session(grid: Services, session_id: str, identity: Identity) -> SessionRecord:
    """Returns a session's record. Raises Refusal if there is none, or another token's."""
    session = await grid.registry.session(session_id)
    if session is None or not identity.may_see(session.token):
        raise _no_such_session()
    return session


def _no_such_session() -> Refusal:
    return Refusal(404, "there is no such session (any more)")


def session_routes(grid: Services) -> APIRouter:
    """Makes the routes."""
    router = APIRouter(tags=["sessions"], dependencies=[NEEDS_CLIENT])

    async def find(session_id: Annotated[str, Path(alias="id")], identity: Client) -> SessionRecord:
        return await find_session(grid, session_id, identity)

    found_session = Annotated[SessionRecord, Depends(find)]

    @router.get("/v1/sessions", responses=problems(400))
    async def sessions(
        identity: Client,
        status: Annotated[SessionStatus | None, NoneIfEmpty, Query()] = None,
        browser_type: Annotated[BrowserType | None, NoneIfEmpty, Query(alias="browserType")] = None,
        worker_id: Annotated[str | None, NoneIfEmpty, Query(alias="workerId")] = None,
        limit: PageSize = 100,
        cursor: Cursor = None,
    ) -> models.Sessions:
        """Sessions that pass all given filters, the newest first; for a client only those of its token."""
        filters = {"status": status, "browser_type": browser_type, "worker_id": worker_id}
        try:
            page = await grid.registry.sessions(**filters, token=identity.sees_only, limit=limit, cursor=cursor)
        except ValueError as error:
            raise Refusal(400, f"bad query: {error}") from None
        return models.Sessions(sessions=[models.Session.of(each) for each in page.sessions], cursor=page.cursor)

    @router.get("/v1/sessions/{id}", responses=problems(404))
    async def session(found: found_session) -> models.Session:
        """One session: status, reason, times, client, bytes."""
        return models.Session.of(found)

    @router.delete("/v1/sessions/{id}", status_code=202, responses=problems(404, 409, 503))
    async def end_session(found: found_session) -> models.Ending:
        """Ends a live session: its worker is asked, and closes it. Its client hears that an operator ended it."""
        if found.status not in LIVE:
            raise Refusal(409, f"the session has ended already: {found.status}, {found.reason}")
        question = {"do": "end session", "id": found.session_id}
        answer = await grid.gateway.ask_worker(found.worker_id, question, "this session")
        if answer is None or answer["refused"] is not None:
            raise _no_such_session()
        return models.Ending(ending=found.session_id)

    return router
