"""Writes session updates to Redis, and keeps them in memory while Redis is away."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

import structlog

from pwgrid.common.errors import RegistryError, RegistryUnavailable
from pwgrid.common.session_lifecycle import HeldAs
from pwgrid.registry.session_update import SessionUpdate

log = structlog.get_logger()

MAX_UNWRITTEN: Final = 10_000
"""How many sessions' updates are kept while Redis is away."""

_AT_ONCE: Final = 64
"""How many updates are written at once when Redis is back. Each is of another session, so none waits for another."""


@dataclass(slots=True)
class _UnwrittenUpdate:
    update: SessionUpdate
    on_record: tuple[Callable[[], None], ...] = ()

    def merged(self, other: _UnwrittenUpdate) -> _UnwrittenUpdate:
        return _UnwrittenUpdate(self.update.merged(other.update), self.on_record + other.on_record)

    def done(self) -> None:
        for tell in self.on_record:
            tell()


class SessionRecordWriter:
    """Writes session updates in their order. While `write` raises RegistryUnavailable, keeps one for each session, and
    writes it before anything newer, and calls `on_kept` with each that it was asked to write. Drops what Redis refuses
    for good, with an error in the log.

    Beyond MAX_UNWRITTEN, drops updates of running sessions first, oldest first: each heartbeat tells of these sessions
    anyway. Then drops the oldest ends: a heartbeat ends these sessions, too, but without the reason.
    """

    def __init__(
        self,
        write: Callable[[SessionUpdate], Awaitable[object]],
        on_kept: Callable[[SessionUpdate], object] = lambda update: None,
    ) -> None:
        self._write = write
        self._on_kept = on_kept
        self._kept: OrderedDict[tuple[HeldAs, str], _UnwrittenUpdate] = OrderedDict()
        self._under_way: dict[asyncio.Task[None], _UnwrittenUpdate] = {}
        self._replaying = asyncio.Lock()
        self.fault: RegistryUnavailable | None = None
        """Why the last flush that returned False could not write everything."""

    def __repr__(self) -> str:
        return f"<SessionRecordWriter kept={len(self._kept)} under_way={len(self._under_way)}>"

    def note(self, update: SessionUpdate, on_record: Callable[[], None] | None = None) -> None:
        """Starts the write now, or keeps the update behind others that are kept. Calls `on_record` once Redis has the
        update, or the writer has dropped it."""
        kept = _UnwrittenUpdate(update, (on_record,) if on_record else ())
        if self._kept or self._replaying.locked():
            self._keep(kept)
            self._on_kept(update)
            return
        self._start(kept)

    def keep(self, update: SessionUpdate) -> None:
        """Keeps the update for `flush`."""
        self._keep(_UnwrittenUpdate(update))

    def unwritten(self) -> list[SessionUpdate]:
        """Returns what Redis may not have yet, one update for each session."""
        found: dict[tuple[HeldAs, str], SessionUpdate] = {}
        for kept in (*self._under_way.values(), *self._kept.values()):
            update = kept.update
            before = found.get(update.key)
            found[update.key] = before.merged(update) if before else update
        return list(found.values())

    async def flush(self) -> bool:
        """Writes what is kept. Returns True when everything is written and no write is under way, False when Redis is
        away."""
        while await self.flush_so_far():
            if not self._under_way and not self._kept:
                return True
        return False

    async def flush_so_far(self) -> bool:
        """The same for what was noted before this call: it does not wait for what comes meanwhile."""
        if self._under_way:
            await asyncio.wait([*self._under_way])
        return await self._replay()

    def _start(self, kept: _UnwrittenUpdate) -> None:
        task = asyncio.create_task(self._write_now(kept))
        self._under_way[task] = kept
        task.add_done_callback(self._under_way.pop)

    async def _replay(self) -> bool:
        """Writes what is kept now, and starts to write what is kept by then."""
        async with self._replaying:
            left = len(self._kept)
            while left and self._kept:
                batch = [self._kept.popitem(last=False)[1] for _ in range(min(_AT_ONCE, left, len(self._kept)))]
                left -= len(batch)
                unwritten = batch
                try:
                    faults = await asyncio.gather(*(self._attempt(kept.update) for kept in batch))
                    unwritten = [kept for kept, fault in zip(batch, faults, strict=True) if fault is not None]
                finally:
                    for kept in reversed(unwritten):
                        self._keep(kept, first=True)
                for kept, fault in zip(batch, faults, strict=True):
                    if fault is None:
                        kept.done()
                if unwritten:
                    self.fault = next(filter(None, faults))
                    return False
            while self._kept:  # what comes from here on is written behind these
                self._start(self._kept.popitem(last=False)[1])
        return True

    async def _write_now(self, kept: _UnwrittenUpdate) -> None:
        fault = await self._attempt(kept.update)
        if fault is None:
            kept.done()
            return
        log.warning("registry_write_kept", **kept.update.named, error=str(fault))
        self._keep(kept)
        self._on_kept(kept.update)

    async def _attempt(self, update: SessionUpdate) -> RegistryUnavailable | None:
        """Returns why the update must be written again; None if Redis has it, or refuses it for good."""
        try:
            await self._write(update)
        except RegistryError as error:
            log.error("registry_write_dropped", **update.named, error=str(error))
        except RegistryUnavailable as error:
            return error
        return None

    def _keep(self, kept: _UnwrittenUpdate, *, first: bool = False) -> None:
        key = kept.update.key
        before = self._kept.get(key)
        self._kept[key] = before.merged(kept) if before else kept
        if first:
            self._kept.move_to_end(key, last=False)
        while len(self._kept) > MAX_UNWRITTEN:
            self._drop_one()

    def _drop_one(self) -> None:
        running = (key for key, kept in self._kept.items() if kept.update.end is None)
        dropped = self._kept.pop(next(running, next(iter(self._kept))))
        if dropped.update.end is not None:
            log.error("registry_write_dropped", **dropped.update.named, error=f"{MAX_UNWRITTEN} are kept")
        dropped.done()
