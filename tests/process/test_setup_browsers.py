"""Setup on hosts whose installers are small scripts; what these bring is a real browser."""

import contextlib
import json
import os
import select
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from grid import setup_browsers
from grid.browsers import Places, find_browser
from grid.config import Settings
from grid.errors import BrowserLaunchError, BrowserMissing, GridError
from grid.setup_browsers import Host, install_packages, setup

SETTINGS = Settings()
REAL_CHROMIUM = find_browser("chromium", SETTINGS).executable
NAMES = ("chromium-headless-shell", "chromium", "firefox", "webkit")
INSTALLED = "cache/chromium_headless_shell-7"


class World:
    """A host in a temporary directory: no browser, and only the commands that a test puts there."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.directory = directory
        self.said: list[str] = []
        (directory / "core").mkdir()
        browsers = [
            {"name": name, "revision": "7"} for name in ("chromium-headless-shell", "chromium", "firefox", "webkit")
        ]
        (directory / "core" / "browsers.json").write_text(json.dumps({"browsers": browsers}))
        # What the scripts need, and no browser that is installed here.
        for tool in ("env", "ln", "mkdir", "sleep", "touch"):
            path = directory / "tools" / tool
            path.parent.mkdir(exist_ok=True)
            path.symlink_to(shutil.which(tool) or tool)
        environ = {"PATH": f"{directory}/bin:{directory}/tools", "PLAYWRIGHT_BROWSERS_PATH": str(directory / "cache")}
        environ["WORLD"] = str(directory)
        self.host = Host(Places(environ, directory / "root", directory / "core"), is_root=True, timeout_s=30)
        self.command("node", "echo cannot reach the internet; exit 1")
        node = str(directory / "bin" / "node")
        monkeypatch.setattr(setup_browsers, "compute_driver_executable", lambda: (node, "cli.js"))
        monkeypatch.setattr(setup_browsers, "_PACKAGES", {"apt-get": setup_browsers._PACKAGES["apt-get"]})
        # No apt-get but the one that a test makes.
        self.command("apt-cache", "exit 1")
        self.command("apt-get", "echo unable to locate; exit 100")

    def command(self, name: str, script: str) -> None:
        path = self.directory / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f'#!/bin/sh\necho "$0 $*" >> {self.directory}/calls\n{script}\n')
        path.chmod(0o755)

    def calls(self) -> list[str]:
        calls = self.directory / "calls"
        prefix = f"{self.directory}/bin/"
        return [line.removeprefix(prefix) for line in calls.read_text().splitlines()] if calls.exists() else []

    def text(self) -> str:
        return "\n".join(self.said)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(tmp_path, monkeypatch)


INSTALL_SHELL = f"""
mkdir -p $WORLD/{INSTALLED}/chrome-headless-shell-linux64
ln -s {REAL_CHROMIUM} $WORLD/{INSTALLED}/chrome-headless-shell-linux64/chrome-headless-shell
touch $WORLD/{INSTALLED}/INSTALLATION_COMPLETE
echo downloaded
"""

INSTALL_PACKAGE = f"""
directory=$WORLD/root/usr/lib/chromium
case "$*" in
  *install*) mkdir -p $directory; ln -s {REAL_CHROMIUM} $directory/chromium-headless-shell;;
