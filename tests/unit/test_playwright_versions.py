"""Versions of Playwright taken apart, and the drivers that a host has of them."""

import json
import os
from pathlib import Path

import pytest

from pwgrid.common.playwright_version import minor_of, minor_of_client, order_of
from pwgrid.installed import driver as installed
from pwgrid.installed.browsers import SearchPaths, find_for_pool
from pwgrid.installed.driver import (
    OF_SYSTEM,
    DriverMissing,
    driver_of,
    drivers_directories,
    installed_drivers,
    leaving_mark,
    own_driver,
)
from pwgrid.settings.model import Settings
from pwgrid.settings.own_playwright import own_minor
from pwgrid.settings.pools import PoolTable
from tests.support.descriptors import no_descriptor_is_free


def test_a_version_is_taken_apart() -> None:
    assert (minor_of("1.58.0"), minor_of("1.58")) == ("1.58", "1.58")
    assert sorted(["1.100.0", "1.58.10", "1.9.0", "1.58.9"], key=order_of) == ["1.9.0", "1.58.9", "1.58.10", "1.100.0"]
    assert order_of("1.59.0-alpha-2026") == (1, 59, 0)


@pytest.mark.parametrize(
    ("agent", "minor"),
    [
        ("Playwright/1.65.1 (x64; debian 12) python/3.11", "1.65"),
        ("Playwright/1.58.0-alpha", "1.58"),
        ("Mozilla/5.0 Playwright/1.65.1", None),
        ("Playwright", None),
        ("", None),
    ],
)
def test_a_client_says_its_version(agent: str, minor: str | None) -> None:
    assert minor_of_client(agent) == minor


def make_driver(directory: Path, version: str) -> None:
    core = directory / version / "package"
    core.mkdir(parents=True)
    (core / "cli.js").touch()
    (core / "package.json").write_text(json.dumps({"version": version}))
    node = directory / version / "node"
    node.touch(0o755)
    node.chmod(0o755)


def test_pwgrids_own_driver_has_the_version_of_its_code() -> None:
    own = own_driver()
    assert json.loads((own.core / "package.json").read_text())["version"] == own.version
    assert own.minor == own_minor()
    assert own.command("install") == [str(own.node), str(own.cli), "install"]


def test_a_driver_that_is_about_to_be_removed_is_none_that_a_pool_may_have(tmp_path: Path) -> None:
    make_driver(tmp_path, "1.58.0")
    make_driver(tmp_path, "1.5.0")
    leaving_mark(tmp_path, "1.58").touch()
    assert [each.version for each in installed_drivers(tmp_path)] == ["1.5.0", own_driver().version]
    with pytest.raises(DriverMissing, match="which is not installed here"):
        driver_of("1.58", Settings(drivers_dir=str(tmp_path)))


def test_of_each_minor_version_the_newest_driver_counts_and_of_its_own_pwgrids_own(tmp_path: Path) -> None:
    own = own_driver()
    for version in ("1.58.9", "1.58.10", "1.9.0", f"{own.minor}.99"):
        make_driver(tmp_path, version)
    (tmp_path / ".unfinished" / "package").mkdir(parents=True)
    make_driver(tmp_path, "1.7.0")
    (tmp_path / "1.7.0" / "node").unlink()
    assert [each.version for each in installed_drivers(tmp_path)] == ["1.9.0", "1.58.10", own.version]
    assert installed_drivers(tmp_path / "none") == (own,)


def test_without_a_free_descriptor_no_driver_seems_to_be_removed(tmp_path: Path) -> None:
    make_driver(tmp_path, "1.58.0")
    own_driver()  # its version is read once
    with no_descriptor_is_free(), pytest.raises(OSError, match="Too many open files"):
        installed_drivers(tmp_path)


def test_where_two_places_have_a_version_the_first_one_counts(tmp_path: Path) -> None:
    for name in ("mine", "system"):
        make_driver(tmp_path / name, "1.58.0")
    first = installed_drivers(tmp_path / "mine", tmp_path / "system")[0]
    assert first.node == tmp_path / "mine" / "1.58.0" / "node"


def test_drivers_are_where_the_setting_says_or_with_the_other_data_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    assert drivers_directories(Settings(drivers_dir="/srv/drivers")) == (Path("/srv/drivers"),)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    home = Path("/home/ada/.local/state/pwgrid/drivers")
    assert drivers_directories(Settings(), {"HOME": "/home/ada"}) == (home, OF_SYSTEM)
    assert drivers_directories(Settings(), {"XDG_STATE_HOME": "/s"}) == (Path("/s/pwgrid/drivers"), OF_SYSTEM)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert drivers_directories(Settings(), {}) == (OF_SYSTEM,)


def test_a_pool_has_the_driver_of_its_version_and_else_pwgrids_own(tmp_path: Path) -> None:
    make_driver(tmp_path, "1.58.0")
    browser = tmp_path / "chromium"
    browser.touch()
    browser.chmod(0o755)
    settings = Settings(
        drivers_dir=str(tmp_path), pools=(PoolTable(name="old", browser="chromium", playwright="1.58"),)
    )
    old, plain = settings.resolved(settings.pools[0]), settings.short_form("chromium")
    assert (old.playwright, plain.playwright) == ("1.58", own_minor())
    assert old.own != plain.own, "workers of another version are recycled"
    settings = settings.model_copy(update={"chromium_executable": str(browser)})
    places = SearchPaths(root=tmp_path)
    assert find_for_pool(old, settings, places).driver == installed_drivers(tmp_path)[0]
    assert find_for_pool(plain, settings, places).driver == own_driver()


def test_a_version_that_is_not_installed_is_one_sentence_with_the_command_that_adds_it(tmp_path: Path) -> None:
    settings = Settings(
        drivers_dir=str(tmp_path), pools=(PoolTable(name="old", browser="chromium", playwright="1.58"),)
    )
    with pytest.raises(installed.DriverMissing) as refused:
        find_for_pool(settings.resolved(settings.pools[0]), settings)
    assert str(refused.value) == (
        f"pool old wants Playwright 1.58, which is not installed here (there is {own_minor()}): "
        "run `pwgrid setup --playwright 1.58`"
    )
    with pytest.raises(installed.DriverMissing, match=r"^Playwright 1\.59 is wanted, which is not"):
        driver_of("1.59", settings)


@pytest.mark.parametrize("written", ["1", "v1.58", "1.58.0", "latest", ""])
def test_a_pool_names_a_minor_version(written: str) -> None:
    with pytest.raises(ValueError, match=r'must be a version like "1\.58"'):
        PoolTable(name="old", browser="chromium", playwright=written)
