"""A short chaos run: processes are killed and stopped at random under load, and the run itself finds no fault."""

import pytest

from tests.conftest import need
from tests.support.modules import LIMIT_S, run_module


@pytest.mark.timeout(LIMIT_S + 100)
def test_what_is_killed_at_random_costs_nobody_else_a_session_and_leaves_nothing() -> None:
    need("chromium")
    # Seven short steps of this seed: among them a worker, the proxy, the master and a browser server are killed.
    code, output = run_module("bench.chaos", "--minutes", "0.3", "--seed", "1708", "--lost", "12")
    assert code == 0, output
