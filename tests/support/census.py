"""What a grid has of everything that can leak, in words that can be compared: slots, processes, open files, files."""

import contextlib
import itertools
import os
import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import psutil

from tests.support.grid import Grid, eventually
from tests.support.raw import session

Census = dict[str, str]

SETTLE_S = 30.0
BETWEEN_S = 0.2
_TIME_WAIT, _LISTEN = "06", "0A"
"""States in /proc/net/tcp (include/net/tcp_states.h)."""
LOOKS = 5
"""So often in a row a census is the same at rest: on a busy machine what a browser that has ended leaves open in Node
goes late."""


def census(grid: Grid) -> Census:
    """Everything that must be the same before and after, in words. Workers have numbers: their names change."""
    status = grid.ask("status")

    def keys(pattern: str) -> list[bytes]:
        found: list[bytes] = grid.redis("KEYS", grid.prefix + pattern)
        return found

    found: Census = {
        "active sessions, Redis": str(grid.active()),
        "slots in Redis": str(sum(int(grid.redis("ZCARD", key)) for key in keys("*s:live:*"))),
        "sessions in slots of leases, Redis": str(
            sum(int(grid.redis("HLEN", key)) for key in keys("sessions:leased:*"))
        ),
        "workers in Redis": str(len(keys("worker:*"))),
        "counters in Redis": _counted(
            f"{name} {owner}"
            for name in ("active", "lifetime")
            for owner in _of_whom(grid.redis("HKEYS", f"{grid.prefix}cluster:{name}_connections"), status)
        ),
        "workers": _counted(worker["status"] for worker in status["workers"]),
        "processes": _counted(_kind(command) for command in _processes(grid)),
        "connections to the grid's port": str(_connections(grid.port)),
        "temporary files": _counted(_temporary(grid)),
        "/dev/shm": str(sum("chromium" in name.lower() for name in os.listdir("/dev/shm"))),
    }
    for role, pids in _watched(grid, status).items():
        opened = [Counter(_open_kinds(pid)) for pid in pids]
        for number, text in enumerate(sorted(map(_text, opened)), 1):
            found[f"open files: {role} {number}" if len(pids) > 1 else f"open files: {role}"] = text
    return found


def at_rest(grid: Grid) -> Census:
    """The census once it is the same LOOKS times in a row, with no worker on its way in or out, and every process has
    opened what it opens once and keeps."""
    use_every_slot(grid)
    deadline = time.monotonic() + SETTLE_S
    before, same = census(grid), 1
    while time.monotonic() < deadline:
        time.sleep(BETWEEN_S)
        now = census(grid)
        same = same + 1 if now == before and not re.search("starting|draining", now["workers"]) else 1
        if same == LOOKS:
            return now
        before = now
    raise AssertionError(f"the grid does not come to rest: {before}")


def use_every_slot(grid: Grid) -> None:
    """All slots are taken at once, by raw clients, and given back."""
    slots = sum(int(grid.redis("HGET", key, "slots")) for key in grid.redis("KEYS", f"{grid.prefix}worker:*"))
    with contextlib.ExitStack() as held:
        for _ in range(slots):
            held.enter_context(session(grid.port))
    eventually(lambda: grid.active() == 0, "every slot is free again")


def once_equal(grid: Grid, before: Census, within_s: float = SETTLE_S) -> Census:
    """The census: `before` as soon as that is reached, else what there is after a while."""
    deadline = time.monotonic() + within_s
    while differences(before, now := census(grid)) and time.monotonic() < deadline:
        time.sleep(BETWEEN_S)
    return now


def differences(before: Census, after: Census) -> list[str]:
    """The names of what is not as it was."""
    return [name for name in before | after if before.get(name) != after.get(name)]


def told(before: Census, after: Census) -> str:
    """The differences for a reader, before over after; empty when there are none."""
    lines = [
        f"{name}\n  before: {before.get(name)}\n  after:  {after.get(name)}" for name in differences(before, after)
    ]
    return "\n".join(lines)


def watched(grid: Grid) -> dict[str, int]:
    """The grid's own processes by role, with numbers where there are more of it."""
    found = {}
    for role, pids in _watched(grid, grid.ask("status")).items():
        for number, pid in enumerate(pids, 1):
            found[f"{role} {number}" if len(pids) > 1 else role] = pid
    return found


