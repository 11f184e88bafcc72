"""Shows settings with the source of each, as text and for JSON. load.py finds the sources."""

from collections.abc import Mapping
from typing import Any

from pwgrid.settings.model import SETTINGS, Settings, bare
from pwgrid.settings.pools import PoolTable
from pwgrid.settings.value_types import Secret


def show(table: Mapping[str, Mapping[str, Any]]) -> str:
    """What `described` returns as a table: name, value, unit, source."""
    rows = [("SETTING", "VALUE", "UNIT", "SOURCE")]
    for name, row in table.items():
        value = tuple(row["value"]) if isinstance(row["value"], list) else row["value"]
        rows.append((name, bare(value), row["unit"], row["source"]))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return "\n".join("  ".join([*map(str.ljust, row[:3], widths), row[3]]).rstrip() for row in rows)


def described(settings: Settings, sources: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """The settings for JSON: `{name: {"value", "unit", "source"}}`. Secrets are masked."""
    return {
        name: {"value": _plain(getattr(settings, name)), "unit": setting.unit, "source": sources[name]}
        for name, setting in SETTINGS.items()
    }


def _plain(value: object) -> object:
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    return value.shown() if isinstance(value, PoolTable) else str(value) if isinstance(value, Secret) else value
