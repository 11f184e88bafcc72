"""The routes of leases, and how a slot is lent: to a client that comes later, until the slot is returned, or its lease
expires, or its client leaves. The slot's worker keeps it."""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
import time
from collections.abc import Awaitable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Final

import structlog
from fastapi import APIRouter, BackgroundTasks, Path, Query
from starlette.requests import Request

from pwgrid.common.label_keys import LabelKey, LabelKeyError, parse
from pwgrid.common.session_lifecycle import LIVE
from pwgrid.proxy.api import models
from pwgrid.proxy.api.errors import problems
from pwgrid.proxy.api.models import Cursor, NoneIfEmpty, PageSize
from pwgrid.proxy.api.roles_and_body_limits import NEEDS_CLIENT, BoundedBody, Client, address_of
from pwgrid.proxy.client_traces import Attempt, attempting
from pwgrid.proxy.connect.gateway import Gateway
from pwgrid.proxy.connect.handoff_link import HandoffFailure
from pwgrid.proxy.policy.access import Identity
from pwgrid.proxy.policy.connect_request import run_name
from pwgrid.proxy.policy.refusal import Refusal
from pwgrid.proxy.policy.session_caps import caps_of
from pwgrid.proxy.select.queue import ClientGone, Ticket
from pwgrid.proxy.select.worker_health import HANDOFF_TIMEOUT_S
from pwgrid.proxy.services import Services
from pwgrid.registry import records
from pwgrid.registry.records import EXPIRES_AT
from pwgrid.settings.model import Settings

log = structlog.get_logger()

_Status = Annotated[models.LeaseStatus | None, NoneIfEmpty, Query()]
_LEASE_ID: Final = re.compile(r"([0-9a-f]{1,32})-([0-9a-f]{16})")


@dataclass(frozen=True, slots=True)
class LeaseId:
    """A lease's id for its holder. It names the worker, so that the lease is found without Redis."""

    worker_id: str
    own: str

    def __str__(self) -> str:
        return f"{self.worker_id}-{self.own}"

    @classmethod
    def read(cls, text: str) -> LeaseId:
        """Raises Refusal for a malformed id."""
        if (found := _LEASE_ID.fullmatch(text)) is None:
            raise Refusal(400, f"{text[:60]!r} is no lease: take the browserId that the borrow gave")
        return cls(found[1], found[2])


@dataclass(frozen=True, slots=True)
class GrantedLease:
    """A lease that a worker keeps. `path` is its endpoint's, and secret; `expires_at` is in Unix seconds."""

    lease_id: LeaseId
    path: str
    expires_at: float
    hears_of_answer: bool
    """Whether its worker wants to hear that the borrower has it; a worker of an earlier version does not."""


def lease_routes(grid: Services) -> APIRouter:
    """Makes the routes, for clients and operators."""
    router = APIRouter(route_class=BoundedBody, tags=["leases"], dependencies=[NEEDS_CLIENT])

    @router.post("/session/borrow", responses=problems(400, 404, 413, 503))
    async def borrow(
        request: Request, wanted: models.Borrow, identity: Client, afterwards: BackgroundTasks
    ) -> models.Borrowed:
        """Keeps a slot of the pool that serves the label key, and returns its endpoint."""
        with (
            _refusal_told(grid.gateway, request),
            attempting(grid.gateway.traces, "borrow", request.headers.items()) as attempt,
        ):
            ticket, key = _ticket(grid.gateway, wanted, identity, address_of(request))
            watch = asyncio.create_task(_abandoned_with(request, grid.gateway, ticket), name="client of a borrow")
            lent = await _lent(lend(grid.gateway, ticket, wanted.ttl_seconds, attempt), watch)
        afterwards.add_task(answered, grid.gateway, lent, ticket, watch)
        return models.Borrowed(
            browser_id=str(lent.lease_id),
            web_socket_endpoint=_base(request, grid.gateway.settings) + lent.path,
            browser_type=ticket.browser_type,
            label_key=str(key),
            requested_label_key=ticket.fields[records.LABELS],
            expires_at=lent.expires_at,
        )

    @router.post("/session/return", responses=problems(400, 503))
    async def give_back(returned: models.Return, identity: Client) -> models.Returned:
        """Ends a lease and frees its slot; a connected client hears why. May be repeated."""
        lease_id = LeaseId.read(returned.browser_id)
        check(returned.label_key)
        answer = await _ask_about(grid.gateway, lease_id, {"do": "return", "token": identity.sees_only})
        return models.Returned(browser_id=str(lease_id), returned=answer is not None)

    @router.patch("/v1/leases/{id}", responses=problems(400, 404, 503))
    async def extend(
        lease: Annotated[str, Path(alias="id")], wanted: models.Extend, identity: Client
    ) -> models.Extended:
        """Makes a lease last for at least `ttlSeconds` from now on."""
        lease_id = LeaseId.read(lease)
        question = {"do": "extend", "ttlS": wanted.ttl_seconds, "token": identity.sees_only}
        if (answer := await _ask_about(grid.gateway, lease_id, question)) is None:
            raise _no_such_lease()
        return models.Extended(browser_id=str(lease_id), expires_at=answer["expiresAt"])

    @router.get("/v1/leases", responses=problems(400, 503))
    async def leases(
        identity: Client, status: _Status = None, limit: PageSize = 100, cursor: Cursor = None
    ) -> models.Leases:
        """Leases (a client's own), the newest first: those of this status, or without `status` those that live."""
        statuses = {known for known, called in models.LEASE_STATUS.items() if called == status} if status else LIVE
        try:
            page = await grid.registry.leases(statuses, token=identity.sees_only, limit=limit, cursor=cursor)
        except ValueError as error:
            raise Refusal(400, f"bad query: {error}") from None
        return models.Leases(leases=[models.Lease.of(each) for each in page.sessions], cursor=page.cursor)

    @router.get("/v1/leases/{id}", responses=problems(400, 404, 503))
    async def lease(lease: Annotated[str, Path(alias="id")], identity: Client) -> models.Lease:
        """One lease: status, reason, times, label key, names."""
        lease_id = LeaseId.read(lease)
        found = await grid.registry.lease(lease_id.own)
        if found is None or found.worker_id != lease_id.worker_id or not identity.may_see(found.token):
            raise _no_such_lease()
        return models.Lease.of(found)

    return router


