"""A grid that `pwgrid install supervisor` puts under a real supervisord, with live sessions and clients that connect
all the time."""

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xmlrpc.client import Fault, ServerProxy

import pytest
from playwright.async_api import Error, Playwright
from supervisor.xmlrpc import SupervisorTransport

from pwgrid.cli.install.installation import listeners_on
from pwgrid.installed.browsers import SearchPaths
from tests.conftest import need
from tests.support.grid import (
    NEVER,
    ROOT,
    RUNNING,
    described,
    eventually,
    eventually_async,
    free_port,
    last_lines,
    processes_marked,
    status_of,
)
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
files=conf.d/*.conf
"""
CONFIG, TOKEN = ".config/pwgrid/grid.toml", ".config/pwgrid/token"


class Supervised:
    """The installed program. Every process carries the directory, which is its user's home, in its environment."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.port = free_port()
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("PWGRID")},
            "TMPDIR": str(directory),
            "HOME": str(directory),
            "PLAYWRIGHT_BROWSERS_PATH": str(SearchPaths().installed),
            "PYTHONPATH": str(ROOT),
        }
        for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME"):
            self.environment.pop(name, None)
        (directory / "conf.d").mkdir()
        self.conf = directory / "supervisord.conf"
        self.conf.write_text(SUPERVISORD.format(directory=directory))
        self.process = self._start("supervisor.supervisord")

    def _start(self, module: str, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", module, "-c", str(self.conf), *arguments],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    @property
    def endpoint(self) -> str:
        return f"ws://127.0.0.1:{self.port}/?token={(self.directory / TOKEN).read_text().strip()}"

    def install(self, *arguments: str) -> str:
        """`pwgrid install supervisor` without root: what it printed."""
        done = self.command("install", "supervisor", "--user", "--conf", str(self.conf), *arguments)
        done.check_returncode()
        return done.stdout

    def configure(self, workers: int, detach_grace_s: int, drain_timeout_s: int) -> None:
        (self.directory / CONFIG).write_text(
            f"[workers]\nchromium_workers = {workers}\nmax_lifetime_sessions = {NEVER}\n"
            f"[lifecycle]\ndetach_grace = {detach_grace_s}\ndrain_timeout = {drain_timeout_s}\n"
        )

    def start(self) -> None:
        """Starts it, if it does not run; returns when it is ready."""
        if self.state()[0] not in ("STARTING", "RUNNING"):
            self.ctl("start", "pwgrid")
        eventually(lambda: self.state()[0] == "RUNNING" and self.status()["ready"], "the grid is ready")

    def ctl(self, *arguments: str) -> str:
        """`supervisorctl ARGUMENTS`: what it printed. Its exit code mixes success with the state of the program."""
        with self._start("supervisor.supervisorctl", *arguments) as done:
            return done.communicate(timeout=60)[0]

    def state(self) -> tuple[str, int]:
        """What supervisord takes the program for, and its pid; asked without a process for the question."""
        transport = SupervisorTransport(None, None, f"unix://{self.directory}/sock")
        with contextlib.closing(transport), contextlib.suppress(Fault):
            found = ServerProxy("http://localhost", transport).supervisor.getProcessInfo("pwgrid")
            return found["statename"], found["pid"]
        return "UNKNOWN", 0

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
        """The master's own view; waits for a master that answers."""
        return status_of(self.directory / f"pwgrid-{os.getuid()}" / str(self.port), self.port, self.endpoint)

    def runs_with(self, workers: dict[str, int]) -> bool:
        """Whether the master has these workers. RUNNING alone means that it has not ended for some seconds."""
        return self.state()[0] == "RUNNING" and self.available() == workers

    def available(self) -> dict[str, int]:
        """The workers that serve."""
        return {each["id"]: each["pid"] for each in self.status()["workers"] if each["status"] == "available"}

    def output(self) -> str:
        return "".join(path.read_text(errors="replace") for path in sorted(self.directory.rglob("*.log")))

    def description(self) -> str:
        """The program as supervisord and its master know it, its processes and the ends of all logs."""
        parts = {
            "supervisord says": lambda: str(self.state()),
            "pwgrid status": lambda: self.command("status").stdout,
            "its processes": lambda: str(processes_marked(str(self.directory))),
            "the logs end with": lambda: last_lines(self.output()),
        }
        return described(f"the program on port {self.port}", parts)

    def close(self) -> None:
        """Ends supervisord, and all that a failed test has left."""
        self.process.terminate()
        self.process.communicate(timeout=60)
        while left := processes_marked(str(self.directory)):
            for pid in left:
                os.kill(pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def supervisord() -> Iterator[Supervised]:
    need("chromium")
    with tempfile.TemporaryDirectory(prefix="pg-sv-", dir="/tmp") as directory:
        supervised = Supervised(Path(directory))
        RUNNING.append(supervised)
        try:
            eventually((Path(directory) / "sock").exists, "supervisord listens")
            yield supervised
        finally:
            RUNNING.remove(supervised)
            supervised.close()


@pytest.fixture
def supervised(supervisord: Supervised) -> Supervised:
    """Installed; what a test has started runs on for the next one."""
    if not (supervisord.directory / CONFIG).exists():
        supervisord.install("--port", str(supervisord.port), "--no-start", "--yes")
    return supervisord


def test_an_installation_shows_first_what_it_will_do_can_be_repeated_and_is_removed_exactly(
    supervisord: Supervised,
) -> None:
    def there() -> set[str]:
        skipped = {"sock", "pid", "supervisord.log"}
        return {str(each.relative_to(supervisord.directory)) for each in supervisord.directory.rglob("*")} - skipped

    before = there()
    port = ("--port", str(supervisord.port))
    shown = supervisord.install(*port, "--dry-run")
    assert there() == before
    for line in ("conf.d/pwgrid.conf (0600)", "[program:pwgrid]", "stopsignal=USR1", "update pwgrid"):
        assert line in shown
    supervisord.install(*port, "--no-start", "--yes")
    rule = ".config/pwgrid/logrotate.conf"
    made = {CONFIG, TOKEN, rule, ".config/pwgrid/installed.json", "conf.d/pwgrid.conf"}
    above = {".config", ".config/pwgrid", ".local", ".local/state", ".local/state/pwgrid"}
    assert there() - before == made | above
    assert "nothing to do" in supervisord.install("--no-start", "--yes")
    assert there() - before == made | above
    supervisord.command("uninstall", "supervisor", "--user", "--yes").check_returncode()
    assert there() == before
    assert "nothing to do" in supervisord.command("uninstall", "supervisor", "--user", "--yes").stdout


def test_a_port_that_is_taken_is_refused_before_anything_is_made(supervisord: Supervised) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = supervisord.command(
            *("install", "supervisor", "--user", "--conf", str(supervisord.conf), "--port", str(port), "--yes")
        )
    assert (done.returncode, done.stdout) == (1, "")
    assert f"cannot listen on 127.0.0.1 port {port}" in done.stderr
    assert not (supervisord.directory / CONFIG).exists()


async def test_supervisord_restarts_and_revives_the_grid_without_losing_a_session(
    supervised: Supervised, playwright: Playwright
) -> None:
    supervised.configure(workers=2, detach_grace_s=120, drain_timeout_s=30)  # a busy machine takes its time
    assert "update pwgrid" in supervised.install("--yes")  # which starts it, and waits
    assert supervised.command("status").returncode == 0
    supervised.start()
    assert len(supervised.available()) == 2
    async with under_load(supervised, playwright, 2) as load:
        workers, proxy, state = supervised.available(), supervised.status()["proxy"]["pid"], supervised.state()

        said = await asyncio.to_thread(supervised.ctl, "restart", "pwgrid")
        assert said.split() == ["pwgrid:", "stopped", "pwgrid:", "started"]
        clicks = list(load.clicks)
        await load.goes_on()
        await eventually_async(lambda: supervised.runs_with(workers), "the new master has taken over")
        restarted = supervised.state()
        assert restarted != state

        os.kill((await asyncio.to_thread(supervised.status))["master"]["pid"], signal.SIGKILL)
        await eventually_async(
            lambda: supervised.runs_with(workers) and supervised.state() != restarted, "it is started again"
        )
        await load.goes_on()
        assert (await asyncio.to_thread(supervised.status))["proxy"]["pid"] == proxy
        # A session of 25 s goes on, and so does every new one.
        await load.goes_on(beats=50 - min(now - then for now, then in zip(load.clicks, clicks, strict=True)))
        assert await asyncio.to_thread(supervised.available) == workers
    assert (load.lost, load.refused) == ({}, [])

    # The end of the grid is not a reason to start it again.
    supervised.ctl("signal", "TERM", "pwgrid")
    await eventually_async(lambda: supervised.state()[0] == "EXITED", "the grid has drained and ended")
    left = processes_marked(str(supervised.directory))
    assert left.keys() == {supervised.process.pid}
    assert not list(supervised.directory.glob("pwgrid-*"))


async def test_a_stop_by_supervisord_refuses_then_drains_and_goes_and_tells_all_of_it(
    supervised: Supervised, playwright: Playwright
) -> None:
    supervised.configure(workers=1, detach_grace_s=1, drain_timeout_s=4)
    assert "start pwgrid" in supervised.install("--yes")  # the test before has ended it
    supervised.start()
    browser = await playwright.chromium.connect(supervised.endpoint)
    page = await browser.new_page()
    ended = asyncio.get_running_loop().create_future()
    browser.on("disconnected", lambda gone: ended.set_result(gone))

    said = await asyncio.to_thread(supervised.ctl, "stop", "pwgrid")
    assert said.split() == ["pwgrid:", "stopped"]
    status = supervised.command("status")
    assert status.returncode == 3
    assert re.search(r"no master  detached since \d\d:\d\d:\d\d; .*ends in \d s at the latest", status.stdout), status

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
    events = events[-events[::-1].index("grid_ready") :]  # of this start
    told = ["detached", "no_master_after_detach", "worker_draining", "sessions_cut", "grid_ended_without_master"]
    assert [event for event in dict.fromkeys(events) if event in told] == told
    assert events[-1] == "grid_ended_without_master"


async def test_another_host_is_where_it_listens_then_and_no_session_ends(
    supervised: Supervised, playwright: Playwright
) -> None:
    supervised.configure(workers=1, detach_grace_s=120, drain_timeout_s=30)
    await asyncio.to_thread(supervised.install, "--yes")
    supervised.start()
    browser = await playwright.chromium.connect(supervised.endpoint)
    page = await browser.new_page()
    for host, reached in (("0.0.0.0", "127.0.0.3"), ("127.0.0.1", "127.0.0.1")):
        await asyncio.to_thread(supervised.install, "--host", host, "--no-start", "--yes")
        await asyncio.to_thread(supervised.install, "--yes")  # which finds another program than the one that runs
        await eventually_async(
            lambda host=host: listeners_on(supervised.port).keys() == {host}, f"it listens on {host}"
        )
        other = await playwright.chromium.connect(supervised.endpoint.replace("127.0.0.1", reached))
        await other.close()
        assert await page.evaluate("6 * 7") == 42
    await browser.close()


def test_a_master_that_ends_at_once_is_no_success(supervised: Supervised) -> None:
    """The proxy of the master before is ready meanwhile."""
    token = supervised.directory / TOKEN
    supervised.configure(workers=1, detach_grace_s=120, drain_timeout_s=1)
    supervised.install("--yes")
    supervised.start()
    text = token.read_text()
    token.write_text("")
    try:
        done = supervised.command(
            *("install", "supervisor", "--user", "--conf", str(supervised.conf), "--host", "0.0.0.0", "--yes")
        )
    finally:
        token.write_text(text)
    assert (done.returncode, "supervisord says of it: pwgrid" in done.stderr) == (1, True), done
    # What it left listens on the old address still, while the newest installation says another one.
    supervised.ctl("stop", "pwgrid")
    assert listeners_on(supervised.port).keys() == {"127.0.0.1"}
    supervised.install("--host", "127.0.0.1", "--yes")
    assert listeners_on(supervised.port).keys() == {"127.0.0.1"}


def test_the_end_of_an_installation_ends_the_grid_and_supervisord_forgets_it(supervised: Supervised) -> None:
    supervised.configure(workers=1, detach_grace_s=120, drain_timeout_s=1)
    supervised.install("--yes")
    supervised.start()
    supervised.command("uninstall", "supervisor", "--user", "--yes", "--purge").check_returncode()
    assert processes_marked(str(supervised.directory)).keys() == {supervised.process.pid}
    assert "no such process" in supervised.ctl("status", "pwgrid")
    assert not (supervised.directory / ".config").exists()
    assert not (supervised.directory / ".local").exists()


async def refused(playwright: Playwright, endpoint: str) -> str:
    """What the first client hears that is not let in any more."""
    while True:
        try:
            await (await playwright.chromium.connect(endpoint)).close()
        except Error as error:
            return str(error)
