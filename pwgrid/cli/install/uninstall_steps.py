"""Decides what an uninstallation removes, by the record of what the installation has made. Reads and writes nothing."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from pwgrid.cli.install.install_steps import Record, digest


@dataclass(frozen=True, slots=True)
class Removal:
    """What an uninstallation removes, the innermost first, and what stays (`kept`) since it was changed."""

    files: tuple[Path, ...]
    trees: tuple[Path, ...]
    directories: tuple[Path, ...]
    whole: Collection[Path]
    """Those of the directories that go with all that is in them; the others go if they are empty."""
    user: str
    kept: tuple[Path, ...]


def removal(made: Record, contents: Mapping[Path, str], own: Collection[Path], *, purge: bool) -> Removal:
    """What of `made` to remove, where `contents` are the texts of those of its files that exist. `own` are the
    directories that nobody but the grid uses: a ~/.config that it had to make is everybody's since. A file that was
    changed since stays, and so does what else is in a directory, unless `purge`."""
    kept = tuple(
        Path(path)
        for path, was in made.files.items()
        if not purge and Path(path) in contents and digest(contents[Path(path)]) != was
    )
    directories = tuple(sorted(map(Path, made.directories), key=lambda path: len(path.parts), reverse=True))
    return Removal(
        files=tuple(Path(path) for path in made.files if Path(path) in contents and Path(path) not in kept),
        trees=tuple(map(Path, made.trees)),
        directories=directories,
        whole={each for each in directories if purge and each in own},
        user=made.user,
        kept=kept,
    )
