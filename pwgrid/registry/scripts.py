"""Loads the Lua scripts and knows their digests. Talks to no Redis."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from typing import Final

from pwgrid.common.shipped_files import resource_dir
from pwgrid.registry.pipelined_connection import packed

_NEEDS_LIBRARY: Final = "Needs lib.lua."


@dataclass(frozen=True, slots=True)
class Script:
    """A script as Redis gets it. `digest` is EVALSHA's argument, `load` the SCRIPT LOAD command in wire format."""

    name: str
    source: str
    digest: str
    load: bytes


@cache
def load(name: str) -> Script:
    """Reads lua/`name`.lua, and puts lib.lua before it if its first line says so."""
    directory = resource_dir("lua")
    source = (directory / f"{name}.lua").read_text(encoding="utf-8")
    if _NEEDS_LIBRARY in source.partition("\n")[0]:
        source = (directory / "lib.lua").read_text(encoding="utf-8") + source
    digest = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()
    return Script(name, source, digest, *packed([("SCRIPT", "LOAD", source)]))
