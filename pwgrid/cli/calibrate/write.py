"""Puts settings into a configuration file, and leaves everything else in it as it is."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path

from pwgrid.common.atomic_write import rewrite
from pwgrid.common.errors import GridError
from pwgrid.settings.model import OLD_SECTIONS, SETTINGS, literal


def with_settings(text: str, settings: Mapping[str, int]) -> str:
    """The configuration `text` with these settings, each in its section; comments and order stay.

    Raises GridError if the text does not have one setting a line.
    """
    lines = text.splitlines()
    sections = {name: _section(text, name) for name in settings}
    for name, value in settings.items():
        _put(lines, sections[name], name, f"{name} = {literal(value)}")
    changed = "\n".join(lines) + "\n"
    try:
        found = tomllib.loads(changed)
        is_there = all(found[sections[name]][name] == value for name, value in settings.items())
    except (ValueError, KeyError, TypeError):
        is_there = False
    if not is_there:
        raise GridError(
            "the configuration file does not have each setting on a line of its own: put the settings in by hand"
        )
    return changed


def write(path: Path, settings: Mapping[str, int]) -> None:
    """Put `settings` into the file at `path`, which need not exist. Raises GridError."""
    try:
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        rewrite(path, with_settings(text, settings).encode())
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise GridError(f"{path} cannot be written: {reason}") from None


def _section(text: str, name: str) -> str:
    """The section of a setting, by its old name if the file has that."""
    section = SETTINGS[name].section
    try:
        old = tomllib.loads(text).get(OLD_SECTIONS.get(section, ""))
    except ValueError:
        return section
    return OLD_SECTIONS[section] if isinstance(old, dict) else section


def _put(lines: list[str], section: str, name: str, line: str) -> None:
    """Replaces the line that sets `name`, else the comment that shows it, else adds a line at the end of its
    section."""
    head = next((place for place, each in enumerate(lines) if re.match(rf"\s*\[{section}\]\s*(#.*)?$", each)), None)
    if head is None:
        lines += [""] * bool(lines) + [f"[{section}]", line]
        return
    after = [place for place in range(head + 1, len(lines)) if re.match(r"\s*\[", lines[place])]
    end = after[0] if after else len(lines)
    for pattern in (rf"\s*{name}\s*=", rf"\s*#\s*{name}\s*="):
        for place in range(head + 1, end):
            if re.match(pattern, lines[place]):
                lines[place] = line
                return
    while end > head + 1 and not lines[end - 1].strip():
        end -= 1
    lines.insert(end, line)
