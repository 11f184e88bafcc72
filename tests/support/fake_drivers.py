"""Playwright's drivers of other versions as far as a fake browser server needs them: a Node, and a package that has the
version. The real ones are 130 MB each."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from pwgrid.installed.driver import own_driver

PACKAGE_FILES = ("cli.js", "browsers.json")


def fake_drivers(directory: Path, *versions: str) -> Path:
    """Makes a driver of each of these versions; returns the directory, for DRIVERS_DIR."""
    own = own_driver()
    for version in versions:
        package = directory / version / "package"
        package.mkdir(parents=True)
        for name in PACKAGE_FILES:
            shutil.copy(own.core / name, package / name)
        manifest = json.loads((own.core / "package.json").read_bytes())
        (package / "package.json").write_text(json.dumps({**manifest, "version": version}))
        (package.parent / "node").symlink_to(own.node)
    return directory
