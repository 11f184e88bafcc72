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
_LIBRARY_HERE: Final = "-- [lib.lua]\n"
_SHARED_PART: Final = re.compile(r"-- \[shared: (\w+)\]\n(.*?)-- \[end: \1\]\n", re.DOTALL)
_CALL: Final = re.compile(r"(\w+)\(")
_FUNCTION: Final = re.compile(r"^local function (\w+)\(.*?^end\n", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Script:
    """A script as Redis gets it. `digest` is EVALSHA's argument, `load` the SCRIPT LOAD command in wire format."""

    digest: str
    load: bytes


@cache
def load(name: str) -> Script:
    """Reads lua/`name`.lua, and adds the library if its first line says so."""
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
    """Returns the text of `name`.lua in this directory as Redis gets it, with the library if it needs that: where it
    says so, else before it."""
    source = _text(directory, name)
    if _NEEDS_LIBRARY not in source.partition("\n")[0]:
        return source
    always, library = _library(directory)
    before, here, behind = source.partition(_LIBRARY_HERE)
    if not here:
        before, behind = "", source
    return always + before + _used(library, behind) + behind


@cache
def _library(directory: Path) -> tuple[str, str]:
    """What each script has that needs the library, and the functions of several scripts: shared parts of those that
    stand alone, each once, and lib.lua, which uses them."""
    shared: dict[str, str] = dict(_SHARED_PART.findall(_text(directory, "reaper") + _text(directory, "selector")))
    always = shared.pop("both")
    return always, "".join(shared.values()) + _text(directory, "lib")


def _text(directory: Path, name: str) -> str:
    return (directory / f"{name}.lua").read_text(encoding="utf-8")


def _used(library: str, by: str) -> str:
    """Returns the library without the functions that are not called: Redis makes each one anew whenever a script runs,
    in 0.15 µs and more. A function can only call those before it."""
    called = {*_CALL.findall(by)}
    kept: list[str] = []
    end = len(library)
    for function in reversed([*_FUNCTION.finditer(library)]):
        behind, end = library[function.end() : end], function.start()
        called.update(_CALL.findall(behind))
        kept.append(behind)
        if function[1] in called:
            called.update(_CALL.findall(function[0]))
            kept.append(function[0])
    return "".join([library[:end], *reversed(kept)])


def write_probe(prefix: str) -> tuple[str, ...]:
    """The command that runs write_probe.lua; `write_fault` reads the reply."""
    return ("EVALSHA", SCRIPTS["write_probe"].digest, "1", prefix + INDEX)


SCRIPTS: Final = {path.stem: load(path.stem) for path in resource_dir("lua").glob("*.lua") if path.stem != "lib"}
"""Read on import, before any fork: all processes share them, and none gets a newer script than its code."""
