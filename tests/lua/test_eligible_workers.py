"""The selection in Redis follows the table of eligible workers."""

import pytest

from tests.lua.model import NOW, LuaGrid
from tests.support.eligible_workers import CASES, LIFETIME, Case


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_client_gets_a_worker_that_is_eligible(grid: LuaGrid, case: Case) -> None:
    grid.register(now=NOW - case.silent_s, status=case.status, pool=case.pool, lifetime=case.lifetime)
    assert (grid.select("s1", pool="appa", max_lifetime=LIFETIME) == "w1") is case.eligible
