"""The master's child processes: forks or adopts them, signals them, learns how they end, and keeps services running."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Final, NoReturn

import structlog

from pwgrid.common.selectors_loop import Loop
from pwgrid.common.types import ChildKind
from pwgrid.master.child_file_writer import ChildFileWriter
from pwgrid.master.policy.backoff import Backoff
from pwgrid.master.signal_queue import HANDLED
from pwgrid.runtime.child_files import ChildState
from pwgrid.runtime.process_identity import KILL_S, create_time

log = structlog.get_logger()

TERM_GRACE_S: Final = 3.0
EXIT_CANNOT_EXECUTE: Final = 127
_PR_SET_CHILD_SUBREAPER: Final = 36
# These reach every process of a terminal's group or session; only the master may act on them.
_IGNORED: Final = (signal.SIGINT, signal.SIGHUP)
NO_DEATHS: Final = Backoff(first_s=0.1, cap_s=5.0, healthy_s=10.0)


@dataclass(frozen=True, slots=True)
class Exit:
    """How a process ended. `code`: its exit code; negative, the signal that ended it; None where another master forked
    it.

    `was_killed`: this master sent it SIGKILL, because its time was over. `is_left`: that has not ended it, since the
    kernel cannot interrupt it; the master goes on without it.
    """

    code: int | None
    was_killed: bool = False
    is_left: bool = False

    @property
    def is_clean(self) -> bool:
        """Whether it ended by itself with code 0."""
        return self.code == 0

    @property
    def is_unknown(self) -> bool:
        """Whether its exit code is unknown: the kernel tells only the parent."""
        return self.code is None and not self.is_left

    @property
    def signal(self) -> str:
        """The name of the signal that ended it, or empty."""
        if self.code is None or self.code >= 0:
            return ""
        try:
            return signal.Signals(-self.code).name
        except ValueError:  # a real-time signal
            return f"signal {-self.code}"

    def __str__(self) -> str:
        if self.is_left:
            return "no end, although it was killed"
        if self.code is None:
            return "an unknown code"
        return self.signal or f"code {self.code}"


class Child:
    """A process whose `pidfd` becomes readable when it ends; -1 if it had ended before it could be opened. Timers
    signal it; `started_at` is in Unix seconds."""

    def __init__(self, loop: Loop, pid: int, pidfd: int, started_at: float | None = None) -> None:
        self.pid: Final = pid
        self.started_at: Final = time.time() if started_at is None else started_at
        self._loop = loop
        self._pidfd = pidfd
        self._term = loop.timer(lambda: self.send(signal.SIGTERM))
        self._kill = loop.timer(self._kill_now)
        self._leave = loop.timer(self._leave_now)
        self._on_exit: Callable[[Exit], None] = lambda _ended: None
        self._was_killed = False
        self.has_ended = pidfd < 0

    @cached_property
    def create_time(self) -> float:
        """Seconds since boot; together with the pid it is unique. 0 if the process ended before this was first read."""
        return create_time(self.pid) or 0.0

    @property
    def lives(self) -> bool:
        """Whether it has not ended, also where that was not told yet."""
        if self.has_ended:
            return False
        ended = select.poll()
        ended.register(self._pidfd, select.POLLIN)
        return not ended.poll(0)

    def watch(self, on_exit: Callable[[Exit], None]) -> None:
        """Call `on_exit` when it has ended, is reaped, and its pidfd is closed; or when SIGKILL has not ended it within
        KILL_S, and it is left to the kernel. If it has ended already, that is told in the next turn of the loop."""
        self._on_exit = on_exit
        if self.has_ended:
            ended = self._reap()  # now: once it is reaped, the next fork may get its pid
            self._loop.call_at(self._loop.now(), lambda: on_exit(ended or Exit(None)))
        else:
            self._loop.add(self._pidfd, self._reap_if_ended)

    def end_by(self, term_at: float, kill_at: float) -> None:
        """SIGTERM and SIGKILL it at these monotonic times, unless it ends before; earlier times win over later ones.

        Does nothing to a process that has ended: what it said last may be read, and asked for its end, only after that.
        """
        if self.has_ended:
            return
        self._term.arm(min(self._term.when, term_at))
        self._kill.arm(min(self._kill.when, kill_at))

    def end_now(self) -> None:
        """SIGTERM it at once, and SIGKILL it after TERM_GRACE_S."""
        now = self._loop.now()
        self.end_by(now, now + TERM_GRACE_S)

    def send(self, signum: int) -> None:
        """Send a signal; does nothing to a process that has ended."""
        if self.has_ended:
            return  # its pidfd may be another one's by now
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signum)

    def _kill_now(self) -> None:
        self._was_killed = True
        self.send(signal.SIGKILL)
        self._leave.arm(min(self._leave.when, self._loop.now() + KILL_S))

    def _leave_now(self) -> None:
        ended = self._reap()
        if ended is None:
            log.error("process_not_killed", pid=self.pid, after_s=KILL_S)
        self._is_over(ended or Exit(None, was_killed=True, is_left=True))

    def _reap_if_ended(self) -> None:
        ended = self._reap()
        if ended is not None:
            self._is_over(ended)

    def _is_over(self, ended: Exit) -> None:
        self._loop.remove(self._pidfd)
        os.close(self._pidfd)
        for timer in (self._term, self._kill, self._leave):
            timer.cancel()
        self.has_ended = True
        self._on_exit(ended)

    def _reap(self) -> Exit | None:
        """Reap the process if it has ended; None while it still runs."""
        try:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
        except ChildProcessError:  # adopted: its parent is init, or another subreaper
            return None if self.has_ended or self.lives else Exit(None, was_killed=self._was_killed)
        if not pid:
            return None
        return Exit(os.waitstatus_to_exitcode(status), was_killed=self._was_killed)


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
    """Does all that the child has to do, and ends by _exit, so that none of the master's own code runs in it."""
    code = os.EX_SOFTWARE
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


