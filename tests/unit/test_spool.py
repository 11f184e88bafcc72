"""The file in which a worker leaves what it could not write."""

import errno
import json
from pathlib import Path

import pytest

from pwgrid.common.reasons import EndReason, Reason
from pwgrid.common.session_lifecycle import HeldAs, SessionStatus
from pwgrid.registry.session_update import SessionEnd, SessionUpdate
from pwgrid.registry.spool import read_spool_files, write_spool_file

END = SessionEnd(SessionStatus.COMPLETED, Reason(EndReason.CLIENT_DISCONNECTED), 2.0, 3, 4)
UPDATES = (
    SessionUpdate("a", 1.0, "client", END, {"token": "ci"}),
    SessionUpdate("b"),
    SessionUpdate("c", 1.0, client_fields={"token": "ci"}, kind=HeldAs.LEASE),
    SessionUpdate("d", 1.0, lease_id="c"),
)


def test_what_is_left_is_found_until_it_is_removed(tmp_path: Path) -> None:
    write_spool_file(tmp_path, "chromium", "0000000a", UPDATES)
    write_spool_file(tmp_path, "firefox", "0000000b", ())
    first, second = read_spool_files(tmp_path)
    assert (first.browser_type, first.worker_id, first.updates) == ("chromium", "0000000a", UPDATES)
    assert (second.browser_type, second.worker_id, second.updates) == ("firefox", "0000000b", ())
    for spooled in (first, second):
        spooled.remove()
        spooled.remove()
    assert list(tmp_path.iterdir()) == []


def test_a_file_of_a_worker_with_other_code_is_read(tmp_path: Path) -> None:
    """During an upgrade, and back. This is the form that all versions have."""
    file = tmp_path / "unwritten" / "0000000a.json"
    file.parent.mkdir()
    text = """{"browserType":"chromium","workerId":"0000000a","entries":[
        {"session_id":"a","started_at":1.0,"client":"client","end":{"status":"completed",
        "reason":{"kind":"client disconnected","detail":"","signal":"","note":""},
        "at":2.0,"bytes_in":3,"bytes_out":4,"drain_at":null},"client_fields":{"token":"ci"},"kind":"session","lease_id":""},
        {"session_id":"b","started_at":null,"client":"","end":null,"client_fields":{},"kind":"session","lease_id":""},
        {"session_id":"c","started_at":1.0,"client":"","end":null,"client_fields":{"token":"ci"},"kind":"lease","lease_id":""},
        {"session_id":"d","started_at":1.0,"client":"","end":null,"client_fields":{},"kind":"session","lease_id":"c"}]}"""
    file.write_text(text)
    (found,) = read_spool_files(tmp_path)
    assert (found.browser_type, found.worker_id, found.updates) == ("chromium", "0000000a", UPDATES)
    write_spool_file(tmp_path, "chromium", "0000000a", UPDATES)
    assert json.loads(file.read_bytes()) == json.loads(text)


def test_in_a_grid_that_nobody_has_left_nothing_is_found(tmp_path: Path) -> None:
    assert list(read_spool_files(tmp_path)) == []


def test_what_is_not_finished_is_not_found(tmp_path: Path) -> None:
    write_spool_file(tmp_path, "chromium", "0000000a", UPDATES)
    (found,) = read_spool_files(tmp_path)
    found.path.rename(found.path.with_name(f".{found.path.name}.x1y2z3"))
    assert list(read_spool_files(tmp_path)) == []


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"browserType": "opera", "workerId": "a", "entries": []}'])
def test_a_file_that_is_none_of_ours_holds_up_no_other(tmp_path: Path, content: str) -> None:
    write_spool_file(tmp_path, "chromium", "0000000b", UPDATES)
    stray = tmp_path / "unwritten" / "0000000a.json"
    stray.write_text(content)
    (found,) = read_spool_files(tmp_path)
    assert found.worker_id == "0000000b"
    assert not stray.exists()


def test_nor_does_one_that_cannot_be_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read_only(path: Path, **_: bool) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    write_spool_file(tmp_path, "chromium", "0000000b", UPDATES)
    (tmp_path / "unwritten" / "0000000a.json").write_text("")
    monkeypatch.setattr(Path, "unlink", read_only)
    assert [found.worker_id for found in read_spool_files(tmp_path)] == ["0000000b"]


def test_where_there_is_no_room_it_says_so(tmp_path: Path) -> None:
    (tmp_path / "unwritten").write_text("in the way")
    with pytest.raises(OSError):
        write_spool_file(tmp_path, "chromium", "0000000a", UPDATES)


def test_a_file_that_cannot_be_read_for_now_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_spool_file(tmp_path, "chromium", "0000000a", UPDATES)
    with monkeypatch.context() as patch:

        def no_descriptor(path: Path) -> bytes:
            raise OSError(errno.EMFILE, "Too many open files", str(path))

        patch.setattr(Path, "read_bytes", no_descriptor)
        assert list(read_spool_files(tmp_path)) == []
    (found,) = read_spool_files(tmp_path)
    assert found.updates == UPDATES
