"""A grid that `pwgrid install systemd` puts under a real systemd, with live sessions and clients that connect all the
time.

One systemd and mostly one grid for all tests: whichever comes first installs and starts it, the last ones end and
remove it.
"""

import asyncio
import contextlib
import hashlib
import json
import os
import socket
import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from playwright.async_api import Error, Playwright

from pwgrid.cli.install.installation import listeners_on
from pwgrid.common.confined_exec import abi
from pwgrid.installed.browsers import find_browser
from pwgrid.settings.model import Settings
from tests.conftest import need
from tests.support.grid import NEVER, RUNNING, described, eventually, eventually_async, free_port, last_lines, status_of
from tests.support.load import under_load
from tests.support.service_manager import INSTALLED, USER_UNIT, ServiceManager, why_not

T = TypeVar("T")

PWGRID = f"{INSTALLED}/.venv/bin/pwgrid"
CONFIG = "/etc/pwgrid/grid.toml"
TOKEN = "/etc/pwgrid/token"
WORKERS = 1
PLACES = ("/etc", "/var/lib", "/var/log", "/tmp", "/var/tmp")
"""Where an installation could leave something: all else is read-only, or gone with the host's next start."""
SUPERVISORD = """
[unix_http_server]
file=/run/supervisor.sock
[supervisord]
logfile=/run/supervisord.log
pidfile=/run/supervisord.pid
[rpcinterface:supervisor]
supervisor.rpcinterface_factory=supervisor.rpcinterface:make_main_rpcinterface
[supervisorctl]
serverurl=unix:///run/supervisor.sock
[include]
files=/etc/supervisor/conf.d/*.conf
"""
MEMORY_MIB = 400
EAT = """() => {
    const kept = [];
    const eat = () => { for (let n = 0; n < 8; n++) kept.push(new Uint8Array(8 << 20).fill(1)); setTimeout(eat, 20); };
    setTimeout(eat, 20);
}"""
DRAIN = "the grid was stopping and DRAIN_TIMEOUT="


class Service:
    """The installed grid."""

    def __init__(self, manager: ServiceManager, port: int) -> None:
        self.manager = manager
        self.port = port

    def install(self, *arguments: str) -> str:
        """`pwgrid install systemd` as root: what it printed."""
        return self.manager.command(PWGRID, "install", "systemd", *arguments)

    @property
    def is_installed(self) -> bool:
        return self.manager.path("/etc/pwgrid/installed.json").exists()

    @property
    def endpoint(self) -> str:
        return f"ws://127.0.0.1:{self.port}/?token={self.manager.path(TOKEN).read_text().strip()}"

    def configure(self, workers: int, drain_timeout_s: int = 60) -> None:
        text = (
            f"[workers]\nchromium_workers = {workers}\nmax_lifetime_sessions = {NEVER}\n"
            f"[lifecycle]\ndrain_timeout = {drain_timeout_s}\ndetach_grace = 60\n"
            "[queue]\nworker_select_timeout = 60\n"  # the first client starts the grid, and a browser may start slowly
        )
        self.manager.path(CONFIG).write_text(text)

    def status(self) -> dict[str, Any]:
        """The master's own view; waits for a master that answers."""
        return status_of(self.manager.path(f"/run/pwgrid/{self.port}"), self.port, self.endpoint)

    def available(self) -> dict[str, int]:
        """The workers that serve."""
        return {each["id"]: each["pid"] for each in self.status()["workers"] if each["status"] == "available"}

    def are_all_new(self, old: dict[str, int], wanted: int) -> bool:
        """Whether as many as wanted serve, and none of the old ones."""
        available = self.available()
        return len(available) == wanted and not available.keys() & old.keys()

    def main(self) -> tuple[str, str]:
        """The unit's state and its main process."""
        shown = self.manager.show("pwgrid.service")
        return shown["ActiveState"], shown["MainPID"]

    def runs_again(self, before: tuple[str, str]) -> bool:
        """Whether it is up with another main process than before."""
        state, pid = self.main()
        return state == "active" and pid not in ("0", before[1])

    def stop(self) -> None:
        """Ends it, and proves that nothing is left of it."""
        self.manager.systemctl("stop", "pwgrid.socket", "pwgrid.service")
        self.is_gone()

    def is_gone(self) -> None:
        assert self.main() == ("inactive", "0")
        assert self.manager.show("pwgrid.service")["Result"] == "success"
        assert self.manager.processes() == {}
        assert not self.manager.path("/run/pwgrid").exists()
        for directory in ("/tmp", "/var/tmp"):
            assert list(self.manager.path(directory).iterdir()) == []

    def output(self) -> str:
        return "\n".join(str(each.get("MESSAGE")) for each in self.manager.journal("pwgrid.service"))

    def description(self) -> str:
        """The service as systemd and its master know it, and the ends of both logs."""
        parts = {
            "systemd says": lambda: str(self.main()),
            "pwgrid status": lambda: self.manager.command(PWGRID, "status", expected=range(256)),
            "systemd's log ends with": lambda: last_lines(self.manager.output()),
            "the service's log ends with": lambda: last_lines(self.output()),
        }
        return described(f"the service on port {self.port}", parts)


