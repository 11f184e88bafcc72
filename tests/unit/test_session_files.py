"""Files of sessions that have ended: how long they are kept, and how many."""

import os
from pathlib import Path

import pytest

from pwgrid.proxy.session_files import SessionFiles

NOW = 1_000_000.0


def keep(runtime: Path, session: str, size: int, ended_s_ago: float, worker: str = "0123abcd") -> None:
    directory = runtime / "files" / worker / session
    directory.mkdir(parents=True)
    (directory / "x.txt").write_bytes(bytes(size))
    os.utime(directory, (NOW - ended_s_ago, NOW - ended_s_ago))


def left(runtime: Path) -> list[str]:
    return sorted(each.name for each in runtime.glob("files/*/*"))


def test_files_go_when_their_time_is_over(tmp_path: Path) -> None:
    keep(tmp_path, "a", 10, 59)
    keep(tmp_path, "b", 10, 60)
    files = SessionFiles(tmp_path, 60, 1000)
    files.remove_old(NOW)
    assert left(tmp_path) == ["a"]
    files.remove_old(NOW + 1)
    assert left(tmp_path) == []
    assert not list((tmp_path / "files").iterdir())  # the worker is gone, too


def test_the_oldest_go_first_where_there_is_too_much(tmp_path: Path) -> None:
    for number, worker in enumerate(("0123abcd", "0123abce", "0123abcd")):
        keep(tmp_path, f"{number}", 400, 10 * number, worker)
    SessionFiles(tmp_path, 60, 1000).remove_old(NOW)
    assert left(tmp_path) == ["0", "1"]


def test_a_grid_that_keeps_none_removes_what_another_has_kept(tmp_path: Path) -> None:
    keep(tmp_path, "a", 10, 0)
    SessionFiles(tmp_path, 0, 1000).remove_old(NOW)
    assert left(tmp_path) == []


@pytest.mark.parametrize(
    ("worker", "session", "name"),
    [
        ("0123abcd", "a", "../b/x.txt"),
        ("0123abcd", "a", ".."),
        ("0123abcd", "a", "link"),
        ("0123abcd", "a", "x.txt\0"),
        ("0123abcd", "../0123abcd/a", "x.txt"),
        ("0123abcd", "..", "secret"),
        ("..", "a", "x.txt"),
        ("0123abcd", "none", "x.txt"),
    ],
)
def test_no_name_leads_elsewhere(tmp_path: Path, worker: str, session: str, name: str) -> None:
    keep(tmp_path, "a", 10, 0)
    keep(tmp_path, "b", 10, 0)
    (tmp_path / "files" / "secret").write_text("x")
    (tmp_path / "files/0123abcd/a/link").symlink_to("x.txt")
    files = SessionFiles(tmp_path, 60, 1000)
    with pytest.raises(OSError):
        files.open(worker, session, name)
    assert [each.name for each in files.listed("0123abcd", "a")] == ["x.txt"]


@pytest.mark.parametrize("text", ["../../../../etc", "/etc", "../sessions", "." * 32, "0" * 31])
def test_a_link_that_names_no_directory_of_a_session_is_not_followed(tmp_path: Path, text: str) -> None:
    (tmp_path / "w/0123abcd/files").mkdir(parents=True)
    (tmp_path / "w/0123abcd/sessions").mkdir()
    (tmp_path / "w/0123abcd/files/a").symlink_to(text)
    assert SessionFiles(tmp_path, 60, 1000).listed("0123abcd", "a") == []


def test_a_directory_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "w/0123abcd/files").mkdir(parents=True)
    (tmp_path / "w/0123abcd/sessions").mkdir()
    (tmp_path / "w/0123abcd/files/a").symlink_to("0" * 32)
    (tmp_path / "w/0123abcd/sessions" / ("0" * 32)).symlink_to("/etc")
    assert SessionFiles(tmp_path, 60, 1000).listed("0123abcd", "a") == []
