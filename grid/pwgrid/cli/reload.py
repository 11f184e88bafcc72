"""`pwgrid reload`: a running grid reads its configuration file again."""

from typing import Any

import click

from pwgrid.cli import exit_codes
from pwgrid.cli.ask_grid import CHECK_TIMEOUT_S, ask, find_grid
from pwgrid.cli.options import GRID_OPTIONS, say, with_json, with_options
from pwgrid.common.errors import GridError, Refused
from pwgrid.common.wording import counted


@click.command()
@with_options(GRID_OPTIONS)
@with_json
def reload(port: int | None, runtime_dir: str | None, as_json: bool) -> None:
    """Makes a running grid read its configuration file again.

    Flags and environment stay those of its start. If the new configuration has faults, the command prints all of them
    and exits 2, and nothing changes.
    """
    try:
        done = ask(find_grid(port, runtime_dir), "reload", timeout_s=CHECK_TIMEOUT_S)
    except Refused as refused:
        raise GridError(refused.sentence, exit_codes.REFUSED) from None
    say(done, reload_text(done), as_json)


def reload_text(done: dict[str, Any]) -> str:
    """The master's answer to `reload`, as one sentence."""
    what = [f"changed: {', '.join(done['changed'])}" if done["changed"] else "nothing has changed"]
    for did in ("added", "removed"):
        what += [f"pools {did}: {', '.join(done[did])}"] * bool(done[did])
    what += [f"scaled: {', '.join(f'{pool}={workers}' for pool, workers in done['scaled'].items())}"] * bool(
        done["scaled"]
    )
    what += [f"recycling {counted(len(done['recycled']), 'worker')}, one after the other"] * bool(done["recycled"])
    what += ["replacing the proxy"] * done["proxy"]
    if not done["proxyKnows"]:
        what.append(f"the proxy has not confirmed {'it' if done['changed'] else 'the configuration'} yet")
    return "; ".join(what)
