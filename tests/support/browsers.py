"""The browsers of this host that are fit for the tests: those that open a page, as `pwgrid setup` proves it."""

import contextlib
import os
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import psutil

from pwgrid.common.errors import BrowserMissing
from pwgrid.common.launch_failure import BrowserLaunchError
from pwgrid.common.types import BROWSER_TYPES, BrowserType
from pwgrid.installed.browsers import FoundBrowser, SearchPaths, Trial, candidates, remember_trial, trial_of
from pwgrid.settings.model import Settings
from pwgrid.setup.browsers import launch_once


@cache
def settings_of_host() -> Settings:
    """The defaults, with the executables that the environment names: what the grids of the tests run with."""
    named = {f"{each}_executable": os.environ.get(f"{each.upper()}_EXECUTABLE", "") for each in BROWSER_TYPES}
    return Settings.model_validate(named)


def fit_browser(
    browser_type: BrowserType, settings: Settings | None = None, places: SearchPaths | None = None
) -> FoundBrowser:
    """The first one that starts. What nobody has tried yet is launched once, and that is written down.

    Raises BrowserMissing with what is wrong with each.
    """
    settings, places = settings or settings_of_host(), places or SearchPaths()
    faults: list[str] = []
    for browser in candidates(browser_type, settings, places, faults):
        trial = trial_of(browser.executable, settings, places)
        if trial is None:
            trial = _tried(browser, settings)
            remember_trial(browser.executable, settings, places, trial)
        if not trial.fault:
            return browser
        faults.append(f"{browser.executable} does not start: {trial.fault}")
    raise BrowserMissing("; ".join(faults) or "none on this host")


def _tried(browser: FoundBrowser, settings: Settings) -> Trial:
    with ThreadPoolExecutor(1) as beside:  # a loop may be running here
        try:
            return beside.submit(launch_once, browser, settings, settings.short_form(browser.browser_type)).result()
        except BrowserLaunchError as error:
            return Trial(error.reason)


def chromiums_of(node: int) -> set[int]:
    """The pids of the Chromiums of the browser server with this pid. Their helpers are below them."""
    found = set()
    for each in psutil.Process(node).children():
        with contextlib.suppress(psutil.Error):  # it has ended meanwhile
            if "--remote-debugging-pipe" in each.cmdline():
                found.add(each.pid)
    return found
