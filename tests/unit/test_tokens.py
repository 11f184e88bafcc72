"""Tokens: how one is recognised, the file that has them, and the command that changes it."""

import json
import os
import pwd
import shlex
import stat
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from pwgrid.cli import token as cli
from pwgrid.cli.install.installation import SERVICE_USER, InstallPaths
from pwgrid.cli.install.record import RECORD
from pwgrid.cli.main import main
from pwgrid.common.errors import GridError
from pwgrid.runtime.find_grids import RunningGrid
from pwgrid.settings import load as settings
from pwgrid.settings.load import find_tokens_file, load
from pwgrid.tokens.file import TokenFile, changing, read
from pwgrid.tokens.tokens import Role, Token, Tokens, make
from tests.support.descriptors import no_descriptor_is_free
from tests.support.docs import blocks
from tests.support.grid import ROOT


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("PWGRID_CONFIG", raising=False)
    monkeypatch.setenv("PWGRID_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(settings, "DEFAULT_FILE", tmp_path / "none.toml")
    return tmp_path / "tokens.json"


def run(path: Path, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["token", *arguments, "--config", str(path.with_name("grid.toml"))])


def test_a_token_is_found_by_its_text_and_by_nothing_near_it() -> None:
    (one, text), (other, another) = (make(name, Role.CLIENT, 3, ["a"], 0.0) for name in ("one", "other"))
    tokens = Tokens([one, other])
    assert tokens.find(text) is one
    assert tokens.find(another) is other
    mixed = f"pwg_{one.id}_{another.rpartition('_')[2]}"
    for wrong in (
        "",
        text[:-1],
        text + "0",
        text.upper(),
        text[:-1] + ("0" if text[-1] != "0" else "1"),
        mixed,
        one.name,
    ):
        assert tokens.find(wrong) is None
    assert len(text.rpartition("_")[2]) * 4 == 192


def test_the_same_token_never_looks_the_same_twice_and_is_in_no_file() -> None:
    made = [make("ci", Role.CLIENT, 0, (), 0.0) for _ in range(20)]
    assert len({token.salt for token, _ in made}) == len({text for _, text in made}) == 20
    for token, text in made:
        written = token.model_dump_json(by_alias=True)
        assert text not in written
        assert text.rpartition("_")[2] not in written


def test_a_token_is_made_listed_and_revoked_by_the_command(path: Path) -> None:
    done = run(path, "create", "--name", "ci", "--role", "client", "--max-sessions", "10", "--pools", "appa, appb")
    assert done.exit_code == 0
    text = done.stdout.strip()
    assert "from now on the grid serves nobody without a token" in done.stderr
    assert text not in done.stderr
    found = read(path).find(text)
    assert found is not None
    assert (found.name, found.role, found.max_sessions, found.pools) == ("ci", Role.CLIENT, 10, ("appa", "appb"))

    assert run(path, "create", "--name", "ops", "--role", "operator").exit_code == 0
    (ci, ops) = json.loads(run(path, "list", "--json").stdout)
    assert {name: ci[name] for name in ("name", "role", "maxSessions", "pools")} == {
        "name": "ci",
        "role": "client",
        "maxSessions": 10,
        "pools": ["appa", "appb"],
    }
    assert set(ci) == {"name", "role", "maxSessions", "pools", "id", "createdAt"}
    assert ops["role"] == "operator"
    table = run(path, "list").stdout
    assert "ci" in table
    assert text not in table
    assert run(path, "revoke", "ci").stdout == "revoked ci\n"
    assert read(path).find(text) is None
    assert [each["name"] for each in json.loads(run(path, "list", "--json").stdout)] == ["ops"]


def test_the_commands_of_the_documentation_work(path: Path) -> None:
    """Here, and not against a grid: without --config they would change the tokens of this host."""
    (block,) = [block for block in blocks(ROOT / "docs" / "access.md") if block.language == "sh"]
    commands = [shlex.split(line)[2:] for line in block.text.splitlines()]
    assert [command[0] for command in commands] == ["create", "list", "revoke"]
    for command in commands:
        done = run(path, *command)
        assert done.exit_code == 0, done.output
    assert read(path).all == ()


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["create", "--name", "CI"], 2, "'CI' is no name of a token: 1 to 63 lower-case letters"),
        (["create", "--name", "a b"], 2, "'a b' is no name of a token"),
        (["create", "--name", "x", "--pools", "No!"], 2, "'No!' is no name of a pool"),
        (["create", "--name", "taken"], 1, "there is a token taken already"),
        (["revoke", "nobody"], 1, "there is no token 'nobody' in"),
    ],
)
def test_a_mistake_is_one_sentence_and_changes_nothing(
    path: Path, arguments: list[str], code: int, sentence: str
) -> None:
    run(path, "create", "--name", "taken")
    before = path.read_bytes()
    done = run(path, *arguments)
    assert done.exit_code == code
    assert sentence in done.stderr
    assert path.read_bytes() == before


