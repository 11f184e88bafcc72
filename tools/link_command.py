"""Puts a link to the command `pwgrid` of this checkout where the user has commands. Run by `make up` and `make link`.

That is ~/.local/bin or ~/bin, whichever is on PATH, or the given directory. .venv/bin itself does not belong on PATH:
its python would hide the user's. Standard library only.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

COMMAND = Path(__file__).resolve().parent.parent / ".venv" / "bin" / "pwgrid"
USUAL = ("~/.local/bin", "~/bin")


def say(text: str) -> None:
    print(f"pwgrid set-up: {text}", flush=True)  # noqa: T201


def places() -> list[Path]:
    """The user's own directories for commands that are on PATH; none for a user who has no home directory."""
    try:
        usual = [Path(place).expanduser() for place in USUAL]
    except RuntimeError:
        return []
    on_path = {os.path.realpath(entry) for entry in os.environ.get("PATH", "").split(os.pathsep) if entry}
    return [place for place in usual if os.path.realpath(place) in on_path]


def is_ours(link: Path) -> bool:
    """Whether the link leads to the command of a checkout, this one or another."""
    return link.is_symlink() and os.readlink(link).endswith("/.venv/bin/pwgrid")


def put(link: Path) -> str:
    """Makes the link; returns a sentence for the user, empty when the link was there already. Exits where it cannot."""
    if link.is_symlink() and os.readlink(link) == str(COMMAND):
        return ""
    if os.path.lexists(link) and not is_ours(link):
        return f"{link} is there already, and no link of ours: the command of this checkout is {COMMAND}"
    before = f"; it led to {os.readlink(link)}" if link.is_symlink() else ""
    try:
        link.parent.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(COMMAND)
    except OSError as error:
        sys.exit(f"pwgrid set-up: cannot put a link to the command into {link.parent}: {error.strerror}")
    return f"the command is {link}, a link to {COMMAND}{before}"


def remove(link: Path) -> None:
    """Removes the link. Exits where it cannot."""
    try:
        link.unlink()
    except OSError as error:
        sys.exit(f"pwgrid set-up: cannot remove {link}: {error.strerror}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", nargs="?", type=Path, help="where to put it, if not in a usual place")
    parser.add_argument("--remove", action="store_true", help="remove the link in a usual place")
    arguments = parser.parse_args()
    try:
        chosen = [arguments.directory.expanduser()] if arguments.directory else places()
    except RuntimeError:
        sys.exit("pwgrid set-up: this user has no home directory: set HOME")
    if arguments.remove:
        for link in (place / "pwgrid" for place in chosen):
            if link.is_symlink() and os.readlink(link) == str(COMMAND):
                remove(link)
    elif not chosen:
        say(f"the command is {COMMAND}; `make link LINK=DIRECTORY` puts a link to it into a directory of your PATH")
    elif said := put(chosen[0] / "pwgrid"):
        say(said)


if __name__ == "__main__":
    main()
