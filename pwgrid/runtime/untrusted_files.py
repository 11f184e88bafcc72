"""Reads small files of runtime directories, also of other users' ones. Writes nothing."""

import errno
import os
import stat
from pathlib import Path
from typing import Final

MOST_BYTES: Final = 1 << 20


def read_plain(path: Path) -> tuple[bytes, int]:
    """The content of a plain file and the uid of its owner. Raises OSError where the directory has another owner, for a
    link, which leads elsewhere, and for a pipe, whose reader would wait."""
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
    directory = os.open(path.parent, flags | os.O_DIRECTORY)
    try:
        fd = os.open(path.name, flags | os.O_NONBLOCK, dir_fd=directory)
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode) or status.st_uid != os.fstat(directory).st_uid:
                raise OSError(errno.EPERM, "not a file of its directory's owner", str(path))
            return os.read(fd, MOST_BYTES), status.st_uid
        finally:
            os.close(fd)
    finally:
        os.close(directory)