@pytest.fixture(scope="module")
def manager() -> Iterator[ServiceManager]:
    need("chromium")
    if reason := why_not():
        pytest.skip(reason)
    browser = find_browser("chromium", Settings())
    executable = Path(browser.executable)
    units = {"pwgrid.service.d/short.conf": "[Service]\nTimeoutStopSec=2\n"}
    manager = ServiceManager(units, [executable.parent])
    if browser.source == "playwright":  # where the service looks for such a one
        found = next(parent for parent in executable.parents if (parent / "INSTALLATION_COMPLETE").exists())
        manager.path("/var/lib/pwgrid/browsers").mkdir(parents=True)
        manager.path(f"/var/lib/pwgrid/browsers/{found.name}").symlink_to(found)
    yield manager
    manager.close()


@pytest.fixture(scope="module")
def shared(manager: ServiceManager) -> Iterator[Service]:
    service = Service(manager, free_port())
    RUNNING.append(service)
    yield service
    RUNNING.remove(service)


@pytest.fixture
def service(shared: Service) -> Iterator[Service]:
    """It is installed, and its socket listens; what a test has started runs on for the next one."""
    manager = shared.manager
    try:
        if not shared.is_installed:
            shared.install("--port", str(shared.port), "--no-start", "--yes")
        shared.configure(WORKERS)
        manager.systemctl("start", "pwgrid.socket")
        yield shared
    except BaseException:
        manager.systemctl("stop", "pwgrid.socket", "pwgrid.service")
        manager.systemctl("reset-failed")  # the next test starts anew
        raise


@pytest.fixture
def running(service: Service) -> Service:
    """As many workers serve as are wanted."""
    service.manager.systemctl("start", "pwgrid.service")
    service.manager.systemctl("reload", "pwgrid.service")
    eventually(lambda: len(service.available()) == WORKERS, "its workers serve")
    return service


def files_of(manager: ServiceManager) -> dict[str, tuple[int, int, str]]:
    """Every file and directory that an installation could make or change: mode, owner and what is in it."""
    found = {}
    for place in PLACES:
        top = manager.path(place)
        for path in (top, *top.rglob("*")):
            status = path.lstat()
            content = hashlib.sha256(path.read_bytes()).hexdigest() if stat.S_ISREG(status.st_mode) else ""
            name = f"{place}/{path.relative_to(top)}"
            # useradd keeps the version before, and so does userdel.
            if not name.startswith(
                ("/etc/passwd-", "/etc/group-", "/etc/shadow-", "/etc/gshadow-", "/var/log/journal")
            ):
                found[name] = (status.st_mode, status.st_uid, content)
    return found


