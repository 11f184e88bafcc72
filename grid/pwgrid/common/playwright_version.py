"""Versions of Playwright: a client and a driver understand each other where both have the same minor version."""

from __future__ import annotations

import re
from typing import Final

MINOR: Final = r"[0-9]{1,3}\.[0-9]{1,4}"
"""A minor version, as a pattern: 1.58."""

_OF_CLIENT: Final = re.compile(r"Playwright/([0-9]+\.[0-9]+)")


def minor_of(version: str) -> str:
    """`1.58` of 1.58.0, and of 1.58 itself."""
    return ".".join(version.split(".")[:2])


def order_of(version: str) -> tuple[int, ...]:
    """Its numbers, by which versions are sorted: 1.9 comes before 1.58. What follows them (`-alpha`) does not count."""
    numbers = [re.match(r"[0-9]*", each) for each in version.split(".")]
    return tuple(int(found[0] or 0) for found in numbers if found)


def minor_of_client(user_agent: str) -> str | None:
    """The minor version that a client's User-Agent names; None if that is not one of Playwright."""
    found = _OF_CLIENT.match(user_agent)
    return found[1] if found else None
