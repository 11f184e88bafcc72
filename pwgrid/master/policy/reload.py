"""What a changed configuration means for a running grid: refused, scaled, recycled, replaced; changes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pwgrid.common.types import BROWSER_TYPES, BrowserType, Part

Values = Mapping[str, object]
Concerns = Mapping[str, tuple[Part, ...]]
"""Who has to be told of each setting, by its name."""


@dataclass(frozen=True, slots=True)
class Change:
    """What to do. `refused` names the settings that cannot change while the grid runs; then nothing else is done."""

    refused: tuple[str, ...] = ()
    scale: dict[BrowserType, int] = field(default_factory=dict)
    recycle: tuple[BrowserType, ...] = ()
    replace_proxy: bool = False
    changed: tuple[str, ...] = ()


def compare(concerns: Concerns, old: Values, new: Values) -> Change:
    """What it takes to get from the settings `old` to `new`, both by name."""
    changed = tuple(name for name in new if old[name] != new[name])
    parts = {part for name in changed for part in concerns[name]}
    refused = tuple(name for name in changed if "fixed" in concerns[name])
    if refused:
        return Change(refused=refused, changed=changed)
    return Change(
        scale={each: int(str(new[f"{each}_workers"])) for each in BROWSER_TYPES if f"{each}_workers" in changed},
        recycle=tuple(each for each in BROWSER_TYPES if parts & {"worker", each}),
        replace_proxy="proxy" in parts,
        changed=changed,
    )


def concerning(concerns: Concerns, values: Values, *parts: Part) -> list[tuple[str, object]]:
    """The settings that concern any of `parts`, in the order of their names: what a child was forked with."""
    return sorted((name, value) for name, value in values.items() if set(parts) & set(concerns[name]))
