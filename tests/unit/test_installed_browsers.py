"""Where browsers are found, on hosts made of a temporary directory."""

import errno
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pwgrid.common.errors import BrowserMissing, GridError
from pwgrid.common.types import BrowserType
from pwgrid.installed.browsers import FoundBrowser, SearchPaths, Trial, find_browser, remember_trial, trial_of
from pwgrid.settings.model import Settings
from pwgrid.setup.ffmpeg import find_ffmpeg

HEADLESS = Settings()
HEADFUL = Settings(headless=False)
ELF = b"\x7fELF"

Install = Callable[..., Path]


@pytest.fixture
def places(tmp_path: Path) -> SearchPaths:
    core = tmp_path / "core"
    core.mkdir()
    names = ("chromium", "chromium-headless-shell", "firefox", "webkit")
    browsers = [{"name": name, "revision": "7"} for name in names]
    browsers.insert(0, {"name": "ffmpeg", "revision": "7"})
    browsers[-1] |= {"revisionOverrides": {"debian11-x64": "5"}}  # type: ignore[dict-item]
    (core / "browsers.json").write_text(json.dumps({"browsers": browsers}))
    environ = {"HOME": str(tmp_path / "home"), "PATH": str(tmp_path / "bin")}
    return SearchPaths(environ, tmp_path / "root", core)


@pytest.fixture
def install(tmp_path: Path) -> Install:
    def write(path: str, content: bytes = ELF, *, complete: bool = True) -> Path:
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
        file.chmod(0o755)
        for parent in file.parents:
            if complete and parent.parent.name == "ms-playwright":
                (parent / "INSTALLATION_COMPLETE").touch()
        return file

    return write


