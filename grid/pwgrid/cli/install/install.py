"""`pwgrid install`: shows what it will make, asks, and makes it."""

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from pwgrid.cli.options import with_options
from pwgrid.cli.own_command import by_path
from pwgrid.common.errors import GridError

if TYPE_CHECKING:  # these load the settings' model, which most commands do not need
    from pwgrid.cli.install.installation import Installation

MANAGERS: Final = ("systemd", "supervisor")

ASKING: Final = (
    click.option("--user", is_flag=True, help="In your own directories, as yourself, without root."),
    click.option("--dry-run", is_flag=True, help="Only show what would be done, with the service's files."),
    click.option("--yes", "-y", is_flag=True, help="Do not ask."),
)
_LISTENING: Final = (
    click.option("--port", type=click.IntRange(1, 65535), help="Port to listen on. [8080]"),
    click.option("--host", help="Address to listen on; 0.0.0.0 means all. [127.0.0.1]"),
    click.option("--token/--no-token", default=None, help="Whether clients need a token, which is made. [they do]"),
    click.option("--no-start", is_flag=True, help="Make everything, but do not start it."),
)
CONF: Final = click.option(
    "--conf", type=click.Path(path_type=Path), help="supervisord's own configuration, if not in a usual place."
)


@click.group()
def install() -> None:
    """Installs the grid as a service that starts with the host.

    Shows first what it will do. A second run changes only what another version of pwgrid, or another option, changes;
    it never changes your settings.
    """


@install.command("systemd")
@with_options((*ASKING, *_LISTENING))
def install_systemd(**options: Any) -> None:
    """Makes unit, socket, system user, settings and token for systemd, and starts the grid.

    \b
    sudo pwgrid install systemd --host 0.0.0.0 --port 9000
    """
    _install("systemd", **options)


@install.command("supervisor")
@with_options((*ASKING, *_LISTENING, CONF))
def install_supervisor(**options: Any) -> None:
    """Makes program, system user, settings, token, log and its rotation for supervisord, and starts the grid."""
    _install("supervisor", **options)


def _install(manager: str, *, no_start: bool, dry_run: bool, yes: bool, **asked: Any) -> None:
    from pwgrid.cli.install.installation import InstallOptions, InstallPaths
    from pwgrid.cli.install.record import Record, make_all
    from pwgrid.cli.install.steps import TextFile, described

    check_root(user=asked["user"], dry_run=dry_run)
    config = InstallPaths.of(user=asked["user"]).config
    before = Record.read(config)
    if before is not None and before.under != manager:
        raise GridError(f"a grid is installed here under {before.under}: `pwgrid uninstall {before.under}` first")
    found = kind_of(manager)(InstallOptions(**asked, start=not no_start), before)
    wanted = found.wanted()
    steps = [each for each in wanted if each.is_needed()]
    commands = found.start([each.path for each in steps if isinstance(each, TextFile)])
    lines = list(described([*steps, *commands], in_full=dry_run))
    record = found.record().with_all(before, wanted, steps)
    if not lines and record == before:
        click.echo("nothing to do: it is installed" if no_start else "nothing to do: it is installed, and runs")
    elif not (no_start or dry_run) and (obstacle := found.obstacle()):
        raise GridError(obstacle)
    elif not agreed(f"pwgrid install {manager}", lines, dry_run=dry_run, yes=yes):
        return
    else:
        make_all(steps, config, record)
        for command in commands:
            click.echo(str(command))
            try:
                command.run()
            except GridError as error:
                raise GridError(f"{error.sentence}\n{found.why_not_running.run().rstrip()}") from None
    for note in found.notes():
        click.echo(note)


def kind_of(manager: str) -> "type[Installation]":
    from pwgrid.cli.install.supervisord import Supervisord
    from pwgrid.cli.install.systemd import Systemd

    return Systemd if manager == Systemd.NAME else Supervisord


def check_root(*, user: bool, dry_run: bool) -> None:
    """Raises GridError if it takes root. Before anything is read: some of it only root can read."""
    if not user and not dry_run and os.geteuid() != 0:
        raise GridError(
            f"it takes root: sudo {shlex.join((*by_path(), *sys.argv[1:]))}; or --user, for a service of your own"
        )


def agreed(what: str, lines: Sequence[str], *, dry_run: bool, yes: bool) -> bool:
    """Show `lines`, and ask whether to go on. Raises GridError if stdin is no terminal to ask on."""
    click.echo(f"{what} will:")
    for line in lines:
        click.echo(line)
    if dry_run:
        return False
    if yes:
        return True
    if not sys.stdin.isatty():
        raise GridError("nobody can be asked here: say --yes")
    return click.confirm("go on?")
