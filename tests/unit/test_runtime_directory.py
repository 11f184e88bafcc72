"""The runtime directory: whose it is, its lock, its end."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from structlog.testing import capture_logs

from pwgrid.common.errors import AlreadyRunning
from pwgrid.registry.records import SessionRecord, WorkerRecord, worker_of
from pwgrid.runtime import directory
from pwgrid.runtime.directory import (
    MAX_SOCKET_PATH_BYTES,
    RuntimeDir,
    RuntimeDirError,
    base_dir,
    default_base,
    worker_dir,
)
from pwgrid.runtime.find_grids import find_running
from pwgrid.runtime.process_identity import KILL_S, create_time
from tests.support.disk import nothing_can_be_written


@pytest.fixture
def base(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A short path of our own that is also the temp directory, so that no other grid is seen."""
    with tempfile.TemporaryDirectory(prefix="pg-", dir="/tmp") as temporary:
        monkeypatch.setenv("TMPDIR", temporary)
        monkeypatch.delenv("RUNTIME_DIRECTORY", raising=False)
        yield Path(temporary) / "base"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_everything_is_private_and_everything_goes_at_the_end(base: Path) -> None:
    runtime = RuntimeDir.create(str(base), 8080)
    assert not base.exists()
    with runtime.locked("ws://127.0.0.1:8080"):
        worker = runtime.make_worker_dir("a1b2c3d4")
        assert runtime.directory == base / "8080"
        assert worker == base / "8080" / "w" / "a1b2c3d4"
        paths = [base, runtime.directory, runtime.directory / "w", worker, worker / "tmp"]
        assert [mode(path) for path in paths] == [0o700] * 5
        assert mode(runtime.directory / "lock") == 0o600
    assert not base.exists()


NO_IDS = ["", ".", "..", "../../evil", "a/b", "/etc", "a\0", "a.b", "-a", "a\n", " a", "a,b", "ü", "a" * 65]
"""What whoever can write to Redis might call a worker."""


@pytest.mark.parametrize("text", NO_IDS)
def test_what_is_no_worker_s_id_becomes_part_of_no_path(base: Path, text: str) -> None:
    with pytest.raises(ValueError, match="is no worker's id"):
        worker_dir(base, text)
    with RuntimeDir.create(str(base), 8080).locked("") as runtime:
        for use in (runtime.make_worker_dir, runtime.remove_worker_dir):
            with pytest.raises(ValueError, match="is no worker's id"):
                use(text)
    assert WorkerRecord.read(f"chromium:{text}", {}).worker_id == ""
    assert SessionRecord.read("s", {"workerId": text}).worker_id == ""
    assert worker_of(f"ws://host:8080/playwright/chromium/{text}.secret") in ("", "a", "b", "etc", "evil")


@pytest.mark.parametrize("text", ["a1b2c3d4", "w1", "pod-7_x", "A"])
def test_a_worker_s_directory_is_named_by_its_id(base: Path, text: str) -> None:
    assert worker_dir(base, text) == base / "w" / text
    assert worker_of(f"ws://host:8080/playwright/chromium/{text}.secret") == text


def test_a_base_that_was_there_before_stays(base: Path) -> None:
    base.mkdir(mode=0o700)
    with RuntimeDir.create(str(base), 8080).locked(""):
        pass
    assert list(base.iterdir()) == []


def test_the_default_base_goes_when_the_last_grid_leaves_it(base: Path) -> None:
    first, second = RuntimeDir.create(None, 1), RuntimeDir.create(None, 2)
    with first.locked(""):
        with second.locked(""):
            assert sorted(path.name for path in default_base().iterdir()) == ["1", "2"]
        assert default_base().exists()
    assert not default_base().exists()


def test_a_second_master_is_told_the_pid_of_the_first(base: Path) -> None:
    with RuntimeDir.create(str(base), 8080).locked("ws://127.0.0.1:8080") as first:
        with pytest.raises(AlreadyRunning) as refused, RuntimeDir.create(str(base), 8080).locked(""):
            pass
        assert refused.value.pid == os.getpid()
        assert str(os.getpid()) in str(refused.value)
        assert (first.directory / "lock").exists()
        assert [grid.pid for grid in find_running(str(base))] == [os.getpid()]


