"""The record of what an installation has made, by which it is removed."""

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from pwgrid.cli.install.steps import Directory, Step, TextFile, User, make, text_of, write
from pwgrid.common.errors import GridError

RECORD: Final = "installed.json"
"""In the configuration's directory, which belongs to the user who installs: no other user may say what is removed."""


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
    write(config / RECORD, json.dumps(asdict(made), indent=2) + "\n", 0o644)
    for step in steps:
        if not isinstance(step, Directory):
            make(step)


def digest_of(path: Path) -> str | None:
    """The same of a file, which may be larger than memory; None where a link leads to none. Raises GridError for one
    that cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise GridError(f"cannot read {path}: {error.strerror}") from None


def digest(text: str) -> str:
    """The SHA-256 of a text, in hex."""
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()
