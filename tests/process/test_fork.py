"""Forks that fail halfway leave no process and no descriptor behind."""

import errno
import os
import signal

import psutil
import pytest

from pwgrid.common.loop import Loop
from pwgrid.master import child
from pwgrid.master.fork import fork_role


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
