"""What all commands have in common: JSON, exit codes, help, completion by a real shell."""

from __future__ import annotations

import ast
import errno
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.shell_completion import get_completion_class
from click.testing import CliRunner

from pwgrid.cli import exit_codes
from pwgrid.cli.help import pages
from pwgrid.cli.main import COMMANDS, Unloaded, main
from pwgrid.common.errors import NoGridError
from pwgrid.runtime.find_grids import RunningGrid
from tests.support.disk import nothing_can_be_written

ROOT = Path(__file__).resolve().parents[2]

WITHOUT_JSON = {
    "serve": "its output is its log: --log-format json",
    "run": "its output is that of the user's command",
    "setup": "its output is that of installers",
    "redis-cli": "its output is redis-cli's",
    "top": "a screen",
    "profile remove": "a sentence for people",
    "profile export": "the profile, as tar",
    "token create": "the token, for $(…)",
    "token revoke": "a sentence for people",
    "install systemd": "what it does, for people to agree with",
    "install supervisor": "what it does, for people to agree with",
    "uninstall": "what it does, for people to agree with",
    "help": "text",
    "completion install": "sentences for people",
    "completion uninstall": "sentences for people",
    "completion show": "a script",
}


def commands(group: click.Group = main, before: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    """Every command that does something, by its whole name."""
    for name, found in group.commands.items():
        command = found.load() if isinstance(found, Unloaded) else found
        if isinstance(command, click.Group):
            yield from commands(command, (*before, name))
        else:
            yield " ".join((*before, name)), command


ALL = list(commands())


def options(command: click.Command) -> set[str]:
    context = click.Context(command)
    return {option for parameter in command.get_params(context) for option in parameter.opts}


@pytest.mark.parametrize("arguments", [["doctor"], ["setup", "--chromium", "0"]])
def test_ctrl_c_ends_any_command_with_its_own_exit_code(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("pwgrid.settings.load.load", interrupted)
    done = CliRunner().invoke(main, arguments)
    assert (done.exit_code, done.output) == (130, "")


@pytest.mark.parametrize(("name", "command"), ALL, ids=[name for name, _ in ALL])
def test_a_command_that_prints_data_prints_json(name: str, command: click.Command) -> None:
    assert ("--json" in options(command)) is (name not in WITHOUT_JSON)


# Exit codes


def documented() -> dict[int, str]:
    """The table of docs/commands.md."""
    section = (ROOT / "docs/commands.md").read_text().partition("## Exit codes")[2].partition("\n## ")[0]
    return {int(code): text for code, text in re.findall(r"^\| (\d+) \| (.+?) \|", section, re.MULTILINE)}


def test_the_documented_exit_codes_are_those_of_the_code() -> None:
    known = {value for name, value in vars(exit_codes).items() if name.isupper()}
    assert set(documented()) == known


def test_no_command_exits_with_a_figure_of_its_own() -> None:
    """A number that stands in code is in no table: `sys.exit(3)`, `exit_code = 3`."""
    found = []
    for path in (ROOT / "grid/pwgrid/cli").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            is_exit = isinstance(node, ast.Call) and ast.unparse(node.func) == "sys.exit"
            found += [f"{path.name}: {ast.unparse(node)}" for each in ast.walk(node) if is_exit and _is_code(each)]
    assert found == []


def _is_code(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) is int and node.value not in (0, 1)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["version"], exit_codes.DONE),
        (["help", "no-such-topic"], exit_codes.FAILED),
        (["status", "--no-such-option"], exit_codes.REFUSED),
        (["config", "check", "--chromium", "-1"], exit_codes.REFUSED),
        (["status"], exit_codes.NONE_RUNNING),
        (["stop"], exit_codes.NONE_RUNNING),
        (["sessions"], exit_codes.FAILED),
    ],
)
def test_commands_exit_with_what_the_table_says(arguments: list[str], code: int, tmp_path: Path) -> None:
    environment = {"PWGRID_RUNTIME_DIR": str(tmp_path), "PWGRID_WS_ENDPOINT": None}
    assert CliRunner(env=environment).invoke(main, arguments).exit_code == code


@pytest.mark.parametrize("endpoint", ["ws://h:x/?token=s3cret", "ws://h:99999", "ws://[::1:8080"])
def test_an_endpoint_that_is_none_is_one_sentence_without_its_token(endpoint: str, tmp_path: Path) -> None:
    environment = {"PWGRID_RUNTIME_DIR": str(tmp_path), "PWGRID_WS_ENDPOINT": endpoint}
    done = CliRunner(env=environment).invoke(main, ["status"])
    assert done.exit_code == exit_codes.FAILED
    shown = endpoint.replace("s3cret", "***")
    assert done.output == f"pwgrid: PWGRID_WS_ENDPOINT: {shown!r} is no URL of a grid: use ws://host:8080\n"


