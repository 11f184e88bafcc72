"""`pwgrid token`: changes the file of tokens that a grid reads. Asks a running grid only for the file's path."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from pwgrid.cli.ask_grid import ask, find_grid
from pwgrid.cli.install.installation import SERVICE_USER, InstallPaths
from pwgrid.cli.install.make_and_remove import RECORD, uid_of
from pwgrid.common.errors import GridError, NoGridError
from pwgrid.runtime.find_grids import RunningGrid, find_running
from pwgrid.settings.load import DEFAULT_FILE, FILE_VARIABLE, find_tokens_file
from pwgrid.settings.pools import NAME as POOL_NAME
from pwgrid.tokens.file import changing, load
from pwgrid.tokens.tokens import NAME, NAME_RULE, Role, make


@dataclass(frozen=True, slots=True)
class Place:
    """The file of tokens, and the uid of the grid that runs with it, or of the service that will; else None."""

    path: Path
    reader: int | None = None


def place(config_file: Path | None, port: int | None, runtime_dir: str | None) -> Place:
    """Where the tokens are: beside the configuration file that is named, else where the running grid reads them, else
    in the default place.

    Raises GridError where several grids run, and for one that takes no tokens; UsageError where a named grid reads
    others than those of the named file.
    """
    is_grid_named = port is not None or runtime_dir is not None
    variable = "" if is_grid_named else os.environ.get(FILE_VARIABLE, "").strip()
    named = config_file or (Path(variable) if variable else None)
    path = named and find_tokens_file(named, os.environ)
    if path is not None and not is_grid_named:
        return Place(path, _reader_of(path) or _service_uid(path))
    try:
        grid = find_grid(port, runtime_dir)
    except NoGridError:
        if is_grid_named:
            raise
        path = find_tokens_file(DEFAULT_FILE if os.path.exists(DEFAULT_FILE) else None, os.environ)
        return Place(path, _service_uid(path))
    if (found := _file_of(grid)) is None:
        raise GridError("this is a private grid (pwgrid run): it takes no tokens")
    if path is not None and path.resolve() != found.resolve():
        raise click.UsageError(f"the grid on port {grid.port} reads {found}, and not {path}: leave one of them out")
    return Place(found, _uid(grid))


def create(where: Place, name: str, role: Role, max_sessions: int, pools: Sequence[str]) -> tuple[str, bool]:
    """Adds a token to the file; returns its text, and whether it is the first one. Raises GridError, and UsageError for
    a name that none may have."""
    if not NAME.fullmatch(name):
        raise click.UsageError(f"{name!r:.80} is no name of a token: {NAME_RULE}")
    for pool in pools:
        if not POOL_NAME.fullmatch(pool):
            raise click.UsageError(f"{pool!r:.80} is no name of a pool")
    token, text = make(name, role, max_sessions, pools, time.time())
    with changing(where.path, where.reader) as tokens:
        # Within the lock: another one may be made at the same time. The file exists, too, where all were revoked.
        is_first = not where.path.exists()
        if name in tokens:
            raise GridError(f"there is a token {name} already: revoke it first, or choose another name")
        tokens[name] = token
    return text, is_first


def revoke(where: Place, name: str) -> None:
    """Removes a token. Raises GridError where there is none with this name."""
    unknown = GridError(f"there is no token {name!r:.80} in {where.path}: pwgrid token list shows them")
    if not load(where.path).all:  # no directory is to be made for that
        raise unknown
    with changing(where.path, where.reader) as tokens:
        if tokens.pop(name, None) is None:
            raise unknown


def listed(where: Place) -> list[dict[str, Any]]:
    """The tokens without their salts and hashes."""
    return [token.model_dump(mode="json", by_alias=True, exclude={"salt", "digest"}) for token in load(where.path).all]


def _file_of(grid: RunningGrid) -> Path | None:
    file = ask(grid, "tokens")["file"]
    return Path(file) if file else None


def _reader_of(path: Path) -> int | None:
    """The uid of the running grid that reads this file, or None. Skips grids that do not answer."""
    for grid in find_running():
        with contextlib.suppress(GridError, OSError):
            if _file_of(grid) == path:
                return _uid(grid)
    return None


def _service_uid(path: Path) -> int | None:
    """The uid of the service that is installed with this file, whether it runs or not; None where there is none."""
    is_installed = path.parent == InstallPaths.of(user=False).config and os.path.exists(path.with_name(RECORD))
    return uid_of(SERVICE_USER) if is_installed else None


def _uid(grid: RunningGrid) -> int:
    return grid.directory.stat().st_uid
