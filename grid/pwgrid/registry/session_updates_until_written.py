"""Session updates: what a worker writes to Redis about its sessions. While Redis is away they are kept in memory, and
in a spool file once the worker has exited."""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import orjson
import structlog

from pwgrid.common.atomic_write import write_whole
from pwgrid.common.errors import RegistryError, RegistryUnavailable
from pwgrid.common.reasons import EndReason, Reason
from pwgrid.common.session_lifecycle import HeldAs, SessionStatus
from pwgrid.common.types import BROWSER_TYPES, BrowserType
from pwgrid.runtime.directory import UNWRITTEN

log = structlog.get_logger()

MAX_UNWRITTEN: Final = 10_000
"""How many sessions' updates are kept while Redis is away."""

_AT_ONCE: Final = 64
"""How many updates are written at once when Redis is back. Each is of another session, so none waits for another."""


@dataclass(frozen=True, slots=True)
class SessionEnd:
    """How a session ended. Times are Unix seconds."""

    status: SessionStatus
    reason: Reason[EndReason]
    at: float
    bytes_in: int = 0
    bytes_out: int = 0
    drain_at: float | None = None
    """When its worker's drain began, if that was before the end."""


@dataclass(frozen=True, slots=True)
class SessionUpdate:
    """A session, or a lease, as its worker knows it; without an `end` it runs.

    `started_at` (Unix seconds) is None and `client` empty where only the worker's predecessor knew them.
    """

    session_id: str
    started_at: float | None = None
    client: str = ""
    end: SessionEnd | None = None
    told: Mapping[str, str] = field(default_factory=dict)
    """Fields of the record that the proxy told the worker. Used where Redis has none."""
    kind: HeldAs = HeldAs.SESSION
    lease_id: str = ""
    """The lease that a session came with; it has no slot of its own then."""

    @property
    def key(self) -> tuple[HeldAs, str]:
        return self.kind, self.session_id

    @property
    def named(self) -> dict[str, str]:
        """Its id as a field of a log line."""
        return {self.kind.value: self.session_id}

    def merged(self, other: SessionUpdate) -> SessionUpdate:
        """Returns both in one, whichever came first. An end is final, and keeps the start."""
        return SessionUpdate(
            self.session_id,
            other.started_at if self.started_at is None else self.started_at,
            self.client or other.client,
            self.end or other.end,
            self.told or other.told,
            self.kind,
            self.lease_id or other.lease_id,
        )

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> SessionUpdate:
        """Reads an update of a spool file. Raises TypeError, KeyError or ValueError for anything else."""
        end = values["end"]
        if end is not None:
            reason = Reason.read(end["reason"], Reason(EndReason.OTHER))
            end = SessionEnd(**{**end, "status": SessionStatus(end["status"]), "reason": reason})
        return cls(**{**values, "end": end, "kind": HeldAs(values["kind"])})


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
        """Why the last `flush` that returned False could not write everything."""

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
        task = asyncio.create_task(self._write_now(kept))
        self._under_way[task] = kept
        task.add_done_callback(self._under_way.pop)

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
        while True:
            while self._under_way:
                await asyncio.wait(self._under_way)
            if not await self._replay():
                return False
            if not self._under_way and not self._kept:
                return True

    async def _replay(self) -> bool:
        async with self._replaying:
            while self._kept:
                batch = [self._kept.popitem(last=False)[1] for _ in range(min(_AT_ONCE, len(self._kept)))]
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


@dataclass(frozen=True, slots=True)
class SpoolFile:
    """The spool file of one worker that has exited."""

    browser_type: BrowserType
    worker_id: str
    updates: tuple[SessionUpdate, ...]
    path: Path

    def remove(self) -> None:
        """Removes the file, and with the last file the directory. Idempotent."""
        self.path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # it has other files
            self.path.parent.rmdir()


def write_spool_file(
    runtime: Path, browser_type: BrowserType, worker_id: str, updates: Iterable[SessionUpdate]
) -> None:
    """Writes a worker's spool file, whole or not at all. Raises OSError."""
    directory = runtime / UNWRITTEN
    content = {"browserType": browser_type, "workerId": worker_id, "entries": list(updates)}
    while True:
        directory.mkdir(mode=0o700, exist_ok=True)
        try:
            write_whole(directory / f"{worker_id}.json", orjson.dumps(content))
        except FileNotFoundError:
            continue  # a proxy has just removed the directory with its last file
        return


def read_spool_files(runtime: Path) -> Iterator[SpoolFile]:
    """Yields every worker's spool file. One that is broken is removed, with an error in the log; one that cannot be
    read for now (no free descriptor, an error of the disk) stays for a later look."""
    for path in sorted((runtime / UNWRITTEN).glob("*.json")):
        try:
            yield _read_spool_file(path)
        except FileNotFoundError:
            continue  # another proxy was faster
        except OSError as error:
            log.warning("session_updates_not_read_yet", path=str(path), error=repr(error))
        except (ValueError, TypeError, KeyError) as error:
            log.error("session_updates_not_readable", path=str(path), error=repr(error))
            path.unlink(missing_ok=True)


def _read_spool_file(path: Path) -> SpoolFile:
    content = orjson.loads(path.read_bytes())
    if content["browserType"] not in BROWSER_TYPES:
        raise ValueError(f"{content['browserType']!r} is no browser type")
    updates = tuple(SessionUpdate.read(each) for each in content["entries"])
    return SpoolFile(content["browserType"], str(content["workerId"]), updates, path)
