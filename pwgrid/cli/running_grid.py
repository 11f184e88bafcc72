"""Finds a grid that runs on this host, and asks its master."""

import os
import socket
import struct
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import orjson

from pwgrid.common.errors import GridError, Refused
from pwgrid.runtime.directory import RunningGrid, find_running, is_service_hidden

REPLY_TIMEOUT_S: Final = 5.0
CHECK_TIMEOUT_S: Final = 60.0
"""For a request that makes the master load new code or settings first."""

_REPLY_BYTES: Final = 1 << 20
_PEERCRED: Final = struct.Struct("3i")


def find_grid(port: int | None, runtime_dir: str | None) -> RunningGrid:
    """The running grid that is meant. Raises GridError when there is none, or several and no port was given."""
    if port is None and (endpoint := os.environ.get("PWGRID_WS_ENDPOINT")):
        port = urlsplit(endpoint).port
    runtime_dir = runtime_dir or os.environ.get("PWGRID_RUNTIME_DIR")
    running = [grid for grid in find_running(runtime_dir) if port in (None, grid.port)]
    if not running:
        where = f" on port {port}" if port else ""
        if is_service_hidden():
            raise GridError(f"no grid of yours is running here{where}; to see the service's, run this as root")
        raise GridError(f"no grid is running here{where}: start one with pwgrid serve")
    if len(running) > 1:
        ports = ", ".join(str(grid.port) for grid in running)
        raise GridError(f"several grids run here: name one with --port (ports {ports})")
    return running[0]


def ask(
    grid: RunningGrid, name: str, data: dict[str, Any] | None = None, timeout_s: float = REPLY_TIMEOUT_S
) -> dict[str, Any]:
    """One request to the grid's master, and its answer. Raises GridError with the master's sentence, or where somebody
    else than the owner of the grid's directory would answer."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as control:
        control.settimeout(timeout_s)
        try:
            control.connect(str(grid.directory / "control.sock"))
            _check_peer(control, grid.directory)
            control.send(orjson.dumps({"t": "request", "name": name, "data": data or {}}))
            answer: dict[str, Any] = orjson.loads(control.recv(_REPLY_BYTES) or b"{}")
        except OSError as error:
            raise GridError(f"the master (pid {grid.pid}) does not answer: {error}") from None
    if answer.get("t") != "reply":
        raise Refused(answer.get("error") or f"the master (pid {grid.pid}) gave no answer")
    reply: dict[str, Any] = answer["data"]
    return reply


def _check_peer(control: socket.socket, directory: Path) -> None:
    """Raises GridError unless the owner of the grid's directory listens at the other end."""
    _, uid, _ = _PEERCRED.unpack(control.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEERCRED.size))
    owner = directory.lstat().st_uid
    if uid != owner:
        raise GridError(f"{directory} belongs to uid {owner}, but uid {uid} answers there: nothing was asked")
