"""Forks children with signals masked, other descriptors closed, and a session of their own. Reaps and watches none."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final, NoReturn

import structlog

from pwgrid.common.selectors_loop import Loop
from pwgrid.master.child import Child
from pwgrid.master.signal_queue import HANDLED

log = structlog.get_logger()

EXIT_SOFTWARE: Final = 70
EXIT_CANNOT_EXECUTE: Final = 127
_PR_SET_CHILD_SUBREAPER: Final = 36
# These reach every process of a terminal's group or session; only the master may act on them.
_IGNORED: Final = (signal.SIGINT, signal.SIGHUP)


def become_subreaper() -> None:
    """Become the parent of all descendants whose own parents end, instead of init. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def fork_role(loop: Loop, run: Callable[[], int], keep: Iterable[int]) -> Child:
    """Fork a child that exits with what `run` returns, and keeps only descriptors 0 to 2 and `keep`.

    Raises OSError when no process or descriptor is free.
    """
    master = os.getpid()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        pid = os.fork()
        if pid == 0:
            _be_child(master, run, set(keep) | {0, 1, 2})
    finally:
        # Only the parent gets here. Signals that came meanwhile reach its handlers now.
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    pidfd = -1
    try:
        pidfd = os.pidfd_open(pid)
        child = Child(loop, pid, pidfd)
        _ = child.create_time  # it reads files: now, while a failure can still be undone
    except OSError:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        if pidfd >= 0:
            os.close(pidfd)
        raise
    return child


def fork_linked(
    loop: Loop, run: Callable[[socket.socket], int], keep: Iterable[socket.socket]
) -> tuple[Child, socket.socket]:
    """Fork a child with a control link: `run` gets the child's side of it, the caller the master's. Raises OSError."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        try:
            return fork_role(loop, lambda: run(theirs), [each.fileno() for each in (theirs, *keep)]), ours
        except OSError:
            ours.close()
            raise


def fork_command(loop: Loop, argv: Sequence[str], directory: Path, output: Path) -> Child:
    """Fork a child that executes `argv` in `directory` and appends its output to the file `output`. Raises OSError."""

    def execute() -> int:
        sink = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(sink, 1)
        os.dup2(sink, 2)
        os.close(sink)
        os.chdir(directory)
        for signum in (signal.SIGPIPE, signal.SIGXFSZ, *_IGNORED):
            signal.signal(signum, signal.SIG_DFL)  # Python had some of them ignored, and exec would keep that
        try:
            os.execv(argv[0], list(argv))
        except OSError as error:
            sys.stderr.write(f"{argv[0]}: {error.strerror}\n")
        return EXIT_CANNOT_EXECUTE

    return fork_role(loop, execute, ())


def _be_child(master: int, run: Callable[[], int], keep: set[int]) -> NoReturn:
    """All that the child does. It ends by _exit only, so that none of the master's own code runs in it."""
    code = EXIT_SOFTWARE
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        for signum in HANDLED:
            signal.signal(signum, signal.SIG_IGN if signum in _IGNORED else signal.SIG_DFL)
        _close_all_but(keep)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)
        if os.getppid() == master:
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            code = run()
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:  # nothing is above this in the child: the log alone can tell of it
        log.exception("child_crashed")
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)


def _close_all_but(keep: set[int]) -> None:
    """The calling frames still refer to the objects that own these descriptors, so none is closed a second time."""
    for name in os.listdir("/proc/self/fd"):
        fd = int(name)
        if fd not in keep:
            os.closerange(fd, fd + 1)  # without an error for the one that listed the directory
