"""The steps of an installation: user, directories, files and commands, each as it is shown and as it is done."""

import difflib
import grp
import os
import pwd
import shlex
import shutil
import subprocess
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from pwgrid.common.atomic_write import write_whole
from pwgrid.common.errors import GridError


@dataclass(frozen=True, slots=True)
class Command:
    """A command to run. `environment` is added to ours; `accepted` are the exit codes that are no failure."""

    argv: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    accepted: Collection[int] = (0,)

    def __str__(self) -> str:
        variables = [f"{name}={value}" for name, value in self.environment.items()]
        return "run " + shlex.join((*variables, *self.argv))

    def run(self) -> str:
        """Runs it and returns its output. Raises GridError with its error output when it fails."""
        try:
            done = self._done()
        except FileNotFoundError:
            raise GridError(f"there is no {self.argv[0]} on this host") from None
        if done.returncode not in self.accepted:
            said = (done.stderr.strip() or done.stdout.strip()).replace("\n", "\n  ")
            raise GridError(f"`{str(self).removeprefix('run ')}` failed ({done.returncode}):\n  {said}")
        return done.stdout

    def answer(self) -> tuple[int, str]:
        """Runs a command that only asks. Returns its exit code, 1 where there is no such command, and its output."""
        try:
            done = self._done()
        except FileNotFoundError:
            return 1, f"{self.argv[0]} is not there"
        return done.returncode, done.stdout or done.stderr

    def _done(self) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, **self.environment}
        return subprocess.run(
            self.argv, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )


@dataclass(frozen=True, slots=True)
class Wait:
    """To wait until the grid is ready. `run` returns when it is, and raises GridError when it will not be."""

    run: Callable[[], None]

    def __str__(self) -> str:
        return "wait until the grid is ready"


@dataclass(frozen=True, slots=True)
class User:
    """The system user that the grid runs as; it has no password and no shell."""

    name: str
    home: Path

    def __str__(self) -> str:
        return f"make the user {self.name}"

    def is_needed(self) -> bool:
        return uid_of(self.name) is None

    def make(self) -> None:
        shell = shutil.which("nologin") or "/usr/sbin/nologin"
        options = ("--system", "--user-group", "--no-create-home", "--home-dir", str(self.home), "--shell", shell)
        Command(("useradd", *options, self.name)).run()


@dataclass(frozen=True, slots=True)
class Directory:
    """A directory, which belongs to the user who installs."""

    MODE: ClassVar = 0o755
    path: Path

    def __str__(self) -> str:
        return f"make the directory {self.path} ({self.MODE:04o})"

    def is_needed(self) -> bool:
        return not os.path.isdir(self.path)  # not is_dir(), which raises where we may not look

    def make(self) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        self.path.chmod(self.MODE)


@dataclass(frozen=True, slots=True)
class TextFile:
    """A file. One that is the `operators`' is written only if it does not exist yet. `owner` and `group` are names;
    without them the file belongs to the user who installs."""

    path: Path
    text: str = field(repr=False)
    mode: int = 0o644
    operators: bool = False
    owner: str = ""
    group: str = ""
    is_secret: bool = False

    def __str__(self) -> str:
        whose = f", {self.owner}" if self.owner else f", group {self.group}" if self.group else ""
        return f"write {self.path} ({self.mode:04o}{whose})"

    def is_needed(self) -> bool:
        if self.operators:
            return not os.path.lexists(self.path)  # it is not read: a log may be as large as the disk
        return text_of(self.path) != self.text

    def make(self) -> None:
        uid = pwd.getpwnam(self.owner).pw_uid if self.owner else -1
        gid = grp.getgrnam(self.group).gr_gid if self.group else -1
        write(self.path, self.text, self.mode, uid, gid)

    def shown(self, *, in_full: bool) -> Sequence[str]:
        """What changes, as lines of a diff; the text of a new file, if `in_full`. Nothing of one that is secret or the
        operators'."""
        if self.is_secret or self.operators:
            return []
        there = text_of(self.path)
        if there is None:
            return self.text.splitlines() if in_full else []
        return list(difflib.unified_diff(there.splitlines(), self.text.splitlines(), "now", "then", n=0, lineterm=""))[
            2:
        ]


@dataclass(frozen=True, slots=True)
class ChangeOwner:
    """A file that an earlier installation has left, for the user that the grid runs as now: its uid may be another."""

    path: Path
    owner: str

    def __str__(self) -> str:
        return f"give {self.path} to {self.owner}"

    def is_needed(self) -> bool:
        return self.path.is_file() and self.path.stat().st_uid != uid_of(self.owner)

    def make(self) -> None:
        os.chown(self.path, pwd.getpwnam(self.owner).pw_uid, -1, follow_symlinks=False)


Step = User | Directory | TextFile | ChangeOwner


def make(step: Step) -> None:
    """Does one step. Raises GridError when it fails."""
    try:
        step.make()
    except OSError as error:
        raise GridError(f"cannot {step}: {error.strerror}") from None


def described(steps: Iterable[Step | Command | Wait], *, in_full: bool) -> Iterator[str]:
    """The steps as lines for people, files with what changes in them."""
    for step in steps:
        yield f"  {step}"
        if isinstance(step, TextFile):
            yield from (f"      {line}" for line in step.shown(in_full=in_full))


def text_of(path: Path) -> str | None:
    """The text of a file; None where there is none. Raises GridError for one that cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise GridError(f"cannot read {path}: {error.strerror}") from None


def uid_of(user: str) -> int | None:
    """The uid of a user; None where there is no such user."""
    try:
        return pwd.getpwnam(user).pw_uid
    except KeyError:
        return None


def write(path: Path, text: str, mode: int, uid: int = -1, gid: int = -1) -> None:
    """Writes a file whole or not at all, so that it survives a crash of the host. Raises OSError."""
    write_whole(path, text.encode(errors="surrogateescape"), mode=mode, uid=uid, gid=gid, durable=True)
