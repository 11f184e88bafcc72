"""Which files browsers may use, by the settings and the kernel, and what is said where none are kept from them."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from pwgrid.common import confined_exec
from pwgrid.common.errors import ConfigError, GridError
from pwgrid.installed import confine_setting
from pwgrid.installed.browsers import STOCK_FIREFOX_CHANNEL, FoundBrowser
from pwgrid.installed.running_parts import RunningParts, log_warnings
from pwgrid.settings.load import load
from pwgrid.settings.model import Settings
from pwgrid.worker.browser import confined_paths as confinement
from pwgrid.worker.browser.confined_paths import Confinement, Directories, identities, replaced
from pwgrid.worker.browser.launch import LaunchSpec

SHELL = FoundBrowser("chromium", "/opt/shell/chrome-headless-shell", "", "setting")
CHROMIUM = FoundBrowser("chromium", "/opt/chromium/chromium", "", "setting")
FIREFOX = FoundBrowser("firefox", "/opt/firefox/firefox", STOCK_FIREFOX_CHANNEL, "setting")


@pytest.fixture(params=[0, 7])
def version(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Of Landlock in the kernel."""
    found: int = request.param
    monkeypatch.setattr(confined_exec, "abi", lambda: found)
    return found


def without_landlock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confined_exec, "abi", lambda: 0)


def words_of(browser: FoundBrowser, directory: Path, *arguments: str, **settings: Any) -> list[str]:
    """The words before the command of a browser whose user has the home /home/me."""
    environ = {"HOME": "/home/me", "FONTCONFIG_FILE": "/srv/fonts.conf", "TZDIR": "zones", "SECRET_FILE": "/srv/secret"}
    made = Confinement(Settings(**settings), browser, arguments, environ, Directories(directory))
    return made.before_browser()


# By the settings


@pytest.mark.parametrize(
    ("said", "meant"), [(True, "on"), (False, "off"), ("true", "on"), ("No", "off"), ("0", "off"), ("AUTO", "auto")]
)
def test_what_else_means_yes_or_no_is_on_or_off(said: object, meant: str) -> None:
    assert Settings.model_validate({"block_file_urls": said}).block_file_urls == meant


def test_a_choice_of_other_words_is_no_switch() -> None:
    with pytest.raises(ConfigError, match="must be one of auto, on, off"):
        load(None, {"CONFINE": "perhaps"}, {})
    with pytest.raises(ConfigError, match="must be one of compatible, strict, off"):
        load(None, {"CLIENT_GUARD": "false"}, {})


@pytest.mark.parametrize(
    ("confine", "block_file_urls", "without", "with_landlock"),
    [
        ("auto", "auto", (False, True), (True, False)),
        ("auto", "off", (False, False), (True, False)),
        ("auto", "on", (False, True), (True, True)),
        ("off", "auto", (False, True), (False, True)),
        ("on", "auto", (True, False), (True, False)),  # a browser that cannot be confined does not start
    ],
)
def test_browsers_are_confined_or_refused_file_urls(
    version: int,
    confine: str,
    block_file_urls: str,
    without: tuple[bool, bool],
    with_landlock: tuple[bool, bool],
    tmp_path: Path,
) -> None:
    settings = Settings.model_validate({"confine": confine, "block_file_urls": block_file_urls})
    options = json.loads(LaunchSpec(settings, settings.short_form("chromium"), SHELL, tmp_path).options())
    expected = with_landlock if version else without
    assert (bool(options["beforeBrowser"]), options["blockFileUrls"]) == expected


def test_a_grid_that_is_to_be_confined_does_not_start_where_it_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = load(None, {"CONFINE": "on"}, {})
    confine_setting.check(Settings())
    without_landlock(monkeypatch)
    with pytest.raises(GridError, match=r"CONFINE is on, and this kernel has no Landlock.*set CONFINE=auto"):
        RunningParts(loaded)
    confine_setting.check(Settings())
    confine_setting.check(Settings(confine="off"))


@pytest.mark.parametrize(
    ("confine", "private", "said"),
    [("auto", False, True), ("auto", True, False), ("off", False, True), ("off", True, True)],
)
def test_it_is_said_aloud_that_browsers_are_not_confined(
    monkeypatch: pytest.MonkeyPatch, confine: str, private: bool, said: bool
) -> None:
    without_landlock(monkeypatch)
    with capture_logs() as logs:
        log_warnings(load(None, {"CONFINE": confine}, {}, private=private))
    assert [each["log_level"] for each in logs if each["event"] == "browsers_not_confined"] == ["warning"] * said


def test_nothing_is_said_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confined_exec, "abi", lambda: 1)
    with capture_logs() as logs:
        log_warnings(load(None, {}, {}))
    assert logs == []


# Which files


def test_a_browser_gets_its_own_directory_what_variables_and_switches_name_and_no_home(tmp_path: Path) -> None:
    words = words_of(SHELL, tmp_path, "--load-extension=/srv/one,/srv/two", "--lang=de", browser_read_paths=["/srv/x"])
    assert {"/opt/shell", "/srv/fonts.conf", "/srv/one", "/srv/two", "/srv/x", "/home/me/.fonts"} <= {*words}
    assert not {"/home/me", "/srv/secret", "/srv", "/etc", "/", str(tmp_path), "de"} & {*words}
    assert "--own" not in words  # what is its own stands behind them, for each browser that is started
    assert all(each.startswith(("/", "-")) for each in words)


