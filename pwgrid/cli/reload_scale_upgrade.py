"""Reads and tells what `reload` and `scale` are about, and has the master of a running grid change its version."""

from collections.abc import Sequence
from typing import Any, Final

import click

from pwgrid.cli.ask_grid import CHECK_TIMEOUT_S, ask
from pwgrid.cli.grid_queries import watch
from pwgrid.cli.progress import Display
from pwgrid.common.errors import GridError
from pwgrid.common.wording import counted
from pwgrid.common.worker_lifecycle import BEFORE_A_DRAIN
from pwgrid.runtime.find_grids import RunningGrid

UPGRADE: Final = "upgrade"
"""The reason in the status of a worker that the master recycles because its version is another."""


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


def read_scale(pools: Sequence[str]) -> dict[str, int]:
    """Reads arguments like `chromium=4`. Raises UsageError for any other."""
    figures = {}
    for text in pools:
        name, equals, workers = text.partition("=")
        if not equals or not workers.isdecimal():
            raise click.UsageError(f"{text!r} is not POOL=N, for example chromium=4")
        figures[name] = int(workers)
    return figures


class UpgradeRequest:
    """The master executes the code that is installed now, which replaces the proxy and then each worker."""

    def __init__(self, grid: RunningGrid, *, force: bool) -> None:
        """Asks the master for it; without `force` it changes nothing that is new already. Raises Refused when the new
        code does not load."""
        self._grid = grid
        # Not grid_queries.status, which imports more of the new code: that may be broken.
        self._before = ask(grid, "status")
        self._old = {worker["id"] for worker in self._before["workers"] if worker["status"] in BEFORE_A_DRAIN}
        answer = ask(grid, "upgrade", {"force": force}, timeout_s=CHECK_TIMEOUT_S)
        self.is_needed = not answer.get("unchanged")

    def wait(self, shown: Display) -> str:
        """Shows the progress until the proxy and all serving workers are replaced; returns a sentence about it.

        Does not wait for sessions in old workers, which may go on for much longer. Raises GridError when it fails.
        """
        proxy = self._before["proxy"]["pid"]
        pids = [proxy, *(worker["pid"] for worker in self._before["workers"])]
        # The new code has to load before the master answers.
        for found in watch(self._grid, filter(None, pids), CHECK_TIMEOUT_S):
            serving = [worker for worker in found["workers"] if worker["status"] in BEFORE_A_DRAIN]
            self._old |= {worker["id"] for worker in serving if worker["reason"] == UPGRADE}
            old = [worker for worker in found["workers"] if worker["id"] in self._old]
            left = [worker for worker in serving if worker["id"] in self._old]
            if found["proxy"]["beingReplaced"]:
                shown.show("upgrade", "replacing the proxy")
            elif not left:
                break
            elif any(worker["reason"] for worker in left):
                shown.show("upgrade", workers_left(len(self._old), len(left), old, found["pools"]))
            else:
                raise GridError("the master could not execute the new code, and its log says why")
        shown.end("upgrade")
        if found["proxy"]["pid"] == proxy:
            raise GridError("all workers are replaced, but the proxy is not, and the grid's log says why")
        workers = counted(len(self._old), "worker")
        done = f"the master, the proxy and {workers} run the new code (version {found['version']})"
        return "; ".join([done, *_lingering(old)])


def workers_left(total: int, left: int, old: Sequence[dict[str, Any]], pools: Sequence[dict[str, Any]]) -> str:
    """The progress of a version change: `left` of `total` workers are still to be replaced, `old` are the workers (as
    the status has them) of the old version that still exist."""
    short = [f"{pool['name']}: {pool['reason']}" for pool in pools if pool["reason"]]
    return "; ".join([f"{total - left} of {total} workers replaced", *_lingering(old), *short])


def _lingering(old: Sequence[dict[str, Any]]) -> list[str]:
    """A sentence about live sessions in old workers that are draining, if there are any."""
    lingering = [worker for worker in old if worker["status"] == "draining" and worker["active"]]
    if not lingering:
        return []
    sessions = sum(worker["active"] for worker in lingering)
    left_s = max(worker["drainLeftS"] or 0 for worker in lingering)
    what = counted(sessions, "live session goes on", "live sessions go on")
    return [f"{what} in {counted(len(lingering), 'old worker')}, for {left_s:.0f} s at the most"]
