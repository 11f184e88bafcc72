"""What a grid runs with: its settings, the browser of each pool, and its code. Reads and finds them anew, and compares
them with what is installed by then."""

import hashlib
import os
import sys
import sysconfig
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import structlog

import pwgrid
from pwgrid.common import log as logging
from pwgrid.common.certificate import client_context, server_context
from pwgrid.common.errors import BrowserMissing
from pwgrid.common.paths import resource_dir
from pwgrid.installed import confine_setting
from pwgrid.installed.browsers import FoundBrowser, find_for_pool
from pwgrid.installed.driver import drivers_directories, installed_drivers
from pwgrid.settings.load import Loaded
from pwgrid.settings.model import Settings
from pwgrid.settings.pools import PoolSettings
from pwgrid.settings.show_with_sources import described

_PARTS: Final = ("lua", "config")

log = structlog.get_logger()


class RunningParts:
    """The parts as they were when the grid took them: the `browsers` by pool, the `code` and each executable by a
    fingerprint."""

    def __init__(self, loaded: Loaded) -> None:
        """Raises BrowserMissing, or GridError where the kernel lacks what the settings ask for, or the certificate
        cannot be used."""
        confine_setting.check(loaded.settings)
        if loaded.settings.tls_cert or loaded.settings.tls_ca:
            _check_certificates(loaded.settings)
        self._loaded, self._sources = loaded, loaded.sources
        self.code: Final = code_fingerprint()
        self.browsers = _find_browsers(loaded.settings)
        self.versions = _installed_versions(loaded.settings)
        """Playwright (major.minor) that this host has drivers of, the oldest first."""
        self._drivers_changed_at: tuple[int, ...] = ()
        self.tokens_file: Final = loaded.tokens_file
        """Where the proxy finds the tokens of `pwgrid token`."""
        self._executables: dict[str, str] = {}
        self._take(self.browsers)

    def reload(self, port: int, scaled_up: Collection[str]) -> tuple[Settings, Callable[[], None]]:
        """Reads the configuration again; the settings, and a function to call once they are accepted. Pools in
        `scaled_up` have workers although it asks for none. `port`: where the grid listens.

        Raises GridError with all that is wrong.
        """
        loaded = self._loaded.again()
        settings = loaded.settings
        confine_setting.check(settings)
        if settings.port == self._loaded.settings.port:
            # The real port: 0 means any, and systemd may have opened another one.
            settings = settings.model_copy(update={"port": port})
        browsers, versions = _find_browsers(settings, scaled_up), _installed_versions(settings)

        def accept() -> None:
            self.browsers.update(browsers)
            self.versions = versions
            self._take(browsers)
            logging.configure(settings.log_level, settings.log_format, "master")
            self._sources = loaded.sources
            log_warnings(loaded)

        return settings, accept

    def prepare_pool(self, settings: Settings, pool: PoolSettings) -> None:
        """Finds the browser of a pool that gets its first workers while the grid runs, or has some that another master
        has started on demand. Raises BrowserMissing."""
        self.browsers[pool.name] = find_for_pool(pool, settings)

    def look_for_versions(self, settings: Settings) -> bool:
        """Whether `versions` has changed, since somebody has installed or removed a driver. Raises OSError, with
        nothing changed, when no descriptor is free."""
        changed_at = _changed_at(settings)
        if changed_at == self._drivers_changed_at:
            return False
        before, self.versions = self.versions, _installed_versions(settings)
        self._drivers_changed_at = changed_at
        return self.versions != before

    def describe(self, settings: Settings) -> dict[str, Any]:
        """The settings with the source of each."""
        return described(settings, self._sources)

    def are_installed(self, settings: Settings) -> bool:
        """Whether just this code is installed now, and just these executables. Takes some milliseconds."""
        try:
            executables = _executables(_find_browsers(settings))
        except BrowserMissing:
            return False
        are_same = all(self._executables.get(each) == _of_file(each) for each in executables)
        return are_same and code_fingerprint() == self.code

    def _take(self, browsers: dict[str, FoundBrowser]) -> None:
        """Makes these the parts that the grid runs with. The fingerprint of an executable that it had before stays."""
        self._executables = {each: self._executables.get(each) or _of_file(each) for each in _executables(browsers)}


def log_warnings(loaded: Loaded) -> None:
    for warning in (*loaded.warnings, *loaded.strays):
        log.warning("settings_warning", about=str(warning))
    settings = loaded.settings
    is_private = loaded.tokens_file is None
    if not confine_setting.is_confined(settings) and not (is_private and settings.confine == "auto"):
        why = "CONFINE=off" if settings.confine == "off" else confine_setting.NO_LANDLOCK
        who = "clients" if settings.block_file_urls == "off" else "browsers that are broken into"
        log.warning("browsers_not_confined", reason=why, about=f"{who} read what the grid's user may read")


def _check_certificates(settings: Settings) -> None:
    """Raises GridError. While the grid runs, a certificate that cannot be used does not replace the one before it."""
    if settings.tls_cert:
        server_context(settings.tls_cert, settings.tls_key)
    client_context(settings.tls_ca)


def _find_browsers(settings: Settings, scaled_up: Collection[str] = ()) -> dict[str, FoundBrowser]:
    """The browser of each pool that wants workers, also of those in `scaled_up`. Raises BrowserMissing."""
    pools = settings.pools_wanted().values()
    return {pool.name: find_for_pool(pool, settings) for pool in pools if pool.workers > 0 or pool.name in scaled_up}


def _installed_versions(settings: Settings) -> tuple[str, ...]:
    return tuple(driver.minor for driver in installed_drivers(*drivers_directories(settings)))


def _changed_at(settings: Settings) -> tuple[int, ...]:
    """When the directories of the drivers got or lost one last."""
    found = []
    for directory in drivers_directories(settings):
        try:
            found.append(os.stat(directory).st_mtime_ns)
        except OSError:
            found.append(0)
    return tuple(found)


def _executables(browsers: dict[str, FoundBrowser]) -> list[str]:
    """The browsers and their drivers, by a file of each that another version replaces."""
    files = [each.executable for each in browsers.values() if each.executable]
    return [*files, *(str(each.driver.core / "package.json") for each in browsers.values())]


def _of_file(executable: str) -> str:
    return _fingerprint([os.path.realpath(executable)])


def code_fingerprint() -> str:
    """A hash that changes with the code, the packages beside it and Python."""
    return _fingerprint(_files_of_code())


def _fingerprint(paths: Iterable[str]) -> str:
    """A hash that changes with each of these files."""
    known = hashlib.sha256()
    for path in paths:
        try:
            status = os.stat(path)
        except OSError:
            continue
        known.update(f"{path} {status.st_size} {status.st_mtime_ns}\n".encode(errors="surrogateescape"))
    return known.hexdigest()


def _files_of_code() -> Iterator[str]:
    """The files of the package, one file for each installed version of another package, and Python."""
    yield os.path.realpath(sys.executable)
    for root in (Path(pwgrid.__file__).parent, *map(resource_dir, _PARTS)):
        for directory, names, files in os.walk(root):
            names[:] = sorted(set(names) - {"__pycache__"})
            yield from (os.path.join(directory, file) for file in sorted(files))
    for place in sorted({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}):
        packages = (each for each in os.listdir(place) if each.endswith(".dist-info"))
        yield from (os.path.join(place, each) for each in sorted(packages))  # its name has the version