esac
echo done: "$*"
"""


def test_a_browser_that_is_there_is_checked_and_named(world: World) -> None:
    settings = replace(SETTINGS, chromium_executable=REAL_CHROMIUM)
    (found,) = setup(["chromium"], settings, world.said.append, world.host)
    assert found.executable == REAL_CHROMIUM
    assert "Chrom" in world.text()
    assert "redis: /" in world.text()
    assert world.calls() == []


def test_playwright_s_own_download_is_tried_first_and_proven_by_a_page(world: World) -> None:
    world.command("node", INSTALL_SHELL)
    (found,) = setup(["chromium"], SETTINGS, world.said.append, world.host)
    assert found.source == "playwright"
    assert world.calls() == ["node cli.js install --with-deps --only-shell chromium"]
    assert "  | downloaded" in world.said
    assert "opened a page" in world.text()


def test_a_download_that_fails_for_want_of_libraries_is_tried_without_them(world: World) -> None:
    world.command("node", f'case "$*" in *with-deps*) echo no apt; exit 1;; esac\n{INSTALL_SHELL}')
    (found,) = setup(["chromium"], SETTINGS, world.said.append, world.host)
    assert found.source == "playwright"
    assert world.calls()[-1] == "node cli.js install --only-shell chromium"


def test_the_system_s_package_is_the_second_way(world: World) -> None:
    world.command("apt-get", INSTALL_PACKAGE)
    world.command("apt-cache", "exit 0")
    (found,) = setup(["chromium"], SETTINGS, world.said.append, world.host)
    assert found.source == "system"
    assert "cannot reach the internet" in world.text()
    assert world.calls()[-1].endswith("install -y --no-install-recommends chromium chromium-headless-shell")


def test_empty_package_lists_are_fetched_first(world: World) -> None:
    world.command("apt-cache", "test -e $WORLD/updated")
    world.command("apt-get", f'case "$*" in *update*) touch $WORLD/updated;; esac\n{INSTALL_PACKAGE}')
    setup(["chromium"], SETTINGS, world.said.append, world.host)
    last_words = [call.split()[-1] for call in world.calls() if call.startswith("apt-get")]
    assert last_words == ["update", "chromium-headless-shell"]


def test_when_no_way_works_the_error_has_the_reason_of_each(world: World) -> None:
    with pytest.raises(BrowserMissing) as caught:
        setup(["chromium"], SETTINGS, world.said.append, world.host)
    assert "cannot reach the internet" in str(caught.value)
    assert "apt-get update failed (exit 100: unable to locate)" in str(caught.value)


def test_webkit_has_no_second_way(world: World) -> None:
    with pytest.raises(BrowserMissing, match="no system has a package of the WebKit"):
        setup(["webkit"], SETTINGS, world.said.append, world.host)
    assert all("apt" not in call for call in world.calls())


def test_ubuntu_s_snaps_are_not_installed(world: World) -> None:
    release = world.directory / "root" / "etc" / "os-release"
    release.parent.mkdir(parents=True)
    release.write_text('NAME="Ubuntu"\nID=ubuntu\n')
    with pytest.raises(BrowserMissing, match="is a snap"):
        setup(["firefox"], SETTINGS, world.said.append, world.host)
    assert all("apt" not in call for call in world.calls())


def test_without_root_the_error_says_what_to_run(world: World) -> None:
    world.command("sudo", "exit 1")
    fault = install_packages("chromium", world.said.append, replace(world.host, is_root=False))
    assert fault is not None
    assert "run `sudo apt-get install chromium` yourself" in fault


def test_sudo_without_a_password_is_used(world: World) -> None:
    world.command("sudo", 'shift; exec "$@"')
    world.command("apt-cache", "exit 0")
    world.command("apt-get", INSTALL_PACKAGE)
    assert install_packages("chromium", world.said.append, replace(world.host, is_root=False)) is None
    assert any(call.startswith("sudo -n env DEBIAN_FRONTEND=noninteractive apt-get") for call in world.calls())


def test_an_installer_that_hangs_is_cut_off(world: World) -> None:
    world.command("apt-cache", "exit 0")
    world.command("apt-get", "sleep 1000 & echo $! > $WORLD/sleeper; wait")
    fault = install_packages("chromium", world.said.append, replace(world.host, timeout_s=0.5))
    assert fault == "apt-get failed (not done within 0.5 s)"
    sleeper = int((world.directory / "sleeper").read_text())
    with contextlib.suppress(ProcessLookupError):
        pidfd = os.pidfd_open(sleeper)
        assert select.select([pidfd], [], [], 10)[0]  # it has ended
        os.close(pidfd)


def test_a_browser_of_the_settings_that_does_not_run_is_an_error_with_what_it_said(
    world: World, tmp_path: Path
) -> None:
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\necho libnothing.so: cannot open >&2\nexit 127\n")
    broken.chmod(0o755)
    settings = replace(SETTINGS, chromium_executable=str(broken))
    with pytest.raises(BrowserLaunchError, match=r"libnothing\.so"):
        setup(["chromium"], settings, world.said.append, world.host)
    assert world.calls() == []


def test_a_wrong_path_in_the_settings_is_not_answered_by_a_download(world: World) -> None:
    settings = replace(SETTINGS, chromium_executable="/nonexistent/chromium")
    with pytest.raises(BrowserMissing, match="CHROMIUM_EXECUTABLE"):
        setup(["chromium"], settings, world.said.append, world.host)
    assert world.calls() == []


def test_a_redis_of_the_settings_needs_no_server_here(world: World) -> None:
    setup([], replace(SETTINGS, redis_url="redis://elsewhere"), world.said.append, world.host)
    assert world.said == ["redis: the settings name one that runs elsewhere"]


def test_a_missing_redis_is_installed_from_the_system(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def find() -> Path:
        if not any("install" in call for call in world.calls()):
            raise GridError("no redis-server is installed")
        return Path("/usr/bin/redis-server")

    monkeypatch.setattr(setup_browsers, "find_redis_server", find)
    world.command("apt-cache", "exit 0")
    world.command("apt-get", "exit 0")
    setup([], SETTINGS, world.said.append, world.host)
    assert world.calls()[-1].endswith("install -y --no-install-recommends redis-server")


def test_a_redis_that_cannot_be_had_is_an_error(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def find() -> Path:
        raise GridError("no redis-server is installed")

    monkeypatch.setattr(setup_browsers, "find_redis_server", find)
    with pytest.raises(GridError, match=r"no redis-server is installed \(tried to install one: apt-get update failed"):
        setup([], SETTINGS, world.said.append, world.host)


def test_nothing_is_left_in_the_temp_directory(world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    temporary = tmp_path / "t"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    world.command("node", INSTALL_SHELL)
    setup(["chromium"], SETTINGS, world.said.append, world.host)
    assert os.listdir(temporary) == []
