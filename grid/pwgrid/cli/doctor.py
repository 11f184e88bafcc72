"""`pwgrid doctor`: checks what a grid needs of this host."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click

from pwgrid.cli import output
from pwgrid.cli.options import Configured, with_json


@click.command(cls=Configured)
@with_json
def doctor(config_file: Path | None, as_json: bool, **flags: Any) -> None:
    """Checks everything that a grid needs of this host, launches each browser once, and says what to do.

    Exits 1 if something that the configuration asks for will fail.
    """
    from dataclasses import asdict

    from pwgrid.settings.load import load
    from pwgrid.setup.doctor_checks import examine

    findings = []
    for finding in examine(load(config_file, os.environ, flags)):
        findings.append(finding)
        if not as_json:
            click.echo(output.printable(f"{finding.level:5} {finding.name:12} {finding.found}"))
            if finding.to_do:
                click.echo(output.printable(f"{'':18} -> {finding.to_do}"))
    is_good = all(finding.level != "bad" for finding in findings)
    if as_json:
        click.echo(output.as_json({"good": is_good, "findings": [asdict(finding) for finding in findings]}))
    sys.exit(0 if is_good else 1)
