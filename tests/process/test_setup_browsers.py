"""Setup on hosts whose installers are small scripts; what these bring is a real browser."""

import os
import re
import stat
import subprocess
import tempfile
import time
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from pwgrid.common.errors import BrowserMissing, GridError
from pwgrid.common.launch_failure import BrowserLaunchError
from pwgrid.installed.browsers import OWN_PATHS, SearchPaths, find_browser
from pwgrid.settings.model import Settings
from pwgrid.settings.pools import PoolTable
from pwgrid.setup import browsers as setup_browsers
from pwgrid.setup.packages import Host, Steps
from tests.support.bare_host import SETTINGS, BareHost
from tests.support.http_server import serving

REAL_CHROMIUM = find_browser("chromium", SETTINGS).executable
INSTALLED = "cache/chromium_headless_shell-7"
SHELL = f"{INSTALLED}/chrome-headless-shell-linux64/chrome-headless-shell"
SYSTEM_SHELL = "root/usr/lib/chromium/chromium-headless-shell"


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BareHost:
    world = BareHost(tmp_path)
    return world


INSTALL_SHELL = f"""
mkdir -p $WORLD/{INSTALLED}/chrome-headless-shell-linux64
ln -s {REAL_CHROMIUM} $WORLD/{SHELL}
touch $WORLD/{INSTALLED}/INSTALLATION_COMPLETE
echo downloaded
"""

BARE_SHELL = f"""
case "$*" in
  *install-deps*) touch $WORLD/libraries;;
  *)
    mkdir -p $WORLD/{INSTALLED}/chrome-headless-shell-linux64
    ln -s $WORLD/bare $WORLD/{SHELL}
    touch $WORLD/{INSTALLED}/INSTALLATION_COMPLETE;;
esac
"""


def offer_a_browser_without_libraries(world: BareHost) -> None:
    """Until there is the file `libraries`, it says what the dynamic linker says."""
    bare = world.directory / "bare"
    fault = f"{bare}: error while loading shared libraries: libnss3.so: cannot open shared object file"
    bare.write_text(
        f"#!/bin/sh\n[ -e {world.directory}/libraries ] || {{ echo '{fault}' >&2; exit 127; }}\n"
        f'exec {REAL_CHROMIUM} "$@"\n'
    )
    bare.chmod(0o755)
    world.node(BARE_SHELL)


INSTALL_PACKAGE = f"""
directory=$WORLD/root/usr/lib/chromium
case "$*" in
  *install*) mkdir -p $directory; ln -s {REAL_CHROMIUM} $directory/chromium-headless-shell;;
esac
echo done: "$*"
"""


def test_a_browser_that_is_there_is_checked_and_named(world: BareHost) -> None:
    settings = SETTINGS.model_copy(update={"chromium_executable": REAL_CHROMIUM})
    (found,) = world.setup(["chromium"], settings)
    assert found.executable == REAL_CHROMIUM
    assert re.search(
        rf"(?m)^chromium: {REAL_CHROMIUM} \(setting\): version \d[\d.]+ opened a page after [\d.]+ s$", world.text()
    )
    assert "redis: /" in world.text()
    assert world.calls() == []


BROKEN = "echo 'error while loading shared libraries: libold.so: cannot open shared object file' >&2; exit 127"


def install(world: BareHost, path: str, *, broken: bool) -> Path:
    """A Chromium in this place: the real one, or one that only says what it lacks."""
    file = world.directory / path
    file.parent.mkdir(parents=True, exist_ok=True)
    if "cache/" in path:
        (world.directory / INSTALLED / "INSTALLATION_COMPLETE").touch()
    script = BROKEN if broken else f'exec {REAL_CHROMIUM} "$@"'
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)
    return file


