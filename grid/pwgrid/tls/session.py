"""A session of a client that speaks TLS: joins its connection with one to the proxy, and on to whoever gets that."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

ENDING_S: Final = 30.0
"""How long the rest of a session may take to be delivered when one side has ended it."""

BUFFER_BYTES: Final = 64 * 1024
"""So much of each way waits here for a side that does not read, beside what TLS and the kernel hold; then the other
side is not read from."""


class TlsSession:
    """Both ends of a session. It has ended when both connections are closed: then it calls `on_end` once.

    TLS by Python's `ssl` knows no half of a connection that goes on: when the client has said its last, the session
    ends after that is delivered; when the grid has, once the client has it, at most ENDING_S later.
    """

    def __init__(self, on_end: Callable[[TlsSession], None]) -> None:
        self.client = End(self)
        self.inner = End(self)
        """The one to the proxy."""
        self.client.other, self.inner.other = self.inner, self.client
        self._on_end = on_end
        self._is_over = False

    def abort(self) -> None:
        """Closes both connections at once. Idempotent."""
        for end in (self.client, self.inner):
            if end.transport is not None:
                end.transport.abort()

    def lost(self, end: End) -> None:
        """Called when one connection is closed."""
        if end.other.is_closed or end.other.transport is None:
            if not self._is_over:
                self._is_over = True
                self._on_end(self)
        else:
            end.other.finish()


class End(asyncio.Protocol):
    """One of the two connections of a session: what comes from it is written to the other one, as fast as that takes
    it."""

    def __init__(self, session: TlsSession) -> None:
        self.session = session
        self.other: End = self
        self.transport: asyncio.Transport | None = None
        self.is_closed = False
        self._limit: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.transport = transport
        transport.set_write_buffer_limits(high=BUFFER_BYTES)
        if self.other.transport is None:
            transport.pause_reading()  # until there is somebody to write it to

    def data_received(self, data: bytes) -> None:
        target = self.other.transport
        if target is not None and not target.is_closing():
            target.write(data)

    def eof_received(self) -> bool:
        self.other.end_writing()
        # What is still to be written to this side goes on, where its transport can do that.
        return self.transport is not None and self.transport.can_write_eof()

    def end_writing(self) -> None:
        """The other side says no more."""
        transport = self.transport
        if transport is None or transport.is_closing():
            return
        if transport.can_write_eof():
            transport.write_eof()
        else:
            self.finish()

    def finish(self) -> None:
        """Closes this side after what is still to be written."""
        if self.transport is None or self.is_closed:
            return
        self.transport.close()
        if self._limit is None:
            self._limit = asyncio.get_running_loop().call_later(ENDING_S, self.transport.abort)

    def pause_writing(self) -> None:
        if (source := self.other.transport) is not None and not source.is_closing():
            source.pause_reading()

    def resume_writing(self) -> None:
        if (source := self.other.transport) is not None and not source.is_closing():
            source.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_closed = True
        if self._limit is not None:
            self._limit.cancel()
        self.session.lost(self)
