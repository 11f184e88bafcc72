"""`pwgrid status`: the pools and workers, sessions and memory of a grid, once or again and again."""

import contextlib
import sys
import time
from collections import Counter
from typing import Any, NoReturn, TypeVar

import click

from pwgrid.cli import ask_grid, exit_codes, output
from pwgrid.cli.options import GRID_OPTIONS, with_json, with_options
from pwgrid.cli.output import clock, compact, one_line, table
from pwgrid.common.errors import GridError, NoGridError
from pwgrid.common.types import Isolation
from pwgrid.common.wording import counted
from pwgrid.runtime.find_grids import GridWithoutMaster

Found = dict[str, Any]
Cell = TypeVar("Cell")


@click.command()
@with_options(GRID_OPTIONS)
@click.option(
    *("--watch", "every_s"),
    type=click.FloatRange(min=0.1),
    is_flag=False,
    flag_value=2.0,
    metavar="[S]",
    help="Show it again every S seconds (without S: 2), until Ctrl-C; with --json one object a line.",
)
@with_json
def status(port: int | None, runtime_dir: str | None, every_s: float | None, as_json: bool) -> None:
    """Shows the pools and workers, sessions and memory of a grid.

    Where several hosts are one grid, those of all of them; all else, and the exit code, is of this one.

    The exit code is 0 when it is healthy, 3 when it is degraded (not ready, a pool short of workers for a reason, Redis
    away or taking no writes, another problem), 4 when none is running, 1 when it does not answer.
    """
    if every_s is not None:
        _watch(port, runtime_dir, every_s, as_json=as_json)
    try:
        found = _statuses(port, runtime_dir)
    except NoGridError as none:
        raise GridError(none.sentence, exit_codes.NONE_RUNNING) from None
    for each in found:
        click.echo(output.as_json(each) if as_json else status_text(each))
    sys.exit(max(map(exit_code, found)))


def exit_code(found: Found) -> int:
    """HEALTHY or DEGRADED, for a grid with this status."""
    is_healthy = found["ready"] and not (
        found["problems"] or found["redis"].get("error") or any(pool["reason"] for pool in found["pools"])
    )
    return exit_codes.HEALTHY if is_healthy else exit_codes.DEGRADED


def _statuses(port: int | None, runtime_dir: str | None) -> list[Found]:
    """The status of the grid that is meant, or of all those whose master is gone. Raises GridError, NoGridError."""
    try:
        return [ask_grid.status(ask_grid.find_grid(port, runtime_dir))]
    except ask_grid.WithoutMasterError as error:
        return [_without_master(grid) for grid in error.left]


def _without_master(grid: GridWithoutMaster) -> Found:
    """The status of a grid without a master, from its files and its living processes."""
    children = [{"kind": each.kind, "name": each.name, "pid": each.pid} for each in grid.children]
    times = (None, None) if grid.lock.detached_at is None else (grid.refuses_at, grid.ends_at)
    return {
        "endpoint": grid.lock.endpoint,
        "ready": False,
        "reason": ask_grid.without_master_text(grid),
        "master": None,
        "pools": [],  # unknown without a master
        "workers": [],
        "detachedAt": grid.lock.detached_at,
        "refusesAt": times[0],
        "endsAt": times[1],
        "children": children,
    }


