"""Another user of the host, a real one, against the commands and the files of the grid's user."""

import contextlib
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from pwgrid.runtime.child_files import ChildState, boot_id, read_states
from pwgrid.runtime.process_identity import create_time
from tests.support.grid import ROOT, Grid, free_port, running_grid

UID = 65534
PORT = free_port()  # other grids of ours run on this host: no command here may mean one of them
AS_ANOTHER = ("setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups")
SAYS = "ws://\x1b[2J\x1b]0;owned\x07\x9b31m"
"""Clears a terminal and names its window."""

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("setpriv"), reason="only root can become another user"
)


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A temp directory as /tmp is: everybody may make something there."""
    path = Path(tempfile.mkdtemp(prefix="pg-", dir="/tmp"))
    path.chmod(0o1777)
    yield path
    shutil.rmtree(path)


@contextlib.contextmanager
def attacker(base: Path, lock: str = "good") -> Iterator["subprocess.Popen[str]"]:
    """Sits in `base` and waits for commands of ours."""
    script = (Path(__file__).parent / "attacker.py").read_text()  # he may not look into our directories
    with subprocess.Popen(
        [*AS_ANOTHER, "/usr/bin/python3", "-c", script, str(base), str(PORT)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd="/",
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            pid = int(process.stdout.readline())
            told = {"createTime": create_time(pid), "lock": lock, "says": SAYS}
            process.stdin.write(json.dumps(told) + "\n")
            process.stdin.flush()
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


def visitors(process: "subprocess.Popen[str]") -> str:
    """What the attacker has told until now."""
    assert process.stdout is not None
    readable, _, _ = select.select([process.stdout], [], [], 0)
    return process.stdout.readline() if readable else ""


def command(temporary: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PWGRID")}
    return subprocess.run(
        [sys.executable, "-m", "pwgrid", *arguments],
        cwd=ROOT,
        env={**environment, "TMPDIR": str(temporary)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def is_clean(text: str) -> bool:
    return all(line.isprintable() for line in text.split("\n"))


COMMANDS = [("status",), ("status", "--json"), ("drain", "--all"), ("reload",), ("scale", "chromium=9"), ("sessions",)]
"""Each with a port: without one it might mean another grid of ours."""


@pytest.mark.parametrize("lock", ["good", "fifo"])
@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_no_command_asks_or_believes_a_stranger_in_the_grid_s_place(
    temporary: Path, arguments: tuple[str, ...], lock: str
) -> None:
    with attacker(temporary / f"pwgrid-{os.getuid()}", lock) as process:
        done = command(temporary, *arguments, "--port", str(PORT))
        assert (done.returncode, done.stdout) == (4 if arguments[0] == "status" else 1, "")
        assert "no grid of yours is running here" in done.stderr
        assert "owned" not in done.stderr
        assert is_clean(done.stderr)
        assert visitors(process) == ""


@pytest.mark.parametrize("lock", ["good", "fifo"])
def test_serve_uses_no_directory_of_a_stranger(temporary: Path, lock: str) -> None:
    with attacker(temporary / f"pwgrid-{os.getuid()}", lock) as process:
        done = command(temporary, "serve", "--port", str(PORT), "--chromium", "1")
        assert done.returncode == 1
        assert f"belongs to uid {UID}" in done.stderr
        assert visitors(process) == ""


def test_what_a_grid_that_root_names_has_to_say_steers_no_terminal(temporary: Path) -> None:
    with attacker(temporary / "named") as process:
        done = command(temporary, "status", "--runtime-dir", str(temporary / "named"))
        assert (done.returncode, visitors(process)) == (1, "asked\n")
        assert r"ws://\x1b[2J\x1b]0;owned\x07\x9b31m" in done.stderr
        assert is_clean(done.stdout + done.stderr)


def test_a_named_directory_excludes_all_others(temporary: Path) -> None:
    with attacker(temporary / f"pwgrid-{os.getuid()}") as process:
        done = command(temporary, "status", "--runtime-dir", str(temporary / "empty"))
        assert (done.returncode, visitors(process)) == (4, "")
        assert str(temporary / "empty") in done.stderr
        assert "owned" not in done.stderr


def test_a_stranger_s_files_name_no_process_but_his_own(temporary: Path) -> None:
    """Root may end the rest of a grid that it names: not what the grid's user, or who broke out of a browser, names."""
    with attacker(temporary / "named") as process:
        for name, pid in (("00000001", os.getpid()), ("00000002", process.pid)):
            path = temporary / "named" / str(PORT) / "w" / name
            path.mkdir(parents=True)
            created = create_time(pid)
            assert created is not None
            state = ChildState("worker", name, pid, created, "", "", "", 0.0, 0.0, boot_id())
            state.write(temporary / "named" / str(PORT))
            os.chown(path, UID, UID)
            os.chown(path / "worker.json", UID, UID)
        pipe = temporary / "named" / str(PORT) / "w" / "00000003"
        pipe.mkdir()
        os.mkfifo(pipe / "worker.json")
        found = {state.name: state.process for state in read_states(temporary / "named" / str(PORT))}
        assert found.keys() == {"00000001", "00000002"}
        assert found["00000001"] is None
        assert found["00000002"] is not None


@pytest.fixture(scope="module")
def grid_with_a_token() -> Iterator[Grid]:
    with tempfile.TemporaryDirectory(prefix="pg-", dir="/tmp") as directory:
        file = Path(directory) / "token"
        file.touch(mode=0o600)
        file.write_text("0123456789abcdef0123456789abcdef\n")
        os.chmod(directory, 0o755)
        with running_grid("--chromium", "1", "--token-file", str(file), fake=True) as grid:
            yield grid


def as_another(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*AS_ANOTHER, *arguments], capture_output=True, text=True, cwd="/", timeout=60, check=False)


def test_a_neighbour_gets_at_nothing_of_a_running_grid(grid_with_a_token: Grid) -> None:
    grid = grid_with_a_token
    token = "0123456789abcdef0123456789abcdef"
    assert token not in as_another("ps", "axeww", "-o", "args").stdout
    (file,) = [argument for argument in grid.arguments if argument.endswith("/token")]
    assert "Permission denied" in as_another("cat", file).stderr
    assert "Permission denied" in as_another("ls", str(grid.runtime)).stderr
    connecting = (
        "import socket, sys\n"
        "with socket.socket(socket.AF_UNIX, getattr(socket, sys.argv[2])) as sock:\n"
        "    sock.connect(sys.argv[1])\n"
    )
    for path, kind in (("control.sock", "SOCK_SEQPACKET"), ("redis/redis.sock", "SOCK_STREAM")):
        done = as_another("/usr/bin/python3", "-c", connecting, str(grid.runtime / path), kind)
        assert "PermissionError" in done.stderr
    for pid in grid.processes():
        assert "Permission denied" in as_another("cat", f"/proc/{pid}/environ").stderr
    assert grid.get("/v1/workers")[0] == 401
    status, _, body = grid.get("/v1/workers", Authorization=f"Bearer {token}")
    assert (status, b"/playwright/chromium/" in body) == (200, True)
