"""A short soak: clients that close, vanish and freeze at random, after which everything is as it was before."""

import signal
import subprocess
import sys

import pytest

from tests.conftest import need
from tests.support.grid import ROOT

LIMIT_S = 500


@pytest.mark.timeout(LIMIT_S + 100)
def test_clients_that_close_vanish_and_freeze_at_random_leave_nothing_behind() -> None:
    need("chromium")
    command = [sys.executable, "-m", "bench.soak", "--minutes", "0.35", "--seed", "1"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as run:
        try:
            output, _ = run.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            run.send_signal(signal.SIGINT)  # it takes its grid with it
            output, _ = run.communicate()
    assert run.returncode == 0, output
