"""What `pwgrid install` and `uninstall` ask of a grid under supervisord; a script stands for supervisorctl."""

import contextlib
import os
import pwd
import socket
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from click.testing import CliRunner

from pwgrid.cli.install import supervisord
from pwgrid.cli.install.installation import SERVICE_USER, InstallOptions, InstallPaths, Service
from pwgrid.cli.install.record import Record, digest, make_all
from pwgrid.cli.install.steps import Directory, TextFile
from pwgrid.cli.install.supervisord import Supervisord, await_ready
from pwgrid.cli.main import main
from pwgrid.common.errors import GridError
from pwgrid.runtime.directory import RuntimeDir


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Record:
    """What an installation has noted down."""
    command = tmp_path / "bin/supervisorctl"
    command.parent.mkdir()
    command.write_text("#!/bin/sh\necho 1\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(command.parent))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    conf = tmp_path / "supervisord.conf"
    conf.write_text("[include]\nfiles = conf.d/*.conf\n")
    program = tmp_path / "conf.d/pwgrid.conf"
    program.parent.mkdir()
    program.touch()
    return Record(Supervisord.NAME, {"conf": str(conf), "port": 9000})


def has_user(monkeypatch: pytest.MonkeyPatch, uid: int | None) -> None:
    entries = {} if uid is None else {SERVICE_USER: pwd.struct_passwd((SERVICE_USER, "x", uid, uid, "", "/", "/"))}
    monkeypatch.setattr(pwd, "getpwnam", entries.__getitem__)


def test_root_names_the_directory_of_the_service_s_grid(record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    has_user(monkeypatch, 4711)
    (command,) = Supervisord(InstallOptions(), record).stop()
    assert command.argv[-5:] == ("stop", "--port", "9000", "--runtime-dir", "/tmp/pwgrid-4711")


def test_a_user_who_was_removed_by_hand_is_no_obstacle(record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    has_user(monkeypatch, None)
    assert Supervisord(InstallOptions(), record).stop() == []


def test_a_user_s_own_grid_is_where_its_commands_look(record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    has_user(monkeypatch, None)
    (command,) = Supervisord(InstallOptions(user=True), record).stop()
    assert command.argv[-3:] == ("stop", "--port", "9000")


@pytest.mark.parametrize("user", [True, False])
def test_a_grid_is_ended_where_its_configuration_says_that_it_is(
    record: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, user: bool
) -> None:
    has_user(monkeypatch, 4711)
    file = tmp_path / "grid.toml"
    file.write_text('[listener]\nhost = "0.0.0.0"\n[runtime]\nruntime_dir = "/srv/run"\n')
    monkeypatch.setattr(InstallPaths, "of", lambda *, user: InstallPaths(*[tmp_path] * 5))
    (command,) = Supervisord(InstallOptions(user=user), record).stop()
    assert command.argv[-5:] == ("stop", "--port", "9000", "--runtime-dir", "/srv/run")


@pytest.mark.parametrize(("code", "is_removed"), [(0, True), (4, True), (1, False), (137, False)])
def test_files_are_removed_only_where_no_grid_lives_on(
    record: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, is_removed: bool
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    stop, program = tmp_path / "stop", tmp_path / "conf.d/pwgrid.conf"
    stop.write_text(f"#!/bin/sh\necho it goes on >&2; exit {code}\n")
    stop.chmod(0o755)
    monkeypatch.setattr(supervisord, "by_path", lambda: (str(stop),))
    config = InstallPaths.of(user=True).config
    made = replace(record, directories=[str(config.parent), str(config)], files={str(program): digest("")})
    make_all([Directory(config.parent), Directory(config)], config, made)
    done = CliRunner().invoke(main, ["uninstall", "supervisor", "--user", "--yes"])
    assert (done.exit_code == 0, program.exists(), config.exists()) == (is_removed, not is_removed, not is_removed)
    assert is_removed or "it goes on" in done.output


def test_where_supervisord_was_removed_there_is_nothing_to_end(record: Record) -> None:
    Path(record.options["conf"]).unlink()
    assert Supervisord(InstallOptions(user=True), record).stop() == []


def test_an_uninstallation_takes_the_supervisord_of_its_installation_and_no_other_one(
    record: Record, tmp_path: Path
) -> None:
    conf, other = Path(record.options["conf"]), tmp_path / "other.conf"
    for named in (None, conf):
        assert str(Supervisord(InstallOptions(user=True, conf=named), record).forget()[0]).endswith(
            f"{conf} update pwgrid"
        )
    other.write_text(conf.read_text())
    with pytest.raises(GridError, match=f"--conf: the grid was installed under the supervisord of {conf}"):
        Supervisord(InstallOptions(user=True, conf=other), record).stop()
    conf.unlink()  # it was moved
    moved = Supervisord(InstallOptions(user=True, conf=other), record)
    assert len(moved.stop()) == 1
    assert str(moved.forget()[0]).endswith(f"{other} update pwgrid")


def test_the_closing_lines_name_the_port_since_another_grid_may_run_here(
    record: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    asked = InstallOptions(user=True, conf=Path(record.options["conf"]), port=9001)
    (line,) = (each for each in Supervisord(asked, record).notes() if each.startswith("status "))
    assert line.endswith(" status --port 9001")


@pytest.mark.parametrize(
    ("files", "file"),
    [
        ("conf.d/*.conf", "conf.d/pwgrid.conf"),
        ("%(here)s/conf.d/*.ini", "conf.d/pwgrid.ini"),
        ("programs.conf conf.d/*.conf", "conf.d/pwgrid.conf"),
        ("*/supervisor.conf [a-z]*.conf */*.conf conf.d/*.conf", "conf.d/pwgrid.conf"),
        ("programs.conf", None),
        ("", None),
    ],
)
def test_the_program_gets_a_file_of_its_own(
    record: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: str, file: str | None
) -> None:
    """Not one that the operator has named, which has other programs."""
    monkeypatch.setenv("HOME", str(tmp_path))
    conf = Path(record.options["conf"])
    conf.write_text(f"[include]\nfiles = {files}\n")
    asked = InstallOptions(user=True, conf=conf, port=9000)
    if file is None:
        with pytest.raises(GridError, match=r"has no \[include\] with files like"):
            Supervisord(asked, None).wanted()
    else:
        wanted = Supervisord(asked, None).wanted()
        assert tmp_path / file in {each.path for each in wanted if isinstance(each, TextFile)}


def test_why_supervisord_does_not_answer_is_said_also_where_there_is_no_supervisorctl(
    record: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "bin/supervisorctl").write_text("#!/bin/sh\necho No module named supervisor >&2; exit 1\n")
    asked = InstallOptions(user=True, conf=Path(record.options["conf"]), port=9000)
    assert "does not answer (No module named supervisor): start it" in Supervisord(asked, None).obstacle()


@pytest.mark.parametrize("state", ["EXITED", "FATAL", "STOPPED"])
def test_a_program_that_is_there_and_does_not_run_is_started(
    record: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    """As after an installation that failed for want of a browser, and is repeated once there is one."""
    monkeypatch.setenv("HOME", str(tmp_path))
    asked = InstallOptions(user=True, conf=Path(record.options["conf"]), port=9000)

    def commands() -> list[str]:
        return [str(each) for each in Supervisord(asked, None).start([])]

    (tmp_path / "bin/supervisorctl").write_text(f"#!/bin/sh\necho pwgrid {state}\n")
    start, wait = commands()[-2:]
    assert start.endswith("supervisord.conf start pwgrid")
    assert "ready" in wait
    (tmp_path / "bin/supervisorctl").write_text("#!/bin/sh\necho pwgrid RUNNING pid 1\n")
    assert not any("supervisord.conf" in each for each in commands())


def test_a_program_that_ends_at_once_is_not_waited_for(record: Record, tmp_path: Path) -> None:
    (tmp_path / "bin/supervisorctl").write_text("#!/bin/sh\necho pwgrid BACKOFF Exited too quickly\n")
    about = service(port=1)  # where nothing listens
    with pytest.raises(GridError, match="supervisord says of it: pwgrid BACKOFF Exited too quickly"):
        await_ready(Path(record.options["conf"]), about)


@pytest.fixture
def health() -> Iterator[tuple[int, list[HTTPStatus], list[str]]]:
    """A port where somebody answers as a grid; the answers that it gives, the last one again and again; what it was
    asked."""
    answers, asked = [HTTPStatus.OK], []

    class Health(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(answers.pop(0) if len(answers) > 1 else answers[0])
            self.end_headers()

    with ThreadingHTTPServer(("127.0.0.1", 0), Health) as server:
        threading.Thread(target=server.serve_forever).start()
        yield server.server_port, answers, asked
        server.shutdown()


@contextlib.contextmanager
def master_on(port: int) -> Iterator[None]:
    """This process is one, as far as other processes see."""
    with (
        tempfile.TemporaryDirectory(prefix="pg-", dir="/tmp") as base,
        RuntimeDir.create(base, port).locked(f"ws://127.0.0.1:{port}") as runtime,
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as control,
    ):
        control.bind(str(runtime.control_path))
        yield


def supervisorctl_says(tmp_path: Path, *states: str) -> None:
    """One state after the other, the last one again and again."""
    file = tmp_path / "states"
    file.write_text("\n".join(states) + "\n")
    (tmp_path / "bin/supervisorctl").write_text(
        f"#!/bin/sh\nread state < {file}; echo pwgrid $state; test $(/usr/bin/wc -l < {file}) = 1 ||"
        f" /usr/bin/sed -i 1d {file}\n"
    )


def test_a_grid_that_starts_is_waited_for(
    record: Record, tmp_path: Path, health: tuple[int, list[HTTPStatus], list[str]]
) -> None:
    port, answers, asked = health
    answers.insert(0, HTTPStatus.SERVICE_UNAVAILABLE)
    supervisorctl_says(tmp_path, "STARTING", f"RUNNING pid {os.getpid()}, uptime 0:00:03")
    with master_on(port):
        await_ready(Path(record.options["conf"]), service(port=port))
    assert asked == ["/health/ready", "/health/ready"]


@pytest.mark.parametrize("began", ["STARTING", "RUNNING pid 1, uptime 0:00:03"])
def test_what_the_grid_before_has_left_is_not_the_grid_that_starts(
    record: Record, tmp_path: Path, health: tuple[int, list[HTTPStatus], list[str]], began: str
) -> None:
    """Its proxy is ready for a while, also where the new master ends before it has loaded its settings."""
    port, _, _ = health
    supervisorctl_says(tmp_path, began, "BACKOFF Exited too quickly")
    with master_on(port), pytest.raises(GridError, match="supervisord says of it: pwgrid BACKOFF Exited too quickly"):
        await_ready(Path(record.options["conf"]), service(port=port))


def service(port: int) -> Service:
    nowhere = Path("/nowhere")
    return Service(
        command=("pwgrid",),
        host="0.0.0.0",
        port=port,
        config=nowhere,
        token=None,
        browsers=None,
        user="",
        home=nowhere,
        log=nowhere,
        hidden=(),
        sandbox=True,
    )
