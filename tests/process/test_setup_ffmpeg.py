"""ffmpeg for videos: found, put where Playwright looks, got, or said how; and a real session with recordVideo."""

import shutil
from pathlib import Path

import pytest
from playwright.async_api import async_playwright

from pwgrid.common.errors import GridError
from pwgrid.installed.browsers import SearchPaths
from pwgrid.settings.model import Settings
from pwgrid.setup.ffmpeg import find_ffmpeg
from tests.conftest import need
from tests.support.bare_host import BareHost, host_with_shell
from tests.support.fake_drivers import fake_drivers
from tests.support.stand_in_proxy import browser_server

WORKS = "echo ' V....D libvpx-vp9  libvpx VP9'"
PLACE = "cache/ffmpeg-7/ffmpeg-linux"


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BareHost:
    """A host with a browser and without ffmpeg."""
    return host_with_shell(tmp_path, monkeypatch)


def test_the_system_s_ffmpeg_is_put_where_playwright_looks_for_its_own(world: BareHost) -> None:
    world.command("ffmpeg", WORKS)
    world.setup(["chromium"])
    assert (world.directory / PLACE).resolve() == world.bin / "ffmpeg"
    assert find_ffmpeg(world.places) is None
    assert f"video: {world.bin}/ffmpeg" in world.said
    world.said.clear()
    world.setup(["chromium"])
    assert f"video: {world.bin}/ffmpeg" in world.said


def test_each_driver_has_its_own_and_it_is_said_which_lack_one(world: BareHost) -> None:
    for version in ("1.58.0", "1.59.1"):
        fake_drivers(world.directory / "drivers", version)
    settings = Settings(drivers_dir=str(world.directory / "drivers"))
    world.setup(["chromium"], settings)
    others = "video with Playwright 1.58.0, 1.59.1"
    assert f"{others}: there is no ffmpeg, so a session with recordVideo fails; `pwgrid setup --video` gets one" in (
        world.said
    )
    world.command("ffmpeg", WORKS)
    world.setup(["chromium"], settings)
    assert f"video: {world.bin}/ffmpeg" in world.said
    assert f"{others}: {world.bin}/ffmpeg" in world.said
    linked = sorted((world.directory / "cache").glob("ffmpeg-*/ffmpeg-linux"))
    assert [path.resolve() for path in linked] == [world.bin / "ffmpeg"] * 2


def test_playwright_s_own_stays(world: BareHost) -> None:
    own = world.directory / PLACE
    own.parent.mkdir(parents=True)
    own.write_text(f"#!/bin/sh\n{WORKS}\n")
    own.chmod(0o755)
    world.command("ffmpeg", WORKS)
    world.setup(["chromium"])
    assert not own.is_symlink()
    assert f"video: {own}" in world.said


def test_without_any_set_up_says_how_to_get_one_and_is_content(world: BareHost) -> None:
    world.setup(["chromium"])
    assert (
        "video: there is no ffmpeg, so a session with recordVideo fails; `pwgrid setup --video` gets one" in world.said
    )
    assert world.calls() == []


def test_one_that_cannot_write_a_video_is_not_taken(world: BareHost) -> None:
    world.command("ffmpeg", "echo no encoders")
    world.setup(["chromium"])
    assert f"video: {world.bin}/ffmpeg has no encoder libvpx, with which videos are written; " in world.text()
    assert not (world.directory / PLACE).exists()


def test_asked_for_it_is_playwright_s_or_else_the_system_s(world: BareHost) -> None:
    world.command("apt-cache", "exit 0")
    # With the tools of a real host, of which there are few here.
    script = f"#!/bin/sh\\n{WORKS}"
    world.command("apt-get", f'case "$*" in *\'install -y\'*ffmpeg) printf "{script}\\n" > $WORLD/bin/ffmpeg;; esac')
    (world.directory / "tools" / "chmod").symlink_to(shutil.which("chmod") or "chmod")
    apt_get = world.bin / "apt-get"
    apt_get.write_text(apt_get.read_text() + "[ ! -e $WORLD/bin/ffmpeg ] || chmod 755 $WORLD/bin/ffmpeg\n")
    world.setup(["chromium"], video=True)
    assert "node cli.js install ffmpeg" in world.calls()
    assert any(call.endswith("install -y --no-install-recommends ffmpeg") for call in world.calls())
    assert (world.directory / PLACE).resolve() == world.bin / "ffmpeg"


def test_asked_for_in_vain_it_is_an_error_with_all_reasons(world: BareHost) -> None:
    with pytest.raises(GridError, match=r"video: .*apt-get update failed"):
        world.setup(["chromium"], video=True)
    assert "video: Playwright could not install ffmpeg (exit 1: cannot reach the internet)" in world.said


def test_a_place_that_cannot_be_written_becomes_a_command_for_who_may(
    world: BareHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.command("ffmpeg", WORKS)
    (world.directory / "cache").write_text("not a directory")
    world.setup(["chromium"])
    assert f"run ln -s {world.bin}/ffmpeg {world.directory}/{PLACE} as a user who may" in world.text()


async def test_a_session_with_record_video_works_after_set_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need("chromium")
    if find_ffmpeg(SearchPaths()) is not None:
        pytest.skip("ffmpeg: none here; pwgrid setup --video gets one")
    async with browser_server("chromium") as watched, async_playwright() as playwright:
        browser = await playwright.chromium.connect(watched.endpoint)
        context = await browser.new_context(record_video_dir=str(tmp_path / "videos"))
        page = await context.new_page()
        await page.goto("data:text/html,<body style='background:red'>")
        video = page.video
        assert video is not None
        await context.close()
        await video.save_as(tmp_path / "video.webm")
        await browser.close()
    assert (tmp_path / "video.webm").read_bytes()[:4] == b"\x1a\x45\xdf\xa3"
