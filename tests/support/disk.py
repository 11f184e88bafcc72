"""A small file system of its own, and how to fill it; it needs the right to mount one. And a limit that needs none."""

import resource
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


class NoDiskError(Exception):
    """None can be mounted here; says why."""


@contextmanager
def small_disk() -> Iterator[Path]:
    """An empty file system of 64 MiB for the length of the block. Raises NoDiskError."""
    directory = Path(tempfile.mkdtemp(prefix="pg-disk-", dir="/tmp"))
    mount = ["mount", "-t", "tmpfs", "-o", "size=64m,mode=0700", "tmpfs", directory]
    mounted = subprocess.run(mount, capture_output=True, text=True, check=False)
    if mounted.returncode != 0:
        directory.rmdir()
        raise NoDiskError(mounted.stderr.strip())
    try:
        yield directory
    finally:
        subprocess.run(["umount", directory], check=True)
        directory.rmdir()


def fill(directory: Path) -> Path:
    """Not one byte more can be written below `directory`; returns the file that has it all."""
    filler = directory / "filler"
    with filler.open("ab", buffering=0) as file, suppress(OSError):  # a buffer would be written at the end, in vain
        while True:
            file.write(bytes(65536))
    return filler


@contextmanager
def nothing_can_be_written() -> Iterator[None]:
    """This process can make files for the length of the block, but write nothing into them (EFBIG)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
