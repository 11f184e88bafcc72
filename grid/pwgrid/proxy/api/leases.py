"""The routes of leases, for clients and operators."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Iterator
from functools import partial
from typing import Annotated

import structlog
from fastapi import APIRouter, BackgroundTasks, Path, Query
from starlette.requests import Request

from pwgrid.common.label_keys import LabelKey, LabelKeyError, parse
from pwgrid.common.playwright_version import minor_of
from pwgrid.common.session_lifecycle import LIVE, HeldAs
from pwgrid.common.types import Isolation, Protocol
from pwgrid.proxy.api import models
from pwgrid.proxy.api.bounded_body import BoundedBody
from pwgrid.proxy.api.errors import problems
from pwgrid.proxy.api.models import Cursor, NoneIfEmpty, PageSize
from pwgrid.proxy.api.requests_as_sent import arrival_of
from pwgrid.proxy.api.roles import NEEDS_CLIENT, Client
from pwgrid.proxy.client_traces import attempting
from pwgrid.proxy.connect.gateway import Gateway
from pwgrid.proxy.connect.grant_lease import GrantedLease, LeaseId, answered, ask_about, lend
from pwgrid.proxy.policy.access import Identity
from pwgrid.proxy.policy.choose_pool import pool_of_label
from pwgrid.proxy.policy.connect_request import run_name
from pwgrid.proxy.policy.devtools_request import CDP_PATH, check_browser_type
from pwgrid.proxy.policy.launch_options import LaunchOptions
from pwgrid.proxy.policy.own_browser import check as check_isolation
from pwgrid.proxy.policy.own_browser import isolation_of, own_browser, takes_lifetime
from pwgrid.proxy.policy.profile_request import asked_profile
from pwgrid.proxy.policy.refusal import Refusal
from pwgrid.proxy.policy.session_caps import caps_of
from pwgrid.proxy.select.claim import Claim
from pwgrid.proxy.services import Services
from pwgrid.registry import records

log = structlog.get_logger()

_Status = Annotated[models.LeaseStatus | None, NoneIfEmpty, Query()]


def lease_routes(grid: Services) -> APIRouter:
    """Makes the routes, for clients and operators."""
    router = APIRouter(route_class=BoundedBody, tags=["leases"], dependencies=[NEEDS_CLIENT])

    @router.post("/session/borrow", responses=problems(400, 403, 404, 409, 413, 428, 503))
    async def borrow(
        request: Request, wanted: models.Borrow, identity: Client, afterwards: BackgroundTasks
    ) -> models.Borrowed:
        """Keeps a slot of the pool that serves the label key, and returns its endpoint."""
        with (
            _refusal_told(grid.gateway, request),
            attempting(grid.gateway.traces, "borrow", request.headers.items()) as attempt,
        ):
            claim, key = _claim(grid.gateway, wanted, identity, str(arrival_of(request)))
            watch = asyncio.create_task(_abandoned_with(request, grid.gateway, claim), name="client of a borrow")
            lent = await _lent(lend(grid.gateway, claim, wanted.ttl_seconds, attempt), watch)
        without_cdp = grid.roster.without(Protocol.CDP)
        afterwards.add_task(answered, grid.gateway, lent, claim, watch)
        return models.Borrowed(
            browser_id=str(lent.lease_id),
            web_socket_endpoint=(endpoint := arrival_of(request).endpoint + lent.path),
            cdp_endpoint=None if lent.lease_id.worker_id in without_cdp else f"{endpoint}{CDP_PATH}",
            browser_type=claim.browser_type,
            label_key=str(key),
            requested_label_key=claim.fields[records.LABELS],
            isolation=claim.fields.get(records.ISOLATION, Isolation.CONTEXT.value),
            playwright=_version_of(grid, lent.lease_id.worker_id, claim.pool),
            expires_at=lent.expires_at,
        )

    @router.post("/session/return", responses=problems(400, 503))
    async def give_back(returned: models.Return, identity: Client) -> models.Returned:
        """Ends a lease and frees its slot; a connected client hears why. May be repeated."""
        lease_id = LeaseId.read(returned.browser_id)
        check(returned.label_key)
        answer = await ask_about(grid.gateway, lease_id, {"do": "return", "token": identity.sees_only})
        return models.Returned(browser_id=str(lease_id), returned=answer is not None)

    @router.patch("/v1/leases/{id}", responses=problems(400, 404, 503))
    async def extend(
        lease: Annotated[str, Path(alias="id")], wanted: models.Extend, identity: Client
    ) -> models.Extended:
        """Makes a lease last for at least `ttlSeconds` from now on."""
        lease_id = LeaseId.read(lease)
        question = {"do": "extend", "ttlS": wanted.ttl_seconds, "token": identity.sees_only}
        if (answer := await ask_about(grid.gateway, lease_id, question)) is None:
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
    """Writes a refused borrow into the log and onto the page, as is done with a refused connect."""
    try:
        yield
    except Refusal as refusal:
        arrival = arrival_of(request)
        gateway.refusal_log.note(refusal, arrival.client or "unknown", str(arrival), "borrow")
        raise


def _claim(gateway: Gateway, wanted: models.Borrow, identity: Identity, client: str) -> tuple[Claim, LabelKey]:
    """Makes the claim for a lease, and returns it with the pool's label key that serves the one that was asked for.
    Raises Refusal for what this grid has for nobody, or not for this token."""
    named = run_name(wanted.run_name, "runName")
    run = run_name(wanted.run_id, "runId")
    policy, version = gateway.policy(), minor_of(wanted.playwright) if wanted.playwright else None
    pool, key = pool_of_label(policy.labels, policy.pools, wanted.label_key, version)
    gateway.check_pool(identity, pool)
    assert key.browser_type is not None  # pools have no wildcards
    offered = policy.pools[pool]
    if wanted.profile:
        check_browser_type(key.browser_type)
    profile = asked_profile(wanted.profile or "", gateway.settings.profiles, identity, is_cdp=True)
    check_isolation(offered, wanted.isolation)
    own = own_browser(offered, wanted.isolation, LaunchOptions(), "")
    isolation = isolation_of(offered, own)
    fields = {
        records.LABELS: wanted.label_key.strip(),
        records.LABEL_KEY: str(key),
        records.NAME: named,
        records.RUN: run,
        records.TOKEN: identity.name,
        records.PROFILE: profile.name if profile else "",
        records.ISOLATION: "" if isolation is Isolation.CONTEXT else isolation.value,
        records.LIFETIME_TAKEN: "" if takes_lifetime(offered, own) else "0",
    }
    claim = Claim(
        kind=HeldAs.LEASE,
        browser_type=key.browser_type,
        playwright_version=version,
        client=client,
        deadline=gateway.deadline(pool, gateway.settings.borrow_queue_timeout),
        fields={name: value for name, value in fields.items() if value},
        run=run or named,
        protocol=Protocol.CDP if profile else Protocol.PLAYWRIGHT,
        token=identity.name,
        token_id=identity.token_id,
        caps=caps_of(gateway.settings, identity, label=str(key), run=run or named),
        refusal=partial(gateway.access.revoked, identity),
        pool=pool,
    )
    return claim, key


def _version_of(grid: Services, worker_id: str, pool: str) -> str:
    """Returns the Playwright that clients of a lease must have, which is that of its worker."""
    worker, offered = grid.roster.worker(worker_id), grid.roster.pool(pool)
    return (worker.playwright_version if worker else None) or (offered.playwright if offered else "")


def _no_such_lease() -> Refusal:
    return Refusal(404, "there is no such lease (any more): GET /v1/leases lists them")


async def _abandoned_with(request: Request, gateway: Gateway, claim: Claim) -> None:
    """Abandons the claim when the client leaves."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
    gateway.selector.queue.abandon(claim)


async def _lent(lend: Awaitable[GrantedLease], watch: asyncio.Task[None]) -> GrantedLease:
    try:
        lent = await lend
        await asyncio.sleep(0)  # `watch` hears first of a client that has left in this turn of the loop
        return lent
    except BaseException:
        watch.cancel()
        raise