def test_the_lock_holds_against_another_process_and_ends_with_its_holder(base: Path) -> None:
    script = (
        "import sys; from pwgrid.runtime.directory import RuntimeDir\n"
        "with RuntimeDir.create(sys.argv[1], 8080).locked('ws://x:8080'):\n"
        "    print('locked', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(base)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "locked\n"
        (grid,) = find_running(str(base))
        assert (grid.pid, grid.port, grid.endpoint) == (holder.pid, 8080, "ws://x:8080")
        with pytest.raises(AlreadyRunning, match=str(holder.pid)), RuntimeDir.create(str(base), 8080).locked(""):
            pass
        holder.kill()
        holder.wait()
    assert find_running(str(base)) == []
    with RuntimeDir.create(str(base), 8080).locked("ws://y:8080"):
        assert [grid.endpoint for grid in find_running(str(base))] == ["ws://y:8080"]


def test_nothing_of_a_living_grid_is_removed_for_its_age(base: Path, tmp_path: Path) -> None:
    program = shutil.which("systemd-tmpfiles")
    if program is None:
        pytest.skip("there is no systemd-tmpfiles here")
    rule = tmp_path / "rule"
    rule.write_text(f"d {base.parent} - - - 1us\n")

    def remove_what_is_old() -> None:
        removed = subprocess.run([program, "--clean", rule], capture_output=True, text=True, check=False)
        assert (removed.returncode, removed.stderr) == (0, "")

    with RuntimeDir.create(str(base), 8080).locked("") as runtime:
        worker = runtime.make_worker_dir("a1b2c3d4")
        remove_what_is_old()
        assert (worker / "tmp").exists()
        runtime.keep()
    remove_what_is_old()
    assert not base.exists()


def may_be_aged(path: Path) -> bool:
    """What systemd-tmpfiles asks of each directory."""
    code = "import fcntl, os, sys; fcntl.flock(os.open(sys.argv[1], os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB)"
    asked = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=False)
    assert asked.returncode == 0 or "BlockingIOError" in asked.stderr
    return asked.returncode == 0


def test_a_master_keeps_its_directories_from_ageing_also_as_new_code(base: Path) -> None:
    first = RuntimeDir.create(str(base), 8080)
    with first.locked(""):
        with RuntimeDir.create(str(base), 8081).locked(""):
            assert not may_be_aged(base)
        assert not may_be_aged(first.directory)
        first.keep()
        lock_fd = os.dup(first.lock_fd)
    assert may_be_aged(base)
    assert may_be_aged(first.directory)
    again = RuntimeDir.create(str(base), 8080)
    with again.locked("", lock_fd):
        assert not may_be_aged(base)
        assert not may_be_aged(again.directory)
        again.remove_at_end()


def test_what_a_former_run_left_is_removed_and_nothing_else(base: Path) -> None:
    left = base / "8080"
    (left / "w" / "a1b2c3d4" / "tmp").mkdir(parents=True, mode=0o700)
    (left / "redis").mkdir()
    base.chmod(0o700)
    left.chmod(0o700)
    outside = base / "outside"
    outside.mkdir()
    (outside / "keep").touch()
    (left / "link").symlink_to(outside)
    with socket.socket(socket.AF_UNIX) as control:
        control.bind(str(left / "control.sock"))
    with RuntimeDir.create(str(base), 8080).locked("") as runtime:
        runtime.remove_all_but([])
        assert [path.name for path in runtime.directory.iterdir()] == ["lock"]
    assert (outside / "keep").exists()


@pytest.mark.parametrize(("kept", "said"), [(["redis"], []), ([], [["redis"]])])
def test_a_planned_restart_finds_only_its_predecessor_s_socket_and_has_nothing_to_say(
    base: Path, kept: list[str], said: list[list[str]]
) -> None:
    left = base / "8080"
    (left / "redis").mkdir(parents=True, mode=0o700)
    base.chmod(0o700)
    left.chmod(0o700)
    with socket.socket(socket.AF_UNIX) as control:
        control.bind(str(left / "control.sock"))
    with capture_logs() as logs, RuntimeDir.create(str(base), 8080).locked("") as runtime:
        runtime.remove_all_but(kept)
        assert {path.name for path in runtime.directory.iterdir()} == {"lock", *kept}
    assert [each["removed"] for each in logs if each["event"] == "stale_runtime_removed"] == said


def test_what_lives_on_stays_if_a_start_is_interrupted_and_goes_once_it_is_taken_over(base: Path) -> None:
    (base / "8080" / "redis").mkdir(parents=True, mode=0o700)
    base.chmod(0o700)
    (base / "8080").chmod(0o700)

    with pytest.raises(KeyboardInterrupt), RuntimeDir.create(str(base), 8080).locked(""):
        raise KeyboardInterrupt
    with RuntimeDir.create(str(base), 8080).locked("") as runtime:
        runtime.remove_all_but(["redis"])
    assert (base / "8080" / "redis").exists()
    with RuntimeDir.create(str(base), 8080).locked("") as runtime:
        runtime.remove_all_but(["redis"])
        runtime.remove_at_end()
    assert not (base / "8080").exists()


