"""`pwgrid config`."""

import os
import sys
from pathlib import Path
from typing import Any

import click

from pwgrid.cli.commands.options import Configured, say, with_json


@click.group()
def config() -> None:
    """Checks and shows the configuration."""


@config.command("check", cls=Configured)
@with_json
def config_check(config_file: Path | None, as_json: bool, **flags: Any) -> None:
    """Checks the configuration, and shows the pools, totals by browser and the effective capacity.

    If there are violations (malformed label keys among them), prints all of them and exits 2.
    """
    from dataclasses import asdict

    from pwgrid.cli import config_summary, output
    from pwgrid.common.errors import ConfigError
    from pwgrid.settings.load import load

    try:
        loaded = load(config_file, os.environ, flags)
        if loaded.strays:
            raise ConfigError(loaded.strays)
    except ConfigError as error:
        if as_json:
            click.echo(output.as_json({"good": False, "violations": [asdict(each) for each in error.violations]}))
            sys.exit(error.exit_code)
        raise
    found = config_summary.summary(loaded.settings)
    warnings = [*loaded.warnings, *config_summary.missing_browsers(loaded.settings)]
    if as_json:
        click.echo(output.as_json({"good": True, **found, "warnings": warnings}))
        return
    for warning in warnings:
        click.echo(f"warning: {warning}", err=True)
    click.echo(f"the configuration is good\n\n{config_summary.summary_text(found)}")


@config.command("show", cls=Configured)
@click.option("--running", is_flag=True, help="Show the settings of the running grid, as its master has them.")
@with_json
def config_show(config_file: Path | None, running: bool, as_json: bool, **flags: Any) -> None:
    """Shows every setting with its value and where that comes from.

    These are the settings that a grid started here now would have; with --running those of the running grid (--port or
    --runtime-dir names it, if several run).
    """
    from pwgrid.cli.ask_grid import ask, find_grid
    from pwgrid.settings import show_with_sources
    from pwgrid.settings.load import load

    if running:
        grid = find_grid(flags.pop("port"), flags.pop("runtime_dir"))
        if config_file is not None or any(value is not None for value in flags.values()):
            raise click.UsageError(
                "a running grid has its settings already: --running allows only --port and --runtime-dir"
            )
        table = ask(grid, "settings")["settings"]
        whose = f"# settings of the grid on port {grid.port} since its start or last reload (master pid {grid.pid})"
    else:
        loaded = load(config_file, os.environ, flags)
        table = show_with_sources.described(loaded.settings, loaded.sources)
        whose = show_with_sources.whose(loaded.config_file)
    say(table, f"{whose}\n{show_with_sources.show(table)}", as_json)
