"""Who accepts clients while no descriptor is free."""

import asyncio
import errno
import os
import socket
from typing import Any

import pytest
from structlog.testing import capture_logs

from pwgrid.common import acceptor as acceptor_module
from pwgrid.common.acceptor import Acceptor

BOUND_S = 20.0


class Listener(socket.socket):
    """One whose next accepts find no free descriptor."""

    failures = 0

    def accept(self) -> tuple[socket.socket, Any]:
        if self.failures:
            self.failures -= 1
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return super().accept()


async def test_a_shortage_is_told_of_once_and_nobody_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acceptor_module, "SHORTAGE_S", 0)
    accepted: asyncio.Queue[socket.socket] = asyncio.Queue()
    listener = Listener()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    acceptor = Acceptor((listener,), accepted.put_nowait)
    acceptor.open()
    with capture_logs() as told:
        for shortages in (1, 2):
            listener.failures = 5
            with socket.create_connection(listener.getsockname()) as client:
                async with asyncio.timeout(BOUND_S):
                    with await accepted.get() as served:
                        assert served.getpeername() == client.getsockname()
            assert [each["event"] for each in told] == ["client_not_accepted"] * shortages
    acceptor.close()
