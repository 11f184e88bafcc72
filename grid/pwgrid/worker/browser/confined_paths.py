"""Which of the host's files Node and the browsers may use.

The browser may less than Node: it cannot list the directories of sessions, whose names nobody can guess, nor reach what
else belongs to Node or to its worker.
"""

from __future__ import annotations

import os
import re
import struct
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.util import MAGIC_NUMBER, cache_from_source
from pathlib import Path
from secrets import token_hex
from typing import Final

from pwgrid.common import confined_exec
from pwgrid.common.errors import GridError
from pwgrid.common.paths import home
from pwgrid.installed.browsers import (
    STOCK_FIREFOX_CHANNEL,
    FoundBrowser,
    SearchPaths,
    install_directories,
    installed_channels,
)
from pwgrid.runtime.directory import SESSION_FILES
from pwgrid.runtime.display_sockets import DISPLAYS, SOCKETS
from pwgrid.settings.model import Settings

_SYSTEM: Final = (
    *("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/usr/bin", "/usr/sbin", "/usr/lib", "/usr/lib32"),
    *("/usr/lib64", "/usr/libx32", "/usr/libexec", "/usr/share", "/usr/local/bin", "/usr/local/lib"),
    *("/usr/local/lib64", "/usr/local/share", "/nix/store", "/run/opengl-driver"),
    "/proc",
    # processors, graphics cards, limits of memory
    *("/sys/bus", "/sys/class", "/sys/devices", "/sys/dev", "/sys/fs/cgroup", "/sys/module", "/run/udev/data"),
    # caches of fonts, certificates, the machine's id
    *("/var/cache/fontconfig", "/var/lib/ca-certificates", "/var/lib/dbus/machine-id", "/etc/machine-id"),
    # libraries and graphics
    *("/etc/alternatives", "/etc/ld.so.cache", "/etc/drirc", "/etc/egl", "/etc/glvnd", "/etc/OpenCL", "/etc/vulkan"),
    # language, time, kinds of files
    *("/etc/localtime", "/etc/timezone", "/etc/locale.alias", "/etc/locale.conf", "/etc/mime.types", "/etc/os-release"),
    # fonts and the look of windows
    *("/etc/fonts", "/etc/gtk-2.0", "/etc/gtk-3.0", "/etc/X11"),
    # names of hosts
    *("/etc/gai.conf", "/etc/host.conf", "/etc/hosts", "/etc/nsswitch.conf", "/etc/protocols", "/etc/resolv.conf"),
    *("/etc/services", "/run/NetworkManager", "/run/resolvconf", "/run/systemd/resolve", "/run/nscd"),
    # whom to trust; not /etc/ssl/private and /etc/pki/tls/private
    *("/etc/ca-certificates", "/etc/crypto-policies", "/etc/krb5.conf", "/etc/pki/ca-trust", "/etc/pki/nssdb"),
    *("/etc/pki/tls/certs", "/etc/pki/tls/cert.pem", "/etc/pki/tls/openssl.cnf", "/etc/ssl/certs", "/etc/ssl/cert.pem"),
    *("/etc/ssl/ca-bundle.pem", "/etc/ssl/openssl.cnf"),
    # policies and settings of browsers for all users
    *("/etc/chromium", "/etc/chromium.d", "/etc/opt/chrome", "/etc/opt/edge", "/etc/firefox", "/etc/firefox-esr"),
)
"""What browsers need of a Linux system. Found by tracing them; what they can do without is not here: /etc/passwd."""

_DEVICES: Final = (
    *("/dev/full", "/dev/null", "/dev/random", "/dev/urandom", "/dev/zero"),
    *("/dev/dri", "/dev/dxg", "/dev/kfd", *(str(each) for each in Path("/dev").glob("nvidia*"))),
)