def test_what_does_not_start_is_not_chosen_and_the_grid_takes_the_next_one_too(world: BareHost) -> None:
    broken = install(world, SHELL, broken=True)
    world.host = replace(world.host, is_root=False)
    works = install(world, SYSTEM_SHELL, broken=False)
    (found,) = world.setup(["chromium"])
    assert found.executable == str(works)
    lacks = "the library libold.so is missing"
    assert any(str(broken) in line and "does not start" in line and lacks in line for line in world.said)
    assert find_browser("chromium", SETTINGS, world.places) == found
    # What has changed since was not tried: it may start.
    install(world, SHELL, broken=False)
    assert find_browser("chromium", SETTINGS, world.places).executable == str(broken)


def test_a_browser_that_does_not_start_is_taken_where_there_is_no_other_and_said_to_fail(world: BareHost) -> None:
    broken = install(world, SYSTEM_SHELL, broken=True)
    with pytest.raises(BrowserMissing, match=r"chromium-headless-shell does not start: .*libold\.so"):
        world.setup(["chromium"])
    assert find_browser("chromium", SETTINGS, world.places).executable == str(broken)


def test_a_package_that_does_not_start_is_updated(world: BareHost) -> None:
    install(world, SYSTEM_SHELL, broken=True)
    world.command("apt-cache", "exit 0")
    world.command("apt-get", f'case "$*" in *install*) ln -sf {REAL_CHROMIUM} $WORLD/{SYSTEM_SHELL};; esac')
    (found,) = world.setup(["chromium"])
    assert found.executable == str(world.directory / SYSTEM_SHELL)
    assert [call.split()[-1] for call in world.calls() if call.startswith("apt-get")] == [
        "update",
        "chromium-headless-shell",
    ]


@pytest.mark.parametrize(
    ("prefer", "present", "expected", "asked"),
    [
        ("auto", [SHELL, SYSTEM_SHELL], SHELL, []),
        ("auto", [SYSTEM_SHELL], SYSTEM_SHELL, []),
        ("system", [SHELL, SYSTEM_SHELL], SYSTEM_SHELL, []),
        ("playwright", [SHELL, SYSTEM_SHELL], SHELL, []),
        # It is asked for, and where it cannot be had the other one serves.
        ("playwright", [SYSTEM_SHELL], SYSTEM_SHELL, ["node"]),
        ("system", [SHELL], SHELL, ["apt-get"]),
    ],
)
def test_whose_browser_comes_first_is_a_setting(
    world: BareHost, prefer: str, present: list[str], expected: str, asked: list[str]
) -> None:
    for path in present:
        install(world, path, broken=False)
    settings = Settings.model_validate({"prefer": prefer})
    (found,) = world.setup(["chromium"], settings)
    assert found.executable == str(world.directory / expected)
    assert [call.split()[0] for call in world.calls() if not call.startswith("apt-cache")] == asked
    assert find_browser("chromium", settings, world.places) == found


def test_set_up_says_how_far_the_system_s_browser_is_from_playwright_s(world: BareHost) -> None:
    (version,) = re.findall(
        r"\d+", subprocess.run([REAL_CHROMIUM, "--version"], capture_output=True, text=True).stdout
    )[:1]
    for there, distance in (
        (int(version) + 3, "3 major versions behind"),
        (int(version) - 1, "1 major version ahead of"),
    ):
        world.describe(chromium=f"{there}.0.1")
        install(world, SYSTEM_SHELL, broken=False)
        world.said.clear()
        world.setup(["chromium"])
        assert (
            f"chromium: {version} is {distance} {there}, which Playwright {world.driver.version} is made for; "
            in world.text()
        )
        assert "`pwgrid setup --prefer playwright`" in world.text()
    for same in (f"{version}.9", ""):
        world.describe(chromium=same)
        world.said.clear()
        world.setup(["chromium"])
        assert "major version" not in world.text()


def test_playwright_s_own_download_is_tried_first_and_proven_by_a_page(world: BareHost) -> None:
    world.node(INSTALL_SHELL)
    (found,) = world.setup(["chromium"])
    assert found.source == "playwright"
    assert world.calls() == ["node cli.js install --only-shell chromium"]
    assert "  | downloaded" in world.said
    assert "opened a page" in world.text()


