"""Playwright's driver: the Node that runs a browser server, and the code that it runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from playwright._impl._driver import compute_driver_executable


@dataclass(frozen=True, slots=True)
class Driver:
    """One driver; `cli` is its command line."""

    node: Path
    cli: Path

    def command(self, *arguments: str) -> list[str]:
        """Playwright's own command line."""
        return [str(self.node), str(self.cli), *arguments]

    @property
    def core(self) -> Path:
        """The directory of playwright-core."""
        return self.cli.parent


def own_driver() -> Driver:
    """The one in the Python package, which pwgrid depends on."""
    node, cli = compute_driver_executable()
    return Driver(Path(node), Path(cli))
