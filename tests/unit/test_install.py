"""What `pwgrid install` decides to make and to remove, and the texts that it makes from the shipped ones."""

import configparser
import contextlib
import getpass
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from pwgrid.cli.install import installation, record, removal, steps, systemd
from pwgrid.cli.install.installation import InstallOptions, InstallPaths, Service, browsers_of, closed, hidden, parts
from pwgrid.cli.install.record import Record, digest, make_all
from pwgrid.cli.install.removal import Removal
from pwgrid.cli.install.steps import ChangeOwner, Command, Directory, Step, TextFile, User, described, make
from pwgrid.cli.install.supervisord import rotation, supervisor_program
from pwgrid.cli.install.systemd import Systemd, service_unit, socket_unit
from pwgrid.cli.main import main
from pwgrid.common.errors import GridError
from pwgrid.common.paths import resource_dir
from pwgrid.settings.model import Settings
from pwgrid.settings.pools import PoolTable

FRESH = Record("systemd", {"port": 1})
UNITS = ("pwgrid.socket", "pwgrid.service")


class Host:
    """Directories for an installation of a grid; `users` are those that there are."""

    def __init__(self, root: Path) -> None:
        self.etc, self.home = root / "etc", root / "home"
        self.unit = TextFile(self.etc / "unit", "new\n")
        self.settings = TextFile(self.etc / "toml", "shipped\n", operators=True)
        self.secret = TextFile(self.etc / "token", "s3cret\n", 0o600, operators=True, is_secret=True)
        self.files = (self.settings, self.secret, self.unit)
        self.wanted: list[Step] = [User("grid", self.home), Directory(self.etc), Directory(self.home), *self.files]
        self.users = {"root": 0}

    def needed(self) -> list[Step]:
        return [each for each in self.wanted if each.is_needed()]

    def record(self, before: Record | None = None, fresh: Record = FRESH) -> Record:
        """That of the installation that would be made now."""
        return fresh.with_all(before, self.wanted, self.needed())

    def install(self, **changed: str) -> None:
        """Makes all, and changes some files after that (by name)."""
        for each in self.needed():
            if isinstance(each, User):
                self.users[each.name] = 4711
            else:
                make(each)
        for name, text in changed.items():
            (self.etc / name).write_text(text)


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    found = Host(tmp_path)
    for module in (steps, removal):
        monkeypatch.setattr(module, "uid_of", lambda user: found.users.get(user))
    return found


def test_everything_is_made_where_nothing_is_and_nothing_where_all_is(host: Host) -> None:
    assert host.needed() == host.wanted
    host.install()
    assert host.needed() == []
    assert host.secret.path.stat().st_mode & 0o777 == 0o600


def test_what_is_the_operator_s_stays_and_what_is_ours_is_renewed(host: Host) -> None:
    host.install(toml="mine\n", token="mine\n", unit="old\n")
    assert host.needed() == [host.unit]


def test_a_file_that_is_no_utf_8_any_more_stays_as_any_that_was_changed(host: Host) -> None:
    made = host.record()
    host.install()
    host.settings.path.write_bytes(b"# Gr\xfc\xdf\xfe\n")
    assert Removal(made, (), purge=False).kept == [host.settings.path]


def test_a_log_that_has_become_large_is_not_read_into_memory(host: Host) -> None:
    log = TextFile(host.etc / "log", "", operators=True)
    host.files, host.wanted = (*host.files, log), [*host.wanted, log]
    made = host.record()
    host.install()
    os.truncate(log.path, 64 << 20)
    tracemalloc.start()
    try:
        assert not log.is_needed()
        assert len(shown([log])) < 1000
        assert Removal(made, (), purge=False).kept == [log.path]
        assert log.path in Removal(made, (), purge=True).files
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def test_the_tokens_that_an_earlier_installation_has_left_are_given_to_the_user_of_this_one(host: Host) -> None:
    tokens = ChangeOwner(host.etc / "tokens.json", "grid")
    host.install()
    assert not tokens.is_needed()
    tokens.path.touch()
    assert tokens.is_needed()
    assert shown([tokens]) == f"  give {host.etc}/tokens.json to grid"
    host.users["grid"] = os.geteuid()
    assert not tokens.is_needed()


