"""Tells whoever started the grid how the start goes, when it is ready, or why it is not."""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import structlog

from pwgrid.cli import own_command
from pwgrid.cli.output import printable
from pwgrid.cli.standard_streams import OutputError, drop_output
from pwgrid.common import sd_notify
from pwgrid.common.errors import GridError
from pwgrid.common.grid_url import without_secrets
from pwgrid.installed.browsers import SearchPaths, ffmpeg_paths
from pwgrid.runtime.directory import RuntimeDir
from pwgrid.settings.model import Settings
from pwgrid.settings.value_types import MAX_SECONDS

log = structlog.get_logger()

_MANAGERS: Final = ("NOTIFY_SOCKET", "SUPERVISOR_ENABLED")
"""Variables that systemd and supervisord set for what they start."""
_INHERITED: Final = "INVOCATION_ID"
"""Systemd sets it for every service, and a terminal of a desktop is one."""

_ANY: Final = {"0.0.0.0": (socket.AF_INET, "192.0.2.1"), "::": (socket.AF_INET6, "2001:db8::1")}
"""The addresses that mean all of this host. The route to the documentation address beside each shows our own one."""


class StartMessages:
    """Tells how a start and a stop go: in lines on stdout or, where the log is JSON, in its events alone. The service
    manager hears of it, too, and `ready_fd` gets one line of JSON as soon as the grid is ready, or it is known why it
    is not.

    A person who started the grid by hand also gets lines to paste. `redis` says in words which Redis it uses.
    """

    def __init__(
        self,
        settings: Settings,
        runtime: RuntimeDir,
        ready_fd: int | None,
        redis: str | None,
        tokens_file: Path | None = None,
    ) -> None:
        self._settings = settings
        self._tokens_file = tokens_file
        self._runtime = runtime
        self._ready_fd = ready_fd
        is_read = ready_fd is None and settings.log_format == "text" and is_by_hand()
        self._redis = redis if is_read else None
        self._endpoint = without_secrets(settings.client_url())

    def progress(self, text: str) -> None:
        """Tells how far the start is."""
        self._tell(log.info, "grid_starting", text, progress=text)

    def ready(self, status: dict[str, Any]) -> None:
        """Tells that each pool can take a session."""
        endpoint, pools, others = self._endpoint, self._pools(status), url_for_others(self._settings)
        elsewhere = f", from other hosts with {self._call(others)}" if others else ""
        ffmpeg = has_ffmpeg()
        videos = "" if ffmpeg else f" | no videos: {own_command.typed()} setup --video gets ffmpeg"
        text = f"ready: {endpoint} | {pools}{videos} | connect with {self._call(endpoint)}{elsewhere}"
        fields = {"endpoint": endpoint, "pools": pools, "endpoint_for_others": others or endpoint, "ffmpeg": ffmpeg}
        self._tell(log.info, "grid_ready", text, **fields)
        if self._redis is not None:
            say("takes clients; to paste:\n" + self._to_paste(self._redis))
            self._redis = None
        sd_notify.ready(pools)
        self._tell_ready_fd(status)

    def not_ready(self, status: dict[str, Any]) -> None:
        """Tells that the start is over, and that a pool cannot take a session. The grid goes on trying, and `ready` may
        follow."""
        why, endpoint, pools = status["reason"], self._endpoint, self._pools(status)
        text = f"not ready: {why} | {endpoint} | {pools}"
        self._tell(log.error, "grid_not_ready", text, endpoint=endpoint, reason=why, pools=pools)
        # A grid that serves some clients, or will once the host has memory, is not to be killed for being late.
        is_worth_it = status["host"]["guard"] or any(pool["available"] for pool in status["pools"])
        sd_notify.not_ready(why, patience_s=MAX_SECONDS if is_worth_it else 0.0)
        self._tell_ready_fd(status)

    def stopping(self, text: str) -> None:
        """Tells what a stop waits for."""
        self._tell(log.info, "grid_stopping", text, progress=text)

    @property
    def count_down(self) -> Callable[[str], None] | None:
        """Returns what shows a line in place of the one before it; None where stdout is no terminal."""
        return None if self._is_json or not sys.stdout.isatty() else say_for_now

    def _tell(self, log_it: Callable[..., object], event: str, text: str, **fields: object) -> None:
        """Logs the event with its fields where the log is JSON, else prints the text."""
        if self._is_json:
            log_it(event, **fields)
        else:
            say(text)

    @property
    def _is_json(self) -> bool:
        return self._settings.log_format == "json"

    def _pools(self, status: dict[str, Any]) -> str:
        return ", ".join(
            f"{pool['name']} {pool['available']} x {pool['slotsOfWorker']} slots"
            for pool in status["pools"]
            if pool["wanted"] > 0
        )

    @property
    def _has_tokens(self) -> bool:
        """Whether clients need a token of `pwgrid token create`: they do as long as the file of these tokens exists."""
        # Not Path.exists, which raises where this user may not look.
        return self._tokens_file is not None and os.path.exists(self._tokens_file)

    def _call(self, url: str, mark: str = "'") -> str:
        """What a client's author writes to connect. It has a placeholder instead of a token, since it may end up in a
        log."""
        if self._settings.token or self._has_tokens:
            url = f"{url.removesuffix('/')}/?token=YOUR_TOKEN"
        return f"{self._settings.default_browser_type}.connect({mark}{url}{mark})"

    def _to_paste(self, redis: str) -> str:
        settings, url, pwgrid = self._settings, self._endpoint, own_command.typed()
        port = "" if settings.port == type(settings).model_fields["port"].default else f" --port {settings.port}"
        first = "YOUR_TOKEN is PWGRID_TOKEN, or " if settings.token else "YOUR_TOKEN is "
        in_python = self._call(url, mark='"')
        token = f"{first}what {pwgrid} token create --name NAME{port} prints"
        lines = (
            ("Python", f"browser = p.{in_python}"),
            ("Node", f"const browser = await {self._call(url)};"),
            *([("token", token)] if self._has_tokens else ()),
            ("Redis", redis),
            ("next", f"{pwgrid} status{port}, {pwgrid} sessions{port}, {pwgrid} doctor; Ctrl-C ends the grid"),
        )
        return "\n".join(f"  {name + ':':8}{text}" for name, text in lines)

    def _tell_ready_fd(self, status: dict[str, Any]) -> None:
        if self._ready_fd is None:
            return
        settings, ready_fd, self._ready_fd = self._settings, self._ready_fd, None
        token = settings.token.get_secret_value()
        found = {
            "ready": status["ready"],
            "reason": status["reason"],
            "endpoint": self._endpoint,
            "connect": f"{settings.base_url()}/?token={quote(token)}" if token else settings.client_url(),
            "http": settings.local_url().origin,
            "token": token,
            "directory": str(self._runtime.directory),
            "pid": os.getpid(),
            "port": settings.port,
            "pools": status["pools"],
        }
        with os.fdopen(ready_fd, "w") as out:
            out.write(json.dumps(found) + "\n")


