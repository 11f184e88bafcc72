"""Decides what a key means in `pwgrid top`: another row, a filter, a request to the master."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final

from pwgrid.cli.top.snapshot import Event, Found, Snapshot
from pwgrid.common.wording import counted
from pwgrid.common.worker_lifecycle import WorkerStatus


class Pane(StrEnum):
    """A table, in the order of the screen."""

    POOLS = "pools"
    WORKERS = "workers"
    SESSIONS = "sessions"


class Mode(StrEnum):
    """What keys are for at the moment."""

    TABLES = "tables"
    FILTER = "filter"  # keys are the filter's text
    CONFIRM = "confirm"  # y sends the request, any other key drops it
    HELP = "help"  # any key goes back to the tables
    QUIT = "quit"  # top ends


@dataclass(frozen=True, slots=True)
class Request:
    """A request to the masters of `hosts` (none: of the only one), and the question to the user before it is sent."""

    name: str
    data: Mapping[str, Any]
    question: str
    hosts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of each table that pass the filter."""

    pools: Sequence[Found]
    workers: Sequence[Found]
    sessions: Sequence[Found]
    events: Sequence[Event]

    def ids(self, pane: Pane) -> list[str]:
        """The id of each row of a pane."""
        if pane is Pane.POOLS:
            return [pool["name"] for pool in self.pools]
        return [row["id"] for row in (self.workers if pane is Pane.WORKERS else self.sessions)]


@dataclass(frozen=True, slots=True)
class State:
    """What the user has chosen so far: `chosen` has a row's id for each pane, `asked` the request to confirm."""

    pane: Pane = Pane.SESSIONS
    chosen: Mapping[Pane, str] = field(default_factory=dict)
    filter: str = ""
    mode: Mode = Mode.TABLES
    asked: Request | None = None
    message: str = ""


def rows(snapshot: Snapshot, events: Sequence[Event], wanted: str) -> Rows:
    """Every pool, and the workers, sessions and events that contain the text `wanted`, whatever its case."""
    needle = wanted.casefold()
    status = snapshot.status
    return Rows(
        pools=status.get("pools", ()),
        workers=[each for each in status.get("workers", ()) if _has(each, needle)],
        sessions=[each for each in snapshot.sessions if _has(each, needle)],
        events=[each for each in events if needle in each.text.casefold()],
    )


def chosen(state: State, there: Rows, pane: Pane) -> int | None:
    """The index of a pane's chosen row: the first one where none was chosen or it is gone; None without rows."""
    ids = there.ids(pane)
    if not ids:
        return None
    last = state.chosen.get(pane)
    return ids.index(last) if last in ids else 0


def press(state: State, key: str, there: Rows) -> tuple[State, Request | None]:
    """The state after a key, and a request to send, or None."""
    if state.mode is Mode.FILTER:
        return _filter(state, key), None
    if state.mode is Mode.CONFIRM:
        answered = replace(state, mode=Mode.TABLES, asked=None)
        return (answered, state.asked) if key in ("y", "Y") else (replace(answered, message="nothing was done"), None)
    if state.mode is Mode.HELP:
        return replace(state, mode=Mode.TABLES), None
    state = replace(state, message="")
    if key in _MOVES:
        return _move(state, _MOVES[key], there), None
    action = _KEYS.get(key)
    return (action(state, there) if action else state), None


def _filter(state: State, key: str) -> State:
    if key == "enter":
        return replace(state, mode=Mode.TABLES)
    if key == "escape":
        return replace(state, mode=Mode.TABLES, filter="")
    if key == "backspace":
        return replace(state, filter=state.filter[:-1])
    return replace(state, filter=state.filter + key) if len(key) == 1 else state


_END: Final = 1_000_000
_MOVES: Final = {
    **{"up": -1, "k": -1, "down": 1, "j": 1, "pageup": -10, "pagedown": 10},
    **{"home": -_END, "g": -_END, "end": _END, "G": _END},
}


def _move(state: State, by: int, there: Rows) -> State:
    at = chosen(state, there, state.pane)
    if at is None:
        return state
    ids = there.ids(state.pane)
    to = min(max(at + by, 0), len(ids) - 1)
    return replace(state, chosen={**state.chosen, state.pane: ids[to]})


def _next_pane(by: int) -> Callable[[State, Rows], State]:
    panes = list(Pane)
    return lambda state, _there: replace(state, pane=panes[(panes.index(state.pane) + by) % len(panes)])


def _ask_drain(state: State, there: Rows) -> State:
    at = chosen(state, there, state.pane)
    if at is None or state.pane is Pane.SESSIONS:
        return replace(state, message="choose a pool or a worker to drain: Tab goes to their tables")
    if state.pane is Pane.POOLS:
        name, hosts = there.pools[at]["name"], tuple(there.pools[at].get("hosts", ()))
        on = f" on {counted(len(hosts), 'host')}" if len(hosts) > 1 else ""
        return _confirm(state, "drain", {"pool": name}, f"drain every worker of pool {name}{on}?", hosts)
    worker = there.workers[at]
    hosts = _host_of(worker)
    sessions = counted(worker["active"] or 0, "session")
    if worker["status"] == WorkerStatus.DRAINING:
        question = f"{worker['id']} drains already: end its {sessions} now?"
        return _confirm(state, "drain", {"worker": worker["id"], "now": True}, question, hosts)
    question = f"drain worker {worker['id']} of {worker['pool']} ({sessions})?"
    return _confirm(state, "drain", {"worker": worker["id"]}, question, hosts)


def _ask_end(state: State, there: Rows) -> State:
    at = chosen(state, there, Pane.SESSIONS)
    if at is None or state.pane is not Pane.SESSIONS:
        return replace(state, message="choose a session to end: Tab goes to their table")
    session = there.sessions[at]
    name = f" {session['name']}" if session.get("name") else ""
    data = {"worker": session["workerId"], "session": session["id"]}
    question = f"end session {session['id']}{name} of {session['client']}?"
    return _confirm(state, "end_session", data, question, _host_of(session))


def _host_of(row: Found) -> tuple[str, ...]:
    """The host of a worker or session, where there are several."""
    return (row["host"],) if row.get("host") else ()


def _confirm(state: State, name: str, data: Mapping[str, Any], question: str, hosts: tuple[str, ...] = ()) -> State:
    return replace(state, mode=Mode.CONFIRM, asked=Request(name, data, question, hosts))


_KEYS: Final[Mapping[str, Callable[[State, Rows], State]]] = {
    "tab": _next_pane(1),
    "right": _next_pane(1),
    "backtab": _next_pane(-1),
    "left": _next_pane(-1),
    "d": _ask_drain,
    "e": _ask_end,
    "/": lambda state, _there: replace(state, mode=Mode.FILTER),
    "escape": lambda state, _there: replace(state, filter=""),
    "q": lambda state, _there: replace(state, mode=Mode.QUIT),
    "Q": lambda state, _there: replace(state, mode=Mode.QUIT),
    "?": lambda state, _there: replace(state, mode=Mode.HELP),
    "h": lambda state, _there: replace(state, mode=Mode.HELP),
}


def _has(row: Found, needle: str) -> bool:
    return not needle or any(needle in str(value).casefold() for value in row.values() if value is not None)
