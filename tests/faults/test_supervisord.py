"""config/supervisord.conf under a real supervisord, with live sessions and clients that connect all the time."""

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Error, Playwright

from pwgrid.cli.questions import DEGRADED
from tests.conftest import need
from tests.support.grid import NEVER, ROOT, eventually, eventually_async, free_port, processes_marked
from tests.support.load import under_load

SUPERVISORD = """
[unix_http_server]
file={directory}/sock
[supervisord]
logfile={directory}/supervisord.log
pidfile={directory}/pid
nodaemon=true
silent=true
[rpcinterface:supervisor]
supervisor.rpcinterface_factory=supervisor.rpcinterface:make_main_rpcinterface
[supervisorctl]
serverurl=unix://{directory}/sock
[include]
files={directory}/pwgrid.conf
"""
PATHS = {"/opt/pwgrid/.venv/bin/pwgrid": f"{sys.executable} -m pwgrid", "/var/log/pwgrid": "{directory}"}


class Supervised:
    """The program as it is shipped, but for the paths. Every process carries the directory in its environment."""

    def __init__(self, directory: Path, **environment: str) -> None:
        self.directory = directory
        port = free_port()
        self.endpoint = f"ws://127.0.0.1:{port}"
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("PWGRID")},
            "TMPDIR": str(directory),
            "PWGRID_PORT": str(port),
            "CHROMIUM_WORKERS": "2",
            "MAX_LIFETIME_SESSIONS": NEVER,
            "PYTHONPATH": str(ROOT),
            **environment,
        }
        program = (ROOT / "config" / "supervisord.conf").read_text()
        for shipped, here in PATHS.items():
            assert shipped in program
            program = program.replace(shipped, here.format(directory=directory))
        (directory / "pwgrid.conf").write_text(program)
        (directory / "supervisord.conf").write_text(SUPERVISORD.format(directory=directory))
        self.process = self._start("supervisor.supervisord")

    def _start(self, module: str, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", module, "-c", str(self.directory / "supervisord.conf"), *arguments],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def ctl(self, *arguments: str) -> str:
        """`supervisorctl ARGUMENTS`: what it printed. Its exit code mixes success with the state of the program."""
        with self._start("supervisor.supervisorctl", *arguments) as done:
            return done.communicate(timeout=60)[0]

    def state(self) -> str:
        """What supervisord takes the program for, and perhaps its pid."""
        return " ".join(self.ctl("status", "pwgrid").split()[1:4]).rstrip(",")

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """`pwgrid ARGUMENTS`."""
        return subprocess.run(
            [sys.executable, "-m", "pwgrid", *arguments],
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )

    def status(self) -> dict[str, Any]:
        """`pwgrid status --json`."""
        done = self.command("status", "--json")
        if done.returncode != DEGRADED:
            done.check_returncode()
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def runs_with(self, workers: dict[str, int]) -> bool:
        """Whether the master has these workers. RUNNING alone means that it has not ended for some seconds."""
        with contextlib.suppress(subprocess.CalledProcessError):
            return self.state().startswith("RUNNING") and self.available() == workers
        return False

    def available(self) -> dict[str, int]:
        """The workers that serve."""
        return {each["id"]: each["pid"] for each in self.status()["workers"] if each["status"] == "available"}

    def output(self) -> str:
        return "".join(path.read_text(errors="replace") for path in sorted(self.directory.glob("*.log")))

    def close(self) -> None:
        """Ends supervisord, and all that a failed test has left."""
        self.process.terminate()
        self.process.communicate(timeout=60)
        while left := processes_marked(str(self.directory)):
            for pid in left:
                os.kill(pid, signal.SIGKILL)


@pytest.fixture
def supervised(request: pytest.FixtureRequest) -> Iterator[Supervised]:
    need("chromium")
    with tempfile.TemporaryDirectory(prefix="pg-sv-", dir="/tmp") as directory:
        supervised = Supervised(Path(directory), **getattr(request, "param", {}))
        try:
            eventually(lambda: supervised.state().startswith("RUNNING"), "the program runs", 60)
            eventually(lambda: "grid_ready" in supervised.output(), "the grid is ready", 60)
            yield supervised
        except BaseException as error:
            error.add_note(supervised.output())
            raise
        finally:
            supervised.close()


@pytest.mark.parametrize("supervised", [{"DETACH_GRACE": "120"}], indirect=True)  # a busy machine takes its time
async def test_supervisord_restarts_and_revives_the_grid_without_losing_a_session(
    supervised: Supervised, playwright: Playwright
) -> None:
    assert len(supervised.available()) == 2
    async with under_load(supervised, playwright) as load:
        workers, proxy, state = supervised.available(), supervised.status()["proxy"]["pid"], supervised.state()

        said = await asyncio.to_thread(supervised.ctl, "restart", "pwgrid")
        assert said.split() == ["pwgrid:", "stopped", "pwgrid:", "started"]
        await load.goes_on()
        await eventually_async(lambda: supervised.runs_with(workers), "the new master has taken over")
        restarted = supervised.state()
        assert restarted != state
        # A session of 25 s goes on, and so does every new one.
        await load.goes_on(beats=120)
        assert supervised.available() == workers

        os.kill(supervised.status()["master"]["pid"], signal.SIGKILL)
        await eventually_async(
            lambda: supervised.runs_with(workers) and supervised.state() != restarted, "it is started again"
        )
        await load.goes_on()
        assert supervised.status()["proxy"]["pid"] == proxy
    assert (load.lost, load.refused) == ({}, [])

    # The end of the grid is not a reason to start it again.
    supervised.ctl("signal", "TERM", "pwgrid")
    await eventually_async(lambda: supervised.state().startswith("EXITED"), "the grid has drained and ended")
    left = processes_marked(str(supervised.directory))
    assert left.keys() == {supervised.process.pid}
    assert not list(supervised.directory.glob("pwgrid-*"))


@pytest.mark.parametrize("supervised", [{"DETACH_GRACE": "1", "DRAIN_TIMEOUT": "4"}], indirect=True)
async def test_a_stop_by_supervisord_refuses_then_drains_and_goes_and_tells_all_of_it(
    supervised: Supervised, playwright: Playwright
) -> None:
    browser = await playwright.chromium.connect(supervised.endpoint)
    page = await browser.new_page()
    ended = asyncio.get_running_loop().create_future()
    browser.on("disconnected", lambda gone: ended.set_result(gone))

    said = await asyncio.to_thread(supervised.ctl, "stop", "pwgrid")
    assert said.split() == ["pwgrid:", "stopped"]
    status = supervised.command("status")
    assert status.returncode == 3
    assert re.search(r"no master  detached since \d\d:\d\d:\d\d, .*ends in \d s at the latest", status.stdout), status

    refusal = await refused(playwright, supervised.endpoint)
    assert "503" in refusal
    assert "the grid is shutting down" in refusal
    assert await page.evaluate("6 * 7") == 42  # who came before goes on
    await ended
    await eventually_async(
        lambda: processes_marked(str(supervised.directory)).keys() == {supervised.process.pid}, "all is gone"
    )
    assert not list(supervised.directory.glob("pwgrid-*"))
    tail = supervised.ctl("tail", "-100000", "pwgrid")
    events = [json.loads(line)["event"] for line in tail.splitlines() if line.startswith("{")]
    told = ["detached", "no_master_after_detach", "worker_draining", "sessions_cut", "grid_ended_without_master"]
    assert [event for event in dict.fromkeys(events) if event in told] == told
    assert events[-1] == "grid_ended_without_master"


async def refused(playwright: Playwright, endpoint: str) -> str:
    """What the first client hears that is not let in any more."""
    while True:
        try:
            await (await playwright.chromium.connect(endpoint)).close()
        except Error as error:
            return str(error)