def test_an_installation_shows_first_what_it_will_do_can_be_repeated_and_is_removed_exactly(shared: Service) -> None:
    manager = shared.manager
    before = files_of(manager)
    port = ("--port", str(shared.port))
    shown = shared.install(*port, "--dry-run")
    assert files_of(manager) == before
    for line in (
        "make the user pwgrid",
        "write /etc/systemd/system/pwgrid.service (0644)",
        f"ListenStream=127.0.0.1:{shared.port}",
    ):
        assert line in shown
    assert "nobody can be asked here: say --yes" in manager.complaint(PWGRID, "install", "systemd", *port)

    shared.install("--port", str(shared.port), "--no-start", "--yes")
    made = files_of(manager).keys() - before.keys()
    links = {
        f"/etc/systemd/system/{name}"
        for name in (
            "multi-user.target.wants",
            "multi-user.target.wants/pwgrid.service",
            "sockets.target.wants",
            "sockets.target.wants/pwgrid.socket",
        )
    }
    units = {"/etc/systemd/system/pwgrid.service", "/etc/systemd/system/pwgrid.socket"}
    settings = {"/etc/pwgrid", "/etc/pwgrid/grid.toml", "/etc/pwgrid/installed.json", "/etc/pwgrid/token"}
    assert made - {"/var/lib/pwgrid"} == links | units | settings
    assert stat.S_IMODE(manager.path(TOKEN).stat().st_mode) == 0o600
    passwd = manager.command("getent", "passwd", "pwgrid").split(":")
    assert passwd[5:] == ["/var/lib/pwgrid", "/usr/sbin/nologin\n"]

    installed = files_of(manager)
    assert "nothing to do" in shared.install("--no-start", "--yes")  # what was asked for is still known
    assert files_of(manager) == installed

    with manager.path(CONFIG).open("a") as file:
        file.write("# mine\n")
    tokens = "/etc/pwgrid/tokens.json"
    manager.command(PWGRID, "token", "create", "--name", "ci")
    manager.command("chown", "pwgrid", tokens)  # as beside a running grid
    said = manager.command(PWGRID, "uninstall", "systemd", "--yes")
    assert f"left: {CONFIG}, it was changed since" in said
    assert "left: /etc/pwgrid, in which there is grid.toml, tokens.json" in said
    assert files_of(manager).keys() - before.keys() == {"/etc/pwgrid", CONFIG, tokens}
    assert manager.path(tokens).stat().st_uid == 0  # the next system user has the uid of the grid's, which is gone
    said = shared.install("--port", str(shared.port), "--no-start", "--yes")
    assert manager.path(CONFIG).read_text().endswith("# mine\n")
    assert f"give {tokens} to pwgrid" in said
    assert manager.path(tokens).stat().st_uid == int(manager.command("id", "-u", "pwgrid"))
    manager.path(tokens).unlink()
    manager.path(CONFIG).unlink()
    manager.command(PWGRID, "uninstall", "systemd", "--yes", "--purge")
    manager.path("/etc/pwgrid").rmdir()
    assert files_of(manager) == before
    assert "nothing to do" in manager.command(PWGRID, "uninstall", "systemd", "--yes")
    manager.command("getent", "passwd", "pwgrid", expected=[2])


def test_the_unit_is_hardened_and_clean(service: Service) -> None:
    manager = service.manager
    assert manager.command("systemd-analyze", "verify", "pwgrid.service", "pwgrid.socket") == ""
    # 40 stands for 4.0; a unit that is more exposed ends it with a failure.
    manager.command("systemd-analyze", "security", "--threshold=40", "pwgrid.service")
    shown = manager.show("pwgrid.service")
    for name, value in {
        "User": "pwgrid",
        "OOMPolicy": "continue",
        "TasksMax": "16384",
        "LimitCORE": "0",
        "NoNewPrivileges": "yes",
        "RestartPreventExitStatus": "2",
        "StartLimitIntervalUSec": "0",
    }.items():
        assert shown[name] == value, name
    for limit in ("MemoryHigh", "MemoryMax"):
        assert 0 < int(shown[limit]) < os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


