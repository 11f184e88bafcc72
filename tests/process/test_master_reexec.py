"""A master that executes itself: what comes just before that reaches the new code, and a failure changes nothing."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import orjson
import pytest

from pwgrid.master.leftovers import KeptOpen
from pwgrid.master.upgrade import VARIABLE, kept_open
from tests.support.grid import eventually
from tests.support.master_grid import PATIENCE_S, MasterGrid

EXECUTES = """
import os, signal, sys
from pwgrid.master.leftovers import KeptOpen
from pwgrid.master.upgrade import execute
from pwgrid.master.signal_queue import SignalQueue

signals = SignalQueue()
signals.install()
for signum in (signal.SIGTERM, signal.SIGUSR2):
    os.kill(os.getpid(), signum)  # queued from here on, and nobody reads it any more
nothing = os.open(os.devnull, os.O_RDONLY)
kept = KeptOpen((), nothing, nothing, {}, None, {}, 1, 0.0)
try:
    execute([sys.argv[1], "-c", "import signal; print(sorted(signal.sigpending()))"], kept, signals)
except OSError:
    print(sorted(signals.read()))
"""


def iter_until(manager: socket.socket, last: bytes) -> Iterator[bytes]:
    while not (message := manager.recv(200)).startswith(last):
        yield message


def said_by(code: str, *arguments: str) -> str:
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE_S).stdout.strip()


def test_a_signal_that_comes_just_before_the_new_code_waits_for_it() -> None:
    assert said_by(EXECUTES, sys.executable) == str([signal.SIGUSR2, signal.SIGTERM])


def test_a_signal_that_comes_just_before_new_code_that_cannot_be_executed_is_heard_by_the_old() -> None:
    assert said_by(EXECUTES, "/nowhere") == str([signal.SIGUSR2, signal.SIGTERM])


def test_the_service_manager_watches_as_before_where_the_new_code_cannot_be_executed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(PATIENCE_S)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        monkeypatch.setenv("WATCHDOG_USEC", "7000000")
        loads_once = tmp_path / "loads_once"  # it is gone when the master is to become it
        loads_once.write_text('#!/bin/sh\nrm "$0"\n')
        loads_once.chmod(0o755)
        with MasterGrid(argv=[str(loads_once)]) as grid:
            grid.expect("ready")
            with grid.asking("upgrade", {"force": True}) as operator:
                assert json.loads(operator.recv(1 << 20))["t"] == "reply"
            grid.send(signal.SIGTERM)
            told = list(iter_until(manager, b"STOPPING=1"))
            watches = [f"WATCHDOG=1\nWATCHDOG_USEC={seconds}000000".encode() for seconds in (7, 60, 7)]
            assert [each for each in told if b"WATCHDOG_USEC=" in each] == watches
            grid.end(None)


def test_what_another_version_kept_is_read_also_where_that_knows_more_or_less(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = asdict(KeptOpen((), 0, 0, {}, None, {}, 1, 0.0, is_nohup=True))
    for theirs, is_nohup in ({**ours, "newer": 1}, True), ({**ours, "is_nohup": ...}, False):
        memory = os.memfd_create("kept", 0)
        os.write(memory, orjson.dumps({name: value for name, value in theirs.items() if value is not ...}))
        monkeypatch.setenv(VARIABLE, str(memory))
        monkeypatch.setattr(KeptOpen, "fds", lambda _kept: [])
        kept = kept_open()
        assert kept is not None
        assert (kept.port, kept.is_nohup) == (1, is_nohup)


def test_a_re_execution_that_fails_early_leaves_no_descriptor() -> None:
    code = """
import os, sys
from pwgrid.master.leftovers import KeptOpen
from pwgrid.master.upgrade import execute
from pwgrid.master.signal_queue import SignalQueue

def broken(*_):
    raise OSError(28, "No space left on device")

signals, nothing = SignalQueue(), os.open(os.devnull, os.O_RDONLY)
before = os.listdir("/proc/self/fd")
os.write = broken
try:
    execute([sys.executable, "-c", ""], KeptOpen((), nothing, nothing, {}, None, {}, 1, 0.0), signals)
except OSError:
    print(os.listdir("/proc/self/fd") == before)
"""
    assert said_by(code) == "True"


def test_the_directory_of_a_worker_for_which_the_disk_has_no_room_does_not_stay() -> None:
    with MasterGrid(settings={"chromium_workers": 0, "firefox_workers": 1}, full_disk=True) as grid:
        while not any(event["event"] == "worker_not_started" for event in grid.events()):
            grid.status()
        directory = Path(grid.start["directory"]) / "w"
        eventually(lambda: not os.listdir(directory), "none stays")  # that of the next try may be there for a moment
        grid.end()
