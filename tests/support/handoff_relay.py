"""Stands between the proxy and a worker's handoff socket, and kills the proxy right when a certain packet passes."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_PACKET_BYTES: Final = 160 * 1024


class HandoffRelay:
    """Relays every link that a proxy opens to the worker. While `kill_at` is set, the first packet that has these bytes
    is not passed on: the process `pid` is killed instead. With `kill_at_answer` that is done to the answer to it."""

    def __init__(self, path: Path) -> None:
        self.kill_at = b""
        self.kill_at_answer = False
        self.pid = 0
        self._answers_from: socket.socket | None = None
        self._target = path.with_name("handoff.behind")
        self._path = path
        path.rename(self._target)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(str(path))
        self._listener.listen()
        self._ends, self._end = os.pipe()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def close(self) -> None:
        """Ends every link; the next ones are to the worker itself."""
        self._target.rename(self._path)
        os.close(self._end)
        self._thread.join()
        self._listener.close()
        os.close(self._ends)

    def _run(self) -> None:
        others: dict[socket.socket, socket.socket] = {}
        while True:
            readable, _, _ = select.select([self._ends, self._listener, *others], [], [])
            if self._ends in readable:
                break
            for sock in readable:
                if sock is self._listener:
                    proxy, _ = self._listener.accept()
                    worker = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                    worker.connect(str(self._target))
                    others |= {proxy: worker, worker: proxy}
                elif sock in others and not self._passes(sock, others[sock]):
                    other = others.pop(sock)
                    del others[other]
                    sock.close()
                    other.close()
        for sock in others:
            sock.close()

    def _passes(self, sock: socket.socket, other: socket.socket) -> bool:
        try:
            packet, fds, _, _ = socket.recv_fds(sock, _PACKET_BYTES, 4)
        except ConnectionError:
            return False
        try:
            is_meant = bool(packet and self.kill_at and self.kill_at in packet)
            if is_meant:
                self.kill_at = b""
                self._answers_from = other if self.kill_at_answer else None
            if (is_meant and not self.kill_at_answer) or (packet and sock is self._answers_from):
                self._answers_from = None
                os.kill(self.pid, signal.SIGKILL)
            elif packet:
                socket.send_fds(other, [packet], fds)
        except ConnectionError:
            return False
        finally:
            for fd in fds:
                os.close(fd)
        return bool(packet)


@contextlib.contextmanager
def handoff_relay(path: Path) -> Iterator[HandoffRelay]:
    """A relay before the worker's handoff socket at `path`. The links that a proxy has already go past it."""
    relay = HandoffRelay(path)
    try:
        yield relay
    finally:
        relay.close()