_OF_HOME: Final = (
    ".pki/nssdb",  # certificates that this user trusts: nobody reads them without the keys beside them
    *(".fonts", ".local/share/fonts", ".config/fontconfig", ".cache/fontconfig", ".fontconfig"),
)
_OF_XDG: Final = {"XDG_DATA_HOME": "fonts", "XDG_CONFIG_HOME": "fontconfig", "XDG_CACHE_HOME": "fontconfig"}

_NAMES_PATHS: Final = re.compile(
    r"SSL_CERT_(FILE|DIR)|NODE_EXTRA_CA_CERTS|FONTCONFIG_(FILE|PATH)|XAUTHORITY|TZDIR|LD_LIBRARY_PATH"
    r"|LIBGL_DRIVERS_PATH|LIBVA_DRIVERS_PATH|VK_(ICD_FILENAMES|DRIVER_FILES)"
)
"""Variables whose values are paths that browsers read."""

_DISPLAY_OF_HOST: Final = re.compile(r"(?:unix)?:(\d+)(?:\.\d+)?")

_KEYMAPS: Final = "/var/lib/xkb"
"""Where an X server of root has its keymap compiled; those of others take /tmp."""


_MORE_DIRECTORIES: Final = 8
_NAME_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class Directories:
    """The directories of one browser server in that of its worker, which keeps files of its own beside them."""

    worker: Path

    @property
    def browser(self) -> Path:
        """TMPDIR of the browser. A short path, since Chromium listens there."""
        return self.worker / "tmp"

    @property
    def own(self) -> Path:
        """Has a directory for each browser that one session has alone, in the place of `browser`."""
        return self.worker / "own"

    @property
    def node(self) -> Path:
        """TMPDIR of Node: profiles of browsers, and what Playwright writes for itself."""
        return self.worker / "node"

    @property
    def sessions(self) -> Path:
        """Has directories of sessions, with names that nobody can guess."""
        return self.worker / "sessions"

    @property
    def files(self) -> Path:
        """Says which of them a session has, for the proxy. The browser cannot read it."""
        return self.worker / SESSION_FILES

    def make(self, slots: int) -> None:
        """Makes them, and directories for sessions: one for each slot, and some because they are emptied after use.
        Raises OSError."""
        for directory in (self.browser, self.own, self.node, self.sessions, self.files, self.displays):
            directory.mkdir(mode=0o700, exist_ok=True)
        for _ in range(slots + _MORE_DIRECTORIES):
            (self.sessions / token_hex(_NAME_BYTES)).mkdir(mode=0o700)

    @property
    def displays(self) -> Path:
        """Has a directory for each display that was made for a session."""
        return self.worker / DISPLAYS

    @property
    def for_sessions(self) -> str:
        """Those that `make` has made for sessions: too many, perhaps, to name them on a command line."""
        return f"{self.sessions}/*"


Identity = tuple[int, int] | None
"""What the kernel knows a file by; None for one that is not there."""


def replaced(files: Mapping[str, Identity]) -> str:
    """The first path at which there is another file now than `identities` has found; empty if there is none."""
    return next((path for path, was in identities(files).items() if was not in (None, files[path])), "")


def identities(paths: Iterable[str]) -> dict[str, Identity]:
    """What the kernel knows these files by now."""
    found: dict[str, Identity] = {}
    for path in paths:
        try:
            status = os.stat(path)
            found[path] = status.st_dev, status.st_ino
        except OSError:
            found[path] = None
    return found


Paths = Mapping[str, Iterable[str | Path]]
"""By the use that is made of them (`confined_exec.RIGHTS`)."""


