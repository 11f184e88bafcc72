"""The command `pwgrid`: registers its subcommands, and turns their errors into a line and an exit code."""

import os
import sys
from typing import Any

import click

from pwgrid import __version__
from pwgrid.cli.commands import change_grid, config, help, host, show_grid, token
from pwgrid.cli.install.commands import install, uninstall
from pwgrid.common.errors import GridError


class _Commands(click.Group):
    """Prints a GridError as one line, and exits with its exit code."""

    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except GridError as error:
            from pwgrid.cli.output import printable

            click.echo(f"pwgrid: {printable(str(error))}", err=True)
            sys.exit(error.exit_code)
        except BrokenPipeError:  # `pwgrid status | head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(0)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="pwgrid")
def main() -> None:
    """A grid of real Playwright browsers on this host, behind one endpoint."""


for command in (
    *(host.serve, host.run, host.setup, host.doctor, host.calibrate),
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
