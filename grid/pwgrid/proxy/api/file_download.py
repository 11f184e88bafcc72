"""Streams an open file to whoever asks for it, and closes it."""

import asyncio
from collections.abc import AsyncIterator
from typing import BinaryIO, Final
from urllib.parse import quote

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

PART_BYTES: Final = 256 * 1024
"""That are held at once."""


class FileDownload(StreamingResponse):
    """The first `size` bytes of a file, as a download of this name: what a page has made is no page of the grid."""

    media_type = "application/octet-stream"

    def __init__(self, file: BinaryIO, name: str, size: int) -> None:
        self._file = file
        headers = {
            "Content-Length": str(size),
            "Content-Disposition": f"attachment; filename*=UTF-8''{quote(name, safe='')}",
            "X-Content-Type-Options": "nosniff",
            "Cache-Control": "no-store",
        }
        super().__init__(self._parts(size), headers=headers)

    async def _parts(self, left: int) -> AsyncIterator[bytes]:
        while left > 0 and (part := await asyncio.to_thread(self._file.read, min(left, PART_BYTES))):
            left -= len(part)
            yield part

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._file.close()
