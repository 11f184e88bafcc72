"""Which Playwright pwgrid itself depends on: the one of every pool that names no other."""

from __future__ import annotations

from functools import cache
from importlib.metadata import version

from pwgrid.common.playwright_version import minor_of


@cache
def own_minor() -> str:
    """The minor version of the Python package, which its driver has, too."""
    # Once: while pip replaces the package there is none, and a reload reads the settings then, too.
    return minor_of(version("playwright"))
