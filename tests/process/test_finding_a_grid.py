"""Commands find the grid that is meant: wherever it was started, and never another user's by accident."""

import os
import pwd
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.grid import ROOT, Grid, free_port, running_grid

NOBODY = pwd.getpwnam("nobody").pw_uid
AS_ROOT = pytest.mark.skipif(os.getuid() != 0, reason="only root can act as two users")
MASTER = """
import os, socket, sys
from pwgrid.runtime.directory import RuntimeDir
os.setgroups([])
os.setuid(int(sys.argv[3]))
with RuntimeDir.create(sys.argv[1], int(sys.argv[2])).locked(f"ws://127.0.0.1:{sys.argv[2]}") as runtime:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as control:
        control.bind(str(runtime.control_path))
        control.listen()
        listener = socket.create_server(("127.0.0.1", int(sys.argv[2])))
        print("holds it", flush=True)
        sys.stdin.read()
"""

AS_A_STRANGER = """
import os, sys
import pwgrid.cli.status, pwgrid.registry.blocking_reads, rich.console, rich.table
from pwgrid.cli.main import main
os.setgroups([])
os.setuid(1)
main(sys.argv[1:], prog_name="pwgrid")
"""
"""They change their user once all is imported: root's Python may be where others cannot look."""


@pytest.fixture(scope="module")
def grid() -> Iterator[Grid]:
    with running_grid("--chromium", "1", fake=True) as grid:
        yield grid


@contextmanager
def master_of(uid: int) -> Iterator[tuple[Path, int]]:
    """What a master of another user has in view: its directory with lock and control socket, and its port."""
    with tempfile.TemporaryDirectory(prefix="pg-", dir="/tmp") as directory:
        os.chown(directory, uid, uid)
        base, port = Path(directory) / "base", free_port()
        with subprocess.Popen(
            [sys.executable, "-c", MASTER, str(base), str(port), str(uid)],
            cwd="/",
            env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": directory},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as master:
            assert master.stdout is not None
            assert master.stdout.readline() == "holds it\n"
            yield base, port
            assert master.stdin is not None
            master.stdin.close()


def pwgrid(*arguments: str, stranger: bool = False, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *(["-c", AS_A_STRANGER] if stranger else ["-m", "pwgrid"]), *arguments],
        cwd="/",
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_one_s_own_grid_is_found_whatever_the_environment_says_now(grid: Grid, tmp_path: Path) -> None:
    done = pwgrid("status", "--port", str(grid.port), TMPDIR=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert grid.endpoint in done.stdout
    with tempfile.TemporaryDirectory(prefix="pg-", dir="/tmp") as elsewhere:  # short enough for sockets
        again = pwgrid("serve", "--port", str(grid.port), TMPDIR=elsewhere)
    assert f"master pid {grid.process.pid}" in again.stderr


def test_a_named_directory_excludes_all_others(grid: Grid, tmp_path: Path) -> None:
    done = pwgrid("status", "--port", str(grid.port), "--runtime-dir", str(tmp_path / "named"))
    assert done.returncode != 0
    assert f"no grid is running here on port {grid.port} (looked in {tmp_path / 'named'})" in done.stderr


def test_who_finds_no_grid_is_told_where_was_looked(tmp_path: Path) -> None:
    port = free_port()
    done = pwgrid("status", "--port", str(port), TMPDIR=str(tmp_path))
    assert done.returncode != 0
    looked = f"looked in /run/pwgrid and {tmp_path}/pwgrid-{os.getuid()}, and for sockets of yours anywhere"
    assert done.stderr == f"pwgrid: no grid is running here on port {port} ({looked}): start one with pwgrid serve\n"


@AS_ROOT
def test_another_user_s_grid_is_told_of_and_not_asked(tmp_path: Path) -> None:
    with master_of(NOBODY) as (base, port):
        found = pwgrid("status", "--port", str(port), TMPDIR=str(tmp_path))
        assert found.returncode != 0
        assert f"no grid of yours is running here on port {port}" in found.stderr
        whose = f"a grid of nobody on port {port}, which answers only nobody, and root with --runtime-dir {base}"
        assert whose in found.stderr
        refused = pwgrid("serve", "--port", str(port), TMPDIR=str(base.parent))
        assert f"port {port}: a grid of nobody has it" in refused.stderr


@AS_ROOT
def test_root_asks_another_user_s_grid_once_its_directory_is_named(tmp_path: Path) -> None:
    with master_of(NOBODY) as (base, port):
        asked = pwgrid("status", "--runtime-dir", str(base), TMPDIR=str(tmp_path))
        assert "does not answer" in asked.stderr  # it was found, and this one never answers
        stranger = pwgrid(
            "status", "--runtime-dir", str(base), "--port", str(port), stranger=True, TMPDIR=str(tmp_path)
        )
        assert stranger.stderr == f"pwgrid: may not look into {base}: ask as its owner, or as root\n"


@AS_ROOT
def test_what_lies_in_our_place_and_is_another_user_s_is_not_trusted() -> None:
    """Whoever comes first may make /tmp/pwgrid-0: a lock in it with a living pid is not a grid of root's."""
    with tempfile.TemporaryDirectory(prefix="pg-", dir="/tmp") as temporary:
        os.chmod(temporary, 0o1777)
        with master_of(NOBODY) as (base, port):
            base.rename(Path(temporary) / f"pwgrid-{os.getuid()}")
            done = pwgrid("status", "--port", str(port), TMPDIR=temporary)
            (Path(temporary) / f"pwgrid-{os.getuid()}").rename(base)
        assert "no grid is running here" in done.stderr