def test_a_port_of_the_environment_that_is_none_is_one_sentence(tmp_path: Path) -> None:
    environment = {"PWGRID_RUNTIME_DIR": str(tmp_path), "PWGRID_PORT": "http"}
    done = CliRunner(env=environment).invoke(main, ["status"])
    assert (done.exit_code, done.output) == (exit_codes.FAILED, "pwgrid: PWGRID_PORT: 'http' is no port\n")


def test_a_link_of_kubernetes_names_no_grid_of_redis_cli(tmp_path: Path) -> None:
    environment = {"PWGRID_RUNTIME_DIR": str(tmp_path), "PWGRID_PORT": "tcp://10.0.0.1:8080"}
    done = CliRunner(env=environment).invoke(main, ["redis-cli", "ping"])
    assert done.output.startswith("pwgrid: no grid is running here"), done.output


def test_a_refused_configuration_is_told_as_json_with_every_violation() -> None:
    done = CliRunner().invoke(main, ["config", "check", "--json", "--chromium", "-1", "--slots", "0"])
    found = json.loads(done.stdout)
    assert (done.exit_code, found["good"]) == (2, False)
    assert {each["name"] for each in found["violations"]} >= {"chromium_workers", "max_concurrent_sessions"}
    assert json.loads(CliRunner().invoke(main, ["config", "check", "--json"]).stdout)["good"] is True


# Surroundings


