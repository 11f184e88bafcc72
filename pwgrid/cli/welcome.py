"""What a grid that somebody has started by hand says once it is ready: lines to paste, its Redis, what to do next."""

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from pwgrid.settings.endpoint import base_url
from pwgrid.settings.model import Settings

_MANAGERS = ("NOTIFY_SOCKET", "SUPERVISOR_ENABLED", "INVOCATION_ID")
"""Set by systemd and supervisord for what they start."""


def is_by_hand(environ: Mapping[str, str]) -> bool:
    """Whether a person has started the grid, and no service manager."""
    return not any(name in environ for name in _MANAGERS)


def is_wanted(settings: Settings, environ: Mapping[str, str]) -> bool:
    """Whether a person reads it: not where a service manager started the grid, nor where lines are JSON."""
    return settings.log_format == "text" and is_by_hand(environ)


def welcome(settings: Settings, redis: str) -> str:
    """A few lines. A token is named, not shown: what a grid says may end up in a log."""
    url = base_url(settings)
    if settings.token:
        url += "/?token=YOUR_TOKEN"
    browser = settings.default_browser_type
    pwgrid = own_command()
    port = "" if settings.port == type(settings).model_fields["port"].default else f" --port {settings.port}"
    lines = (
        ("Python", f'browser = p.{browser}.connect("{url}")'),
        ("Node", f"const browser = await {browser}.connect('{url}');"),
        ("Redis", redis),
        ("next", f"{pwgrid} status{port}, {pwgrid} sessions{port}, {pwgrid} doctor; Ctrl-C ends the grid"),
    )
    return "\n".join(f"  {name + ':':8}{text}" for name, text in lines)


def own_command() -> str:
    """How the user calls this command again: its name, where PATH has it, else its path."""
    beside = Path(sys.executable).parent / "pwgrid"
    if not os.access(beside, os.X_OK):
        return f"{sys.executable} -m pwgrid"
    found = shutil.which("pwgrid")
    if found is not None and Path(found).resolve() == beside.resolve():
        return "pwgrid"
    try:
        return str(beside.relative_to(Path.cwd()))
    except ValueError:
        return str(beside)
