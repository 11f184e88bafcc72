"""Stdin, stdout and stderr as every command may take them for granted, whatever its caller has made of them."""

from __future__ import annotations

import io
import os
import select
import sys
from typing import TYPE_CHECKING, Final, TextIO, cast

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

STDIN: Final = 0
STDOUT: Final = 1
STDERR: Final = 2


class OutputError(Exception):
    """Stdout cannot be written. No OSError: what reads a file or asks a grid takes those for its own."""

    def __init__(self, error: OSError) -> None:
        super().__init__(error.strerror)
        self.errno: Final = error.errno or 0
        self.strerror: Final = error.strerror or str(error)


class _Output(io.FileIO):
    """Descriptor 1. Writes all, and waits for room also where who shares it has made it non-blocking, as Node does."""

    def write(self, data: ReadableBuffer, /) -> int:
        rest = memoryview(data).cast("B")
        room = select.poll()
        room.register(self, select.POLLOUT)
        try:
            while rest:
                rest = rest[super().write(rest) or 0 :]
                if rest:
                    room.poll()
        except OSError as error:
            raise OutputError(error) from None
        return memoryview(data).nbytes


class _Messages(io.FileIO):
    """Descriptor 2. Drops what cannot be written: a command does the same with nobody to hear what it says about it."""

    def write(self, data: ReadableBuffer, /) -> int:
        try:
            written = super().write(data)
        except OSError:
            written = None
        return memoryview(data).nbytes if written is None else written


def prepare() -> None:
    """Call this before anything opens a file: one of the three that is closed becomes /dev/null, since the next file or
    socket would get its number, and whatever is written there. Later errors are as `OutputError` says."""
    while (fd := os.open(os.devnull, os.O_RDWR)) <= STDERR:
        os.set_inheritable(fd, True)
    os.close(fd)
    sys.stdin = sys.stdin or _opened(STDIN, "r")  # Python has None for one that was closed
    sys.stdout = _on(_Output(STDOUT, "w", closefd=False), sys.stdout or _opened(STDOUT, "w"))
    sys.stderr = _on(_Messages(STDERR, "w", closefd=False), sys.stderr or _opened(STDERR, "w"))


def drop_output() -> None:
    """Drop what is still to be written to stdout: Python would try again at its end, and complain."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)


def _opened(fd: int, mode: str) -> TextIO:
    return cast(TextIO, os.fdopen(fd, mode, closefd=False))


def _on(raw: io.FileIO, like: TextIO) -> TextIO:
    """A text stream on `raw` with the encoding and buffering of another one."""
    assert isinstance(like, io.TextIOWrapper)
    return io.TextIOWrapper(
        raw if like.write_through else io.BufferedWriter(raw),  # as with PYTHONUNBUFFERED
        like.encoding,
        like.errors,
        line_buffering=like.line_buffering,
        write_through=like.write_through,
    )
