"""`pwgrid profile`: shows, removes and exports the profiles that clients keep. A running grid tells where they are."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from pwgrid.cli import output
from pwgrid.cli.ask_grid import WithoutMasterError, ask, find_grid
from pwgrid.cli.options import GRID_OPTIONS, with_json, with_options
from pwgrid.common.errors import GridError, NoGridError
from pwgrid.common.profile_names import NAME, Profile, ProfileInUse
from pwgrid.common.wording import counted

if TYPE_CHECKING:
    from pwgrid.profiles.store import ProfileStore, SavedProfile


@click.group()
def profile() -> None:
    """Shows, removes and exports the profiles of browsers that CDP clients keep (?profile=).

    A profile has cookies and logins: who may read its file is logged in where its owner is.
    """


_PLACE_OPTIONS: tuple[Any, ...] = (
    click.option(
        "--config", "config_file", type=click.Path(path_type=Path), help="Configuration file that names them."
    ),
    *GRID_OPTIONS,
)
_ONE_OPTIONS: tuple[Any, ...] = (
    *_PLACE_OPTIONS,
    click.option("--token", "owner", help="The name of the token that has it, if several have one."),
)


@profile.command("list")
@with_options(_PLACE_OPTIONS)
@with_json
def profile_list(config_file: Path | None, port: int | None, runtime_dir: str | None, as_json: bool) -> None:
    """Shows the profiles: whose they are, how large, when they were saved, which session has them now."""
    rows = [_as_json(each) for each in store(config_file, port, runtime_dir).all()]
    click.echo(output.as_json(rows) if as_json else profiles_text(rows))


@profile.command("remove")
@with_options(_ONE_OPTIONS)
@click.argument("name")
def profile_remove(
    config_file: Path | None, port: int | None, runtime_dir: str | None, owner: str | None, name: str
) -> None:
    """Removes a profile that no session has."""
    there = store(config_file, port, runtime_dir)
    found = named(there, name, owner)
    try:
        there.remove(found)
    except ProfileInUse as error:
        raise GridError(
            f"profile {name} is in use by {error.use.holder}: it is saved again when that ends; end that first"
        ) from None
    except FileNotFoundError:
        raise _unknown(there, name) from None
    click.echo(f"removed {_shown(found)}")


@profile.command("export")
@with_options(_ONE_OPTIONS)
@click.argument("name")
@click.argument("file", type=click.File("wb", lazy=True), default="-")
def profile_export(
    config_file: Path | None, port: int | None, runtime_dir: str | None, owner: str | None, name: str, file: IO[bytes]
) -> None:
    """Writes a profile as it was saved last into FILE, or to stdout: a tar of Chromium's user data directory."""
    there = store(config_file, port, runtime_dir)
    try:
        there.export(named(there, name, owner), file)
    except FileNotFoundError:
        raise GridError(f"profile {name} has not been saved yet: its first session is not over") from None


def store(config_file: Path | None, port: int | None, runtime_dir: str | None) -> ProfileStore:
    """The profiles of the configuration that is named, else of the running grid, else in the default place. Raises
    GridError."""
    from pwgrid.profiles.paths import profiles_directory
    from pwgrid.profiles.store import ProfileStore
    from pwgrid.settings.load import load

    if config_file is None:
        try:
            return ProfileStore(Path(ask(find_grid(port, runtime_dir), "profiles")["directory"]))
        except WithoutMasterError:  # it has profiles where only its master can tell
            raise
        except NoGridError:
            if port is not None or runtime_dir is not None:
                raise
    return ProfileStore(profiles_directory(load(config_file, os.environ, {}).settings))


def named(there: ProfileStore, name: str, owner: str | None) -> Profile:
    """The one profile of this name, of this token if one is named. Raises GridError."""
    found = [each.profile for each in there.all() if each.profile.name == name and owner in (None, each.profile.owner)]
    if not NAME.fullmatch(name) or not found:
        raise _unknown(there, name)
    if len(found) > 1:
        owners = ", ".join(each.owner or "''" for each in found)
        raise GridError(f"several tokens have a profile {name}: name one with --token ({owners})")
    return found[0]


def profiles_text(found: Sequence[dict[str, Any]]) -> str:
    """Profiles, as `pwgrid profile list` shows them."""
    if not found:
        return "no profiles"
    rows = []
    for each in found:
        saved = "never" if each["savedAt"] is None else _clock(each["savedAt"])
        size = "-" if each["bytes"] is None else f"{each['bytes'] / 2**20:.1f} MiB"
        use = each["session"]
        rows.append(
            (each["name"], each["token"] or "-", size, saved, f"{use} since {_clock(each['since'])}" if use else "-")
        )
    return output.table(("NAME", "TOKEN", "SIZE", "SAVED", "IN USE BY"), rows) + f"\n{counted(len(rows), 'profile')}"


def _as_json(saved: SavedProfile) -> dict[str, Any]:
    return {
        "name": saved.profile.name,
        "token": saved.profile.owner or None,
        "bytes": saved.bytes,
        "savedAt": saved.saved_at,
        "session": saved.use and saved.use.session,
        "since": saved.use and saved.use.since,
    }


def _clock(at: float) -> str:
    return datetime.fromtimestamp(at).astimezone().isoformat(" ", "seconds")[:19]


def _shown(found: Profile) -> str:
    return f"{found.name} of {found.owner}" if found.owner else found.name


def _unknown(there: ProfileStore, name: str) -> GridError:
    return GridError(f"there is no profile {name!r:.80} in {there.directory}: pwgrid profile list shows them")
