"""`pwgrid scale`: a running grid gets more or fewer workers."""

from collections.abc import Sequence

import click

from pwgrid.cli.ask_grid import ask, find_grid
from pwgrid.cli.options import GRID_OPTIONS, completing, say, with_json, with_options


@click.command()
@with_options(GRID_OPTIONS)
@click.argument("pools", nargs=-1, required=True, metavar="POOL=N...", shell_complete=completing("scale"))
@with_json
def scale(port: int | None, runtime_dir: str | None, pools: tuple[str, ...], as_json: bool) -> None:
    """Changes the number of workers of pools until the grid ends, or its service is restarted.

    `pwgrid upgrade` and `pwgrid restart` keep it; so does a reload, unless the number in the file has changed.

    \b
    pwgrid scale chromium=4 firefox=1
    """
    figures = read_scale(pools)
    wanted = ask(find_grid(port, runtime_dir), "scale", figures)["wanted"]
    say({"wanted": wanted}, ", ".join(f"{name} {workers}" for name, workers in wanted.items()), as_json)


def read_scale(pools: Sequence[str]) -> dict[str, int]:
    """Reads arguments like `chromium=4`. Raises UsageError for any other."""
    figures = {}
    for text in pools:
        name, equals, workers = text.partition("=")
        if not equals or not workers.isdecimal():
            raise click.UsageError(f"{text!r} is not POOL=N, for example chromium=4")
        figures[name] = int(workers)
    return figures
