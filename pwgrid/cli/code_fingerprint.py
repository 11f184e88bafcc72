"""What a grid runs with: its code, the packages beside it, Python and browsers, each by a fingerprint. Loads none of
it."""

import hashlib
import os
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import pwgrid
from pwgrid.common.directories import resource_dir

_PARTS: Final = ("lua", "config")


class RunningCode:
    """The code that a grid runs (`code` is its fingerprint), and the executables of its browsers, as they were when it
    took them."""

    def __init__(self, executables: Iterable[str]) -> None:
        self.code: Final = fingerprint(_files_of_code())
        self._browsers: dict[str, str] = {}
        self.takes(executables)

    def takes(self, executables: Iterable[str]) -> None:
        """From now on the grid runs with these executables. Those that it had stay as they were then."""
        self._browsers = {each: self._browsers.get(each) or _of_file(each) for each in executables}

    def is_installed(self, executables: Iterable[str]) -> bool:
        """Whether just this code is installed now, and just these executables. Takes some milliseconds."""
        are_same = all(self._browsers.get(each) == _of_file(each) for each in executables)
        return are_same and fingerprint(_files_of_code()) == self.code


def fingerprint(paths: Iterable[str]) -> str:
    """A hash that changes with each of these files."""
    known = hashlib.sha256()
    for path in paths:
        try:
            status = os.stat(path)
        except OSError:
            continue
        known.update(f"{path} {status.st_size} {status.st_mtime_ns}\n".encode(errors="surrogateescape"))
    return known.hexdigest()


def _of_file(executable: str) -> str:
    return fingerprint([os.path.realpath(executable)])


def _files_of_code() -> Iterator[str]:
    """Also those that are there for each installed version of a package, and Python."""
    yield os.path.realpath(sys.executable)
    for root in (Path(pwgrid.__file__).parent, *map(resource_dir, _PARTS)):
        for directory, names, files in os.walk(root):
            names[:] = sorted(set(names) - {"__pycache__"})
            yield from (os.path.join(directory, file) for file in sorted(files))
    for place in sorted({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}):
        packages = (each for each in os.listdir(place) if each.endswith(".dist-info"))
        yield from (os.path.join(place, each) for each in sorted(packages))  # its name has the version
