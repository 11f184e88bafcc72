"""Finds how this very pwgrid is called: by a service, and by its user."""

import os
import shlex
import shutil
import sys
from pathlib import Path


def by_path() -> tuple[str, ...]:
    """The command with its full path."""
    script = Path(sys.executable).parent / "pwgrid"
    return (str(script),) if os.access(script, os.X_OK) else (sys.executable, "-m", "pwgrid")


def on_path(script: str) -> str | None:
    """The `pwgrid` that PATH has, if it leads to this very script; another one has other code."""
    found = shutil.which("pwgrid")
    return found if found is not None and Path(found).resolve() == Path(script).resolve() else None


def typed() -> str:
    """What the user types to call this command again: its name if PATH has it, else its path."""
    script, *module = by_path()
    if module:
        return shlex.join((script, *module))
    if on_path(script) is not None:
        return "pwgrid"
    try:
        return shlex.quote(str(Path(script).relative_to(Path.cwd())))
    except (ValueError, FileNotFoundError):  # it is elsewhere, or the current directory was removed
        return shlex.quote(script)
