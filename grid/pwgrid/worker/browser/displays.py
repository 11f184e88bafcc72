"""Makes a display for each session that asks for a browser with one: an X server that keeps its screen in memory.
Sessions that shared a display would share its clipboard and keyboard, too."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import shutil
import socket
import struct
import subprocess
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from pwgrid.common.errors import BrowserMissing
from pwgrid.common.launch_failure import BrowserLaunchError
from pwgrid.installed import confine_setting
from pwgrid.installed.headed import find_xvfb
from pwgrid.runtime.browser_process_tree import kill_below
from pwgrid.runtime.display_sockets import remove_socket, take_number
from pwgrid.runtime.process_identity import KILL_S
from pwgrid.settings.model import Settings
from pwgrid.worker.browser.confined_paths import Directories, before_x_server

log = structlog.get_logger()

_WHAT: Final = "a display"
_SCREEN: Final = "1920x1080x24"
_SESSION: Final = "session"
"""The file that has the id of its session, for a successor of this worker."""

# An X server takes an open socket as systemd passes it, as descriptor 3 and with its own pid in a variable. It says its
# display's number on its standard output once it is ready.
_WITH_SOCKET: Final = 'exec 3<&0 </dev/null; LISTEN_FDS=1 LISTEN_PID=$$ exec "$@"'

_WILD: Final = 0xFFFF
_PROTOCOL: Final = b"MIT-MAGIC-COOKIE-1"
_COOKIE_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class Display:
    """A display and its X server. `directory` has its number as name."""

    directory: Path
    process: subprocess.Popen[bytes]

    @classmethod
    async def start(cls, displays: Path, xvfb: Path, settings: Settings) -> Display:
        """Makes a display in this directory of displays, which accepts clients when this returns. Raises
        BrowserLaunchError, and OSError."""
        directory, listener = take_number(displays)
        try:
            with listener:
                auth = directory / "auth"
                auth.touch(mode=0o600)
                auth.write_bytes(_authority(secrets.token_bytes(_COOKIE_BYTES)))
                process = _spawn(xvfb, directory, listener, is_confined=confine_setting.is_confined(settings))
        except OSError:
            _remove(directory)
            raise
        display = cls(directory, process)
        assert process.stdout is not None
        assert process.stderr is not None
        with process.stdout, process.stderr:
            try:
                if not await _until_line(process.stdout.fileno()):
                    raise BrowserLaunchError(process.stderr.read().decode(errors="replace"), _WHAT)
            except BaseException:
                display.end()
                raise
        return display

    @property
    def environment(self) -> dict[str, str]:
        """The variables by which a browser finds it."""
        return {"DISPLAY": f":{self.directory.name}", "XAUTHORITY": str(self.directory / "auth")}

    def end(self) -> None:
        """Ends it, and removes what it has on the host. Idempotent."""
        self.process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # in uninterruptible sleep: it is left to the master
            self.process.wait(KILL_S)
        _remove(self.directory)


class Displays:
    """Those of one worker's sessions."""

    def __init__(self, settings: Settings, directory: Path) -> None:
        self._settings = settings
        self._directory = directory
        self._displays: dict[str, Display] = {}
        """By the ids of their sessions."""
        self._inherited: dict[str, Path] = {}
        """The directories of those that this worker's predecessor has made."""

    async def make(self, session_id: str, until: float) -> dict[str, str]:
        """Makes a display for this session. Returns the variables by which its browser finds it. `until` is in seconds
        of time.monotonic(). Raises BrowserLaunchError."""
        try:
            xvfb = find_xvfb()
            async with asyncio.timeout(max(0.0, until - time.monotonic())):
                display = await Display.start(Directories(self._directory).displays, xvfb, self._settings)
            self._displays[session_id] = display
            (display.directory / _SESSION).write_text(session_id)
        except BrowserMissing as error:
            raise BrowserLaunchError(error.what, _WHAT) from None
        except TimeoutError:
            raise BrowserLaunchError("it did not start in time", _WHAT) from None
        except OSError as error:
            raise BrowserLaunchError(error.strerror or str(error), _WHAT) from error
        return display.environment

    def over(self, session_id: str) -> None:
        """Ends the display of this session, if it has one."""
        if (display := self._displays.pop(session_id, None)) is not None:
            display.end()
        elif (inherited := self._inherited.pop(session_id, None)) is not None:
            _end_inherited(inherited)

    def adopt(self, live: Collection[str]) -> None:
        """Takes over the displays of this worker's predecessor; ends those whose sessions are not live."""
        for directory in Directories(self._directory).displays.glob("*"):
            session_id = ""
            with contextlib.suppress(OSError):
                session_id = (directory / _SESSION).read_text()
            if session_id in live:
                self._inherited[session_id] = directory
            else:
                _end_inherited(directory)

    def end(self) -> None:
        """Ends all displays."""
        for session_id in [*self._displays, *self._inherited]:
            self.over(session_id)


def _spawn(xvfb: Path, directory: Path, listener: socket.socket, *, is_confined: bool) -> subprocess.Popen[bytes]:
    confined = before_x_server(directory) if is_confined else []
    return subprocess.Popen(
        ["/bin/sh", "-c", _WITH_SOCKET, "sh", *confined, *_command(xvfb, directory)],
        # By its TMPDIR the master finds it.
        env={"PATH": os.environ.get("PATH", ""), "TMPDIR": str(directory)},
        stdin=listener.fileno(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # It lives as long as the browser server, which outlives a worker.
        start_new_session=True,
    )


def _command(xvfb: Path, directory: Path) -> Sequence[str]:
    """It listens nowhere but at the socket that it gets, and asks for the cookie. Without GLX it takes a quarter of the
    memory; browsers draw by themselves."""
    listens = ("-nolisten", "tcp", "-nolisten", "unix", "-nolisten", "local", "-displayfd", "1")
    draws = ("-screen", "0", _SCREEN, "-extension", "GLX", "-noreset")
    return [str(xvfb), f":{directory.name}", "-auth", str(directory / "auth"), *listens, *draws]


def _authority(cookie: bytes) -> bytes:
    """The content of a file of XAUTHORITY: this cookie, for every display."""
    fields = (b"", b"", _PROTOCOL, cookie)
    return struct.pack(">H", _WILD) + b"".join(struct.pack(">H", len(each)) + each for each in fields)


async def _until_line(fd: int) -> bytes:
    """What comes from this pipe up to a line's end; empty if it ends before."""
    loop = asyncio.get_running_loop()
    line: asyncio.Future[bytes] = loop.create_future()
    said = bytearray()

    def read() -> None:
        data = os.read(fd, 64)
        said.extend(data)
        if (not data or b"\n" in data) and not line.done():
            line.set_result(bytes(said) if data else b"")

    loop.add_reader(fd, read)
    try:
        return await line
    finally:
        loop.remove_reader(fd)


def _end_inherited(directory: Path) -> None:
    kill_below([directory])
    _remove(directory)


def _remove(directory: Path) -> None:
    remove_socket(directory)
    shutil.rmtree(directory, ignore_errors=True)
