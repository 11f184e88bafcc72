"""The token from a file: where it may be, what it may hold, and what is said about one that is no good secret."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from pwgrid.cli.main import main
from pwgrid.common.errors import ConfigError
from pwgrid.settings.load import CREDENTIAL, load
from pwgrid.settings.show_with_sources import described, show

TOKEN = "0123456789abcdef0123456789abcdef"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.touch(mode=0o600)
    path.write_text(f"{TOKEN}\n")
    return path


def test_the_token_comes_from_the_file_by_flag_environment_and_configuration(file: Path, tmp_path: Path) -> None:
    toml = tmp_path / "grid.toml"
    toml.write_text(f"[listener]\ntoken_file = '{file}'")
    for loaded in (
        load(None, {}, {"token_file": str(file)}),
        load(None, {"PWGRID_TOKEN_FILE": str(file)}, {}),
        load(toml, {}, {}),
    ):
        assert loaded.settings.token.get_secret_value() == TOKEN
        assert loaded.sources["token"] == f"token_file {file}"
        assert loaded.warnings == ()
        assert TOKEN not in show(described(loaded.settings, loaded.sources))


def test_a_listener_for_other_hosts_needs_no_other_token(file: Path) -> None:
    assert load(None, {"PWGRID_HOST": "0.0.0.0", "PWGRID_TOKEN_FILE": str(file)}, {}).settings.host == "0.0.0.0"


def test_a_reload_reads_the_file_again(file: Path) -> None:
    loaded = load(None, {"PWGRID_TOKEN_FILE": str(file)}, {})
    file.write_text(TOKEN[::-1])
    assert loaded.again().settings.token.get_secret_value() == TOKEN[::-1]


def test_systemd_s_credential_is_the_token_where_nothing_else_names_one(tmp_path: Path, file: Path) -> None:
    environ = {"CREDENTIALS_DIRECTORY": str(tmp_path)}
    assert load(None, environ, {}).settings.token.get_secret_value() == ""
    (tmp_path / CREDENTIAL).write_text("f" * 32)
    loaded = load(None, environ, {})
    assert loaded.settings.token.get_secret_value() == "f" * 32
    assert loaded.sources["token_file"] == f"systemd's credential {CREDENTIAL}"
    assert load(None, {**environ, "PWGRID_TOKEN": TOKEN}, {}).settings.token.get_secret_value() == TOKEN
    assert load(None, environ, {"token_file": str(file)}).settings.token.get_secret_value() == TOKEN


def test_a_credential_that_may_not_be_looked_at_is_refused_and_no_reason_to_do_without(tmp_path: Path) -> None:
    unsearchable = str(tmp_path / ("x" * 300))  # for root, too: no directory has such a name
    with pytest.raises(ConfigError, match=r"token_file: .*cannot be read: File name too long"):
        load(None, {"CREDENTIALS_DIRECTORY": unsearchable}, {})


@pytest.mark.parametrize(
    ("make", "fault"),
    [
        (lambda path: None, "cannot be read: No such file"),
        (os.mkfifo, "must be a plain file"),
        (os.mkdir, "must be a plain file"),
        (lambda path: path.symlink_to("/dev/zero"), "must be a plain file"),
        (lambda path: path.write_text(" \n"), "is empty"),
        (lambda path: path.write_text("a" * 4097), "at most 4096 bytes"),
        (lambda path: path.write_bytes(b"\xff\xfe"), "is not UTF-8"),
        (lambda path: path.write_text("two words"), "must be visible ASCII"),
        (lambda path: path.write_text(f"{TOKEN}\n{TOKEN}"), "must not contain control characters"),
    ],
)
def test_a_file_that_is_no_secret_is_refused(tmp_path: Path, make: Callable[[Path], object], fault: str) -> None:
    make(tmp_path / "bad")
    with pytest.raises(ConfigError, match=fault) as refused:
        load(None, {"PWGRID_HOST": "0.0.0.0", "PWGRID_TOKEN_FILE": str(tmp_path / "bad")}, {})
    # One fault, and not also that a token is missing; nothing of the file is told.
    assert len(refused.value.violations) == 1
    assert "words" not in str(refused.value)
    assert TOKEN not in str(refused.value)


def test_two_tokens_are_one_too_many(file: Path) -> None:
    with pytest.raises(ConfigError, match=r"token is set, too \(environment PWGRID_TOKEN\)"):
        load(None, {"PWGRID_TOKEN": TOKEN, "PWGRID_TOKEN_FILE": str(file)}, {})


def test_what_makes_a_token_easy_to_get_is_said(file: Path, tmp_path: Path) -> None:
    assert load(None, {"PWGRID_TOKEN": TOKEN[:16]}, {}).warnings == ()
    (short,) = load(None, {"PWGRID_TOKEN": TOKEN[:15]}, {}).warnings
    assert "fewer than 16 characters" in short
    (shown,) = load(None, {}, {"token": TOKEN}).warnings
    assert "shows in ps" in shown
    file.chmod(0o644)
    (readable,) = load(None, {"PWGRID_TOKEN_FILE": str(file)}, {}).warnings
    assert readable == f"everybody on this host can read the token in {file}: chmod o-r {file}"
    toml = tmp_path / "grid.toml"
    toml.write_text(f"[listener]\ntoken = '{TOKEN}'")
    toml.chmod(0o644)
    assert load(toml, {}, {}).warnings == (f"everybody on this host can read the token in {toml}: chmod o-r {toml}",)
    assert load(toml, {"PWGRID_TOKEN": TOKEN}, {}).warnings == ()


def test_config_check_prints_the_warnings() -> None:
    done = CliRunner().invoke(main, ["config", "check", "--token", "short"], env={"PWGRID_CONFIG": None})
    assert done.exit_code == 0
    assert "warning: --token shows in ps" in done.stderr
    assert done.stdout.splitlines()[0] == "the configuration is good"
