"""Reads the label key and the run's name that a client gives. Chooses no worker."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from pwgrid.common.label_keys import LabelKey, LabelKeyError, parse
from pwgrid.common.types import BrowserType
from pwgrid.proxy.policy.label_match import Switches, match
from pwgrid.proxy.policy.refusal import Refusal

MAX_NAME_CHARACTERS: Final = 128
NAME_RULE: Final = f"at most {MAX_NAME_CHARACTERS} letters (A to Z), digits, spaces, '.', '_' and '-'"

_NAME: Final = re.compile(rf"[0-9A-Za-z ._-]{{0,{MAX_NAME_CHARACTERS}}}")


DEFAULT: Final = Switches()


@dataclass(frozen=True, slots=True)
class Offered:
    """The label keys of pools, with the pools' names, and the rules for matching."""

    keys: Mapping[LabelKey, str] = field(default_factory=dict)
    switches: Switches = DEFAULT

    def serving(self, text: str, browser_type: BrowserType | None = None) -> LabelKey:
        """Returns the key of a pool that serves the key `text`. `browser_type` is the client's own. Raises Refusal."""
        try:
            wanted = parse(text, wildcards=self.switches.wildcards)
        except LabelKeyError as error:
            raise Refusal(400, str(error)) from None
        keys = [*self.keys]
        if wanted.browser_type is None and browser_type is not None:
            keys = [key for key in keys if key.browser_type == browser_type]
        found = match(wanted, keys, self.switches)
        if found is None:
            known = sorted(map(str, self.keys), key=str.lower)
            listed = f"there are {', '.join(known)}" if known else "no pool of this grid has label keys"
            raise Refusal(404, f"no pool serves the label key {wanted}: {listed}", details={"labelKeys": known})
        return found


def run_name(text: str | None, what: str) -> str:
    """Checks what a client calls its run; returns it without surrounding spaces, or "". Raises Refusal, which does not
    repeat the text."""
    name = (text or "").strip()
    if not _NAME.fullmatch(name):
        raise Refusal(400, f"{what}: use {NAME_RULE}")
    return name
