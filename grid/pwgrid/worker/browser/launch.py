"""Describes what a browser server launches, and starts its Node process."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from pwgrid.common.errors import BrowserMissing
from pwgrid.common.launch_failure import BrowserLaunchError
from pwgrid.common.types import Isolation
from pwgrid.installed import confine_setting
from pwgrid.installed.browsers import FoundBrowser
from pwgrid.installed.headed import find_xvfb
from pwgrid.runtime.display_sockets import make_place
from pwgrid.settings.model import Settings
from pwgrid.settings.pools import PoolSettings
from pwgrid.worker.browser.confined_paths import Confinement, Directories
from pwgrid.worker.browser.health import CANARY_TRIES, HealthTimes
from pwgrid.worker.close_texts import close_texts

LAUNCHER: Final = Path(__file__).with_name("launcher.cjs")

CHECK_DRIVER: Final = Path(__file__).with_name("playwright") / "check_driver.cjs"
"""A program that gets the directory of a driver's code, and prints what that lacks, a JSON list."""

_SOCKET_PATH_BYTES: Final = 107

_NEEDED: Final = re.compile(
    # paths, user, language, time zone
    r"PATH|HOME|USER|LOGNAME|SHELL|LANG|LANGUAGE|LC_\w+|TZ|TZDIR"
    # display, sound, fonts
    r"|DISPLAY|XAUTHORITY|WAYLAND_DISPLAY|XDG_\w+|DBUS_SESSION_BUS_ADDRESS|PULSE_\w+|FONTCONFIG_\w+"
    # proxies and trusted certificates
    r"|(http|https|ftp|all|no)_proxy|(HTTP|HTTPS|FTP|ALL|NO)_PROXY|SSL_CERT_(FILE|DIR)|NODE_EXTRA_CA_CERTS"
    # libraries, drivers, and the browsers themselves
    r"|LD_LIBRARY_PATH|LIBGL_\w+|MESA_\w+|GALLIUM_\w+|VK_\w+|LIBVA_\w+|MOZ_\w+"
    r"|PLAYWRIGHT_BROWSERS_PATH|PLAYWRIGHT_SKIP_VALIDATE_HOST_REQUIREMENTS"
)
"""Variables that Node and the browser get, and nothing else of the grid's environment: a page that breaks out of its
browser must not get the secrets of a CI job."""

_FIREFOX_PREFS: Final[Mapping[str, str | int | bool]] = {
    "fission.bfcacheInParent": False  # page.go_back() hangs otherwise
}


_FOR_SHARED_CHROMIUM: Final = "--disable-gpu-process-crash-limit"
"""Chromium ends itself when its GPU process has crashed three times. Any page can make it crash, by a screenshot of the
full page that is a million pixels high, for one; and those who share the browser lose no more than a frame by it."""


NODE_FLAGS: Final = (
    "--no-warnings",
    # A pattern that a client gives goes on without backtracking after so many steps, if it can; the third flag lets the
    # launcher ask whether it can (client_patterns.cjs).
    "--enable-experimental-regexp-engine-on-excessive-backtracks",
    "--regexp-backtracks-before-fallback=50000",
    "--enable-experimental-regexp-engine",
)


_NODE_MEMORY: Final[Mapping[str, str]] = {"MALLOC_MMAP_THRESHOLD_": str(128 * 1024)}
"""What glibc allocates above this size goes back to the system when it is freed. By itself it raises that to 32 MiB,
and keeps, in pieces, what large bodies took."""


