"""`pwgrid install supervisor`: what a grid under supervisord needs, its program, and how supervisorctl starts it."""

import configparser
import contextlib
import glob
import http.client
import re
import shlex
import shutil
import ssl
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from pwgrid.cli import exit_codes
from pwgrid.cli.install.installation import SERVICE_USER, Installation, Service, with_lines
from pwgrid.cli.install.steps import Command, Step, TextFile, Wait, uid_of
from pwgrid.cli.own_command import by_path
from pwgrid.common.errors import GridError
from pwgrid.common.paths import resource_dir
from pwgrid.runtime.directory import base_of, read_lock
from pwgrid.runtime.find_grids import OtherGrid, RunningGrid, find_others, find_running, pids_of_grids_on
from pwgrid.settings.model import reachable

_USUAL: Final = ("/etc/supervisor/supervisord.conf", "/etc/supervisord.conf", "/etc/supervisord/supervisord.conf")
_ROTATION: Final = Path("/etc/logrotate.d/pwgrid")
_PROGRAM: Final = "pwgrid"
_STARTS_WITHIN_S: Final = 120.0
_POLL_INTERVAL_S: Final = 0.5
_ANSWER_S: Final = 5.0

TEMPORARY_DIR: Final = "/tmp"
"""Where a grid of the service's user has its files under supervisord, whose own TMPDIR may be any."""


class Supervisord(Installation):
    NAME = "supervisor"
    SHOWS_HOMES = False

    def wanted(self) -> Sequence[Step]:
        """Raises GridError if there is no supervisord, or it includes no files."""
        service, places, is_own = self._service, self._places, self._asked.user
        shipped = resource_dir("config")
        program = supervisor_program((shipped / "supervisord.conf").read_text(), service)
        files = [TextFile(_program_file(self._conf), program, mode=0o600)]
        if service.user:
            # supervisord, which is root, opens this file, too. So it is in a directory of root, where no other user can
            # replace it.
            files.append(TextFile(places.log, "", 0o640, operators=True, owner=service.user, group=service.user))
        rule = places.config / "logrotate.conf" if is_own else _ROTATION
        if is_own or rule.parent.is_dir():
            files.append(TextFile(rule, rotation((shipped / "logrotate.conf").read_text(), service)))
        home = () if is_own else (places.home,)
        return self._steps((places.config, *home, places.log.parent), files, token_group=service.user)

    def start(self, written: Collection[Path]) -> Sequence[Command | Wait]:
        if not self._asked.start:
            return self._setup
        state = _supervisorctl(self._conf, "status", _PROGRAM).answer()[1]
        changed = f"{_PROGRAM}: changed" in _supervisorctl(self._conf, "reread").answer()[1]  # by an earlier --no-start
        if changed or _program_file(self._conf) in written or "no such" in state:
            do = "update"  # returns before supervisord has started anything
        elif "RUNNING" in state or "STARTING" in state:
            return self._setup
        else:
            do = "start"
        command = _supervisorctl(self._conf, do, _PROGRAM)
        return [*self._setup, command, Wait(lambda: await_ready(self._conf, self._service))]

    @property
    def why_not_running(self) -> Command:
        return Command(("tail", "--lines", "10", str(self._places.log)), accepted=range(256))

    def obstacle(self) -> str:
        code, said = _supervisorctl(self._conf, "pid").answer()
        if code:
            return f"the supervisord of {self._conf} does not answer ({said.strip()}): start it, or say --no-start"
        return self._port_obstacle()

    def notes(self) -> Sequence[str]:
        service, ctl = self._service, shlex.join(_supervisorctl(self._conf).argv)
        as_user = service.status_by(("sudo", "-u", service.user), service.command)
        found = [
            f"settings   {service.config}, then {ctl} signal HUP pwgrid",
            f"log        {service.log}, or {ctl} tail -f pwgrid",
            service.status_note if self._asked.user else as_user,
        ]
        if self._asked.user:
            state, rule = service.log.parent / "rotated", service.config.parent / "logrotate.conf"
            found.append(f"rotation   logrotate --state {state} {rule}, daily")
        return self._notes(*found)

    def stop(self) -> Sequence[Command]:
        """None where the user that the grid runs as is gone."""
        conf = self._conf_before
        if not conf.is_file() or not _program_file(conf).exists():  # without its configuration supervisord was removed
            return []
        base = self._base_before
        if base is None:
            return []  # supervisord alone can end what may still run
        named = ("--runtime-dir", base) if base else ()
        command = (*by_path(), "stop", "--port", str(self._before.options["port"]), *named)
        # Any other failure ends the uninstallation here: a grid that lives on needs its files.
        return [Command(command, accepted=(exit_codes.DONE, exit_codes.NONE_RUNNING))]

    def forget(self) -> Sequence[Command]:
        """Their failure does not matter: supervisord may not run, or not know the program."""
        return [_supervisorctl(self._conf_before, "update", _PROGRAM, accepted=range(256))]

    def _options(self) -> dict[str, Any]:
        conf = str(self._conf)
        return super()._options() | {"conf": conf}

    def _owns(self, listeners: Mapping[str, int | None]) -> bool:
        base = self._base_before
        own = pids_of_grids_on(self._service.port, base, elsewhere=not base)  # also what a stopped one has left
        return set(listeners.values()) <= own

    @cached_property
    def _base_before(self) -> str | None:
        """What has the runtime directory of the earlier installation's grid. Root has to name that of another user's;
        empty: nobody has. None: that user is gone."""
        base = self._settings.runtime_dir
        if base or self._asked.user:
            return base
        uid = uid_of(SERVICE_USER)
        return None if uid is None else str(base_of(uid, Path(TEMPORARY_DIR)))

    @cached_property
    def _conf_before(self) -> Path:
        """Raises GridError for another one than that of the earlier installation, unless that has moved."""
        recorded = Path(self._before.options["conf"])
        if self._asked.conf is None:
            return recorded
        if self._asked.conf.resolve() != recorded and recorded.is_file():
            raise GridError(f"--conf: the grid was installed under the supervisord of {recorded}")
        return self._conf

    @cached_property
    def _conf(self) -> Path:
        named = self._asked.conf or self._before.options.get("conf")
        candidates = [Path(named)] if named else [Path(each) for each in _USUAL]
        for each in candidates:
            if each.is_file():
                return each.resolve()
        raise GridError(
            f"no configuration of supervisord in {', '.join(map(str, candidates))}: name it with --conf FILE"
        )


