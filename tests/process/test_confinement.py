"""What the kernel lets Node and a browser do with the host, whatever they want: a shell stands in for each of them."""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright._impl._driver import compute_driver_executable

from pwgrid.common.confined_exec import abi
from pwgrid.installed.browsers import FoundBrowser
from pwgrid.settings.model import Settings
from pwgrid.worker.browser.confined_paths import Confinement, Directories
from pwgrid.worker.browser.launch import LAUNCHER
from tests.support.grid import WITHOUT_SPARES, eventually, running_grid

pytestmark = pytest.mark.skipif(abi() == 0, reason="this kernel has no Landlock")

BROWSER = FoundBrowser("chromium", "/usr/lib/chromium/chromium-headless-shell", "", "setting")


class BrowserServer:
    """A browser server whose Node and browser are shells. Its worker has secrets; so has the home of its user."""

    def __init__(self, base: Path) -> None:
        self.home, self.worker, self.cache = base / "home", base / "w" / "1", base / "node"
        for directory in (self.home / ".ssh", self.home / ".fonts", self.worker, self.cache, base / "w" / "2"):
            directory.mkdir(parents=True)
        self.secrets = [
            self._written(path)
            for path in (
                base / "control.sock",
                self.home / ".ssh" / "id_rsa",
                self.worker / "leases.json",
                base / "w" / "2" / "leases.json",
            )
        ]
        self.directories = Directories(self.worker)
        self.directories.make(slots=2)
        self.profile = self.directories.node / "profile"
        self.profile.mkdir()

    @staticmethod
    def _written(path: Path) -> Path:
        path.write_text("the secret\n")
        return path

    def confinement(self, **settings: object) -> Confinement:
        made = Settings.model_validate({"confine": "on", **settings})
        return Confinement(made, BROWSER, (), {"HOME": str(self.home)}, self.directories)

    def node(self, *command: str, **settings: object) -> str:
        """What the command prints, in place of Node."""
        with subprocess.Popen(self._of_node(*command, **settings), **PIPES) as running:
            return str(running.communicate(timeout=60)[0])

    def _of_node(self, *command: str, **settings: object) -> list[str]:
        node, cli = compute_driver_executable()
        sockets = [self.worker / "browser.sock"]
        before = self.confinement(**settings).before_node(node, Path(cli).parent, LAUNCHER, sockets, self.cache)
        return [*before, *command]

    def browser(self, script: str, **settings: object) -> str:
        """What a shell prints that Node starts in place of the browser, as a browser that was broken into."""
        return self.node(*self._shell(script, **settings), **settings)

    def browser_that_waits(self, script: str, meanwhile: Callable[[], object]) -> str:
        """The same of a script that goes on when `meanwhile` has been called, while the browser runs."""
        command = self._of_node(*self._shell(f"echo waits; read word; {script}"))
        with subprocess.Popen(command, **PIPES) as running:
            assert running.stdout is not None
            assert running.stdout.readline() == "waits\n"
            meanwhile()
            return str(running.communicate("go on\n", timeout=60)[0])

    def _shell(self, script: str, **settings: object) -> list[str]:
        confinement = self.confinement(**settings)
        own = [str(self.profile), str(confinement.directories.browser)]
        return [*confinement.before_browser(), "--own", *own, "--", "/bin/sh", "-c", script]


PIPES: dict[str, Any] = {
    "stdin": subprocess.PIPE,
    "stdout": subprocess.PIPE,
    "stderr": subprocess.STDOUT,
    "text": True,
}


@pytest.fixture
def server() -> Iterator[BrowserServer]:
    base = Path(tempfile.mkdtemp(prefix="pg-", dir="/tmp"))
    yield BrowserServer(base)
    shutil.rmtree(base)


def test_a_browser_reads_what_the_system_has_for_it(server: BrowserServer) -> None:
    (server.home / ".fonts" / "own.ttf").write_text("a font of the user")
    script = (
        f"ls /usr/share >/dev/null && cat /etc/nsswitch.conf /proc/meminfo >/dev/null && cat {server.home}/.fonts/*"
    )
    assert server.browser(script) == "a font of the user"


