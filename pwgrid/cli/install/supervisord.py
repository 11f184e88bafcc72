"""`pwgrid install supervisor`: what a grid under supervisord needs, and the commands of supervisorctl for it."""

import configparser
import glob
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Final

from pwgrid.cli.install import host_facts
from pwgrid.cli.install.install_steps import Command, Record, TextFile, Wait
from pwgrid.cli.install.installation import (
    SERVICE_USER,
    Installation,
    InstallOptions,
    InstallPaths,
    notes,
    requirements,
    service,
    settings_files,
    status_note,
)
from pwgrid.cli.install.service_file_texts import TEMPORARY_DIR, Service, rotation, supervisor_program
from pwgrid.cli.own_command import by_path
from pwgrid.common.directories import resource_dir
from pwgrid.common.errors import GridError
from pwgrid.runtime.directory import base_of

NAME: Final = "supervisor"
_USUAL: Final = ("/etc/supervisor/supervisord.conf", "/etc/supervisord.conf", "/etc/supervisord/supervisord.conf")
_ROTATION: Final = Path("/etc/logrotate.d/pwgrid")
_PROGRAM: Final = "pwgrid"
_STARTS_WITHIN_S: Final = 120.0
_LOOK_EVERY_S: Final = 0.5


def installation(asked: InstallOptions, before: Record | None) -> Installation:
    """What to make and run on this host. Raises GridError if there is no supervisord, or it includes no files."""
    conf = _conf(asked, before)
    options = asked.after(before) | {"conf": str(conf)}
    places = InstallPaths.of(user=asked.user)
    about, setup = service(asked, options, places, shows_homes=False)
    shipped = resource_dir("config")
    files = settings_files(about, token_group=about.user)
    program = TextFile(
        _program_file(conf), supervisor_program((shipped / "supervisord.conf").read_text(), about), mode=0o600
    )
    files.append(program)
    if about.user:
        # supervisord, which is root, opens this file, too. So it is in a directory of root, where no other user can
        # replace it.
        files.append(TextFile(places.log, "", 0o640, operators=True, owner=about.user, group=about.user))
    rule = places.config / "logrotate.conf" if asked.user else _ROTATION
    if asked.user or rule.parent.is_dir():
        files.append(TextFile(rule, rotation((shipped / "logrotate.conf").read_text(), about)))
    made = [places.config, places.log.parent] if asked.user else [places.config, places.home, places.log.parent]
    return Installation(
        wanted=requirements(asked, places, made, files),
        fresh=Record(NAME, options, trees=(str(about.browsers),) if setup and about.browsers else ()),
        start=lambda written: [*setup, *_start(conf, program.path, about, written, start=asked.start)],
        why_not_running=Command(("tail", "--lines", "10", str(places.log)), accepted=range(256)),
        notes=_notes(asked, about, conf),
        obstacle=_obstacle(conf, about, before),
    )


def stop(asked: InstallOptions, before: Record) -> list[Command]:
    """The command that drains and ends the grid; supervisord does not start it again after that.
    There is none where the user that it runs as is gone."""
    about = before.options
    conf = Path(about["conf"])
    if not conf.is_file() or not _program_file(conf).exists():  # without its configuration supervisord was removed
        return []
    command = (*by_path(), "stop", "--port", str(about["port"]))
    if not asked.user:
        uid = host_facts.uid_of(SERVICE_USER)
        if uid is None:
            return []  # supervisord alone can end what may still run
        # Root asks no other user's grid without naming it.
        command += ("--runtime-dir", str(base_of(uid, Path(TEMPORARY_DIR))))
    return [Command(command, accepted=range(256))]


def forget(before: Record) -> list[Command]:
    """The command that makes supervisord forget the program, once its file is removed. Its failure does not matter:
    supervisord may not run, or not know the program."""
    return [Command((*_supervisorctl(Path(before.options["conf"])), "update", _PROGRAM), accepted=range(256))]


def _conf(asked: InstallOptions, before: Record | None) -> Path:
    named = asked.conf or (before and before.options.get("conf"))
    candidates = [Path(named)] if named else [Path(each) for each in _USUAL]
    for each in candidates:
        if each.is_file():
            return each.resolve()
    raise GridError(f"no configuration of supervisord in {', '.join(map(str, candidates))}: name it with --conf FILE")


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


def _supervisorctl(conf: Path) -> tuple[str, ...]:
    found = shutil.which("supervisorctl")
    return (*((found,) if found else (sys.executable, "-m", "supervisor.supervisorctl")), "-c", str(conf))


def _start(
    conf: Path, program: Path, about: Service, written: Collection[Path], *, start: bool
) -> Sequence[Command | Wait]:
    if not start:
        return []
    state = _said(conf, "status", _PROGRAM)[1]
    if program in written or "no such" in state:
        do = "update"  # returns before supervisord has started anything
    elif "RUNNING" in state or "STARTING" in state:
        return []
    else:
        do = "start"
    return [Command((*_supervisorctl(conf), do, _PROGRAM)), Wait(lambda: await_ready(conf, about))]


def await_ready(conf: Path, about: Service) -> None:
    """Returns when the grid is ready. Raises GridError if it ends, or is not ready in time."""
    until = time.monotonic() + _STARTS_WITHIN_S
    while not host_facts.is_ready(about.host, about.port):
        state = _said(conf, "status", _PROGRAM)[1].strip()
        if any(word in state for word in ("BACKOFF", "EXITED", "FATAL", "no such")):
            raise GridError(f"supervisord says of it: {state}")
        if time.monotonic() > until:
            raise GridError(f"it is not ready after {_STARTS_WITHIN_S:g} s; supervisord says of it: {state}")
        time.sleep(_LOOK_EVERY_S)  # noqa: TID251 - supervisord tells nobody of what it has started


def _obstacle(conf: Path, about: Service, before: Record | None) -> str:
    code, said = _said(conf, "pid")
    if code:
        return f"the supervisord of {conf} does not answer ({said.strip()}): start it, or say --no-start"
    if before and before.options.get("port") == about.port:
        return ""  # it listens itself
    return host_facts.port_obstacle(about.host, about.port)


def _said(conf: Path, *arguments: str) -> tuple[int, str]:
    try:
        done = subprocess.run([*_supervisorctl(conf), *arguments], capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        return 1, f"{error.filename} is not there"
    return done.returncode, done.stdout or done.stderr


def _notes(asked: InstallOptions, about: Service, conf: Path) -> tuple[str, ...]:
    ctl = shlex.join(_supervisorctl(conf))
    found = [
        f"settings   {about.config}, then {ctl} signal HUP pwgrid",
        f"log        {about.log}, or {ctl} tail -f pwgrid",
        status_note(about) if asked.user else f"status     sudo -u {about.user} {shlex.join(about.command)} status",
    ]
    if asked.user:
        found.append(
            f"rotation   logrotate --state {about.log.parent}/rotated {about.config.parent}/logrotate.conf, daily"
        )
    return notes(about, *found)
