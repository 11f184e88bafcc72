"""Shows sessions in place of a worker's browser server, as that would to its proxy."""

import contextlib
import json
import socket
from collections.abc import Iterator
from typing import Any

from tests.support import raw
from tests.support.hosts import Host


@contextlib.contextmanager
def shown_by_hand(host: Host, worker_id: str) -> Iterator[socket.socket]:
    """Listens in place of the browser server of a worker."""
    path = host.grid.runtime / "w" / worker_id / "live.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        listener.settimeout(raw.STALL_S)
        yield listener
    path.unlink()


def packet(content: bytes, kind: int = 0) -> bytes:
    return len(content).to_bytes(4, "big") + bytes([kind]) + content


def read_packet(sock: socket.socket) -> Any:
    header = sock.recv(5, socket.MSG_WAITALL)
    return json.loads(sock.recv(int.from_bytes(header[:4], "big"), socket.MSG_WAITALL))