async def test_the_first_client_starts_the_grid_and_is_served(service: Service, playwright: Playwright) -> None:
    service.manager.systemctl("stop", "pwgrid.service")
    service.is_gone()
    browser = await playwright.chromium.connect(service.endpoint)
    assert await (await browser.new_page()).evaluate("6 * 7") == 42
    await browser.close()
    eventually(lambda: service.main()[0] == "active", "the grid has said that it is ready")


def test_with_wrong_settings_clients_start_the_service_a_few_times_and_a_start_with_right_ones_opens_the_port_again(
    service: Service,
) -> None:
    manager = service.manager
    manager.systemctl("stop", "pwgrid.service")
    manager.path(CONFIG).write_text("[workers]\nchromium_workers = -1\n")
    with socket.create_connection(("127.0.0.1", service.port)):
        eventually(lambda: manager.show("pwgrid.socket")["ActiveState"] == "failed", "systemd has given up")
    assert "chromium_workers" in service.output()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", service.port))
    service.configure(WORKERS)
    manager.systemctl("start", "pwgrid.service")
    assert manager.show("pwgrid.socket")["ActiveState"] == "active"
    eventually(lambda: len(service.available()) == WORKERS, "its workers serve")


def of_living(pids: Iterable[int], read: Callable[[Path], T]) -> list[T]:
    """What `read` gives for each process, as its directory in /proc, but for those that have ended meanwhile."""
    found = []
    for pid in pids:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            found.append(read(Path(f"/proc/{pid}")))
    return found


async def test_a_user_of_its_own_in_chromium_s_sandbox_and_a_token_that_only_root_can_read(
    running: Service, playwright: Playwright
) -> None:
    with pytest.raises(Error, match="401"):
        await playwright.chromium.connect(running.endpoint.partition("?")[0])
    browser = await playwright.chromium.connect(running.endpoint)
    page = await browser.new_page()
    await page.goto("data:text/html,<title>here</title>")
    assert await page.title() == "here"
    if abi() > 0:  # the unit lets the grid keep browsers from the host's files
        with pytest.raises(Error, match="ERR_ACCESS_DENIED"):
            await page.goto("file:///etc/passwd")

    grid = running.manager.processes()
    users = set(of_living(grid, lambda process: process.stat().st_uid))
    assert users == {int(running.manager.command("id", "-u", "pwgrid"))}
    own = os.readlink(f"/proc/{running.manager.pid}/ns/user")

    def renderers() -> list[int]:
        return [pid for pid, command in running.manager.processes().items() if "--type=renderer" in command]

    found = await eventually_async(renderers, "the page has a process")  # that of the refused one comes after it
    assert not any("--no-sandbox" in command for command in grid.values())
    assert own not in of_living(found, lambda process: os.readlink(process / "ns/user"))
    token = running.manager.path(TOKEN).read_text().strip()
    environments = of_living(grid, lambda process: (process / "environ").read_bytes())
    assert environments
    assert not any(token.encode() in environment for environment in environments)
    await browser.close()
    # Root finds it without a word of where it is.
    assert json.loads(running.manager.command(PWGRID, "status", "--json"))["ready"]


