"""What operators change in a running grid: its settings, its number of workers, its version. The master does it."""

from collections.abc import Sequence
from typing import Any, Final

from pwgrid.cli.grid_queries import watch
from pwgrid.cli.progress import Display
from pwgrid.cli.running_grid import CHECK_TIMEOUT_S, ask
from pwgrid.common.errors import GridError
from pwgrid.common.worker_lifecycle import BEFORE_A_DRAIN
from pwgrid.runtime.find_grids import RunningGrid

UPGRADE: Final = "upgrade"
"""Why the master recycles a worker of another version, as the status has it."""


def reload(grid: RunningGrid) -> dict[str, Any]:
    """Has the configuration read again; what that changed. Raises Refused with all that is wrong with it."""
    return ask(grid, "reload", timeout_s=CHECK_TIMEOUT_S)


def reload_text(done: dict[str, Any]) -> str:
    """The same in one sentence."""
    if not done["changed"]:
        return "nothing has changed"
    what = [f"changed: {', '.join(done['changed'])}"]
    for did in ("added", "removed"):
        what += [f"pools {did}: {', '.join(done[did])}"] * bool(done[did])
    what += [f"scaled: {', '.join(f'{pool}={workers}' for pool, workers in done['scaled'].items())}"] * bool(
        done["scaled"]
    )
    what += [f"recycling {len(done['recycled'])} workers, one after the other"] * bool(done["recycled"])
    what += ["replacing the proxy"] * done["proxy"]
    what += ["the proxy has not said yet that it knows"] * (not done.get("proxyKnows", True))
    return "; ".join(what)


def scale(grid: RunningGrid, figures: dict[str, int]) -> dict[str, int]:
    """Sets the number of workers of these pools; all numbers that are wanted now. Raises Refused."""
    wanted: dict[str, int] = ask(grid, "scale", figures)["wanted"]
    return wanted


def read_scale(pools: Sequence[str]) -> dict[str, int]:
    """`chromium=4` and the like. Raises GridError for what is not that."""
    figures = {}
    for text in pools:
        name, equals, workers = text.partition("=")
        if not equals or not workers.isdecimal():
            raise GridError(f"{text!r} is not POOL=N, for example chromium=4")
        figures[name] = int(workers)
    return figures


class VersionChange:
    """The master executes the code that is installed now, which replaces the proxy and then each worker."""

    def __init__(self, grid: RunningGrid, *, force: bool) -> None:
        """Starts it, unless all of it runs already: that only by `force`. Raises Refused when it does not load."""
        self._grid = grid
        self._before = ask(grid, "status")  # imports no more of the new code: it may be broken
        self._old = {worker["id"] for worker in self._before["workers"] if worker["status"] in BEFORE_A_DRAIN}
        answer = ask(grid, "upgrade", {"force": force}, timeout_s=CHECK_TIMEOUT_S)
        self.is_needed = not answer.get("unchanged")

    def wait(self, shown: Display) -> str:
        """Returns when the proxy and all workers that serve are replaced, with a sentence; shows the progress.

        Sessions may go on in old workers for much longer: nobody waits for them. Raises GridError.
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
        done = f"the master, the proxy and {len(self._old)} workers run the new code (version {found['version']})"
        return "; ".join([done, *_lingering(old)])


def workers_left(total: int, left: int, old: Sequence[dict[str, Any]], pools: Sequence[dict[str, Any]]) -> str:
    """How far a version change is: `left` of `total` workers are still to be replaced, `old` are those of the old
    version that are still there, as the status has them."""
    short = [f"{pool.get('name', pool['browserType'])}: {pool['reason']}" for pool in pools if pool["reason"]]
    return "; ".join([f"{total - left} of {total} workers replaced", *_lingering(old), *short])


def _lingering(old: Sequence[dict[str, Any]]) -> list[str]:
    """What goes on in workers that are replaced already."""
    lingering = [worker for worker in old if worker["status"] == "draining" and worker["active"]]
    if not lingering:
        return []
    sessions = sum(worker["active"] for worker in lingering)
    left_s = max(worker["drainLeftS"] or 0 for worker in lingering)
    where = "1 old worker" if len(lingering) == 1 else f"{len(lingering)} old workers"
    what = "1 live session goes on" if sessions == 1 else f"{sessions} live sessions go on"
    return [f"{what} in {where}, for {left_s:.0f} s at the most"]
