"""Writes config/grid.toml from the model: `python -m pwgrid.settings.generate_grid_toml config/grid.toml`."""

import argparse
from pathlib import Path
from typing import Final

from pwgrid.settings.attribute_docstrings import attribute_docstrings
from pwgrid.settings.model import RELATIONS, SECTIONS, SETTINGS, literal
from pwgrid.settings.pools import PoolTable

_TOML_HEAD: Final = """\
# All settings of pwgrid with their defaults. Made from pwgrid/settings/model.py by
# `python -m pwgrid.settings.generate_grid_toml config/grid.toml`: change it there.
#
# A line counts once its # is removed. The grid reads the file that --config or $PWGRID_CONFIG names, else
# /etc/pwgrid/grid.toml. Environment variables (the setting's name in upper case, or the name given) beat the file,
# command line options beat both. An empty variable counts as not set; in one, lists are words as a shell splits them.
# `pwgrid config check` finds mistakes, `pwgrid config show` tells what is in force.
#
# Rules between settings:
"""

_POOLS_HEAD: Final = """
# Pools beside those of [workers]: a table for each, in the order in which clients that name no pool get them. With any
# of these the default of chromium_workers is 0. For a key that a table leaves out, the setting above counts.
# POOL_CONFIG in the environment replaces all of them: AppA:Chromium:Staging=3,AppB:Firefox:UAT=1. An example:
#
#  [[pools]]
"""

_EXAMPLE: Final = {
    "name": "appa",
    "browser": "chromium",
    "playwright": "1.58",
    "workers": 3,
    "on_demand": False,
    "slots": 5,
    "lifetime": 50,
    "isolation": "browser",
    "warm": 2,
    "max_own_browsers": 4,
    "max_memory_mib": 1500,
    "max_memory_hard_mib": 3000,
    "executable": "/opt/chromium/chrome",
    "channel": "chrome",
    "headless": True,
    "args": ["--lang=de"],
    "proxy": "http://user:password@proxy:3128",
    "env": {"TZ": "Europe/Berlin"},
    "labels": ["AppA:Chromium:Staging", "AppA:Chromium:UAT:EU"],
}


def grid_toml() -> str:
    """Returns the file with all settings, each with its meaning and default."""
    parts = [_TOML_HEAD, *(f"#   {each.product} {each.sign} {each.right}\n" for each in RELATIONS)]
    for section, meaning in SECTIONS.items():
        parts.append(f"\n# {meaning}\n[{section}]\n")
        for each in SETTINGS.values():
            if each.section == section:
                named = f" Environment: {each.environment}." if each.environment != each.name.upper() else ""
                parts.append(f"\n# {each.described()}{named}\n#{each.name} = {literal(each.default)}\n")
    parts.append(_POOLS_HEAD)
    for name, meaning in attribute_docstrings(PoolTable).items():
        hash_ = "# " if name == "channel" else ""  # a pool has an executable or a channel, not both
        parts.append(f"#  {hash_}{name} = {literal(_EXAMPLE[name])}  # {meaning}\n")
    return "".join(parts)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Writes a grid.toml with all settings and their defaults.")
    parser.add_argument("file", type=Path)
    parser.parse_args().file.write_text(grid_toml(), encoding="utf-8")
