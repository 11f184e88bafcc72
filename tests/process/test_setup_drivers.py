"""`pwgrid setup --playwright`: a real driver from PyPI, one that the browser server does not know, and its removal."""

import errno
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from pwgrid.common.errors import GridError
from pwgrid.installed.driver import Driver, driver_of, installed_drivers, own_driver
from pwgrid.settings.model import Settings
from pwgrid.setup import drivers
from pwgrid.setup.drivers import check_minor, fault_of, get_drivers, remove_driver
from pwgrid.setup.packages import Host, Steps
from pwgrid.worker.browser.launch import CHECK_DRIVER
from tests.support.bare_host import BareHost
from tests.support.browsers import fit_browser
from tests.support.drivers import MIDDLE, NEWEST, OLDEST, cached_driver
from tests.support.grid import ROOT, running_grid

pytestmark = pytest.mark.timeout(600)  # pip is among what runs here


class Place:
    """A directory for drivers, and what set-up says."""

    def __init__(self, directory: Path, **environ: str) -> None:
        self.directory = directory
        self.settings = Settings(drivers_dir=str(directory))
        self.said: list[str] = []
        self.host = Host(Steps(self.said.append), {**os.environ, **environ})

    def names(self) -> list[str]:
        return sorted(os.listdir(self.directory))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "drivers")


def wheel_of(driver: Path, directory: Path, version: str) -> Path:
    """A wheel of Playwright with this driver in it."""
    wheel = directory / f"playwright-{version}-py3-none-any.whl"
    info = f"playwright-{version}.dist-info"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_STORED) as archive:
        for path in driver.rglob("*"):
            if path.is_file():
                archive.write(path, f"playwright/driver/{path.relative_to(driver)}")
        archive.writestr("playwright/__init__.py", "")
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: playwright\nVersion: {version}\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return wheel


def from_wheel(place: Place, wheel: Path) -> None:
    """Has pip find this wheel alone."""
    place.host = Host(
        place.host.say,
        {**os.environ, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheel.parent), "PIP_CONFIG_FILE": os.devnull},
    )


def test_a_driver_comes_out_of_its_wheel_is_kept_and_goes_when_nobody_runs_it(place: Place) -> None:
    cached_driver(OLDEST)  # skips where PyPI cannot be reached
    assert get_drivers([OLDEST, OLDEST, own_driver().minor], place.settings, place.host) == []
    driver = driver_of(OLDEST, place.settings)
    assert place.names() == [driver.version]
    assert driver.minor == OLDEST
    for licence in ("LICENSE", "package/LICENSE", "package/ThirdPartyNotices.txt"):
        assert (driver.node.parent / licence).stat().st_size > 0
    assert driver.cli.stat().st_mode & 0o777 == 0o644
    assert driver.core.stat().st_mode & 0o777 == 0o755

    place.said.clear()
    assert get_drivers([OLDEST], place.settings, place.host) == []
    assert place.said == [f"Playwright {OLDEST}: driver {driver.version} is in {driver.node.parent}"]

    with subprocess.Popen([driver.node, "-e", "setInterval(() => {}, 1000); console.log(1)"], stdout=-1) as running:
        assert running.stdout is not None
        running.stdout.readline()
        try:
            with pytest.raises(GridError, match=rf"Playwright {OLDEST} is in use \(process {running.pid}\)"):
                remove_driver(OLDEST, place.settings, place.host)
        finally:
            running.kill()
    remove_driver(OLDEST, place.settings, place.host)
    assert place.names() == []
    assert installed_drivers(place.directory) == (own_driver(),)
    with pytest.raises(GridError, match=f"no driver of Playwright {OLDEST} is installed here"):
        remove_driver(OLDEST, place.settings, place.host)
    with pytest.raises(GridError, match="is pwgrid's own, and is removed with it"):
        remove_driver(own_driver().minor, place.settings, place.host)


