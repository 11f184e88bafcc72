"""Forks that fail halfway leave no process and no descriptor behind."""

import errno
import os
import signal

import psutil
import pytest
from structlog.testing import capture_logs

from pwgrid.common.selectors_loop import Loop
from pwgrid.master import child
from pwgrid.master.child import fork_role


def test_a_child_of_which_nothing_can_be_read_for_want_of_a_descriptor_is_undone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(_pid: int) -> float:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(child, "create_time", fails)
    before = os.listdir("/proc/self/fd"), psutil.Process().children()
    with pytest.raises(OSError, match="Too many open files"):
        fork_role(Loop(), lambda: 0, ())
    assert (os.listdir("/proc/self/fd"), psutil.Process().children()) == before


def test_a_child_that_has_ended_is_neither_signalled_nor_waited_for() -> None:
    loop, exits = Loop(), list[child.Exit]()
    forked = fork_role(loop, lambda: 0, ())

    def on_exit(ended: child.Exit) -> None:
        exits.append(ended)
        forked.end_by(loop.now(), loop.now())  # as where the last words of a worker are read after its exit
        forked.send(signal.SIGKILL)

    forked.watch(on_exit)
    while not exits:
        loop.wait()
    at_once = loop.timer(lambda: exits.append(exits[0]))
    at_once.arm(loop.now())
    while len(exits) < 2:
        loop.wait()  # a timer that was armed for the ended child would fire in it, and raise OSError
    assert exits[0].is_clean


def test_a_child_that_sigkill_does_not_end_is_left_and_has_its_pid_in_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one in an uninterruptible sleep: here no signal reaches it."""
    monkeypatch.setattr(child, "KILL_S", 0.05)
    loop, exits, before = Loop(), list[child.Exit](), os.listdir("/proc/self/fd")
    stuck = fork_role(loop, lambda: int(bool(signal.pause())), ())
    with monkeypatch.context() as patch, capture_logs() as logs:
        patch.setattr(child.signal, "pidfd_send_signal", lambda *_: None)
        stuck.watch(exits.append)
        stuck.end_now()
        stuck.end_by(loop.now(), loop.now())
        while not exits:
            loop.wait()
    assert exits == [child.Exit(None, was_killed=True, is_left=True)]
    assert (exits[0].is_clean, exits[0].is_unknown, str(exits[0])) == (False, False, "no end, although it was killed")
    assert [(each["event"], each["pid"]) for each in logs] == [("process_not_killed", stuck.pid)]
    assert os.listdir("/proc/self/fd") == before
    os.kill(stuck.pid, signal.SIGKILL)
    os.waitpid(stuck.pid, 0)
