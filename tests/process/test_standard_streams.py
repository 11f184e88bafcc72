"""Every command with each of its standard descriptors closed, without room, or a pipe that nobody reads."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
import pytest

from pwgrid.cli import exit_codes
from pwgrid.cli.main import Unloaded, main
from tests.support.grid import ROOT, running_grid
from tests.support.spoiled_streams import HOW, Case, Done

STDIN, STDOUT, STDERR = range(3)
CASES = [([], HOW[0]), *(([fd], how) for fd in range(3) for how in HOW)]
"""Which descriptors are spoiled, and how. The first are none."""

WITHOUT_A_GRID = {
    "calibrate": ["--script", "/does/not/exist"],
    "completion install": ["bash"],
    "completion show": ["bash"],
    "completion uninstall": ["bash"],
    "config check": [],
    "config show": [],
    "doctor": ["--chromium", "0", "--webkit", "1"],  # of which there is none to be launched
    "drain": ["--all"],
    "help": [],
    "install supervisor": ["--user", "--dry-run"],
    "install systemd": ["--user", "--dry-run"],
    "logs": [],
    "profile export": ["shop-login", "shop-login.tar"],
    "profile list": [],
    "profile remove": ["shop-login"],
    "redis-cli": ["PING"],
    "reload": [],
    "restart": [],
    "run": ["--chromium", "-1", "true"],
    "scale": ["chromium=1"],
    "serve": ["--chromium", "-1"],
    "sessions": [],
    "setup": ["--chromium", "-1"],
    "status": [],
    "stop": [],
    "token create": ["--name", "{number}"],
    "token list": [],
    "token revoke": ["nobody"],
    "top": [],
    "uninstall": ["systemd", "--user"],
    "upgrade": [],
    "version": [],
}
WITH_A_GRID = [
    ["config", "show", "--running"],
    ["logs"],
    ["reload"],
    ["scale", "chromium=1"],
    ["sessions", "--json"],
    ["status"],
    ["status", "--json"],
    ["version"],
    ["redis-cli", "PING"],
]


def names(group: click.Group, before: tuple[str, ...] = ()) -> Iterator[str]:
    for name, found in group.commands.items():
        command = found.load() if isinstance(found, Unloaded) else found
        if isinstance(command, click.Group):
            yield from names(command, (*before, name))
        else:
            yield " ".join((*before, name))


def results(commands: Sequence[list[str]], environment: dict[str, str]) -> list[list[Done]]:
    """What comes of each command in each of CASES."""
    numbered = [
        Case(arguments=[each.format(number=f"t{len(CASES) * at + number}") for each in command], fds=fds, how=how)
        for at, command in enumerate(commands)
        for number, (fds, how) in enumerate(CASES)
    ]
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.spoiled_streams"],
        cwd=ROOT,
        env=environment,
        input="".join(f"{json.dumps(case)}\n" for case in numbered),
        capture_output=True,
        text=True,
        check=True,
        timeout=240,
    )
    found: list[Done] = [json.loads(line) for line in done.stdout.splitlines()]
    return [found[at : at + len(CASES)] for at in range(0, len(found), len(CASES))]


def check(done: list[Done]) -> None:
    """The command does the same whatever is spoiled; only what it could not print to stdout it says, in its way."""
    sound, *spoiled = done
    assert "Traceback" not in sound["err"], sound
    for (fds, how), each in zip(CASES[1:], spoiled, strict=True):
        about = (fds, how, each)
        if fds == [STDERR]:
            assert (each["code"], bool(each["out"]), each["err"]) == (sound["code"], bool(sound["out"]), ""), about
        elif fds == [STDIN] or how == "closed" or not sound["out"]:
            assert (each["code"], bool(each["err"])) == (sound["code"], bool(sound["err"])), about
            assert bool(each["out"]) == (bool(sound["out"]) and fds == [STDIN]), about
        elif how == "full":
            assert each["code"] == exit_codes.FAILED, about
            assert each["err"].endswith("pwgrid: cannot write: no space left on the device\n"), about
            assert each["err"].count("\n") <= sound["err"].count("\n") + 1, about
        else:
            assert (each["code"], each["err"] or sound["err"]) == (exit_codes.READER_GONE, sound["err"]), about


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def without_a_grid(home: Path) -> dict[str, list[Done]]:
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "PWGRID_RUNTIME_DIR": str(home),
        "PWGRID_CONFIG": str(home / "grid.toml"),
    }
    (home / "grid.toml").touch()
    commands = [[*name.split(), *arguments] for name, arguments in WITHOUT_A_GRID.items()]
    return dict(zip(WITHOUT_A_GRID, results(commands, environment), strict=True))


@pytest.mark.parametrize("name", [*names(main)])
def test_a_command_does_the_same_with_spoiled_streams(name: str, without_a_grid: dict[str, list[Done]]) -> None:
    check(without_a_grid[name])


def test_a_command_about_a_grid_does_the_same_with_spoiled_streams() -> None:
    with running_grid("--chromium", "1", fake=True) as grid:
        *found, redis_cli = results(WITH_A_GRID, grid.environment)
    for done in found:
        assert done[0]["out"], done[0]
        check(done)
    # This one ends as if it had been started without us.
    codes = {(*fds, how): each["code"] for (fds, how), each in zip(CASES, redis_cli, strict=True)}
    assert codes.pop((STDOUT, "pipe")) == -signal.SIGPIPE
    assert set(codes.values()) == {0}


def in_python(code: str, how: str, *fds: int) -> subprocess.CompletedProcess[str]:
    code = f"import os, sys\nfrom pwgrid.cli.standard_streams import *\nprepare()\n{code}"
    return subprocess.run(
        [*spoiled(how, *fds), sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )


def test_what_a_grid_could_not_say_is_not_tried_again_when_it_executes_itself() -> None:
    code = "from pwgrid.cli.announce_ready import say\nsay('ready')\nsys.stdout.flush()\nsay('again')"
    assert (done := in_python(code, "full", STDOUT)).returncode == 0, done
    assert done.stderr == ""


def test_a_stdout_that_somebody_has_made_non_blocking_is_waited_for() -> None:
    """Node does that to a pipe or terminal that it shares with us."""
    code = "os.set_blocking(1, False)\nsys.stdout.write('x' * 1000000)\nsys.stdout.flush()"
    done = in_python(code, "closed", STDIN)
    assert (done.returncode, len(done.stdout), done.stderr) == (0, 1000000, "")


def spoiled(how: str, *fds: int) -> tuple[str, ...]:
    return (sys.executable, "-m", "tests.support.spoiled_streams", how, ",".join(map(str, fds)))


@pytest.mark.parametrize("how", HOW)
def test_a_grid_whose_streams_are_spoiled_serves_and_ends(how: str) -> None:
    under = spoiled(how, STDIN, STDOUT, STDERR)
    with running_grid("--chromium", "1", fake=True, under=under) as grid:
        for pid in grid.processes():
            targets = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in range(3)]
            assert not any(target.startswith("socket:") for target in targets), targets
        assert grid.stop() == 0


@pytest.mark.parametrize(("how", "fds"), [("closed", [STDERR]), ("full", [STDIN, STDOUT, STDERR])])
def test_run_exits_with_its_command_s_code_whatever_its_streams_are(how: str, fds: list[int], tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    command = f"test -n \"$PWGRID_WS_ENDPOINT\" && touch '{ran}' && exit 7"
    done = subprocess.run(
        [
            *spoiled(how, *fds),
            *(sys.executable, "-m", "tests.support.fake_grid", "run", "--chromium", "1", "--", "sh", "-c", command),
        ],
        cwd=ROOT,
        env={name: text for name, text in os.environ.items() if not name.startswith("PWGRID")},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        timeout=120,
    )
    assert (done.returncode, ran.exists()) == (7, True), done
