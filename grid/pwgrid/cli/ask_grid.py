"""Finds a grid that runs on this host, and asks its master and its registry."""

from __future__ import annotations

import contextlib
import math
import os
import select
import socket
import struct
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import orjson

from pwgrid.cli.output import clock
from pwgrid.common.errors import GridError, NoGridError, Refused, RegistryUnavailable
from pwgrid.common.grid_url import GridUrl
from pwgrid.common.launch_failure import without_places
from pwgrid.common.readiness import PoolFigures, why_not_ready
from pwgrid.runtime.directory import base_dir
from pwgrid.runtime.find_grids import (
    GridWithoutMaster,
    RunningGrid,
    bases,
    find_others,
    find_running,
    find_without_master,
    is_service_hidden,
)
from pwgrid.settings.environment_variables import set_variables

if TYPE_CHECKING:
    from pwgrid.registry.host_records import HostsFound
    from pwgrid.registry.records import RegistrySnapshot

REPLY_TIMEOUT_S: Final = 5.0
CHECK_TIMEOUT_S: Final = 60.0
"""For a request that makes the master load new code or settings first."""

POLL_INTERVAL_S: Final = 0.25

_REPLY_BYTES: Final = 1 << 20
_PEERCRED: Final = struct.Struct("3i")


def find_grid(port: int | None, runtime_dir: str | None) -> RunningGrid:
    """The only running grid with this port and base directory (None: as the environment says, else any).

    Grids below the directories that our environment names come before those of ours that were started elsewhere.
    Raises WithoutMasterError where there are only grids without a master, NoGridError where there is none, GridError
    where there are several.
    """
    variables = set_variables(os.environ)
    named_by = ""
    if port is None:
        port, named_by = _port_in(variables)
    runtime_dir = runtime_dir or variables.get("PWGRID_RUNTIME_DIR")
    running = [grid for grid in find_running(runtime_dir) if port in (None, grid.port)]
    left = [grid for grid in find_without_master(runtime_dir) if port in (None, grid.port)]
    if not running and not left and not runtime_dir:
        running = [grid for grid in find_running(elsewhere=True) if port in (None, grid.port)]
        left = [grid for grid in find_without_master(elsewhere=True) if port in (None, grid.port)]
    if not running:
        raise WithoutMasterError(left) if left else NoGridError(_no_grid_text(port, runtime_dir, named_by))
    if os.environ.get("RUNTIME_DIRECTORY"):  # systemd has started us, to reload its service
        running = [grid for grid in running if grid.directory.parent == base_dir()] or running
    if len(running) > 1:
        ports = ", ".join(str(grid.port) for grid in running)
        raise GridError(f"several grids run here: name one with --port or PWGRID_PORT (ports {ports})")
    return running[0]


def _port_in(variables: Mapping[str, str]) -> tuple[int | None, str]:
    """The port that these variables of the environment name, and which one does; None if none does.

    The endpoint comes first: `pwgrid run` sets it for its command, in the environment of a shell that may have the
    other one for a grid of its own.
    """
    if endpoint := variables.get("PWGRID_WS_ENDPOINT"):
        try:
            port = GridUrl.parse(endpoint).port
        except ValueError as error:
            raise GridError(f"PWGRID_WS_ENDPOINT: {error}") from None
        if port is not None:
            return port, "PWGRID_WS_ENDPOINT"
    text = variables.get("PWGRID_PORT", "")
    if text and not text.isdecimal():
        raise GridError(f"PWGRID_PORT: {text!r:.80} is no port")
    return int(text or 0) or None, "PWGRID_PORT"  # 0: a free one


class WithoutMasterError(NoGridError):
    """There are only grids whose master is gone (`left`): they answer no request, and each is about to end."""

    def __init__(self, left: list[GridWithoutMaster]) -> None:
        self.left = left
        super().__init__(
            "; ".join(f"the grid on port {grid.port} has no master: {without_master_text(grid)}" for grid in left)
        )


