"""What the installations under systemd and under supervisord have in common."""

import ipaddress
import os
import secrets
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click

from pwgrid.cli.install import host_facts
from pwgrid.cli.install.install_steps import Command, Directory, Handover, Record, Requirements, TextFile, User, Wait
from pwgrid.cli.install.service_file_texts import Service
from pwgrid.cli.own_command import by_path, on_path
from pwgrid.common.directories import home, resource_dir
from pwgrid.common.errors import GridError
from pwgrid.settings.load import TOKENS_NAME, load
from pwgrid.settings.model import Settings, is_loopback

SERVICE_USER: Final = "pwgrid"
_TOKEN_BYTES: Final = 16

Commands = Callable[[Collection[Path]], Sequence[Command | Wait]]


@dataclass(frozen=True, slots=True)
class InstallOptions:
    """The options of the command. None: the option of the earlier installation, else the default."""

    user: bool = False
    host: str | None = None
    port: int | None = None
    token: bool | None = None
    start: bool = True
    conf: Path | None = None

    def after(self, before: Record | None) -> dict[str, Any]:
        """Host, port and token with the values they get after `before`. Raises UsageError for a wrong address."""
        old = before.options if before else {}
        named = str(self.host or old.get("host", Settings().host))
        host = "127.0.0.1" if named == "localhost" else named
        token = bool(old.get("token", True) if self.token is None else self.token)
        try:
            ipaddress.ip_address(host)
        except ValueError:
            raise click.UsageError(f"--host: {host!r} is no address; 0.0.0.0 and :: mean all of this host") from None
        if not token and not is_loopback(host):
            raise click.UsageError(f"--no-token: other hosts can reach {host}, so clients need one")
        return {"host": host, "port": self.port or old.get("port", Settings().port), "token": token}


@dataclass(frozen=True, slots=True)
class InstallPaths:
    """Where files go: in the system's directories, or in a user's own."""

    config: Path
    units: Path
    home: Path
    log: Path
    top: Path
    """A directory that is there before any installation: it and those above it are not made or removed."""

    @classmethod
    def of(cls, *, user: bool) -> "InstallPaths":
        """The usual places of the system, or of the calling `user`. Raises GridError for one who has no home."""
        if not user:
            etc, var = Path("/etc"), Path("/var")
            return cls(
                etc / "pwgrid", etc / "systemd/system", var / "lib/pwgrid", var / "log/pwgrid/grid.log", Path("/")
            )
        own = home()
        config = Path(os.environ.get("XDG_CONFIG_HOME") or own / ".config")
        state = Path(os.environ.get("XDG_STATE_HOME") or own / ".local/state")
        return cls(config / "pwgrid", config / "systemd/user", own, state / "pwgrid/grid.log", own)

    @property
    def own(self) -> tuple[Path, ...]:
        """Those that nobody else uses: the service's, never a user's home, and none of the directories above them."""
        return (self.config, self.log.parent, *(() if self.home == self.top else (self.home,)))

    def directories(self, *paths: Path) -> tuple[Directory, ...]:
        """`paths`, after all directories above them, the outermost first."""
        above = {each for path in paths for each in path.parents if each != self.top and each.is_relative_to(self.top)}
        return tuple(map(Directory, [*sorted(above - set(paths), key=lambda each: len(each.parts)), *paths]))


@dataclass(frozen=True, slots=True)
class Installation:
    wanted: Requirements
    fresh: Record
    start: Commands
    """Returns the commands to run after the given files were written."""
    why_not_running: Command
    """The command whose output tells why the start failed."""
    notes: tuple[str, ...]
    """The lines to print at the end."""
    obstacle: str = ""
    """Why it cannot be started here; empty when it can."""


def service(
    asked: InstallOptions, options: Mapping[str, Any], places: InstallPaths, *, shows_homes: bool
) -> tuple[Service, list[Command]]:
    """What the texts need to know, and the commands that get missing browsers. `shows_homes`: the service manager can
    show a service directories in a home. Raises GridError for an installation that the service's user cannot reach."""
    file = places.config / "grid.toml"
    settings = load(file, {}, {}).settings if file.exists() else Settings()
    browsers = None if asked.user else places.home / "browsers"
    parts = host_facts.parts(settings, browsers)
    hidden = host_facts.hidden(parts) if shows_homes and not asked.user else ()
    if not asked.user and (closed := list(host_facts.closed(parts, shown=hidden))):
        raise GridError(
            f"the user {SERVICE_USER} may not enter {', '.join(map(str, closed))}: chmod o+x it, or install elsewhere"
        )
    found = Service(
        command=by_path(),
        host=options["host"],
        port=options["port"],
        config=file,
        token=places.config / "token" if options["token"] else None,
        browsers=browsers,
        user="" if asked.user else SERVICE_USER,
        home=places.home,
        log=places.log,
        hidden=hidden,
        sandbox=not asked.user or os.geteuid() != 0,
    )
    if not host_facts.is_browser_missing(settings, browsers):
        return found, []
    environment = {"PLAYWRIGHT_BROWSERS_PATH": str(browsers)} if browsers else {}
    return found, [Command((*found.command, "setup", "--config", str(file)), environment)]


def requirements(
    asked: InstallOptions, places: InstallPaths, made: Sequence[Path], files: Sequence[TextFile]
) -> Requirements:
    """`files`, the directories `made` for them, the user that the grid runs as unless it is the one who installs it,
    and the tokens that `pwgrid token create` has made for an earlier one: they outlive an uninstallation."""
    directories = places.directories(*made)
    if asked.user:
        return Requirements(None, directories, tuple(files))
    tokens = Handover(places.config / TOKENS_NAME, SERVICE_USER)
    return Requirements(User(SERVICE_USER, places.home), directories, tuple(files), (tokens,))


def settings_files(service: Service, *, token_group: str = "") -> list[TextFile]:
    """The configuration and the token: once they exist, they are the operator's, and are not overwritten."""
    config = (resource_dir("config") / "grid.toml").read_text()
    files = [TextFile(service.config, config, operators=True)]
    if service.token:
        token = secrets.token_hex(_TOKEN_BYTES) + "\n"
        mode = 0o640 if token_group else 0o600
        files.append(TextFile(service.token, token, mode, operators=True, group=token_group, is_secret=True))
    return files


def status_note(service: Service) -> str:
    """How to see the status: by the link on PATH if that leads to this installation."""
    found = on_path(service.command[0])
    command = (found,) if found is not None else service.command
    return f"status     {'sudo ' if service.user else ''}{shlex.join(command)} status"


def notes(service: Service, *more: str) -> tuple[str, ...]:
    """What is said at the end: the address, where the token is, and `more`."""
    token = [f"token      in {service.token}; docs/connect.md says how clients give it"] if service.token else []
    return (f"endpoint   ws://{service.address}", *token, *more)