def _watched(grid: Grid, status: dict[str, Any]) -> dict[str, list[int]]:
    workers = sorted(status["workers"], key=lambda each: each["pid"])
    return {
        "master": [grid.process.pid],
        "proxy": [status["proxy"]["pid"]],
        "redis": [pid for pid in (status["redis"]["pid"],) if pid],
        "worker": [worker["pid"] for worker in workers],
        "browser server": [worker["nodePid"] for worker in workers],
    }


def _of_whom(fields: list[bytes], status: dict[str, Any]) -> Iterator[str]:
    """Whose counters these are: a worker's that is there, or a stranger's."""
    there = {f"{worker['browserType']}:{worker['id']}" for worker in status["workers"]}
    for field in fields:
        yield "of a worker" if field.decode() in there else f"of {field.decode()}"


def _processes(grid: Grid) -> Iterator[str]:
    """The command lines of all of the grid: what is below its master, and what carries its mark with all below that (a
    browser's own children do not carry it)."""
    psutil.process_iter.cache_clear()  # it would not see that a pid has been given away
    table = {each.pid: (each.info["status"], each.info["ppid"]) for each in psutil.process_iter(["status", "ppid"])}
    children: dict[int, list[int]] = {}
    for pid, (_, parent) in table.items():
        children.setdefault(parent, []).append(pid)
    found, more = set(), [grid.process.pid, *grid.processes()]
    while more:
        if (pid := more.pop()) not in found:
            found.add(pid)
            more += children.get(pid, ())
    for pid in found:
        state, parent = table.get(pid, ("", 0))
        if state == psutil.STATUS_ZOMBIE:
            if not (kind := _kind(_command(parent))).startswith("chromium"):  # which reaps its own when it likes
                yield f"zombie of {kind}"
        elif command := _command(pid):
            yield command


def _command(pid: int) -> str:
    with contextlib.suppress(psutil.Error):
        return " ".join(psutil.Process(pid).cmdline()).strip()
    return ""


def _kind(command: str) -> str:
    if "chrom" in command.split(" ", 1)[0]:
        browser_part = re.search(r"--type=(\S+)", command)
        return f"chromium {browser_part[1] if browser_part else 'browser'}"
    for sign, name in (("launcher", "browser server"), ("redis-server", "redis"), ("grid serve", "grid")):
        if sign in command:
            return name
    return command


def _connections(port: int) -> int:
    """TCP connections on the port that are neither listening nor in TIME_WAIT. psutil would look through the
    descriptors of all processes for whose they are."""
    _, *rows = (line.split() for line in Path("/proc/net/tcp").read_text().splitlines())
    return sum(row[1].endswith(f":{port:04X}") and row[3] not in (_TIME_WAIT, _LISTEN) for row in rows)


def _temporary(grid: Grid) -> Iterator[str]:
    """Files of the grid, without what is inside a browser's profile; the parts of names that change are masked."""
    elsewhere = [] if grid.runtime.is_relative_to(grid.temporary) else [grid.runtime]
    for directory, names, files in itertools.chain(*map(os.walk, [grid.temporary, *elsewhere])):
        inside = Path(os.path.relpath(directory, grid.temporary))
        if "profile" in inside.name or "profile" in inside.parent.name:
            names.clear()
            continue
        for name in itertools.chain(names, files):
            path = re.sub(r"\bw/[0-9a-f]{8}\b", "w/ID", str(inside / name))
            path = re.sub(r"\bsessions/[0-9a-f]{32}\b", "sessions/RANDOM", path)
            path = re.sub(r"\bproxy/\d+\b", "proxy/PID", path)
            path = re.sub(r"\bown([/-])\d+\b", r"own\1NUMBER", path)
            yield re.sub(r"-[A-Za-z0-9]{6}$", "-RANDOM", path)


def _open_kinds(pid: int) -> Iterator[str]:
    """What each descriptor is: psutil tells of files and connections only."""
    try:
        names = os.listdir(f"/proc/{pid}/fd")
    except FileNotFoundError:
        yield "ended meanwhile"
        return
    for name in names:
        with contextlib.suppress(FileNotFoundError):
            target = os.readlink(f"/proc/{pid}/fd/{name}")
            yield "file" if target.startswith("/") else re.sub(r":\[\d+\]", "", target)


def _counted(names: Iterable[str]) -> str:
    return _text(Counter(names))


def _text(counts: Counter[str]) -> str:
    return ", ".join(f"{n} {name}" for name, n in sorted(counts.items()))
