"""The tables of `pwgrid status` and `pwgrid sessions`: as wide as the terminal, elsewhere as wide as they need."""

import sys
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from pwgrid.cli.output import clock, one_line

_UNBOUNDED: Final = 10_000
_NARROW: Final = 80


def status_text(found: dict[str, Any]) -> str:
    """A grid, its pools and its workers, from its status; of one whose master is gone, its living processes."""
    if not found["master"]:
        return _without_master_text(found)
    is_ready = found["ready"]
    state = "stopping" if found["stopping"] else "serving" if is_ready else "not ready"
    lines = [f"{found['endpoint']}  {state}  master {found['master']['pid']}  proxy {found['proxy']['pid']}"]
    redis = found["redis"]
    lines.append(
        f"redis {redis['url']}" + (f"  pid {redis['pid']}" if redis["pid"] else "") + _problem(redis.get("error"))
    )
    host = found["host"]
    lines.append(f"host {host['availableMib']} MiB available" + _problem(host["guard"]))
    lines += [] if is_ready else [f"NOT READY: {found['reason']}"]
    lines += [f"PROBLEM: {problem}" for problem in found["problems"]]
    pools = [_pool_row(pool, found["workers"]) for pool in found["pools"]]
    head = ("POOL", "WANTED", "AVAILABLE", "SPARE", "STARTING", "DRAINING", "SESSIONS", "SLOTS", "")
    waiting = [(each["pool"], each["run"], each["token"], each["waiting"]) for each in found["waitingByRun"]]
    line = ["", table(("WAITING FOR", "RUN", "TOKEN", "CLIENTS"), waiting)] if waiting else []
    workers = [_worker_row(worker) for worker in found["workers"]]
    memory = f"MEMORY ({host['memoryMetric'].upper()})"
    worker_head = ("WORKER", "POOL", "PID", "STATUS", "SESSIONS", "LIFETIME", memory, "")
    runs = [[run[what] for what in ("name", "run", "labels", "slots")] for run in found["runs"]]
    line += ["", table(("NAME", "RUN", "LABELS", "SLOTS"), runs)] if runs else []
    return "\n".join([*map(one_line, lines), "", table(head, pools), *line, "", table(worker_head, workers)])


def _without_master_text(found: dict[str, Any]) -> str:
    rows = [(each["kind"], each["name"] if each["kind"] == "worker" else "", each["pid"]) for each in found["children"]]
    line = f"{found['endpoint']}  no master  {found['reason']}"
    return "\n".join([one_line(line), "", table(("PROCESS", "WORKER", "PID"), rows)])


def _pool_row(pool: dict[str, Any], workers: Sequence[dict[str, Any]]) -> tuple[object, ...]:
    name = pool["name"]
    sessions = sum(worker["active"] or 0 for worker in workers if worker["pool"] == name)
    timeouts = pool["drainTimeouts"]
    labels, removed = ", ".join(pool["labels"]), "removed" if pool["removed"] else None
    remarks = (removed, pool["reason"], f"{timeouts} drains timed out" if timeouts else None, labels)
    figures = (pool["wanted"], pool["available"], pool["spare"], pool["starting"], pool["draining"])
    return (name, *figures, sessions, pool["slots"], "; ".join(filter(None, remarks)))


def _worker_row(worker: dict[str, Any]) -> tuple[object, ...]:
    size = worker["memoryMib"]  # by the metric of the limits; None until that is read, since RSS is another figure
    left = "" if worker["drainLeftS"] is None else f" ({worker['drainLeftS']:.0f} s left)"
    return (
        worker["id"],
        worker["pool"],
        worker["pid"],
        worker["status"],
        f"{worker['active'] or 0}/{worker['slots']}",
        worker["lifetime"] or 0,
        "-" if size is None else f"{size} MiB",
        (worker["reason"] or "") + left,
    )


def sessions_text(found: Sequence[dict[str, Any]]) -> str:
    """Sessions, as the API shows them."""
    rows = []
    for session in found:
        began = datetime.fromtimestamp(session["createdAt"]).astimezone().isoformat(" ", "seconds")[:19]
        lasted_s = (session["endedAt"] or time.time()) - session["createdAt"]
        who = (session["id"], session["pool"], session["workerId"], session["status"])
        remarks = [session["reason"]] if session["reason"] else []
        if ignored := session.get("ignoredOptions"):
            remarks.append(f"launch options ignored: {', '.join(ignored)}")
        if session.get("viewedAt"):
            remarks.append("looked at by an operator")
        remarks += [f"{what} {said}" for what in ("name", "run", "labels", "lease") if (said := session.get(what))]
        client = session["client"] + (f" ({session['token']})" if session.get("token") else "")
        rows.append((*who, began, f"{lasted_s:.1f} s", client, "; ".join(remarks)))
    head = ("SESSION", "POOL", "WORKER", "STATUS", "BEGAN", "LASTED", "CLIENT", "REASON")
    return table(head, rows)


def tokens_text(found: Sequence[Mapping[str, Any]]) -> str:
    """Tokens, as `pwgrid token list` shows them."""
    rows = []
    for token in found:
        created = datetime.fromtimestamp(token["createdAt"]).astimezone().isoformat(" ", "seconds")[:19]
        limits = (token["maxSessions"] or "any", ", ".join(token["pools"]) or "all")
        rows.append((token["name"], token["role"], *limits, created, f"pwg_{token['id']}_…"))
    return table(("NAME", "ROLE", "SESSIONS", "POOLS", "CREATED", "TOKEN"), rows)


_MAY_WRAP: Final = ("BEGAN", "CLIENT", "REASON", "RUN", "TOKEN", "LABELS", "")


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Rows under a head: as wide as the terminal, elsewhere as wide as they need."""
    console = Console(markup=False, emoji=False, highlight=False)
    if not sys.stdout.isatty():  # rich takes a pipe for a terminal, too, where FORCE_COLOR is set
        console.width = _UNBOUNDED
    gap = 1 if console.width <= _NARROW else 2
    drawn = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0), header_style="bold")
    for name in head:
        drawn.add_column(name, no_wrap=name not in _MAY_WRAP, overflow="fold")
    for row in rows:
        drawn.add_row(*(one_line(str(each)) for each in row))
    with console.capture() as captured:
        console.print(drawn)
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


def _problem(error: str | None) -> str:
    return f"  ({error})" if error else ""


def session_line(session: dict[str, Any]) -> str:
    """The last change of a session, in one line."""
    at = session["endedAt"] or session["startedAt"] or session["createdAt"]
    lasted = "" if session["endedAt"] is None else f"after {session['endedAt'] - session['createdAt']:.1f} s"
    who = (session["id"], session["pool"], session["workerId"], session["client"], session.get("name"))
    parts = (clock(at), f"{session['status']:9}", *who, lasted, session["reason"])
    return "  ".join(one_line(str(part)) for part in parts if part)
