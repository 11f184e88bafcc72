"""What an installation consists of, and what has to be done for it and undone again. Reads and writes nothing."""

import difflib
import hashlib
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

_DIRECTORY_MODE: Final = 0o755


@dataclass(frozen=True, slots=True)
class User:
    """A user of the system that the grid runs as; it has no password and no shell."""

    name: str
    home: Path

    def __str__(self) -> str:
        return f"make the user {self.name}"


@dataclass(frozen=True, slots=True)
class Directory:
    """A directory, of whoever installs."""

    path: Path
    mode: int = _DIRECTORY_MODE

    def __str__(self) -> str:
        return f"make the directory {self.path} ({self.mode:04o})"


@dataclass(frozen=True, slots=True)
class TextFile:
    """A file of ours. One that belongs to the `operators` is written only where there is none yet. `owner` and `group`
    are names; without them it belongs to whoever installs."""

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
class Command:
    """A command to run. `environment` goes beside ours; `accepted` are the exit codes that are no failure."""

    argv: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    accepted: Collection[int] = (0,)

    def __str__(self) -> str:
        variables = [f"{name}={value}" for name, value in self.environment.items()]
        return "run " + " ".join(map(shlex.quote, (*variables, *self.argv)))


Step = User | Directory | TextFile | Command


@dataclass(frozen=True, slots=True)
class Wanted:
    """All that has to be there, in the order in which it is made: user, directories, files."""

    user: User | None
    directories: tuple[Directory, ...]
    files: tuple[TextFile, ...]


@dataclass(frozen=True, slots=True)
class Present:
    """What is there of it already: the texts of files, directories, and whether the user is known."""

    files: Mapping[Path, str]
    directories: Collection[Path]
    has_user: bool


@dataclass(frozen=True, slots=True)
class Record:
    """What an installation has made, so that exactly this is removed: no file that was there before it, and none that
    somebody has changed since. `under` is the service manager, `options` is what it was asked for."""

    under: str
    options: Mapping[str, Any]
    user: str = ""
    directories: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    """Path and digest."""
    trees: tuple[str, ...] = ()
    """Directories whose whole content is the installation's."""

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> "Record":
        """From JSON. Raises TypeError for what is none."""
        return cls(
            **{**found, "directories": tuple(found.get("directories", ())), "trees": tuple(found.get("trees", ()))}
        )


@dataclass(frozen=True, slots=True)
class Removal:
    """What an uninstallation removes, the innermost first, and what stays, with the reason."""

    files: tuple[Path, ...]
    trees: tuple[Path, ...]
    directories: tuple[Path, ...]
    user: str
    kept: Mapping[Path, str]


def steps(wanted: Wanted, present: Present) -> list[Step]:
    """What is still to be made."""
    found: list[Step] = [] if wanted.user is None or present.has_user else [wanted.user]
    found += [each for each in wanted.directories if each.path not in present.directories]
    for file in wanted.files:
        there = present.files.get(file.path)
        if there is None or (there != file.text and not file.operators):
            found.append(file)
    return found


def record(wanted: Wanted, present: Present, before: Record | None, fresh: Record) -> Record:
    """`fresh` with all that this installation makes and the one before has made."""
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


def removal(made: Record, contents: Mapping[Path, str], *, purge: bool) -> Removal:
    """What of `made` goes, where `contents` are the texts of those files that are there. A file that was changed since
    stays, unless everything is to go."""
    kept = {
        Path(path): "it was changed since (--purge removes it, too)"
        for path, was in made.files.items()
        if not purge and Path(path) in contents and digest(contents[Path(path)]) != was
    }
    return Removal(
        files=tuple(Path(path) for path in made.files if Path(path) in contents and Path(path) not in kept),
        trees=tuple(map(Path, made.trees)),
        directories=tuple(sorted(map(Path, made.directories), key=lambda path: len(path.parts), reverse=True)),
        user=made.user,
        kept=kept,
    )


def described(found: Sequence[Step], present: Present, *, in_full: bool) -> Iterator[str]:
    """The steps for people. Files that change are shown as a diff, new ones of ours `in_full` with what they say."""
    for step in found:
        yield f"  {step}"
        if isinstance(step, TextFile):
            yield from (f"      {line}" for line in _shown(step, present.files.get(step.path), in_full=in_full))


def digest(text: str) -> str:
    """SHA-256."""
    return hashlib.sha256(text.encode()).hexdigest()


def _shown(file: TextFile, there: str | None, *, in_full: bool) -> Iterable[str]:
    if file.is_secret:
        return []
    if there is None:
        return file.text.splitlines() if in_full and not file.operators else []
    lines = difflib.unified_diff(there.splitlines(), file.text.splitlines(), "now", "then", n=0, lineterm="")
    return list(lines)[2:]
