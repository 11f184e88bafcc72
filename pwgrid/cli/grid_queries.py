"""Queries of the commands to a running grid's master and registry, and redis-cli on its Redis."""

from __future__ import annotations

import contextlib
import os
import platform
import select
import time
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

import pwgrid
from pwgrid import __version__
from pwgrid.cli.ask_grid import REPLY_TIMEOUT_S, ask, without_master_text
from pwgrid.common.errors import GridError, RegistryUnavailable
from pwgrid.runtime.find_grids import GridWithoutMaster, RunningGrid, find_elsewhere, find_running

if TYPE_CHECKING:
    from pwgrid.registry.records import RegistrySnapshot

LOOK_EVERY_S: Final = 0.25

FOLLOW_EVERY_S: Final = 0.5


def status(grid: RunningGrid, timeout_s: float = REPLY_TIMEOUT_S) -> dict[str, Any]:
    """The master's status with the registry's counters, which are exact; the master's own are a few seconds old."""
    from pwgrid.registry.blocking_reads import snapshot  # redis-py takes 0.2 s to import

    found = ask(grid, "status", timeout_s=timeout_s)
    try:
        counters = snapshot(*redis_of(grid))  # not the URL in the status, which has no password
    except RegistryUnavailable as error:
        found["redis"]["error"] = str(error)
    else:
        take_counters(found, counters)
    return found


def take_counters(found: dict[str, Any], counters: RegistrySnapshot) -> None:
    """Replaces the counters in a status by those of the registry."""
    for worker in found["workers"]:
        field = f"{worker['browserType']}:{worker['id']}"
        worker["active"] = counters.active.get(field, worker["active"])
        worker["lifetime"] = counters.lifetime.get(field, worker["lifetime"])


def versions() -> dict[str, Any]:
    """The versions of what is installed here, and of each grid of ours that runs."""
    grids = {grid.directory: grid for grid in [*find_running(), *find_elsewhere()]}
    running = []
    for grid in grids.values():
        with contextlib.suppress(GridError):
            running.append({"endpoint": grid.endpoint, "pid": grid.pid, "version": ask(grid, "status")["version"]})
    here = {"python": platform.python_version(), "from": str(Path(pwgrid.__file__).parent)}
    return {"pwgrid": __version__, "playwright": metadata.version("playwright"), **here, "running": running}


def versions_text(found: dict[str, Any]) -> str:
    """What `versions` returns, as lines."""
    lines = [f"pwgrid {found['pwgrid']}, Playwright {found['playwright']}, Python {found['python']} ({found['from']})"]
    lines += [f"{each['endpoint']} runs {each['version']} (master pid {each['pid']})" for each in found["running"]]
    return "\n".join(lines)


def status_without_master(grid: GridWithoutMaster) -> dict[str, Any]:
    """The status of a grid without a master, from its files and its living processes."""
    children = [{"kind": each.kind, "name": each.name, "pid": each.pid} for each in grid.children]
    times = (None, None) if grid.lock.detached_at is None else (grid.refuses_at, grid.ends_at)
    return {
        "endpoint": grid.lock.endpoint,
        "ready": False,
        "reason": without_master_text(grid),
        "master": None,
        "pools": [],  # unknown without a master
        "workers": [],
        "detachedAt": grid.lock.detached_at,
        "refusesAt": times[0],
        "endsAt": times[1],
        "children": children,
    }


def watch(grid: RunningGrid, pids: Iterable[int], timeout_s: float = REPLY_TIMEOUT_S) -> Iterator[dict[str, Any]]:
    """Yields the status every `LOOK_EVERY_S` seconds, and as soon as one of these processes ends."""
    for _ in processes_left(pids):
        yield status(grid, timeout_s)


def processes_left(pids: Iterable[int]) -> Iterator[int]:
    """Yields how many of these processes still run, every `LOOK_EVERY_S` seconds and as soon as one ends; for ever."""
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
            for pidfd, _ in ends.poll(LOOK_EVERY_S * 1000):
                ends.unregister(pidfd)
                left -= 1


def sessions(grid: RunningGrid, status: str | None, limit: int) -> list[dict[str, Any]]:
    """The latest sessions, the newest first, as the API shows them. Raises RegistryUnavailable."""
    from pwgrid.registry.blocking_reads import latest_sessions

    url, prefix = redis_of(grid)
    return [session.as_json() for session in latest_sessions(url, prefix, status=status, limit=limit)]


def session(grid: RunningGrid, session_id: str) -> dict[str, Any] | None:
    """One session, as the API shows it; None if there is none (any more). Raises RegistryUnavailable."""
    from pwgrid.registry.blocking_reads import session

    url, prefix = redis_of(grid)
    found = session(url, session_id, prefix)
    return None if found is None else found.as_json()


def follow_sessions(grid: RunningGrid) -> Iterator[list[dict[str, Any]]]:
    """Yields every `FOLLOW_EVERY_S` seconds the sessions that have begun or ended since, the oldest first.

    Raises RegistryUnavailable.
    """
    from pwgrid.registry.blocking_reads import SessionWatch

    watch = SessionWatch(*redis_of(grid))
    watch.look(time.time())

    def news() -> Iterator[list[dict[str, Any]]]:
        while True:
            time.sleep(FOLLOW_EVERY_S)  # noqa: TID251 - Redis tells of no change of a session
            yield [session.as_json() for session in watch.look(time.time()).news]

    return news()


def redis_cli(grid: RunningGrid, arguments: tuple[str, ...]) -> NoReturn:
    """Replaces this process by redis-cli, connected to the grid's Redis."""
    from pwgrid.registry.embedded_redis import find_redis_cli
    from pwgrid.registry.open_redis import redis_cli_arguments

    binary = find_redis_cli()
    where, password = redis_cli_arguments(ask(grid, "redis")["url"], timeout_s=REPLY_TIMEOUT_S)
    environment = {**os.environ, "REDISCLI_AUTH": password} if password else os.environ
    os.execve(binary, [str(binary), *where, *arguments], environment)


def redis_of(grid: RunningGrid) -> tuple[str, str]:
    """The registry's URL with its password, and the prefix of its keys."""
    found = ask(grid, "redis")
    return found["url"], found["prefix"]
