"""A worker that dies after a new master has found it, and before it is adopted: what it leaves is not forgotten."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from pwgrid.common.reasons import Reason, WorkerEnd
from pwgrid.common.selectors_loop import Loop
from pwgrid.master.child_file_writer import ChildFileWriter
from pwgrid.master.leftovers import KeptOpen, find_leftovers
from pwgrid.master.policy.worker_state_machine import Purpose
from pwgrid.master.workers.workers import Workers
from pwgrid.runtime.browser_process_tree import kill_below
from pwgrid.runtime.child_files import ChildState, read_states
from pwgrid.runtime.directory import RuntimeDir
from pwgrid.runtime.process_identity import create_time
from pwgrid.settings.model import Settings
from tests.support.master_config import master_config
from tests.support.master_grid import PATIENCE_S

WORKER = "0123abcd"
NODE = "import os, signal; os.write(1, b'x'); signal.pause()"


class ToldProxies:
    """Keeps what the proxies would be told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []

    def send(self, name: str, data: dict[str, Any]) -> None:
        self.told.append((name, data["workerId"]))


class NextMaster:
    """The workers of a master that adopts one; `ipc` is its copy of that one's link to the browser server."""

    def __init__(self, runtime: RuntimeDir, *, ipc: socket.socket | None) -> None:
        fds = {WORKER: ipc.detach()} if ipc is not None else {}
        self.kept = KeptOpen((), 0, 0, fds, None, {}, 1, 0.0)
        self.loop = Loop()
        self.proxies = ToldProxies()
        config = master_config(runtime, settings=Settings(), kept_open=self.kept)
        stand_in: Any = self.proxies
        self.workers = Workers(self.loop, config, ChildFileWriter(self.loop, config), stand_in)

    def adopt(self, state: ChildState) -> None:
        self.workers.adopt([state])
        deadline = time.monotonic() + PATIENCE_S
        self.loop.call_at(deadline, lambda: None)
        while self.workers.by_id:
            self.loop.wait()
            assert time.monotonic() < deadline


@pytest.fixture
def runtime(tmp_path: Path) -> Iterator[RuntimeDir]:
    runtime = RuntimeDir(Path(os.path.realpath(tmp_path)), 1, owns_base=False)
    runtime.directory.mkdir()
    runtime.make_worker_dir(WORKER)
    yield runtime
    kill_below([runtime.directory])


def left_by_a_worker(runtime: RuntimeDir) -> tuple[subprocess.Popen[bytes], subprocess.Popen[bytes], ChildState]:
    """A worker, its browser server, and its file."""
    worker = subprocess.Popen(["sleep", "1000"])
    environment = {"TMPDIR": str(runtime.directory / "w" / WORKER / "tmp")}
    node = subprocess.Popen([sys.executable, "-I", "-S", "-c", NODE], env=environment, stdout=subprocess.PIPE)
    assert node.stdout is not None
    assert node.stdout.read(1) == b"x"
    node.stdout.close()
    state = ChildState(
        *("worker", WORKER, worker.pid, create_time(worker.pid) or 0.0, "", "", "0", time.monotonic(), time.time()),
        browser_type="chromium",
        pool="chromium",
        launched={"nodePid": node.pid},
        status="available",
    )
    state.write(runtime.directory)
    assert replace(state).process is not None
    return worker, node, state


DEAF = "import signal; signal.signal(15, signal.SIG_IGN); print(flush=True); signal.pause()"
ENDS_OTHERS = """
import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
print(flush=True)
signal.sigwait([signal.SIGTERM])
for pid in sys.argv[1:]:
    os.kill(int(pid), signal.SIGUSR1)
"""


