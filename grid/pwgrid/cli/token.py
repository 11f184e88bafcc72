"""`pwgrid token`: changes the file of tokens that a grid reads. A running grid tells where that file is."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pwgrid.cli import output
from pwgrid.cli.ask_grid import WithoutMasterError, ask, find_grid, redis_of
from pwgrid.cli.options import GRID_OPTIONS, with_json, with_options
from pwgrid.common.errors import GridError, NoGridError, RegistryUnavailable
from pwgrid.common.wording import counted
from pwgrid.runtime.find_grids import RunningGrid, find_running

if TYPE_CHECKING:
    from pwgrid.tokens.tokens import Token


@click.group()
def token() -> None:
    """Makes, lists and revokes the tokens of clients and operators.

    They are kept as salted hashes in a file beside the configuration file. A change takes effect at once. As soon as
    there is one token, the grid serves nobody without one.
    """


_TOKEN_OPTIONS: tuple[Any, ...] = (
    click.option(
        "--config", "config_file", type=click.Path(path_type=Path), help="Configuration file; the tokens are beside it."
    ),
    *GRID_OPTIONS,
)


@token.command("create")
@with_options(_TOKEN_OPTIONS)
@click.option("--name", required=True, help="What the token is called in sessions, status and lists.")
@click.option(
    "--role",
    type=click.Choice(["client", "operator"]),
    default="client",
    show_default=True,
    help="client: connects, sees and ends its own sessions. operator: everything.",
)
@click.option(
    "--max-sessions", type=click.IntRange(0, 100_000), default=0, help="Live sessions at once; 0: any number."
)
@click.option("--pools", default="", metavar="POOL,...", help="The only pools that it may use.  [default: all]")
def token_create(config_file: Path | None, port: int | None, runtime_dir: str | None, **options: Any) -> None:
    """Makes a token and prints it, only this once. Stdout has nothing else: TOKEN=$(pwgrid token create …) works."""
    where = place(config_file, port, runtime_dir)
    pools = [each.strip() for each in options["pools"].split(",") if each.strip()]
    text, is_first = create(where, options["name"], options["role"], options["max_sessions"], pools)
    click.echo(text)
    click.echo(f"pwgrid: the token {options['name']} is shown only this once; its hash is in {where.path}", err=True)
    if is_first:
        click.echo("pwgrid: it is the first one: from now on the grid serves nobody without a token", err=True)


@token.command("list")
@with_options(_TOKEN_OPTIONS)
@with_json
def token_list(config_file: Path | None, port: int | None, runtime_dir: str | None, as_json: bool) -> None:
    """Shows the tokens: names, roles and limits, never a token itself."""
    from pwgrid.tokens.file import load

    found = load(place(config_file, port, runtime_dir).path).all
    rows = [token.model_dump(mode="json", by_alias=True, exclude={"salt", "digest"}) for token in found]
    click.echo(output.as_json(rows) if as_json else tokens_text(rows))


@token.command("revoke")
@with_options(_TOKEN_OPTIONS)
@click.option("--end-sessions", is_flag=True, help="End its live sessions at once, too.")
@click.argument("name")
def token_revoke(
    config_file: Path | None, port: int | None, runtime_dir: str | None, end_sessions: bool, name: str
) -> None:
    """Removes a token. Clients with it are refused from now on, its leases end, and live sessions go on.

    After the last token is revoked, the grid still asks for one, and accepts only PWGRID_TOKEN. To make it ask for
    none, delete the file of tokens. --end-sessions may be said later, too.
    """
    where = place(config_file, port, runtime_dir)
    revoked = revoke(where, name, is_optional=end_sessions)
    if revoked is not None:
        click.echo(f"revoked {name}")
    notes = list(_sessions_of(where.path, runtime_dir, name, is_ended=end_sessions))
    for note in notes:
        click.echo(f"pwgrid: {note}", err=True)
    if revoked is None and not notes:
        raise _unknown(where, name)


@dataclass(frozen=True, slots=True)
class Place:
    """The file of tokens, and the uid of the grid that runs with it, or of the service that will; else None."""

    path: Path
    reader: int | None = None


def place(config_file: Path | None, port: int | None, runtime_dir: str | None) -> Place:
    """Where the tokens are: beside the configuration file that is named, else where the running grid reads them, else
    in the default place.

    Raises GridError where several grids run, and for one that has no master or takes no tokens; UsageError where a
    named grid reads others than those of the named file.
    """
    from pwgrid.settings.load import DEFAULT_FILE, FILE_VARIABLE, find_tokens_file

    is_grid_named = port is not None or runtime_dir is not None
    variable = "" if is_grid_named else os.environ.get(FILE_VARIABLE, "").strip()
    named = config_file or (Path(variable) if variable else None)
    path = named and find_tokens_file(named, os.environ)
    if path is not None and not is_grid_named:
        return Place(path, _reader_of(path) or _service_uid(path))
    try:
        grid = find_grid(port, runtime_dir)
    except WithoutMasterError:  # the next master reads what this one has read, and only a master tells which file
        raise
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


def create(where: Place, name: str, role: str, max_sessions: int, pools: Sequence[str]) -> tuple[str, bool]:
    """Adds a token to the file; returns its text, and whether it is the first one. Raises GridError, and UsageError for
    a name that none may have."""
    from pwgrid.settings.pools import NAME as POOL_NAME
    from pwgrid.tokens.file import changing
    from pwgrid.tokens.tokens import NAME, NAME_RULE, Role, make

    if not NAME.fullmatch(name):
        raise click.UsageError(f"{name!r:.80} is no name of a token: {NAME_RULE}")
    for pool in pools:
        if not POOL_NAME.fullmatch(pool):
            raise click.UsageError(f"{pool!r:.80} is no name of a pool")
    token, text = make(name, Role(role), max_sessions, pools, time.time())
    with changing(where.path, where.reader) as tokens:
        # Within the lock: another one may be made at the same time. The file exists, too, where all were revoked.
        is_first = not where.path.exists()
        if name in tokens:
            raise GridError(f"there is a token {name} already: revoke it first, or choose another name")
        tokens[name] = token
    return text, is_first


def revoke(where: Place, name: str, *, is_optional: bool = False) -> Token | None:
    """Removes a token, and returns it. Where there is none with this name returns None, or raises GridError unless it
    `is_optional`."""
    from pwgrid.tokens.file import changing, load
    from pwgrid.tokens.tokens import NAME

    if not NAME.fullmatch(name):
        raise _unknown(where, name)
    revoked = None
    if any(token.name == name for token in load(where.path).all):  # else no directory is to be made for that
        with changing(where.path, where.reader) as tokens:
            revoked = tokens.pop(name, None)
    if revoked is None and not is_optional:
        raise _unknown(where, name)
    return revoked


def _unknown(where: Place, name: str) -> GridError:
    return GridError(f"there is no token {name!r:.80} in {where.path}: pwgrid token list shows them")


def _sessions_of(path: Path, runtime_dir: str | None, name: str, *, is_ended: bool) -> Iterator[str]:
    """Yields a sentence about the live sessions of the token in each running grid that reads this file, and has them
    ended if `is_ended`."""
    for grid in _running(runtime_dir):
        there = f"in the grid on port {grid.port}"
        try:
            if (read := _file_of(grid)) is None or read.resolve() != path.resolve():
                continue
            live = _live_sessions(grid, name)
            if is_ended:
                ask(grid, "end_sessions", {"token": name})
                yield from _end_elsewhere(grid, name)
        except (GridError, OSError) as error:
            if is_ended:
                yield f"its sessions {there}, if it has any, go on: {error}"
            continue
        if live is None:
            yield f"Redis does not say how many sessions it has {there}: pwgrid sessions shows them later"
        elif live and is_ended:
            yield f"{counted(live, 'live session is', 'live sessions are')} ended {there}"
        elif live:
            goes_on = counted(live, "live session goes", "live sessions go")
            yield f"{goes_on} on {there}; to end what lives: pwgrid token revoke {name} --end-sessions"


def _end_elsewhere(grid: RunningGrid, name: str) -> Iterator[str]:
    """Has the sessions of the token ended on the other hosts of this grid. Yields a sentence about each one where they
    may go on, or new ones may begin."""
    from pwgrid.cli.ask_hosts import HostSilent, ask_host, other_hosts

    try:
        others = list(other_hosts(grid, ask(grid, "status")["host"].get("name", "")))
    except RegistryUnavailable as error:
        yield f"its sessions on other hosts, if it has any, go on: {error}"
        return
    for host in others:
        try:
            if ask_host(grid, host, {"token": name}).get("isHere"):
                yield f"host {host.name} has a token {name} in its own file: revoke it there, too"
        except HostSilent as silent:
            yield f"its sessions on host {host.name}, if it has any, may go on: {silent}"
        except (GridError, RegistryUnavailable) as error:
            yield f"its sessions on host {host.name}, if it has any, go on: {error}"


def _live_sessions(grid: RunningGrid, name: str) -> int | None:
    """How many live sessions this token has; None while Redis is away."""
    from pwgrid.registry.blocking_reads import SessionWatch

    with contextlib.suppress(RegistryUnavailable):
        return sum(session.token == name for session in SessionWatch(*redis_of(grid)).look(time.time()).live)
    return None


def tokens_text(found: Sequence[Mapping[str, Any]]) -> str:
    """Tokens, as `pwgrid token list` shows them."""
    rows = []
    for token in found:
        created = datetime.fromtimestamp(token["createdAt"]).astimezone().isoformat(" ", "seconds")[:19]
        limits = (token["maxSessions"] or "any", ", ".join(token["pools"]) or "all")
        rows.append((token["name"], token["role"], *limits, created, f"pwg_{token['id']}_…"))
    return output.table(("NAME", "ROLE", "SESSIONS", "POOLS", "CREATED", "TOKEN"), rows)


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


def _running(runtime_dir: str | None) -> Iterable[RunningGrid]:
    """The running grids where find_grid looks for one."""
    named = runtime_dir or os.environ.get("PWGRID_RUNTIME_DIR")
    return find_running(named) or ([] if named else find_running(elsewhere=True))


def _service_uid(path: Path) -> int | None:
    """The uid of the service that is installed with this file, whether it runs or not; None where there is none."""
    from pwgrid.cli.install.installation import SERVICE_USER, InstallPaths
    from pwgrid.cli.install.record import RECORD
    from pwgrid.cli.install.steps import uid_of

    is_installed = path.parent == InstallPaths.of(user=False).config and os.path.exists(path.with_name(RECORD))
    return uid_of(SERVICE_USER) if is_installed else None


def _uid(grid: RunningGrid) -> int:
    return grid.directory.stat().st_uid
