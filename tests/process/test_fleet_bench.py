"""The bench of large grids, at its smallest, so that it still runs when somebody needs it."""

import pytest

from tests.conftest import need
from tests.support.modules import LIMIT_S, run_module


@pytest.mark.timeout(LIMIT_S + 100)
def test_the_bench_of_large_grids_measures_a_small_one() -> None:
    need("chromium")  # the report names its version
    code, output = run_module("bench", "fleet", "--workers", "2", "--quick")
    assert code in (0, 1), output  # 1: a target is missed, as it may be on a busy machine
    assert "| connects per second, 8 at once, 2 workers |" in output
    assert "| 2 workers: selection, p50 and p99 " in output
    assert "| 2 workers: Redis at 100 connects/s " in output
