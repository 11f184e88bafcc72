"""Gets the browsers and the Redis that a grid needs onto this host, and says each step. No role calls it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import selectors
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from playwright._impl._driver import compute_driver_executable

from grid.browsers import FoundBrowser, Places, find_browser
from grid.config import Settings
from grid.core.types import BrowserType
from grid.errors import BrowserLaunchError, BrowserMissing, GridError
from grid.registry.embedded import find_redis_server
from grid.worker.browser_server import BrowserServer, LaunchSpec

Say = Callable[[str], None]

INSTALL_TIMEOUT_S: Final = 900.0
_VERSION_TIMEOUT_S: Final = 20.0
_TAIL_LINES: Final = 5

_APT: Final = ("apt-get", "-o", "DPkg::Lock::Timeout=120", "-o", "Dpkg::Use-Pty=0")
_PACKAGES: Final[Mapping[str, Mapping[str, tuple[str, ...]]]] = {
    # Later names are extras: taken where the system has them.
    "apt-get": {
        "chromium": ("chromium", "chromium-headless-shell"),
        "firefox": ("firefox-esr",),
        "redis": ("redis-server", "valkey-server"),
    },
    "dnf": {"chromium": ("chromium-headless",), "firefox": ("firefox",), "redis": ("valkey",)},
    "pacman": {"chromium": ("chromium",), "firefox": ("firefox",), "redis": ("valkey",)},
    "apk": {"chromium": ("chromium",), "firefox": ("firefox-esr",), "redis": ("redis",)},
}
_INSTALL: Final[Mapping[str, tuple[str, ...]]] = {
    "apt-get": (*_APT, "install", "-y", "--no-install-recommends"),
    "dnf": ("dnf", "install", "-y"),
    "pacman": ("pacman", "-Sy", "--noconfirm", "--needed"),
    "apk": ("apk", "add", "--no-cache"),
}


@dataclass(frozen=True, slots=True)
class Host:
    """What setup may use of this host. The defaults are the real one; tests give others."""

    places: Places = field(default_factory=Places)
    is_root: bool = field(default_factory=lambda: os.geteuid() == 0)
    timeout_s: float = INSTALL_TIMEOUT_S

    def which(self, command: str) -> str | None:
        """The path of a command, or None."""
        return shutil.which(command, path=self.places.environ.get("PATH", ""))

    @property
    def has_snap_packages(self) -> bool:
        """Whether the system's packages of browsers are mere pointers to snaps, which cannot be driven."""
        with contextlib.suppress(FileNotFoundError):
            return "ID=ubuntu" in (self.places.root / "etc/os-release").read_text().splitlines()
        return False

    def as_root(self) -> tuple[str, ...] | None:
        """What goes before a command that needs root; None when there is no way."""
        if self.is_root:
            return ()
        sudo = self.which("sudo")
        if sudo and subprocess.run([sudo, "-n", "true"], capture_output=True, check=False).returncode == 0:
            return (sudo, "-n", "env", "DEBIAN_FRONTEND=noninteractive")
        return None

    def apt_knows(self, package: str) -> bool:
        """Whether apt can install this package."""
        command = ["apt-cache", "show", "--no-all-versions", package]
        return subprocess.run(command, capture_output=True, env=dict(self.places.environ), check=False).returncode == 0

    def run(self, command: Sequence[str], say: Say) -> str | None:
        """Runs a command, saying its lines as they come. None when it worked, else why not."""
        say(f"  $ {' '.join(command)}")
        try:
            return _stream(command, {**self.places.environ, "DEBIAN_FRONTEND": "noninteractive"}, say, self.timeout_s)
        except OSError as error:
            return str(error)


def setup(types: Iterable[BrowserType], settings: Settings, say: Say, host: Host | None = None) -> list[FoundBrowser]:
    """Finds or gets each browser type, checks that it runs, and makes sure of a Redis; returns what was found.

    Says every step in plain lines. Raises BrowserMissing or BrowserLaunchError for the first type that cannot be had,
    and GridError when there is no Redis.
    """
    host = host or Host()
    found = [_one(browser_type, settings, say, host) for browser_type in types]
    _ensure_redis(settings, say, host)
    return found


def _ensure_redis(settings: Settings, say: Say, host: Host) -> None:
    if settings.redis_url or settings.redis_host:
        say("redis: the settings name one that runs elsewhere")
        return
    try:
        say(f"redis: {find_redis_server()}")
    except GridError as missing:
        say("redis: no redis-server on this host yet")
        fault = install_packages("redis", say, host)
        if fault is not None:
            raise GridError(f"{missing} (tried to install one: {fault})") from missing
        say(f"redis: {find_redis_server()} (its package may run a service of its own, which the grid does not use)")


def _one(browser_type: BrowserType, settings: Settings, say: Say, host: Host) -> FoundBrowser:
    try:
        browser = find_browser(browser_type, settings, host.places)
    except BrowserMissing as missing:
        if settings.executable(browser_type):
            raise
        say(f"{browser_type}: none on this host yet")
        return _get(browser_type, settings, say, host, missing)
    fault = None if browser_type == "webkit" else _version_fault(browser, say)
    if fault is None:
        return browser
    say(f"{browser}: does not run: {fault}")
    if browser.source != "playwright":
        raise BrowserLaunchError(fault, str(browser))
    return _get(browser_type, settings, say, host, BrowserLaunchError(fault, str(browser)))


def _get(browser_type: BrowserType, settings: Settings, say: Say, host: Host, reason: GridError) -> FoundBrowser:
    """Tries each way in turn until one yields a browser that opens a page."""
    faults = [str(reason)]
    for way in (_from_playwright, _from_system):
        fault = way(browser_type, settings, say, host)
        if fault is None:
            try:
                browser = find_browser(browser_type, settings, host.places)
                _try_launch(browser, settings, say)
            except GridError as error:
                fault = str(error)
            else:
                return browser
        say(f"{browser_type}: {fault}")
        faults.append(fault)
    raise BrowserMissing(f"{browser_type} could not be had: " + "; ".join(faults))


