"""The command `pwgrid`: names its subcommands, and turns their errors into a line and an exit code."""

import errno
import os
import sys
from importlib import import_module
from typing import Any, Final

import click

from pwgrid import __version__
from pwgrid.cli import exit_codes
from pwgrid.cli.standard_streams import OutputError, drop_output
from pwgrid.common.errors import GridError, system_error

COMMANDS: Final = {
    "calibrate": "Measures how many sessions with your own page or script this host carries, and proposes settings.",
    "completion": "Completes commands, options, workers and sessions in bash, zsh and fish.",
    "config": "Checks and shows the configuration.",
    "doctor": "Checks everything that a grid needs of this host, launches each browser once, and says what to do.",
    "drain": "Drains WORKER, a pool, a host or all workers.",
    "help": "Shows the help of a command, or a page of the documentation; without TOPIC, lists both.",
    "install": "Installs the grid as a service that starts with the host.",
    "logs": "Shows the log of a grid: from LOG_FILE, the journal, supervisord, or the file that its stderr goes to.",
    "profile": "Shows, removes and exports the profiles of browsers that CDP clients keep (?profile=).",
    "redis-cli": "Runs redis-cli on the grid's Redis.",
    "reload": "Makes a running grid read its configuration file again.",
    "restart": "Replaces the proxy and every worker of a running grid; drops no session and refuses no client.",
    "run": "Runs COMMAND with a private grid of its own.",
    "scale": "Changes the number of workers of pools until the grid ends, or its service is restarted.",
    "serve": "Runs the grid in the foreground until SIGTERM or Ctrl-C.",
    "sessions": "Shows the latest sessions, with the reason of each end; with --follow the newest last.",
    "setup": "Finds or installs the browser of each pool that wants a worker, and launches it once.",
    "status": "Shows the pools and workers, sessions and memory of a grid.",
    "stop": "Ends a grid: no new sessions, live ones go on until DRAIN_TIMEOUT.",
    "token": "Makes, lists and revokes the tokens of clients and operators.",
    "top": "Shows a grid's pools, workers, sessions and events on the whole screen, renewed every S seconds.",
    "uninstall": "Ends the grid and removes exactly what `pwgrid install` has made.",
    "upgrade": "Moves a running grid to the code, the browsers and the settings that are installed now.",
    "version": "Shows the versions of pwgrid, Playwright and Python, and of your grids that run here.",
}
"""The commands with the first sentence of the help of each."""

_MODULES: Final = {
    "calibrate": "calibrate.main",
    "install": "install.install",
    "uninstall": "install.uninstall",
    "restart": "upgrade",
    "top": "top.app",
}
"""The modules of the commands that are in none of their own name."""

_NO_ROOM: Final = {errno.ENOSPC: "no space left on the device", errno.EDQUOT: "the disk quota is used up"}


class Unloaded(click.Command):
    """Stands for a command whose module is imported only when it is called: no other command waits for that."""

    def load(self) -> click.Command:
        """The command itself."""
        name = str(self.name).replace("-", "_")
        module = import_module(f"pwgrid.cli.{_MODULES.get(name, name)}")
        command: click.Command = getattr(module, name)
        return command

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        return self.load().make_context(*args, **extra)


class _Commands(click.Group):
    """Prints a GridError, or an error of the operating system, as one line, and exits with its exit code."""

    def main(self, *args: Any, **extra: Any) -> Any:
        try:
            try:
                return super().main(*args, **extra)
            finally:
                sys.stdout.flush()
        except OutputError as error:
            drop_output()
            if error.errno == errno.EPIPE:
                sys.exit(exit_codes.READER_GONE)
            sentence, exit_code = f"cannot write: {_NO_ROOM.get(error.errno, error.strerror)}", exit_codes.FAILED
        except GridError as error:
            sentence, exit_code = str(error), error.exit_code
        except OSError as error:
            if error.errno is None:  # of a library, or a bug
                raise
            sentence, exit_code = _surroundings(error), exit_codes.FAILED
        from pwgrid.cli.output import printable

        click.echo(f"pwgrid: {printable(sentence)}", err=True)
        sys.exit(exit_code)

    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except KeyboardInterrupt:  # click itself would print "Aborted!" and exit with 1
            sys.exit(exit_codes.INTERRUPTED)


def _surroundings(error: OSError) -> str:
    """A sentence about an error of the operating system, which any command may meet: what it writes has no room, or its
    directory was removed."""
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
    return system_error(error)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="pwgrid")
def main() -> None:
    """A grid of real Playwright browsers on this host, behind one endpoint."""


for name, summary in COMMANDS.items():
    main.add_command(Unloaded(name, help=summary))