def check(label_key: str | None) -> None:
    """Raises Refusal for a malformed label key."""
    try:
        if label_key:
            parse(label_key, wildcards=True)
    except LabelKeyError as error:
        raise Refusal(400, str(error)) from None


@contextlib.contextmanager
def _refusal_told(gateway: Gateway, request: Request) -> Iterator[None]:
    """A refused borrow is in the log and on the page, as a refused connect is."""
    try:
        yield
    except Refusal as refusal:
        host = request.client.host if request.client else "unknown"
        gateway.refusal_log.note(refusal, host, address_of(request), "borrow")
        raise


def _ticket(gateway: Gateway, wanted: models.Borrow, identity: Identity, client: str) -> tuple[Ticket, LabelKey]:
    """Makes the ticket for a lease, and returns it with the pool's label key that serves the one that was asked for.
    Raises Refusal for what this grid has for nobody, or not for this token."""
    named = run_name(wanted.run_name, "runName")
    run = run_name(wanted.run_id, "runId")
    labels = gateway.policy().labels
    key = labels.serving(wanted.label_key)
    pool = labels.keys[key]
    identity.check_pool(pool)
    assert key.browser_type is not None  # pools have no wildcards
    fields = {
        records.LABELS: wanted.label_key.strip(),
        records.LABEL_KEY: str(key),
        records.NAME: named,
        records.RUN: run,
        records.TOKEN: identity.name,
    }
    ticket = Ticket(
        session_id="",
        browser_type=key.browser_type,
        playwright_version=None,
        client=client,
        deadline=asyncio.get_running_loop().time() + gateway.settings.borrow_queue_timeout,
        fields={name: value for name, value in fields.items() if value},
        run=run or named,
        token=identity.name,
        token_id=identity.token_id,
        caps=caps_of(gateway.settings, identity, label=str(key), run=run or named),
        refusal=partial(gateway.access.revoked, identity),
        borrows=True,
        pool=pool,
    )
    ticket.take_another_id()
    return ticket, key


def _no_such_lease() -> Refusal:
    return Refusal(404, "there is no such lease (any more): GET /v1/leases lists them")


