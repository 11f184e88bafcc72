"""The exactness that the rows of the kill table ask for is able to fail."""

import subprocess

from tests.support.census import Census, at_rest, differences, once_equal
from tests.support.grid import WITHOUT_SPARES, Grid, running_grid
from tests.support.raw import connect, session


def lasting(grid: Grid, before: Census) -> list[str]:
    """The differences in each of several looks: a file that the master has open for a moment is none."""
    first, *more = (differences(before, once_equal(grid, before, within_s=0.3)) for _ in range(4))
    return [name for name in first if all(name in look for look in more)]


# The fake browser server is enough: nothing is broken here but what is counted.
def test_whatever_is_left_shows_in_the_census() -> None:
    with running_grid("--chromium", "2", environment=WITHOUT_SPARES, fake=True) as grid:
        before = at_rest(grid)
        assert differences(before, once_equal(grid, before)) == []
        with connect(grid.port) as idle:
            idle.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            idle.recv(4096)
            left = lasting(grid, before)
            assert left == ["connections to the grid's port", "open files: proxy"]

        assert differences(before, once_equal(grid, before)) == []
        with session(grid.port):
            left = lasting(grid, before)
            assert {"active sessions, Redis", "slots in Redis", "open files: browser server 2"} <= set(left)

        assert differences(before, once_equal(grid, before)) == []
        file = grid.runtime / "w" / "left"
        file.touch()
        with subprocess.Popen(["sleep", "60"], env=grid.environment) as process:
            left = lasting(grid, before)
            process.kill()
        file.unlink()
        assert left == ["processes", "temporary files"]

        assert differences(before, once_equal(grid, before)) == []
