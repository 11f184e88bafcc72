"""The files of a session of this host, for whoever asks: their list, and one as a stream that closes it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import BinaryIO, Final
from urllib.parse import quote

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from pwgrid.proxy.policy.refusal import Refusal, no_capacity
from pwgrid.proxy.session_files import SessionFile, SessionFiles, is_not_there

PART_BYTES: Final = 256 * 1024
"""That are held at once."""


class FileDownload(StreamingResponse):
    """The first `size` bytes of a file, as a download of this name: what a page has made is no page of the grid."""

    media_type = "application/octet-stream"

    def __init__(self, file: BinaryIO, name: str, size: int) -> None:
        self._file = file
        super().__init__(self._parts(size), headers=_headers(name, size))

    async def _parts(self, left: int) -> AsyncIterator[bytes]:
        while left > 0 and (part := await asyncio.to_thread(self._file.read, min(left, PART_BYTES))):
            left -= len(part)
            yield part

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._file.close()


def no_such_file() -> Refusal:
    """404: a session never had a file of this name, or has it no longer."""
    return Refusal(404, "the session has no such file (any more)")


def _unreadable(error: OSError) -> Refusal:
    return no_capacity(f"the files of this session cannot be read now: {error.strerror or error}")


async def listed(files: SessionFiles, worker_id: str, session_id: str) -> list[SessionFile]:
    """Returns the files of a session of this host. Raises Refusal."""
    try:
        return await asyncio.to_thread(files.listed, worker_id, session_id)
    except OSError as error:
        raise _unreadable(error) from None


async def download(files: SessionFiles, worker_id: str, session_id: str, name: str) -> FileDownload:
    """Returns a file of a session of this host. Raises Refusal."""
    try:
        opened, status = await asyncio.to_thread(files.open, worker_id, session_id, name)
    except OSError as error:
        raise (no_such_file() if is_not_there(error) else _unreadable(error)) from None
    return FileDownload(opened, name, status.st_size)


class ForwardedDownload(StreamingResponse):
    """A file that another host's proxy sends: `source` closes the connection to it."""

    media_type = FileDownload.media_type

    def __init__(self, source: AsyncExitStack, reader: asyncio.StreamReader, name: str, size: int) -> None:
        self._source = source
        super().__init__(_parts_of(reader, size), headers=_headers(name, size))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._source:
            await super().__call__(scope, receive, send)


async def _parts_of(reader: asyncio.StreamReader, left: int) -> AsyncIterator[bytes]:
    while left > 0 and (part := await reader.read(min(left, PART_BYTES))):
        left -= len(part)
        yield part


def _headers(name: str, size: int) -> dict[str, str]:
    return {
        "Content-Length": str(size),
        "Content-Disposition": f"attachment; filename*=UTF-8''{quote(name, safe='')}",
        "X-Content-Type-Options": "nosniff",
        "Cache-Control": "no-store",
    }