def _watch(port: int | None, runtime_dir: str | None, every_s: float, *, as_json: bool) -> NoReturn:
    """Shows the status again every `every_s` seconds, also while there is no grid; until Ctrl-C."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console()
    screen = Live(console=console, screen=True, auto_refresh=False, vertical_overflow="crop")
    with screen if output.is_live(console) and not as_json else contextlib.nullcontext() as live:
        while True:
            try:
                found: list[Found] | GridError = _statuses(port, runtime_dir)
            except GridError as error:
                found = error
            if live is not None:
                text = f"{clock()}  every {every_s:g} s, Ctrl-C ends it\n\n{_text(found)}"
                live.update(Text.from_ansi(text, no_wrap=True, overflow="crop"), refresh=True)
            elif not as_json:
                click.echo(f"{clock()}\n{_text(found)}\n")
            else:
                lines = [{"error": str(found)}] if isinstance(found, GridError) else found
                click.echo("\n".join(map(compact, lines)))
            time.sleep(every_s)  # noqa: TID251 - a period that the user has given


def _text(found: list[Found] | GridError) -> str:
    return output.printable(str(found)) if isinstance(found, GridError) else "\n".join(map(status_text, found))


def status_text(found: Found) -> str:
    """A grid, its pools and its workers, from its status; of one whose master is gone, its living processes."""
    if not found["master"]:
        return _without_master_text(found)
    is_ready = found["ready"]
    state = "stopping" if found["stopping"] else "serving" if is_ready else "not ready"
    lines = [f"{found['endpoint']}  {state}  master {found['master']['pid']}  proxy {found['proxy']['pid']}"]
    if (forwarder := found.get("forwarder")) is not None:  # an older master tells of none
        pid = forwarder["pid"] or "starting"
        lines.append(f"forwarder {pid}  {counted(forwarder['sessions'], 'session')} on other hosts")
    if (tls := found.get("tls")) is not None:
        lines.append(f"tls {tls['pid'] or 'starting'}  {_tls_text(tls)}" + _problem(tls["problem"]))
    redis = found["redis"]
    lines.append(
        f"redis {redis['url']}" + (f"  pid {redis['pid']}" if redis["pid"] else "") + _problem(redis.get("error"))
    )
    host = found["host"]
    lines.append(f"host {host['availableMib']} MiB available" + _problem(host["guard"]))
    lines += [] if is_ready else [f"NOT READY: {found['reason']}"]
    lines += [f"PROBLEM: {problem}" for problem in found["problems"]]
    waiting = [(each["pool"], each["run"], each["token"], each["waiting"]) for each in found["waitingByRun"]]
    line = ["", table(("WAITING FOR", "RUN", "TOKEN", "CLIENTS"), waiting)] if waiting else []
    runs = [[run[what] for what in ("name", "run", "labels", "slots")] for run in found["runs"]]
    line += ["", table(("NAME", "RUN", "LABELS", "SLOTS"), runs)] if runs else []
    line += _hosts(found.get("hosts", []))
    return "\n".join([*map(one_line, lines), "", _pools(found), *line, "", _workers(found)])


def _tls_text(tls: Found) -> str:
    """Where clients' TLS is: those in the kernel are no sessions of the TLS process. An older master does not tell."""
    copied = counted(tls["sessions"], "session")
    if kernel := tls.get("kernel"):
        return f"in the kernel, up to {kernel}" + (f"; {copied} copied" if tls["sessions"] else "")
    return copied + (f", not in the kernel: {why}" if (why := tls.get("whyNotKernel")) else "")


def _pools(found: Found) -> str:
    """The table of pools: this host's, and behind them those of each other one."""
    others = found.get("otherHosts", [])
    head = ("POOL", "WANTED", "AVAILABLE", "SPARE", "STARTING", "DRAINING", "SESSIONS", "SLOTS", "")
    own = {"name": found["host"].get("name", ""), "pools": found["pools"], "workers": found["workers"]}
    shown = [own, *others]
    has_several = len({pool.get("playwright") for each in shown for pool in each["pools"]}) > 1
    rows = []
    for each in shown:
        sessions = Counter[str]()
        for worker in each["workers"]:
            sessions[worker["pool"]] += worker["active"] or 0
        for pool in each["pools"]:
            row = _pool_row(pool, sessions[pool["name"]], with_version=has_several)
            rows.append(_with_host(row, each["name"]) if others else row)
    return table(_with_host(head, "HOST") if others else head, rows)


