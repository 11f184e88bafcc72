"""Finds what is launched for a session whose client wants another browser than its pool's: one of a channel, or one
with a display, which is made for it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final

from pwgrid.common.errors import BrowserMissing
from pwgrid.common.launch_failure import BrowserLaunchError
from pwgrid.installed.browsers import FoundBrowser
from pwgrid.installed.channels import find_channel
from pwgrid.installed.headed import find_headed
from pwgrid.settings.model import Settings
from pwgrid.settings.pools import PoolSettings
from pwgrid.worker.browser.displays import Displays
from pwgrid.worker.browser.launch import LaunchSpec

CHANNEL: Final = "channel"
_WHAT: Final = "a browser for one session"


class RequestedBrowsers:
    """Those of one worker's sessions. `settings` are those of `pool` (`Settings.of_pool`)."""

    def __init__(self, settings: Settings, pool: PoolSettings, directory: Path) -> None:
        self._settings = settings
        self._pool = pool
        self._directory = directory
        self._displays = Displays(settings, directory)

    async def prepare(self, session_id: str, options: Mapping[str, Any], until: float) -> dict[str, Any] | None:
        """Returns with what the browser is to be launched for a client that has these options (launcher.cjs); None for
        the pool's own. `until` is in seconds of time.monotonic(). Raises BrowserLaunchError."""
        has_display = options.get("headless") is False
        try:
            browser = self._find(options.get(CHANNEL, ""), has_display=has_display)
        except BrowserMissing as error:
            raise BrowserLaunchError(str(error), _WHAT) from None
        if browser is None:
            return None
        spec = LaunchSpec(self._settings, self._pool, browser, self._directory)
        environment: dict[str, str] = {}
        confinement = spec.confinement
        if has_display:
            environment = await self._displays.make(session_id, until)
            confinement = spec.confinement_with_display(environment)
        return {
            "executablePath": browser.executable,
            "channel": browser.channel,
            "before": confinement.before_browser() if confinement else [],
            "environment": environment,
        }

    def over(self, session_id: str) -> None:
        """Ends the display of this session, if it has one."""
        self._displays.over(session_id)

    def adopt(self, live: Collection[str]) -> None:
        """Takes over the displays of this worker's predecessor; ends those whose sessions are not live."""
        self._displays.adopt(live)

    def end(self) -> None:
        """Ends all displays."""
        self._displays.end()

    def _find(self, channel: str, *, has_display: bool) -> FoundBrowser | None:
        if channel:
            return find_channel(channel, self._pool, self._settings)
        return find_headed(self._pool, self._settings) if has_display else None
