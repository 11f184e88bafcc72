"""Real processes that are found, told apart, killed and reaped; and a clock that is set meanwhile."""

from __future__ import annotations

import errno
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from pwgrid.runtime import browser_process_tree, process_identity
from pwgrid.runtime.browser_process_tree import Tree, kill_below, process_table
from pwgrid.runtime.process_identity import create_time, end, find_process, is_alive, kill

BOUND_S = 20.0
ASLEEP = "import signal; signal.pause()"


def may_not(_pidfd: int, _signum: int) -> None:
    """As the kernel refuses a signal to another user's process."""
    raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))


@pytest.fixture
def directory() -> Iterator[Path]:
    """A private directory; what has it as TMPDIR is killed at the end."""
    with tempfile.TemporaryDirectory(prefix="pg-", dir="/tmp") as path:
        yield Path(path)
        kill_below([Path(path)])


@pytest.fixture
def spawn(directory: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts a Python that runs `code`; it has said something when this returns."""
    started = []

    def start(code: str, tmpdir: Path = directory) -> subprocess.Popen[bytes]:
        popen = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", f"import os\nos.write(1, b'x')\n{code}"],
            env={"TMPDIR": str(tmpdir)},
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        started.append(popen)
        assert popen.stdout is not None
        assert os.read(popen.stdout.fileno(), 1) == b"x"
        return popen

    yield start
    for popen in started:
        popen.kill()
        popen.wait()
        assert popen.stdout is not None
        popen.stdout.close()


def said_pid(popen: subprocess.Popen[bytes]) -> psutil.Process:
    assert popen.stdout is not None
    return psutil.Process(int(popen.stdout.readline()))


def wait_ended(process: psutil.Process) -> None:
    """Also a zombie has."""
    try:
        pidfd = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return
    try:
        ended = select.poll()
        ended.register(pidfd, select.POLLIN)
        assert ended.poll(BOUND_S * 1000), process
    finally:
        os.close(pidfd)


def kill_until_gone(tree: Tree) -> int:
    """How many it killed at first."""
    killed, deadline = tree.kill(process_table()), time.monotonic() + BOUND_S
    while tree.kill(process_table()):
        assert time.monotonic() < deadline, tree
    return killed


def another(process: psutil.Process) -> psutil.Process:
    """What `process` would be had its pid belonged to another one before."""
    former = psutil.Process(process.pid)
    pid, created = former._ident  # type: ignore[attr-defined]
    former._ident = (pid, created - 1)  # type: ignore[attr-defined]
    former._hash = None  # type: ignore[attr-defined]
    return former


# Who it is


def test_the_create_time_does_not_depend_on_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = create_time(os.getpid())
    assert mine is not None
    assert 0 < mine <= time.clock_gettime(time.CLOCK_BOOTTIME)
    real, moved = psutil.boot_time(), psutil.Process().create_time()
    monkeypatch.setattr("psutil._pslinux.boot_time", lambda: real + 3600)
    assert psutil.Process().create_time() == moved + 3600
    assert create_time(os.getpid()) == mine
    assert find_process(os.getpid(), mine) == psutil.Process()


def test_a_clock_that_is_set_while_it_is_read_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    mine, real = create_time(os.getpid()), psutil.boot_time()
    said = iter([real, real + 3600])
    monkeypatch.setattr("psutil._pslinux.boot_time", lambda: next(said, real + 3600))
    assert create_time(os.getpid()) == mine


def test_another_process_says_the_same_create_time() -> None:
    code = "import os; from pwgrid.runtime.process_identity import create_time; print(create_time(os.getppid()))"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True).stdout
    assert float(said) == create_time(os.getpid())


@pytest.mark.parametrize("pid", [-1, 0, 1 << 30, 1 << 70])
def test_a_pid_that_no_process_can_have_is_nobody(pid: int) -> None:
    assert create_time(pid) is None
    assert find_process(pid, 1.0) is None


def test_a_zombie_has_ended(spawn: Callable[..., subprocess.Popen[bytes]]) -> None:
    popen = spawn(ASLEEP)
    process, created = psutil.Process(popen.pid), create_time(popen.pid)
    assert created is not None
    assert find_process(popen.pid, created) == process
    assert find_process(popen.pid, created - 0.01) is None
    assert is_alive(process)
    popen.kill()
    wait_ended(process)
    assert process.status() == psutil.STATUS_ZOMBIE
    assert create_time(popen.pid) is None
    assert not is_alive(process)
    assert not kill(process)
    assert end(process, time.monotonic())


def test_a_process_that_has_the_pid_of_an_ended_one_is_not_signalled(
    spawn: Callable[..., subprocess.Popen[bytes]],
) -> None:
    popen = spawn(ASLEEP)
    former = another(psutil.Process(popen.pid))
    assert not is_alive(former)
    assert not kill(former)
    assert end(former, time.monotonic())
    assert popen.poll() is None


def test_a_pid_that_is_given_away_after_the_check_is_not_signalled(
    spawn: Callable[..., subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check sees the process that was meant; it ends before the signal is sent, which then goes to nobody."""
    popen, sent = spawn(ASLEEP), []
    process = psutil.Process(popen.pid)
    real = signal.pidfd_send_signal

    def late(pidfd: int, signum: int) -> None:
        real(pidfd, signal.SIGKILL)
        popen.wait()  # its pid is free from here on
        sent.append(signum)
        real(pidfd, signum)

    monkeypatch.setattr(os, "kill", None)  # which would go to whoever has the pid now
    monkeypatch.setattr(process_identity.signal, "pidfd_send_signal", late)
    assert kill(process)
    assert sent == [signal.SIGKILL]


def test_who_does_not_hear_is_killed_at_the_deadline(spawn: Callable[..., subprocess.Popen[bytes]]) -> None:
    popen = spawn("import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); " + ASLEEP)
    assert popen.stdout is not None
    assert popen.stdout.readline() == b"deaf\n"
    assert end(psutil.Process(popen.pid), time.monotonic() + 0.1, signal.SIGTERM)
    assert popen.wait() == -signal.SIGKILL


# Which belong together

DETACHED = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-I", "-S", "-c", {ASLEEP!r}], start_new_session=True, env={{}})
print(child.pid, flush=True)
"""
ALONE = f"{DETACHED}{ASLEEP}"
"""A child in a session of its own whose environment names nothing. Its end does not end its parent: else it is a matter
of chance whether the parent is there to be killed as well."""
UNTIL_ITS_END = f"{DETACHED}child.wait()"


def test_what_was_seen_below_is_found_after_its_parent_has_ended(
    spawn: Callable[..., subprocess.Popen[bytes]],
) -> None:
    parent = spawn(ALONE)
    child = said_pid(parent)
    tree = Tree(0, Path("/nowhere"), {psutil.Process(parent.pid)})
    tree.note(process_table())
    assert child in tree.known
    parent.kill()
    parent.wait()
    assert kill_until_gone(tree) == 1
    wait_ended(child)


def test_a_worker_notes_what_is_below_its_browser_server_and_keeps_no_other_process_of_the_host(
    spawn: Callable[..., subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def listed() -> None:
        raise AssertionError("each process of the host would be kept")

    parent = spawn(ALONE)
    child = said_pid(parent)
    root = psutil.Process(parent.pid)
    tree = Tree(0, Path("/nowhere"), {root})
    with monkeypatch.context() as patched:
        patched.setattr("psutil.process_iter", listed)
        tree.note_below(root)
    assert tree.known == {root, child}
    parent.kill()
    parent.wait()
    tree.note_below(root)  # there is nothing below it any more
    assert kill_until_gone(tree) == 1
    wait_ended(child)


def test_below_a_worker_belongs_to_it_but_not_the_worker_itself(
    spawn: Callable[..., subprocess.Popen[bytes]],
) -> None:
    worker = spawn(UNTIL_ITS_END)
    child = said_pid(worker)
    tree = Tree(worker.pid, Path("/nowhere"))
    tree.note(process_table())
    assert tree.known == {child}
    assert tree.has(child.pid, process_table())
    assert not tree.has(worker.pid, process_table())
    assert kill_until_gone(tree) == 1
    assert worker.wait() == 0  # it was not killed: its child's end ends it
    assert not tree.has(child.pid, process_table())


def test_who_was_never_seen_is_found_by_its_tmpdir(
    spawn: Callable[..., subprocess.Popen[bytes]], directory: Path
) -> None:
    code = f"""
import subprocess, sys
if os.fork():
    os._exit(0)
os.setsid()
child = subprocess.Popen([sys.executable, "-I", "-S", "-c", {ASLEEP!r}], env={{}})
print(os.getpid(), flush=True)
print(child.pid, flush=True)
{ASLEEP}
"""
    parent = spawn(code, directory / "w" / "1" / "tmp")
    stray, below = said_pid(parent), said_pid(parent)
    parent.wait()
    assert stray.ppid() != parent.pid
    other = Tree(0, directory / "w" / "2", anywhere=True)
    assert other.kill(process_table()) == 0
    assert Tree(0, directory / "w" / "1").kill(process_table()) == 0  # it looks only at our own children
    tree = Tree(0, directory / "w" / "1", anywhere=True)
    assert kill_until_gone(tree) == 2
    wait_ended(stray)
    wait_ended(below)


def test_only_below_the_directories_that_are_named_is_killed(
    spawn: Callable[..., subprocess.Popen[bytes]], directory: Path
) -> None:
    first, second = spawn(ALONE, directory / "1" / "tmp"), spawn(ASLEEP, directory / "1")
    other, similar = spawn(ASLEEP, directory / "2" / "tmp"), spawn(ASLEEP, directory / "11")
    child = said_pid(first)
    assert kill_below([]) == 0
    assert kill_below([directory / "1", directory / "3"]) == 3
    wait_ended(child)
    assert [first.wait(), second.wait()] == [-signal.SIGKILL] * 2
    assert (other.poll(), similar.poll()) == (None, None)


def test_processes_that_cannot_be_killed_are_waited_for_together(
    spawn: Callable[..., subprocess.Popen[bytes]], directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in an uninterruptible sleep: here no signal reaches them, and each wait lasts as long as it may."""
    for number in range(3):
        spawn(ASLEEP, directory / str(number))
    now = [time.monotonic()]

    def has_ended(_pidfd: int, within_s: float) -> bool:
        now[0] += max(0.0, within_s)
        return False

    with monkeypatch.context() as patch:
        patch.setattr(process_identity.signal, "pidfd_send_signal", lambda *_: None)
        patch.setattr(process_identity, "_has_ended", has_ended)
        patch.setattr("time.monotonic", lambda: now[0])
        began = now[0]
        assert kill_below([directory]) == 3
    assert now[0] - began <= process_identity.KILL_S + 0.001


def test_this_process_does_not_kill_itself(directory: Path) -> None:
    code = "import os, sys; from pathlib import Path; from pwgrid.runtime.browser_process_tree import kill_below; "
    code += "print(kill_below([Path(os.environ['TMPDIR'])]))"
    environment = {**os.environ, "TMPDIR": str(directory)}
    said = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=True).stdout
    assert said == b"0\n"