@pytest.fixture
def hide(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """Makes what is below a directory forbidden to look at, also for root."""

    def hide(directory: Path) -> None:
        def stat(path: Any, *arguments: Any, **options: Any) -> os.stat_result:
            if isinstance(path, str | Path) and Path(path).is_relative_to(directory):
                raise PermissionError(errno.EACCES, "Permission denied", str(path))
            return really(path, *arguments, **options)

        really = os.stat
        monkeypatch.setattr(os, "stat", stat)

    return hide


def test_a_directory_in_which_we_may_not_look_has_no_browsers(
    places: SearchPaths, install: Install, hide: Callable[[Path], None], tmp_path: Path
) -> None:
    install(SHELL)
    hide(tmp_path / "home/.cache")
    with pytest.raises(BrowserMissing, match="there is no chromium on this host"):
        find_browser("chromium", HEADLESS, places)
    assert find_ffmpeg(places) == "there is no ffmpeg, so a session with recordVideo fails"
    system = install(SYSTEM_SHELL)
    assert find_browser("chromium", HEADLESS, places).executable == str(system)


def test_a_named_browser_at_which_we_may_not_look_is_one_sentence(
    places: SearchPaths, hide: Callable[[Path], None], tmp_path: Path
) -> None:
    hide(tmp_path / "hidden")
    settings = Settings(chromium_executable=str(tmp_path / "hidden/chromium"))
    with pytest.raises(BrowserMissing, match=r"CHROMIUM_EXECUTABLE is .*, where this user may not look: correct it"):
        find_browser("chromium", settings, places)


def test_who_has_no_home_is_asked_for_one(places: SearchPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", unknown)
    homeless = replace(places, environ={})
    with pytest.raises(GridError, match="this user has no home directory: set HOME"):
        find_browser("chromium", HEADLESS, homeless)
    elsewhere = replace(places, environ={"XDG_CACHE_HOME": "/elsewhere"})
    assert elsewhere.installed == Path("/elsewhere/ms-playwright")


SHELL = "home/.cache/ms-playwright/chromium_headless_shell-7/chrome-headless-shell-linux64/chrome-headless-shell"
CHROMIUM = "home/.cache/ms-playwright/chromium-7/chrome-linux64/chrome"
FIREFOX = "home/.cache/ms-playwright/firefox-7/firefox/firefox"
WEBKIT = "home/.cache/ms-playwright/webkit-7/pw_run.sh"
SYSTEM_SHELL = "root/usr/lib/chromium/chromium-headless-shell"
SYSTEM_CHROMIUM = "root/usr/lib/chromium/chromium"
SYSTEM_FIREFOX = "root/usr/lib/firefox-esr/firefox-esr"


@pytest.mark.parametrize(
    ("present", "settings", "expected"),
    [
        ([SHELL, CHROMIUM, SYSTEM_SHELL], HEADLESS, SHELL),
        ([CHROMIUM, SYSTEM_SHELL], HEADLESS, CHROMIUM),
        ([SHELL, CHROMIUM], HEADFUL, CHROMIUM),
        ([SHELL, SYSTEM_CHROMIUM], HEADFUL, SYSTEM_CHROMIUM),
        ([SYSTEM_CHROMIUM, SYSTEM_SHELL], HEADLESS, SYSTEM_SHELL),
        ([SYSTEM_CHROMIUM, SYSTEM_SHELL], HEADFUL, SYSTEM_CHROMIUM),
        ([SYSTEM_CHROMIUM, "bin/google-chrome"], HEADLESS, SYSTEM_CHROMIUM),
        (["bin/google-chrome"], HEADLESS, "bin/google-chrome"),
        (["root/opt/google/chrome/chrome", "bin/chromium"], HEADLESS, "root/opt/google/chrome/chrome"),
    ],
)
def test_the_best_chromium_is_found(
    places: SearchPaths, install: Install, tmp_path: Path, present: list[str], settings: Settings, expected: str
) -> None:
    for path in present:
        install(path)
    assert find_browser("chromium", settings, places).executable == str(tmp_path / expected)


@pytest.mark.parametrize(
    ("browser_type", "path", "channel", "source"),
    [
        ("chromium", SHELL, "", "playwright"),
        ("chromium", SYSTEM_SHELL, "", "system"),
        ("firefox", FIREFOX, "", "playwright"),
        ("firefox", SYSTEM_FIREFOX, "moz-firefox", "system"),
        ("firefox", "bin/firefox", "moz-firefox", "system"),
        ("webkit", WEBKIT, "", "playwright"),
        ("webkit", "home/.cache/ms-playwright/webkit_debian11_x64_special-5/pw_run.sh", "", "playwright"),
    ],
)
def test_source_and_channel_tell_how_to_drive_it(
    places: SearchPaths, install: Install, browser_type: BrowserType, path: str, channel: str, source: str
) -> None:
    install(path)
    found = find_browser(browser_type, HEADLESS, places)
    assert (found.channel, found.source) == (channel, source)


def test_a_download_that_was_broken_off_does_not_count(places: SearchPaths, install: Install) -> None:
    install(FIREFOX, complete=False)
    with pytest.raises(BrowserMissing):
        find_browser("firefox", HEADLESS, places)


def test_another_revision_does_not_count(places: SearchPaths, install: Install) -> None:
    install(FIREFOX.replace("firefox-7", "firefox-6"))
    with pytest.raises(BrowserMissing):
        find_browser("firefox", HEADLESS, places)


@pytest.mark.parametrize(
    ("environ", "directory"),
    [
        ({"PLAYWRIGHT_BROWSERS_PATH": "/opt/browsers"}, "/opt/browsers"),
        ({"PLAYWRIGHT_BROWSERS_PATH": "here", "INIT_CWD": "/start"}, "/start/here"),
        ({"PLAYWRIGHT_BROWSERS_PATH": "0"}, "/core/.local-browsers"),
        ({"XDG_CACHE_HOME": "/cache", "HOME": "/home/me"}, "/cache/ms-playwright"),
        ({"HOME": "/home/me"}, "/home/me/.cache/ms-playwright"),
    ],
)
def test_playwright_s_own_rule_says_where_its_browsers_are(environ: dict[str, str], directory: str) -> None:
    assert SearchPaths(environ, Path("/"), Path("/core")).installed == Path(directory)


def test_a_wrapper_script_is_used_with_a_note(places: SearchPaths, install: Install) -> None:
    install("bin/chromium", b"#!/bin/sh\nexec /somewhere/chrome\n")
    found = find_browser("chromium", HEADLESS, places)
    assert found.notes == ("a wrapper script, not the browser itself",)


def test_a_snap_is_passed_over_and_the_error_says_so(places: SearchPaths, install: Install) -> None:
    install("bin/chromium-browser", b'#!/bin/sh\nexec /snap/bin/chromium "$@"\n')
    with pytest.raises(BrowserMissing, match="chromium-browser is a snap"):
        find_browser("chromium", HEADLESS, places)


@pytest.mark.parametrize("browser_type", ["chromium", "firefox", "webkit"])
def test_a_missing_browser_is_an_error_that_says_how_to_get_it(places: SearchPaths, browser_type: BrowserType) -> None:
    how = "playwright install" if browser_type == "webkit" else f"pwgrid setup --{browser_type} 1"
    with pytest.raises(BrowserMissing, match=f"no {browser_type} on this host.*{how}"):
        find_browser(browser_type, HEADLESS, places)


def test_the_one_in_the_settings_comes_first(places: SearchPaths, install: Install) -> None:
    install(SHELL)
    chosen = str(install("opt/mine"))
    found = find_browser("chromium", Settings(chromium_executable=chosen), places)
    assert found == FoundBrowser("chromium", chosen, "", "setting")


def test_a_firefox_in_the_settings_is_driven_by_what_it_is(places: SearchPaths, install: Install) -> None:
    own, stock = str(install(FIREFOX)), str(install("opt/firefox"))
    assert find_browser("firefox", Settings(firefox_executable=own), places).channel == ""
    assert find_browser("firefox", Settings(firefox_executable=stock), places).channel == "moz-firefox"


def test_a_wrong_path_in_the_settings_is_an_error_though_others_are_installed(
    places: SearchPaths, install: Install, tmp_path: Path
) -> None:
    install(SHELL)
    settings = Settings(chromium_executable=str(tmp_path / "none"))
    with pytest.raises(BrowserMissing, match=r"CHROMIUM_EXECUTABLE is .*no file"):
        find_browser("chromium", settings, places)
    install("plain").chmod(0o644)
    settings = Settings(chromium_executable=str(tmp_path / "plain"))
    with pytest.raises(BrowserMissing, match=r"CHROMIUM_EXECUTABLE is .*not executable"):
        find_browser("chromium", settings, places)


def test_webkit_is_never_taken_from_the_system(places: SearchPaths, install: Install) -> None:
    install("bin/MiniBrowser")
    install("bin/webkit")
    with pytest.raises(BrowserMissing):
        find_browser("webkit", HEADLESS, places)


def test_a_launch_is_remembered_also_where_a_path_holds_bytes_that_are_no_text(tmp_path: Path) -> None:
    executable = os.fsdecode(os.fsencode(tmp_path) + b"/chromium-\xff")
    Path(executable).touch()
    places, trial = SearchPaths(trials_file=tmp_path / "trials.json"), Trial("it lacks a library", "156.0", 0.7)
    remember_trial(executable, Settings(), places, trial)
    assert trial_of(executable, Settings(), places) == trial