def test_playwright_s_real_installer_gets_it_from_its_server(tmp_path: Path) -> None:
    shell, ffmpeg = tmp_path / "shell.zip", tmp_path / "ffmpeg.zip"
    with zipfile.ZipFile(shell, "w") as archive:
        for path in OWN_PATHS["chromium-headless-shell"]:  # wherever it is looked for on this machine, the real one
            link = zipfile.ZipInfo(path)
            link.external_attr = (stat.S_IFLNK | 0o777) << 16
            archive.writestr(link, REAL_CHROMIUM)
    with zipfile.ZipFile(ffmpeg, "w") as archive:
        archive.writestr("ffmpeg-linux", "")

    def content(path: str) -> bytes:
        return (shell if "headless-shell" in path else ffmpeg).read_bytes()

    said: list[str] = []
    with serving(content) as (url, asked):
        environ = {"PATH": "/nonexistent", "HOME": str(tmp_path), "PLAYWRIGHT_DOWNLOAD_HOST": url}
        host = Host(Steps(said.append), environ, tmp_path / "root", is_root=False)
        places = SearchPaths(environ, host.root)
        (found,) = setup_browsers.setup([SETTINGS.short_form("chromium")], SETTINGS, host, places)
    assert found.source == "playwright"
    assert Path(found.executable).resolve() == Path(REAL_CHROMIUM).resolve()
    assert any("headless-shell" in path for path in asked)
    assert "opened a page" in "\n".join(said)


def test_libraries_are_installed_only_when_the_downloaded_browser_lacks_them(world: BareHost) -> None:
    offer_a_browser_without_libraries(world)
    (found,) = world.setup(["chromium"])
    assert found.source == "playwright"
    assert world.calls() == ["node cli.js install --only-shell chromium", "node cli.js install-deps chromium"]
    assert "this host lacks libraries" in world.text()


def test_without_root_missing_libraries_are_a_command_to_run(world: BareHost) -> None:
    offer_a_browser_without_libraries(world)
    world.host = replace(world.host, is_root=False)
    with pytest.raises(GridError) as caught:
        world.setup(["chromium"])
    assert "installing them takes root" in str(caught.value)
    node = str(world.bin / "node")
    assert (
        str(caught.value)
        .splitlines()[-1]
        .endswith(f"apt-get update && apt-get install chromium-headless-shell && {node} cli.js install-deps chromium")
    )


def test_a_download_waits_ten_seconds_for_a_connection_unless_the_user_says_otherwise(world: BareHost) -> None:
    world.node("echo waits $PLAYWRIGHT_DOWNLOAD_CONNECTION_TIMEOUT; exit 1")
    with pytest.raises(BrowserMissing, match="waits 10000"):
        world.setup(["chromium"])
    world.host = replace(world.host, environ={**world.host.environ, "PLAYWRIGHT_DOWNLOAD_CONNECTION_TIMEOUT": "5"})
    with pytest.raises(BrowserMissing, match="waits 5;"):
        world.setup(["chromium"])


def test_the_system_s_headless_shell_is_the_second_way(world: BareHost) -> None:
    world.command("apt-get", INSTALL_PACKAGE)
    world.command("apt-cache", "exit 0")
    (found,) = world.setup(["chromium"])
    assert found.source == "system"
    assert "cannot reach the internet" in world.text()
    assert world.calls()[-1].endswith("install -y --no-install-recommends chromium-headless-shell")


def test_a_browser_with_a_window_is_the_whole_chromium(world: BareHost) -> None:
    world.command("apt-cache", "exit 0")
    with pytest.raises(BrowserMissing):
        world.setup(["chromium"], SETTINGS.model_copy(update={"headless": False}))
    assert "node cli.js install chromium" in world.calls()
    assert any(call.endswith("install -y --no-install-recommends chromium") for call in world.calls())