def test_neither_reads_what_is_not_its_own(server: BrowserServer) -> None:
    others = [*server.secrets, Path("/etc/passwd"), Path("/etc/shadow"), Path(sys.prefix, "pyvenv.cfg")]
    script = f"cat {' '.join(map(str, others))}"
    for said in (server.browser(script), server.node("/bin/sh", "-c", script)):
        assert said == "".join(f"cat: {secret}: Permission denied\n" for secret in others)
    for directory in (server.home, server.worker, server.worker.parent, Path("/"), Path("/etc"), Path("/tmp")):
        assert "Permission denied" in server.browser(f"ls {directory}")


def test_the_browser_does_not_read_what_is_nodes(server: BrowserServer) -> None:
    (server.directories.node / "trace").write_text("of a session")
    assert server.node("/bin/cat", str(server.directories.node / "trace")) == "of a session"
    for path in (server.directories.node / "trace", LAUNCHER):
        assert server.browser(f"cat {path}") == f"cat: {path}: Permission denied\n"


def test_what_is_added_to_be_read_is_read_and_not_written(server: BrowserServer) -> None:
    pages = server.home / "pages"
    pages.mkdir()
    (pages / "index.html").write_text("a page")
    added = {"browser_read_paths": [str(pages), "/no/such/place"]}
    assert server.browser(f"cat {pages}/index.html", **added) == "a page"
    assert "Permission denied" in server.browser(f"echo another > {pages}/index.html", **added)
    assert "Permission denied" in server.browser(f"cat {pages}/index.html")


def test_a_browser_writes_only_into_its_own_directories(server: BrowserServer) -> None:
    for own in (server.profile, server.directories.browser, next(server.directories.sessions.iterdir())):
        assert server.browser(f"echo written > {own}/file && cat {own}/file && rm {own}/file") == "written\n"
    elsewhere = (server.home, server.worker, server.directories.node, server.cache, Path("/tmp"), Path("/usr/share"))
    for place in elsewhere:
        said = server.browser(f"mkdir {place}/a-directory; echo written > {place}/a-file")
        assert said.count("Permission denied") == 2
        assert not (place / "a-file").exists()
    assert "Permission denied" in server.browser(f"rm {server.secrets[2]}")
    assert server.secrets[2].exists()


def test_no_link_leads_a_browser_or_node_out(server: BrowserServer) -> None:
    secret, own = server.secrets[1], server.directories.browser
    assert "Permission denied" in server.browser(f"ln -s {secret} {own}/link; cat {own}/link")
    assert "Permission denied" in server.browser(f"cat /proc/self/root{secret}")
    (session, *_) = server.directories.sessions.iterdir()
    assert "Permission denied" in server.browser(f"ln -s {LAUNCHER} {session}/link")  # which Node could follow
    assert (Path(own) / "link").is_symlink()


def test_a_page_lists_no_sessions_and_each_session_may_list_its_own_directory(server: BrowserServer) -> None:
    """The kernel knows the directory: a new name, for the next session, makes no difference."""
    sessions = server.directories.sessions
    assert "Permission denied" in server.browser(f"ls {sessions}")
    (session, *_) = sessions.iterdir()
    (session / "download").write_text("of a page")
    assert server.browser(f"ls {session}; cat {session}/download") == "download\nof a page"
    said = server.browser_that_waits(f"ls {sessions}/renamed", lambda: session.rename(sessions / "renamed"))
    assert said == "download\n"


def test_a_directory_that_is_made_later_is_open_to_who_knows_its_name(server: BrowserServer) -> None:
    made = server.directories.sessions / "later"
    assert server.browser_that_waits(f"echo written > {made}/file; cat {made}/file", made.mkdir) == "written\n"
    other = made.with_name("other")
    assert "Permission denied" in server.browser_that_waits(f"ls {other}", other.mkdir)


