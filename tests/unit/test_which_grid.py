"""Every command asks the grid that the environment names, where several run: there is one resolution for all."""

import contextlib
import json
import os
import socket
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import click
import pytest
from click.testing import CliRunner

from pwgrid.cli.main import Unloaded, main
from pwgrid.cli.top.app import Watcher
from pwgrid.runtime.child_files import ChildState
from pwgrid.runtime.directory import RuntimeDir
from pwgrid.runtime.process_identity import create_time

PORTS = (9001, 9002)

ASKING = {
    "config show": ["--running"],
    "drain": ["--all"],
    "logs": ["--session", "0123"],
    "profile list": [],
    "profile remove": ["shop-login"],
    "profile export": ["shop-login"],
    "redis-cli": ["ping"],
    "reload": [],
    "restart": [],
    "scale": ["chromium=1"],
    "sessions": [],
    "status": [],
    "stop": [],
    "token create": ["--name", "ci"],
    "token list": [],
    "token revoke": ["ci"],
    "upgrade": [],
}
"""Commands, with arguments, that ask one grid."""

ASKING_ON_A_TERMINAL = {"top"}
ASKING_NONE = {
    *("calibrate", "run", "serve"),  # start a grid
    *("config check", "doctor", "setup", "help", "completion"),  # ask none
    *("install", "uninstall"),  # are about the service
    "version",  # asks all
}


@contextlib.contextmanager
def master(base: Path, port: int) -> Iterator[None]:
    """Answers every request with its port."""
    with RuntimeDir.create(str(base), port).locked(f"ws://127.0.0.1:{port}") as runtime:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener.bind(str(runtime.control_path))
        listener.listen()

        def answer() -> None:
            with contextlib.suppress(OSError):
                while True:
                    visitor, _ = listener.accept()
                    with visitor:
                        visitor.recv(4096)
                        visitor.send(b'{"t":"error","error":"asked %d"}' % port)

        thread = threading.Thread(target=answer)
        thread.start()
        try:
            yield
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
            listener.close()


@pytest.fixture(scope="module")
def bases() -> Iterator[dict[int, Path]]:
    """Two grids in the place where this user's are by default, one more in a place of its own."""
    with (
        tempfile.TemporaryDirectory(prefix="pg-", dir="/tmp") as temporary,
        pytest.MonkeyPatch.context() as patch,
        contextlib.ExitStack() as masters,
    ):
        for name in [each for each in os.environ if each.startswith("PWGRID_")]:
            patch.delenv(name)
        patch.setenv("TMPDIR", temporary)
        default, other = Path(temporary) / f"pwgrid-{os.getuid()}", Path(temporary) / "other"
        found = {**dict.fromkeys(PORTS, default), 9003: other}
        for port, base in found.items():
            masters.enter_context(master(base, port))
        yield found


def output(command: str, *arguments: str, **environment: str) -> str:
    return CliRunner(env=environment).invoke(main, [*command.split(), *arguments]).output


def leaves(group: click.Group, before: str = "") -> Iterator[str]:
    for name, command in group.commands.items():
        loaded = command.load() if isinstance(command, Unloaded) else command
        if isinstance(loaded, click.Group):
            yield from leaves(loaded, f"{before}{name} ")
        else:
            yield before + name


def test_the_walk_leaves_no_command_out() -> None:
    there = set(leaves(cast(click.Group, main)))
    assert {*ASKING, *ASKING_ON_A_TERMINAL} <= there
    others = there - {*ASKING, *ASKING_ON_A_TERMINAL}
    assert {each if each in ASKING_NONE else each.split()[0] for each in others} == ASKING_NONE


@pytest.mark.parametrize("command", ASKING)
def test_the_environment_chooses_the_grid_for_every_command(command: str, bases: dict[int, Path]) -> None:
    arguments = ASKING[command]
    for port in PORTS:
        assert output(command, *arguments, PWGRID_PORT=str(port)) == f"pwgrid: asked {port}\n"
    endpoint = "wss://me:pw@grid.example:9002/under/?token=t"
    assert output(command, *arguments, PWGRID_WS_ENDPOINT=endpoint, PWGRID_PORT="9001") == "pwgrid: asked 9002\n"
    below_a_path = {"PWGRID_WS_ENDPOINT": "wss://grid.example/under", "PWGRID_PORT": "9001"}
    assert output(command, *arguments, **below_a_path) == "pwgrid: asked 9001\n"
    assert output(command, *arguments, PWGRID_RUNTIME_DIR=str(bases[9003])) == "pwgrid: asked 9003\n"
    if command != "redis-cli":  # all of its arguments are redis-cli's
        assert output(command, *arguments, "--port", "9002", PWGRID_PORT="9001") == "pwgrid: asked 9002\n"


@pytest.mark.parametrize("command", ASKING)
def test_what_the_environment_does_not_say_is_asked_for(command: str, bases: dict[int, Path]) -> None:
    sentence = "pwgrid: several grids run here: name one with --port or PWGRID_PORT (ports 9001, 9002)\n"
    for variables in ({}, {"PWGRID_PORT": "0"}, {"PWGRID_PORT": ""}, {"PWGRID_PORT": "tcp://10.0.0.1:8080"}):
        assert output(command, *ASKING[command], **variables) == sentence


def test_a_screen_of_a_grid_is_of_the_one_that_the_environment_names(
    bases: dict[int, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PWGRID_PORT", "9002")
    watcher: Any = Watcher(None, None, 1.0)
    assert watcher._grid.port == 9002
    for fd in (watcher.readable, watcher._writable):
        os.close(fd)


def test_a_grid_that_is_not_there_is_told_with_what_has_named_it(bases: dict[int, Path]) -> None:
    assert "here on port 9009 of PWGRID_PORT (looked in " in output("status", PWGRID_PORT="9009")
    assert "here on port 9009 of PWGRID_WS_ENDPOINT (" in output("status", PWGRID_WS_ENDPOINT="ws://h:9009")
    assert "here on port 9009 (looked in " in output("status", "--port", "9009", PWGRID_PORT="9001")


@pytest.mark.parametrize("command", sorted(ASKING.keys() - {"logs", "status", "stop"}))
def test_a_grid_whose_master_is_gone_is_not_taken_for_none(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next master reads what this one has read: nothing is shown of, or written to, the default place meanwhile."""
    runtime = tmp_path / "grids" / "9009"
    (runtime / "proxy").mkdir(parents=True)
    gone = {"pid": os.getpid(), "createTime": 1.0, "endpoint": "ws://127.0.0.1:9009"}
    (runtime / "lock").write_text(json.dumps(gone))
    since = create_time(os.getpid()) or 0.0
    ChildState("proxy", "1", os.getpid(), since, "", "", "", 1.0, 1.0).write(runtime)
    monkeypatch.setattr("pwgrid.settings.load.find_tokens_file", lambda *_: tmp_path / "tokens.json")
    monkeypatch.delenv("PWGRID_CONFIG", raising=False)
    monkeypatch.setattr("pwgrid.runtime.directory.default_base", lambda: runtime.parent)
    monkeypatch.setattr("pwgrid.runtime.find_grids.default_base", lambda: runtime.parent)
    said = output(command, *ASKING[command], HOME=str(tmp_path))
    assert said.startswith("pwgrid: the grid on port 9009 has no master: it died; ")
    assert not (tmp_path / "tokens.json").exists()
