"""Runs a module of bench/ as a user would, and sees to it that it takes its grid with it."""

import signal
import subprocess
import sys

from tests.support.grid import ROOT

LIMIT_S = 500
"""Only bounds a failure."""


def run_module(name: str, *arguments: str) -> tuple[int, str]:
    """`python -m NAME ARGUMENTS`: its exit code and all that it printed."""
    command = [sys.executable, "-m", name, *arguments]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as run:
        try:
            output, _ = run.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            run.send_signal(signal.SIGINT)  # it takes its grid with it
            output, _ = run.communicate()
    return run.returncode, output
