"""`pwgrid logs`: finds where a grid's log goes, and shows it, or what it says of one session or worker."""

import os
import re
import select
import shutil
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import click
import orjson
import psutil

from pwgrid.cli.ask_grid import WithoutMasterError, find_grid, redis_of
from pwgrid.cli.options import GRID_OPTIONS, completing, with_json, with_options
from pwgrid.cli.output import compact, printable
from pwgrid.common.errors import GridError, RegistryUnavailable
from pwgrid.runtime.find_grids import GridWithoutMaster, RunningGrid

_OWN_FILE: Final = "set LOG_FILE for a log that is always there"
_UNIT: Final = re.compile(r"/([^/]+\.service)(?:/|$)", re.MULTILINE)
_TIME: Final = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:?\d\d)")
_BEGINNING: Final = re.compile(rb"\{|pwgrid |" + _TIME.pattern)
"""How a line begins that a grid has written, in any format."""
_HEAD: Final = b"==> Press Ctrl-C to exit <==\n"
"""What supervisorctl says before it follows a log."""
_SESSION: Final = re.compile(rb"""\bsession["']?[=:]""")
DEFAULT_LINES: Final = 100
_MOST_BYTES: Final = 1 << 30

LineFilter = Callable[[bytes], bool]


@click.command()
@with_options(GRID_OPTIONS)
@click.option(
    "--session",
    metavar="ID",
    shell_complete=completing("session"),
    help="Show this session: its record, and what is logged about it.",
)
@click.option("--worker", metavar="ID", shell_complete=completing("worker"), help="Only lines that name this worker.")
@click.option("--follow", "-f", is_flag=True, help="Then print new lines as they come, until Ctrl-C.")
@click.option(
    *("--lines", "-n"),
    type=click.IntRange(0),
    help="How many of the last lines; not for a --session or --worker that is followed.  [default: 100; with --session "
    "or --worker all]",
)
@with_json
def logs(  # noqa: PLR0913 - click gives each option by its name
    port: int | None,
    runtime_dir: str | None,
    session: str | None,
    worker: str | None,
    follow: bool,
    lines: int | None,
    as_json: bool,
) -> None:
    """Shows the log of a grid: from LOG_FILE, the journal, supervisord, or the file that its stderr goes to.

    With --session, lines about the session's worker while it had the session are shown as well. With --json each line
    is one JSON object; where the grid itself does not log JSON, it has only the field `line`.
    """
    if follow and lines is not None and (session or worker):
        raise click.UsageError(
            "--lines does not go with --follow where a --session or --worker is named: leave one out"
        )
    record, why_none = None, "there is no record of it (any more)"
    try:
        grid = find_grid(port, runtime_dir)
        pid = grid.pid
    except WithoutMasterError as error:
        if len(error.left) > 1:
            raise
        pid = _writer_of(error.left[0])
    else:
        try:
            record = _record(grid, session) if session else None
        except RegistryUnavailable as error:  # the log says why Redis is away, perhaps
            why_none = "its record cannot be read now"
            click.echo(f"pwgrid: without the record of the session: {printable(str(error))}", err=True)
    if record is not None:
        click.echo(compact({"record": record}) if as_json else record_text(record) + "\n")
    named = [each for each in (session, worker) if each]
    is_wanted = naming(*named) if record is None else story(record)
    if lines is None and not named:
        lines = DEFAULT_LINES
    # The last lines that name something may be anywhere in the log.
    command = command_for(pid, None if named else lines, follow=follow)
    exit_code, shown = show(command, is_wanted, None if follow else lines, as_json=as_json)
    if named and not shown and record is None and lines != 0:
        name = f"session {session}" if session else f"worker {worker}"
        raise GridError(f"the log says nothing of {name}, and {why_none}")
    sys.exit(exit_code)


