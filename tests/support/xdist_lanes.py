"""How the processes of pytest-xdist share the files of tests: all but two begin with those that mostly wait.

Two processes keep two cores busy for seven tenths of the time, because some files wait for timers, for processes that
end, for a supervisor to look again. Those go beside the others, one after the other, and take a third of one core.
Then all take whatever is left, so that no process is without work while others have several files to go.

Files that kill processes under a load of their own go one after the other: two of them at once make the machine so busy
that browsers count as sick.
"""

from __future__ import annotations

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

MOSTLY_WAIT = (
    "tests/faults/test_systemd.py",
    "tests/faults/test_supervisord.py",
    "tests/faults/test_workers_at_every_step.py",
    "tests/faults/test_redis_away.py",
    "tests/e2e/test_bad_input.py",
    "tests/e2e/test_clients.py",
    "tests/e2e/test_start_output.py",
    "tests/e2e/test_pools.py",
    "tests/e2e/test_run.py",
    "tests/process/test_access.py",
    "tests/process/test_finding_a_grid.py",
    "tests/process/test_hosts_apart.py",
    "tests/process/test_on_demand.py",
    "tests/process/test_packages.py",
    "tests/hostile/test_official_clients.py",
    "tests/hostile/test_open_files.py",
    "tests/hostile/test_redis.py",
    "tests/hostile/test_requests.py",
    "tests/lua/test_redis_client.py",
    "tests/lua/test_open_redis.py",
)
"""Files that need a core for at most half of their time, and take more than 5 s."""

UNDER_LOAD = (
    "tests/faults/test_cdp.py",
    "tests/faults/test_chaos.py",
    "tests/faults/test_kill_table.py",
    "tests/faults/test_own_browsers.py",
    "tests/faults/test_soak.py",
    "tests/faults/test_versions.py",
)
"""Files with real browsers that work all the time, none of which may lose a session. One process has them all."""

BUSY = 2
"""So many processes begin with what keeps a core busy; where there are no more of them, xdist shares the files out."""


class Lanes(LoadFileScheduling):
    """As `--dist loadfile`, in another order for each of the two kinds of processes."""

    def _split_scope(self, nodeid: str) -> str:
        scope = super()._split_scope(nodeid)
        return "under load" if scope in UNDER_LOAD else scope

    def _assign_work_unit(self, node: WorkerController) -> None:
        waits_first = int(node.gateway.id.removeprefix("gw")) >= BUSY
        scope = next(
            (each for each in self.workqueue if (each in MOSTLY_WAIT) is waits_first), next(iter(self.workqueue))
        )
        self.workqueue.move_to_end(scope, last=False)
        super()._assign_work_unit(node)


def scheduler(config: pytest.Config, log: Producer) -> Lanes | None:
    """For `--dist loadfile` with enough processes; None leaves it to xdist."""
    is_ours = config.getvalue("dist") == "loadfile" and len(config.getvalue("tx")) > BUSY
    return Lanes(config, log) if is_ours else None
