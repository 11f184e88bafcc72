"""A short soak: clients that close, vanish and freeze at random, after which everything is as it was before."""

import pytest

from tests.conftest import need
from tests.support.modules import LIMIT_S, run_module


@pytest.mark.timeout(LIMIT_S + 100)
def test_clients_that_close_vanish_and_freeze_at_random_leave_nothing_behind() -> None:
    need("chromium")
    code, output = run_module("bench.soak", "--minutes", "0.2", "--seed", "1")
    assert code == 0, output
