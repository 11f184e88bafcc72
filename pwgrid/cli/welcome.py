"""The lines that a grid started by hand prints once it is ready: code to paste, its Redis, what to do next."""

import os
import sys

from pwgrid.cli import own_command
from pwgrid.settings.model import Settings

_MANAGERS = ("NOTIFY_SOCKET", "SUPERVISOR_ENABLED")
"""Variables that systemd and supervisord set for what they start."""
_INHERITED = "INVOCATION_ID"
"""Systemd sets it for every service, and a terminal of a desktop is one."""


def is_by_hand() -> bool:
    """Whether a person has started the grid, and no service manager."""
    managers = _MANAGERS if sys.stdout.isatty() else (*_MANAGERS, _INHERITED)
    return not any(name in os.environ for name in managers)


def is_wanted(settings: Settings) -> bool:
    """Whether a person reads the lines: not where a service manager started the grid, nor where lines are JSON."""
    return settings.log_format == "text" and is_by_hand()


def token_query(settings: Settings, *, has_tokens: bool) -> str:
    """The end of a client's URL: a placeholder where the grid asks for a token, else empty. The token itself is not
    shown: these lines may end up in a log. `has_tokens`: there is a file of tokens that `pwgrid token create` made."""
    return "/?token=YOUR_TOKEN" if settings.token or has_tokens else ""


def welcome(settings: Settings, redis: str, *, has_tokens: bool) -> str:
    """The lines; `redis` says which Redis the grid uses."""
    url = settings.base_url() + token_query(settings, has_tokens=has_tokens)
    browser = settings.default_browser_type
    pwgrid = own_command.typed()
    port = "" if settings.port == type(settings).model_fields["port"].default else f" --port {settings.port}"
    first = "YOUR_TOKEN is PWGRID_TOKEN, or " if settings.token else "YOUR_TOKEN is "
    lines = (
        ("Python", f'browser = p.{browser}.connect("{url}")'),
        ("Node", f"const browser = await {browser}.connect('{url}');"),
        *([("token", f"{first}what {pwgrid} token create --name NAME{port} prints")] if has_tokens else ()),
        ("Redis", redis),
        ("next", f"{pwgrid} status{port}, {pwgrid} sessions{port}, {pwgrid} doctor; Ctrl-C ends the grid"),
    )
    return "\n".join(f"  {name + ':':8}{text}" for name, text in lines)