def test_a_repeated_installation_keeps_the_record_of_the_first(host: Host) -> None:
    first = host.record()
    assert first.user == "grid"
    assert first.directories == [str(host.etc), str(host.home)]
    assert first.files == {str(each.path): digest(each.text) for each in host.files}
    host.install()
    assert host.record(first) == first
    host.install(toml="mine\n")
    host.wanted[-1] = replace(host.unit, text="newer\n")
    assert host.record(first).files == {**first.files, str(host.unit.path): digest("newer\n")}


def test_what_was_there_before_is_not_removed(host: Host) -> None:
    host.users["grid"] = 7
    make(Directory(host.etc))
    host.settings.path.write_text("mine\n")
    host.unit.path.write_text(host.unit.text)
    made = host.record()
    assert (made.user, made.directories, set(made.files)) == ("", [str(host.home)], {str(host.secret.path)})


def test_a_file_of_the_same_name_that_gives_way_is_ours(host: Host) -> None:
    host.install(unit="another's\n")
    assert host.record().files == {str(host.unit.path): digest(host.unit.text)}


def test_what_was_changed_since_is_left_unless_everything_is_to_go(host: Host) -> None:
    made = host.record(fresh=replace(FRESH, trees=[str(host.home / "browsers")]))
    host.install(toml="mine\n")
    host.secret.path.unlink()
    gentle = Removal(made, (host.etc, host.home), purge=False)
    assert gentle.files == [host.unit.path]
    assert gentle.kept == [host.settings.path]
    assert gentle.trees == [host.home / "browsers"]
    assert gentle.directories == [host.etc, host.home]
    assert (gentle.user, gentle.whole) == ("grid", set())
    thorough = Removal(made, (host.etc, host.home), purge=True)
    assert (set(thorough.files), thorough.kept) == ({host.settings.path, host.unit.path}, [])
    assert thorough.whole == {host.etc, host.home}


