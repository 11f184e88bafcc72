"""Finds what a browser with a display takes: a browser that can have one, and an X server that needs no screen."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Final

from pwgrid.common.errors import BrowserMissing
from pwgrid.installed.browsers import FoundBrowser, SearchPaths, find_for_pool
from pwgrid.settings.model import Settings
from pwgrid.settings.pools import PoolSettings

HOW_TO_GET: Final = "`pwgrid setup --headed` adds it"


def find_headed(pool: PoolSettings, settings: Settings, places: SearchPaths | None = None) -> FoundBrowser:
    """What is launched for a client of this pool that wants a display: the pool's own browser, if that can have one,
    else the best that can. Raises BrowserMissing."""
    pool, settings = with_display(pool, settings, places)
    try:
        return find_for_pool(pool, settings, places)
    except BrowserMissing as missing:
        what = f"no {pool.browser_type} that can have a display is on the grid's host"
        raise BrowserMissing(f"{what}: {HOW_TO_GET}") from missing


def with_display(
    pool: PoolSettings, settings: Settings, places: SearchPaths | None = None
) -> tuple[PoolSettings, Settings]:
    """The pool and its settings, as they are for browsers with a display. Raises BrowserMissing for a wrong path."""
    pool = replace(pool, headless=False)
    own = settings.of_pool(pool)
    is_chosen = pool.channel or own.executable(pool.browser_type)
    if not is_chosen or not is_shell(find_for_pool(pool, settings, places)):
        return pool, own
    pool = replace(pool, executable="")
    return pool, settings.of_pool(pool)


def is_shell(browser: FoundBrowser) -> bool:
    """Whether it is a headless shell, which has nothing to open a window with."""
    return "headless" in os.path.basename(browser.executable)


def find_xvfb(places: SearchPaths | None = None) -> Path:
    """The X server that keeps its screen in memory. Raises BrowserMissing."""
    places = places or SearchPaths()
    found = shutil.which("Xvfb", path=places.environ.get("PATH", ""))
    if found is None:
        raise BrowserMissing(f"no Xvfb, which makes displays, is on the grid's host: {HOW_TO_GET}")
    return Path(found).resolve()
