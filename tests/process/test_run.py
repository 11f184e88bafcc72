"""`pwgrid run` with a fake browser server: what needs many sessions, or a terminal; and what nohup means for a grid."""

import contextlib
import json
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from pwgrid.cli.token import Place, create
from tests.support.grid import ROOT, eventually, running_grid
from tests.support.terminal import OnTerminal

SIXTY_SESSIONS = textwrap.dedent(
    """
    import json, os
    from urllib.parse import urlsplit
    from pwgrid.cli.ask_grid import find_grid, status
    from tests.support import raw
    port = urlsplit(os.environ["PWGRID_WS_ENDPOINT"]).port
    with raw.session(port):
        for _ in range(60):
            raw.session(port).close()
        print(json.dumps(status(find_grid(None, None))))
    """
)


def test_a_private_grid_recycles_no_worker_after_a_number_of_sessions() -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "tests.support.fake_grid", "run", "--chromium", "1", "--slots", "70", "--"),
            *(sys.executable, "-c", SIXTY_SESSIONS),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    status = json.loads(done.stdout)
    assert [(worker["status"], worker["slots"]) for worker in status["workers"]] == [("available", 70)]
    assert "pwgrid: 61 sessions, " in done.stderr
    assert " 0 cut, " in done.stderr


def run_with_a_fake_browser(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "tests.support.fake_grid", "run", "--chromium", "1", *arguments],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize(
    ("program", "code", "why"),
    [
        ("no-such-command", 127, "No such file or directory"),
        ("/no/such/command", 127, "No such file or directory"),
        ("/etc/passwd", 126, "Permission denied"),
        ("/etc", 126, "Permission denied"),
    ],
)
def test_a_command_that_cannot_be_run_is_refused_before_a_grid_is_started(program: str, code: int, why: str) -> None:
    done = run_with_a_fake_browser("--", program)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", f"pwgrid: {program}: {why}\n")


def test_a_temp_directory_with_a_path_too_long_for_sockets_is_no_obstacle(tmp_path: Path) -> None:
    long = tmp_path / ("x" * 130)
    long.mkdir()
    asks = "from pwgrid.cli.ask_grid import find_grid; print(find_grid(None, None).directory)"
    done = run_with_a_fake_browser("--", sys.executable, "-c", asks, TMPDIR=str(long))
    assert done.returncode == 0, done.stderr
    directory = Path(done.stdout.strip())
    assert directory.parent == Path(f"/tmp/pwgrid-{os.getuid()}")
    assert not directory.exists()


WHERE = textwrap.dedent(
    """
    import os, socket
    from urllib.parse import urlsplit
    endpoint = os.environ["PWGRID_WS_ENDPOINT"]
    port = urlsplit(endpoint).port
    print(endpoint == os.environ["PW_TEST_CONNECT_WS_ENDPOINT"] == f"ws://127.0.0.1:{port}")
    with socket.socket() as elsewhere:
        print(os.strerror(elsewhere.connect_ex(("127.0.0.2", port))))
    """
)
"""Prints whether the endpoint is that of a grid here, and whether another address than 127.0.0.1 leads to it."""

OF_A_SERVER = """
[listener]
host = "0.0.0.0"
advertised_url = "wss://grid.example.org/grid"
advertised_host = "grid.example.org"
"""
AS_VARIABLES = {"PWGRID_HOST": "0.0.0.0", "ADVERTISED_URL": "wss://grid.example.org/grid", "ALLOW_PUBLIC": "true"}


@pytest.mark.parametrize(
    ("text", "variables"), [(OF_A_SERVER, {"ALLOW_PUBLIC": "true"}), (OF_A_SERVER, {}), ("", AS_VARIABLES)]
)
def test_the_address_of_a_server_is_not_that_of_a_command_s_own_grid(
    tmp_path: Path, text: str, variables: dict[str, str]
) -> None:
    config = tmp_path / "grid.toml"
    config.write_text(text)
    create(Place(tmp_path / "tokens.json"), "somebody", "client", 0, [])  # with which a server may be open
    done = run_with_a_fake_browser("--config", str(config), "--", sys.executable, "-c", WHERE, **variables)
    assert (done.returncode, done.stdout) == (0, "True\nConnection refused\n"), done.stderr


def test_a_command_s_own_grid_listens_where_a_flag_says() -> None:
    done = run_with_a_fake_browser("--host", "0.0.0.0", "--allow-public", "--", sys.executable, "-c", WHERE)
    assert (done.returncode, done.stdout) == (0, "True\nSuccess\n"), done.stderr


def test_a_terminal_s_ctrl_c_is_not_sent_a_second_time_where_stdin_is_no_terminal() -> None:
    """The command has it from the terminal already. Two signals in a row may be taken for one, so this asks `run`."""
    asks = (sys.executable, "-c", "from pwgrid.cli import run; print('from the terminal:', run._is_in_foreground())")
    with contextlib.closing(OnTerminal("sh", "-c", f"exec {shlex.join(asks)} </dev/null", env=os.environ)) as shown:
        shown.until_text("from the terminal: True")
    alone = subprocess.run(asks, stdin=subprocess.DEVNULL, capture_output=True, start_new_session=True, check=True)
    assert alone.stdout == b"from the terminal: False\n"


# nohup


def ignore_hangups() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


HUNG_UP = (
    "import os, signal; os.kill(os.getppid(), signal.SIGHUP); signal.raise_signal(signal.SIGHUP); print('goes on')"
)
"""If `run` handled the signal, the command would die of it."""


def test_under_nohup_the_command_of_run_survives_its_terminal() -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "tests.support.fake_grid", "run", "--chromium", "1", "--"),
            *(sys.executable, "-c", HUNG_UP),
        ],
        cwd=ROOT,
        preexec_fn=ignore_hangups,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "goes on\n"), done.stderr


ON_TERMINAL = (
    "import os, signal, sys; os.setsid(); os.open(sys.argv[1], os.O_RDWR); "
    "signal.signal(signal.SIGHUP, signal.SIG_IGN); os.execv(sys.argv[2], sys.argv[2:])"
)
"""Takes the terminal for its own, as a login does, and becomes a grid, as nohup does."""


@pytest.mark.parametrize("is_upgraded", [False, True])
def test_under_nohup_a_grid_survives_its_terminal(*, is_upgraded: bool) -> None:
    terminal, slave = pty.openpty()
    under = (sys.executable, "-c", ON_TERMINAL, os.ttyname(slave))
    with running_grid("--chromium", "1", fake=True, under=under) as grid:
        if is_upgraded:
            assert grid.command("upgrade", "--force").returncode == 0
        os.close(slave)
        os.close(terminal)  # the kernel sends SIGHUP
        said = eventually(lambda: set(re.findall("signal_received|terminal_gone", grid.output())), "it has noticed")
        assert said == {"signal_received"}
        assert grid.get("/health/ready")[0] == 200
