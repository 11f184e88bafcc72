"""Completion for bash, zsh and fish: click makes the scripts, and this module installs them where shells look."""

from __future__ import annotations

import contextlib
import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
from click.shell_completion import get_completion_class

from pwgrid.common.atomic_write import READABLE, rewrite, write_whole
from pwgrid.common.directories import home
from pwgrid.common.errors import GridError

if TYPE_CHECKING:
    from pwgrid.runtime.find_grids import RunningGrid

SHELLS: Final = ("bash", "zsh", "fish")
_MARK: Final = "# pwgrid completion"
_ZSH_HEAD: Final = "(( $+functions[compdef] )) || { autoload -Uz compinit && compinit; }\n"


def script(command: click.Command, shell: str) -> str:
    """The completion script for this shell."""
    found = get_completion_class(shell)
    assert found is not None
    text = found(command, {}, "pwgrid", "_PWGRID_COMPLETE").source()
    # zsh expects a file that begins with #compdef to be in fpath; this one is not.
    return _ZSH_HEAD + text.removeprefix("#compdef pwgrid\n") if shell == "zsh" else text


def named_or_own(shell: str | None) -> str:
    """`shell`, or else the user's own. Raises GridError for an unknown one."""
    name = shell or Path(os.environ.get("SHELL", "")).name
    if name not in SHELLS:
        raise GridError(f"name the shell, one of {', '.join(SHELLS)}: $SHELL is {os.environ.get('SHELL') or 'not set'}")
    return name


def install(command: click.Command, shell: str) -> list[str]:
    """Writes the script, and a line into the shell's start-up file where the shell needs it; may be repeated.

    Returns a line for each thing done. Raises GridError.
    """
    file, startup = _places(shell)
    done = []
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, script(command, shell).encode(), mode=READABLE)
        done.append(f"wrote {file}")
        if startup is not None:
            _set_line(startup, f"[ -r {shlex.quote(str(file))} ] && . {shlex.quote(str(file))}  {_MARK}")
            done.append(f"{startup} reads it")
    except OSError as error:
        raise GridError(f"cannot write {error.filename}: {error.strerror}") from None
    return [*done, f"open another {shell} to use it"]


def uninstall(shell: str) -> list[str]:
    """Removes exactly what `install` has written; returns a line for each thing done. Raises GridError."""
    file, startup = _places(shell)
    done = []
    try:
        if file.exists():
            file.unlink()
            done.append(f"removed {file}")
            if startup is not None:  # else the directory is the shell's
                with contextlib.suppress(OSError):  # another shell's script is in it
                    file.parent.rmdir()
        if startup is not None and _set_line(startup, None):
            done.append(f"{startup} reads it no more")
    except OSError as error:
        raise GridError(f"cannot change {error.filename}: {error.strerror}") from None
    return done or ["there was nothing to remove"]


def _places(shell: str) -> tuple[Path, Path | None]:
    """The file for the script, and the shell's start-up file, or None where the shell finds the script by itself."""
    own = home()
    if shell == "fish":
        config = Path(os.environ.get("XDG_CONFIG_HOME") or own / ".config")
        return config / "fish" / "completions" / "pwgrid.fish", None
    data = Path(os.environ.get("XDG_DATA_HOME") or own / ".local" / "share")
    startup = Path(os.environ.get("ZDOTDIR") or own) / ".zshrc" if shell == "zsh" else own / ".bashrc"
    return data / "pwgrid" / f"completion.{shell}", startup


def _set_line(file: Path, line: str | None) -> bool:
    """Removes our line from the file, and appends `line` unless it is None; returns whether the file changed."""
    # It is the user's, in whatever encoding: what is not ours is written back byte by byte.
    before = file.read_bytes().decode("utf-8", "surrogateescape") if file.exists() else ""
    kept = "".join(each for each in before.splitlines(keepends=True) if not each.rstrip("\n").endswith(_MARK))
    joint = "\n" if line is not None and kept and not kept.endswith("\n") else ""
    after = kept + (f"{joint}{line}\n" if line is not None else "")
    if after == before:
        return False
    rewrite(file, after.encode("utf-8", "surrogateescape"))
    return True


# Completion of names that only a running grid knows


def complete(what: str, context: click.Context, incomplete: str) -> list[str]:
    """The names of this kind that begin so; none where no grid is found, since a shell that completes has no place for
    a sentence."""
    from pwgrid.cli.ask_grid import find_grid

    try:
        names = _names(what, find_grid(context.params.get("port"), context.params.get("runtime_dir")))
    except GridError:
        return []
    return [name for name in names if name.startswith(incomplete)]


def _names(what: str, grid: RunningGrid) -> list[str]:
    """All names of this kind that the grid has now."""
    from pwgrid.cli import grid_queries
    from pwgrid.cli.ask_grid import ask

    if what == "session":
        return [session["id"] for session in grid_queries.sessions(grid, None, 100)]
    status = ask(grid, "status")
    if what == "worker":
        return [worker["id"] for worker in status["workers"]]
    pools = [pool["name"] for pool in status["pools"]]
    return [f"{name}=" for name in pools] if what == "scale" else pools
