"""Names of profiles: what a browser has on disk (cookies, storage), kept under a name from one session to the next."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
NAME_RULE: Final = "1 to 64 letters (A to Z), digits, hyphens and underscores, the first a letter or digit"


@dataclass(frozen=True, slots=True)
class Profile:
    """Names one profile. `owner` is the name of the token that it belongs to; empty where the grid asks for none."""

    owner: str
    name: str


@dataclass(frozen=True, slots=True)
class ProfileUse:
    """That a session or a lease has a profile: nobody else gets it meanwhile. `name` and `run` are what its client
    calls it."""

    session: str
    """Its id. Of a lease the one that its borrower has."""
    since: float
    """Unix seconds."""
    name: str = ""
    run: str = ""
    is_ending: bool = False
    """Its last client has gone: its browser ends, and then the profile is saved."""
    is_lease: bool = False

    @property
    def holder(self) -> str:
        """Who has it, in words."""
        return f"{'lease' if self.is_lease else 'session'} {self.session}"


class ProfileInUse(Exception):
    """Another session has the profile."""

    def __init__(self, use: ProfileUse) -> None:
        super().__init__(f"{use.holder} has it")
        self.use = use


class TooManyProfiles(Exception):
    """Its owner has as many profiles as it may, and this would be one more."""


class NotSaved(Exception):
    """The profile stays as it was saved last. The text says why."""