def test_a_directory_of_everybody_that_had_to_be_made_goes_only_if_it_is_empty(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    places = InstallPaths.of(user=True)
    host.wanted = [*places.directories(places.units, places.config)]
    found = Removal(host.record(), places.own, purge=True)
    assert found.directories == [places.units, places.units.parent, places.config, places.config.parent]
    assert found.whole == {places.config}


def test_what_stays_is_said_by_name_and_once(tmp_path: Path) -> None:
    theirs = tmp_path / ".config/other"
    mine, state = tmp_path / ".config/pwgrid", tmp_path / ".local/state/pwgrid"
    for directory in (theirs, mine, state):
        directory.mkdir(parents=True)
    for number in range(7):
        (state / f"log.{number}").touch()
    (mine / "tokens.json").touch()
    directories = (state, state.parent, mine, state.parent.parent, mine.parent)
    (mine / "toml").touch()
    record = replace(FRESH, directories=[str(each) for each in directories], files={str(mine / "toml"): "another"})
    removal = Removal(record, {mine}, purge=False)
    removal.whole = {mine}
    said: list[str] = []
    removal.remove_directories(said.append)
    assert said == [
        f"left: {mine}/toml, it was changed since",
        f"left: {state}, in which there is log.0, log.1, log.2, log.3, log.4 and 2 more",
        f"left: {mine.parent}, in which there is other",
    ]
    assert not mine.exists()
    assert theirs.exists()


def test_the_status_is_asked_by_the_name_on_path_only_if_that_is_this_installation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, others = tmp_path / "ours", tmp_path / "others"
    for program in (ours, others):
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
    link = tmp_path / "bin/pwgrid"
    link.parent.mkdir()
    monkeypatch.setenv("PATH", str(link.parent))
    about = replace(SERVICE, command=(str(ours),), user="")
    assert about.status_note == f"status     {ours} status --port {about.port}"
    link.symlink_to(others)
    assert about.status_note == f"status     {ours} status --port {about.port}"
    link.unlink()
    link.symlink_to(ours)
    assert about.status_note == f"status     {link} status --port {about.port}"


def test_the_record_survives_json(host: Host) -> None:
    made = host.record(fresh=replace(FRESH, trees=["/var/lib/grid/browsers"]))
    make_all([Directory(host.etc)], host.etc, made)
    assert Record.read(host.etc) == made
    for text in ('{"what": "ever"}', "[]", "{"):
        (host.etc / record.RECORD).write_text(text)
        with pytest.raises(GridError, match="is damaged"):
            Record.read(host.etc)


def shown(found: Sequence[Step | Command], *, in_full: bool = True) -> str:
    return "\n".join(described(found, in_full=in_full))


def test_a_plan_shows_what_it_writes_and_no_secret(host: Host) -> None:
    text = shown([host.unit, host.secret, host.settings, Command(("systemctl", "a b"), {"X": "1"})])
    assert f"  write {host.etc}/unit (0644)\n      new\n" in text
    assert "s3cret" not in text
    assert "shipped" not in text
    assert text.endswith("  run X=1 systemctl 'a b'")
    assert shown([host.unit], in_full=False) == f"  write {host.etc}/unit (0644)"
    host.install(unit="old\n", token="mine\n")
    changed = shown([host.unit, host.secret], in_full=False)
    assert changed.splitlines()[2:] == ["      -old", "      +new", f"  write {host.etc}/token (0600)"]


SERVICE = Service(
    command=("/srv/my grid/bin/pwgrid",),
    host="0.0.0.0",
    port=9000,
    config=Path("/etc/pwgrid/grid.toml"),
    token=Path("/etc/pwgrid/token"),
    browsers=Path("/var/lib/pwgrid/browsers"),
    user="pwgrid",
    home=Path("/var/lib/pwgrid"),
    log=Path("/var/log/pwgrid/grid.log"),
    hidden=(Path("/home/ops/100%/grid"),),
)
OWN = replace(SERVICE, user="", browsers=None, config=Path("/home/me/.config/pwgrid/grid.toml"), hidden=())


def unit(service: Service) -> str:
    return service_unit((resource_dir("systemd") / "pwgrid.service").read_text(), service)


def in_force(text: str) -> list[str]:
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def test_the_unit_has_the_true_paths_and_else_the_shipped_lines() -> None:
    lines = in_force(unit(SERVICE))
    shipped = in_force((resource_dir("systemd") / "pwgrid.service").read_text())
    new = [
        'ExecStart="/srv/my grid/bin/pwgrid" serve',
        'ExecReload="/srv/my grid/bin/pwgrid" reload',
        "Environment=PWGRID_HOST=0.0.0.0",
        "Environment=PWGRID_PORT=9000",
        "Environment=PWGRID_CONFIG=/etc/pwgrid/grid.toml",
        "LoadCredential=pwgrid.token:/etc/pwgrid/token",
        "BindReadOnlyPaths=/home/ops/100%%/grid",
    ]
    assert [line for line in lines if line not in shipped] == new
    gone = [line for line in shipped if line not in lines]
    assert gone == ["ExecStart=/opt/pwgrid/.venv/bin/pwgrid serve", "ExecReload=/opt/pwgrid/.venv/bin/pwgrid reload"]


def test_without_a_token_the_unit_has_no_credential() -> None:
    assert not [line for line in in_force(unit(replace(SERVICE, token=None))) if "oken" in line]


def test_a_user_s_own_unit_has_nothing_that_takes_root() -> None:
    lines = in_force(unit(OWN))
    assert not [line for line in lines if re.match(r"(User|Private|Protect|Capability|RemoveIPC|LoadCred|After)", line)]
    assert "Environment=PWGRID_TOKEN_FILE=/etc/pwgrid/token" in lines
    assert "WantedBy=default.target" in lines
    assert "NoNewPrivileges=yes" in lines
    assert "EnvironmentFile=-/home/me/.config/pwgrid/env" in lines
    assert not [line for line in lines if "PLAYWRIGHT_BROWSERS_PATH" in line]


@pytest.mark.parametrize(("host", "address"), [("127.0.0.1", "127.0.0.1:80"), ("::", "[::]:80"), ("::1", "[::1]:80")])
def test_the_socket_listens_where_it_was_asked_to(host: str, address: str) -> None:
    text = socket_unit((resource_dir("systemd") / "pwgrid.socket").read_text(), replace(SERVICE, host=host, port=80))
    assert f"\nListenStream={address}\n" in text


def program(service: Service) -> dict[str, str]:
    parser = configparser.RawConfigParser(inline_comment_prefixes=(";",))
    parser.read_string(supervisor_program((resource_dir("config") / "supervisord.conf").read_text(), service))
    return dict(parser["program:pwgrid"])


def test_supervisord_s_program_has_the_true_paths_its_user_and_the_token_s_file() -> None:
    found = program(replace(SERVICE, home=Path("/srv/100%")))
    assert found["command"] == "'/srv/my grid/bin/pwgrid' serve"
    assert found["user"] == "pwgrid"
    assert found["stopsignal"] == "USR1"
    assert found["stdout_logfile"] == "/var/log/pwgrid/grid.log"
    environment = dict(each.split("=") for each in found["environment"].split(","))
    assert environment["PWGRID_TOKEN_FILE"] == '"/etc/pwgrid/token"'
    assert environment["LOG_FILE"] == '"/var/log/pwgrid/grid.log"'
    assert environment["HOME"] == '"/srv/100%%"'
    assert environment["PWGRID_PORT"] == '"9000"'
    assert environment["TMPDIR"] == '"/tmp"'  # so that root finds the grid, whatever supervisord's own is
    assert environment["STATE_DIRECTORY"] == '"/srv/100%%/profiles"'
    own = program(OWN)
    assert "user" not in own
    assert "STATE_DIRECTORY=" not in own["environment"]
    assert "USER=" not in own["environment"]


def test_the_log_that_is_rotated_is_the_one_that_is_written() -> None:
    shipped = (resource_dir("config") / "logrotate.conf").read_text()
    assert '\n"/srv/my log" {\n' in rotation(shipped, replace(SERVICE, log=Path("/srv/my log")))


def test_a_shipped_text_that_has_changed_is_noticed() -> None:
    with pytest.raises(ValueError, match="0 lines that begin with 'ListenStream='"):
        socket_unit("[Socket]\n", SERVICE)


def test_what_lies_in_a_home_is_shown_to_the_service_once_and_a_temporary_place_is_refused() -> None:
    home = Path("/home/ops")
    found = [home / "grid", home / "grid/.venv", Path("/usr"), Path("/root/.pyenv/3.11"), home / "grid"]
    assert hidden(found) == (home / "grid", Path("/root/.pyenv/3.11"))
    with pytest.raises(GridError, match="/tmp/grid is a temporary place"):
        hidden([Path("/tmp/grid")])


@pytest.mark.parametrize(("channel", "is_missing"), [("msedge-canary-of-none", False), ("msedge-dev", True)])
def test_a_pool_s_own_channel_is_what_has_to_be_here(channel: str, is_missing: bool) -> None:
    """Playwright itself finds those that are its own."""
    table = {"name": "edge", "browser": "chromium", "channel": channel}
    settings = Settings(chromium_workers=0, pools=(PoolTable.model_validate(table),))
    found = browsers_of(settings, None)
    assert (None in found) is is_missing
    assert Path.cwd().parent not in parts(found, None)


def test_a_directory_that_others_may_not_enter_is_found_but_not_above_what_the_service_is_shown(tmp_path: Path) -> None:
    private, inside = tmp_path / "closed", tmp_path / "closed" / "grid"
    inside.mkdir(parents=True)
    private.chmod(0o700)
    assert private in set(closed([inside]))
    assert list(closed([inside], shown=[inside])) == []


def test_what_was_asked_for_before_is_asked_for_again() -> None:
    before = {"host": "0.0.0.0", "port": 9000, "token": True}
    assert InstallOptions().after(before) == before
    assert InstallOptions(port=1).after(before) == {**before, "port": 1}
    assert InstallOptions(host="localhost").after({}) == {"host": "127.0.0.1", "port": 8080, "token": True}


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        (InstallOptions(host="example.org"), "--host: 'example.org' is no address"),
        (InstallOptions(host="::", token=False), "--no-token: other hosts can reach ::"),
    ],
)
def test_an_address_without_protection_or_that_is_none_is_refused(asked: InstallOptions, sentence: str) -> None:
    with pytest.raises(click.UsageError, match=re.escape(sentence)):
        asked.after({})