def say(text: str) -> None:
    """Prints a line on stdout."""
    _print(f"pwgrid {printable(text)}\n")


def say_for_now(text: str) -> None:
    """Prints a line that the next one replaces, be it another of these or a line of the log."""
    _print(f"\r\x1b[Kpwgrid {printable(text)}\r")


def _print(text: str) -> None:
    try:
        print(text, end="", flush=True)
    except OutputError:  # the terminal went away; the grid's own log has the same events
        drop_output()


def is_by_hand() -> bool:
    """Whether a person has started the grid, and no service manager."""
    managers = _MANAGERS if sys.stdout.isatty() else (*_MANAGERS, _INHERITED)
    return not any(name in os.environ for name in managers)


def has_ffmpeg() -> bool:
    """Whether ffmpeg is where Playwright looks for it: without it, sessions with recordVideo fail."""
    try:
        return any(map(os.path.exists, ffmpeg_paths(SearchPaths())))
    except GridError:  # a user without a home directory has installed none there
        return False


def url_for_others(settings: Settings) -> str | None:
    """The endpoint for clients on other hosts; None where it is the same as for clients here.

    Where the grid listens on all addresses, it has the address from which this host reaches others, else its name.
    """
    if settings.advertised_url or settings.advertised_host or settings.host not in _ANY:
        return None
    return settings.model_copy(update={"advertised_host": _own_address(settings.host)}).base_url()


def _own_address(listening_on: str) -> str:
    families = [_ANY[listening_on], _ANY["0.0.0.0"]]  # a listener on :: takes IPv4 clients, too
    for family, elsewhere in families:
        with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.connect((elsewhere, 9))  # sends nothing: it is a datagram socket
            return str(sock.getsockname()[0])
    return socket.gethostname()
