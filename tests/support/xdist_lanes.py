"""How the processes of pytest-xdist share the files of tests: all but two take only those that mostly wait.

Two processes keep two cores busy for seven tenths of the time, because some files wait for timers, for processes that
end, for a supervisor to look again. Those go beside the others, one after the other, and take a third of one core.
"""

from __future__ import annotations

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

MOSTLY_WAIT = (
    "tests/faults/test_supervisord.py",
    "tests/e2e/test_bad_input.py",
    "tests/e2e/test_clients.py",
    "tests/e2e/test_start_output.py",
    "tests/e2e/test_pools.py",
    "tests/e2e/test_run.py",
    "tests/process/test_access.py",
    "tests/process/test_finding_a_grid.py",
    "tests/process/test_packages.py",
    "tests/hostile/test_official_clients.py",
    "tests/hostile/test_open_files.py",
    "tests/hostile/test_redis.py",
    "tests/hostile/test_requests.py",
    "tests/lua/test_redis_client.py",
    "tests/lua/test_open_redis.py",
)
"""Files that need a core for at most half of their time, and take more than 5 s."""

TAKE_ANY = 2
"""So many processes take any file; where there are no more of them, xdist shares the files out."""


class Lanes(LoadFileScheduling):
    """As `--dist loadfile`; the others help with what waits once there is nothing else."""

    def _next(self, node: WorkerController) -> str | None:
        """The file that this process takes next."""
        waiting = [scope for scope in self.workqueue if scope in MOSTLY_WAIT]
        if int(node.gateway.id.removeprefix("gw")) >= TAKE_ANY:
            return next(iter(waiting), None)
        return next((scope for scope in self.workqueue if scope not in MOSTLY_WAIT), next(iter(waiting), None))

    def _assign_work_unit(self, node: WorkerController) -> None:
        scope = self._next(node)
        if scope is None:
            node.shutdown()  # which ends what it has first
            return
        self.workqueue.move_to_end(scope, last=False)
        super()._assign_work_unit(node)


def scheduler(config: pytest.Config, log: Producer) -> Lanes | None:
    """For `--dist loadfile` with enough processes; None leaves it to xdist."""
    is_ours = config.getvalue("dist") == "loadfile" and len(config.getvalue("tx")) > TAKE_ANY
    return Lanes(config, log) if is_ours else None
