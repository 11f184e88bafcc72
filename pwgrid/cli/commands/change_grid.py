"""Commands that change a running grid."""

import sys

import click

from pwgrid.cli import exit_codes
from pwgrid.cli.commands.options import GRID_OPTIONS, completing, say, with_json, with_options
from pwgrid.common.errors import GridError, Refused


@click.command()
@with_options(GRID_OPTIONS)
@click.argument("worker", required=False, shell_complete=completing("worker"))
@click.option("--pool", metavar="NAME", shell_complete=completing("pool"), help="Every worker of this pool.")
@click.option("--all", "everything", is_flag=True, help="Every worker.")
@click.option("--now", is_flag=True, help="End live sessions at once. A second drain without --wait does that too.")
@click.option(
    "--wait",
    is_flag=True,
    help="Show live sessions and the time left, until the workers are gone. May be repeated: ends no session.",
)
@with_json
def drain(
    port: int | None, runtime_dir: str | None, worker: str | None, pool: str | None, everything: bool, **options: bool
) -> None:
    """Drains WORKER, a pool or all workers.

    A draining worker gets no new sessions, its live ones go on until DRAIN_TIMEOUT, and its replacement starts at once.

    With --wait the exit code is 1 when time ran out and sessions were cut, or a worker was lost. Ctrl-C ends only the
    waiting.
    """
    from pwgrid.cli import drain as drain_command
    from pwgrid.cli.ask_grid import ask, find_grid
    from pwgrid.cli.progress import watching

    if sum((worker is not None, pool is not None, everything)) != 1:
        raise click.UsageError("name one of WORKER, --pool POOL and --all")
    selection = {"worker": worker} if worker else {"pool": pool} if pool else {"all": True}
    grid = find_grid(port, runtime_dir)
    if options["wait"]:
        import pwgrid.registry.blocking_reads  # noqa: F401 - takes 0.2 s, which would delay the first figures of the drain
    # For a worker that an operator drains already a drain means now, unless it is asked for `once`.
    asked = {**selection, "now": options["now"], "once": options["wait"], "reason": "operator"}
    draining = ask(grid, "drain", asked)["draining"]
    if not options["wait"]:
        say(
            {"draining": draining},
            "draining " + (", ".join(draining) or "nothing: there is no worker"),
            options["as_json"],
        )
        return
    with watching("the drain", is_silent=options["as_json"]) as shown:
        outcomes = drain_command.wait(grid, draining, shown)
    is_good = all(map(drain_command.is_good, outcomes.values()))
    if options["as_json"]:
        say({"draining": draining, "good": is_good, "outcomes": outcomes}, "", as_json=True)
    sys.exit(exit_codes.DONE if is_good else exit_codes.FAILED)


@click.command()
@with_options(GRID_OPTIONS)
@with_json
def reload(port: int | None, runtime_dir: str | None, as_json: bool) -> None:
    """Makes a running grid read its configuration file again.

    Flags and environment stay those of its start. If the new configuration has faults, the command prints all of them
    and exits 2, and nothing changes.
    """
    from pwgrid.cli.ask_grid import CHECK_TIMEOUT_S, ask, find_grid
    from pwgrid.cli.reload_scale_upgrade import reload_text

    try:
        done = ask(find_grid(port, runtime_dir), "reload", timeout_s=CHECK_TIMEOUT_S)
    except Refused as refused:
        raise GridError(refused.sentence, exit_codes.REFUSED) from None
    say(done, reload_text(done), as_json)


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
    from pwgrid.cli.ask_grid import ask, find_grid
    from pwgrid.cli.reload_scale_upgrade import read_scale

    figures = read_scale(pools)
    wanted = ask(find_grid(port, runtime_dir), "scale", figures)["wanted"]
    say({"wanted": wanted}, ", ".join(f"{name} {workers}" for name, workers in wanted.items()), as_json)


@click.command()
@with_options(GRID_OPTIONS)
@click.option("--force", is_flag=True, help="Replace everything, even if nothing is new.")
@click.option("--no-wait", is_flag=True, help="Return as soon as the new code has loaded.")
@with_json
def upgrade(port: int | None, runtime_dir: str | None, **options: bool) -> None:
    """Moves a running grid to the code, the browsers and the settings that are installed now.

    Does nothing if the grid runs with these already. Replaces the proxy first, then one worker after the other, and
    shows the progress. Live sessions go on in the old workers until RECYCLE_DRAIN_TIMEOUT; the command does not wait
    for them. Ctrl-C ends only the waiting.
    """
    _replace_everything(port, runtime_dir, **options)


@click.command()
@with_options(GRID_OPTIONS)
@click.option("--no-wait", is_flag=True, help="Return as soon as it has begun.")
@with_json
def restart(port: int | None, runtime_dir: str | None, **options: bool) -> None:
    """Replaces the proxy and every worker of a running grid; drops no session and refuses no client.

    The master executes itself anew and reads the configuration file again; everything else is as with `pwgrid upgrade`.
    """
    _replace_everything(port, runtime_dir, force=True, **options)


def _replace_everything(
    port: int | None, runtime_dir: str | None, *, force: bool, no_wait: bool, as_json: bool
) -> None:
    from pwgrid.cli.ask_grid import find_grid
    from pwgrid.cli.progress import watching
    from pwgrid.cli.reload_scale_upgrade import UpgradeRequest

    change = UpgradeRequest(find_grid(port, runtime_dir), force=force)
    is_through = not change.is_needed
    if not change.is_needed:
        done = "nothing to do: the grid runs with the code, browsers and settings that are here now (see --force)"
    elif no_wait:
        done = "the new code has loaded; the grid replaces its parts one after the other"
    else:
        with watching("the version change", is_silent=as_json) as shown:
            done = change.wait(shown)
        is_through = True
    say({"changed": change.is_needed, "through": is_through, "message": done}, done, as_json)


@click.command()
@with_options(GRID_OPTIONS)
@click.option("--now", is_flag=True, help="End live sessions at once.")
@click.option("--no-wait", is_flag=True, help="Return as soon as it has begun.")
@with_json
def stop(port: int | None, runtime_dir: str | None, now: bool, no_wait: bool, as_json: bool) -> None:
    """Ends a grid: no new sessions, live ones go on until DRAIN_TIMEOUT. Ctrl-C ends only the waiting."""
    from pwgrid.cli import stop as stop_command
    from pwgrid.cli.ask_grid import WithoutMasterError, find_grid
    from pwgrid.cli.progress import watching

    try:
        stopping = stop_command.stop(find_grid(port, runtime_dir), now=now)
    except WithoutMasterError as error:
        if len(error.left) > 1:
            raise
        stopping = stop_command.stop_without_master(error.left[0], now=now)
    if not as_json:
        click.echo("".join(f"{note}\n" for note in stopping.notes), nl=False)
    if not no_wait:
        with watching("the stop", is_silent=as_json) as shown:
            stopping.wait(shown)
    if as_json or not no_wait:
        say({"stopped": not no_wait, "notes": list(stopping.notes)}, "stopped", as_json)