@pytest.mark.parametrize("how", ["tree", "directory"])
def test_who_forks_another_just_before_its_end_does_not_save_it(
    how: str, spawn: Callable[..., subprocess.Popen[bytes]], directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "import signal\nsignal.signal(signal.SIGUSR1, lambda *_: os._exit(0) if os.fork() else None)"
    victim = spawn(f"{code}\nprint('armed', flush=True)\nwhile True: signal.pause()")
    assert victim.stdout is not None
    assert victim.stdout.readline() == b"armed\n"

    def late(process: psutil.Process) -> bool:
        if victim.poll() is None:
            victim.send_signal(signal.SIGUSR1)  # it forks another one and ends
            victim.wait()
        return kill(process)

    monkeypatch.setattr(browser_process_tree, "kill", late)
    if how == "tree":
        assert kill_until_gone(Tree(0, directory, anywhere=True)) == 1
    else:
        assert kill_below([directory]) == 1
    assert victim.returncode == 0
    table = process_table()
    assert list(table.with_tmpdir_in([directory], table.processes.values())) == []


def test_a_new_process_and_a_new_parent_are_seen_at_once(
    spawn: Callable[..., subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whose child a process is is remembered, but not where that may have changed."""
    monkeypatch.setattr(browser_process_tree._remembered, "recheck_at", time.monotonic() + 1000)
    process_table()
    parent = spawn(ALONE)
    child = said_pid(parent)
    assert child in process_table().children[parent.pid]
    parent.kill()
    parent.wait()
    table = process_table()
    assert parent.pid not in table.children
    assert child in table.children[child.ppid()]
    child.kill()


def test_a_pid_that_was_given_away_unnoticed_is_noticed_within_a_minute(
    spawn: Callable[..., subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    parent = spawn(ALONE)
    child = said_pid(parent)
    former = another(child)
    browser_process_tree._remembered.parents[former] = process_table().processes[parent.pid]
    monkeypatch.setitem(psutil._pmap, child.pid, former)
    monkeypatch.setattr(browser_process_tree._remembered, "recheck_at", time.monotonic() + 1000)
    assert process_table().processes[child.pid] == former
    monkeypatch.setattr(browser_process_tree._remembered, "recheck_at", 0.0)
    table = process_table()
    assert table.processes[child.pid] == child
    assert child in table.children[parent.pid]
    assert browser_process_tree._remembered.recheck_at > time.monotonic()
    child.kill()


def test_children_of_a_process_that_has_the_pid_of_a_known_one_are_not_killed(
    spawn: Callable[..., subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    stranger = spawn(ALONE)
    child = said_pid(stranger)
    former = another(psutil.Process(stranger.pid))
    browser_process_tree._remembered.parents[former] = process_table().processes[os.getpid()]
    monkeypatch.setitem(psutil._pmap, stranger.pid, former)
    monkeypatch.setattr(browser_process_tree._remembered, "recheck_at", time.monotonic() + 1000)
    tree = Tree(0, Path("/nowhere"), {former})
    table = process_table()
    assert (table.processes[stranger.pid], table.children[stranger.pid]) == (former, [child])
    assert tree.kill(table) == 0
    assert is_alive(child)
    child.kill()


# Ended children

REAPS = """
import os, signal
from pwgrid.runtime.browser_process_tree import reap_orphans

def ended():
    pid = os.fork()
    if not pid:
        os._exit(3)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    return pid

assert reap_orphans([]) == 0  # no child at all
lives = os.fork()
if not lives:
    signal.pause()
owned, orphan = ended(), ended()
assert reap_orphans([lives, owned]) == 1
assert os.waitpid(owned, 0) == (owned, 3 << 8)  # its owner gets its code
first, second = ended(), ended()
assert reap_orphans([]) == 2  # and does not wait for the one that lives
for pid in (orphan, first, second):
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        continue
    raise AssertionError(pid)
os.kill(lives, signal.SIGKILL)
assert os.waitpid(lives, 0) == (lives, 9)
"""


@pytest.mark.parametrize("kernel", ["", "Path.read_bytes = lambda path: open('/nowhere').read()"])
def test_orphans_are_reaped_and_no_child_that_others_wait_for(kernel: str) -> None:
    """Also where the kernel does not list a process' children."""
    code = f"from pathlib import Path\n{kernel}\n{REAPS}"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=BOUND_S)


def test_a_process_that_may_not_be_signalled_is_one_that_lives_on(
    spawn: Callable[..., subprocess.Popen[bytes]], directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = spawn(ASLEEP)
    tree = Tree(0, directory, {psutil.Process(child.pid)}, anywhere=True)
    with monkeypatch.context() as as_another_user:
        as_another_user.setattr(process_identity.signal, "pidfd_send_signal", may_not)
        assert tree.kill(process_table()) == 1
        assert child.poll() is None
    assert tree.kill(process_table()) == 1
    assert child.wait(BOUND_S) == -signal.SIGKILL
