"""Files of sessions that have ended: how long they are kept, and how many; what is said where they cannot be read."""

import asyncio
import os
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from pwgrid.proxy import session_files
from pwgrid.proxy.api.file_download import download, listed
from pwgrid.proxy.policy.refusal import Refusal
from pwgrid.proxy.session_files import SessionFiles
from tests.support.descriptors import no_descriptor_is_free

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


# While this process can open nothing more


async def refused(asked: object) -> int:
    with pytest.raises(Refusal) as caught:
        await asked  # type: ignore[misc]
    return caught.value.status


async def test_files_that_cannot_be_read_now_are_not_said_to_be_none(tmp_path: Path) -> None:
    keep(tmp_path, "a", 10, 0)
    live = tmp_path / "w/0123abcd"
    (live / "files").mkdir(parents=True)
    (live / "files/b").symlink_to("0" * 32)
    (live / "sessions" / ("0" * 32)).mkdir(parents=True)
    (live / "sessions" / ("0" * 32) / "x.txt").touch()
    files = SessionFiles(tmp_path, 60, 1000)
    for session in ("a", "b"):
        one = ("0123abcd", session)
        await listed(files, *one)  # a thread that is started now would need a descriptor
        with no_descriptor_is_free():
            statuses = [await refused(listed(files, *one)), await refused(download(files, *one, "x.txt"))]
        assert statuses == [503, 503]
        assert [each.name for each in await listed(files, *one)] == ["x.txt"]
    for name in ("none", "x" * 300):
        assert await refused(download(files, "0123abcd", "a", name)) == 404


async def test_what_is_kept_is_removed_once_a_directory_can_be_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_files, "_INTERVAL_S", 0.01)
    keep(tmp_path, "a", 10, 0)
    await asyncio.to_thread(os.getpid)
    async with asyncio.timeout(30):
        with capture_logs() as logs, no_descriptor_is_free():
            removing = asyncio.create_task(SessionFiles(tmp_path, 60, 1000).keep_removing())
            while not logs and not removing.done():
                await asyncio.sleep(0.01)
        while left(tmp_path) and not removing.done():
            await asyncio.sleep(0.01)
    removing.cancel()
    assert (logs[0]["event"], left(tmp_path)) == ("session_files_not_removed", [])
