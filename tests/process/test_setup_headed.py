"""What browsers with a display take: found, got, or said how. Stand-ins, but for the real Xvfb and Chromium."""

import os
import shutil
import socket
from pathlib import Path

import pytest

from pwgrid.common.errors import BrowserMissing, GridError
from pwgrid.installed.headed import find_headed, find_xvfb
from pwgrid.runtime.display_sockets import SOCKETS, remove_socket, take_number
from pwgrid.settings.model import Settings
from pwgrid.worker.browser import displays
from tests.conftest import need_headed
from tests.support.bare_host import SETTINGS, BareHost, host_with_shell
from tests.support.browsers import settings_of_host

APT_INSTALLS = "case \"$*\" in *'install -y'*) ln -s {source} $WORLD/{place};; esac"


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BareHost:
    """A host with a headless shell, and nothing to open a window with."""
    need_headed("chromium")
    return host_with_shell(tmp_path, monkeypatch)


def test_asked_for_it_is_installed_and_a_window_is_opened(world: BareHost, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[Path] = []

    def take(directory: Path) -> tuple[Path, socket.socket]:
        own, listener = take_number(directory)
        taken.append(SOCKETS / f"X{own.name}")
        return own, listener

    monkeypatch.setattr(displays, "take_number", take)
    full = find_headed(settings_of_host().short_form("chromium"), settings_of_host()).executable
    chromium = APT_INSTALLS.format(source=full, place="root/usr/lib/chromium/chromium")
    xvfb = APT_INSTALLS.replace("*)", "*xvfb)").format(source=find_xvfb(), place="bin/Xvfb")
    world.command("apt-cache", "exit 0")
    world.command("apt-get", f"{xvfb}\n{chromium.replace('*)', '*chromium)')}")
    world.setup(["chromium"], headed=True)
    (path,) = taken
    assert not path.exists()
    assert f"headed: displays are of {find_xvfb()}; a browser has to open a window there" in world.said
    assert any("root/usr/lib/chromium/chromium (system): version" in each for each in world.said)
    assert find_headed(SETTINGS.short_form("chromium"), SETTINGS, world.places).executable.endswith("/chromium")


def test_what_cannot_be_had_is_a_fault_where_it_was_asked_for(world: BareHost) -> None:
    world.setup(["chromium"])
    with pytest.raises(GridError, match="headed: there is no Xvfb"):
        world.setup(["chromium"], headed=True)
    with pytest.raises(BrowserMissing, match=r"no chromium that can have a display.*pwgrid setup --headed"):
        find_headed(SETTINGS.short_form("chromium"), SETTINGS, world.places)


def test_a_headless_shell_that_was_chosen_opens_no_windows_and_another_browser_does(world: BareHost) -> None:
    full = world.directory / "root/usr/lib/chromium/chromium"
    full.symlink_to(shutil.which("true") or "true")
    shell = str(world.directory / "root/usr/lib/chromium/chromium-headless-shell")
    for chosen, found in ((shell, full), (str(full), full)):
        settings = Settings(chromium_executable=chosen)
        assert find_headed(settings.short_form("chromium"), settings, world.places).executable == str(found)


def test_no_two_displays_have_the_same_number(tmp_path: Path) -> None:
    taken = [take_number(tmp_path / "displays") for _ in range(20)]
    for own, listener in taken:
        with listener:
            path = SOCKETS / f"X{own.name}"
            assert path.stat().st_mode & 0o777 == 0o600
            assert path.stat().st_uid == os.geteuid()
            remove_socket(own)
            assert path.exists(), "somebody listens there"
        remove_socket(own)
        assert not path.exists()
    assert len({own for own, _ in taken}) == len(taken)
