"""Writes a file whole or not at all: nobody reads half of it, and where there is no room nothing stays behind."""

from __future__ import annotations

import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

PRIVATE: Final = 0o600
READABLE: Final = 0o644


def write_whole(
    path: Path, content: bytes, *, mode: int = PRIVATE, uid: int = -1, gid: int = -1, durable: bool = False
) -> None:
    """Puts a file with this content in place of the one at `path`, if there is one. Raises OSError with its name.

    At no time can more users read it than `mode` says. It belongs to this process's user, or to `uid` and `gid` (-1: as
    it is). `durable`: once the file is there its content is on the disk, also after a power cut; that takes its time.
    """
    fd, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # private; several may write the same file
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(content)
            file.flush()
            if (uid, gid) != (-1, -1):
                os.fchown(fd, uid, gid)
            os.fchmod(fd, mode)
            if durable:
                os.fsync(fd)
        os.replace(draft, path)
    except BaseException as error:
        with suppress(OSError):
            os.unlink(draft)
        if isinstance(error, OSError):
            error.filename = str(path)  # that of the draft would tell nobody anything, and a full disk tells none
        raise


def rewrite(path: Path, content: bytes) -> None:
    """`write_whole` for a file that is the user's: it keeps mode, owner and group, as far as this process may give
    them, and a link to it stays one. A new file is readable by all. Raises OSError with the file's name."""
    file = Path(os.path.realpath(path))  # a link may lead into a directory under version control
    try:
        had = file.stat()
    except FileNotFoundError:
        write_whole(file, content, mode=READABLE)
        return
    uid = had.st_uid if os.geteuid() == 0 else -1
    gid = had.st_gid if os.geteuid() == 0 or had.st_gid in os.getgroups() else -1
    write_whole(file, content, mode=stat.S_IMODE(had.st_mode), uid=uid, gid=gid)
