"""Checks the name that a client gives its run."""

import re
from typing import Final

from pwgrid.proxy.policy.refusal import Refusal

MAX_NAME_CHARACTERS: Final = 128
NAME_RULE: Final = f"at most {MAX_NAME_CHARACTERS} letters (A to Z), digits, spaces, '.', '_' and '-'"

_NAME: Final = re.compile(rf"[0-9A-Za-z ._-]{{0,{MAX_NAME_CHARACTERS}}}")


def run_name(text: str | None, what: str) -> str:
    """Checks what a client calls its run; returns it without surrounding spaces, or "". Raises Refusal, which does not
    repeat the text."""
    name = (text or "").strip()
    if not _NAME.fullmatch(name):
        raise Refusal(400, f"{what}: use {NAME_RULE}")
    return name