def test_the_last_child_of_a_dead_master_leaves_a_new_master_s_directory_alone(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead, waits, found = RuntimeDir.create(str(base), 8080), threading.Event(), []
    holder_of = directory._holder_of

    def holder_of_seen(path: Path) -> directory.LockContent | None:
        waits.set()
        return holder_of(path)

    def last_child() -> None:
        with directory.locked_without_master(dead.directory) as locked:
            found.append(locked)

    dead.directory.mkdir(mode=0o700, parents=True)
    base.chmod(0o700)
    lock = dead.directory / "lock"
    monkeypatch.setattr(directory, "_holder_of", holder_of_seen)
    with lock.open("w") as other_child:
        fcntl.flock(other_child, fcntl.LOCK_EX)
        thread = threading.Thread(target=last_child)
        thread.start()
        assert waits.wait(10)
        lock.unlink()
        with RuntimeDir.create(str(base), 8080).locked("ws://127.0.0.1:8080") as master:
            worker = master.make_worker_dir("a1b2c3d4")
            other_child.close()
            thread.join(10)
            assert (found, worker.exists(), lock.exists()) == ([None], True, True)


@pytest.mark.parametrize("ends", [True, False])
def test_a_new_master_waits_until_the_last_child_of_a_dead_one_has_ended_a_frozen_redis(
    base: Path, monkeypatch: pytest.MonkeyPatch, *, ends: bool
) -> None:
    """The clock is one that goes on while somebody waits, and then alone."""
    clock = [0.0]
    runtime = RuntimeDir.create(str(base), 8080)
    runtime.directory.mkdir(mode=0o700, parents=True)
    base.chmod(0o700)
    with (runtime.directory / "lock").open("w") as last_child:
        fcntl.flock(last_child, fcntl.LOCK_EX)

        def poll(wait_ms: float) -> None:
            clock[0] += wait_ms / 1000
            if ends and clock[0] >= directory.REDIS_S + KILL_S:
                last_child.close()

        waits = SimpleNamespace(poll=lambda: SimpleNamespace(poll=poll))
        monkeypatch.setattr(directory, "select", waits)
        monkeypatch.setattr(directory, "time", SimpleNamespace(monotonic=lambda: clock[0]))
        if ends:
            with runtime.locked(""):
                pass
        else:
            with pytest.raises(AlreadyRunning) as refused, runtime.locked(""):
                pass
            assert refused.value.pid is None


def test_a_reused_pid_is_no_running_grid(base: Path) -> None:
    (base / "8080").mkdir(parents=True)
    created = create_time(os.getpid())
    assert created is not None
    lock = base / "8080" / "lock"
    lock.write_text(json.dumps({"pid": os.getpid(), "createTime": created - 1, "endpoint": "ws://x"}))
    assert find_running(str(base)) == []
    lock.write_text(json.dumps({"pid": os.getpid(), "createTime": created, "endpoint": "ws://x"}))
    assert len(find_running(str(base))) == 1


@pytest.mark.parametrize(
    "content", ["", "{}", "[1]", "null", '{"pid": "x"}', "\x00", '{"pid": -1, "createTime": 1, "endpoint": ""}']
)
def test_a_broken_lock_file_is_no_running_grid(base: Path, content: str) -> None:
    (base / "8080").mkdir(parents=True)
    (base / "8080" / "lock").write_text(content)
    assert find_running(str(base)) == []


@pytest.mark.parametrize("make", [os.mkfifo, lambda lock: lock.symlink_to("/etc/hostname"), os.mkdir])
def test_a_lock_that_is_no_plain_file_is_no_running_grid_and_waits_for_nobody(
    base: Path, make: Callable[[Path], object]
) -> None:
    (base / "8080").mkdir(parents=True, mode=0o700)
    base.chmod(0o700)
    make(base / "8080" / "lock")
    assert find_running(str(base)) == []
    with pytest.raises(RuntimeDirError), RuntimeDir.create(str(base), 8080).locked(""):
        pass


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")
def test_a_lock_of_somebody_else_than_its_directory_s_owner_is_no_running_grid(base: Path) -> None:
    with RuntimeDir.create(str(base), 8080).locked("") as runtime:
        assert len(find_running(str(base))) == 1
        os.chown(runtime.directory / "lock", 12345, 12345)
        assert find_running(str(base)) == []


def test_a_directory_that_others_can_read_is_refused(base: Path) -> None:
    (base / "8080").mkdir(parents=True)
    base.chmod(0o700)
    (base / "8080").chmod(0o755)
    with pytest.raises(RuntimeDirError, match="0755"), RuntimeDir.create(str(base), 8080).locked(""):
        pass


def test_a_base_that_others_can_write_is_refused(base: Path) -> None:
    base.mkdir()
    base.chmod(0o777)
    with pytest.raises(RuntimeDirError, match="0777"), RuntimeDir.create(str(base), 8080).locked(""):
        pass


def test_a_link_in_the_place_of_the_base_is_refused(base: Path) -> None:
    (base.parent / "elsewhere").mkdir(mode=0o700)
    base.symlink_to(base.parent / "elsewhere")
    with pytest.raises(RuntimeDirError, match="not a directory"), RuntimeDir.create(str(base), 8080).locked(""):
        pass


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a directory away")
def test_a_directory_of_somebody_else_is_refused(base: Path) -> None:
    base.mkdir(mode=0o700)
    os.chown(base, 12345, 12345)
    with pytest.raises(RuntimeDirError, match="12345"), RuntimeDir.create(str(base), 8080).locked(""):
        pass


def test_a_path_too_long_for_sockets_is_refused_before_anything_is_made(base: Path) -> None:
    with pytest.raises(RuntimeDirError, match="PWGRID_RUNTIME_DIR"):
        RuntimeDir.create(str(base / ("x" * MAX_SOCKET_PATH_BYTES)), 8080)
    assert not base.exists()


def test_the_longest_path_that_is_accepted_does_for_a_socket(base: Path) -> None:
    room = MAX_SOCKET_PATH_BYTES - len(str(base / "8080" / "w" / "a1b2c3d4" / "handoff.sock")) - 1
    with RuntimeDir.create(str(base / ("x" * room)), 8080).locked("") as runtime:
        path = runtime.make_worker_dir("a1b2c3d4") / "handoff.sock"
        assert len(str(path)) == MAX_SOCKET_PATH_BYTES
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as handoff:
            handoff.bind(str(path))
    with pytest.raises(RuntimeDirError):
        RuntimeDir.create(str(base / ("x" * (room + 1))), 8080)


def test_the_base_is_the_setting_s_else_systemd_s_else_in_the_temp_directory(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert base_dir() == base.parent / f"pwgrid-{os.getuid()}"
    monkeypatch.setenv("RUNTIME_DIRECTORY", "/run/pwgrid:/run/other")
    assert base_dir() == Path("/run/pwgrid")
    assert base_dir("/srv/grid") == Path("/srv/grid")


def test_a_temp_directory_that_is_not_there_is_passed_over(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(base / "gone"))
    monkeypatch.setenv("TEMP", str(base.parent))
    assert default_base() == base.parent / f"pwgrid-{os.getuid()}"
    monkeypatch.delenv("TEMP")
    monkeypatch.delenv("TMP", raising=False)
    assert default_base() == Path(f"/tmp/pwgrid-{os.getuid()}")


def test_the_link_that_systemd_makes_for_a_dynamic_user_is_followed(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """/run/pwgrid -> private/pwgrid; only the service manager sets RUNTIME_DIRECTORY, and only root writes in /run."""
    private = base.parent / "private"
    private.mkdir(mode=0o700)
    base.symlink_to(private)
    monkeypatch.setenv("RUNTIME_DIRECTORY", str(base))
    monkeypatch.setattr("pwgrid.runtime.find_grids.SERVICE_BASE", base)
    with RuntimeDir.create(None, 8080).locked("ws://127.0.0.1:8080") as runtime:
        assert runtime.directory == private / "8080"
        assert [grid.directory for grid in find_running()] == [private / "8080"]


def test_a_directory_that_cannot_be_written_is_an_error_with_a_sentence_and_does_not_stay(base: Path) -> None:
    runtime = RuntimeDir.create(str(base), 8080)
    sentence = f"cannot write into the runtime directory {base}/8080: File too large"
    with nothing_can_be_written(), pytest.raises(RuntimeDirError, match=sentence), runtime.locked(""):
        pytest.fail("it is not locked")
    assert not base.exists()
    with runtime.locked(""):  # another try meets nothing of it
        pass


def test_where_it_cannot_be_written_what_an_earlier_master_s_children_have_there_stays(base: Path) -> None:
    runtime = RuntimeDir.create(str(base), 8080)
    with runtime.locked("ws://127.0.0.1:8080"):
        runtime.make_worker_dir("a1b2c3d4")
        runtime.leave(600, 60)
    before = (runtime.directory / "lock").read_bytes()
    with nothing_can_be_written(), pytest.raises(RuntimeDirError), RuntimeDir.create(str(base), 8080).locked(""):
        pytest.fail("it is not locked")
    assert (runtime.directory / "w/a1b2c3d4/tmp").is_dir()
    assert (runtime.directory / "lock").read_bytes() == before  # `pwgrid status` still knows since when
    with RuntimeDir.create(str(base), 8080).locked(""):
        pass