@dataclass(frozen=True, slots=True)
class LaunchSpec:
    """What to launch, and for whom. `settings` are those of `pool` (`Settings.of_pool`)."""

    settings: Settings
    pool: PoolSettings
    browser: FoundBrowser
    directory: Path
    """Private to this browser server: it listens there."""
    live_view: Path | None = None
    """Where it shows the pages of sessions to the proxy (Unix socket); None: nowhere."""
    kept_files: Path | None = None
    """Where files of sessions that have ended are kept; None: nowhere."""
    code_cache: Path | None = None
    """Where browser servers of the same grid share compiled code."""

    @property
    def socket_path(self) -> Path:
        return self.directory / "browser.sock"

    @property
    def directories(self) -> Directories:
        return Directories(self.directory)

    @property
    def confinement(self) -> Confinement | None:
        """What Node and the browser may use of the host's files; None where they are not confined."""
        if not confine_setting.is_confined(self.settings):
            return None
        return Confinement(self.settings, self.browser, self.pool.args, self.environment(), self.directories)

    def confinement_with_display(self, variables: Mapping[str, str]) -> Confinement | None:
        """The same with a display of the session's own, which these variables name."""
        if (confinement := self.confinement) is None:
            return None
        return replace(confinement, environ={**confinement.environ, **variables}, has_own_display=True)

    def options(self) -> str:
        """The launcher's options, as JSON."""
        settings, pool, confinement = self.settings, self.pool, self.confinement
        times = HealthTimes.of(settings)
        refuses_files = settings.block_file_urls == "on" or (settings.block_file_urls == "auto" and not confinement)
        is_shared_chromium = self.browser.browser_type == "chromium" and settings.max_concurrent_sessions > 1
        return json.dumps(
            {
                "browserType": self.browser.browser_type,
                "executablePath": self.browser.executable,
                "channel": self.browser.channel,
                "headless": settings.headless,
                "args": [*pool.args, *([_FOR_SHARED_CHROMIUM] if is_shared_chromium else [])],
                "proxy": pool.proxy.options() if pool.proxy else None,
                "chromiumSandbox": settings.chromium_sandbox,
                "firefoxUserPrefs": _FIREFOX_PREFS,
                "socketPath": str(self.socket_path),
                "inWork": str(in_work(self.directory)),
                "playwrightCore": str(self.browser.driver.core),
                "pingTimeoutS": settings.session_ping_timeout,
                "idleTimeoutS": settings.session_idle_timeout,
                "maxBufferedBytes": settings.session_max_buffered_mib * 1024 * 1024,
                "maxDurationS": settings.session_max_duration,
                "drainTimeoutS": settings.drain_timeout,
                "launchTimeoutS": settings.launch_timeout,
                "signAfterS": times.sign_s,
                "silentS": times.silent_s,
                # One try of an own browser, as long as all those of a shared one: it has no second.
                "tryS": times.try_s * CANARY_TRIES,
                "isolation": pool.isolation,
                "warm": pool.warm if pool.isolation is Isolation.BROWSER else 0,
                "mostOwn": pool.max_own_browsers or settings.max_concurrent_sessions,
                "slots": settings.max_concurrent_sessions,
                "clientGuard": settings.client_guard,
                "blockFileUrls": refuses_files,
                "beforeBrowser": confinement.before_browser() if confinement else [],
                "browserEnvironment": {
                    "TMPDIR": str(self.directories.browser),
                    **(confinement.variables() if confinement else {}),
                },
                "browserDirectory": str(self.directories.browser),
                "ownDirectory": str(self.directories.own),
                "sessionsDirectory": str(self.directories.sessions),
                "filesDirectory": str(self.directories.files),
                "keptFiles": str(self.kept_files) if self.kept_files else "",
                "liveView": str(self.live_view) if self.live_view else "",
                "codeCache": str(self.code_cache) if self.code_cache else "",
                "closeTexts": close_texts(settings),
            }
        )

    def environment(self) -> dict[str, str]:
        """The variables that Node and the browser get: those that they need, BROWSER_ENV, and the pool's own."""
        named = self.settings.browser_env
        kept = {name: value for name, value in os.environ.items() if _NEEDED.fullmatch(name) or name in named}
        own = {name: value.get_secret_value() for name, value in self.pool.env.items()}
        return {**kept, **own, **_NODE_MEMORY, "TMPDIR": str(self.directories.node)}


def in_work(directory: Path) -> Path:
    """The file in which the browser server notes whose message it works on (session_in_work.cjs)."""
    return Directories(directory).node / "in-work"


@dataclass(frozen=True, slots=True)
class LaunchedBrowser:
    """What a browser server reports when it is ready."""

    browser_pid: int
    browser_version: str
    playwright_version: str


def spawn(spec: LaunchSpec, ipc_child: socket.socket) -> subprocess.Popen[bytes]:
    """Starts the launcher with `ipc_child` as Node's IPC socket and a pipe on stderr. Raises BrowserLaunchError or
    OSError."""
    if len(os.fsencode(spec.socket_path)) > _SOCKET_PATH_BYTES:
        raise BrowserLaunchError(
            f"its socket's path is longer than {_SOCKET_PATH_BYTES} bytes: set PWGRID_RUNTIME_DIR to a shorter one",
            spec.browser.browser_type,
        )
    driver = spec.browser.driver
    with contextlib.suppress(BrowserMissing, OSError):
        find_xvfb()
        make_place()  # before Node starts: what is not there yet it may never use
    spec.directories.make(spec.settings.max_concurrent_sessions)
    if spec.code_cache is not None:
        spec.code_cache.mkdir(mode=0o700, exist_ok=True)
    if spec.kept_files is not None:
        spec.kept_files.mkdir(mode=0o700, parents=True, exist_ok=True)
    environment = {
        **spec.environment(),
        "NODE_CHANNEL_FD": str(ipc_child.fileno()),
        "NODE_CHANNEL_SERIALIZATION_MODE": "json",
        "PWGRID_LAUNCH": spec.options(),
    }
    sockets = [spec.socket_path, *([spec.live_view] if spec.live_view else [])]
    confinement = spec.confinement
    confined = (
        confinement.before_node(driver.node, driver.core, LAUNCHER, sockets, spec.code_cache, spec.kept_files)
        if confinement
        else []
    )
    ipc_child.setblocking(False)
    return subprocess.Popen(
        [*confined, driver.node, *NODE_FLAGS, str(LAUNCHER)],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        pass_fds=(ipc_child.fileno(),),
        # A signal to the worker's process group must not end the sessions.
        start_new_session=True,
    )