async def test_a_taken_port_ends_no_session_and_another_address_is_moved_to(
    running: Service, playwright: Playwright
) -> None:
    manager, before = running.manager, running.main()
    browser = await playwright.chromium.connect(running.endpoint)
    page = await browser.new_page()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        said = await asyncio.to_thread(manager.complaint, PWGRID, "install", "systemd", "--port", port, "--yes")
        assert f"cannot listen on 127.0.0.1 port {port}" in said
    assert await page.evaluate("6 * 7") == 42
    await browser.close()
    assert running.main() == before
    for host in ("0.0.0.0", "127.0.0.1"):  # where it listens itself is no obstacle
        await asyncio.to_thread(running.install, "--host", host, "--no-start", "--yes")
        await asyncio.to_thread(running.install, "--yes")  # which finds another address than the one that it has
        assert listeners_on(running.port).keys() == {host}


async def test_reload_restart_upgrade_a_new_unit_and_a_killed_and_a_frozen_master_lose_no_session_and_refuse_nobody(
    running: Service, playwright: Playwright
) -> None:
    systemctl = running.manager.systemctl
    assert len(running.available()) == WORKERS
    assert running.manager.show("pwgrid.service")["StatusText"] in (f"chromium {WORKERS} x 5 slots", "serving")
    async with under_load(running, playwright, 2) as load:
        first, main = running.status(), running.main()

        running.configure(workers=WORKERS + 1)
        await asyncio.to_thread(systemctl, "reload", "pwgrid.service")
        await eventually_async(lambda: len(running.available()) == WORKERS + 1, "another worker serves")
        assert running.main() == main
        workers = running.available()
        assert workers.keys() > {each["id"] for each in first["workers"]}

        await asyncio.to_thread(systemctl, "restart", "pwgrid.service")
        await load.goes_on()
        restarted = running.main()
        assert restarted[0] == "active"
        assert restarted != main
        assert await asyncio.to_thread(running.available) == workers

        unit = running.manager.path("/etc/systemd/system/pwgrid.service")
        shipped = unit.read_text()
        unit.write_text(shipped.replace("LimitCORE=0", "LimitCORE=1"))
        said = await asyncio.to_thread(running.install, "--yes")
        assert "-LimitCORE=1" in said
        assert "+LimitCORE=0" in said
        assert unit.read_text() == shipped
        await load.goes_on()
        installed = running.main()
        assert installed[0] == "active"
        assert installed != restarted
        assert await asyncio.to_thread(running.available) == workers

        systemctl("kill", "--kill-who=main", "--signal=KILL", "pwgrid.service")
        await eventually_async(lambda: running.runs_again(installed), "systemd has started it again")
        await load.goes_on()
        assert await asyncio.to_thread(running.available) == workers
        assert (await asyncio.to_thread(running.status))["proxy"]["pid"] == first["proxy"]["pid"]

        # By the unit's own WatchdogSec. The next master adopts what the frozen one had.
        assert running.manager.show("pwgrid.service")["WatchdogUSec"] == "10s"
        frozen = running.main()
        systemctl("kill", "--kill-who=main", "--signal=STOP", "pwgrid.service")
        await eventually_async(lambda: running.runs_again(frozen), "another one runs")
        await load.goes_on()
        assert await asyncio.to_thread(running.available) == workers
        assert (await asyncio.to_thread(running.status))["proxy"]["pid"] == first["proxy"]["pid"]

        main = running.main()
        systemctl("kill", "--kill-who=main", "--signal=USR2", "pwgrid.service")
        await eventually_async(lambda: running.available().keys() - workers.keys(), "a new worker serves")
        await load.goes_on()
        assert running.main() == main
        await eventually_async(
            lambda: running.status()["proxy"]["pid"] not in (None, first["proxy"]["pid"]), "another proxy serves"
        )
    assert (load.lost, load.refused) == ({}, [])
    # One after the other: the one with the sessions has kept the rest waiting.
    await eventually_async(lambda: running.are_all_new(workers, WORKERS + 1), "every worker is new")


