"""Relative paths mean files below the directory where a grid was started, whatever becomes of that."""

import os
from pathlib import Path

import pytest

from pwgrid.cli import start_master
from pwgrid.settings.load import load
from pwgrid.settings.start_directory import absolute, note, settle, start_directory


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("grid.toml", "/a/b/grid.toml"),
        ("./grid.toml", "/a/b/grid.toml"),
        ("../grid.toml", "/a/grid.toml"),
        ("./../../../grid.toml", "/grid.toml"),
        ("link/../grid.toml", "/a/b/link/../grid.toml"),
        ("/c/../d", "/c/../d"),
    ],
)
def test_a_path_is_absolute_without_a_look_at_the_directory(path: str, found: str) -> None:
    assert str(absolute(path, Path("/a/b"))) == found


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory."""
    path = tmp_path / "work"
    path.mkdir()
    monkeypatch.chdir(path)
    return path


def test_all_paths_of_a_configuration_are_read_again_after_their_directory_was_removed(work: Path) -> None:
    file, token = work.parent / "grid.toml", work.parent / "token"
    file.write_text("[listener]\ntoken_file = '../token'\n")
    token.write_text("one-good-secret-token")
    loaded = load(Path("../grid.toml"), {"HOME": "/"}, {})
    work.rmdir()
    token.write_text("another-good-secret-token")
    again = loaded.again()
    for each in (loaded, again, again.again()):
        assert each.config_file == file
        assert each.settings.token_file == str(token)
        assert each.tokens_file == work.parent / "tokens.json"
    assert again.settings.token.get_secret_value() == "another-good-secret-token"


def test_a_process_that_executes_itself_and_its_children_know_it_and_nobody_else(work: Path) -> None:
    environ = {
        **{"PATH": f"bin:{os.defpath}::../bin", "TMPDIR": "../tmp", "PLAYWRIGHT_BROWSERS_PATH": "0"},
        **{"XDG_CACHE_HOME": "/x", "PYTHONPATH": "", "SSL_CERT_FILE": "ca.pem"},
    }
    settle(environ)
    up = str(work.parent)
    work.rmdir()
    assert start_directory(environ) == work
    assert environ["PATH"] == f"{work}/bin:{os.defpath}::{up}/bin"
    kept = [
        environ[name]
        for name in ("TMPDIR", "PLAYWRIGHT_BROWSERS_PATH", "XDG_CACHE_HOME", "PYTHONPATH", "SSL_CERT_FILE")
    ]
    assert kept == [f"{up}/tmp", "0", "/x", "", f"{work}/ca.pem"]
    assert start_directory({}) is None
    ((name, about),) = note(work).items()
    _, _, directory = about.partition(" ")
    assert start_directory({name: f"{os.getppid()} {directory}"}) == work
    assert start_directory({name: f"1 {directory}"}) is None
    os.chdir(up)
    assert start_directory({name: f"1 {directory}"}) == work.parent
    settle(environ)
    assert start_directory(environ) == work


def test_a_master_executes_the_script_that_it_was_started_by_wherever_that_was(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["../bin/pwgrid", "serve"])
    monkeypatch.setattr("sys.orig_argv", ["python", "-P", "../bin/pwgrid", "serve", "--config", "x"])
    monkeypatch.setattr("sys.executable", "/python")
    expected = ["/python", "-P", f"{work.parent}/bin/pwgrid", "serve", "--config", "x"]
    assert start_master._own_command() == expected
