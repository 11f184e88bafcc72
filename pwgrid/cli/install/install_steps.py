"""Decides what an installation has to make, and what is put on record of it. Reads and writes nothing."""

import difflib
import hashlib
import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar


@dataclass(frozen=True, slots=True)
class User:
    """The system user that the grid runs as; it has no password and no shell."""

    name: str
    home: Path

    def __str__(self) -> str:
        return f"make the user {self.name}"


@dataclass(frozen=True, slots=True)
class Directory:
    """A directory, which belongs to the user who installs."""

    MODE: ClassVar = 0o755
    path: Path

    def __str__(self) -> str:
        return f"make the directory {self.path} ({self.MODE:04o})"


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


@dataclass(frozen=True, slots=True)
class Handover:
    """A file that an earlier installation has left, for the user that the grid runs as now: its uid may be another."""

    path: Path
    owner: str

    def __str__(self) -> str:
        return f"give {self.path} to {self.owner}"


@dataclass(frozen=True, slots=True)
class Command:
    """A command to run. `environment` is added to ours; `accepted` are the exit codes that are no failure."""

    argv: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    accepted: Collection[int] = (0,)

    def __str__(self) -> str:
        variables = [f"{name}={value}" for name, value in self.environment.items()]
        return "run " + shlex.join((*variables, *self.argv))


@dataclass(frozen=True, slots=True)
class Wait:
    """To wait until the grid is ready. `for_it` returns when it is, and raises GridError when it will not be."""

    for_it: Callable[[], None]

    def __str__(self) -> str:
        return "wait until the grid is ready"


Step = User | Directory | TextFile | Handover | Command


@dataclass(frozen=True, slots=True)
class Requirements:
    """All that has to be there, in the order in which it is made: user, directories, files. `kept` are the files that
    are there perhaps, and whose they have to be then."""

    user: User | None
    directories: tuple[Directory, ...]
    files: tuple[TextFile, ...]
    kept: tuple[Handover, ...] = ()


@dataclass(frozen=True, slots=True)
class Present:
    """What of Requirements is there already: the texts of files, directories, whether the user exists, and which kept
    files are another user's."""

    files: Mapping[Path, str]
    directories: Collection[Path]
    has_user: bool
    others: Collection[Path] = ()


@dataclass(frozen=True, slots=True)
class Record:
    """What an installation has made, so that exactly this is removed: no file that was there before, and none that was
    changed since. `under` is the service manager, `options` are those of the command."""

    under: str
    options: Mapping[str, Any]
    user: str = ""
    directories: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    """Digests by path."""
    trees: tuple[str, ...] = ()
    """Directories whose whole content is the installation's."""

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> "Record":
        """The record that is in JSON as `found`. Raises TypeError for anything else."""
        return cls(
            **{**found, "directories": tuple(found.get("directories", ())), "trees": tuple(found.get("trees", ()))}
        )


def steps(wanted: Requirements, present: Present) -> list[Step]:
    """What of `wanted` has still to be made."""
    found: list[Step] = [] if wanted.user is None or present.has_user else [wanted.user]
    found += [each for each in wanted.directories if each.path not in present.directories]
    for file in wanted.files:
        there = present.files.get(file.path)
        if there is None or (there != file.text and not file.operators):
            found.append(file)
    return [*found, *(each for each in wanted.kept if each.path in present.others)]


def record(wanted: Requirements, present: Present, before: Record | None, fresh: Record) -> Record:
    """`fresh` with all that this installation makes and the earlier one made."""
    files = dict(before.files) if before else {}
    directories = list(before.directories) if before else []
    user = before.user if before else ""
    for file in wanted.files:
        there = present.files.get(file.path)
        is_ours = not file.operators and (there != file.text or str(file.path) in files)
        if there is None or is_ours:
            files[str(file.path)] = digest(file.text)
    directories += [str(each.path) for each in wanted.directories if each.path not in present.directories]
    if wanted.user is not None and not present.has_user:
        user = wanted.user.name
    return Record(
        fresh.under,
        fresh.options,
        user,
        tuple(dict.fromkeys(directories)),
        files,
        tuple(dict.fromkeys([*(before.trees if before else ()), *fresh.trees])),
    )


def described(found: Sequence[Step | Wait], present: Present, *, in_full: bool) -> Iterator[str]:
    """The steps as lines for people. A file that changes is shown as a diff; a new one that is not the operators' with
    its text, if `in_full`."""
    for step in found:
        yield f"  {step}"
        if isinstance(step, TextFile):
            yield from (f"      {line}" for line in _shown(step, present.files.get(step.path), in_full=in_full))


def digest(text: str) -> str:
    """The SHA-256 of a text, in hex."""
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()


def _shown(file: TextFile, there: str | None, *, in_full: bool) -> Iterable[str]:
    if file.is_secret:
        return []
    if there is None:
        return file.text.splitlines() if in_full and not file.operators else []
    lines = difflib.unified_diff(there.splitlines(), file.text.splitlines(), "now", "then", n=0, lineterm="")
    return list(lines)[2:]
