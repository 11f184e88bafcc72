"""Where a grid was started: relative paths of its configuration and its environment mean files below that, also after
the directory was removed or made anew, and after the master has executed itself."""

import os
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Final

_VARIABLE: Final = "PWGRID_STARTED_IN"
"""A pid and the directory: for that process, when it executes itself, and for its children that do. Others that it
starts have a current directory of their own."""

_PATHS: Final = (
    *("TMPDIR", "TEMP", "TMP", "XDG_CACHE_HOME", "XDG_CONFIG_HOME"),
    *("PWGRID_REDIS_SERVER", "SSL_CERT_FILE", "SSL_CERT_DIR"),
)
_LISTS: Final = ("PATH", "PYTHONPATH")
_BROWSERS: Final = "PLAYWRIGHT_BROWSERS_PATH"


def settle(environ: MutableMapping[str, str]) -> None:
    """Notes the start directory in the environment of a process that becomes a master, and has those variables name
    absolute paths that the grid's code reads."""
    if (directory := start_directory(environ)) is None:
        return
    environ.update(note(directory))
    is_place = environ.get(_BROWSERS, "0") != "0" and "INIT_CWD" not in environ  # Playwright's own rules
    for name in (*_PATHS, *([_BROWSERS] if is_place else [])):
        if path := environ.get(name):
            environ[name] = str(absolute(path, directory))
    for name in _LISTS:
        if paths := environ.get(name):
            environ[name] = os.pathsep.join(each and str(absolute(each, directory)) for each in paths.split(os.pathsep))


def start_directory(environ: Mapping[str, str]) -> Path | None:
    """The directory that `settle` has noted for this process, else the current one; None if that was removed."""
    pid, _, directory = environ.get(_VARIABLE, "").partition(" ")
    if directory and pid in (str(os.getpid()), str(os.getppid())):
        return Path(directory)
    try:
        return Path.cwd()
    except FileNotFoundError:
        return None


def note(directory: Path | None) -> dict[str, str]:
    """The variable that tells this process of its start directory; none where that is not known."""
    return {} if directory is None else {_VARIABLE: f"{os.getpid()} {directory}"}


def absolute(path: str | Path, directory: Path | None) -> Path:
    """The path below the directory. Leading `..` lead up from it, whether it exists or not; the others stay, since a
    link may be before them. Raises FileNotFoundError for a relative path where there is no directory."""
    below = Path(path)
    if below.is_absolute():
        return below
    above, parts = directory or Path.cwd(), below.parts
    while parts[:1] == ("..",):
        above, parts = above.parent, parts[1:]
    return above.joinpath(*parts)
