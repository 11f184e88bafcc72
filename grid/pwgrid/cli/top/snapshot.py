"""A snapshot of a grid for `pwgrid top`, and the events between two snapshots."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pwgrid.cli.drain import describe_end, is_good
from pwgrid.common.session_lifecycle import SessionStatus

Found = Mapping[str, Any]
_GOOD: Final = frozenset({SessionStatus.PENDING, SessionStatus.RUNNING, SessionStatus.COMPLETED, SessionStatus.ENDED})


@dataclass(frozen=True, slots=True)
class Event:
    """Something that has happened, at `at` in Unix seconds."""

    at: float
    text: str
    is_bad: bool = False


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A grid at `at` (Unix seconds). `status` is that of `pwgrid status`, `sessions` are the live ones as the API shows
    them, the oldest first. `problem` says why the grid does not answer; then all else is old."""

    at: float
    status: Found
    sessions: Sequence[Found] = ()
    problem: str = ""


def events(before: Snapshot, now: Snapshot, changed: Iterable[Found]) -> list[Event]:
    """What has happened since `before`, the oldest first. `changed` are sessions that have begun or ended."""
    found = [Event(now.at, text, is_bad) for text, is_bad in _of_the_grid(before, now)]
    if before.status and now.status:
        found += [Event(now.at, text, is_bad) for text, is_bad in _of_workers(before.status, now.status)]
    found += [_of_session(session) for session in changed]
    return sorted(found, key=lambda event: event.at)


def _of_the_grid(before: Snapshot, now: Snapshot) -> Iterator[tuple[str, bool]]:
    if now.problem != before.problem:
        yield (now.problem, True) if now.problem else ("the grid answers again", False)
    was, found = before.status, now.status
    if not was or not found:
        return
    if was["ready"] != found["ready"]:
        yield ("the grid is ready", False) if found["ready"] else (f"not ready: {found['reason']}", True)
    for part in ("master", "proxy"):
        if was[part]["pid"] != found[part]["pid"]:
            yield f"another {part}: {was[part]['pid']} → {found[part]['pid']}", False
    for name, old, new in (
        ("host guard", was["host"]["guard"], found["host"]["guard"]),
        ("Redis", was["redis"].get("error"), found["redis"].get("error")),
        *_reasons(was["pools"], found["pools"]),
    ):
        if old != new:
            yield f"{name}: {new or 'all is well again'}", bool(new)


def _reasons(was: Sequence[Found], found: Sequence[Found]) -> Iterator[tuple[str, Any, Any]]:
    before = {pool["name"]: pool["reason"] for pool in was}
    for pool in found:
        yield f"pool {pool['name']}", before.get(pool["name"]), pool["reason"]


def _of_workers(was: Found, found: Found) -> Iterator[tuple[str, bool]]:
    before = {worker["id"]: worker for worker in was["workers"]}
    there = {worker["id"]: worker for worker in found["workers"]}
    outcomes = {outcome["id"]: outcome for outcome in found["drained"]}
    own = found["host"].get("name", "")
    for worker_id in before.keys() - there.keys():
        host = before[worker_id].get("host", own)
        if host != own:  # its end is known there
            yield f"worker {worker_id} of {host}: gone", False
            continue
        outcome = outcomes.get(worker_id)
        yield f"worker {describe_end(worker_id, outcome)}", not is_good(outcome)
    for worker_id, worker in there.items():
        if worker_id not in before:
            yield f"worker {worker_id} of {worker['pool']}: {worker['status']}", False
        elif worker["status"] != before[worker_id]["status"]:
            why = f": {worker['reason']}" if worker["reason"] else ""
            yield f"worker {worker_id}: {before[worker_id]['status']} → {worker['status']}{why}", False


def _of_session(session: Found) -> Event:
    name = f" ({session['name']})" if session.get("name") else ""
    at = session["endedAt"] or session["startedAt"] or session["createdAt"]
    if session["endedAt"] is None:
        return Event(at, f"session {session['id']}{name} {session['status']} in {session['workerId']}")
    lasted_s = session["endedAt"] - session["createdAt"]
    text = f"session {session['id']}{name} {session['status']} after {lasted_s:.1f} s: {session['reason']}"
    return Event(at, text, session["status"] not in _GOOD)
