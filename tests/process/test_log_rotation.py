"""The shipped rule for logrotate, by a real logrotate, on a log to which processes of a grid append."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pwgrid.cli.install.installation import Service
from pwgrid.cli.install.supervisord import rotation
from pwgrid.common.paths import resource_dir
from tests.support.grid import ROOT, WITHOUT_SPARES, eventually, running_grid

# A master and a child of it: each logs a line whenever it is told to.
WRITERS = """
import os, sys, structlog
from pwgrid.common import log
log.append_to(sys.argv[1])
log.configure("info", "json", "master")
role = "worker" if os.fork() == 0 else "master"
log.configure("info", "json", role)
fd = int(sys.argv[2] if role == "worker" else sys.argv[3])
done = int(sys.argv[4])
while os.read(fd, 1):
    structlog.get_logger().info("said", number=1)
    os.write(done, b".")
"""


def logrotate() -> str:
    found = shutil.which("logrotate", path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
    if found is None:
        pytest.skip("logrotate is not installed")
    return found


def test_every_process_goes_on_in_the_rotated_log_and_no_line_is_torn(tmp_path: Path) -> None:
    program, log_file = logrotate(), tmp_path / "grid.log"
    tmp_path.chmod(0o750)
    user = ""
    config = tmp_path / "rule"
    about = Service(("pwgrid",), "::", 1, tmp_path, None, None, user, log=log_file)
    config.write_text(rotation((resource_dir("config") / "logrotate.conf").read_text(), about))
    config.chmod(0o600)
    pipes = [os.pipe() for _ in range(3)]
    (worker_in, worker), (master_in, master), (done, done_in) = pipes
    argv = [sys.executable, "-c", WRITERS, str(log_file), *map(str, (worker_in, master_in, done_in))]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    writers = subprocess.Popen(argv, pass_fds=(worker_in, master_in, done_in), env=environment)
    for fd in (worker_in, master_in, done_in):
        os.close(fd)

    def say() -> None:
        for fd in (worker, master):
            os.write(fd, b".")
            assert os.read(done, 1) == b"."

    try:
        say()
        argv = [program, "--force", "--state", str(tmp_path / "state"), str(config)]
        rotated = subprocess.run(argv, capture_output=True, text=True, check=False)
        assert (rotated.returncode, rotated.stderr) == (0, "")
        say()
    finally:
        for fd in (worker, master):
            os.close(fd)
        writers.wait()
    assert os.read(done, 1) == b""  # the worker has ended, too
    os.close(done)
    for path in (log_file, tmp_path / "grid.log.1"):
        assert [json.loads(line)["role"] for line in path.read_text().splitlines()] == ["worker", "master"]


def test_a_reload_has_every_process_open_a_renamed_log_anew_also_where_it_is_refused(tmp_path: Path) -> None:
    log, old, file = tmp_path / "grid.log", tmp_path / "grid.log.1", tmp_path / "grid.toml"
    file.write_text("[workers]\nchromium_workers = 1\n")
    environment = {**WITHOUT_SPARES, "LOG_FILE": str(log), "LOG_FORMAT": "json"}
    with running_grid("--config", str(file), environment=environment, fake=True) as grid:

        def logs() -> set[str]:
            status = grid.ask("status")
            pids = (grid.process.pid, status["proxy"]["pid"], *(worker["pid"] for worker in status["workers"]))
            return {os.readlink(f"/proc/{pid}/fd/2") for pid in pids}

        assert logs() == {str(log)}
        log.rename(old)
        written = old.read_bytes()
        assert grid.command("reload").returncode == 0
        eventually(lambda: logs() == {str(log)}, "all have opened it")
        assert old.read_bytes() == written
        assert [json.loads(line)["event"] for line in log.read_text().splitlines()] == ["reloaded"]

        file.write_text("no TOML")
        log.unlink()
        assert grid.command("reload").returncode == 2
        eventually(lambda: logs() == {str(log)}, "all have opened it")

        log.unlink()
        log.mkdir()  # there can be no such file
        assert grid.command("reload").returncode == 2
        assert grid.status()["ready"]
        log.rmdir()


def test_an_upgrade_goes_on_where_the_log_cannot_be_opened(tmp_path: Path) -> None:
    directory = tmp_path / "logs"
    log, old = directory / "grid.log", tmp_path / "old.log"
    directory.mkdir()
    with running_grid(environment={**WITHOUT_SPARES, "LOG_FILE": str(log), "LOG_FORMAT": "json"}, fake=True) as grid:

        def logged(event: str) -> list[str]:
            events = map(json.loads, old.read_text().splitlines())
            return [each["reason"] for each in events if each["event"] == event]

        log.rename(old)
        directory.rmdir()
        about = f"cannot write the log file {log}: No such file or directory; see LOG_FILE"
        upgraded = grid.command("upgrade", "--force")
        assert (upgraded.returncode, grid.process.poll()) == (0, None), upgraded.stderr
        eventually(lambda: about in logged("log_file_not_opened"), "the new code says so, in the log that is open")
        assert grid.status()["ready"]
