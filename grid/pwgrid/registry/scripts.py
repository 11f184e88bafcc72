"""Loads the Lua scripts and knows their digests."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import hiredis

from pwgrid.common.paths import resource_dir
from pwgrid.registry.records import INDEX

_NEEDS_LIBRARY: Final = "Needs lib.lua."
_SHARED_PART: Final = re.compile(r"-- \[shared: (\w+)\]\n(.*?)-- \[end: \1\]\n", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Script:
    """A script as Redis gets it. `digest` is EVALSHA's argument, `load` the SCRIPT LOAD command in wire format."""

    digest: str
    load: bytes


@cache
def load(name: str) -> Script:
    """Reads lua/`name`.lua, and puts the library before it if its first line says so."""
    source = source_of(name)
    digest = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()
    return Script(digest, packed(("SCRIPT", "LOAD", source)))


def source_of(name: str) -> str:
    """Reads lua/`name`.lua as Redis gets it."""
    return assembled(resource_dir("lua"), name)


def packed(command: tuple[str | bytes | int | float, ...]) -> bytes:
    """Returns the command in wire format. Packs with hiredis, as redis-py's blocking connections do; its asyncio ones
    pack in Python, which takes 4 times as long."""
    text: bytes = hiredis.pack_command(command)  # type: ignore[arg-type] # its hint is too narrow
    return text


def assembled(directory: Path, name: str) -> str:
    """Returns the text of `name`.lua in this directory as Redis gets it, with the library if it needs that."""
    source = _text(directory, name)
    return _library(directory) + source if _NEEDS_LIBRARY in source.partition("\n")[0] else source


@cache
def _library(directory: Path) -> str:
    """The functions of several scripts: shared parts of those that stand alone, each once, and lib.lua, which uses
    them."""
    shared = dict(_SHARED_PART.findall(_text(directory, "reaper") + _text(directory, "selector")))
    return "".join(shared.values()) + _text(directory, "lib")


def _text(directory: Path, name: str) -> str:
    return (directory / f"{name}.lua").read_text(encoding="utf-8")


def write_probe(prefix: str) -> tuple[str, ...]:
    """The command that runs write_probe.lua; `write_fault` reads the reply."""
    return ("EVALSHA", SCRIPTS["write_probe"].digest, "1", prefix + INDEX)


SCRIPTS: Final = {path.stem: load(path.stem) for path in resource_dir("lua").glob("*.lua") if path.stem != "lib"}
"""Read on import, before any fork: all processes share them, and none gets a newer script than its code."""