def without_master_text(grid: GridWithoutMaster) -> str:
    """Since when a grid has no master, whether it admits clients, and how long it goes on without one."""
    since, unless = master_left_text(grid), "unless a new master comes"
    if grid.lock.detached_at is None:
        wait = "for WORKER_LOST_THRESHOLD it admits clients, then it refuses them and ends after a drain"
        return f"{since}; {wait}, {unless}"
    now = time.time()
    ends = f"ends in {max(1, math.ceil(grid.ends_at - now))} s at the latest, {unless}"
    if grid.refuses_at > now:
        return f"{since}; it admits clients for {math.ceil(grid.refuses_at - now)} s more, and {ends}"
    return f"{since}; it refuses clients, and {ends}"


def master_left_text(grid: GridWithoutMaster) -> str:
    """How its master has left."""
    at = grid.lock.detached_at
    return "it died" if at is None else f"detached since {clock(at)}"


def _no_grid_text(port: int | None, runtime_dir: str | None, named_by: str) -> str:
    """Says where a grid was looked for, and which other users have one there."""
    where = f" on port {port}{f' of {named_by}' if named_by else ''}" if port else ""
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
    if not packet:
        raise GridError(f"the master (pid {grid.pid}) gave no answer: it has ended, or runs new code by now")
    try:
        answer = orjson.loads(packet)
        if answer.get("t") == "reply":
            reply: dict[str, Any] = answer["data"]
            return reply
        refusal = answer["error"]
    except (ValueError, KeyError, AttributeError) as error:  # it is cut, or of something else
        raise GridError(f"the answer of the master (pid {grid.pid}) makes no sense: {error!r:.200}") from None
    raise Refused(refusal)


def _check_peer(control: socket.socket, directory: Path) -> None:
    """Raises GridError unless the owner of the grid's directory listens at the other end."""
    _, uid, _ = _PEERCRED.unpack(control.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEERCRED.size))
    owner = directory.lstat().st_uid
    if uid != owner:
        raise GridError(f"{directory} belongs to uid {owner}, but uid {uid} answers there: nothing was asked")


def status(grid: RunningGrid, timeout_s: float = REPLY_TIMEOUT_S) -> dict[str, Any]:
    """The master's status, and what the registry adds to it."""
    from pwgrid.cli.other_hosts import other_hosts
    from pwgrid.registry.blocking_reads import hosts, snapshot  # redis-py takes 0.2 s to import
    from pwgrid.registry.selectable_workers import until_all_serve

    found = ask(grid, "status", timeout_s=timeout_s)
    own = [_counter(worker) for worker in found["workers"]]
    is_enough = until_all_serve(_pools(found), time.time(), found["redis"]["staleS"])
    try:
        # Not the URL in the status, which has no password.
        url, prefix = redis_of(grid)
        registry = snapshot(url, prefix, own, is_enough)
        others = None if found["redis"].get("pid") else hosts(url, prefix)
        add_registry(found, registry, others)
        found["hosts"] = _hosts(others, registry.active) if others is not None else []
        name = found["host"].get("name", "")  # an older master tells none
        found["otherHosts"] = other_hosts(others, name, registry, time.time()) if others is not None and name else []
    except RegistryUnavailable as error:
        add_registry(found, error)
    return found


