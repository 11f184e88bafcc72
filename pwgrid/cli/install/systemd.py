"""`pwgrid install systemd`: what a grid under systemd needs, and the commands of systemctl for it."""

import subprocess
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Final

from pwgrid.cli.install import host_facts
from pwgrid.cli.install.install_steps import Command, Record, TextFile
from pwgrid.cli.install.installation import (
    Installation,
    InstallOptions,
    InstallPaths,
    notes,
    requirements,
    service,
    settings_files,
    status_note,
)
from pwgrid.cli.install.service_file_texts import Service, service_unit, socket_unit
from pwgrid.common.directories import resource_dir

NAME: Final = "systemd"
_SERVICE: Final = "pwgrid.service"
_SOCKET: Final = "pwgrid.socket"


def installation(asked: InstallOptions, before: Record | None) -> Installation:
    """What to make and run on this host. Raises GridError if pwgrid is where no service can reach it."""
    systemctl = _systemctl(asked)
    options = asked.after(before)
    places = InstallPaths.of(user=asked.user)
    about, setup = service(asked, options, places, shows_homes=True)
    shipped = resource_dir("systemd")
    units = [
        TextFile(places.units / _SOCKET, socket_unit((shipped / _SOCKET).read_text(), about)),
        TextFile(places.units / _SERVICE, service_unit((shipped / _SERVICE).read_text(), about)),
    ]
    made = (places.units, places.config) if asked.user else (places.units, places.config, places.home)
    return Installation(
        wanted=requirements(asked, places, made, (*settings_files(about), *units)),
        fresh=Record(NAME, options, trees=(str(about.browsers),) if setup and about.browsers else ()),
        start=lambda written: [*setup, *_start(systemctl, places, written, start=asked.start)],
        why_not_running=Command(
            (
                "journalctl",
                *(("--user",) if asked.user else ()),
                "--unit",
                _SERVICE,
                "--lines",
                "10",
                "--output",
                "cat",
            ),
            accepted=range(256),
        ),
        notes=_notes(asked, about),
        obstacle=_obstacle(systemctl, about),
    )


def stop(asked: InstallOptions) -> list[Command]:
    """The command that ends the grid and its socket, after which systemd starts neither again. Where systemd does not
    run, as while an image is built, it only removes the links that have them started at boot."""
    systemctl = _systemctl(asked)
    places = InstallPaths.of(user=asked.user)
    if not (places.units / _SERVICE).exists():
        return []
    now = ("--now",) if host_facts.is_run_by_systemd() else ()
    return [Command((*systemctl, "disable", *now, _SOCKET, _SERVICE))]


def forget(asked: InstallOptions) -> list[Command]:
    """The commands that make a systemd that runs forget the units, after their files were removed."""
    if not host_facts.is_run_by_systemd():
        return []
    systemctl = _systemctl(asked)
    return [
        Command((*systemctl, "daemon-reload")),
        Command((*systemctl, "reset-failed", _SERVICE), accepted=range(256)),
    ]


def _start(
    systemctl: tuple[str, ...], places: InstallPaths, written: Collection[Path], *, start: bool
) -> Sequence[Command]:
    units = {places.units / _SERVICE, places.units / _SOCKET}
    found = []
    if units & set(written) and host_facts.is_run_by_systemd():
        found.append(Command((*systemctl, "daemon-reload")))
    if not all(_is(systemctl, "enabled", unit) for unit in (_SOCKET, _SERVICE)):
        found.append(Command((*systemctl, "enable", _SOCKET, _SERVICE)))
    if not start:
        return found
    is_running = _is(systemctl, "active", _SERVICE)
    listens = _is(systemctl, "active", _SOCKET)
    if is_running and (not listens or places.units / _SOCKET in written):
        found.append(Command((*systemctl, "stop", _SOCKET, _SERVICE)))  # drains: the address has changed
        is_running = listens = False
    if not (is_running and listens):
        found.append(Command((*systemctl, "start", _SOCKET, _SERVICE)))
    elif written:
        found.append(Command((*systemctl, "restart", _SERVICE)))
    return found


def _obstacle(systemctl: tuple[str, ...], about: Service) -> str:
    if not host_facts.is_run_by_systemd():
        return "this host is not run by systemd: see `pwgrid install supervisor`, or start `pwgrid serve`"
    return "" if _is(systemctl, "active", _SOCKET) else host_facts.port_obstacle(about.host, about.port)


def _systemctl(asked: InstallOptions) -> tuple[str, ...]:
    return ("systemctl", "--user") if asked.user else ("systemctl",)


def _is(systemctl: tuple[str, ...], state: str, unit: str) -> bool:
    try:
        done = subprocess.run([*systemctl, f"is-{state}", unit], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return False
    return done.stdout.strip() == state


def _notes(asked: InstallOptions, about: Service) -> tuple[str, ...]:
    ctl = "systemctl --user" if asked.user else "sudo systemctl"
    journal = "journalctl --user -u pwgrid -f" if asked.user else "sudo journalctl -u pwgrid -f"
    boot = ["boot       loginctl enable-linger has it run also while you are not logged in"] if asked.user else []
    settings = f"settings   {about.config}, then {ctl} reload pwgrid"
    return notes(about, settings, f"log        {journal}", status_note(about), *boot)