def _workers(found: Found) -> str:
    """The table of workers, in the same order. Of other hosts' ones the memory is not known."""
    others = found.get("otherHosts", [])
    memory = f"MEMORY ({found['host']['memoryMetric'].upper()})"
    head = ("WORKER", "POOL", "PID", "STATUS", "SESSIONS", "LIFETIME", memory, "")
    elsewhere = [{**worker, "memoryMib": None} for each in others for worker in each["workers"]]
    shown = [*found["workers"], *elsewhere]
    differ = len({worker.get("playwrightVersion") for worker in shown} - {None}) > 1
    rows = [_worker_row(worker, with_version=differ) for worker in shown]
    if not others:
        return table(head, rows)
    names = [worker.get("host") or found["host"].get("name", "") for worker in shown]
    with_hosts = [_with_host(row, name) for row, name in zip(rows, names, strict=True)]
    return table(_with_host(head, "HOST"), with_hosts)


def _with_host(row: tuple[Cell, ...], host: str) -> tuple[Cell | str, ...]:
    """The row with its host before the last column, which is for remarks."""
    return (*row[:-1], host, row[-1])


def _hosts(hosts: list[Found]) -> list[str]:
    """The lines for the hosts that form one grid; none for a host that stands alone."""
    head = ("HOST", "STATE", "VERSION", "WORKERS", "SESSIONS", "SLOTS", "WAITING")
    fields = ("name", "state", "version", "workers", "busy", "slots", "waiting")
    return ["", table(head, [tuple(each[field] for field in fields) for each in hosts])] if hosts else []


def _without_master_text(found: Found) -> str:
    rows = [(each["kind"], each["name"] if each["kind"] == "worker" else "", each["pid"]) for each in found["children"]]
    line = f"{found['endpoint']}  no master  {found['reason']}"
    return "\n".join([one_line(line), "", table(("PROCESS", "WORKER", "PID"), rows)])


def _pool_row(pool: Found, sessions: int, *, with_version: bool) -> tuple[object, ...]:
    timeouts = pool["drainTimeouts"]
    labels, removed = ", ".join(pool["labels"]), "removed" if pool["removed"] else None
    isolation = pool.get("isolation", Isolation.CONTEXT)
    isolated = None if isolation == Isolation.CONTEXT else f"isolation {isolation}"
    version = f"Playwright {pool.get('playwright')}" if with_version else None
    on_demand = "on demand" if pool.get("onDemand") else None
    remarks = (
        removed,
        version,
        on_demand,
        isolated,
        pool["reason"],
        f"{timeouts} drains timed out" if timeouts else None,
        labels,
    )
    figures = (pool["wanted"], pool["available"], pool["spare"], pool["starting"], pool["draining"])
    return (pool["name"], *figures, sessions, pool["slots"], "; ".join(filter(None, remarks)))


def _worker_row(worker: Found, *, with_version: bool) -> tuple[object, ...]:
    size = worker["memoryMib"]  # by the metric of the limits; None until that is read, since RSS is another figure
    left = "" if worker["drainLeftS"] is None else f" ({worker['drainLeftS']:.0f} s left)"
    state = (worker["reason"] or worker.get("suspect") or "") + left + _kept(worker.get("kept", 0))
    launched = counted(launches, "own browser") if (launches := worker.get("launches", 0)) else ""
    return (
        worker["id"],
        worker["pool"],
        worker["pid"] or "-",
        worker["status"],
        f"{worker['active'] or 0}/{worker['slots'] or '-'}",
        worker["lifetime"] or 0,
        "-" if size is None else f"{size} MiB",
        "; ".join(filter(None, (_version(worker) if with_version else "", launched, state))),
    )


def _version(worker: Found) -> str:
    """The Playwright that it runs, which is another one than its pool's until it is replaced."""
    version = worker.get("playwrightVersion")
    return f"Playwright {version}" if version else ""


def _kept(sessions: int) -> str:
    return f" ({sessions} kept without a client)" if sessions else ""


def _problem(error: str | None) -> str:
    return f"  ({error})" if error else ""