def test_the_command_for_root_is_the_one_that_was_called_and_can_be_pasted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(sys, "executable", "/my grid/python")
    monkeypatch.setattr(sys, "argv", ["/my grid/pwgrid/__main__.py", "install", "supervisor", "--conf", "/a b"])
    monkeypatch.setattr(record, "text_of", None)  # nothing is read before
    done = CliRunner().invoke(main, ["install", "supervisor", "--yes"])
    command = done.stderr.removeprefix("pwgrid: it takes root: ").partition(";")[0]
    whole = ["sudo", "/my grid/python", "-m", "pwgrid", "install", "supervisor", "--conf", "/a b"]
    assert shlex.split(command) == whole


def test_an_uninstallation_that_cannot_remove_the_user_can_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As while a shell of that user is open."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    user_units(tmp_path, monkeypatch, is_run_by_systemd=False)
    for name in UNITS:
        (InstallPaths.of(user=True).units / name).unlink()
    config = InstallPaths.of(user=True).config
    config.mkdir()
    made = Record("systemd", {}, directories=(str(config),), user=getpass.getuser())
    (config / record.RECORD).write_text(json.dumps(asdict(made)))
    monkeypatch.setattr(os, "chown", lambda *_, **__: None)
    ran: list[str] = []

    def run(command: Command) -> str:
        ran.append(str(command))
        if len(ran) == 1:
            raise GridError("userdel: user is currently used by process 7")
        return ""

    monkeypatch.setattr(Command, "run", run)
    command = ["uninstall", "systemd", "--user", "--yes"]
    assert "used by process 7" in CliRunner().invoke(main, command).output
    assert CliRunner().invoke(main, command).output.endswith("removed\n")
    assert ran == [f"run userdel {getpass.getuser()}"] * 2
    assert not config.exists()


