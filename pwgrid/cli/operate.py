"""What operators' commands do to a running grid: find it, ask its master, read its registry. Starts nothing."""

import json
import os
import socket
import time
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final, NoReturn
from urllib.parse import urlsplit

from pwgrid.common.errors import GridError, Refused, RegistryUnavailable
from pwgrid.runtime.directory import RunningGrid, find_running, is_service_hidden

REPLY_TIMEOUT_S: Final = 5.0
CHECK_TIMEOUT_S: Final = 60.0
_REPLY_BYTES: Final = 1 << 20


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
    from pwgrid.registry.blocking import snapshot

    found = ask(grid, "status")
    try:
        counters = snapshot(*_redis(grid))  # the address that the status shows has no password
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
    host = found["host"]
    lines.append(f"host {host['availableMib']} MiB available" + _problem(host["guard"]))
    lines += [f"PROBLEM: {problem}" for problem in found.get("problems", ())]
    head = ("POOL", "WANTED", "AVAILABLE", "SPARE", "STARTING", "DRAINING", "SESSIONS", "SLOTS", "")
    pools: list[tuple[str, ...]] = [head]
    for pool in found["pools"]:
        mine = [worker for worker in found["workers"] if worker["browserType"] == pool["browserType"]]
        figures = (pool["wanted"], pool["available"], pool.get("spare", 0), pool["starting"], pool["draining"])
        sessions = sum(worker["active"] or 0 for worker in mine)
        pools.append((pool["browserType"], *map(str, figures), str(sessions), str(pool["slots"]), _remark(pool)))
    workers: list[tuple[str, ...]] = [("WORKER", "TYPE", "PID", "STATUS", "SESSIONS", "LIFETIME", "MEMORY", "")]
    for worker in found["workers"]:
        size = worker["rssMib"] if worker["memoryMib"] is None else worker["memoryMib"]
        memory = "-" if size is None else f"{size} MiB"
        used = f"{worker['active'] or 0}/{worker['slots']}"
        row = (
            worker["id"],
            worker["browserType"],
            str(worker["pid"]),
            worker["status"],
            used,
            str(worker["lifetime"] or 0),
        )
        left = "" if worker["drainLeftS"] is None else f" ({worker['drainLeftS']:.0f} s left)"
        workers.append((*row, memory, (worker["reason"] or "") + left))
    return "\n".join([*lines, "", *_columns(pools), "", *_columns(workers)])


def read_scale(pools: Sequence[str]) -> dict[str, int]:
    """`chromium=4` and the like. Raises GridError for what is not that."""
    figures = {}
    for text in pools:
        name, equals, workers = text.partition("=")
        if not equals or not workers.isdecimal():
            raise GridError(f"{text!r} is not POOL=N, for example chromium=4")
        figures[name] = int(workers)
    return figures


def sessions(grid: RunningGrid, status: str | None, limit: int) -> list[dict[str, Any]]:
    """The latest sessions, the newest first, as the API shows them. Raises RegistryUnavailable."""
    from pwgrid.registry.blocking import latest_sessions

    url, prefix = _redis(grid)
    return [session.as_json() for session in latest_sessions(url, prefix, status=status, limit=limit)]


def sessions_table(found: list[dict[str, Any]]) -> str:
    """The sessions for people."""
    rows: list[tuple[str, ...]] = [("SESSION", "TYPE", "WORKER", "STATUS", "BEGAN", "LASTED", "CLIENT", "REASON")]
    for session in found:
        began = datetime.fromtimestamp(session["createdAt"]).astimezone().isoformat(" ", "seconds")[:19]
        lasted_s = (session["endedAt"] or time.time()) - session["createdAt"]
        who = (session["id"], session["browserType"], session["workerId"], session["status"])
        rows.append((*who, began, f"{lasted_s:.1f} s", session["client"], session["reason"] or ""))
    return "\n".join(_columns(rows))


def redis_cli(grid: RunningGrid, arguments: tuple[str, ...]) -> NoReturn:
    """Becomes redis-cli on the grid's Redis."""
    from pwgrid.registry.embedded import find_redis_cli
    from pwgrid.registry.redis_address import parse_url

    url = ask(grid, "redis")["url"]
    binary = find_redis_cli()
    address = parse_url(url)
    where = ["-s", address.unix_path] if address.unix_path else ["-h", address.host, "-p", str(address.port)]
    where += ["-n", str(address.database)] if address.database else []
    where += ["--tls"] if address.tls else []
    where += ["--user", address.username] if address.username else []
    secret = {"REDISCLI_AUTH": address.password} if address.password else {}  # not an argument: ps shows those
    os.execve(binary, [str(binary), *where, *arguments], {**os.environ, **secret})


def _redis(grid: RunningGrid) -> tuple[str, str]:
    """Where the registry is, password and all, and the prefix of its keys."""
    found = ask(grid, "redis")
    return found["url"], found["prefix"]


def _remark(pool: dict[str, Any]) -> str:
    timeouts = pool["drainTimeouts"]
    return "; ".join(filter(None, (pool["reason"], f"{timeouts} drains timed out" if timeouts else None)))


def _problem(error: str | None) -> str:
    return f"  ({error})" if error else ""


def _columns(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
