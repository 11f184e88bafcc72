"""What an installation makes on the host, the record of what it has made, and what is removed by that record."""

import difflib
import errno
import grp
import hashlib
import json
import os
import pwd
import shlex
import shutil
import subprocess
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final

from pwgrid.common.atomic_write import write_whole
from pwgrid.common.errors import GridError

RECORD: Final = "installed.json"
"""In the configuration's directory, which belongs to the user who installs: no other user may say what is removed."""

_NAMES: Final = 5
"""As many names of what is in a directory are said."""


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
        there = text_of(self.path)
        return there is None or (there != self.text and not self.operators)

    def make(self) -> None:
        uid = pwd.getpwnam(self.owner).pw_uid if self.owner else -1
        gid = grp.getgrnam(self.group).gr_gid if self.group else -1
        _write(self.path, self.text, self.mode, uid, gid)

    def shown(self, *, in_full: bool) -> Sequence[str]:
        """What changes, as lines of a diff; the text of a new file that is not the operators', if `in_full`."""
        if self.is_secret:
            return []
        there = text_of(self.path)
        if there is None:
            return self.text.splitlines() if in_full and not self.operators else []
        return list(difflib.unified_diff(there.splitlines(), self.text.splitlines(), "now", "then", n=0, lineterm=""))[
            2:
        ]


@dataclass(frozen=True, slots=True)
class Handover:
    """A file that an earlier installation has left, for the user that the grid runs as now: its uid may be another."""

    path: Path
    owner: str

    def __str__(self) -> str:
        return f"give {self.path} to {self.owner}"

    def is_needed(self) -> bool:
        return self.path.is_file() and self.path.stat().st_uid != uid_of(self.owner)

    def make(self) -> None:
        os.chown(self.path, pwd.getpwnam(self.owner).pw_uid, -1, follow_symlinks=False)


Step = User | Directory | TextFile | Handover


@dataclass(frozen=True, slots=True)
class Record:
    """What an installation has made, so that exactly this is removed: no file that was there before, and none that was
    changed since. `under` is the service manager, `options` are those of the command."""

    under: str
    options: Mapping[str, Any]
    user: str = ""
    directories: Sequence[str] = field(default_factory=list)
    files: Mapping[str, str] = field(default_factory=dict)
    """Digests by path."""
    trees: Sequence[str] = field(default_factory=list)
    """Directories whose whole content is the installation's."""

    @classmethod
    def read(cls, directory: Path) -> "Record | None":
        """Reads the record of the earlier installation; None if there is none. Raises GridError for a damaged file."""
        path = directory / RECORD
        text = text_of(path)
        if text is None:
            return None
        try:
            return cls(**json.loads(text))
        except (ValueError, TypeError):
            raise GridError(
                f"{path} is damaged, so it does not say what was installed: remove it, and the service by hand"
            ) from None

    def with_all(self, before: "Record | None", wanted: Sequence[Step], needed: Collection[Step]) -> "Record":
        """This record with what the installation `before` has made, and with those of the `wanted` steps that are
        `needed` now."""
        made = before or self
        files = {
            str(each.path): digest(each.text)
            for each in wanted
            if isinstance(each, TextFile) and (each in needed or (not each.operators and str(each.path) in made.files))
        }
        directories = [str(each.path) for each in needed if isinstance(each, Directory)]
        user = next((each.name for each in needed if isinstance(each, User)), made.user)
        return Record(
            self.under,
            self.options,
            user,
            list(dict.fromkeys([*made.directories, *directories])),
            {**made.files, **files},
            list(dict.fromkeys([*made.trees, *self.trees])),
        )


def make_all(steps: Sequence[Step], config: Path, made: Record) -> None:
    """Does all steps. Writes the record as soon as its directory is made, so that an installation that is broken off
    can be removed, too. Raises GridError."""
    for step in steps:
        if isinstance(step, Directory):
            make(step)
    _write(config / RECORD, json.dumps(asdict(made), indent=2) + "\n", 0o644)
    for step in steps:
        if not isinstance(step, Directory):
            make(step)


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


class Removal:
    """What an uninstallation removes of what was `made`, the innermost first, and what stays (`kept`).

    `own` are the directories that nobody but the grid uses: a ~/.config that it had to make is everybody's since. A
    file that was changed since stays, and so does what else is in a directory, unless `purge`. Raises GridError for a
    file that cannot be read.
    """

    def __init__(self, made: Record, own: Collection[Path], *, purge: bool) -> None:
        self._own = own
        self.user = made.user
        self.files: list[Path] = []
        self.kept: list[Path] = []
        for path, was in made.files.items():
            if (text := text_of(Path(path))) is not None:
                (self.files if purge or digest(text) == was else self.kept).append(Path(path))
        self.trees = [Path(each) for each in made.trees]
        self.directories = sorted(map(Path, made.directories), key=lambda path: len(path.parts), reverse=True)
        self.whole = {each for each in self.directories if purge and each in own}
        """Those of the directories that go with all that is in them; the others go if they are empty."""

    def described(self) -> Iterator[str]:
        """Lines for people."""
        yield from (f"remove {each}" for each in (*self.files, *self.trees))
        if self.user:
            yield f"remove the user {self.user}"
        yield from (f"remove {each}{'' if each in self.whole else ', if it is empty'}" for each in self.directories)
        yield from (f"leave {path}: it was changed since (--purge removes it, too)" for path in self.kept)

    def remove_files(self) -> None:
        """Removes files and trees. Raises GridError."""
        try:
            for file in self.files:
                file.unlink(missing_ok=True)
            for tree in self.trees:
                if tree.is_dir():
                    shutil.rmtree(tree)
        except OSError as error:
            raise GridError(f"cannot remove {error.filename}: {error.strerror}") from None

    def remove_user(self) -> None:
        """Removes the user, if there is one. What the user has left in our own directories becomes ours, so that no
        later user of the same uid has it. Raises GridError, also while a process of that user runs."""
        if self.user and (uid := uid_of(self.user)) is not None:
            for path in (path for directory in self._own for path in directory.rglob("*")):
                if path.lstat().st_uid == uid:
                    os.chown(path, os.geteuid(), -1, follow_symlinks=False)
            Command(("userdel", self.user)).run()

    def remove_directories(self, say: Callable[[str], None]) -> None:
        """Removes the directories, and says what stays: of directories in each other, the innermost."""
        for path in self.kept:
            say(f"left: {path}, it was changed since")
        left: list[Path] = []
        for directory in self.directories:
            try:
                if directory in self.whole and directory.is_dir():
                    shutil.rmtree(directory)
                else:
                    directory.rmdir()
            except FileNotFoundError:
                continue
            except OSError as error:
                if not any(each.is_relative_to(directory) for each in left):
                    say(f"left: {directory}, {_why_left(directory, error)}")
                left.append(directory)


def digest(text: str) -> str:
    """The SHA-256 of a text, in hex."""
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()


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


def _why_left(directory: Path, error: OSError) -> str:
    if error.errno != errno.ENOTEMPTY:
        return error.strerror or str(error)
    names = sorted(os.listdir(directory))
    more = f" and {len(names) - _NAMES} more" if len(names) > _NAMES else ""
    return f"in which there is {', '.join(names[:_NAMES])}{more}"


def _write(path: Path, text: str, mode: int, uid: int = -1, gid: int = -1) -> None:
    write_whole(path, text.encode(errors="surrogateescape"), mode=mode, uid=uid, gid=gid, durable=True)
