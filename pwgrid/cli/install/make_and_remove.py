"""Reads what an installation finds; makes what install_steps, removes what uninstall_steps decides. Decides nothing."""

import errno
import grp
import json
import os
import pwd
import shutil
import subprocess
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

from pwgrid.cli.install.host_facts import uid_of
from pwgrid.cli.install.install_steps import (
    Command,
    Directory,
    Handover,
    Present,
    Record,
    Requirements,
    Step,
    TextFile,
    User,
)
from pwgrid.cli.install.uninstall_steps import Removal
from pwgrid.common.atomic_write import write_whole
from pwgrid.common.errors import GridError

RECORD: Final = "installed.json"
"""In the configuration's directory, which belongs to the user who installs: no other user may say what is removed."""

_NAMES: Final = 5
"""As many names of what is in a directory are said."""


def present(wanted: Requirements) -> Present:
    """What of `wanted` is there already."""
    return Present(
        files=contents(each.path for each in wanted.files),
        directories={each.path for each in wanted.directories if each.path.is_dir()},
        has_user=wanted.user is not None and uid_of(wanted.user.name) is not None,
        others={
            each.path for each in wanted.kept if each.path.is_file() and each.path.stat().st_uid != uid_of(each.owner)
        },
    )


def contents(paths: Iterable[Path]) -> dict[Path, str]:
    """The texts of those files that exist. Raises GridError for one that cannot be read."""
    found = {}
    for path in paths:
        try:
            found[path] = path.read_text(encoding="utf-8", errors="surrogateescape")
        except FileNotFoundError:
            continue
        except OSError as error:
            raise GridError(f"cannot read {path}: {error.strerror}") from None
    return found


def read_record(directory: Path) -> Record | None:
    """What the earlier installation made, or None. Raises GridError for a damaged file."""
    path = directory / RECORD
    text = contents([path]).get(path)
    if text is None:
        return None
    try:
        return Record.of(json.loads(text))
    except (ValueError, TypeError):
        raise GridError(
            f"{path} is damaged, so it does not say what was installed: remove it, and the service by hand"
        ) from None


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
        match step:
            case User(name, home):
                shell = shutil.which("nologin") or "/usr/sbin/nologin"
                options = ("--system", "--user-group", "--no-create-home", "--home-dir", str(home), "--shell", shell)
                run(Command(("useradd", *options, name)))
            case Directory(path):
                path.mkdir(parents=True, exist_ok=True)
                path.chmod(Directory.MODE)
            case TextFile(path, text, mode):
                _write(path, text, mode, step.owner, step.group)
            case Handover(path):
                os.chown(path, pwd.getpwnam(step.owner).pw_uid, -1, follow_symlinks=False)
            case Command():
                run(step)
    except OSError as error:
        raise GridError(f"cannot {step}: {error.strerror}") from None


def run(command: Command) -> str:
    """Runs a command and returns its output. Raises GridError with its error output when it fails."""
    environment = {**os.environ, **command.environment}
    try:
        done = subprocess.run(
            command.argv, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        raise GridError(f"there is no {command.argv[0]} on this host") from None
    if done.returncode not in command.accepted:
        said = (done.stderr.strip() or done.stdout.strip()).replace("\n", "\n  ")
        raise GridError(f"`{str(command).removeprefix('run ')}` failed ({done.returncode}):\n  {said}")
    return done.stdout


def remove_files(removal: Removal) -> None:
    """Removes files and trees. Raises GridError."""
    try:
        for file in removal.files:
            file.unlink(missing_ok=True)
        for tree in removal.trees:
            if tree.is_dir():
                shutil.rmtree(tree)
    except OSError as error:
        raise GridError(f"cannot remove {error.filename}: {error.strerror}") from None


def remove_user(user: str, own: Iterable[Path]) -> None:
    """Removes the user, if there is one. What the user has left in the directories `own` becomes ours, so that no later
    user of the same uid has it. Raises GridError, also while a process of that user runs."""
    if user and (uid := uid_of(user)) is not None:
        for path in (path for directory in own for path in directory.rglob("*")):
            if path.lstat().st_uid == uid:
                os.chown(path, os.geteuid(), -1, follow_symlinks=False)
        run(Command(("userdel", user)))


def remove_rest(removal: Removal, say: Callable[[str], None]) -> None:
    """Removes the directories, and says what stays: of directories in each other, the innermost."""
    for path in removal.kept:
        say(f"left: {path}, it was changed since")
    left: list[Path] = []
    for directory in removal.directories:
        try:
            if directory in removal.whole and directory.is_dir():
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


def _write(path: Path, text: str, mode: int, owner: str = "", group: str = "") -> None:
    uid = pwd.getpwnam(owner).pw_uid if owner else -1
    gid = grp.getgrnam(group).gr_gid if group else -1
    write_whole(path, text.encode(errors="surrogateescape"), mode=mode, uid=uid, gid=gid, durable=True)
