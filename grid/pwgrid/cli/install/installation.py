"""A grid as a service: its options and places, what of this host it needs, and what both service managers share."""

import ipaddress
import os
import secrets
import shlex
import stat
import sys
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Final

import click
import psutil

import pwgrid
from pwgrid.cli.install.record import Record
from pwgrid.cli.install.steps import ChangeOwner, Command, Directory, Step, TextFile, User, Wait
from pwgrid.cli.own_command import by_path, on_path
from pwgrid.common.errors import BrowserMissing, GridError
from pwgrid.common.paths import home, resource_dir
from pwgrid.installed.browsers import FoundBrowser, SearchPaths, find_for_pool
from pwgrid.master.listener import why_no_listening
from pwgrid.settings.load import TOKENS_NAME, load
from pwgrid.settings.model import Settings, is_loopback

SERVICE_USER: Final = "pwgrid"
_TOKEN_BYTES: Final = 16

_HOMES: Final = (Path("/home"), Path("/root"), Path("/run/user"))
"""What ProtectHome= hides from a service."""
_PRIVATE: Final = (Path("/tmp"), Path("/var/tmp"))
"""What PrivateTmp= hides from a service."""


@dataclass(frozen=True, slots=True)
class InstallOptions:
    """The options of the command. None: the option of the earlier installation, else the default."""

    user: bool = False
    host: str | None = None
    port: int | None = None
    token: bool | None = None
    start: bool = True
    conf: Path | None = None

    def after(self, old: Mapping[str, Any]) -> dict[str, Any]:
        """Host, port and token with the values they get after `old` ones. Raises UsageError for a wrong address."""
        named = str(self.host or old.get("host", Settings().host))
        host = "127.0.0.1" if named == "localhost" else named
        token = bool(old.get("token", True) if self.token is None else self.token)
        try:
            host = str(ipaddress.ip_address(host))
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
        """The directories that nobody else uses: the service's, never a user's home, and none of those above them."""
        return (self.config, self.log.parent, *(() if self.home == self.top else (self.home,)))

    def directories(self, *paths: Path) -> tuple[Directory, ...]:
        """`paths`, after all directories above them, the outermost first."""
        above = {each for path in paths for each in path.parents if each != self.top and each.is_relative_to(self.top)}
        return tuple(map(Directory, [*sorted(above - set(paths), key=lambda each: len(each.parts)), *paths]))


@dataclass(frozen=True, slots=True)
class Service:
    """What is filled into the shipped texts. `command` runs this pwgrid."""

    command: tuple[str, ...]
    host: str
    port: int
    config: Path
    token: Path | None
    """The file of the token; None: clients need none."""
    browsers: Path | None
    """The directory of Playwright's browsers; None: where Playwright itself looks for them."""
    user: str = ""
    """The user that the grid runs as; empty: the one who installs it."""
    home: Path = Path("/")
    log: Path = Path("/dev/null")
    """The log file, under supervisord."""
    hidden: tuple[Path, ...] = ()
    """The parts of the installation in home directories, which a service sees only if its unit names them."""
    sandbox: bool = True

    @property
    def address(self) -> str:
        """Host and port, as ListenStream= has them."""
        try:
            return f"[{ipaddress.IPv6Address(self.host)}]:{self.port}"
        except ValueError:
            return f"{self.host}:{self.port}"

    @property
    def status_note(self) -> str:
        """How to see the status: by the link on PATH if that leads to this installation."""
        found = on_path(self.command[0])
        return self.status_by(("sudo",) if self.user else (), (found,) if found is not None else self.command)

    def status_by(self, user: tuple[str, ...], command: tuple[str, ...]) -> str:
        """How to see it as that user. The port is named, since another grid may run here."""
        return f"status     {shlex.join((*user, *command, 'status', '--port', str(self.port)))}"