def test_on_a_full_disk_a_command_still_looks_for_grids(tmp_path: Path) -> None:
    """This one can write into no file (EFBIG): Python finds no directory for temporary files, as on a full disk."""
    done = subprocess.run(
        [sys.executable, "-m", "pwgrid", "status", "--port", "1"],
        env={"PATH": os.environ["PATH"], "TMPDIR": str(tmp_path)},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == exit_codes.NONE_RUNNING, done
    assert done.stderr.startswith("pwgrid: no grid"), done
    assert str(tmp_path / f"pwgrid-{os.getuid()}") in done.stderr


def test_on_a_full_disk_what_needs_a_temporary_file_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    @click.command()
    def needs_one() -> None:
        tempfile.mkdtemp()

    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setitem(main.commands, "status", needs_one)
    with nothing_can_be_written():
        done = CliRunner().invoke(main, ["status"])
    assert done.exit_code == 1
    assert done.stderr.startswith("pwgrid: No usable temporary directory found in ['/tmp', "), done.stderr
    assert done.stderr.endswith(": make room in one of them\n")


def in_removed_directory(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    def remove() -> None:
        directory.mkdir()
        os.chdir(directory)
        directory.rmdir()

    return subprocess.run(
        [sys.executable, "-m", "pwgrid", *arguments],
        env={name: text for name, text in os.environ.items() if not name.startswith("PWGRID")},
        preexec_fn=remove,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_command_in_a_removed_directory_works_or_says_why_not(tmp_path: Path) -> None:
    done = in_removed_directory(tmp_path / "gone", "config", "check")
    assert (done.returncode, done.stderr) == (0, ""), done
    done = in_removed_directory(tmp_path / "gone", "config", "check", "--config", "grid.toml")
    assert (done.returncode, done.stderr) == (1, "pwgrid: the current directory was removed: go to another one\n")


@pytest.mark.parametrize("arguments", [["config", "show"], ["--help"], ["status", "--help"]], ids=" ".join)
def test_output_for_which_there_is_no_room_is_one_sentence(arguments: list[str]) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "pwgrid", *arguments],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    assert (done.returncode, done.stderr) == (1, "pwgrid: cannot write: no space left on the device\n")


@pytest.mark.parametrize(
    ("number", "sentence"),
    [(errno.ENOSPC, "no space left on the device"), (errno.EDQUOT, "the disk quota is used up")],
)
def test_a_file_for_which_there_is_no_room_is_one_sentence(
    number: int, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full() -> None:
        raise OSError(number, os.strerror(number), "/var/x\x1b")

    monkeypatch.setattr("pwgrid.cli.version.find_running", full)
    done = CliRunner().invoke(main, ["version"])
    assert (done.exit_code, done.output) == (1, f"pwgrid: cannot write /var/x\\x1b: {sentence}\n")


def test_another_error_of_the_operating_system_is_one_sentence_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused() -> None:
        raise PermissionError(errno.EACCES, "Permission denied", b"/var/\xff")

    monkeypatch.setattr("pwgrid.cli.version.find_running", refused)
    done = CliRunner().invoke(main, ["version"])
    assert (done.exit_code, done.output) == (1, "pwgrid: /var/\\xff: Permission denied\n")


# Help


@pytest.mark.parametrize(("name", "summary"), COMMANDS.items(), ids=COMMANDS)
def test_a_command_is_listed_with_its_own_first_sentence(name: str, summary: str) -> None:
    command = main.commands[name]
    assert isinstance(command, Unloaded)
    assert command.load().get_short_help_str(500).rstrip(".") == summary.rstrip(".")
    assert command.load().name == name


def test_help_has_every_command_and_every_page() -> None:
    listed = CliRunner().invoke(main, ["help"]).stdout
    for name in (*main.commands, *pages()):
        assert re.search(rf"^  {name} ", listed, re.MULTILINE), name
    assert {path.stem for path in (ROOT / "docs").glob("*.md")} == pages().keys()


@pytest.mark.parametrize(("name", "command"), ALL, ids=[name for name, _ in ALL])
def test_help_shows_what_the_option_shows(name: str, command: click.Command) -> None:
    shown = CliRunner().invoke(main, ["help", *name.split()])
    assert shown.exit_code == 0
    assert shown.stdout.startswith(f"Usage: main {name} ")
    assert command.help is None or command.help.split("\n")[0][:40] in shown.stdout


def test_a_page_is_shown_as_it_is_written_in_a_pipe() -> None:
    assert CliRunner().invoke(main, ["help", "glossary"]).stdout.strip() == pages()["glossary"].read_text().strip()


def test_a_command_and_a_page_of_the_same_name_are_both_shown() -> None:
    shared = sorted(main.commands.keys() & pages().keys())
    assert shared == ["setup", "upgrade"]
    for name in shared:
        shown = CliRunner().invoke(main, ["help", name]).stdout
        assert shown.startswith(f"Usage: main {name} ")
        assert shown.strip().endswith(pages()[name].read_text().strip())


# Completion


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with start-up files, and `pwgrid` on PATH."""
    for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME", "ZDOTDIR", "PWGRID_RUNTIME_DIR", "PWGRID_WS_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    (tmp_path / ".bashrc").write_text("# mine, and no newline at its end")
    (tmp_path / ".zshrc").write_text("# mine\n")
    return tmp_path


def installed(home: Path, shell: str) -> None:
    done = CliRunner().invoke(main, ["completion", "install", shell])
    assert done.exit_code == 0, done.output


def test_a_start_up_file_keeps_every_byte_also_one_that_is_no_utf_8(home: Path) -> None:
    before = b"# caf\xe9\r\n"
    (home / ".bashrc").write_bytes(before)
    installed(home, "bash")
    assert (home / ".bashrc").read_bytes().startswith(before + b"[ -r ")
    assert CliRunner().invoke(main, ["completion", "uninstall", "bash"]).exit_code == 0
    assert (home / ".bashrc").read_bytes() == before


def test_a_purge_names_what_an_uninstallation_before_it_has_left(home: Path) -> None:
    left = home / ".config" / "pwgrid"
    left.mkdir(parents=True)
    done = CliRunner().invoke(main, ["uninstall", "systemd", "--user", "--purge"])
    assert f"stays: {left};" in done.stdout
    assert left.is_dir()


def test_the_configuration_of_supervisord_is_an_option_where_one_uninstalls_from_it(home: Path) -> None:
    for manager, exit_code in (("supervisor", 0), ("systemd", 2)):
        done = CliRunner().invoke(main, ["uninstall", manager, "--user", "--conf", str(home / "supervisord.conf")])
        assert done.exit_code == exit_code, done.output


@pytest.mark.parametrize(
    "arguments",
    [
        ["completion", "install", "bash"],
        ["install", "systemd", "--user", "--dry-run"],
        ["install", "supervisor", "--user", "--dry-run", "--conf", __file__],
        ["uninstall", "systemd", "--user"],
    ],
    ids=" ".join,
)
def test_who_has_no_home_is_asked_for_one(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", unknown)
    monkeypatch.delenv("HOME")
    done = CliRunner().invoke(main, arguments)
    assert (done.exit_code, done.output) == (1, "pwgrid: this user has no home directory: set HOME\n")


def shell_says(shell: str, script: str) -> list[str]:
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"{shell} is not installed")
    done = subprocess.run([program, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_bash_completes_what_the_parser_knows(home: Path) -> None:
    installed(home, "bash")
    ask = '. ~/.bashrc; COMP_WORDS=(%s); COMP_CWORD=%d; _pwgrid_completion pwgrid; echo "${COMPREPLY[@]}"'
    assert shell_says("bash", ask % ("pwgrid st", 1)) == ["status", "stop"]
    assert {"--watch", "--json"} <= set(shell_says("bash", ask % ("pwgrid status --", 2)))
    assert shell_says("bash", ask % ("pwgrid completion install ''", 3)) == ["bash", "zsh", "fish"]


def test_fish_completes_what_the_parser_knows(home: Path) -> None:
    installed(home, "fish")
    assert [line.split("\t")[0] for line in shell_says("fish", 'complete -C "pwgrid st"')][:1] == ["status"]


def test_zsh_reads_its_script_without_a_complaint(home: Path) -> None:
    installed(home, "zsh")
    assert shell_says("zsh", ". ~/.zshrc; whence -w _pwgrid_completion") == ["_pwgrid_completion:", "function"]


@pytest.mark.parametrize(("shell", "startup"), [("bash", ".bashrc"), ("zsh", ".zshrc")])
def test_an_installation_is_repeatable_and_leaves_nothing(home: Path, shell: str, startup: str) -> None:
    before = (home / startup).read_text()
    installed(home, shell)
    once = (home / startup).read_text()
    installed(home, shell)
    assert (home / startup).read_text() == once
    assert once.startswith(before)
    assert len(once.splitlines()) == len(before.splitlines()) + 1
    done = CliRunner().invoke(main, ["completion", "uninstall", shell])
    assert done.exit_code == 0
    assert (home / startup).read_text().rstrip("\n") == before.rstrip("\n")
    assert not [path for path in home.rglob("*completion*") if path.is_file()]
    assert not (home / ".local/share/pwgrid").exists()
    assert "nothing to remove" in CliRunner().invoke(main, ["completion", "uninstall", shell]).stdout


def test_without_a_name_it_is_the_user_s_shell(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHELL", "/usr/bin/fish")
    assert CliRunner().invoke(main, ["completion", "install"]).exit_code == 0
    assert (home / ".config/fish/completions/pwgrid.fish").is_file()
    monkeypatch.setenv("SHELL", "/bin/tcsh")
    done = CliRunner().invoke(main, ["completion", "install"])
    assert (done.exit_code, "name the shell" in done.output) == (1, True)


def test_a_start_up_file_that_cannot_be_written_stays_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    kept = tmp_path / "dotfiles"
    kept.write_text("mine\n")
    kept.chmod(0o600)
    (tmp_path / ".bashrc").symlink_to(kept)
    assert CliRunner().invoke(main, ["completion", "install", "bash"]).exit_code == 0
    assert (tmp_path / ".bashrc").is_symlink()
    assert kept.stat().st_mode & 0o777 == 0o600
    before = kept.read_text()
    with nothing_can_be_written():
        refused = CliRunner().invoke(main, ["completion", "uninstall", "bash"])
    assert (refused.exit_code, refused.stderr) == (1, f"pwgrid: cannot change {kept}: File too large\n")
    assert kept.read_text() == before


@pytest.mark.parametrize("before", [[], ["--chromium", "1"], ["--chromium", "1", "--"]])
def test_what_comes_after_the_command_of_run_is_for_that_command(
    before: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[tuple[str, ...]] = []
    monkeypatch.setattr("pwgrid.cli.run.run_command", lambda _arguments, command, _environment: ran.append(command))
    command = ("playwright", "test", "--config", "mine.ts", "--port", "1", "--help")
    assert CliRunner().invoke(main, ["run", *before, *command]).exit_code == 0
    assert ran == [command]


def test_run_refuses_an_option_that_it_does_not_know() -> None:
    refused = CliRunner().invoke(main, ["run", "--chromim", "2", "--", "true"])
    assert refused.exit_code == exit_codes.REFUSED
    assert "--chromim" in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "incomplete", "names"),
    [
        (["drain"], "", ["aa", "ab"]),
        (["drain"], "ab", ["ab"]),
        (["drain", "--pool"], "c", ["chromium"]),
        (["scale"], "", ["chromium=", "firefox="]),
        (["logs", "--worker"], "a", ["aa", "ab"]),
        (["logs", "--session"], "5", ["5e"]),
        (["logs", "--port", "9", "--session"], "5", []),
    ],
)
def test_a_shell_completes_the_names_that_the_grid_knows(
    arguments: list[str], incomplete: str, names: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def found(port: int | None, _runtime_dir: str | None) -> RunningGrid:
        if port is not None:
            raise NoGridError("none on that port")
        return RunningGrid(tmp_path, 8080, 7, "ws://grid")

    status = {
        "workers": [{"id": "aa"}, {"id": "ab"}],
        "pools": [{"name": "chromium"}, {"name": "firefox"}],
    }
    monkeypatch.setattr("pwgrid.cli.ask_grid.find_grid", found)
    monkeypatch.setattr("pwgrid.cli.ask_grid.ask", lambda *_: status)
    monkeypatch.setattr("pwgrid.cli.ask_grid.latest_sessions", lambda *_: [{"id": "5e"}, {"id": "6f"}])
    complete = get_completion_class("bash")
    assert complete is not None
    completions = complete(main, {}, "pwgrid", "_PWGRID_COMPLETE").get_completions(arguments, incomplete)
    assert [each.value for each in completions] == names