def test_children_of_another_redis_are_asked_to_end_all_at_once(
    runtime: RuntimeDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pwgrid.master.leftovers.END_S", 2.0)
    deaf = [subprocess.Popen([sys.executable, "-c", DEAF], stdout=subprocess.PIPE) for _ in range(4)]
    others = [str(each.pid) for each in deaf[1:]]
    last = subprocess.Popen([sys.executable, "-c", ENDS_OTHERS, *others], stdout=subprocess.PIPE)
    workers = [*deaf, last]
    for n, worker in enumerate(workers):
        assert worker.stdout is not None
        assert worker.stdout.read(1)
        worker.stdout.close()
        runtime.make_worker_dir(f"{n}")
        since = create_time(worker.pid) or 0.0
        state = ChildState("worker", f"{n}", worker.pid, since, "another", "", "0", time.monotonic(), time.time())
        state.write(runtime.directory)
    leftovers = find_leftovers("", None, runtime.directory)
    # Only the first needed a SIGKILL: the last one had heard its SIGTERM before that, and ended the others.
    ended = [worker.wait(PATIENCE_S) for worker in workers]
    assert ended == [-signal.SIGKILL, *[-signal.SIGUSR1] * 3, 0]
    assert sorted(state.name for state in leftovers.dead) == ["0", "1", "2", "3", "4"]
    assert list(runtime.directory.glob("w/*/worker.json")) == []


def test_a_proxy_that_is_dead_or_of_another_redis_does_not_count_as_the_newest(runtime: RuntimeDir) -> None:
    processes = [subprocess.Popen(["sleep", "1000"]) for _ in range(3)]
    for n, (process, registry) in enumerate(zip(processes, ("", "another", ""), strict=True)):
        since = create_time(process.pid) or 0.0
        ChildState("proxy", f"{n}", process.pid, since, registry, "", "0", n, time.time()).write(runtime.directory)
    processes[2].kill()
    processes[2].wait()
    leftovers = find_leftovers("", None, runtime.directory)
    assert leftovers.proxy is not None
    assert (leftovers.proxy.name, leftovers.retiring, leftovers.dead) == ("0", [], [])
    assert processes[1].wait(PATIENCE_S) == -signal.SIGTERM
    assert [path.name for path in runtime.directory.glob("proxy/*")] == ["0.json"]
    processes[0].kill()
    processes[0].wait()


@pytest.mark.parametrize("is_reaped", [True, False])
def test_what_it_leaves_is_killed_and_the_proxies_hear_of_it(runtime: RuntimeDir, is_reaped: bool) -> None:
    """Reaped by init, where a killed master had forked it; a zombie of our own, in an upgrade."""
    worker, node, state = left_by_a_worker(runtime)
    os.kill(worker.pid, signal.SIGKILL)
    os.waitid(os.P_PID, worker.pid, os.WEXITED | (0 if is_reaped else os.WNOWAIT))
    master = NextMaster(runtime, ipc=None)
    master.adopt(state)
    assert master.proxies.told == [("worker_lost", WORKER)]
    assert not (runtime.directory / "w" / WORKER).exists()
    assert not psutil.pid_exists(worker.pid)
    assert node.wait(PATIENCE_S) == -signal.SIGKILL
    worker.wait()


def test_its_sessions_get_a_successor_also_where_it_died_before_the_new_code_looked_for_it(runtime: RuntimeDir) -> None:
    worker, node, _ = left_by_a_worker(runtime)
    ours, theirs = socket.socketpair()
    os.kill(worker.pid, signal.SIGKILL)
    os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT)
    master = NextMaster(runtime, ipc=ours)
    leftovers = find_leftovers("", master.kept, runtime.directory)
    (state,) = leftovers.workers
    assert (leftovers.dead, node.poll()) == ([], None)
    master.adopt(state)
    assert master.proxies.told == [("worker_taken_over", WORKER), ("worker_gone", WORKER)]
    assert node.wait(PATIENCE_S) == -signal.SIGKILL
    worker.wait()
    theirs.close()


def test_its_sessions_get_a_successor_where_this_master_has_its_link_to_the_browser_server(runtime: RuntimeDir) -> None:
    worker, node, state = left_by_a_worker(runtime)
    ours, theirs = socket.socketpair()
    os.kill(worker.pid, signal.SIGKILL)
    os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT)
    master = NextMaster(runtime, ipc=ours)
    master.adopt(state)
    assert master.proxies.told == [("worker_taken_over", WORKER), ("worker_gone", WORKER)]
    assert node.wait(PATIENCE_S) == -signal.SIGKILL
    worker.wait()
    with theirs:
        theirs.settimeout(PATIENCE_S)
        assert theirs.recv(1) == b""  # no copy of its other end is left


def test_a_second_drain_by_the_operator_means_now_also_where_another_master_was_asked_for_the_first(
    runtime: RuntimeDir,
) -> None:
    worker, node, state = left_by_a_worker(runtime)
    purposes = []
    for _ in range(2):
        master = NextMaster(runtime, ipc=None)
        master.workers.adopt([state])
        adopted = master.workers.by_id[WORKER]
        adopted.drain(Reason(WorkerEnd.OPERATOR), Purpose.END_FOR_OPERATOR)
        purposes.append(adopted.life.purpose)
        (state,) = read_states(runtime.directory)
    assert purposes == [Purpose.END_FOR_OPERATOR, Purpose.END_NOW]
    for process in (worker, node):
        process.kill()
        process.wait()


def test_the_browser_server_of_a_worker_that_this_master_cannot_use_hears_of_it(runtime: RuntimeDir) -> None:
    ours, theirs = socket.socketpair()
    NextMaster(runtime, ipc=ours).workers.adopt([])
    with theirs:
        theirs.settimeout(PATIENCE_S)
        assert theirs.recv(1) == b""
