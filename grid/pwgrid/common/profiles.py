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
    """That a session has a profile: nobody else gets it meanwhile. `name` and `run` are what its client calls it."""

    session: str
    since: float
    """Unix seconds."""
    name: str = ""
    run: str = ""
    is_ending: bool = False
    """Its last client has gone: its browser ends, and then the profile is saved."""


class ProfileInUse(Exception):
    """Another session has the profile."""

    def __init__(self, use: ProfileUse) -> None:
        super().__init__(f"session {use.session} has it")
        self.use = use


class TooManyProfiles(Exception):
    """Its owner has as many profiles as it may, and this would be one more."""


class NotSaved(Exception):
    """The profile stays as it was saved last. The text says why."""
