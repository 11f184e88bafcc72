"""Draws a grid for `pwgrid top`, as lines of text of a given width and height."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

from rich.cells import set_cell_size
from rich.text import Text

from pwgrid.cli.output import clock, one_line
from pwgrid.cli.top.key_actions import Mode, Pane, Rows, State, chosen
from pwgrid.cli.top.snapshot import Event, Found, Snapshot
from pwgrid.common.types import Isolation
from pwgrid.common.worker_lifecycle import WorkerStatus

HELP: Final = """\
Tab, Shift-Tab     go to another table: pools, workers, sessions
Up Down j k        choose a row; PgUp PgDn Home End
d                  drain the chosen worker, or every worker of the chosen pool
                   (one that drains already: end its sessions now); asks first
e                  end the chosen session; asks first
/                  show only workers, sessions and events that contain a text;
                   Esc shows all
q, Ctrl-C          quit

SESS     live sessions of the worker / its slots
LIFE     sessions that it has had / number after which it is recycled
MEMORY   MiB of the worker with its browser / MiB above which it is recycled
WAIT     clients that wait for a slot

Any key goes back."""

_FEWEST_ROWS: Final = 2
_EVENTS: Final = 4


@dataclass(frozen=True, slots=True)
class _Column:
    """A column of a table. Columns with `width` 0 share the width that is left."""

    head: str
    width: int
    is_right: bool = False


_POOL: Final = (
    *(_Column("POOL", 0), _Column("WANTED", 6, True), _Column("AVAIL", 5, True), _Column("SPARE", 5, True)),
    *(_Column("START", 5, True), _Column("DRAIN", 5, True), _Column("WAIT", 5, True), _Column("SESSIONS/SLOTS", 24)),
)
_HOST: Final = "HOST"
"""The head of a column that is there where several hosts are one grid, as wide as their names."""

_WORKER: Final = (
    *(_Column("WORKER", 8), _Column("POOL", 10), _Column(_HOST, 0), _Column("STATUS", 9), _Column("SESS", 6, True)),
    *(_Column("LIFE", 8, True), _Column("MEMORY", 10, True), _Column("AGE", 6, True), _Column("WHY", 0)),
)
_SESSION: Final = (
    *(_Column("SESSION", 16), _Column("POOL", 10), _Column("WORKER", 8), _Column(_HOST, 0), _Column("STATUS", 8)),
    *(_Column("AGE", 6, True), _Column("ISOLATED", 8), _Column("CLIENT", 0), _Column("NAME", 0)),
)


_OPTIONAL: Final = frozenset({"ISOLATED", "NAME", _HOST})


def draw(snapshot: Snapshot, there: Rows, state: State, width: int, height: int) -> list[Text]:
    """Exactly `height` lines, none wider than `width`."""
    if state.mode is Mode.HELP:
        return _fitted([Text(line) for line in HELP.splitlines()], Text("any key goes back", "dim"), width, height)
    head = list(_head(snapshot, there, width))
    room = height - len(head) - 1
    sizes = _sizes(room, {pane: len(there.ids(pane)) for pane in Pane})
    lines = head
    for table in _tables(snapshot, there):
        if sizes[table.pane]:
            at = chosen(state, there, table.pane)
            lines += _table(table, at, width, sizes[table.pane], is_current=state.pane is table.pane)
    lines += _events(there.events, width, room - sum(sizes.values()))
    return _fitted(lines, _foot(state), width, height)


def _head(snapshot: Snapshot, there: Rows, width: int) -> Iterator[Text]:
    status = snapshot.status
    now = clock(snapshot.at)
    if snapshot.problem:
        yield Text(one_line(snapshot.problem), "bold red")
    if not status:
        return
    is_ready = status["ready"]
    what = "stopping" if status["stopping"] else "serving" if is_ready else "not ready"
    left = one_line(f"{status['endpoint']}  {what}  up {_age(snapshot.at - status['master']['startedAt'])}")
    yield Text(set_cell_size(left, max(0, width - len(now) - 1)) + " " + now, "bold" if is_ready else "bold red")
    slots = sum(pool["slots"] for pool in there.pools)
    busy = sum(worker["active"] or 0 for worker in status["workers"])
    waiting = status["waiting"]
    memory = sum(worker["memoryMib"] or 0 for worker in status["workers"])
    host = status["host"]
    least = f" (min {host['minAvailableMib']})" if host["minAvailableMib"] else ""
    yield Text(
        f"sessions {busy}/{slots} {_bar(busy, slots, 8)}  waiting {waiting}  "
        f"memory {memory} MiB, free {host['availableMib']}{least}"
    )
    if runs := list(_runs(status)):
        yield Text(one_line(f"waiting by run: {', '.join(runs)}"))
    for problem in (status["reason"], host["guard"], status["redis"].get("error"), *status["problems"]):
        if problem:
            yield Text(one_line(problem), "red")


def _runs(status: Found) -> Iterator[str]:
    """How many clients wait for each run and token, in the order of their turns; without those that have neither."""
    for line in status["waitingByRun"]:
        run, token = line["run"], line["token"]
        if run or token:
            yield f"{run or 'no run'}{f' ({token})' if token else ''} {line['waiting']}"


@dataclass(frozen=True, slots=True)
class _Table:
    pane: Pane
    columns: Sequence[_Column]
    cells: Sequence[Sequence[object]]
    styles: Sequence[str]


def _tables(snapshot: Snapshot, there: Rows) -> Iterator[_Table]:
    pools = [_pool(pool, snapshot.status) for pool in there.pools]
    yield _Table(Pane.POOLS, _POOL, pools, ["red" if pool["reason"] else "" for pool in there.pools])
    hosts = snapshot.status.get("hostNames", ())
    workers = [_worker(worker, snapshot) for worker in there.workers]
    styles = [_STYLES.get(worker["status"], "") for worker in there.workers]
    yield _Table(Pane.WORKERS, *_filled(_WORKER, workers, hosts), styles)
    sessions = [_session(session, snapshot.at) for session in there.sessions]
    yield _Table(Pane.SESSIONS, *_filled(_SESSION, sessions, hosts), [""] * len(sessions))


def _filled(
    columns: Sequence[_Column], cells: Sequence[Sequence[object]], hosts: Sequence[str]
) -> tuple[list[_Column], list[list[object]]]:
    """The columns and cells without columns that are empty throughout, for longer addresses of clients; that of hosts
    is there if there are several."""
    left = [
        index
        for index, column in enumerate(columns)
        if column.head not in _OPTIONAL or (hosts if column.head == _HOST else any(row[index] for row in cells))
    ]
    width = max(map(len, hosts), default=0)
    shown = [replace(columns[each], width=width) if columns[each].head == _HOST else columns[each] for each in left]
    return shown, [[row[each] for each in left] for row in cells]


_STYLES: Final = {WorkerStatus.STARTING: "cyan", WorkerStatus.SPARE: "cyan", WorkerStatus.DRAINING: "yellow"}


def _pool(pool: Found, status: Found) -> tuple[object, ...]:
    name = pool["name"]
    active = sum(worker["active"] or 0 for worker in status["workers"] if worker["pool"] == name)
    figures = (pool["wanted"], pool["available"], pool["spare"], pool["starting"], pool["draining"])
    waiting = sum(line["waiting"] for line in status["waitingByRun"] if line["pool"] == name)
    share = f"{active}/{pool['slots']}"
    isolation = pool.get("isolation", Isolation.CONTEXT)
    version = pool.get("playwright") if len({each.get("playwright") for each in status["pools"]}) > 1 else None
    is_shared = isolation == Isolation.CONTEXT
    # The name of a pool that no configuration has says its version already.
    kind = ", ".join(filter(None, (None if is_shared else isolation, None if pool.get("like") else version)))
    shown = f"{name} ({kind})" if kind else name
    return (shown, *figures, waiting, pool["reason"] or f"{share:>9} {_bar(active, pool['slots'], 12)}")


def _worker(worker: Found, snapshot: Snapshot) -> tuple[object, ...]:
    left = "" if worker["drainLeftS"] is None else f"{_age(worker['drainLeftS'])} left "
    pool = next(pool for pool in snapshot.status["pools"] if pool["name"] == worker["pool"])
    return (
        worker["id"],
        worker["pool"],
        worker.get("host", ""),
        worker["status"],
        f"{worker['active'] or 0}/{worker['slots']}",
        _of(worker["lifetime"] or 0, pool["lifetimeOfWorker"]),
        "-" if worker["memoryMib"] is None else _of(worker["memoryMib"], pool["memoryLimitMib"]),
        _age(snapshot.at - worker["startedAt"]),
        left + (worker["reason"] or worker.get("suspect") or ""),
    )


def _session(session: Found, now: float) -> tuple[object, ...]:
    where = (session["id"], session["pool"], session["workerId"], session.get("host") or "")
    who = (*where, "kept" if session.get("kept") else session["status"])
    isolation = session.get("isolation", Isolation.CONTEXT)
    isolated = "" if isolation == Isolation.CONTEXT else isolation
    return (*who, _age(now - session["createdAt"]), isolated, session["client"], session.get("name") or "")


def _table(table: _Table, at: int | None, width: int, height: int, *, is_current: bool) -> Iterator[Text]:
    """The head and as many rows as fit, among them the chosen one (index `at`)."""
    yield _row([column.head for column in table.columns], table, width, "bold reverse" if is_current else "bold")
    visible = height - 1
    first = 0 if at is None else min(max(0, at - visible + 1), max(0, len(table.cells) - visible))
    for index in range(first, min(first + visible, len(table.cells))):
        style = table.styles[index] + (" reverse" if is_current and index == at else "")
        yield _row(table.cells[index], table, width, style)


def _row(cells: Sequence[object], table: _Table, width: int, style: str) -> Text:
    fixed = sum(column.width for column in table.columns) + len(table.columns) - 1
    shared = [column for column in table.columns if not column.width]
    rest = max(1, (width - fixed) // len(shared)) if shared else 0
    texts = []
    for cell, column in zip(cells, table.columns, strict=True):
        size = column.width or rest
        text = one_line(str(cell))
        texts.append(set_cell_size(text.rjust(size) if column.is_right else text, size))
    return Text(set_cell_size(" ".join(texts), width), style.strip())


def _events(events: Sequence[Event], width: int, height: int) -> Iterator[Text]:
    if height < 2:
        return
    yield Text(set_cell_size("EVENTS", width), "bold")
    for event in events[-(height - 1) :]:
        yield Text(f"{clock(event.at)} {one_line(event.text)}", "red" if event.is_bad else "")


def _foot(state: State) -> Text:
    if state.mode is Mode.CONFIRM and state.asked is not None:
        return Text(f"{one_line(state.asked.question)}  y: yes, any other key: no", "bold yellow")
    if state.mode is Mode.FILTER:
        return Text(f"filter: {one_line(state.filter)}_   Enter: keep it, Esc: show all", "bold")
    if state.message:
        return Text(one_line(state.message), "bold yellow")
    filtered = f"filter: {one_line(state.filter)}  " if state.filter else ""
    return Text(f"{filtered}Tab table  Up/Down row  d drain  e end  / filter  ? help  q quit", "dim")


def _sizes(room: int, rows: Mapping[Pane, int]) -> dict[Pane, int]:
    """How many lines each table gets, its head included: what it needs, or a fair share where there are too few."""
    wanted = {pane: 1 + count for pane, count in rows.items()}
    left = max(0, room - _EVENTS)
    sizes: dict[Pane, int] = {}
    for position, pane in enumerate(sorted(wanted, key=lambda pane: wanted[pane])):
        share = left // (len(wanted) - position)
        sizes[pane] = min(wanted[pane], share)
        left -= sizes[pane]
    return {pane: size if size >= _FEWEST_ROWS or size == wanted[pane] else 0 for pane, size in sizes.items()}


def _fitted(lines: Sequence[Text], foot: Text, width: int, height: int) -> list[Text]:
    shown = [*lines[: height - 1], *[Text("")] * max(0, height - 1 - len(lines)), foot]
    for line in shown:
        line.truncate(width)
    return shown


def _of(value: float, limit: float | None) -> str:
    return f"{value:g}/{limit:g}" if limit else f"{value:g}"


def _bar(value: float, most: float, width: int) -> str:
    full = min(width, math.ceil(width * value / most)) if most else 0
    return f"[{'|' * full}{'.' * (width - full)}]"


_UNITS: Final = (("d", 86400), ("h", 3600), ("m", 60), ("s", 1))


def _age(seconds: float) -> str:
    """The duration in at most six characters, up to 27 years."""
    whole = max(0, int(seconds))
    for (unit, size), (small_unit, small_size) in pairwise(_UNITS):
        if whole >= size:
            text, rest = f"{whole // size}{unit}", f"{whole % size // small_size:02}{small_unit}"
            return text + rest if len(text + rest) <= len("99d23h") else text
    return f"{whole}s"