def said(output: Path) -> str:
    """The text that a command has written into its file `output`; empty if that cannot be read."""
    try:
        return output.read_text(errors="replace").strip()
    except OSError:
        return ""


def adopted_child(loop: Loop, state: ChildState) -> Child:
    """A process that another master forked, also one that has ended since its file was read."""
    try:
        pidfd = os.pidfd_open(state.pid)
        if state.process is None:  # checked after the pidfd is open, so that it cannot mean another process
            os.close(pidfd)
            pidfd = -1
    except ProcessLookupError:
        pidfd = -1
    child = Child(loop, state.pid, pidfd, state.started_at)
    child.create_time = state.create_time
    return child


class RestartedChild:
    """Keeps one service, the proxy or the embedded Redis, running from `start` to `stop_by`: restarts it when it ends,
    at first without a delay. Subclasses define `_fork` and `_on_exit`."""

    _first_status = ""
    """What its file says of its status when it is forked."""

    def __init__(self, kind: ChildKind, loop: Loop, files: ChildFileWriter) -> None:
        self._kind = kind
        self._loop = loop
        self._files = files
        self._child: Child | None = None
        self._in_file: ChildState | None = None
        """What its file says of it, but for its status."""
        self._backoff = NO_DEATHS
        self._is_wanted = False
        self._started_at = 0.0
        self._restart = loop.timer(self._start)

    @property
    def pid(self) -> int | None:
        """The child's pid; None between its death and the restart."""
        return self._child.pid if self._child else None

    @property
    def is_wanted(self) -> bool:
        """Whether it is to run: from `start` to `stop_by`."""
        return self._is_wanted

    @property
    def problem(self) -> str | None:
        """Why it ended last; None if it never has."""
        return self._backoff.reason

    @property
    def _goes_on(self) -> bool:
        """Whether it is started again when it ends."""
        return self._is_wanted

    def start(self) -> None:
        """Keep it running from now on. Idempotent."""
        if not self._is_wanted:
            self._is_wanted = True
            self._start()

    def adopt(self, state: ChildState) -> None:
        """Take over a child that another master forked, unless it has ended since."""
        child = adopted_child(self._loop, state)
        if child.has_ended:
            self._files.remove(self._kind, state.name)
            return
        self._is_wanted = True
        self._in_file = state
        self._watch(child)
        log.info("service_adopted", service=self._kind, pid=child.pid)

    def stop_by(self, term_at: float, kill_at: float) -> None:
        """Restart it no more; SIGTERM and SIGKILL it at these monotonic times if it has not ended before."""
        self._is_wanted = False
        self._restart.cancel()
        if self._child is not None:
            self._child.end_by(term_at, kill_at)

    def kill(self) -> None:
        """SIGKILL it at once, and restart it no more."""
        now = self._loop.now()
        self.stop_by(now, now)

    def _fork(self) -> Child:
        """Raises OSError."""
        raise NotImplementedError

    def _on_exit(self, ended: Exit) -> str:
        """Cleans up after it, and returns the sentence that says how it ended."""
        raise NotImplementedError

    def _start(self) -> None:
        now = self._loop.now()
        try:
            child = self._fork()
        except OSError as error:
            reason = f"cannot fork: {error.strerror or error}"
            retry_s = self._restart_later(now, reason, started_at=now)
            log.error("service_not_started", service=self._kind, reason=reason, retry_s=retry_s)
            return
        # Its create_time does not change, however often the file is written: by that the next master finds the newest.
        self._in_file = self._files.new_state(self._kind, str(child.pid), child, child.create_time)
        self._watch(child)
        self._write_file(self._first_status)
        log.info("service_started", service=self._kind, pid=child.pid)

    def _watch(self, child: Child) -> None:
        self._child, self._started_at = child, self._loop.now()
        child.watch(lambda ended: self._ended(child.pid, ended))

    def _ended(self, pid: int, ended: Exit) -> None:
        self._child = None
        self._files.remove(self._kind, str(pid))
        reason = self._on_exit(ended)
        if not self._goes_on:
            log.info("service_stopped", service=self._kind, pid=pid, exit=str(ended))
            return
        now = self._loop.now()
        retry_s = self._restart_later(now, reason, self._started_at)
        log.error("service_exited", service=self._kind, pid=pid, reason=reason, retry_s=retry_s)

    def _write_file(self, status: str) -> None:
        """Keep the file by which the next master knows it, if it runs. Whenever that is written, the settings and the
        code in it are those with which it was forked."""
        if self._child is not None and self._in_file is not None:
            self._files.write(replace(self._in_file, status=status))

    def _restart_later(self, now: float, reason: str, started_at: float) -> float:
        """Returns the seconds until the next try."""
        self._backoff = self._backoff.died(now, reason, started_at, served_s=now - started_at)
        self._restart.arm(self._backoff.not_before)
        return self._backoff.retry_s(now)