@pytest.mark.parametrize("executable", ["/home/me/chromium", "/home/chromium", "/chromium", "/srv/grids/chromium"])
def test_an_executable_beside_files_of_others_brings_nothing_with_it(executable: str) -> None:
    words = words_of(FoundBrowser("chromium", executable, "", "setting"), Path("/srv/grids/8080/w/1"))
    assert executable in words
    assert str(Path(executable).parent) not in words


def test_a_browser_that_playwright_finds_brings_no_working_directory_with_it(tmp_path: Path) -> None:
    words = words_of(FoundBrowser("chromium", "", "chromium", "setting"), tmp_path)
    assert not {os.getcwd(), os.path.dirname(os.getcwd())} & {*words}
    assert "/home/me/.cache/ms-playwright" in words


def test_a_user_without_a_home_is_none_the_worse(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def no_home(_: object) -> Path:
        raise GridError("this user has no home directory: set HOME")

    monkeypatch.setattr(confinement, "home", no_home)
    assert "/opt/shell" in Confinement(Settings(), SHELL, (), {}, Directories(tmp_path)).before_browser()


@pytest.mark.parametrize(
    ("browser", "headless", "may"),
    [
        (SHELL, True, []),
        (SHELL, False, ["abstract", "unix"]),
        (CHROMIUM, True, ["unix"]),
        (CHROMIUM, False, ["abstract", "unix"]),
        (FIREFOX, True, ["ports"]),
        (FIREFOX, False, ["abstract", "ports", "unix"]),
    ],
)
def test_a_browser_may_open_the_sockets_that_it_needs(
    browser: FoundBrowser, headless: bool, may: list[str], tmp_path: Path
) -> None:
    words = words_of(browser, tmp_path, headless=headless)
    assert [each.removeprefix("--may-") for each in words if each.startswith("--may-")] == may
    assert ("/home/me/.Xauthority" in words) is not headless


@pytest.mark.parametrize(("browser", "may"), [(CHROMIUM, ["unix"]), (FIREFOX, ["ports", "unix"])])
def test_a_browser_with_a_display_of_its_session_reaches_that_alone(
    browser: FoundBrowser, may: list[str], tmp_path: Path
) -> None:
    variables = {"HOME": "/home/me", "DISPLAY": ":1234", "XAUTHORITY": str(tmp_path / "displays/1234/auth")}
    made = Confinement(Settings(), browser, (), variables, Directories(tmp_path), has_own_display=True)
    words = made.before_browser()
    assert [each.removeprefix("--may-") for each in words if each.startswith("--may-")] == may
    of_displays = [each for each in words if "X11-unix" in each or "Xauthority" in each or "displays" in each]
    assert sorted(of_displays) == sorted([variables["XAUTHORITY"], "/tmp/.X11-unix/X1234"])
    headless = Confinement(Settings(), browser, (), {**variables, "XAUTHORITY": ""}, Directories(tmp_path))
    assert "/tmp/.X11-unix/X1234" not in headless.before_browser()


@pytest.mark.parametrize(
    ("browser", "sandbox", "user", "writes"),
    [(SHELL, False, 1, False), (SHELL, True, 1, True), (SHELL, True, 0, False), (FIREFOX, False, 1, True)],
)
def test_a_sandbox_sets_up_its_namespace_unless_root_runs_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, browser: FoundBrowser, sandbox: bool, user: int, writes: bool
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: user)
    words = words_of(browser, tmp_path, chromium_sandbox=sandbox)
    written = words[words.index("--write") + 1 : words.index("--device")]
    assert written == ["/proc"] * writes


def test_firefox_has_a_home_of_its_own(tmp_path: Path) -> None:
    made = Confinement(Settings(), FIREFOX, (), {"HOME": "/home/me"}, Directories(tmp_path))
    variables = made.variables()
    assert variables["HOME"] == variables["XDG_CONFIG_HOME"] == str(tmp_path / "tmp")
    assert variables["XDG_DATA_HOME"] == "/home/me/.local/share"


# Files that are replaced


def test_a_file_that_another_one_takes_the_place_of_is_noticed(tmp_path: Path) -> None:
    path, late, stays = tmp_path / "resolv.conf", tmp_path / "late", tmp_path / "stays"
    path.write_text("one")
    stays.write_text("one")
    files = identities([str(each) for each in (stays, path, late)])
    stays.write_text("rewritten in place")
    assert replaced(files) == ""
    with path.open():  # as the kernel keeps what a browser may read
        path.unlink()
        assert replaced(files) == ""  # nothing is there to be read
        (tmp_path / "new").write_text("two")
        os.replace(tmp_path / "new", path)
        assert replaced(files) == str(path)
    files = identities([str(late)])
    late.write_text("now it is there")
    assert replaced(files) == str(late)


def test_a_file_below_a_directory_that_may_be_read_may_be_replaced(tmp_path: Path) -> None:
    directory = tmp_path / "resolve"
    directory.mkdir()
    (directory / "stub").write_text("one")
    link, plain = tmp_path / "resolv.conf", tmp_path / "plain"
    link.symlink_to(directory / "stub")
    plain.write_text("one")
    settings = Settings(browser_read_paths=(str(link), str(plain), str(directory)))
    files = Confinement(settings, SHELL, (), {"HOME": "/home/me"}, Directories(tmp_path)).of_host()
    assert str(link) not in files
    assert {str(plain), str(directory), "/usr/share"} <= files.keys()
