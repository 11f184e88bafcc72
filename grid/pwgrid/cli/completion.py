"""Completion for bash, zsh and fish: click makes the scripts, and this module installs them where shells look."""

from __future__ import annotations

import contextlib
import os
import shlex
from pathlib import Path
from typing import Final

import click
from click.shell_completion import get_completion_class

from pwgrid.common.atomic_write import READABLE, rewrite, write_whole
from pwgrid.common.errors import GridError
from pwgrid.common.paths import home

_SHELLS: Final = ("bash", "zsh", "fish")
_MARK: Final = "# pwgrid completion"
_ZSH_HEAD: Final = "(( $+functions[compdef] )) || { autoload -Uz compinit && compinit; }\n"


@click.group()
def completion() -> None:
    """Completes commands, options, workers and sessions in bash, zsh and fish."""


def _or_own(_context: click.Context, _parameter: click.Parameter, shell: str | None) -> str:
    """`shell`, or else the user's own. Raises GridError for an unknown one."""
    name = shell or Path(os.environ.get("SHELL", "")).name
    if name not in _SHELLS:
        raise GridError(
            f"name the shell, one of {', '.join(_SHELLS)}: $SHELL is {os.environ.get('SHELL') or 'not set'}"
        )
    return name


_shell = click.argument("shell", required=False, type=click.Choice(_SHELLS), callback=_or_own)


@completion.command("install")
@_shell
def completion_install(shell: str) -> None:
    """Installs completion for SHELL (default: your own shell); may be repeated."""
    file, startup = _places(shell)
    done = [f"wrote {file}"]
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, _script(shell).encode(), mode=READABLE)
        if startup is not None:
            _set_line(startup, f"[ -r {shlex.quote(str(file))} ] && . {shlex.quote(str(file))}  {_MARK}")
            done.append(f"{startup} reads it")
    except OSError as error:
        raise GridError(f"cannot write {error.filename}: {error.strerror}") from None
    click.echo("\n".join([*done, f"open another {shell} to use it"]))


@completion.command("uninstall")
@_shell
def completion_uninstall(shell: str) -> None:
    """Removes what `pwgrid completion install` has written."""
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
    click.echo("\n".join(done) or "there was nothing to remove")


@completion.command("show")
@_shell
def completion_show(shell: str) -> None:
    """Prints the completion script for SHELL (default: your own shell)."""
    click.echo(_script(shell))


def _script(shell: str) -> str:
    found = get_completion_class(shell)
    assert found is not None
    text = found(completion, {}, "pwgrid", "_PWGRID_COMPLETE").source()  # any command will do: it is not in the script
    # zsh expects a file that begins with #compdef to be in fpath; this one is not.
    return _ZSH_HEAD + text.removeprefix("#compdef pwgrid\n") if shell == "zsh" else text


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
