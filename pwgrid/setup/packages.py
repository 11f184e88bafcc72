"""Runs installers so that their progress is seen, and installs the system's packages. Decides nothing about browsers.

Imports the standard library and nothing else: tools/bootstrap.py uses it before there is a virtual environment.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import selectors
import shutil
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

Say = Callable[[str], None]

INSTALL_TIMEOUT_S: Final = 900.0
_LINE_INTERVAL_S: Final = 1.0
_TAIL_LINES: Final = 12
_INT_S: Final = 60.0
_TERM_S: Final = 10.0
_ANSI: Final = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_STACK_FRAME: Final = re.compile(r"\s+(at |errno:|code:|syscall:|hostname:)")
_ERROR: Final = re.compile(r"error|\bE:|cannot|unable", re.IGNORECASE)
_LETTER: Final = re.compile(r"[A-Za-z]")

_APT: Final = ("apt-get", "-o", "DPkg::Lock::Timeout=120", "-o", "Dpkg::Use-Pty=0")
_INSTALL: Final[Mapping[str, tuple[str, ...]]] = {
    "apt-get": (*_APT, "install", "-y", "--no-install-recommends"),
    "dnf": ("dnf", "install", "-y"),
    "pacman": ("pacman", "-Sy", "--noconfirm", "--needed"),
    "apk": ("apk", "add", "--no-cache"),
}
_BY_HAND: Final[Mapping[str, str]] = {
    "apt-get": "apt-get install",
    "dnf": "dnf install",
    "pacman": "pacman -S",
    "apk": "apk add",
}
_QUIET: Final[Mapping[str, str]] = {"DEBIAN_FRONTEND": "noninteractive"}


@dataclass(frozen=True, slots=True)
class Host:
    """What an installer may use of this host. The defaults are the real one; tests give others."""

    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    root: Path = Path("/")
    is_root: bool = field(default_factory=lambda: os.geteuid() == 0)
    timeout_s: float = INSTALL_TIMEOUT_S
    packages_by_hand: list[str] = field(default_factory=list)
    """What only the user can install, since it takes root and we are not."""
    commands_by_hand: list[str] = field(default_factory=list)
    """What else only the user can run, for the same reason."""

    def which(self, command: str) -> str | None:
        """The path of a command, or None."""
        return shutil.which(command, path=self.environ.get("PATH", ""))

    def package_manager(self) -> str | None:
        """The one that is here and that we know, or None."""
        return next((each for each in _INSTALL if self.which(each)), None)

    @property
    def has_snap_packages(self) -> bool:
        """Whether the system's packages of browsers are mere pointers to snaps, which cannot be driven."""
        with contextlib.suppress(FileNotFoundError):
            return "ID=ubuntu" in (self.root / "etc/os-release").read_text().splitlines()
        return False

    def as_root(self) -> tuple[str, ...] | None:
        """What goes before a command that needs root; None when there is no way that asks for no password."""
        if self.is_root:
            return ()
        sudo = self.which("sudo")
        if sudo and subprocess.run([sudo, "-n", "true"], capture_output=True, check=False).returncode == 0:
            return (sudo, "-n", "env", *(f"{name}={value}" for name, value in _QUIET.items()))
        return None

    def left_to_do(self) -> str | None:
        """The command that does all that takes root, and that we could not do; None when there is nothing."""
        commands = list(self.commands_by_hand)
        manager = self.package_manager()
        if self.packages_by_hand and manager is not None:
            commands.insert(0, f"{_BY_HAND[manager]} {' '.join(self.packages_by_hand)}")
            if manager == "apt-get" and not all(map(self.apt_knows, self.packages_by_hand)):
                commands.insert(0, "apt-get update")
        sudo = "sudo " if self.which("sudo") else ""
        return " && ".join(sudo + command for command in commands) or None

    def apt_knows(self, package: str) -> bool:
        """Whether apt can install this package."""
        command = ["apt-cache", "show", "--no-all-versions", package]
        return subprocess.run(command, capture_output=True, env=dict(self.environ), check=False).returncode == 0

    def run(self, command: Sequence[str], say: Say, environ: Mapping[str, str] | None = None) -> str | None:
        """Runs a command with these further variables, saying how it goes. None when it worked, else why not."""
        say(f"  $ {' '.join(command)}")
        try:
            return _stream(command, {**self.environ, **_QUIET, **(environ or {})}, say, self.timeout_s)
        except OSError as error:
            return str(error)


