"""Finds or installs the ffmpeg with which Playwright records videos, and says each step."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Final

from pwgrid.installed.browsers import SearchPaths, ffmpeg_paths
from pwgrid.installed.driver import Driver
from pwgrid.setup.packages import Host, output_of

ENCODER: Final = "libvpx"
"""Playwright's videos are WebM files, which need it."""

_PACKAGES: Final = ("ffmpeg",)


def ffmpegs(places: SearchPaths, drivers: Iterable[Driver]) -> list[tuple[str, SearchPaths]]:
    """Where each ffmpeg is looked for: first the one of `places`, then those that only these other drivers want, with
    their names: `Playwright 1.58.0, 1.62.0`."""
    found = {_path(places): (places, list[str]())}
    for driver in drivers:
        each = replace(places, driver=driver, playwright_core=driver.core)
        found.setdefault(_path(each), (each, []))[1].append(driver.version)
    return [("" if each is places else f"Playwright {', '.join(versions)}", each) for each, versions in found.values()]


def _path(places: SearchPaths) -> Path | None:
    """Where the driver looks first."""
    return next(iter(ffmpeg_paths(places)), None)


def ensure_ffmpeg(host: Host, places: SearchPaths, *, get: bool, what: str = "video") -> str | None:
    """Makes sure that a session with recordVideo works: with Playwright's own ffmpeg, or a link to the system's there.
    Calls it `what`.

    Installs one where there is none and `get` is true. None when there is one now, else why not and what to do.
    """
    fault = find_ffmpeg(places)
    if fault is not None:
        fault = _link(host, places, fault)
    for way in (_from_playwright, _from_system) if get else ():
        if fault is None:
            break
        host.say(f"{what}: {fault}")
        failed = way(host, places)
        fault = find_ffmpeg(places) and _link(host, places, failed or fault)
    if fault is not None:
        return fault
    host.say(f"{what}: {next(filter(os.path.exists, ffmpeg_paths(places))).resolve()}")
    return None


def find_ffmpeg(places: SearchPaths) -> str | None:
    """None when there is a working ffmpeg where Playwright looks, else why not."""
    for path in ffmpeg_paths(places):
        if os.path.exists(path):  # not Path.exists(), which raises where we may not look
            return _fault_of(path)
    return "there is no ffmpeg, so a session with recordVideo fails"


def _fault_of(program: Path) -> str | None:
    """None when this ffmpeg runs and can write a video, else why not."""
    printed, fault = output_of([program, "-hide_banner", "-encoders"])
    if fault is not None:
        return f"{program} does not run: {fault}"
    return None if ENCODER in printed else f"{program} has no encoder {ENCODER}, with which videos are written"


def _link(host: Host, places: SearchPaths, reason: str) -> str | None:
    """Links the system's ffmpeg to where Playwright looks for its own. None when that works, else why not."""
    wanted, system = _path(places), host.which("ffmpeg")
    if system is None or wanted is None:
        return reason
    fault = _fault_of(Path(system))
    if fault is not None:
        return fault
    try:
        wanted.parent.mkdir(parents=True, exist_ok=True)
        wanted.unlink(missing_ok=True)
        wanted.symlink_to(Path(system).resolve())
    except OSError as error:
        return f"{error}: run ln -s {system} {wanted} as a user who may"
    return None


def _from_playwright(host: Host, places: SearchPaths) -> str | None:
    host.say("video: asking Playwright to install its own ffmpeg")
    fault = host.run(places.driver.command("install", "ffmpeg"))
    return fault and f"Playwright could not install ffmpeg ({fault})"


def _from_system(host: Host, _places: SearchPaths) -> str | None:
    return host.install("video", _PACKAGES)
