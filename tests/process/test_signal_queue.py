"""The signals of a master that is at its end, in a process of its own."""

import subprocess
import sys

from tests.support.master_grid import PATIENCE_S

LATE = """
import os, signal
from pwgrid.master.signal_queue import SignalQueue

class Late:
    '''Sends the signals when Python has given up its handlers, just before the process ends.'''
    def __init__(self):
        self.kill, self.pid = os.kill, os.getpid()
        self.signums = signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2
    def __del__(self):
        for signum in self.signums:
            self.kill(self.pid, signum)
        print("told")

late, signals = Late(), SignalQueue()
signals.install()
signals.close()
"""


def test_a_signal_that_comes_when_the_master_has_ended_all_changes_nothing() -> None:
    command = [sys.executable, "-c", LATE]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert (ended.returncode, ended.stdout) == (0, "told\n")
