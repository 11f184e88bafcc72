"""What operators' commands do to a running grid: find it, ask its master, read its registry. Starts nothing."""

import json
import os
import socket
from typing import Any, Final, NoReturn
from urllib.parse import urlsplit

from grid.errors import GridError, Refused, RegistryUnavailable
from grid.runtime_dir import RunningGrid, find_running

REPLY_TIMEOUT_S: Final = 5.0
CHECK_TIMEOUT_S: Final = 60.0
_REPLY_BYTES: Final = 1 << 20


def find_grid(port: int | None, runtime_dir: str | None) -> RunningGrid:
    """The running grid that is meant. Raises GridError when there is none, or several and no port was given."""
    if port is None and (endpoint := os.environ.get("PWGRID_WS_ENDPOINT")):
        port = urlsplit(endpoint).port
    running = [grid for grid in find_running(runtime_dir) if port in (None, grid.port)]
    if not running:
        raise GridError(
            "no grid is running here" + (f" on port {port}" if port else "") + ": start one with pwgrid serve"
        )
    if len(running) > 1:
        ports = ", ".join(str(grid.port) for grid in running)
        raise GridError(f"several grids run here: name one with --port (ports {ports})")
    return running[0]


def ask(
    grid: RunningGrid, name: str, data: dict[str, Any] | None = None, timeout_s: float = REPLY_TIMEOUT_S
) -> dict[str, Any]:
    """One request to the grid's master, and its answer. Raises GridError with the master's sentence."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as control:
        control.settimeout(timeout_s)
        try:
            control.connect(str(grid.directory / "control.sock"))
            control.send(json.dumps({"t": "request", "name": name, "data": data or {}}).encode())
            answer: dict[str, Any] = json.loads(control.recv(_REPLY_BYTES) or b"{}")
        except OSError as error:
            raise GridError(f"the master (pid {grid.pid}) does not answer: {error}") from None
    if answer.get("t") != "reply":
        raise Refused(answer.get("error") or f"the master (pid {grid.pid}) gave no answer")
    reply: dict[str, Any] = answer["data"]
    return reply


def reload(grid: RunningGrid) -> str:
    """Has the configuration read again; what that changed. Raises Refused with all that is wrong with it."""
    done = ask(grid, "reload", timeout_s=CHECK_TIMEOUT_S)
    if not done["changed"]:
        return "nothing has changed"
    what = [f"changed: {', '.join(done['changed'])}"]
    what += [f"scaled: {', '.join(f'{pool}={workers}' for pool, workers in done['scaled'].items())}"] * bool(
        done["scaled"]
    )
    what += [f"recycling {len(done['recycled'])} workers, one after the other"] * bool(done["recycled"])
    what += ["replacing the proxy"] * done["proxy"]
    return "; ".join(what)


def upgrade(grid: RunningGrid) -> str:
    """Has the master execute itself with the code that is installed now. Raises Refused when that does not load."""
    done = ask(grid, "upgrade", timeout_s=CHECK_TIMEOUT_S)
    return f"the new code is good: replacing the master, the proxy, then {done['workers']} workers one after the other"


def status(grid: RunningGrid) -> dict[str, Any]:
    """The master's view with the registry's counters: they are exact, the master's own a few seconds old."""
    from grid.registry.blocking import snapshot

    found = ask(grid, "status")
    try:
        counters = snapshot(found["redis"]["url"], found["redis"].get("prefix", ""))
    except RegistryUnavailable as error:
        found["redis"]["error"] = str(error)
        return found
    for worker in found["workers"]:
        field = f"{worker['browserType']}:{worker['id']}"
        worker["active"] = counters.active.get(field, worker["active"])
        worker["lifetime"] = counters.lifetime.get(field, worker["lifetime"])
    return found


def status_table(found: dict[str, Any]) -> str:
    """The status for people."""
    state = "stopping" if found.get("stopping") else "serving"
    lines = [f"{found['endpoint']}  {state}  master {found['master']['pid']}  proxy {found['proxy']['pid']}"]
    redis = found["redis"]
    lines.append(
        f"redis {redis['url']}" + (f"  pid {redis['pid']}" if redis["pid"] else "") + _problem(redis.get("error"))
    )
    pools: list[tuple[str, ...]] = [("POOL", "WANTED", "AVAILABLE", "STARTING", "DRAINING", "SESSIONS", "SLOTS", "")]
    for pool in found["pools"]:
        mine = [worker for worker in found["workers"] if worker["browserType"] == pool["browserType"]]
        figures = (pool["wanted"], pool["available"], pool["starting"], pool["draining"])
        sessions = sum(worker["active"] or 0 for worker in mine)
        pools.append((pool["browserType"], *map(str, figures), str(sessions), str(pool["slots"]), pool["reason"] or ""))
    workers: list[tuple[str, ...]] = [("WORKER", "TYPE", "PID", "STATUS", "SESSIONS", "LIFETIME", "MEMORY", "")]
    for worker in found["workers"]:
        memory = f"{worker['rssMib']} MiB" if worker.get("rssMib") is not None else "-"
        used = f"{worker['active'] or 0}/{worker['slots']}"
        row = (
            worker["id"],
            worker["browserType"],
            str(worker["pid"]),
            worker["status"],
            used,
            str(worker["lifetime"] or 0),
        )
        workers.append((*row, memory, worker.get("reason") or ""))
    return "\n".join([*lines, "", *_columns(pools), "", *_columns(workers)])


def redis_cli(grid: RunningGrid, arguments: tuple[str, ...]) -> NoReturn:
    """Becomes redis-cli on the grid's Redis."""
    from grid.registry.embedded import find_redis_cli

    url = ask(grid, "redis")["url"]
    binary = find_redis_cli()
    where = ["-s", urlsplit(url).path] if url.startswith("unix:") else ["-u", url]
    os.execv(binary, [str(binary), *where, *arguments])


def _problem(error: str | None) -> str:
    return f"  ({error})" if error else ""


def _columns(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
