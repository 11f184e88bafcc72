"""A short chaos run: processes are killed and stopped at random under load, and the run itself finds no fault."""

import os
import signal
import subprocess
import sys

import pytest

from tests.conftest import need
from tests.support.grid import ROOT

LIMIT_S = 500


@pytest.mark.timeout(LIMIT_S + 100)
def test_what_is_killed_at_random_costs_nobody_else_a_session_and_leaves_nothing() -> None:
    need("chromium")
    if not os.environ.get("PWGRID_CHAOS"):
        pytest.skip("set PWGRID_CHAOS=1: on a loaded machine it still finds a fault now and then (make chaos shows it)")
    command = [sys.executable, "-m", "bench.chaos", "--minutes", "0.7", "--seed", "1"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as run:
        try:
            output, _ = run.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            run.send_signal(signal.SIGINT)  # it takes its grid with it
            output, _ = run.communicate()
    assert run.returncode == 0, output