def test_a_master_that_cannot_be_started_more_often_than_systemd_usually_bears_is_started_in_the_end(
    running: Service,
) -> None:
    workers, manager = running.available(), running.manager
    short_of_something = manager.path("/etc/systemd/system/pwgrid.service.d/fails.conf")
    short_of_something.parent.mkdir(exist_ok=True)
    tries = "echo >> /run/tries; test $(wc -l < /run/tries) -gt 7"
    short_of_something.write_text(f"[Service]\nExecStartPre=+/bin/sh -c '{tries}'\n")
    manager.systemctl("daemon-reload")
    try:
        dead = running.main()
        manager.systemctl("kill", "--kill-who=main", "--signal=KILL", "pwgrid.service")
        eventually(lambda: running.runs_again(dead), "systemd has started it again")
    finally:
        short_of_something.unlink()
        manager.systemctl("daemon-reload")
    assert running.available() == workers


@contextlib.contextmanager
def limited(service: Service, controller: str) -> Iterator[Path]:
    """A cgroup in which all of the service is for the length of the block.

    systemd sets TasksMax and MemoryMax on the service's own one, where cgroups are of version 2 alone. Where version 1
    has the controllers, this systemd can set neither, and the kernel's same limits are set here.
    """
    top = Path("/sys/fs/cgroup") / controller
    group = top / f"pwgrid-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no cgroups of version 1 for {controller}: {error}")
    try:
        for pid in service.manager.processes("pwgrid.service"):
            with contextlib.suppress(ProcessLookupError):
                (group / "cgroup.procs").write_text(str(pid))
        yield group
    finally:
        while left := (group / "cgroup.procs").read_text().split():
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    (top / "cgroup.procs").write_text(pid)
        group.rmdir()


async def test_at_the_limit_of_tasks_sessions_go_on_no_worker_starts_and_both_is_over_once_there_is_room(
    running: Service, playwright: Playwright
) -> None:
    browser = await playwright.chromium.connect(running.endpoint)
    page = await browser.new_page()
    said = "cannot start a worker: Resource temporarily unavailable (no more processes may be started: raise TasksMax="

    def reason() -> str:
        return next(each["reason"] or "" for each in running.status()["pools"] if each["name"] == "chromium")

    with limited(running, "pids") as group:
        (group / "pids.max").write_text((group / "pids.current").read_text())
        running.configure(workers=WORKERS + 1)
        running.manager.systemctl("kill", "--kill-who=main", "--signal=HUP", "pwgrid.service")
        await eventually_async(lambda: reason().startswith(said), "status says why")
        assert await page.evaluate("6 * 7") == 42
        assert len(running.available()) == WORKERS
        assert any(said in str(each["MESSAGE"]) for each in running.manager.journal("pwgrid.service"))
        (group / "pids.max").write_text("max")
        await eventually_async(lambda: len(running.available()) == WORKERS + 1, "another worker serves")
    assert await page.evaluate("6 * 7") == 42
    await browser.close()


async def test_at_the_limit_of_memory_the_page_that_eats_it_dies_and_all_others_go_on(
    running: Service, playwright: Playwright
) -> None:
    workers, main = running.available(), running.main()
    eater, other = [await playwright.chromium.connect(running.endpoint) for _ in range(2)]
    page, its_page = await eater.new_page(), await other.new_page()
    with limited(running, "memory") as group:
        (group / "memory.limit_in_bytes").write_text(str(MEMORY_MIB * 1024 * 1024))
        async with page.expect_event("crash"):
            await page.evaluate(EAT)
        assert "oom_kill 0" not in (group / "memory.oom_control").read_text().splitlines()
        with pytest.raises(Error, match="Target crashed"):
            await page.evaluate("6 * 7")
        assert await its_page.evaluate("6 * 7") == 42
        assert await (await eater.new_page()).evaluate("6 * 7") == 42
        assert (running.available(), running.main()) == (workers, main)
    await eater.close()
    await other.close()


