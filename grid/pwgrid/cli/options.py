"""Options that several commands share: the settings as flags, which grid is meant, --json."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from pwgrid.cli import ask_grid, output
from pwgrid.common.errors import GridError

if TYPE_CHECKING:
    from pwgrid.settings.model import Setting

PRIVATE = {
    **{"redis_url": "", "redis_host": "", "tls_cert": "", "tls_key": "", "tls_ca": ""},
    **{"advertised_url": "", "advertised_host": ""},
}
"""Flags for a grid of one command, whatever a file says: its Redis is its own, and its clients are on this host, where
no address that a server advertises may lead them to that server."""

Command = TypeVar("Command", bound=Callable[..., Any])

FLAGS = (
    "host",
    "port",
    "chromium_workers",
    "firefox_workers",
    "webkit_workers",
    "max_concurrent_sessions",
    "worker_select_timeout",
    "prefer",
    "token",
    "token_file",
    "allow_public",
    "tls_cert",
    "tls_key",
    "log_level",
    "log_format",
    "runtime_dir",
)
"""The settings that have a flag."""

GRID_OPTIONS: tuple[Any, ...] = (
    click.option("--port", type=int, help="The grid's port, if several grids run on this host."),
    click.option("--runtime-dir", help="Base of its runtime directory, if not the default."),
)


def as_private(flags: Mapping[str, Any]) -> dict[str, Any]:
    """These flags for a grid of one command. A server's file or environment does not open it to other hosts; a flag
    may."""
    return {**flags, "host": flags.get("host") or "127.0.0.1", **PRIVATE}


def with_options(options: tuple[Any, ...]) -> Callable[[Command], Command]:
    """Gives a command these options, in this order."""

    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def with_json(command: Command) -> Command:
    """Gives a command the option --json."""
    return click.option("--json", "as_json", is_flag=True, help="As JSON.")(command)


def say(found: Any, text: str, as_json: bool) -> None:
    """Prints the result of a command: `found` as JSON, or else `text`."""
    click.echo(output.as_json(found) if as_json else output.printable(text))


def completing(what: str) -> Any:
    """The function by which a shell completes an argument with the names of this kind that the grid has now; with none
    where no grid is found, since a shell that completes has no place for a sentence."""

    def complete(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
        try:
            grid = ask_grid.find_grid(context.params.get("port"), context.params.get("runtime_dir"))
            if what == "session":
                names = [session["id"] for session in ask_grid.latest_sessions(grid, None, 100)]
            elif what == "worker":
                names = [worker["id"] for worker in ask_grid.ask(grid, "status")["workers"]]
            else:
                end = "=" if what == "scale" else ""
                names = [f"{pool['name']}{end}" for pool in ask_grid.ask(grid, "status")["pools"]]
        except GridError:
            return []
        return [name for name in names if name.startswith(incomplete)]

    return complete


class _Flag(click.Option):
    """The flag of a setting. Only who asks for help waits until the model's source is read for what it means."""

    def __init__(self, *arguments: Any, describe: Callable[[], str], **others: Any) -> None:
        self._describe = describe
        super().__init__(*arguments, **others)

    @property
    def help(self) -> str:
        """What --help and completion show."""
        return self._describe()

    @help.setter
    def help(self, _none: str | None) -> None:
        """Click sets what it was given, which is nothing."""


class Configured(click.Command):
    """A command that takes a configuration: --config and the flags. The model is loaded for these commands alone.

    `defaults`: texts for --help, by setting, where the default of this command differs from the setting's own. Flags
    that are not in `shown` are accepted without effect: `make up` gives the same ones to several commands.
    """

    def __init__(
        self, *arguments: Any, defaults: Mapping[str, str] | None = None, shown: Collection[str] = FLAGS, **others: Any
    ) -> None:
        super().__init__(*arguments, **others)
        self._defaults, self._shown = defaults or {}, shown

    def get_params(self, context: click.Context) -> list[click.Parameter]:
        return [*self.configuration_options(), *super().get_params(context)]

    def configuration_options(self) -> list[click.Option]:
        """--config, and a flag for each setting of FLAGS."""
        from pwgrid.settings.model import SETTINGS, bare

        file = click.Option(["--config", "config_file"], type=click.Path(path_type=Path), help="Configuration (TOML).")
        options = [file]
        for each in map(SETTINGS.__getitem__, FLAGS):
            default = self._defaults.get(each.name) or (bare(each.default) if each.default else "")
            options.append(
                _Flag(
                    [each.flag, each.name],
                    type=each.kind if each.kind in (bool, int) else str,
                    is_flag=each.kind is bool,
                    default=None,
                    metavar={int: "N", float: each.unit.upper()}.get(each.kind),
                    describe=partial(_described, each, default),
                    hidden=each.name not in self._shown,
                )
            )
        return options


def _described(setting: Setting, default: str) -> str:
    return setting.described() + (f" [{default}]" if default else "")


def as_arguments(given: Mapping[str, Any]) -> list[str]:
    """The arguments of `pwgrid serve` for these values of its options."""
    arguments = []
    for option in Configured("serve").configuration_options():
        value = given[option.name or ""]
        if value is not None:
            arguments += [option.opts[0]] if option.is_flag else [option.opts[0], str(value)]
    return arguments