def _record(grid: RunningGrid, session_id: str) -> dict[str, Any] | None:
    """A session, as the API shows it; None if there is none (any more). Raises RegistryUnavailable."""
    from pwgrid.registry.blocking_reads import session

    url, prefix = redis_of(grid)
    found = session(url, session_id, prefix)
    return None if found is None else found.as_json()


def _writer_of(grid: GridWithoutMaster) -> int:
    """The pid of a child that writes into the grid's log. Raises GridError where there is none (any more)."""
    for child in grid.children:
        if child.kind != "redis":  # whose stderr is a file of its own
            return child.pid
    raise GridError(f"the grid on port {grid.port} has no master, proxy or worker any more: none has its log open")


def command_for(pid: int, lines: int | None, *, follow: bool) -> list[str]:
    """The command that prints the last `lines` (None: all), and perhaps more before them, of what process `pid` of a
    grid logs. Raises GridError where the log cannot be read."""
    try:
        return _command_for(pid, lines, follow=follow)
    except (OSError, psutil.Error) as error:  # at any of the looks into /proc: the process may end in between
        why = error.strerror if isinstance(error, OSError) else error
        raise GridError(f"cannot see where the log of process {pid} goes: {why}") from None


def _command_for(pid: int, lines: int | None, *, follow: bool) -> list[str]:
    target = os.readlink(f"/proc/{pid}/fd/2")
    if target.startswith("socket:") and (unit := _unit_of(pid)):
        shown = "all" if lines is None else str(lines)
        # cat, as the grid wrote them: its lines have their own times, and may be JSON.
        how = ["--output", "cat", "--lines", shown]
        return ["journalctl", *unit, *how, *(["--follow"] if follow else ["--no-pager"])]
    if target.startswith("pipe:") and (supervisord := _supervisord_of(pid)):
        url, name = supervisord
        # It counts bytes, and none of the grid's lines is longer than a pipe takes in one piece. With one line more
        # than is wanted, none that is cut is among the last ones.
        size = _MOST_BYTES if lines is None else (lines + 1) * select.PIPE_BUF
        return ["supervisorctl", "-s", url, "tail", "-f" if follow else f"-{size}", name]
    if target.startswith(("pipe:", "socket:")):
        raise GridError(f"the log goes to whoever started the grid, through a {target.partition(':')[0]}; {_OWN_FILE}")
    if target.startswith("/dev/"):
        raise GridError(f"the log goes to {target}; {_OWN_FILE}")
    if not os.path.exists(target) or not os.path.samefile(f"/proc/{pid}/fd/2", target):
        raise GridError(f"the log file {target.removesuffix(' (deleted)')} was removed while the grid writes to it")
    shown = "+1" if lines is None else str(lines)
    return ["tail", "--lines", shown, *(["--follow=name"] if follow else []), target]


def show(
    command: Sequence[str], is_wanted: LineFilter, last: int | None = None, *, as_json: bool = False
) -> tuple[int, int]:
    """Runs `command` and prints the lines of its output that `is_wanted` accepts, of these the `last` ones (None: all).
    Returns its exit code, and how many lines were printed.

    On a terminal, characters that could steer it are escaped; elsewhere lines are left as they are. Raises GridError
    where it does not run.
    """
    count = 0
    try:
        started = subprocess.Popen(command, stdout=subprocess.PIPE)
    except OSError as error:
        raise GridError(f"cannot run {command[0]}, which reads the log: {error.strerror}") from None
    with started as source:
        assert source.stdout is not None
        try:
            found = _of_supervisorctl(source.stdout) if command[0] == "supervisorctl" else source.stdout
            wanted = filter(is_wanted, found)
            lines: Iterable[bytes] = wanted if last is None else deque(wanted, last)
            for line in lines:
                _write(line, as_json=as_json)
                count += 1
        except BaseException:
            source.terminate()
            raise
    return source.returncode, count


