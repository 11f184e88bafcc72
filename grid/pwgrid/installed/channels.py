"""Finds the browser of a channel of Playwright's that a client asks for, where Playwright itself would find it."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Final

from pwgrid.common.errors import BrowserMissing
from pwgrid.installed.browsers import CHANNEL_PATHS, FoundBrowser, SearchPaths, find_for_pool
from pwgrid.installed.headed import find_headed
from pwgrid.settings.model import Settings
from pwgrid.settings.pools import PoolSettings

_FULL_CHROMIUM: Final = "chromium"
"""The channel of a full Chromium, headless or not. Playwright has one of its own; the system's is as good."""

_INSTALLED_BY_PLAYWRIGHT: Final = frozenset({"chrome", "chrome-beta", "msedge", "msedge-beta", "msedge-dev"})


def find_channel(
    channel: str, pool: PoolSettings, settings: Settings, places: SearchPaths | None = None
) -> FoundBrowser:
    """Returns what is launched for a client of this pool that asks for this channel. Raises BrowserMissing, which says
    how to get it."""
    places = places or SearchPaths()
    if channel == _FULL_CHROMIUM and pool.browser_type == "chromium":
        return replace(find_headed(replace(pool, channel=""), settings, places), channel=channel)
    known = CHANNEL_PATHS.get(pool.browser_type, {})
    if channel not in known:
        names = ", ".join(([_FULL_CHROMIUM] if pool.browser_type == "chromium" else []) + [*known])
        raise BrowserMissing(
            f"{pool.browser_type} has no channel {channel}", f"ask for one of {names}" if names else "leave it out"
        )
    executable = places.root / known[channel]
    if not os.access(executable, os.X_OK):
        own = find_for_pool(pool, settings, places)
        if own.channel == channel:  # a stock Firefox elsewhere
            return own
        command = f"`playwright install {channel}` as root installs it"
        raise BrowserMissing(
            f"channel {channel} is not on the grid's host",
            command if channel in _INSTALLED_BY_PLAYWRIGHT else "its maker's package installs it",
        )
    return FoundBrowser(pool.browser_type, str(executable), channel, "setting")