def test_empty_package_lists_are_fetched_first(world: BareHost) -> None:
    world.command("apt-cache", "test -e $WORLD/updated")
    world.command("apt-get", f'case "$*" in *update*) touch $WORLD/updated;; esac\n{INSTALL_PACKAGE}')
    world.setup(["chromium"])
    last_words = [call.split()[-1] for call in world.calls() if call.startswith("apt-get")]
    assert last_words == ["update", "chromium-headless-shell"]


def package_lists(world: BareHost, age_h: float) -> None:
    """Package lists that changed so long ago on the server."""
    lists = world.directory / "root" / "var" / "lib" / "apt" / "lists"
    lists.mkdir(parents=True, exist_ok=True)
    for name, hours in (("deb.debian.org_debian_dists_bookworm_InRelease", 3000), ("security_InRelease", age_h)):
        (lists / name).touch()
        os.utime(lists / name, (time.time(), time.time() - hours * 3600))


@pytest.mark.parametrize(("age_h", "updates"), [(23, 0), (25, 1)])
def test_package_lists_older_than_a_day_are_fetched_first(world: BareHost, age_h: float, updates: int) -> None:
    package_lists(world, age_h)
    world.command("apt-cache", "exit 0")
    world.command("apt-get", INSTALL_PACKAGE)
    world.setup(["chromium"])
    assert [call.split()[-1] for call in world.calls() if call.startswith("apt-get")] == [
        *["update"] * updates,
        "chromium-headless-shell",
    ]


@pytest.mark.skipif(not Path("/usr/bin/apt-get").exists(), reason="no apt here")
def test_an_update_that_fetches_nothing_is_said_though_apt_calls_that_a_warning(world: BareHost) -> None:
    package_lists(world, 25)
    sources = world.directory / "sources.list"
    sources.write_text("deb [trusted=yes] http://127.0.0.1:9/debian stable main\n")
    (world.directory / "state" / "lists" / "partial").mkdir(parents=True)
    places = f"-o Dir::Etc::sourcelist={sources} -o Dir::Etc::sourceparts=- -o Dir::State={world.directory}/state"
    places += f" -o Dir::Cache={world.directory}/apt-cache -o APT::Sandbox::User=root"
    world.command("apt-cache", "exit 0")
    world.command("apt-get", f'case "$*" in *update) exec /usr/bin/apt-get {places} "$@";; esac\n{INSTALL_PACKAGE}')
    world.setup(["chromium"])
    (said,) = (line for line in world.said if "going on with the package lists that are here" in line)
    assert said.startswith("chromium: apt-get update failed (exit 100: ")
    assert "127.0.0.1:9" in said


def test_a_node_that_lacks_a_library_gets_it_before_any_browser(world: BareHost) -> None:
    linker = "node: error while loading shared libraries: libatomic.so.1: cannot open shared object file"
    lacks = f'[ -e $WORLD/atomic ] || {{ echo "{linker}" >&2; exit 127; }}'
    world.command("node", f'{lacks}\n[ "$*" = "cli.js --version" ] && exit\n{INSTALL_SHELL}')
    world.command("apt-cache", "exit 0")
    world.command("apt-get", 'case "$*" in *libatomic1*) touch $WORLD/atomic;; esac')
    (found,) = world.setup(["chromium"])
    assert found.source == "playwright"
    installs = [call.split()[-1] for call in world.calls() if " install " in call]
    assert installs == ["libatomic1", "chromium"]
    assert f"playwright: its Node does not run yet: {linker}" in world.said


def test_without_root_all_that_is_missing_is_one_command(world: BareHost) -> None:
    world.command("node", "echo error while loading shared libraries: libatomic.so.1 >&2; exit 127")
    world.host = replace(world.host, is_root=False)
    with pytest.raises(GridError) as caught:
        world.setup(["chromium", "firefox"])
    last = str(caught.value).splitlines()[-1]
    assert last.strip() == (
        "run this as root, then try again: "
        "apt-get update && apt-get install libatomic1 chromium-headless-shell firefox-esr"
    )
    assert not any(call.startswith("apt-get") for call in world.calls())


