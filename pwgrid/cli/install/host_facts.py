"""Finds out for an installation where the parts of pwgrid are on this host, and which of them a service can reach."""

import contextlib
import http.client
import os
import pwd
import stat
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import pwgrid
from pwgrid.common.errors import BrowserMissing, GridError
from pwgrid.master.listener import why_no_listening
from pwgrid.settings.model import Settings, reachable
from pwgrid.worker.browser.find import FoundBrowser, SearchPaths, find_for_pool

_HOMES: Final = (Path("/home"), Path("/root"), Path("/run/user"))
"""What ProtectHome= hides from a service."""
_PRIVATE: Final = (Path("/tmp"), Path("/var/tmp"))
"""What PrivateTmp= hides from a service."""
_ANSWER_S: Final = 5.0


def is_browser_missing(settings: Settings, browsers: Path | None) -> bool:
    """Whether a pool with workers has no browser. `browsers` is the directory of downloaded ones."""
    return None in _wanted(settings, browsers)


def parts(settings: Settings, browsers: Path | None) -> list[Path]:
    """Every directory that the grid needs to run: code, Python, packages, browsers."""
    found = [Path(pwgrid.__file__).parents[1], Path(sys.prefix), Path(sys.base_prefix), Path(sys.executable).parent]
    found.append(Path(sys.executable).resolve().parent)
    found += [
        Path(each.executable).resolve().parent for each in _wanted(settings, browsers) if each and each.executable
    ]
    if browsers and browsers.is_dir():
        found.append(browsers)
    return found


def _wanted(settings: Settings, browsers: Path | None) -> Iterator[FoundBrowser | None]:
    """The browser of each pool with workers; None for one that is missing."""
    environment = {**os.environ, **({"PLAYWRIGHT_BROWSERS_PATH": str(browsers)} if browsers else {})}
    places = SearchPaths(environ=environment)
    for pool in settings.pools_with_workers():
        try:
            yield find_for_pool(pool, settings, places)
        except BrowserMissing:
            yield None


def hidden(found: Iterable[Path]) -> tuple[Path, ...]:
    """Those of `found` that are in a home directory, without those inside another. Raises GridError for one in a
    temporary directory, which a service cannot be shown."""
    in_homes = []
    for path in found:
        if any(path.is_relative_to(each) for each in _PRIVATE):
            raise GridError(f"{path} is a temporary place, which services do not see: install pwgrid elsewhere first")
        if any(path.is_relative_to(each) for each in _HOMES):
            in_homes.append(path)
    inside = {path for path in in_homes for other in in_homes if path != other and path.is_relative_to(other)}
    return tuple(dict.fromkeys(path for path in in_homes if path not in inside))


def closed(found: Iterable[Path], *, shown: Iterable[Path] = ()) -> Iterator[Path]:
    """The directories on the paths in `found` that another user may not enter; except those above a path in `shown`."""
    known = set()
    for path in found:
        above = next((each for each in shown if path.is_relative_to(each)), None)
        for each in (path, *path.parents):
            if each not in known and not each.stat().st_mode & stat.S_IXOTH:
                yield each
            known.add(each)
            if each == above:
                break


def uid_of(user: str) -> int | None:
    """The uid of a user; None where there is no such user."""
    try:
        return pwd.getpwnam(user).pw_uid
    except KeyError:
        return None


def is_run_by_systemd() -> bool:
    """Whether systemd is pid 1 here (sd_booted)."""
    return Path("/run/systemd/system").is_dir()


def is_ready(host: str, port: int) -> bool:
    """Whether a grid that listens there is ready."""
    asks = http.client.HTTPConnection(reachable(host), port, timeout=_ANSWER_S)
    with contextlib.closing(asks), contextlib.suppress(OSError, http.client.HTTPException):
        asks.request("GET", "/health/ready")
        return asks.getresponse().status == http.HTTPStatus.OK
    return False


def port_obstacle(host: str, port: int) -> str:
    """Why a grid cannot listen on this address now; empty when it can."""
    return str(why_no_listening(host, port) or "")
