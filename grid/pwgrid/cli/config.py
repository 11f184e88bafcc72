"""`pwgrid config`: checks a configuration and sums it up, or shows where each value comes from."""

from __future__ import annotations

import os
import sys
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pwgrid.cli import output
from pwgrid.cli.ask_grid import ask, find_grid
from pwgrid.cli.options import Configured, say, with_json
from pwgrid.common.errors import BrowserMissing, ConfigError
from pwgrid.common.types import Isolation
from pwgrid.common.wording import counted

if TYPE_CHECKING:
    from pwgrid.settings.model import Settings


@click.group()
def config() -> None:
    """Checks and shows the configuration."""


@config.command("check", cls=Configured)
@with_json
def config_check(config_file: Path | None, as_json: bool, **flags: Any) -> None:
    """Checks the configuration, and shows the pools, totals by browser and the effective capacity.

    If there are violations (malformed label keys among them), prints all of them and exits 2.
    """
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
    found = summary(loaded.settings)
    warnings = [*loaded.warnings, *missing_browsers(loaded.settings)]
    if as_json:
        click.echo(output.as_json({"good": True, **found, "warnings": warnings}))
        return
    for warning in warnings:
        click.echo(f"warning: {warning}", err=True)
    click.echo(f"the configuration is good\n\n{summary_text(found)}")


def summary(settings: Settings) -> dict[str, Any]:
    """The JSON of `pwgrid config check`; `slots` are those of each worker, `capacity` are sessions at once."""
    pools = settings.pools_wanted().values()
    workers: Counter[str] = Counter()
    sessions: Counter[str] = Counter()
    for pool in pools:
        workers[pool.browser_type] += pool.workers
        sessions[pool.browser_type] += pool.workers * pool.slots
    totals = {each: {"workers": workers[each], "capacity": sessions[each]} for each in workers if workers[each]}
    return {
        "pools": [
            {
                "name": pool.name,
                "browserType": pool.browser_type,
                "workers": pool.workers,
                "slots": pool.slots,
                "capacity": pool.workers * pool.slots,
                "lifetime": pool.lifetime,
                "isolation": pool.isolation.value,
                "labels": list(pool.labels),
            }
            for pool in pools
        ],
        "totals": totals,
        "capacity": sessions.total(),
        "defaultBrowserType": settings.default_browser_type,
    }


def missing_browsers(settings: Settings) -> list[str]:
    """A sentence for each pool whose channel or executable is not on this host."""
    from pwgrid.installed.browsers import find_for_pool

    missing = []
    for pool in settings.pools_with_workers():
        if pool.channel or pool.executable:
            try:
                find_for_pool(pool, settings)
            except BrowserMissing as error:
                missing.append(f"on this host {error.sentence}")
    return missing


def summary_text(found: dict[str, Any]) -> str:
    """The summary as tables, without pools that have no worker."""
    columns = ["name", "browserType", "workers", "slots", "capacity", "lifetime", "labels"]
    heads = ["POOL", "BROWSER", "WORKERS", "SLOTS", "CAPACITY", "LIFETIME", "LABELS"]
    if any(pool["isolation"] != Isolation.CONTEXT for pool in found["pools"]):
        columns.insert(-1, "isolation")
        heads.insert(-1, "ISOLATION")
    rows = [
        [", ".join(each) if isinstance(each, list) else each for each in (pool[column] for column in columns)]
        for pool in found["pools"]
        if pool["workers"]
    ]
    totals = [(name, total["workers"], total["capacity"]) for name, total in found["totals"].items()]
    return "\n".join(
        [
            output.table(heads, rows),
            "",
            output.table(("TOTAL", "WORKERS", "CAPACITY"), totals),
            "",
            f"effective capacity: {counted(found['capacity'], 'session')} at once",
        ]
    )


@config.command("show", cls=Configured)
@click.option("--running", is_flag=True, help="Show the settings of the running grid, as its master has them.")
@with_json
def config_show(config_file: Path | None, running: bool, as_json: bool, **flags: Any) -> None:
    """Shows every setting with its value and where that comes from.

    These are the settings that a grid started here now would have; with --running those of the running grid (--port or
    --runtime-dir names it, if several run).
    """
    from pwgrid.settings.load import DEFAULT_FILE, load
    from pwgrid.settings.show_with_sources import described, show

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
        table = described(loaded.settings, loaded.sources)
        file = loaded.config_file or f"no file ({DEFAULT_FILE} is not there)"
        whose = f"# settings of a grid that would be started here now: {file}, this environment, these flags"
    say(table, f"{whose}\n{show(table)}", as_json)