def install_package(what: str, names: Mapping[str, tuple[str, ...]], say: Say, host: Host) -> str | None:
    """Installs the system's package for `what`: the first of `names[manager]` that the system has.

    Returns None when it worked, else why not.
    """
    manager = host.package_manager()
    if manager is None or manager not in names:
        return f"no package manager here has one that we know (we know {', '.join(names)})"
    prefix = host.as_root()
    known = [name for name in names[manager] if manager != "apt-get" or host.apt_knows(name)]
    if prefix is None:
        name = (known or names[manager])[0]
        host.packages_by_hand.append(name)
        return f"the system's package {name} is not installed, which takes root"
    updated = False
    if not known:  # a fresh container has no package lists at all
        fault = host.run([*prefix, *_APT, "update"], say)
        if fault is not None:
            return f"apt-get update failed ({fault})"
        updated = True
        known = [name for name in names[manager] if host.apt_knows(name)]
        if not known:
            return f"apt-get has no package {' or '.join(names[manager])}"
    say(f"{what}: installing the system's package {known[0]}")
    fault = host.run([*prefix, *_INSTALL[manager], known[0]], say)
    if fault is not None and manager == "apt-get" and not updated:
        say(f"{what}: once more with new package lists")
        fault = host.run([*prefix, *_APT, "update"], say) or host.run([*prefix, *_INSTALL[manager], known[0]], say)
    return None if fault is None else f"{manager} failed ({fault})"


class _Lines:
    """What is said of an installer's output: the first line of each kind (first word), and else one a second."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._kinds: set[str] = set()
        self._next = 0.0
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)

    def take(self, raw: bytes) -> None:
        """One line of output."""
        line = _ANSI.sub("", raw.decode(errors="replace")).rstrip()
        if not _LETTER.search(line) or _STACK_FRAME.match(line):
            return
        if line.strip() not in self._tail:
            self._tail.append(line.strip())
        kind, now = re.split(r"[\d\s:]", line, maxsplit=1)[0], time.monotonic()
        if kind not in self._kinds or now >= self._next:
            self._say(f"  | {line}")
            self._kinds.add(kind)
            self._next = now + _LINE_INTERVAL_S

    def last_words(self) -> str:
        """Its last lines, or those of them that speak of an error."""
        return " / ".join([line for line in self._tail if _ERROR.search(line)] or self._tail)


def _stream(command: Sequence[str], environ: Mapping[str, str], say: Say, timeout_s: float) -> str | None:
    """Runs `command`, saying how it goes. None when it exits 0, else what it said last."""
    deadline = time.monotonic() + timeout_s
    lines = _Lines(say)
    process = subprocess.Popen(
        command,
        env=dict(environ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # so that all of it can be ended, also when we are interrupted
    )
    assert process.stdout is not None
    output = process.stdout.fileno()
    unfinished = b""
    try:
        with selectors.DefaultSelector() as selector:
            selector.register(output, selectors.EVENT_READ)
            while selector.select(max(0.0, deadline - time.monotonic())):
                data = os.read(output, 65536)
                *complete, unfinished = (unfinished + data).replace(b"\r", b"\n").split(b"\n")
                for line in complete if data else [unfinished]:
                    lines.take(line)
                if not data:
                    break
            else:
                return f"not done within {timeout_s:g} s"
        code = process.wait(max(0.1, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        return f"not done within {timeout_s:g} s"
    finally:
        _end(process, say)
        process.stdout.close()
    return None if code == 0 else f"exit {code}: {lines.last_words() or 'it said nothing'}"


def _end(process: subprocess.Popen[bytes], say: Say) -> None:
    """Ends what still runs of an installer, and all that it started.

    SIGINT to the installer alone comes first: apt then finishes the step of dpkg that it is at, and a dpkg that is
    killed leaves a broken host. An impatient user's Ctrl-C goes one signal further. What runs as root by sudo cannot
    be ended by us; it is waited for.
    """
    if process.poll() is not None:
        return
    say("  (ending it)")
    for number, send, patience_s in (
        (signal.SIGINT, os.kill, _INT_S),
        (signal.SIGTERM, os.killpg, _TERM_S),
        (signal.SIGKILL, os.killpg, _TERM_S),
    ):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            send(process.pid, number)
        with contextlib.suppress(KeyboardInterrupt):
            if _exits(process.pid, patience_s):
                break
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)  # the rest of it; nobody else can have this number before our wait()
    process.wait()


def _exits(pid: int, patience_s: float) -> bool:
    """Whether our child exits within this time. It is not reaped."""
    pidfd = os.pidfd_open(pid)
    try:
        return bool(select.select([pidfd], [], [], patience_s)[0])
    finally:
        os.close(pidfd)