def add_registry(
    found: dict[str, Any], registry: RegistrySnapshot | RegistryUnavailable, others: HostsFound | None = None
) -> None:
    """Puts into a master's status what only the registry knows: the exact counters, where the master's own are a few
    seconds old; why Redis is of no use; whether the grid can serve, as /health/ready says it, and what is wrong with
    this host. `others` are the hosts that form one grid, if there are any."""
    from pwgrid.registry.host_records import NAME_TAKEN  # takes a while to import, as redis-py does
    from pwgrid.registry.selectable_workers import can_serve

    if isinstance(registry, RegistryUnavailable):
        found["redis"]["error"] = str(registry)
    else:
        for worker in found["workers"]:
            field = _counter(worker)
            worker["active"] = registry.active.get(field, worker["active"])
            worker["lifetime"] = registry.lifetime.get(field, worker["lifetime"])
        if registry.write_fault is not None:
            found["redis"]["error"] = f"{registry.write_fault}; clients are served without it meanwhile"
    own = found.get("host", {}).get("name", "") if others is not None else ""  # an older master tells none
    if others is not None and own:
        found["reason"] = _not_ready(found, others, own)
        if (record := others.records.get(own)) is not None and record.is_name_taken:
            found["problems"] = [*found["problems"], f"{own}: {NAME_TAKEN}"]
    verdict = can_serve(found["reason"], registry, _pools(found), time.time(), found["redis"]["staleS"])
    found["ready"], found["reason"] = verdict.reason is None, verdict.reason


def _not_ready(found: Mapping[str, Any], others: HostsFound, own: str) -> str | None:
    """Why the host of this name takes no sessions, as its proxy says it; None when it does."""
    pools = {
        pool["name"]: PoolFigures(
            *(pool["wanted"], pool["available"], pool["reason"] and without_places(pool["reason"])),
            suspect=pool["suspect"],
            is_on_demand=bool(pool.get("onDemand")),
        )
        for pool in found["pools"]
    }
    return why_not_ready(
        pools,
        is_started=found["started"],
        is_stopping=found["stopping"],
        host_guard=found["host"]["guard"],
        elsewhere=others.available_elsewhere(own, time.time()),
        drained=own if own in others.drained else "",
    )


def _hosts(found: HostsFound, active: Mapping[str, int]) -> list[dict[str, Any]]:
    """The hosts that form one grid, as a status has them."""
    states = found.states(time.time())
    return [
        {
            "name": name,
            "state": states[name],
            "version": record.version,
            **record.room(active)._asdict(),
            "waiting": sum(record.waiting.values()),
        }
        for name, record in found.records.items()
    ]


def _counter(worker: Mapping[str, Any]) -> str:
    """The field of a worker of a status in the registry's counters."""
    return f"{worker['browserType']}:{worker['id']}"


def _pools(found: Mapping[str, Any]) -> list[_Pool]:
    """The pools of a status that want workers."""
    pools = found["pools"]
    return [_Pool(pool["name"], pool["browserType"], pool["lifetimeOfWorker"]) for pool in pools if pool["wanted"]]


class _Pool(NamedTuple):
    """What a selection knows of a pool."""

    name: str
    browser_type: str
    lifetime: int


def watch(grid: RunningGrid, pids: Iterable[int], timeout_s: float = REPLY_TIMEOUT_S) -> Iterator[dict[str, Any]]:
    """Yields the status every `POLL_INTERVAL_S` seconds, and as soon as one of these processes ends."""
    for _ in processes_left(pids):
        yield status(grid, timeout_s)


def processes_left(pids: Iterable[int]) -> Iterator[int]:
    """Yields how many of these processes still run: every `POLL_INTERVAL_S` seconds, as soon as one ends, for ever."""
    ends, left = select.poll(), 0
    with contextlib.ExitStack() as stack:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                pidfd = os.pidfd_open(pid)
                stack.callback(os.close, pidfd)
                ends.register(pidfd, select.POLLIN)
                left += 1
        while True:
            yield left
            for pidfd, _ in ends.poll(POLL_INTERVAL_S * 1000):
                ends.unregister(pidfd)
                left -= 1


def latest_sessions(grid: RunningGrid, status: str | None, limit: int) -> list[dict[str, Any]]:
    """The latest sessions, the newest first, as the API shows them. Raises RegistryUnavailable."""
    from pwgrid.registry import blocking_reads

    found = blocking_reads.latest_sessions(*redis_of(grid), status=status, limit=limit)
    return [session.as_json() for session in found]


def redis_of(grid: RunningGrid) -> tuple[str, str]:
    """The registry's URL with its password, and the prefix of its keys."""
    found = ask(grid, "redis")
    return found["url"], found["prefix"]
