"""Readiness, and the selection without Redis, follow the table of eligible workers."""

from typing import cast

import pytest

from pwgrid.common.session_lifecycle import HeldAs
from pwgrid.proxy.roster import PoolView, Roster
from pwgrid.proxy.select.claim import Claim
from pwgrid.proxy.select.selector import Selector
from pwgrid.registry.records import RegistrySnapshot, WorkerRecord
from pwgrid.registry.registry import Registry
from pwgrid.registry.selectable_workers import can_serve
from pwgrid.settings.model import Settings
from tests.support.eligible_workers import CASES, LIFETIME, STALE_S, Case
from tests.support.state_frames import told_of_pool

NOW = 1_700_000_000.0


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_grid_is_ready_if_its_worker_is_eligible(case: Case) -> None:
    heartbeat = NOW - case.silent_s
    worker = WorkerRecord(
        "chromium", "aa", "ws://x", status=case.status, pool=case.pool, last_heartbeat=heartbeat, slots=5
    )
    found = RegistrySnapshot({}, {"chromium:aa": case.lifetime}, {"chromium:aa": worker}, {}, 0)
    pool = PoolView(1, 1, None, "appa", "chromium", lifetime=LIFETIME)
    assert (can_serve(None, found, [pool], NOW, STALE_S).reason is None) is case.eligible


@pytest.mark.parametrize("case", [case for case in CASES if not case.only_redis_knows], ids=str)
async def test_without_redis_a_client_gets_a_worker_that_is_eligible(case: Case) -> None:
    roster = Roster()
    workers = [{"id": "aa", "pool": case.pool, "browserType": "chromium", "status": case.status}]
    pools = {name: told_of_pool(lifetime=LIFETIME) for name in ("appa", "appb")}
    roster.replace({"pools": pools, "workers": workers})
    selector = Selector(Settings(), cast("Registry", None), roster, ())
    claim = Claim(HeldAs.SESSION, "chromium", "appa", None, "client", 1e9)
    assert (selector.select_without_redis(claim) == "aa") is case.eligible
