"""The last line of `pwgrid run`: how many sessions there were, how many were cut, and the peak memory."""

import urllib.request
from typing import Any, Final

import orjson

from pwgrid.cli.ask_grid import ask
from pwgrid.common.errors import GridError
from pwgrid.runtime.find_grids import RunningGrid

TIMEOUT_S: Final = 5.0


def closing_line(grid: RunningGrid, http: str, token: str) -> str:
    """One line with the figures of a grid that is about to end, or why there are none."""
    try:
        memory = ask(grid, "status")["host"]["peakMib"]
        return text_of(_status(http, token), memory)
    except (OSError, GridError) as error:
        return f"no figures of the sessions: {error}"


def text_of(status: dict[str, Any], peak_mib: int) -> str:
    """The line, from the answer of /v1/status and the peak memory of all workers and browsers together."""
    outcomes, clients = status["outcomes"], status["clients"]
    cut = outcomes.get("failed", 0) + outcomes.get("ended", 0)
    sessions = outcomes.get("completed", 0) + cut + status["activeConnections"]
    figures = [
        f"{sessions} session{'s' * (sessions != 1)}",
        f"longest wait for a slot {clients['longestWaitS']:.1f} s",
        f"{clients['refused']} refused",
        f"{cut} cut",
        f"peak memory {peak_mib} MiB",
    ]
    line = ", ".join(figures)
    has_come = sessions or clients["refused"]
    return line if has_come else f"{line}; nothing has connected to $PWGRID_WS_ENDPOINT, see pwgrid help ci"


def _status(http: str, token: str) -> dict[str, Any]:
    request = urllib.request.Request(f"{http}/v1/status", headers={"Authorization": f"Bearer {token}"})
    # No proxy of the environment: the grid is on this host.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=TIMEOUT_S) as response:
        status: dict[str, Any] = orjson.loads(response.read())
    return status
