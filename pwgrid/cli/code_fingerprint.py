"""The fingerprint of what a grid runs with: its code, the packages beside it, Python and browsers. Loads none of it."""

import hashlib
import os
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import pwgrid
from pwgrid.common.shipped_files import resource_dir

_PARTS: Final = ("lua", "config")


def fingerprint(executables: Iterable[str]) -> str:
    """A hash that changes with a file of the code, with the installed version of a package, with Python, and with each
    of these executables. Takes some milliseconds."""
    known = hashlib.sha256()
    for path in _files(executables):
        try:
            status = os.stat(path)
        except OSError:
            continue
        known.update(f"{path} {status.st_size} {status.st_mtime_ns}\n".encode(errors="surrogateescape"))
    return known.hexdigest()


def _files(executables: Iterable[str]) -> Iterator[str]:
    yield os.path.realpath(sys.executable)
    yield from map(os.path.realpath, executables)
    for root in (Path(pwgrid.__file__).parent, *map(resource_dir, _PARTS)):
        for directory, names, files in os.walk(root):
            names[:] = sorted(set(names) - {"__pycache__"})
            yield from (os.path.join(directory, file) for file in sorted(files))
    for place in sorted({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}):
        packages = (each for each in os.listdir(place) if each.endswith(".dist-info"))
        yield from (os.path.join(place, each) for each in sorted(packages))  # its name has the version