async def test_the_journal_has_fields_and_the_level_of_each_line(running: Service, playwright: Playwright) -> None:
    levels = {"debug": "7", "info": "6", "warning": "4", "error": "3", "critical": "2"}

    def said() -> list[tuple[dict[str, Any], str]]:
        entries = running.manager.journal("pwgrid.service")
        ours = [(each["MESSAGE"], each["PRIORITY"]) for each in entries if each.get("_TRANSPORT") == "stdout"]
        # ExecReload= is a command, which answers like one.
        reloads = ("nothing has changed", "changed: ")
        return [(json.loads(text), level) for text, level in ours if not text.startswith(reloads)]

    def ended() -> list[str]:
        return [each["session"] for each, _ in said() if each["event"] == "session_ended"]

    before = ended()
    with pytest.raises(Error, match="401"):  # so that the proxy, too, has something to say
        await playwright.chromium.connect(running.endpoint.partition("?")[0])
    await (await playwright.chromium.connect(running.endpoint)).close()
    await eventually_async(lambda: len(ended()) > len(before), "it is in the journal")
    events = said()
    assert {"time", "level", "event", "role"} <= set.intersection(*(set(each) for each, _ in events))
    assert all(priority == levels[each["level"]] for each, priority in events)
    assert {"master", "proxy", "worker"} <= {each["role"] for each, _ in events}

    session_id = ended()[-1]  # the record of one before may have gone with the Redis of a grid that was stopped
    shown = running.manager.command(PWGRID, "logs", "--session", session_id, "--json").splitlines()
    record, *story = (json.loads(line) for line in shown)
    assert record["record"]["id"] == session_id
    assert {"session_started", "session_ended"} <= {each.get("event") for each in story}
    assert {each["session"] for each in story if "session" in each} == {session_id}


async def test_a_stop_may_drain_for_longer_than_systemd_gives_it(running: Service, playwright: Playwright) -> None:
    """TimeoutStopSec is 2 s here; killed by it, the unit would have failed, and Node and Chromium be left."""
    running.configure(workers=1, drain_timeout_s=4)
    running.manager.systemctl("reload", "pwgrid.service")
    await eventually_async(lambda: len(running.available()) == 1, "one worker serves")
    browser = await playwright.chromium.connect(running.endpoint)
    page = await browser.new_page()
    await asyncio.to_thread(running.stop)
    with pytest.raises(Error, match=DRAIN):
        await page.title()


async def test_a_service_of_a_user_s_own_takes_no_root(shared: Service, playwright: Playwright) -> None:
    manager, port = shared.manager, free_port()
    with manager.user("ops") as as_user:
        home = manager.path("/var/lib/ops")
        (home / ".config/pwgrid").mkdir(parents=True)
        browser = f"[browsers]\nchromium_executable = '{find_browser('chromium', Settings()).executable}'\n"
        (home / ".config/pwgrid/grid.toml").write_text(f"[workers]\nchromium_workers = 1\n{browser}")
        manager.command("chown", "--recursive", "ops", "/var/lib/ops")
        before = {path.relative_to(home) for path in home.rglob("*")}
        pwgrid = (*as_user, PWGRID)
        said = manager.command(*pwgrid, "install", "systemd", "--user", "--port", str(port), "--yes")
        assert f"endpoint   ws://127.0.0.1:{port}" in said
        token = (home / ".config/pwgrid/token").read_text().strip()
        client = await playwright.chromium.connect(f"ws://127.0.0.1:{port}/?token={token}")
        assert await (await client.new_page()).evaluate("6 * 7") == 42
        grid = manager.processes(USER_UNIT)
        assert any("--type=renderer" in command for command in grid.values())
        assert not any("--no-sandbox" in command for command in grid.values())
        await client.close()
        assert f"ws://127.0.0.1:{port}  serving" in manager.command(*pwgrid, "status")
        # Root's, since the journal here does not keep users apart.
        logs = manager.command(PWGRID, "logs", "--runtime-dir", "/run/user/ops/pwgrid", "-n", "1000")
        assert '"event":"session_started"' in logs.replace(" ", "")
        # Where it listens itself is no obstacle, though the socket is its user's systemd's.
        manager.command(*pwgrid, "install", "systemd", "--user", "--host", "0.0.0.0", "--yes")
        assert listeners_on(port).keys() == {"0.0.0.0"}
        manager.command(*pwgrid, "uninstall", "systemd", "--user", "--yes")
        assert not any("pwgrid" in command for command in manager.processes(USER_UNIT).values())
        assert {path.relative_to(home) for path in home.rglob("*")} == before