def _from_playwright(browser_type: BrowserType, settings: Settings, say: Say, host: Host) -> str | None:
    """Playwright's own download. None when it worked, else why not."""
    say(f"{browser_type}: asking Playwright to install its own")
    node, cli = compute_driver_executable()
    options = ["--with-deps"] if host.is_root and host.which("apt-get") else []
    if browser_type == "chromium" and settings.headless:
        options.append("--only-shell")
    fault = host.run([node, cli, "install", *options, browser_type], say)
    if fault is not None and "--with-deps" in options:
        options.remove("--with-deps")
        say(f"{browser_type}: once more without the system's libraries, which may be there already")
        fault = host.run([node, cli, "install", *options, browser_type], say)
    return None if fault is None else f"Playwright could not install it ({fault})"


def _from_system(browser_type: BrowserType, _settings: Settings, say: Say, host: Host) -> str | None:
    """The system's own package. None when it worked, else why not."""
    if browser_type == "webkit":
        return "no system has a package of the WebKit that Playwright needs"
    if host.has_snap_packages:
        return f"Ubuntu's {browser_type} package is a snap, which cannot be driven"
    return install_packages(browser_type, say, host)


def install_packages(what: str, say: Say, host: Host) -> str | None:
    """Installs the system's packages for "chromium", "firefox" or "redis". None when it worked, else why not."""
    manager = next((each for each in _PACKAGES if host.which(each)), None)
    if manager is None:
        return f"there is no package manager here that we know ({', '.join(_PACKAGES)})"
    prefix = host.as_root()
    names = _PACKAGES[manager][what]
    if prefix is None:
        return f"not root, and sudo asks for a password: run `sudo {manager} install {names[0]}` yourself"
    if manager == "apt-get":
        # A fresh container has no package lists at all.
        if not host.apt_knows(names[0]):
            fault = host.run([*prefix, *_APT, "update"], say)
            if fault is not None:
                return f"apt-get update failed ({fault})"
        names = tuple(name for name in names if host.apt_knows(name))
        if not names:
            return f"apt-get has no package {_PACKAGES[manager][what][0]}"
        if what == "redis":
            names = names[:1]
    say(f"{what}: installing the system's {' and '.join(names)}")
    fault = host.run([*prefix, *_INSTALL[manager], *names], say)
    return None if fault is None else f"{manager} failed ({fault})"


def _version_fault(browser: FoundBrowser, say: Say) -> str | None:
    """Runs the browser with --version, which needs all its libraries but no page. None when it worked."""
    with tempfile.TemporaryDirectory(prefix="pwgrid-setup-") as home:
        try:
            done = subprocess.run(
                [browser.executable, "--version"],
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_VERSION_TIMEOUT_S,
                env={**os.environ, "HOME": home, "TMPDIR": home},
                check=False,
            )
        except subprocess.TimeoutExpired:
            return f"--version took longer than {_VERSION_TIMEOUT_S:g} s"
        except OSError as error:
            return str(error)
    if done.returncode != 0:
        return (done.stderr.strip() or done.stdout.strip() or f"exit {done.returncode}").splitlines()[-1]
    say(f"{browser}: {(done.stdout.strip() or 'it runs').splitlines()[-1]}")
    return None


def _try_launch(browser: FoundBrowser, settings: Settings, say: Say) -> None:
    """Launches a browser server as a worker would, with its warm-up. Raises BrowserLaunchError."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="pwgrid-setup-") as directory:
        temporary = Path(directory, "tmp")
        temporary.mkdir()
        spec = LaunchSpec.of(settings, browser, Path(directory, "browser.sock"), temporary)
        version = asyncio.run(_launch_once(spec, settings.launch_timeout))
    say(f"{browser}: version {version} opened a page after {time.monotonic() - started:.1f} s")


async def _launch_once(spec: LaunchSpec, timeout_s: float) -> str:
    ours, theirs = socket.socketpair()
    server = await BrowserServer.start(
        spec,
        ours,
        theirs,
        on_closed=lambda _closed, _on_record: None,
        on_gone=lambda _reason: None,
        timeout_s=timeout_s,
    )
    await server.stop(10)
    return server.ready.browser_version


def _stream(command: Sequence[str], environ: Mapping[str, str], say: Say, timeout_s: float) -> str | None:
    """Runs `command` and says its lines as they come. None when it exits 0, else what it said last."""
    deadline = time.monotonic() + timeout_s
    tail: deque[str] = deque(maxlen=_TAIL_LINES)
    process = subprocess.Popen(
        command,
        env=dict(environ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # so that all of it can be ended, also when we are interrupted
    )
    assert process.stdout is not None
    output = process.stdout.fileno()
    unfinished = b""
    try:
        with selectors.DefaultSelector() as selector:
            selector.register(output, selectors.EVENT_READ)
            while selector.select(max(0.0, deadline - time.monotonic())):
                data = os.read(output, 65536)
                *lines, unfinished = (unfinished + data).replace(b"\r", b"\n").split(b"\n")
                if not data:
                    lines.append(unfinished)
                for line in filter(None, (each.decode(errors="replace").rstrip() for each in lines)):
                    say(f"  | {line}")
                    tail.append(line)
                if not data:
                    break
            else:
                return f"not done within {timeout_s:g} s"
        code = process.wait(max(0.1, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        return f"not done within {timeout_s:g} s"
    finally:
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        process.stdout.close()
    return None if code == 0 else f"exit {code}: {' / '.join(tail) or 'it said nothing'}"