def test_a_driver_that_the_browser_server_does_not_know_is_refused_in_a_sentence(place: Place, tmp_path: Path) -> None:
    """Of a Playwright to come, whose server of a launched browser has another method."""
    known = cached_driver("1.62")
    unknown = tmp_path / "unknown"
    shutil.copytree(known.core, unknown / "package")
    shutil.copy(known.node, unknown / "node")
    bundle = unknown / "package/lib/coreBundle.js"
    bundle.write_text(bundle.read_text().replace("_initPreLaunchedBrowserMode", "_initLaunchedMode"))
    manifest = unknown / "package/package.json"
    manifest.write_text(manifest.read_text().replace('"version": "1.62.0"', '"version": "1.99.0"'))
    from_wheel(place, wheel_of(unknown, tmp_path, "1.99.0"))
    (fault,) = get_drivers(["1.99"], place.settings, place.host)
    assert str(fault) == (
        "Playwright 1.99: pwgrid does not know its driver 1.99.0 well enough to keep sessions apart in it: it has no "
        "PlaywrightServer.prototype._initPreLaunchedBrowserMode(), SocksSupport._type; "
        "take another version, or a later pwgrid"
    )
    assert place.names() == []


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Driver:
    """A copy of pwgrid's own driver."""
    own, copied = own_driver(), tmp_path_factory.mktemp("driver") / "package"
    shutil.copytree(own.core, copied)
    return Driver(own.version, own.node, copied / own.cli.name)


@pytest.mark.parametrize(
    ("bundle", "name", "lacks"),
    [
        ("coreBundle", "_contextForReuse", "browserOfReused._contextForReuse"),
        ("coreBundle", "_sendMayFail", "attached._session._sendMayFail()"),
        ("coreBundle", "streamOrDirectory", "WritableStream._object.streamOrDirectory.destroy()"),
        ("coreBundle", "proxyOverride", "contextOptions.proxyOverride.server"),
        ("coreBundle", "SocksProxy: ()", "driver.SocksProxy()"),
        ("coreBundle", "_bidiPages", "stockFirefox._bidiPages.get()"),
        ("utilsBundle", "_autoPong", "webSocket._autoPong"),
    ],
)
def test_a_driver_in_which_something_has_another_name_is_refused_by_what_it_lacks(
    whole: Driver, bundle: str, name: str, lacks: str
) -> None:
    path = whole.core / f"lib/{bundle}.js"
    text = path.read_text()
    assert name in text
    path.write_text(text.replace(name, f"other{name}"))
    try:
        fault = str(fault_of(whole))
    finally:
        path.write_text(text)
    assert fault.startswith(f"pwgrid does not know its driver {whole.version} well enough")
    assert f" {lacks}" in fault


ASKED = """
const { lookAt } = require(process.argv[1] + '/look_at_driver.cjs');
const { commandOf, questionFor } = require(process.argv[1] + '/browsers.cjs');
const found = {};
const commandAt = browser => {
  const [session, ...question] = questionFor(browser);
  session.send(...question);
  return commandOf(browser, [...session._callbacks.keys()].at(-1));
};
lookAt(process.argv[2], found).then(() => {
  console.log(JSON.stringify(['browser', 'stockFirefox', 'firefox', 'webkit'].map(name => commandAt(found[name]))));
  process.exit();
});
"""


@pytest.mark.parametrize("minor", [OLDEST, MIDDLE, NEWEST])
def test_each_kind_of_browser_is_asked_in_its_own_protocol(minor: str, tmp_path: Path) -> None:
    driver = cached_driver(minor)
    command = [driver.node, "-e", ASKED, CHECK_DRIVER.parent, driver.core]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, env=environment)
    assert json.loads(done.stdout) == [
        "Browser.getVersion",
        "session.status",
        "Browser.getInfo",
        "Playwright.getInfo",
    ]


