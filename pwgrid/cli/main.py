"""The command `pwgrid`: registers its subcommands, and turns their errors into a line and an exit code."""

import errno
import os
import sys
from typing import Any, Final

import click

from pwgrid import __version__
from pwgrid.cli import exit_codes
from pwgrid.cli.commands import change_grid, config, help, show_grid, start_and_setup, token
from pwgrid.cli.commands.install import install, uninstall
from pwgrid.common.errors import GridError

_NO_ROOM: Final = {errno.ENOSPC: "no space left on the device", errno.EDQUOT: "the disk quota is used up"}


class _Commands(click.Group):
    """Prints a GridError as one line, and exits with its exit code."""

    def main(self, *args: Any, **extra: Any) -> Any:
        try:
            return super().main(*args, **extra)
        except GridError as error:
            from pwgrid.cli.output import printable

            click.echo(f"pwgrid: {printable(str(error))}", err=True)
            sys.exit(error.exit_code)
        except OSError as error:
            from pwgrid.cli.output import printable

            if (sentence := _surroundings(error)) is None:
                raise
            if error.errno in _NO_ROOM and error.filename is None:
                _write_no_more()
            click.echo(f"pwgrid: {printable(sentence)}", err=True)
            sys.exit(1)

    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except BrokenPipeError:  # `pwgrid status | head`; click itself would exit with 1
            _write_no_more()
            sys.exit(0)
        except KeyboardInterrupt:  # click itself would print "Aborted!" and exit with 1
            sys.exit(exit_codes.INTERRUPTED)


def _surroundings(error: OSError) -> str | None:
    """A sentence about an error that any command may meet: what it writes has no room, or its directory was removed."""
    if error.errno in _NO_ROOM:
        file = "" if error.filename is None else f" {os.fsdecode(error.filename)}"
        return f"cannot write{file}: {_NO_ROOM[error.errno]}"
    if error.errno == errno.ENOENT and error.filename is None:
        try:
            os.getcwd()
        except FileNotFoundError:
            return "the current directory was removed: go to another one"
        if "temporary directory" in str(error.strerror):  # of the module tempfile, which has tried to write
            return f"{error.strerror}: make room in one of them"
    return None


def _write_no_more() -> None:
    """Drops what is still to be written to stdout: Python would try again at its end, and complain."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="pwgrid")
def main() -> None:
    """A grid of real Playwright browsers on this host, behind one endpoint."""


for command in (
    *(
        start_and_setup.serve,
        start_and_setup.run,
        start_and_setup.setup,
        start_and_setup.doctor,
        start_and_setup.calibrate,
    ),
    *(show_grid.status, show_grid.top, show_grid.sessions, show_grid.logs, show_grid.version, show_grid.redis_cli),
    *(
        change_grid.drain,
        change_grid.reload,
        change_grid.scale,
        change_grid.upgrade,
        change_grid.restart,
        change_grid.stop,
    ),
    *(config.config, token.token, help.completion_group, help.help_command),
    *(install, uninstall),
):
    main.add_command(command)