def test_only_its_owner_can_read_the_file_whatever_the_umask(path: Path) -> None:
    umask = os.umask(0)
    try:
        run(path, "create", "--name", "one")
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        path.chmod(0o644)
        run(path, "create", "--name", "two")
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    finally:
        os.umask(umask)
    assert [each.name for each in path.parent.iterdir()] == ["tokens.json"]


def test_a_grid_of_another_kind_that_runs_here_is_no_matter(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = RunningGrid(path.parent / "gone", 1, 1, "ws://127.0.0.1:1")
    monkeypatch.setattr(cli, "find_running", lambda: [gone])
    assert run(path, "create", "--name", "ci").exit_code == 0


def test_a_configuration_and_a_grid_are_named_together_only_if_they_have_the_same_tokens(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid = RunningGrid(path.parent, 9000, 1, "ws://127.0.0.1:9000")
    monkeypatch.setattr(cli, "find_grid", lambda _port, _runtime_dir: grid)
    monkeypatch.setattr(cli, "ask", lambda _grid, _name: {"file": str(path)})
    assert run(path, "create", "--name", "ci", "--port", "9000").exit_code == 0
    other = path.parent / "other" / "tokens.json"
    done = run(other, "create", "--name", "ops", "--port", "9000")
    assert (done.exit_code, f"the grid on port 9000 reads {path}, and not {other}" in done.stderr) == (2, True)
    monkeypatch.setenv("PWGRID_CONFIG", str(other.with_name("grid.toml")))  # a flag beats the environment
    assert CliRunner().invoke(main, ["token", "list", "--port", "9000"]).stdout.splitlines()[1].startswith("ci ")
    assert not other.parent.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_a_file_that_root_changes_stays_that_of_who_reads_it(path: Path) -> None:
    cli.create(cli.Place(path, reader=12345), "one", Role.CLIENT, 0, ())
    assert path.stat().st_uid == 12345
    run(path, "create", "--name", "two")
    assert path.stat().st_uid == 12345


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_a_token_for_a_service_that_has_not_run_yet_is_its_user_s(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places = replace(InstallPaths.of(user=False), config=path.parent)
    monkeypatch.setattr(InstallPaths, "of", lambda user: places)
    nobody = pwd.getpwnam("nobody")
    monkeypatch.setattr(pwd, "getpwnam", {SERVICE_USER: nobody}.__getitem__)
    assert run(path, "create", "--name", "one").exit_code == 0
    assert path.stat().st_uid == 0
    (path.parent / RECORD).write_text('{"under": "systemd", "options": {}}')
    assert run(path, "create", "--name", "two").exit_code == 0
    assert path.stat().st_uid == nobody.pw_uid


def test_of_two_tokens_that_are_made_at_once_only_one_is_the_first(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def changing_later(*arguments: Any) -> AbstractContextManager[dict[str, Token]]:
        monkeypatch.setattr("pwgrid.tokens.file.changing", changing)
        assert cli.create(cli.Place(path), "quicker", Role.CLIENT, 0, ())[1]
        return changing(*arguments)

    monkeypatch.setattr("pwgrid.tokens.file.changing", changing_later)
    assert not cli.create(cli.Place(path), "one", Role.CLIENT, 0, ())[1]
    assert {token.name for token in read(path).all} == {"quicker", "one"}


def test_what_changes_in_the_file_counts_at_once(path: Path) -> None:
    file, place = TokenFile(path), cli.Place(path)
    assert not file.tokens().are_there
    text, is_first = cli.create(place, "one", Role.CLIENT, 0, ())
    assert is_first
    assert file.tokens().find(text) is not None
    unchanged = file.tokens()
    assert file.tokens() is unchanged  # not read again
    another, is_first = cli.create(place, "two", Role.CLIENT, 0, ())
    assert not is_first
    assert file.tokens().find(another) is not None
    cli.revoke(place, "one")
    assert file.tokens().find(text) is None
    cli.revoke(place, "two")
    assert file.tokens().are_there  # the last one is gone, and nobody gets in by that
    path.unlink()
    assert not file.tokens().are_there


def test_a_token_that_cannot_be_revoked_leaves_no_directory(tmp_path: Path) -> None:
    place = cli.Place(tmp_path / "etc" / "tokens.json")
    with pytest.raises(GridError, match="there is no token 'nobody'"):
        cli.revoke(place, "nobody")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"tokens": [{"name": "x"}]}', b"\xff", b'{"tokens": 7}'])
def test_a_file_that_is_none_lets_nobody_in_and_says_so_once(
    path: Path, content: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    path.write_bytes(content)
    file = TokenFile(path)
    for _ in range(3):
        tokens = file.tokens()
        assert tokens.are_there
        assert tokens.all == ()
    assert capsys.readouterr().out.count("tokens_unreadable") == 1
    listed = run(path, "list")
    assert (listed.exit_code, "is no file of tokens" in listed.stderr) == (1, True)


def test_a_file_that_cannot_be_read_for_now_is_read_again(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, _ = cli.create(cli.Place(path), "one", Role.CLIENT, 0, ())
    file = TokenFile(path)
    with no_descriptor_is_free():
        found = [file.tokens() for _ in range(3)]
    assert [(tokens.are_there, tokens.all) for tokens in found] == [(True, ())] * 3
    assert capsys.readouterr().out.count("tokens_unreadable") == 1
    assert file.tokens().find(text) is not None


def test_a_file_that_is_larger_than_all_memory_lets_nobody_in(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 40)
    tokens = TokenFile(path).tokens()
    assert (tokens.are_there, tokens.all) == (True, ())


def test_a_change_leaves_a_broken_file_alone(path: Path) -> None:
    path.write_bytes(b"{")
    with pytest.raises(GridError, match="is no file of tokens"):
        cli.create(cli.Place(path), "one", Role.CLIENT, 0, ())
    assert path.read_bytes() == b"{"


def test_tokens_lie_beside_the_configuration_that_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toml = tmp_path / "grid.toml"
    toml.touch()
    assert load(toml, {}, {}).tokens_file == tmp_path / "tokens.json"
    assert load(toml, {}, {}, private=True).tokens_file is None
    assert load(toml, {}, {}, private=True).again().tokens_file is None
    monkeypatch.chdir(tmp_path)
    assert load(Path("grid.toml"), {}, {}).tokens_file == tmp_path / "tokens.json"
    monkeypatch.setattr(settings, "DEFAULT_FILE", tmp_path / "etc" / "grid.toml")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert find_tokens_file(None, {"HOME": "/home/me"}) == Path("/home/me/.config/pwgrid/tokens.json")
    assert find_tokens_file(None, {"HOME": "/home/me", "XDG_CONFIG_HOME": "/c"}) == Path("/c/pwgrid/tokens.json")
    assert find_tokens_file(None, {}) == tmp_path / "etc" / "tokens.json"
    (tmp_path / "etc").mkdir()
    assert find_tokens_file(None, {"HOME": "/home/me"}) == tmp_path / "etc" / "tokens.json"


def test_tokens_that_the_grid_s_user_may_not_read_are_a_warning(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As those of a service, for a grid that an ordinary user starts beside it: it would refuse every client."""
    toml = path.with_name("grid.toml")
    toml.touch()
    assert load(toml, {}, {}).warnings == ()
    path.touch()
    assert load(toml, {}, {}).warnings == ()
    monkeypatch.setattr(os, "access", lambda *_: False)
    (warning,) = load(toml, {}, {}).warnings
    assert warning == f"this user may not read {path}: clients are refused; name another file by --config"
    assert load(toml, {}, {}, private=True).warnings == ()


def test_a_public_listener_may_have_such_tokens_instead_of_one(path: Path) -> None:
    toml = path.with_name("grid.toml")
    toml.touch()
    with pytest.raises(GridError, match="needs a token"):
        load(toml, {"PWGRID_HOST": "0.0.0.0"}, {})
    run(path, "create", "--name", "one")
    assert load(toml, {"PWGRID_HOST": "0.0.0.0"}, {}).settings.host == "0.0.0.0"
    with pytest.raises(GridError, match="needs a token"):
        load(toml, {"PWGRID_HOST": "0.0.0.0"}, {}, private=True)


def test_a_directory_that_may_not_be_searched_is_one_sentence(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = tmp_path / ("x" * 300)  # for root, too: nobody can look there
    monkeypatch.setattr(settings, "DEFAULT_FILE", tmp_path / closed.name)
    assert cli.place(None, None, None).path.name == "tokens.json"
    monkeypatch.setattr(InstallPaths, "of", lambda **_: replace(OF_ROOT, config=closed))
    for arguments in (("list",), ("create", "--name", "a"), ("revoke", "a")):
        done = run(closed / "tokens.json", *arguments)
        assert (done.exit_code, done.stderr.count("\n")) == (1, 1), done.exception
        assert done.stderr.endswith("tokens.json cannot be read or written: File name too long\n")


OF_ROOT = InstallPaths.of(user=False)