def test_a_version_that_pip_cannot_get_is_one_sentence_and_leaves_nothing(place: Place, tmp_path: Path) -> None:
    from_wheel(place, tmp_path / "no.whl")
    (fault,) = get_drivers(["1.58"], place.settings, place.host)
    assert str(fault).startswith("Playwright 1.58: pip could not get it (exit 1: ")
    assert place.names() == []
    (place.directory / "1.59.0").mkdir()
    with pytest.raises(GridError, match="its Node does not run"):
        raise GridError(fault_of(own_driver_in(place.directory / "1.59.0")) or "")


def test_a_check_leaves_no_file_and_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    assert fault_of(own_driver()) is None
    assert list(tmp_path.iterdir()) == []
    started = [each for each in psutil.process_iter(["environ"]) if str(tmp_path) in str(each.info["environ"])]
    assert started == []


def own_driver_in(directory: Path) -> drivers.Driver:
    return drivers.Driver("1.59.0", directory / "node", directory / "package/cli.js")


@pytest.mark.parametrize(
    ("said", "meant"), [("1.58", "1.58"), ("1.58.0", "1.58"), ("1.57", "older than 1.58"), ("latest", "is no version")]
)
def test_a_version_is_said_as_people_say_it(said: str, meant: str) -> None:
    if meant.startswith("1"):
        assert check_minor(said) == meant
    else:
        with pytest.raises(GridError, match=meant):
            check_minor(said)


def test_set_up_drives_each_browser_with_each_driver_and_says_which_pair_does_not_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = cached_driver(OLDEST)
    world = BareHost(tmp_path)
    shell = tmp_path / "root/usr/lib/chromium/chromium-headless-shell"
    shell.parent.mkdir(parents=True)
    shell.symlink_to(fit_browser("chromium").executable)
    settings = Settings(drivers_dir=str(driver.node.parents[1]))
    monkeypatch.setattr("pwgrid.setup.browsers.installed_drivers", lambda *_: (driver, world.driver))
    world.setup(["chromium"], settings)
    assert f"chromium: {shell} (system, Playwright {driver.version}): version " in world.text()
    assert f"chromium: {shell} (system): version " in world.text()
    shell.unlink()
    shell.write_text("#!/bin/sh\nexit 1\n")
    shell.chmod(0o755)
    world.said.clear()
    with pytest.raises(GridError):
        world.setup(["chromium"], settings)
    assert f"chromium with Playwright {driver.version}: skipped, a pool with this pair would not start" in world.text()


def test_a_driver_that_a_pool_of_a_running_grid_has_is_not_removed(tmp_path: Path) -> None:
    driver = cached_driver(OLDEST)
    place = tmp_path / "drivers"
    place.mkdir()
    (place / driver.version).symlink_to(driver.node.parent)
    config = tmp_path / "grid.toml"
    config.write_text(f'[[pools]]\nname = "old"\nbrowser = "chromium"\nplaywright = "{OLDEST}"\n')
    environment = {"PWGRID_CONFIG": str(config), "DRIVERS_DIR": str(place)}
    with running_grid(environment=environment, fake=True) as grid:
        done = grid.command("setup", "--remove", OLDEST)
        assert done.returncode == 1
        assert f"Playwright {OLDEST} is in use by pool old of the grid at ws://127.0.0.1:{grid.port}" in done.stderr
        assert "take it out of that pool, or stop that grid, first" in done.stderr
        told = grid.command("version")
        assert f"drivers for clients of Playwright: {driver.version}, {own_driver().version}" in told.stdout


