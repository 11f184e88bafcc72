"""Standard descriptors as a careless caller leaves them: closed, without room (/dev/full), or a pipe whose other end is
gone. `python -m tests.support.spoiled_streams HOW 0,1,2 COMMAND…` becomes that command; without arguments it runs
commands of pwgrid, which it reads as lines of JSON, each in a fork of its own: that takes a tenth of the time."""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn, TypedDict, cast

import pwgrid.cli

HOW = ("closed", "full", "pipe")


class Case(TypedDict):
    """A command of pwgrid, and which descriptors are spoiled, in one way."""

    arguments: list[str]
    fds: list[int]
    how: str


class Done(TypedDict):
    """How it ended; its output as far as somebody could read it."""

    code: int
    out: str
    err: str


def spoil(fd: int, how: str) -> None:
    """Leaves a descriptor of this process to what it starts in such a state."""
    if how == "closed":
        os.close(fd)
        return
    if how == "full":
        found = os.open("/dev/full", os.O_RDWR)
    else:
        ends = os.pipe()
        found = ends[0] if fd == 0 else ends[1]
        os.close(ends[1] if fd == 0 else ends[0])
    os.dup2(found, fd)
    os.close(found)


def become(how: str, fds: Iterable[int], command: Sequence[str]) -> NoReturn:
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python had it ignored
    for fd in fds:
        spoil(fd, how)
    os.execvp(command[0], command)


def run_forked(case: Case) -> Done:
    """Runs a command in a fork of this process, in which everything is imported already."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        pid = os.fork()
        if pid == 0:
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(out.fileno(), 1)
            os.dup2(err.fileno(), 2)
            for fd in case["fds"]:
                spoil(fd, case["how"])
            _run_in_child(case["arguments"])
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        texts = [os.pread(each.fileno(), 1 << 20, 0).decode() for each in (out, err)]
    return Done(code=code, out=texts[0], err=texts[1])


def _run_in_child(arguments: list[str]) -> NoReturn:
    """As Python itself runs it: None for a stream whose descriptor is closed, and a flush at the end."""
    from pwgrid.__main__ import main

    code = 1
    try:
        streams: list[Any] = [_stream(fd, mode) for fd, mode in enumerate("rww")]
        sys.stdin, sys.stdout, sys.stderr = streams
        sys.argv = ["pwgrid", *arguments]
        main()
    except SystemExit as ended:
        code = cast(int, ended.code or 0)
    except BaseException:  # noqa: BLE001 - as Python's own last resort
        traceback.print_exc()
    try:
        for each in (sys.stdout, sys.stderr):
            if each is not None:
                each.flush()
    except Exception:  # noqa: BLE001
        code = 120
    os._exit(code)


def _stream(fd: int, mode: str) -> object:
    try:
        os.fstat(fd)
    except OSError:
        return None
    return os.fdopen(fd, mode, closefd=False)


def serve_cases() -> None:
    for module in pkgutil.walk_packages(pwgrid.cli.__path__, "pwgrid.cli."):
        importlib.import_module(module.name)
    for name in ("pwgrid.tokens.file", "pwgrid.registry.blocking_reads", "pwgrid.setup.doctor_checks"):
        importlib.import_module(name)
    for line in sys.stdin:
        sys.stdout.write(f"{json.dumps(run_forked(json.loads(line)))}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    if sys.argv[1:]:
        become(sys.argv[1], map(int, sys.argv[2].split(",")), sys.argv[3:])
    serve_cases()