def user_units(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_run_by_systemd: bool) -> Path:
    """The directory of a user's units, with the grid's, on a host that systemd runs, or on an image."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setattr(systemd, "is_run_by_systemd", lambda: is_run_by_systemd)
    units = InstallPaths.of(user=True).units
    units.mkdir(parents=True)
    for name in UNITS:
        (units / name).write_text("[Install]\nWantedBy=default.target\n")
    return units


def test_a_running_systemd_ends_the_grid_and_forgets_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    user_units(tmp_path, monkeypatch, is_run_by_systemd=True)
    installed = Systemd(InstallOptions(user=True), None)
    assert [each.argv for each in installed.stop()] == [("systemctl", "--user", "disable", "--now", *UNITS)]
    assert [each.argv[2] for each in installed.forget()] == ["daemon-reload", "reset-failed"]


def listening(host: str, port: int = 0) -> socket.socket:
    """What the grid has, as far as its installation knows."""
    return socket.create_server((host, port))


@contextlib.contextmanager
def other_program(host: str, port: int = 0) -> Iterator[int]:
    """Listens there; gives the port."""
    listen = "import socket, sys; a = socket.create_server((sys.argv[1], int(sys.argv[2]))); print(a.getsockname()[1])"
    command = [sys.executable, "-uc", f"{listen}; sys.stdin.read()", host, str(port)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        yield int(program.stdout.readline())
        program.stdin.close()


def installed_under_systemd(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: dict[str, object], asked: dict[str, Any], active: set[str]
) -> Systemd:
    """A user's grid that was installed with some options, and is installed with others now."""
    user_units(tmp_path, monkeypatch, is_run_by_systemd=True)
    monkeypatch.setattr(Systemd, "_is", lambda _self, state, unit: state == "enabled" or unit in active)
    monkeypatch.setattr(systemd, "_is_manager", lambda pid: pid == os.getpid())
    return Systemd(InstallOptions(user=True, **asked), Record("systemd", before))