@pytest.fixture
def removes(tmp_path: Path) -> Iterator[tuple[Place, subprocess.Popen[bytes], subprocess.Popen[str]]]:
    """A driver whose program runs without a grid, and `pwgrid setup --remove` that waits for it."""
    place = Place(tmp_path / "drivers")
    directory = place.directory / f"{OLDEST}.0"
    (directory / "package").mkdir(parents=True)
    shutil.copy(own_driver().cli, directory / "package")
    shutil.copy("/bin/sleep", directory / "node")
    command = [sys.executable, "-m", "pwgrid", "setup", "--remove", OLDEST, "--when-idle"]
    environment = {**os.environ, "DRIVERS_DIR": str(place.directory)}
    with (
        subprocess.Popen([directory / "node", "1000"]) as runs,
        subprocess.Popen(command, cwd=ROOT, env=environment, stdout=-1, stderr=subprocess.STDOUT, text=True) as waits,
    ):
        try:
            assert waits.stdout is not None
            assert (
                waits.stdout.readline() == f"Playwright {OLDEST}: no new client gets it; waits for process {runs.pid}\n"
            )
            yield place, runs, waits
        finally:
            waits.kill()
            runs.kill()


def test_without_a_grid_a_driver_goes_when_the_last_process_that_runs_it_ends(
    removes: tuple[Place, subprocess.Popen[bytes], subprocess.Popen[str]],
) -> None:
    place, runs, waits = removes
    assert installed_drivers(place.directory) == (own_driver(),)
    assert f"{OLDEST}.0" in place.names()
    assert waits.poll() is None
    runs.kill()
    runs.wait()
    said, _ = waits.communicate(timeout=60)
    assert (waits.returncode, said) == (0, f"Playwright {OLDEST}: removed {place.directory}/{OLDEST}.0\n")
    assert place.names() == []


def test_a_removal_that_was_interrupted_is_taken_up_by_the_next_one(
    removes: tuple[Place, subprocess.Popen[bytes], subprocess.Popen[str]],
) -> None:
    place, runs, waits = removes
    waits.kill()
    runs.kill()
    runs.wait()
    assert installed_drivers(place.directory) == (own_driver(),)
    remove_driver(OLDEST, place.settings, place.host)
    assert place.names() == []


def test_a_driver_of_another_user_keeps_being_offered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's grid takes those of the whole system, too, and only root may remove those."""
    mine, theirs = tmp_path / "mine", tmp_path / "theirs"
    for directory in (mine, theirs):
        (directory / f"{OLDEST}.0").mkdir(parents=True)
    monkeypatch.setattr(drivers, "drivers_directories", lambda _: (mine, theirs))
    monkeypatch.setattr(Path, "touch", may_touch_only(mine))
    with pytest.raises(GridError, match=f"the driver in {theirs} cannot be removed: Permission denied"):
        drivers.offer_no_more(OLDEST, Settings())
    assert os.listdir(mine) == os.listdir(theirs) == [f"{OLDEST}.0"]


def may_touch_only(directory: Path) -> Callable[[Path], None]:
    """As for a user without rights; the tests may run as root."""
    touch = Path.touch

    def touched(path: Path) -> None:
        if not path.is_relative_to(directory):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        touch(path)

    return touched


def test_a_driver_that_is_installed_again_while_its_removal_waits_stays(
    removes: tuple[Place, subprocess.Popen[bytes], subprocess.Popen[str]],
) -> None:
    place, _, waits = removes
    get_drivers([OLDEST], place.settings, place.host)  # its fault is that this one is no Node
    said, _ = waits.communicate(timeout=60)
    assert (waits.returncode, said) == (1, f"pwgrid: Playwright {OLDEST} was installed again meanwhile, and stays\n")
    assert place.names() == [f"{OLDEST}.0"]


def test_a_grid_whose_pool_names_a_version_that_is_not_here_says_the_command_that_adds_it(tmp_path: Path) -> None:
    config = tmp_path / "grid.toml"
    config.write_text('[[pools]]\nname = "old"\nbrowser = "chromium"\nplaywright = "1.60"\n')
    environment = {**os.environ, "PWGRID_CONFIG": str(config), "DRIVERS_DIR": str(tmp_path), "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-m", "pwgrid", "serve", "--port", "0"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode != 0
    assert "pool old wants Playwright 1.60, which is not installed here" in done.stderr
    assert "run `pwgrid setup --playwright 1.60`" in done.stderr
