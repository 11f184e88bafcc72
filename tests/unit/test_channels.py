"""Which browser a client gets that asks for a channel of Playwright's."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest

from pwgrid.common.errors import BrowserMissing
from pwgrid.common.types import BrowserType
from pwgrid.installed.browsers import FoundBrowser, SearchPaths
from pwgrid.installed.channels import find_channel
from pwgrid.settings.model import Settings
from pwgrid.settings.pools import PoolTable

SHELL, FULL = "usr/lib/chromium/chromium-headless-shell", "usr/lib/chromium/chromium"
CHROME = "opt/google/chrome/chrome"
NO_MORE: Final[Mapping[str, str]] = {}


def found(
    root: Path, channel: str, browser: BrowserType = "chromium", *, pool: Mapping[str, str] = NO_MORE
) -> FoundBrowser:
    """On a host where all that is installed is below `root`."""
    places = SearchPaths({"HOME": str(root / "home"), "PATH": ""}, root, root / "core", root / "trials")
    given = PoolTable.model_validate({"name": "appa", "browser": browser, "workers": 1, **pool})
    settings = Settings(pools=(given,))
    return find_channel(channel, settings.pools_wanted()["appa"], settings, places)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Of a host with a headless shell."""
    install(tmp_path, SHELL)
    return tmp_path


def install(root: Path, path: str) -> Path:
    program = root / path
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_bytes(b"\x7fELF")
    program.chmod(0o755)
    return program


def test_it_is_found_where_playwright_finds_it(root: Path) -> None:
    chrome = install(root, CHROME)
    browser = found(root, "chrome")
    assert (browser.executable, browser.channel) == (str(chrome), "chrome")


def test_chromium_is_a_full_one_whatever_its_pool_has(root: Path) -> None:
    shell, full = root / SHELL, install(root, FULL)
    for pool in ({}, {"executable": str(shell)}, {"channel": "chrome"}):
        browser = found(root, "chromium", pool=pool)
        assert (browser.executable, browser.channel) == (str(full), "chromium")


@pytest.mark.parametrize(
    ("channel", "browser", "sentence"),
    [
        ("chrome", "chromium", "channel chrome is not on the grid's host: `playwright install chrome` as root"),
        ("chrome-canary", "chromium", "channel chrome-canary is not on the grid's host: its maker's package installs"),
        ("chromium", "chromium", "no chromium that can have a display is on the grid's host: `pwgrid setup --headed`"),
        ("opera", "chromium", "chromium has no channel opera: ask for one of chromium, chrome, chrome-beta"),
        ("chrome", "firefox", "firefox has no channel chrome: ask for one of moz-firefox"),
        ("chrome", "webkit", "webkit has no channel chrome: leave it out"),
    ],
)
def test_what_is_not_there_is_named_with_what_to_do(
    root: Path, channel: str, browser: BrowserType, sentence: str
) -> None:
    install(root, "usr/lib/firefox-esr/firefox-esr")
    with pytest.raises(BrowserMissing, match=rf"^{sentence}"):
        found(root, channel, browser)


def test_a_stock_firefox_is_the_one_of_its_pool(root: Path) -> None:
    firefox = install(root, "usr/lib/firefox-esr/firefox-esr")
    assert found(root, "moz-firefox", "firefox").executable == str(firefox)