@pytest.mark.parametrize(
    ("asked", "other", "said"),
    [
        ({}, "", ""),
        ({"host": "0.0.0.0"}, "", ""),  # it is in its own way, and makes room
        ({"host": "::"}, "", ""),
        ({"host": "0.0.0.0"}, "127.0.0.2", "cannot listen on 0.0.0.0 port"),
        ({"host": "127.0.0.2"}, "127.0.0.2", "cannot listen on 127.0.0.2 port"),
        ({"host": "127.0.0.3"}, "127.0.0.2", ""),
        ({"host": "192.0.2.1"}, "", "Cannot assign requested address"),
    ],
)
def test_a_running_grid_is_no_obstacle_to_its_new_address_and_all_else_is(
    asked: dict[str, Any], other: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with contextlib.ExitStack() as held:
        port = held.enter_context(listening("127.0.0.1")).getsockname()[1]
        if other:
            held.enter_context(other_program(other, port))
        before = {"host": "127.0.0.1", "port": port, "token": True}
        why_not = installed_under_systemd(tmp_path, monkeypatch, before, asked, {*UNITS}).obstacle()
        assert (bool(why_not), said in why_not) == (bool(said), True)


@pytest.mark.parametrize("asked", [{}, {"host": "0.0.0.0"}])
def test_nor_is_a_socket_of_a_systemd_that_its_user_may_not_look_into(
    asked: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with listening("127.0.0.1") as own:
        before = {"host": "127.0.0.1", "port": own.getsockname()[1], "token": True}
        installed = installed_under_systemd(tmp_path, monkeypatch, before, asked, {*UNITS})
        monkeypatch.setattr(installation, "listeners_on", lambda _port: {"127.0.0.1": None})
        assert installed.obstacle() == ""


def test_a_taken_port_does_not_end_the_grid_that_runs_on_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with listening("127.0.0.1") as own, other_program("127.0.0.1") as port:
        before = {"host": "127.0.0.1", "port": own.getsockname()[1], "token": True}
        installed = installed_under_systemd(tmp_path, monkeypatch, before, {"port": port}, {*UNITS})
        assert f"cannot listen on 127.0.0.1 port {port}" in installed.obstacle()


def test_a_port_that_was_taken_while_the_grid_was_down_is_an_obstacle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with other_program("127.0.0.1") as port:
        before = {"host": "127.0.0.1", "port": port, "token": True}
        assert "cannot listen" in installed_under_systemd(tmp_path, monkeypatch, before, {}, set()).obstacle()


def test_a_socket_that_waits_for_its_first_client_moves_to_the_new_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {"host": "127.0.0.1", "port": 1, "token": True}
    installed = installed_under_systemd(tmp_path, monkeypatch, before, {"port": 2}, {"pwgrid.socket"})
    monkeypatch.setattr(Systemd, "_setup", ())
    written = [InstallPaths.of(user=True).units / "pwgrid.socket"]
    assert [each.argv[2] for each in installed.start(written)] == ["daemon-reload", "stop", "start"]
    assert [each.argv[2] for each in installed.start([])] == ["stop", "start"]  # --no-start has written it
    with listening("127.0.0.1") as own:
        here = {**before, "port": own.getsockname()[1]}
        installed = installed_under_systemd(tmp_path / "moved", monkeypatch, here, {}, {"pwgrid.socket"})
        monkeypatch.setattr(Systemd, "_setup", ())
        assert [each.argv[2] for each in installed.start([])] == ["start"]


def test_the_journal_says_why_the_socket_does_not_listen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = installed_under_systemd(tmp_path, monkeypatch, {}, {}, set())
    assert "--unit pwgrid.socket" in str(installed.why_not_running)


@pytest.mark.skipif(
    not shutil.which("systemctl") or systemd.is_run_by_systemd(), reason="needs systemctl without a running systemd"
)
def test_on_an_image_an_uninstallation_asks_no_systemd_and_leaves_no_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    units = user_units(tmp_path, monkeypatch, is_run_by_systemd=False)
    Command(("systemctl", "--user", "enable", *UNITS)).run()
    assert sorted(each.name for each in (units / "default.target.wants").iterdir()) == sorted(UNITS)
    installed = Systemd(InstallOptions(user=True), None)
    for each in (*installed.stop(), *installed.forget()):
        each.run()
    assert not [each for each in units.rglob("*") if each.is_symlink()]