async def _abandoned_with(request: Request, gateway: Gateway, ticket: Ticket) -> None:
    """Abandons the ticket when the client leaves."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
    gateway.selector.queue.abandon(ticket)


async def _lent(lend: Awaitable[GrantedLease], watch: asyncio.Task[None]) -> GrantedLease:
    try:
        lent = await lend
        await asyncio.sleep(0)  # `watch` hears first of a client that has left in this turn of the loop
        return lent
    except BaseException:
        watch.cancel()
        raise


def _base(request: Request, settings: Settings) -> str:
    """Returns ws://host:port: ADVERTISED_HOST's if it is set, else as the client's Host says; wss:// behind a reverse
    proxy that speaks TLS."""
    host = request.headers.get("host")
    if settings.advertised_host or not host:
        return settings.base_url()
    return f"{'wss' if request.headers.get('x-forwarded-proto') == 'https' else 'ws'}://{host}"


async def lend(gateway: Gateway, ticket: Ticket, ttl_s: float, attempt: Attempt | None = None) -> GrantedLease:
    """Returns a lease for this ticket, which `borrows`, and tells `attempt` of each step. Raises Refusal, or
    ClientGone once the ticket is abandoned."""
    if attempt is not None:
        attempt.asks(ticket)
    if (closed := gateway.closed()) is not None:
        raise closed
    while True:
        ticket.fields = {**ticket.fields, EXPIRES_AT: f"{time.time() + ttl_s:.3f}"}
        worker_id = await gateway.slot(ticket, attempt)
        # The time in line does not count. Its worker's next heartbeat tells Redis.
        since, expires_at = time.monotonic(), time.time() + ttl_s
        lease_id = LeaseId(worker_id, ticket.session_id)
        secret = secrets.token_urlsafe(24)
        answer = await _take(gateway, lease_id, secret, expires_at, ticket)
        refused = answer["refused"]
        if attempt is not None:
            attempt.offered("keep", since, time.monotonic(), worker_id, refused)
        if refused is None:
            if attempt is not None:
                attempt.served(worker_id, lease_id=ticket.session_id)
            path = f"/lease/{ticket.browser_type}/{lease_id.worker_id}/{lease_id.own}.{secret}"
            return GrantedLease(lease_id, path, expires_at, bool(answer.get("hearsOfAnswer")))
        log.info("lease_not_taken", worker=worker_id, lease=lease_id.own, reason=refused)
        gateway.selector.not_taken(ticket, worker_id, refused)
        await gateway.selector.give_back(ticket)
        if ticket.abandoned:
            raise ClientGone
        ticket.take_another_id()
        gateway.figures.retried += 1


async def answered(gateway: Gateway, lent: GrantedLease, ticket: Ticket, watch: asyncio.Task[None]) -> None:
    """Runs after the answer was given to the client's connection: tells the worker whether the client was there.
    Of a client that had left before nobody knows the lease, and the worker ends it."""
    watch.cancel()
    is_gone = ticket.abandoned
    await asyncio.sleep(0)  # uvloop writes at the end of the loop's round
    if lent.hears_of_answer:
        with contextlib.suppress(Refusal):  # a worker that stays silent is lost, and its leases with it
            await _ask_about(gateway, lent.lease_id, {"do": "unanswered" if is_gone else "answered"})


async def _take(gateway: Gateway, lease_id: LeaseId, secret: str, expires_at: float, ticket: Ticket) -> dict[str, Any]:
    """Has the worker take and keep the lease, or drop it if the client has left. Returns its answer: `refused` says
    why it has not kept the lease. A worker forgets a lease that it is not told to keep."""
    question = {
        "id": lease_id.own,
        "deadline": time.monotonic() + HANDOFF_TIMEOUT_S,
        "client": ticket.client,
        "secret": secret,
        "expiresAt": expires_at,
        records.TOKEN_ID: ticket.token_id,
        "told": {name: text for name, text in ticket.told().items() if name != EXPIRES_AT},
    }
    try:
        answer = await gateway.handoffs.ask(lease_id.worker_id, {**question, "do": "take"})
    except HandoffFailure as error:
        return {"refused": str(error)}
    if answer["refused"] is not None:
        return answer
    does = {"do": "drop"} if ticket.abandoned else {"do": "keep", "saysWhenAnswered": True}
    try:
        answer = await gateway.handoffs.ask(lease_id.worker_id, {"id": lease_id.own, **does})
    except HandoffFailure as error:
        # It may have kept the lease without having answered.
        with contextlib.suppress(HandoffFailure):
            await gateway.handoffs.ask(lease_id.worker_id, {"id": lease_id.own, "do": "return"})
        return {"refused": str(error)}
    return {**answer, "refused": "its client has gone"} if does["do"] == "drop" else answer


async def _ask_about(gateway: Gateway, lease_id: LeaseId, question: Mapping[str, object]) -> dict[str, Any] | None:
    """Returns the answer of the lease's worker; None if it has no such lease, or is gone and its leases with it. Raises
    Refusal."""
    answer = await gateway.ask_worker(lease_id.worker_id, {**question, "id": lease_id.own}, "this lease")
    return None if answer is None or answer["refused"] is not None else answer