def test_when_no_way_works_the_error_has_the_reason_of_each(world: BareHost) -> None:
    with pytest.raises(BrowserMissing) as caught:
        world.setup(["chromium"])
    assert "cannot reach the internet" in str(caught.value)
    assert "apt-get update failed (exit 100: unable to locate)" in str(caught.value)
    assert "CHROMIUM_EXECUTABLE" in str(caught.value)
    assert "pwgrid setup" not in str(caught.value)  # which is what just failed


def test_what_one_browser_lacks_does_not_hide_what_another_lacks(world: BareHost) -> None:
    with pytest.raises(GridError) as caught:
        world.setup(["chromium", "webkit"])
    assert "chromium could not be installed" in str(caught.value)
    assert "webkit could not be installed" in str(caught.value)


def test_webkit_has_no_second_way(world: BareHost) -> None:
    with pytest.raises(BrowserMissing, match="no system has a package of the WebKit"):
        world.setup(["webkit"])
    assert all("apt" not in call for call in world.calls())


def test_ubuntu_s_snaps_are_not_installed(world: BareHost) -> None:
    release = world.directory / "root" / "etc" / "os-release"
    release.parent.mkdir(parents=True)
    release.write_text('NAME="Ubuntu"\nID=ubuntu\n')
    with pytest.raises(BrowserMissing, match="is a snap"):
        world.setup(["firefox"])
    assert all("apt" not in call for call in world.calls())


def test_a_browser_of_the_settings_that_does_not_run_is_an_error_with_what_it_said(
    world: BareHost, tmp_path: Path
) -> None:
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\necho libnothing.so: cannot open >&2\nexit 127\n")
    broken.chmod(0o755)
    settings = SETTINGS.model_copy(update={"chromium_executable": str(broken)})
    with pytest.raises(BrowserLaunchError, match=r"libnothing\.so"):
        world.setup(["chromium"], settings)
    assert world.calls() == []


def test_a_wrong_path_in_the_settings_is_not_answered_by_a_download(world: BareHost) -> None:
    settings = SETTINGS.model_copy(update={"chromium_executable": "/nonexistent/chromium"})
    with pytest.raises(BrowserMissing, match="CHROMIUM_EXECUTABLE"):
        world.setup(["chromium"], settings)
    assert world.calls() == []


def test_nothing_is_left_in_the_temp_directory(world: BareHost, monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory() as temporary:  # a short path: a socket's has 107 bytes at most
        monkeypatch.setattr("tempfile.tempdir", temporary)
        world.node(INSTALL_SHELL)
        world.setup(["chromium"])
        assert os.listdir(temporary) == []


def test_each_pool_gets_the_browser_that_it_says_once_for_each_way_to_launch_it(world: BareHost) -> None:
    tables = [
        {"name": "a", "browser": "chromium", "executable": REAL_CHROMIUM},
        {"name": "b", "browser": "chromium", "executable": REAL_CHROMIUM, "workers": 3},
        {"name": "c", "browser": "chromium", "executable": REAL_CHROMIUM, "env": {"TZ": "UTC"}},
    ]
    pools = [SETTINGS.resolved(PoolTable.model_validate(table)) for table in tables]
    found = setup_browsers.setup(pools, SETTINGS, world.host, world.places)
    assert [each.executable for each in found] == [REAL_CHROMIUM] * 2
    assert world.text().count("opened a page") == 2


def test_a_pools_wrong_executable_is_told_as_such(world: BareHost) -> None:
    table = PoolTable.model_validate({"name": "a", "browser": "chromium", "executable": "/nowhere/chrome"})
    with pytest.raises(BrowserMissing, match="the executable of pool a is /nowhere/chrome, where there is no file"):
        setup_browsers.setup([SETTINGS.resolved(table)], SETTINGS, world.host, world.places)