async def test_the_system_s_supervisord_runs_it_as_a_user_of_its_own(shared: Service, playwright: Playwright) -> None:
    manager, port = shared.manager, free_port()
    if shared.is_installed:
        manager.command(PWGRID, "uninstall", "systemd", "--yes", "--purge")
    conf = "/etc/supervisor/supervisord.conf"
    manager.path("/etc/supervisor/conf.d").mkdir(parents=True)
    manager.path(conf).write_text(SUPERVISORD)
    manager.path("/etc/systemd/system/supervisord.service").write_text(
        f"[Service]\nExecStart={INSTALLED}/.venv/bin/python -m supervisor.supervisord --nodaemon -c {conf}\n"
        f"Environment=PLAYWRIGHT_BROWSERS_PATH=/var/lib/pwgrid/browsers\nKillMode=process\n"
    )
    manager.systemctl("daemon-reload")
    manager.systemctl("start", "supervisord.service")
    try:
        eventually(manager.path("/run/supervisor.sock").exists, "supervisord listens")
        before = files_of(manager)
        said = manager.command(PWGRID, "install", "supervisor", "--port", str(port), "--yes")
        assert "make the user pwgrid" in said
        token = manager.path(TOKEN).read_text().strip()
        uid = int(manager.command("id", "-u", "pwgrid"))
        assert stat.S_IMODE(manager.path(TOKEN).stat().st_mode) == 0o640
        log = manager.path("/var/log/pwgrid/grid.log")
        await eventually_async(lambda: "grid_ready" in log.read_text(), "the grid is ready")
        browser = await playwright.chromium.connect(f"ws://127.0.0.1:{port}/?token={token}")
        assert await (await browser.new_page()).evaluate("6 * 7") == 42
        commands = manager.processes("supervisord.service")
        grid = [pid for pid, command in commands.items() if "supervisord" not in command]
        assert set(of_living(grid, lambda process: process.stat().st_uid)) == {uid}
        assert not any("--no-sandbox" in command for command in commands.values())
        await browser.close()
        manager.command(PWGRID, "install", "supervisor", "--host", "0.0.0.0", "--yes")  # another user's is in the way
        await eventually_async(lambda: listeners_on(port).keys() == {"0.0.0.0"}, "it listens there")
        manager.command(PWGRID, "uninstall", "supervisor", "--yes", "--purge")
        assert files_of(manager) == before
        assert all("supervisord" in command for command in manager.processes("supervisord.service").values())
    finally:
        manager.systemctl("kill", "--signal=KILL", "supervisord.service")


async def test_the_end_of_an_installation_ends_the_grid(running: Service, playwright: Playwright) -> None:
    running.configure(workers=1, drain_timeout_s=0)
    running.manager.systemctl("reload", "pwgrid.service")
    browser = await playwright.chromium.connect(running.endpoint)
    page = await browser.new_page()
    await asyncio.to_thread(running.manager.command, PWGRID, "uninstall", "systemd", "--yes", "--purge")
    with pytest.raises(Error, match=DRAIN):
        await page.title()
    assert running.manager.processes() == {}
    assert not running.manager.path("/etc/pwgrid").exists()
    assert running.main() == ("inactive", "0")
    assert running.manager.show("pwgrid.socket")["LoadState"] == "not-found"
    running.manager.command("getent", "passwd", "pwgrid", expected=[2])