class Installation(ABC):
    """A grid as a service under one service manager. `before` is the record of the earlier installation."""

    NAME: ClassVar[str]
    SHOWS_HOMES: ClassVar[bool]
    """Whether the service manager can show a service directories in a home."""

    def __init__(self, asked: InstallOptions, before: Record | None) -> None:
        """Raises GridError for a user who has no home."""
        self._asked, self._before = asked, before or Record(self.NAME, {})
        self._places = InstallPaths.of(user=asked.user)
        self._downloads = None if asked.user else self._places.home / "browsers"

    @abstractmethod
    def wanted(self) -> Sequence[Step]:
        """Everything that this installation makes, in that order. Raises GridError, and UsageError for an option, where
        it cannot be installed."""

    @abstractmethod
    def start(self, written: Collection[Path]) -> Sequence[Command | Wait]:
        """What to run after these files were written."""

    @property
    @abstractmethod
    def why_not_running(self) -> Command:
        """The command whose output tells why the start failed."""

    @abstractmethod
    def obstacle(self) -> str:
        """Why it cannot be started here; empty when it can."""

    @abstractmethod
    def notes(self) -> Sequence[str]:
        """The lines to print at the end."""

    @abstractmethod
    def stop(self) -> Sequence[Command]:
        """The commands that drain and end the grid, after which the service manager does not start it again."""

    @abstractmethod
    def forget(self) -> Sequence[Command]:
        """The commands that make the service manager forget the grid, after its files were removed."""

    def record(self) -> Record:
        """The record of a first installation, before anything is made."""
        trees = [str(self._downloads)] if self._setup and self._downloads else []
        return Record(self.NAME, self._options(), trees=trees)

    def _options(self) -> dict[str, Any]:
        """The options that the record keeps."""
        return self._asked.after(self._before.options)

    @cached_property
    def _settings(self) -> Settings:
        """What the configuration of an earlier installation says, which is kept. Raises GridError."""
        file = self._places.config / "grid.toml"
        # The service's address is not the file's, and its token need not be there.
        return load(file, {}, {"host": "127.0.0.1"}).settings if file.exists() else Settings()

    @cached_property
    def _browsers(self) -> list[FoundBrowser | None]:
        return browsers_of(self._settings, self._downloads)

    @cached_property
    def _service(self) -> Service:
        """What to fill into the shipped texts. Raises GridError for an installation that the service's user cannot
        reach."""
        asked, places, options = self._asked, self._places, self._options()
        found = parts(self._browsers, self._downloads)
        shown = hidden(found) if self.SHOWS_HOMES and not asked.user else ()
        if not asked.user and (shut := list(closed(found, shown=shown))):
            raise GridError(
                f"the user {SERVICE_USER} may not enter {', '.join(map(str, shut))}: chmod o+x it, or install elsewhere"
            )
        return Service(
            command=by_path(),
            host=options["host"],
            port=options["port"],
            config=places.config / "grid.toml",
            token=places.config / "token" if options["token"] else None,
            browsers=self._downloads,
            user="" if asked.user else SERVICE_USER,
            home=places.home,
            log=places.log,
            hidden=shown,
            sandbox=not asked.user or os.geteuid() != 0,
        )

    @cached_property
    def _setup(self) -> list[Command]:
        """The commands that get missing browsers."""
        service = self._service
        if None not in self._browsers:
            return []
        environment = {"PLAYWRIGHT_BROWSERS_PATH": str(service.browsers)} if service.browsers else {}
        return [Command((*service.command, "setup", "--config", str(service.config)), environment)]

    def _steps(self, made: Sequence[Path], files: Sequence[TextFile], *, token_group: str = "") -> list[Step]:
        """The steps for any service: its user, unless that is the one who installs it; the directories `made` for it;
        its settings; and `files`. Tokens that `pwgrid token create` has made for an earlier installation outlive that,
        and are given to the user of this one."""
        steps: list[Step] = [*self._places.directories(*made), *self._settings_files(token_group), *files]
        if self._asked.user:
            return steps
        tokens = ChangeOwner(self._places.config / TOKENS_NAME, SERVICE_USER)
        return [User(SERVICE_USER, self._places.home), *steps, tokens]

    def _settings_files(self, token_group: str) -> Iterator[TextFile]:
        """The configuration and the token: once they exist, they are the operator's, and are not overwritten."""
        config = (resource_dir("config") / "grid.toml").read_text()
        yield TextFile(self._service.config, config, operators=True)
        if self._service.token:
            token = secrets.token_hex(_TOKEN_BYTES) + "\n"
            mode = 0o640 if token_group else 0o600
            yield TextFile(self._service.token, token, mode, operators=True, group=token_group, is_secret=True)

    @abstractmethod
    def _owns(self, listeners: Mapping[str, int | None]) -> bool:
        """Whether all of these (`listeners_on` its port) are of the earlier installation, which makes room for this
        one. The record alone does not tell: --no-start and a failed start leave it where it was."""

    def _port_obstacle(self) -> str:
        """Why a grid cannot listen on its address now; empty when it can."""
        host, port = self._service.host, self._service.port
        why_not = why_no_listening(host, port)
        was_here = self._before.options.get("port") == port
        if why_not is not None and was_here and self._owns(listeners_on(port)):
            why_not = why_no_listening(host, 0)
        return str(why_not or "")

    def _notes(self, *more: str) -> Sequence[str]:
        """The address, where the token is, and `more`."""
        token = self._service.token
        about_token = [f"token      in {token}; docs/connect.md says how clients give it"] if token else []
        scheme = "wss" if self._settings.tls_cert else "ws"
        return (f"endpoint   {scheme}://{self._service.address}", *about_token, *more)


