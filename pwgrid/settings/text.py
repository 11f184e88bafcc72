"""Settings as text: the table of `config show`, the files config/grid.toml and config/env.example. Checks nothing."""

import json
from collections.abc import Mapping
from typing import Final

from pwgrid.settings.rules import RELATIONS
from pwgrid.settings.table import SECTIONS, SETTINGS, Setting, Settings, Value
from pwgrid.settings.values import bounds, literal, masked

_TOML_HEAD: Final = """\
# All settings of pwgrid with their defaults. Made from pwgrid/settings/table.py by
# `python -m pwgrid.settings.load config`: change it there.
#
# A line counts once its # is removed. The grid reads the file that --config or $PWGRID_CONFIG names, else
# /etc/pwgrid/grid.toml. Environment variables (named like the setting in upper case, or as told) beat the file,
# command line options beat both. `pwgrid config check` finds mistakes, `pwgrid config show` tells what is in force.
#
# Rules between settings:
"""

_ENVIRONMENT_HEAD: Final = """\
# Environment of pwgrid with the defaults. Made from pwgrid/settings/table.py by
# `python -m pwgrid.settings.load config`: change it there.
# A line counts once its # is removed; an empty value counts as not set. Lists are words as a shell splits them.

# Configuration file; empty: /etc/pwgrid/grid.toml, if there is one.
#PWGRID_CONFIG=
"""


def show(settings: Settings, sources: Mapping[str, str]) -> str:
    """A table for people: name, value, unit, source. Secrets are masked."""
    rows = [("SETTING", "VALUE", "UNIT", "SOURCE")]
    for name, setting in SETTINGS.items():
        rows.append((name, _plain(_visible(setting, settings)), setting.unit, sources[name]))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = ["  ".join([*map(str.ljust, row[:3], widths), row[3]]).rstrip() for row in rows]
    return "\n".join(lines)


def as_json(settings: Settings, sources: Mapping[str, str]) -> str:
    """The same for machines: `{name: {"value", "unit", "source"}}`. Secrets are masked."""
    table = {
        name: {"value": _visible(setting, settings), "unit": setting.unit, "source": sources[name]}
        for name, setting in SETTINGS.items()
    }
    return json.dumps(table, indent=2)


def toml_file() -> str:
    """The text of config/grid.toml."""
    parts = [_TOML_HEAD + "".join(f"#   {relation}\n" for relation in RELATIONS)]
    for section, meaning in SECTIONS.items():
        parts.append(f"\n# {meaning}\n[{section}]\n")
        parts += [_toml_entry(setting) for setting in SETTINGS.values() if setting.section == section]
    return "".join(parts)


def environment_file() -> str:
    """The text of config/env.example."""
    lines = [
        f"\n# {setting.meaning}{_range(setting)}\n#{setting.environment}={_words(setting.default)}\n"
        for setting in SETTINGS.values()
    ]
    return _ENVIRONMENT_HEAD + "".join(lines)


def _visible(setting: Setting, settings: Settings) -> object:
    return masked(setting, getattr(settings, setting.name))


def _plain(value: object) -> str:
    """Bare where that cannot be misread."""
    if isinstance(value, str) and value and value.isprintable() and " " not in value:
        return value
    assert isinstance(value, bool | int | float | str | tuple)
    return literal(value)


def _words(value: Value) -> str:
    return " ".join(value) if isinstance(value, tuple) else _plain(value) if value != "" else ""


def _toml_entry(setting: Setting) -> str:
    named = f" Environment: {setting.environment}." if setting.environment != setting.name.upper() else ""
    return f"\n# {setting.meaning}{_range(setting)}{named}\n#{setting.name} = {literal(setting.default)}\n"


def _range(setting: Setting) -> str:
    choices = setting.rules.get("choices")
    if choices:
        return f" One of {', '.join(choices)}."
    if "minimum" in setting.rules:
        unit = f"{setting.unit[0].upper()}{setting.unit[1:]}, " if setting.unit else ""
        return f" {unit}{bounds(setting)}."
    return ""
