"""`pwgrid install systemd`: what a grid under systemd needs, its unit, and the commands of systemctl for it."""

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import starmap
from pathlib import Path
from typing import Final

import psutil

from pwgrid.cli.install.installation import Installation, InstallOptions, Service, listeners_on, with_lines
from pwgrid.cli.install.record import Record
from pwgrid.cli.install.steps import Command, Step, TextFile
from pwgrid.common.paths import resource_dir
from pwgrid.runtime.find_grids import pids_of_grids_on

_SERVICE: Final = "pwgrid.service"
_SOCKET: Final = "pwgrid.socket"

_NEED_ROOT: Final = (
    "After=",
    "CapabilityBoundingSet=",
    "LoadCredential=",
    "Private",
    "Protect",
    "RemoveIPC=",
    "StateDirectory",
    "User=",
)
"""A user's own systemd cannot do this, or does not need it: its unit has no lines that begin so."""


class Systemd(Installation):
    NAME = "systemd"
    SHOWS_HOMES = True

    def __init__(self, asked: InstallOptions, before: Record | None) -> None:
        super().__init__(asked, before)
        self._scope = ("--user",) if asked.user else ()
        self._socket, self._unit = self._places.units / _SOCKET, self._places.units / _SERVICE

    def wanted(self) -> Sequence[Step]:
        """Raises GridError if pwgrid is where no service can reach it."""
        shipped = resource_dir("systemd")
        units = [
            TextFile(self._socket, socket_unit((shipped / _SOCKET).read_text(), self._service)),
            TextFile(self._unit, service_unit((shipped / _SERVICE).read_text(), self._service)),
        ]
        home = () if self._asked.user else (self._places.home,)
        return self._steps((self._places.units, self._places.config, *home), units)

    def start(self, written: Collection[Path]) -> Sequence[Command]:
        found = [*self._setup]
        if {self._socket, self._unit} & set(written) and is_run_by_systemd():
            found.append(self._command("daemon-reload"))
        if not all(self._is("enabled", unit) for unit in (_SOCKET, _SERVICE)):
            found.append(self._command("enable", _SOCKET, _SERVICE))
        if not self._asked.start:
            return found
        is_running = self._is("active", _SERVICE)
        listens = self._is("active", _SOCKET)
        has_old_address = listens and self._service.host not in listeners_on(self._service.port)
        if has_old_address or (is_running and not listens):
            found.append(self._command("stop", _SOCKET, _SERVICE))  # drains
            is_running = listens = False
        if not (is_running and listens):
            found.append(self._command("start", _SOCKET, _SERVICE))
        elif written:
            found.append(self._command("restart", _SERVICE))
        return found

    @property
    def why_not_running(self) -> Command:
        units = ("--unit", _SERVICE, "--unit", _SOCKET)
        journal = ("journalctl", *self._scope, *units, "--lines", "10", "--output", "cat")
        return Command(journal, accepted=range(256))

    def obstacle(self) -> str:
        if not is_run_by_systemd():
            return "this host is not run by systemd: see `pwgrid install supervisor`, or start `pwgrid serve`"
        return self._port_obstacle()

    def notes(self) -> Sequence[str]:
        is_own = self._asked.user
        ctl = "systemctl --user" if is_own else "sudo systemctl"
        journal = "journalctl --user -u pwgrid -f" if is_own else "sudo journalctl -u pwgrid -f"
        boot = ["boot       loginctl enable-linger has it run also while you are not logged in"] if is_own else []
        settings = f"settings   {self._service.config}, then {ctl} reload pwgrid"
        return self._notes(settings, f"log        {journal}", self._service.status_note, *boot)

    def stop(self) -> Sequence[Command]:
        """Ends the socket, too. Where systemd does not run, as while an image is built, it only removes the links that
        have them started at boot."""
        if not self._unit.exists():
            return []
        now = ("--now",) if is_run_by_systemd() else ()
        return [self._command("disable", *now, _SOCKET, _SERVICE)]

    def forget(self) -> Sequence[Command]:
        """None where systemd does not run."""
        if not is_run_by_systemd():
            return []
        return [self._command("daemon-reload"), self._command("reset-failed", _SERVICE, accepted=range(256))]

    def _owns(self, listeners: Mapping[str, int | None]) -> bool:
        if not self._is("active", _SOCKET):
            return False
        # A user may not look into a systemd of its own that has capabilities.
        if listeners.keys() == {self._before.options["host"]}:
            return True
        managers = {pid for pid in listeners.values() if pid is not None and _is_manager(pid)}
        return set(listeners.values()) <= {*managers, *pids_of_grids_on(self._service.port, elsewhere=True)}

    def _command(self, *arguments: str, accepted: Collection[int] = (0,)) -> Command:
        return Command(("systemctl", *self._scope, *arguments), accepted=accepted)

    def _is(self, state: str, unit: str) -> bool:
        return self._command(f"is-{state}", unit).answer()[1].strip() == state


def _is_manager(pid: int) -> bool:
    """Whether this process is a systemd of the calling user, which has that user's sockets."""
    try:
        process = psutil.Process(pid)
        return process.name() == "systemd" and process.uids().real == os.getuid()
    except psutil.NoSuchProcess:
        return False


def is_run_by_systemd() -> bool:
    """Whether systemd is pid 1 here (sd_booted)."""
    return Path("/run/systemd/system").is_dir()


def service_unit(shipped: str, service: Service) -> str:
    """pwgrid.service, for the system or (without `service.user`) for a user's own systemd."""
    command = " ".join(map(_unit_word, service.command))
    environment = {"PWGRID_HOST": service.host, "PWGRID_PORT": service.port, "PWGRID_CONFIG": service.config}
    if service.token and not service.user:
        environment["PWGRID_TOKEN_FILE"] = service.token
    if not service.sandbox:
        shipped = _without(shipped, ("Environment=CHROMIUM_SANDBOX=",))
    text = with_lines(shipped, "ExecStart=", [f"ExecStart={command} serve"])
    text = with_lines(text, "ExecReload=", [f"ExecReload={command} reload"])
    lines = ["Environment=LOG_FORMAT=json", *starmap(_unit_environment, environment.items())]
    text = with_lines(text, "Environment=LOG_FORMAT=json", lines)
    text = with_lines(text, "EnvironmentFile=", [f"EnvironmentFile=-{service.config.with_name('env')}"])
    if service.browsers:
        line = _unit_environment("PLAYWRIGHT_BROWSERS_PATH", service.browsers)
        text = with_lines(text, "Environment=PLAYWRIGHT_BROWSERS_PATH=", [line])
    else:
        text = _without(text, ("Environment=PLAYWRIGHT_BROWSERS_PATH=",))
    if not service.user:
        text = _without(text, _NEED_ROOT)
        return with_lines(text, "WantedBy=", ["WantedBy=default.target"])
    text = with_lines(text, "User=", [f"User={service.user}"])
    if service.token:
        text = with_lines(text, "#LoadCredential=", [f"LoadCredential=pwgrid.token:{_unit_word(str(service.token))}"])
    bound = [f"BindReadOnlyPaths={_unit_word(str(path))}" for path in service.hidden]
    return with_lines(text, "ProtectHome=", ["ProtectHome=tmpfs", *bound])


def socket_unit(shipped: str, service: Service) -> str:
    return with_lines(shipped, "ListenStream=", [f"ListenStream={service.address}"])


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