def listeners_on(port: int) -> dict[str, int | None]:
    """Who listens at this port: by address, a process; None for one that the calling user may not look into."""
    there = [each for each in psutil.net_connections("tcp") if each.status == psutil.CONN_LISTEN]
    return {each.laddr.ip: each.pid for each in there if each.laddr and each.laddr.port == port}


def browsers_of(settings: Settings, directory: Path | None) -> list[FoundBrowser | None]:
    """The browser of each pool with workers; None for one that is missing. `directory` has the downloaded ones."""
    environment = {**os.environ, **({"PLAYWRIGHT_BROWSERS_PATH": str(directory)} if directory else {})}
    places = SearchPaths(environ=environment)
    found: list[FoundBrowser | None] = []
    for pool in settings.pools_with_workers():
        try:
            found.append(find_for_pool(pool, settings, places))
        except BrowserMissing:
            found.append(None)
    return found


def parts(browsers: Iterable[FoundBrowser | None], downloaded: Path | None) -> list[Path]:
    """Every directory that the grid needs to run: code, Python, packages, browsers."""
    found = [
        Path(pwgrid.__file__).parents[1],
        resource_dir("lua").parent,
        Path(sys.prefix),
        Path(sys.base_prefix),
        Path(sys.executable).parent,
    ]
    found.append(Path(sys.executable).resolve().parent)
    found += [Path(each.executable).resolve().parent for each in browsers if each and each.executable]
    found += [each.driver.node.resolve().parent for each in browsers if each]
    if downloaded and downloaded.is_dir():
        found.append(downloaded)
    return found


def hidden(found: Iterable[Path]) -> tuple[Path, ...]:
    """The directories of `found` that are in a home directory, without those inside another. Raises GridError for one
    in a temporary directory, which a service cannot be shown."""
    in_homes = []
    for path in found:
        if any(path.is_relative_to(each) for each in _PRIVATE):
            raise GridError(f"{path} is a temporary place, which services do not see: install pwgrid elsewhere first")
        if any(path.is_relative_to(each) for each in _HOMES):
            in_homes.append(path)
    inside = {path for path in in_homes for other in in_homes if path != other and path.is_relative_to(other)}
    return tuple(dict.fromkeys(path for path in in_homes if path not in inside))


def closed(found: Iterable[Path], *, shown: Iterable[Path] = ()) -> Iterator[Path]:
    """The directories on the paths in `found` that another user may not enter; except those above a path in `shown`."""
    known = set()
    for path in found:
        above = next((each for each in shown if path.is_relative_to(each)), None)
        for each in (path, *path.parents):
            if each not in known and not each.stat().st_mode & stat.S_IXOTH:
                yield each
            known.add(each)
            if each == above:
                break


def with_lines(text: str, start: str, lines: Sequence[str]) -> str:
    """The shipped text with `lines` in place of the one line that begins with `start`. Raises ValueError if there is
    not one."""
    old = text.splitlines()
    places = [number for number, line in enumerate(old) if line.startswith(start)]
    if len(places) != 1:
        raise ValueError(f"the shipped text has {len(places)} lines that begin with {start!r}, not one")
    return "\n".join([*old[: places[0]], *lines, *old[places[0] + 1 :]]) + "\n"