def _of_supervisorctl(output: Iterable[bytes]) -> Iterator[bytes]:
    """The lines of the log without what supervisorctl adds: a head and an empty line, and, where it follows the log,
    the rest of a line at its beginning, since it shows the last 1024 bytes first."""
    may_be_cut = False
    for line in output:
        if line == _HEAD:
            may_be_cut = True
            continue
        if line != b"\n" and not (may_be_cut and _BEGINNING.match(line) is None):
            yield line
        may_be_cut = False


def naming(*ids: str) -> LineFilter:
    """Accepts lines in which each of these ids is a word; every line if there are none."""
    words = [_word(each) for each in ids]
    return lambda line: all(word.search(line) for word in words)


def story(session: Mapping[str, Any]) -> LineFilter:
    """Accepts lines that name the session (as the API shows it), and from its beginning to its end those that name its
    worker and no session."""
    own, worker = _word(session["id"]), _word(session["workerId"])
    since, until = session["createdAt"], session["endedAt"]

    def is_wanted(line: bytes) -> bool:
        if own.search(line):
            return True
        if not worker.search(line) or _SESSION.search(line):
            return False
        at = _time_of(line)
        return at is not None and since <= at and (until is None or at <= until)

    return is_wanted


def record_text(session: Mapping[str, Any]) -> str:
    """The record of a session, one field a line."""
    return "\n".join(printable(f"{name:14} {text}") for name, text in _fields(session) if text not in ("", None))


def _fields(session: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    yield "session", session["id"]
    for name, value in session.items():
        if name.endswith("At"):
            yield name, value and _as_in_the_log(value)
        elif name != "id":
            yield name, ", ".join(map(str, value)) if isinstance(value, list) else value
    if session["endedAt"] is not None:
        yield "lasted", f"{session['endedAt'] - session['createdAt']:.1f} s"


def _as_in_the_log(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _write(line: bytes, *, as_json: bool) -> None:
    output = sys.stdout.buffer
    if as_json:
        line = _as_json(line)
    elif sys.stdout.isatty():
        line = printable(line.decode(errors="replace").rstrip("\n")).encode() + b"\n"
    output.write(line)
    output.flush()


def _as_json(line: bytes) -> bytes:
    """The line itself if it is a JSON object, else an object with the line as its only field."""
    text = line.decode(errors="replace").rstrip("\n")
    try:
        found = orjson.loads(text)
    except orjson.JSONDecodeError:
        found = None
    return compact(found if isinstance(found, dict) else {"line": text}).encode() + b"\n"


def _time_of(line: bytes) -> float | None:
    found = _TIME.search(line)
    return None if found is None else datetime.fromisoformat(found[0].decode()).timestamp()


def _word(text: str) -> "re.Pattern[bytes]":
    return re.compile(rb"(?<![\w-])" + re.escape(text.encode()) + rb"(?![\w-])")


def _unit_of(pid: int) -> list[str]:
    """The arguments of journalctl for the systemd unit of a process; empty where it has none.

    A user's own unit is within the unit of that user's systemd, user@1000.service.
    """
    found = _UNIT.findall(Path(f"/proc/{pid}/cgroup").read_text())
    if not found or not shutil.which("journalctl"):
        return []
    if not any(each.startswith("user@") for each in found[:-1]):
        return ["--unit", found[-1]]
    # --user-unit would look at the caller's own units; root may ask for any user's.
    return [f"_SYSTEMD_USER_UNIT={found[-1]}", f"_UID={Path(f'/proc/{pid}').stat().st_uid}"]


def _supervisord_of(pid: int) -> tuple[str, str] | None:
    environment = psutil.Process(pid).environ()
    url, group = environment.get("SUPERVISOR_SERVER_URL"), environment.get("SUPERVISOR_GROUP_NAME")
    name = environment.get("SUPERVISOR_PROCESS_NAME")
    if not url or not name or not shutil.which("supervisorctl"):
        return None
    return url, name if group in (None, name) else f"{group}:{name}"
