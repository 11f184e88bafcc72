"""Has a browser describe its DevTools protocol. It does so over a port alone, and a port is open to every user of the
host: so it is a browser that serves nobody, may use none of the host's files, knows no other host, and is killed once
it has answered."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import threading
import urllib.request
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from typing import IO, Final

import orjson

from pwgrid.common.confined_exec import ENDS_WITH
from pwgrid.common.launch_failure import BrowserLaunchError
from pwgrid.worker.browser.launch import LaunchSpec

TIMEOUT_S: Final = 20.0
"""For its start, its answer and its end."""

_WHAT: Final = "a browser that describes its protocol"
_LISTENS: Final = "DevTools listening on ws://"
_FLAGS: Final = (
    *("--headless", "--remote-debugging-port=0", "--no-first-run", "--no-default-browser-check", "--disable-gpu"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions"),
    "--host-resolver-rules=MAP * ~NOTFOUND",  # who finds its port gets no further than to it
)


def describe(spec: LaunchSpec, timeout_s: float = TIMEOUT_S) -> bytes:
    """Returns what this Chromium tells of its protocol, JSON. Takes a few tenths of a second, and blocks. When it
    returns, no process and no file of that browser is left; should this process die meanwhile, it ends, too. Raises
    BrowserLaunchError."""
    confinement, executable = spec.confinement, spec.browser.executable
    if confinement is None:
        raise BrowserLaunchError("it has a port for a moment, and is not confined here (CONFINE)", _WHAT)
    if not executable:
        raise BrowserLaunchError("only Playwright knows where its channel is", _WHAT)
    with tempfile.TemporaryDirectory(dir=spec.directories.own, prefix="protocol-", ignore_cleanup_errors=True) as own:
        command = [
            *confinement.before_browser(may_listen=True),
            *(f"{ENDS_WITH}{os.getpid()}", "--own", own, "--", executable, *_FLAGS),
            *([] if spec.settings.chromium_sandbox else ["--no-sandbox"]),
            f"--user-data-dir={Path(own, 'profile')}",
        ]
        environment = {**spec.environment(), **confinement.variables(), "TMPDIR": own}
        browser = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
        )
        timer = threading.Timer(timeout_s, _kill, [browser])
        timer.start()
        assert browser.stderr is not None
        try:
            return _asked(browser.stderr)
        finally:
            _kill(browser)
            browser.stderr.read()  # until all of its processes have ended
            browser.stderr.close()
            browser.wait()
            timer.cancel()


def _asked(stderr: IO[bytes]) -> bytes:
    said: list[str] = []
    for line in stderr:
        said.append(line.decode(errors="replace").strip())
        if said[-1].startswith(_LISTENS):
            break
    else:
        raise BrowserLaunchError("\n".join(said[-5:]) or "it ended without a word, or took too long", _WHAT)
    host = said[-1].removeprefix(_LISTENS).partition("/")[0]
    # Not through the proxy that the environment may name.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"http://{host}/json/protocol", timeout=TIMEOUT_S) as answer:
            description: bytes = answer.read()
        if not orjson.loads(description)["domains"]:
            raise KeyError("domains")
    except (OSError, HTTPException, ValueError, KeyError) as error:
        raise BrowserLaunchError(f"it did not answer: {error}", _WHAT) from None
    return description


def _kill(browser: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(browser.pid, signal.SIGKILL)