def test_a_browser_does_nothing_to_processes_outside(server: BrowserServer) -> None:
    with subprocess.Popen(["/bin/sleep", "1000"], env={"TOKEN": "the secret"}) as outside:
        try:
            for file in ("environ", "maps"):
                path = f"/proc/{outside.pid}/{file}"
                assert server.browser(f"cat {path}") == f"cat: {path}: Permission denied\n"
            if abi() >= 6:
                assert "Operation not permitted" in server.browser(f"kill {outside.pid}")
            assert outside.poll() is None
        finally:
            outside.kill()


def test_root_has_no_power_in_a_browser_but_over_files_that_it_may_use(server: BrowserServer) -> None:
    said = server.browser("grep -E 'CapPrm|CapEff|NoNewPrivs' /proc/self/status")
    dac_override = "0000000000000002" if os.geteuid() == 0 else "0000000000000000"
    assert said.split() == ["CapPrm:", dac_override, "CapEff:", dac_override, "NoNewPrivs:", "1"]


@pytest.mark.skipif(abi() < 4, reason="this kernel's Landlock knows no ports")
def test_a_browser_opens_no_port_unless_it_is_driven_over_one(server: BrowserServer) -> None:
    listen = "/usr/bin/perl -MIO::Socket::INET -e 'print IO::Socket::INET->new(Listen => 1) ? q(open) : $!'"
    assert server.browser(listen) == "Permission denied"
    assert server.node("/bin/sh", "-c", listen) == "open"


@pytest.mark.parametrize("name", ["\\0pwgrid-test-{pid}", "{base}/control.sock"])
def test_a_browser_reaches_no_unix_socket(server: BrowserServer, name: str) -> None:
    """Neither abstract ones nor those with a path: those of the grid and of Redis, or a container engine's."""
    server.secrets[0].unlink()
    name = name.format(pid=os.getpid(), base=server.home.parent)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(name.replace("\\0", "\0"))
        listener.listen()
        open_one = 'socket(my $s, AF_UNIX, SOCK_STREAM, 0) or print("$!"), exit;'
        connect = f'print connect($s, pack("Sa*", AF_UNIX, "{name}")) ? q(connected) : $!'
        script = f"/usr/bin/perl -MSocket -e '{open_one} {connect}'"
        assert server.browser(script) == "Permission denied"
        said = server.browser(script, headless=False)  # a display is reached by such a socket
        assert said == ("connected" if abi() < 9 or not name.startswith("/") else "Permission denied")


def test_node_listens_in_its_workers_directory(server: BrowserServer) -> None:
    path = server.worker / "browser.sock"
    listen = (
        f"/usr/bin/perl -MIO::Socket::UNIX -e 'print IO::Socket::UNIX->new(Listen => 1, Local => \"{path}\") ? 1 : $!'"
    )
    assert server.node("/bin/sh", "-c", listen) == "1"
    assert path.is_socket()


def test_what_cannot_be_started_says_so(server: BrowserServer) -> None:
    assert server.node("/no/such/browser") == "executing /no/such/browser failed: No such file or directory\n"


def test_workers_are_replaced_when_a_file_that_browsers_read_is_another_one(tmp_path: Path) -> None:
    read = tmp_path / "hosts"
    read.write_text("one")
    environment = {"BROWSER_READ_PATHS": str(read), "HEARTBEAT_INTERVAL": "0.2", **WITHOUT_SPARES}
    with running_grid("--chromium", "1", environment=environment, fake=True) as grid:
        before = {each["id"] for each in grid.ask("status")["workers"]}
        (tmp_path / "new").write_text("two")
        os.replace(tmp_path / "new", read)

        def are_others() -> bool:
            workers = grid.ask("status")["workers"]
            assert any(each["status"] == "available" for each in workers)
            return not before & {each["id"] for each in workers}

        eventually(are_others, "the worker is another one")
        assert f"host file replaced: {read}" in grid.output()
