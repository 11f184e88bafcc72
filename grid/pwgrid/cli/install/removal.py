"""What an uninstallation removes of what was installed, and what stays."""

import errno
import os
import shutil
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Final

from pwgrid.cli.install.record import Record, digest_of
from pwgrid.cli.install.steps import Command, uid_of
from pwgrid.common.errors import GridError

_NAMES: Final = 5
"""As many names of what is in a directory are said."""


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
        for path, was in ((Path(path), was) for path, was in made.files.items()):
            if os.path.lexists(path):
                (self.files if purge or digest_of(path) == was else self.kept).append(path)
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


def _why_left(directory: Path, error: OSError) -> str:
    if error.errno != errno.ENOTEMPTY:
        return error.strerror or str(error)
    names = sorted(os.listdir(directory))
    more = f" and {len(names) - _NAMES} more" if len(names) > _NAMES else ""
    return f"in which there is {', '.join(names[:_NAMES])}{more}"