@dataclass(frozen=True, slots=True)
class Confinement:
    """What one browser server may use: `arguments` are those of its pool for the browser, `environ` is the
    environment of both. `has_own_display`: DISPLAY is one that was made for the session, whatever its pool has."""

    settings: Settings
    browser: FoundBrowser
    arguments: Iterable[str]
    environ: Mapping[str, str]
    directories: Directories
    has_own_display: bool = False

    def before_browser(self, *, may_listen: bool = False) -> list[str]:
        """The words before the browser's command; `--own` with the browser's profile and directory, and `--`, are to
        follow them. `may_listen`: on TCP ports, which one that serves clients never may."""
        own = self.directories
        paths: Paths = {
            "read": self._common(),
            "write": self._proc(),
            "device": _DEVICES,
            "unlisted": ["/dev/shm", own.sessions],
            # That it may list these is for uploads of directories. The kernel knows them whatever they are called.
            "files": [own.for_sessions],
        }
        return _words(paths, {*self._may(), *(["ports"] if may_listen else [])})

    def before_node(
        self, node: Path, core: Path, launcher: Path, sockets: Iterable[Path], *shared: Path | None
    ) -> list[str]:
        """The words before Node's command. It may all that any browser may that it starts, listens on `sockets`, and
        writes into directories outside its worker's that are `shared`."""
        own = self.directories
        ffmpeg = [os.path.realpath(each / "ffmpeg-linux") for each in install_directories("ffmpeg", self._places)]
        libraries = [Path(sys.base_prefix, name) for name in ("lib", "lib64")]
        read = [
            *self._common(),
            *self._with_directories(installed_channels(self.browser.browser_type, self._places)),
            os.path.realpath(node),
            core,
            launcher.parent,
            _PROGRAM,
            own.displays,
            str(SOCKETS),
            *ffmpeg,
            _PYTHON,
            *libraries,
        ]
        paths: Paths = {
            "read": read,
            "write": self._proc(),
            "device": _DEVICES,
            "unlisted": ["/dev/shm"],
            "own": [own.browser, own.own, own.node, own.sessions, own.files, *filter(None, shared)],
            "listen": [each.parent for each in sockets],
        }
        # Ports: for the proxies of client certificates, on the loopback.
        may = {"ports", "unix", *self._may()}
        return [*_words(paths, may), "--"]

    def of_host(self) -> dict[str, Identity]:
        """The files of the host that both may read, as they are now. What is put in their place later, as some service
        does with /etc/resolv.conf, they may not read, unless the directory that it is in is one of them."""
        # Not by pathlib: it keeps each part of a path in a table of Python's, and a worker that writes to that copies
        # pages which it shares with the master.
        places = {each: os.path.realpath(each) for each in (*_SYSTEM, *self.settings.browser_read_paths)}
        directories = {os.path.join(place, "") for place in places.values()}
        return identities(
            each
            for each, place in places.items()
            if not any(place.startswith(other) for other in directories - {place})
        )

    def _common(self) -> Iterator[str | Path]:
        """What both may read."""
        yield from _SYSTEM
        yield from self.settings.browser_read_paths
        for name, value in self.environ.items():
            if _NAMES_PATHS.fullmatch(name):
                yield from value.split(":")
            elif name in _OF_XDG:
                yield f"{value}/{_OF_XDG[name]}"
            elif self._is_headed and name == "DISPLAY" and (local := _DISPLAY_OF_HOST.fullmatch(value)):
                yield SOCKETS / f"X{local[1]}"
        for each in self.arguments:  # --load-extension=/one,/other
            yield from each.partition("=")[2].split(",")
        user = self._home
        yield from (user / each for each in _OF_HOME)
        if not self.settings.headless:
            yield user / ".Xauthority"
        yield from self._of_browsers()

    def _of_browsers(self) -> Iterator[Path]:
        """The browser with the directory that it lies in, and where Playwright has its own."""
        if self._has_only_browsers(self._places.installed):
            yield self._places.installed
        if self.browser.executable:  # else Playwright finds one of its own
            yield from self._with_directories([Path(self.browser.executable)])

    def _with_directories(self, executables: Iterable[Path]) -> Iterator[Path]:
        for each in executables:
            executable = each.resolve()
            yield executable
            if self._has_only_browsers(executable.parent):
                yield executable.parent

    def _has_only_browsers(self, directory: Path) -> bool:
        others = self._home.resolve(), self.directories.worker.resolve()
        return not any(each.is_relative_to(directory.resolve()) for each in others)

    @property
    def _is_headed(self) -> bool:
        return self.has_own_display or not self.settings.headless

    @property
    def _home(self) -> Path:
        try:
            return home(self.environ)
        except GridError:
            return Path("/nonexistent")  # as Debian has it for users without one

    @property
    def _places(self) -> SearchPaths:
        return SearchPaths({**self.environ, "HOME": str(self._home)}, driver=self.browser.driver)

    def _proc(self) -> Iterator[str]:
        """A browser's sandbox writes into /proc/self what its user namespace is to be; Firefox always has one. Root
        could change the whole host there."""
        has_sandbox = self.settings.chromium_sandbox or self.browser.browser_type == "firefox"
        if has_sandbox and os.geteuid() != 0:
            yield "/proc"

    def _may(self) -> Iterator[str]:
        """What the browser may do besides."""
        if self.browser.channel.startswith(STOCK_FIREFOX_CHANNEL):
            yield "ports"  # it is driven over one
        if not self.settings.headless:
            # Sockets of displays: libxcb tries such a one first, and where that is forbidden no other. A session's own
            # display has none.
            yield "abstract"
        # A full Chromium has one in its profile, displayed or not.
        is_shell = "headless" in os.path.basename(self.browser.executable)
        if self._is_headed or not (is_shell or self.browser.browser_type == "firefox"):
            yield "unix"

    def variables(self) -> dict[str, str]:
        """What the browser gets into its environment because it is confined."""
        # No settings of a desktop, which are in the user's home: where they cannot be made, each attempt is logged.
        more = {"GSETTINGS_BACKEND": "memory"}
        if self.browser.browser_type != "firefox":
            return {"BREAKPAD_DUMP_LOCATION": str(self.directories.browser), **more}  # else in the home
        # Firefox does not start where it can make nothing in its user's home, not even with a profile elsewhere.
        own, data = str(self.directories.browser), self._home / ".local/share"
        more |= dict.fromkeys(("HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME"), own)
        more["XDG_DATA_HOME"] = self.environ.get("XDG_DATA_HOME") or str(data)  # with fonts
        # Its processes crash where they cannot set up the user namespace that they believe to have.
        return more if os.geteuid() else {"MOZ_ASSUME_USER_NS": "0", **more}


