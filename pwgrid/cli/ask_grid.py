"""Finds a grid that runs on this host, and asks its master."""

import math
import os
import socket
import struct
import time
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import orjson

from pwgrid.cli.output import clock
from pwgrid.common.errors import GridError, NoGridError, Refused
from pwgrid.runtime.directory import base_dir
from pwgrid.runtime.find_grids import (
    GridWithoutMaster,
    RunningGrid,
    bases,
    find_elsewhere,
    find_elsewhere_without_master,
    find_others,
    find_running,
    find_without_master,
    is_service_hidden,
)

REPLY_TIMEOUT_S: Final = 5.0
CHECK_TIMEOUT_S: Final = 60.0
"""For a request that makes the master load new code or settings first."""

_REPLY_BYTES: Final = 1 << 20
_PEERCRED: Final = struct.Struct("3i")


def find_grid(port: int | None, runtime_dir: str | None) -> RunningGrid:
    """The only running grid with this port and base directory (None: any).

    Grids below the directories that our environment names come before those of ours that were started elsewhere.
    Raises WithoutMasterError where there are only grids without a master, NoGridError where there is none, GridError
    where there are several.
    """
    if port is None and (endpoint := os.environ.get("PWGRID_WS_ENDPOINT")):
        port = _port_of(endpoint)
    runtime_dir = runtime_dir or os.environ.get("PWGRID_RUNTIME_DIR")
    running = [grid for grid in find_running(runtime_dir) if port in (None, grid.port)]
    left = [grid for grid in find_without_master(runtime_dir) if port in (None, grid.port)]
    if not running and not left and not runtime_dir:
        running = [grid for grid in find_elsewhere() if port in (None, grid.port)]
        left = [grid for grid in find_elsewhere_without_master() if port in (None, grid.port)]
    if not running:
        raise WithoutMasterError(left) if left else NoGridError(_no_grid_text(port, runtime_dir))
    if os.environ.get("RUNTIME_DIRECTORY"):  # systemd has started us, to reload its service
        running = [grid for grid in running if grid.directory.parent == base_dir()] or running
    if len(running) > 1:
        ports = ", ".join(str(grid.port) for grid in running)
        raise GridError(f"several grids run here: name one with --port (ports {ports})")
    return running[0]


def _port_of(endpoint: str) -> int | None:
    try:
        return urlsplit(endpoint).port
    except ValueError:
        shown = endpoint.partition("?")[0]  # behind that there may be a token
        raise GridError(f"PWGRID_WS_ENDPOINT: {shown!r} is no URL of a grid: use ws://host:8080") from None


class WithoutMasterError(NoGridError):
    """There are only grids whose master is gone (`left`): they answer no request, and each is about to end."""

    def __init__(self, left: list[GridWithoutMaster]) -> None:
        self.left = left
        super().__init__(
            "; ".join(f"the grid on port {grid.port} has no master: {without_master_text(grid)}" for grid in left)
        )


def without_master_text(grid: GridWithoutMaster) -> str:
    """Since when a grid has no master, and how long it goes on without one."""
    if grid.lock.detached_at is None:
        return "it died; unless another one comes, the rest drains and ends after WORKER_LOST_THRESHOLD"
    now = time.time()
    parts = [f"detached since {clock(grid.lock.detached_at)}"]
    if grid.refuses_at > now:
        parts.append(f"refuses clients in {math.ceil(grid.refuses_at - now)} s unless a new master comes")
    ends_in_s = max(1, math.ceil(grid.ends_at - now))
    return ", ".join([*parts, f"ends in {ends_in_s} s at the latest"])


def _no_grid_text(port: int | None, runtime_dir: str | None) -> str:
    """Says where it looked for a grid, and which other users have one there."""
    where = f" on port {port}" if port else ""
    looked = "looked in " + " and ".join(map(str, bases(runtime_dir)))
    if not runtime_dir:
        looked += ", and for sockets of yours anywhere"
    others = [] if runtime_dir else [other for other in find_others() if port in (None, other.port)]
    if others:
        there = "; ".join(
            f"{other} on port {other.port}, which answers only {other.user}, and root with --runtime-dir "
            f"{other.directory.parent}"
            for other in others
        )
        return f"no grid of yours is running here{where} ({looked}). There is {there}"
    if is_service_hidden() and not runtime_dir:
        return f"no grid of yours is running here{where} ({looked}); to see the service's, run this as root"
    return f"no grid is running here{where} ({looked}): start one with pwgrid serve"


def ask(
    grid: RunningGrid, name: str, data: dict[str, Any] | None = None, timeout_s: float = REPLY_TIMEOUT_S
) -> dict[str, Any]:
    """Sends one request to the grid's master and returns its answer. Raises Refused with the master's sentence,
    GridError where it does not answer, where its answer makes no sense, or where another user than the owner of the
    grid's directory would answer."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as control:
        control.settimeout(timeout_s)
        try:
            control.connect(str(grid.directory / "control.sock"))
            _check_peer(control, grid.directory)
            control.send(orjson.dumps({"t": "request", "name": name, "data": data or {}}))
            packet = control.recv(_REPLY_BYTES)
        except OSError as error:
            raise GridError(f"the master (pid {grid.pid}) does not answer: {error}") from None
    try:
        answer = orjson.loads(packet or b"{}")
        if answer.get("t") == "reply":
            reply: dict[str, Any] = answer["data"]
            return reply
        refusal = answer.get("error")
    except (ValueError, KeyError, AttributeError) as error:  # it is cut, or of something else
        raise GridError(f"the answer of the master (pid {grid.pid}) makes no sense: {error!r:.200}") from None
    raise Refused(refusal or f"the master (pid {grid.pid}) gave no answer")


def _check_peer(control: socket.socket, directory: Path) -> None:
    """Raises GridError unless the owner of the grid's directory listens at the other end."""
    _, uid, _ = _PEERCRED.unpack(control.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEERCRED.size))
    owner = directory.lstat().st_uid
    if uid != owner:
        raise GridError(f"{directory} belongs to uid {owner}, but uid {uid} answers there: nothing was asked")
