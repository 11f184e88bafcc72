"""Makes the texts of an installation from the shipped ones, with this host's paths instead of those in /opt/pwgrid."""

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from ipaddress import IPv6Address
from itertools import starmap
from pathlib import Path
from typing import Final

_NEED_ROOT: Final = (
    "After=",
    "CapabilityBoundingSet=",
    "LoadCredential=",
    "Private",
    "Protect",
    "RemoveIPC=",
    "User=",
)
"""A user's own systemd cannot do this, or does not need it: its unit has no lines that begin so."""

TEMPORARY_DIR: Final = "/tmp"
"""Where a grid of the service's user has its files under supervisord, whose own TMPDIR may be any."""


@dataclass(frozen=True, slots=True)
class Service:
    """What the shipped texts cannot know. `command` runs this pwgrid."""

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
            return f"[{IPv6Address(self.host)}]:{self.port}"
        except ValueError:
            return f"{self.host}:{self.port}"


def service_unit(shipped: str, service: Service) -> str:
    """pwgrid.service, for the system or (without `service.user`) for a user's own systemd."""
    command = " ".join(map(_unit_word, service.command))
    environment = {"PWGRID_HOST": service.host, "PWGRID_PORT": service.port, "PWGRID_CONFIG": service.config}
    if service.token and not service.user:
        environment["PWGRID_TOKEN_FILE"] = service.token
    if not service.sandbox:
        shipped = _without(shipped, ("Environment=CHROMIUM_SANDBOX=",))
    text = _set(shipped, "ExecStart=", [f"ExecStart={command} serve"])
    text = _set(text, "ExecReload=", [f"ExecReload={command} reload"])
    lines = ["Environment=LOG_FORMAT=json", *starmap(_unit_environment, environment.items())]
    text = _set(text, "Environment=LOG_FORMAT=json", lines)
    text = _set(text, "EnvironmentFile=", [f"EnvironmentFile=-{service.config.with_name('env')}"])
    if service.browsers:
        line = _unit_environment("PLAYWRIGHT_BROWSERS_PATH", service.browsers)
        text = _set(text, "Environment=PLAYWRIGHT_BROWSERS_PATH=", [line])
    else:
        text = _without(text, ("Environment=PLAYWRIGHT_BROWSERS_PATH=",))
    if not service.user:
        text = _without(text, _NEED_ROOT)
        return _set(text, "WantedBy=", ["WantedBy=default.target"])
    text = _set(text, "User=", [f"User={service.user}"])
    if service.token:
        text = _set(text, "#LoadCredential=", [f"LoadCredential=pwgrid.token:{_unit_word(str(service.token))}"])
    bound = [f"BindReadOnlyPaths={_unit_word(str(path))}" for path in service.hidden]
    return _set(text, "ProtectHome=", ["ProtectHome=tmpfs", *bound])


def socket_unit(shipped: str, service: Service) -> str:
    return _set(shipped, "ListenStream=", [f"ListenStream={service.address}"])


def supervisor_program(shipped: str, service: Service) -> str:
    """[program:pwgrid] for supervisord."""
    environment = {
        "LOG_FORMAT": "json",
        "LOG_FILE": service.log,
        "PWGRID_CONFIG": service.config,
        "PWGRID_HOST": service.host,
        "PWGRID_PORT": service.port,
        "HOME": service.home,
    }
    if service.user:
        environment |= {"USER": service.user, "LOGNAME": service.user, "TMPDIR": TEMPORARY_DIR}
    if service.token:
        environment["PWGRID_TOKEN_FILE"] = service.token
    if service.browsers:
        environment["PLAYWRIGHT_BROWSERS_PATH"] = service.browsers
    if service.sandbox:
        environment["CHROMIUM_SANDBOX"] = "true"
    pairs = ",".join(f"{name}={_supervisor_word(str(value))}" for name, value in environment.items())
    command = " ".join(map(_supervisor_plain, (*map(shlex.quote, service.command), "serve")))
    text = _set(shipped, "command=", [f"command={command}", *([f"user={service.user}"] if service.user else [])])
    text = _set(text, "environment=", [f"environment={pairs}"])
    return _set(text, "stdout_logfile=", [f"stdout_logfile={_supervisor_plain(str(service.log))}"])


def rotation(shipped: str, service: Service) -> str:
    return _set(shipped, "/var/log/pwgrid/grid.log", [f'"{service.log}" {{'])


def _set(text: str, start: str, lines: Sequence[str]) -> str:
    """The text with `lines` in place of the one line that begins with `start`. Raises ValueError if there is not
    one."""
    old = text.splitlines()
    places = [number for number, line in enumerate(old) if line.startswith(start)]
    if len(places) != 1:
        raise ValueError(f"the shipped text has {len(places)} lines that begin with {start!r}, not one")
    return "\n".join([*old[: places[0]], *lines, *old[places[0] + 1 :]]) + "\n"


def _without(text: str, starts: Iterable[str]) -> str:
    """The text without the lines that begin with one of `starts`, and without the comments right above them."""
    kept: list[str] = []
    comments: list[str] = []
    for line in text.splitlines():
        is_comment = line.startswith("# ")
        if is_comment:
            comments.append(line)
            continue
        if not line.removeprefix("#").startswith(tuple(starts)):
            kept += [*comments, line]
        comments = []
    return "\n".join([*kept, *comments]) + "\n"


def _unit_word(word: str) -> str:
    """The word, escaped for a unit file, where % and $ have a meaning and blanks divide words."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"' if set(escaped) & set(" \t'\"") else escaped


def _unit_environment(name: str, value: object) -> str:
    return f"Environment={_unit_word(f'{name}={value}').replace('$$', '$')}"


def _supervisor_plain(word: str) -> str:
    return word.replace("%", "%%")


def _supervisor_word(word: str) -> str:
    escaped = _supervisor_plain(word).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
