"""Files that are written whole or not at all: where there is no room, what was there stays, and nothing else."""

import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest
from structlog.testing import capture_logs

from pwgrid.cli import token as tokens
from pwgrid.cli.calibrate import main as calibration
from pwgrid.cli.install.steps import TextFile, make
from pwgrid.common.atomic_write import rewrite, write_whole
from pwgrid.common.errors import GridError
from pwgrid.installed.browsers import SearchPaths, Trial, remember_trial
from pwgrid.registry.spool import write_spool_file
from pwgrid.runtime.child_files import ChildState
from pwgrid.settings.model import Settings
from pwgrid.tokens.tokens import Role
from tests.support.disk import nothing_can_be_written
from tests.unit.test_leases import Worker

Write = Callable[[Path, str], None]
"""Writes something into a directory: other content for another word."""


def child_file(directory: Path, word: str) -> None:
    ChildState("redis", "redis", 1, 0.0, "", word, "", 0.0, 0.0).write(directory)


def spool_file(directory: Path, word: str) -> None:
    write_spool_file(directory, "firefox" if word == "second" else "chromium", "0000000a", ())


def trials(directory: Path, word: str) -> None:
    places = SearchPaths(trials_file=directory / "trials.json")
    remember_trial(sys.executable, Settings(), places, Trial(word))


def configuration(directory: Path, word: str) -> None:
    calibration.write(directory / "grid.toml", {"chromium_workers": len(word)})


def installed_file(directory: Path, word: str) -> None:
    make(TextFile(directory / "pwgrid.service", word))


def token_file(directory: Path, word: str) -> None:
    tokens.create(tokens.Place(directory / "tokens.json"), word, Role.CLIENT, 0, ())


WRITES: Final = [child_file, spool_file, trials, configuration, installed_file, token_file]


def found(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


@pytest.mark.parametrize("write", WRITES)
def test_without_room_what_was_there_stays_and_nothing_else(tmp_path: Path, write: Write) -> None:
    with nothing_can_be_written(), pytest.raises((OSError, GridError), match="File too large"):
        write(tmp_path, "zeroth")
    assert found(tmp_path) == {}
    write(tmp_path, "first")
    (before,) = found(tmp_path).items()
    with nothing_can_be_written(), pytest.raises((OSError, GridError), match="File too large"):
        write(tmp_path, "second")
    assert found(tmp_path) == dict([before])
    write(tmp_path, "second")
    (after,) = found(tmp_path).items()
    assert (after[0], after[1] != before[1]) == (before[0], True)


async def test_without_room_the_leases_of_before_stay_and_nothing_else(tmp_path: Path) -> None:
    worker = Worker(tmp_path)
    worker.borrow("l1")
    before = found(tmp_path)
    with nothing_can_be_written(), capture_logs() as logs:
        worker.borrow("l2")
    assert found(tmp_path) == before
    assert {line["event"] for line in logs} == {"leases_not_written"}


def test_who_is_interrupted_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_paths: object) -> None:
        raise KeyboardInterrupt

    (tmp_path / "a").write_bytes(b"before")
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", interrupted)
        with pytest.raises(KeyboardInterrupt):
            write_whole(tmp_path / "a", b"after")
    assert found(tmp_path) == {"a": b"before"}
    write_whole(tmp_path / "a", b"after")
    assert found(tmp_path) == {"a": b"after"}


def test_a_directory_that_is_gone_does_not_come_back(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_whole(tmp_path / "w" / "worker.json", b"{}")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o644])
def test_a_file_has_its_mode_when_it_is_there_and_is_private_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int
) -> None:
    """Whatever the umask is."""
    modes = []
    replace = os.replace

    def seen(draft: str, path: Path) -> None:
        assert Path(draft).parent == path.parent
        modes.append(stat.S_IMODE(os.stat(draft).st_mode))
        replace(draft, path)

    def written(fd: int, wanted: int) -> None:
        modes.append(stat.S_IMODE(os.fstat(fd).st_mode))
        fchmod(fd, wanted)

    fchmod = os.fchmod
    monkeypatch.setattr(os, "replace", seen)
    monkeypatch.setattr(os, "fchmod", written)
    (tmp_path / "a").touch(0o666)
    before = os.umask(0o077)
    try:
        write_whole(tmp_path / "a", b"secret", mode=mode)
    finally:
        os.umask(before)
    assert modes == [0o600, mode]
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == mode


@pytest.mark.parametrize("durable", [False, True])
def test_only_what_is_durable_waits_for_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durable: bool
) -> None:
    synced = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.fstat(fd).st_size))
    write_whole(tmp_path / "a", b"1234", durable=durable)
    assert synced == [4] * durable


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_file_belongs_to_whom_it_is_for(tmp_path: Path) -> None:
    write_whole(tmp_path / "a", b"", mode=0o640, uid=12345, gid=54321)
    status = (tmp_path / "a").stat()
    assert (status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)) == (12345, 54321, 0o640)
    write_whole(tmp_path / "a", b"")
    assert (tmp_path / "a").stat().st_uid == os.geteuid()


def test_a_file_of_the_user_s_that_is_written_again_keeps_its_mode_and_the_link_to_it(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    file, link = tmp_path / "there" / "a", tmp_path / "link"
    file.write_bytes(b"before")
    file.chmod(0o640)
    link.symlink_to(file)
    rewrite(link, b"after")
    assert (link.is_symlink(), file.read_bytes(), stat.S_IMODE(file.stat().st_mode)) == (True, b"after", 0o640)
    file.unlink()
    rewrite(link, b"anew")
    assert (link.is_symlink(), file.read_bytes(), stat.S_IMODE(file.stat().st_mode)) == (True, b"anew", 0o644)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_file_of_another_user_that_root_writes_again_stays_theirs(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    os.chown(tmp_path / "a", 12345, 54321)
    rewrite(tmp_path / "a", b"")
    status = (tmp_path / "a").stat()
    assert (status.st_uid, status.st_gid) == (12345, 54321)
