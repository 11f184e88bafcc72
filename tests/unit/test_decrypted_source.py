"""A forwarded client whose TLS is in the kernel: the kernel does not count what it has decrypted."""

from __future__ import annotations

import fcntl

import pytest

from pwgrid.forwarder import spliced_session
from pwgrid.forwarder.large_pipes import LargePipes
from tests.unit.test_large_pipes import Joined

PAGE = 4096


def test_all_that_was_decrypted_is_passed_on_although_the_kernel_counts_none_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(spliced_session, "is_read_by_kernel", lambda _sock: True)
    joined = Joined(LargePipes())
    fcntl.fcntl(joined.session.fds[3], fcntl.F_SETPIPE_SZ, PAGE)  # takes less at once than there is
    monkeypatch.setattr(spliced_session, "_unread", lambda _fd: 0)
    joined.host.settimeout(20)
    for size in (100, 5 * PAGE, 100):
        joined.sends(size)
    joined.close()