def before_x_server(directory: Path) -> list[str]:
    """The words before the command of an X server whose display has this directory. It opens no sockets: it gets the
    one at which it listens."""
    own = _KEYMAPS if os.geteuid() == 0 else "/tmp"
    paths: Paths = {"read": [*_SYSTEM, directory], "device": _DEVICES, "unlisted": [own, "/dev/shm"]}
    return [*_words(paths, ()), "--"]


_PYTHON: Final = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
"""Not the virtual environment's: without site-packages it needs nothing of that."""


def program_of(source: Path) -> Path:
    """Returns what Python has written of this source when it imported it, if that is of the source as it is now: else
    each browser's start compiles it, for 2 ms. Whoever executes a compiled file is not asked whether it is out of date,
    as it is where Python may not write a new one (PYTHONDONTWRITEBYTECODE, another user's directory).

    The form of its first 16 bytes is that of PEP 552."""
    compiled = Path(cache_from_source(str(source)))
    try:
        with compiled.open("rb") as file:
            magic, flags, made_at, size = struct.unpack("<4sIII", file.read(16))
    except (OSError, struct.error):
        return source
    status = source.stat()
    of_now = (MAGIC_NUMBER, 0, int(status.st_mtime) & 0xFFFFFFFF, status.st_size & 0xFFFFFFFF)
    return compiled if (magic, flags, made_at, size) == of_now else source


_PROGRAM: Final = str(program_of(Path(confined_exec.__file__)))


def _words(paths: Paths, may: Iterable[str]) -> list[str]:
    listed = {
        use: [str(each) for each in dict.fromkeys(those) if str(each).startswith("/")] for use, those in paths.items()
    }
    return [_PYTHON, "-I", "-S", _PROGRAM, *confined_exec.words(listed, sorted(may))]
