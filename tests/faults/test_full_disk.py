"""A full disk below the runtime directory: sessions go on, new ones come, status says what is wrong."""

import contextlib
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.grid import Grid, eventually, running_grid
from tests.support.raw import connect, head

PING, PONG = b"\x89\x80\0\0\0\0", b"\x8a\x00"


@pytest.fixture
def small_disk() -> Iterator[Path]:
    """A file system of 32 MiB; needs the right to mount one."""
    directory = Path(tempfile.mkdtemp(prefix="pg-disk-", dir="/tmp"))
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=32m,mode=0700", "tmpfs", directory],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode != 0:
        directory.rmdir()
        pytest.skip(f"no small file system can be mounted here: {mounted.stderr.strip()}")
    try:
        yield directory
    finally:
        subprocess.run(["umount", directory], check=True)
        directory.rmdir()


def fill(directory: Path) -> Path:
    filler = directory / "filler"
    with filler.open("wb") as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(65536))
            file.flush()
    return filler


def session_on(grid: Grid) -> Any:
    sock = connect(grid.port)
    sock.sendall(head())
    assert sock.recv(4096).startswith(b"HTTP/1.1 101")
    return sock


def goes_on(sock: Any) -> bool:
    sock.sendall(PING)
    return bool(sock.recv(16) == PONG)


# The fake browser server stands in for Playwright: 32 MiB are not enough for a real browser's profile.
def test_a_full_disk_costs_no_session_and_refuses_nobody(small_disk: Path) -> None:
    with running_grid("--chromium", "2", environment={"PWGRID_RUNTIME_DIR": str(small_disk)}, fake=True) as grid:
        assert grid.status()["problems"] == []
        with session_on(grid) as before:
            filler = fill(small_disk)
            (problem,) = grid.status()["problems"]
            assert f"only 0 MiB are left for the runtime directory {small_disk}" in problem
            assert "PROBLEM: only 0 MiB" in grid.command("status").stdout
            assert goes_on(before)
            with session_on(grid) as after:
                assert goes_on(after)
                busy = next(worker for worker in grid.status()["workers"] if worker["active"])
                os.kill(busy["pid"], signal.SIGKILL)
                eventually(
                    lambda: busy["pid"] not in {worker["pid"] for worker in grid.status()["workers"]}, "it is succeeded"
                )
                assert goes_on(before)
                assert goes_on(after)
                with session_on(grid) as another:
                    assert goes_on(another)
            filler.unlink()
        eventually(
            lambda: sum(worker["status"] == "available" for worker in grid.status()["workers"]) == 2,
            "it is complete",
            60,
        )
        assert grid.status()["problems"] == []
