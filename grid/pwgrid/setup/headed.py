"""Finds or installs what browsers with a display take, for clients that ask for one, and opens a window once."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Final

from pwgrid.common.errors import BrowserMissing, GridError
from pwgrid.installed.browsers import FoundBrowser, SearchPaths
from pwgrid.installed.headed import find_headed, find_xvfb, with_display
from pwgrid.settings import value_types
from pwgrid.settings.model import Settings
from pwgrid.settings.pools import PoolSettings
from pwgrid.setup.packages import Host
from pwgrid.worker.browser.displays import Display

_XVFB: Final = ("xvfb",)


def ensure_headed(
    pools: Iterable[PoolSettings],
    settings: Settings,
    host: Host,
    places: SearchPaths,
    find_or_get: Callable[[PoolSettings, Settings], FoundBrowser],
) -> list[GridError]:
    """Makes sure that Xvfb is there, and for each pool a browser that opens a page in a window: `find_or_get` finds or
    installs that. Returns what is wrong."""
    try:
        xvfb = _xvfb(host, places)
    except BrowserMissing as fault:
        return [GridError(f"headed: {fault.what}")]
    host.say(f"headed: displays are of {xvfb}; a browser has to open a window there")
    faults: list[GridError] = []
    for pool in pools:
        if pool.headless:
            try:
                _open_window(pool, settings, xvfb, places, find_or_get)
            except GridError as fault:
                faults.append(GridError(f"headed: {fault}"))
    return faults


def _open_window(
    pool: PoolSettings,
    settings: Settings,
    xvfb: Path,
    places: SearchPaths,
    find_or_get: Callable[[PoolSettings, Settings], FoundBrowser],
) -> None:
    pool, settings = with_display(pool, settings, places)
    with tempfile.TemporaryDirectory(prefix="pwgrid-setup-") as directory:
        try:
            display = asyncio.run(Display.start(Path(directory), xvfb, settings))
        except OSError as error:
            raise GridError(f"Xvfb does not start: {error.strerror or error}") from error
        try:
            variables = {name: value_types.Secret(value) for name, value in display.environment.items()}
            find_or_get(replace(pool, env={**pool.env, **variables}), settings)
        finally:
            display.end()


def _xvfb(host: Host, places: SearchPaths) -> Path:
    """Raises BrowserMissing."""
    try:
        return find_xvfb(places)
    except BrowserMissing:
        failed = host.install("headed", _XVFB)
        if failed is not None:
            raise BrowserMissing(f"there is no Xvfb: {failed}") from None
        return find_xvfb(places)


def why_not_headed(pools: Iterable[PoolSettings], settings: Settings, places: SearchPaths) -> str | None:
    """None when clients of all these pools may ask for a display, else why not."""
    try:
        find_xvfb(places)
        for pool in pools:
            find_headed(pool, settings, places)
    except BrowserMissing as missing:
        return missing.what
    return None