def _program_file(conf: Path) -> Path:
    """A new file where supervisord looks for programs, by the first pattern of its [include] that leaves the name open:
    a file that is named in full may have programs of the operator."""
    parser = configparser.RawConfigParser(strict=False, inline_comment_prefixes=(";",))
    try:
        parser.read(conf)
        patterns = parser.get("include", "files").split()
    except (configparser.Error, OSError):
        patterns = []
    for pattern in patterns:
        place = (conf.parent / pattern.replace("%(here)s", str(conf.parent))).absolute()
        file = place.with_name(place.name.replace("*", _PROGRAM, 1))
        if file != place and not glob.has_magic(str(file)):
            return file
    raise GridError(f"{conf} has no [include] with files like conf.d/*.conf: add files = conf.d/*.conf")


def _supervisorctl(conf: Path, *arguments: str, accepted: Collection[int] = (0,)) -> Command:
    found = shutil.which("supervisorctl")
    program = (found,) if found else (sys.executable, "-m", "supervisor.supervisorctl")
    return Command((*program, "-c", str(conf), *arguments), accepted=accepted)


def await_ready(conf: Path, about: Service) -> None:
    """Returns when the grid that supervisord runs is ready. Raises GridError if it ends, or is not ready in time."""
    until = time.monotonic() + _STARTS_WITHIN_S
    while True:
        state = _supervisorctl(conf, "status", _PROGRAM).answer()[1].strip()
        # Not ready alone: a proxy that the master before has left answers, too. Not RUNNING alone: that is any process
        # that has not ended within some seconds.
        running = re.search(r"RUNNING +pid (\d+)", state)
        if running and is_master(int(running[1]), about.port) and is_ready(about.host, about.port):
            return
        if any(word in state for word in ("BACKOFF", "EXITED", "FATAL", "no such")):
            raise GridError(f"supervisord says of it: {state}")
        if time.monotonic() > until:
            raise GridError(f"it is not ready after {_STARTS_WITHIN_S:g} s; supervisord says of it: {state}")
        time.sleep(_POLL_INTERVAL_S)  # noqa: TID251 - supervisord tells nobody of what it has started


def is_master(pid: int, port: int) -> bool:
    """Whether this process is the master of a grid on this port, be it another user's."""
    there: list[RunningGrid | OtherGrid] = [*find_running(elsewhere=True), *find_others()]
    locks = [read_lock(each.directory) for each in there if each.port == port]
    return any(lock is not None and lock.is_held and lock.pid == pid for lock in locks)


def is_ready(host: str, port: int) -> bool:
    """Whether a grid that listens there is ready."""
    # Its configuration may have a certificate, which is hardly one for a loopback address.
    encrypted = ssl._create_unverified_context()
    for asks in (
        http.client.HTTPConnection(reachable(host), port, timeout=_ANSWER_S),
        http.client.HTTPSConnection(reachable(host), port, timeout=_ANSWER_S, context=encrypted),
    ):
        with contextlib.closing(asks), contextlib.suppress(OSError, http.client.HTTPException):
            asks.request("GET", "/health/ready")
            if asks.getresponse().status == http.HTTPStatus.OK:
                return True
    return False


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
        # Where systemd has them, too, and where `sudo pwgrid profile` looks while no grid runs.
        environment["STATE_DIRECTORY"] = Path(service.home, "profiles")
    if service.token:
        environment["PWGRID_TOKEN_FILE"] = service.token
    if service.browsers:
        environment["PLAYWRIGHT_BROWSERS_PATH"] = service.browsers
    if service.sandbox:
        environment["CHROMIUM_SANDBOX"] = "true"
    pairs = ",".join(f"{name}={_supervisor_word(str(value))}" for name, value in environment.items())
    command = " ".join(map(_supervisor_plain, (*map(shlex.quote, service.command), "serve")))
    text = with_lines(shipped, "command=", [f"command={command}", *([f"user={service.user}"] if service.user else [])])
    text = with_lines(text, "environment=", [f"environment={pairs}"])
    return with_lines(text, "stdout_logfile=", [f"stdout_logfile={_supervisor_plain(str(service.log))}"])


def rotation(shipped: str, service: Service) -> str:
    return with_lines(shipped, "/var/log/pwgrid/grid.log", [f'"{service.log}" {{'])


def _supervisor_plain(word: str) -> str:
    return word.replace("%", "%%")


def _supervisor_word(word: str) -> str:
    escaped = _supervisor_plain(word).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
