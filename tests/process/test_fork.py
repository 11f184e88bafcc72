"""Forks that fail halfway leave no process and no descriptor behind."""

import errno
import os

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
