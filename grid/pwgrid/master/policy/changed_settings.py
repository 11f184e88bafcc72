"""Decides what a changed configuration means for a running grid: what to refuse, what to scale, and which children to
replace, since they were forked with other settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pwgrid.settings.model import SETTINGS, Part, Settings
from pwgrid.settings.pools import PoolSettings


@dataclass(frozen=True, slots=True)
class Change:
    """What to do. `refused` names settings that cannot change while the grid runs; if there are any, nothing is done.

    `added` and `removed` name pools; `scale` names pools that stay.
    """

    refused: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    scale: dict[str, int] = field(default_factory=dict)
    replace_proxy: bool = False
    changed: tuple[str, ...] = ()


def compare(old: Settings, new: Settings) -> Change:
    """The change from the settings `old` to `new`."""
    before, after = old.plain(), new.plain()
    changed = tuple(name for name in after if before[name] != after[name])
    parts = {part for name in changed for part in SETTINGS[name].concerns}
    refused = tuple(name for name in changed if "fixed" in SETTINGS[name].concerns)
    if refused:
        return Change(refused=refused, changed=changed)
    had, has = old.pools_wanted(), new.pools_wanted()
    return Change(
        added=tuple(name for name in has if name not in had),
        removed=tuple(name for name in had if name not in has),
        scale={
            name: pool.workers
            for name, pool in has.items()
            if name in had and pool.workers != had[name].workers and not pool.on_demand
        },
        replace_proxy="proxy" in parts,
        changed=changed,
    )


def concerning(values: Mapping[str, object], *parts: Part) -> list[tuple[str, object]]:
    """The settings that concern any of `parts`, sorted by name: what a child of that kind is forked with."""
    return sorted((name, value) for name, value in values.items() if set(parts) & set(SETTINGS[name].concerns))


def concerning_pool(settings: Settings, pool: PoolSettings) -> list[object]:
    """What the workers of a pool are forked with."""
    return [*concerning(settings.of_pool(pool).plain(), "worker", pool.browser_type), pool.own]
