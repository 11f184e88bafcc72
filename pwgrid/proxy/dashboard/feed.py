"""Feeds all open dashboard pages from one producer, which runs only while there are any.

A page gets everything first, then only what has changed. A page that reads too slowly gets everything again.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import orjson
import structlog

from pwgrid import __version__
from pwgrid.common.errors import GridError, RegistryUnavailable
from pwgrid.proxy.connect.make_refusals import registry_away
from pwgrid.proxy.dashboard.history import HOUR_S, MOST, PERIOD_S, History, Sample, read, text_of
from pwgrid.proxy.dashboard.recent_events import RecentEvents
from pwgrid.proxy.dashboard.sessions import ShownSessions
from pwgrid.proxy.policy.dashboard_view import Sources, View, changes, view
from pwgrid.proxy.policy.grid_events import session_end
from pwgrid.registry.records import Activity, SessionRecord

if TYPE_CHECKING:
    from pwgrid.proxy.main import Proxy

log = structlog.get_logger()

TICK_S: Final = 1.0
QUIET_TICK_S: Final = 2.0
"""The tick after a look that has found nothing new."""

IDLE_TICK_S: Final = 10.0
"""The tick while nobody has a session or waits for one; `client_came` ends it early."""

ROSTER_S: Final = 0.2
"""The delay after a change: rosters mostly change several times in a row, and a session is pending at first."""

STATUS_S: Final = 5.0
"""How often to ask the master for its status, with figures that its state frames lack, such as memory."""

MOST_PAGES: Final = 100
_UNSENT: Final = 8
"""How many messages may wait for a page; one that falls behind further gets everything again."""


@dataclass(eq=False)
class Page:
    """One open page. `messages` are to be sent to it, each as one WebSocket message."""

    messages: asyncio.Queue[bytes]
    ended: asyncio.Event
    """Set when the feed ends, so that the page connects again."""
    is_behind: bool = True
    """Whether it must get everything."""


class Feed:
    """The feed of all pages of one proxy."""

    def __init__(self, grid: Proxy) -> None:
        self.history = History()
        self.events = RecentEvents()
        self._grid = grid
        self.sessions = ShownSessions(grid.registry, self._session_ended)
        self._pages: set[Page] = set()
        self._producer: asyncio.Task[None] | None = None
        self._view: View = {}
        self._told = (0, 0)
        """The numbers of the last event and sample that pages have got."""
        self._activity = Activity({}, {}, {}, {}, None)
        self._problems: dict[str, str] = {}
        """Why figures may be old, by who does not answer (redis, master)."""
        self._status: Mapping[str, Any] = {}
        self._status_at = 0.0
        """When the master said so, in Unix seconds."""
        self._ask_status_at = 0.0
        self._news = asyncio.Event()
        self._is_idle = False
        """Whether nobody has a session, has had one since the look before, or waits: whatever changes then is reported,
        but for workers' memory."""
        self._sampled = (0, 0)
        """How many connects and refusals there were at the last sample."""

    @property
    def is_full(self) -> bool:
        """Whether no further page may open."""
        return len(self._pages) >= MOST_PAGES

    def roster_changed(self) -> None:
        """Called when the master has sent its roster: has its status asked for, too."""
        self.events.roster_changed(self._grid.roster)
        self._ask_status_at = 0.0
        self._news.set()

    def client_came(self) -> None:
        """Called when a client has got a slot, or the line has changed."""
        if self._is_idle:
            self._news.set()

    @contextlib.asynccontextmanager
    async def page(self) -> AsyncIterator[Page]:
        """Feeds one page while the block runs. The first page starts the producer, the last one ends it."""
        page = Page(asyncio.Queue(_UNSENT), asyncio.Event())
        self._pages.add(page)
        if self._producer is None:
            self._producer = asyncio.create_task(self._produce(), name="dashboard")
            self._producer.add_done_callback(self._producer_ended)
        elif self._view:
            self._send_all(page)
        try:
            yield page
        finally:
            self._pages.discard(page)
            if not self._pages and self._producer is not None:
                self._producer.cancel()
                self._producer = None

    async def keep_history(self) -> None:
        """Takes a sample every 10 s, whether anybody looks or not, after those that Redis has of earlier proxies."""
        with contextlib.suppress(RegistryUnavailable):
            for sample in (read(text, time.time()) for text in await self._grid.registry.samples()):
                if sample is not None:
                    self.history.add(sample)
        while True:
            await asyncio.sleep(PERIOD_S)
            if self._producer is None:  # else it has just looked
                await self._look_at_registry(with_sessions=False)
                await self._look_at_master()
            sample = self._sample()
            with contextlib.suppress(RegistryUnavailable):
                await self._grid.registry.keep_sample(text_of(sample), at_most=MOST, ttl_s=HOUR_S)

    def close(self) -> None:
        """Ends the feed of all pages, so that they connect again. Idempotent."""
        for page in self._pages:
            page.ended.set()

    # The producer

    def _producer_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("dashboard_failed", error=repr(error))
            self._producer = None
            self.close()

    async def _produce(self) -> None:
        before: Activity | None = None
        while True:
            await self._look_at_registry(with_sessions=True)
            await self._look_at_master()
            is_changed = self._tell()
            nobody = not any(self._activity.active.values()) and self._grid.queue.waiting() == 0
            # Where short sessions come and go, a look may find none of them.
            self._is_idle = nobody and before in (None, self._activity)
            before = self._activity
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(IDLE_TICK_S if self._is_idle else TICK_S if is_changed else QUIET_TICK_S):
                    await self._news.wait()
                    await asyncio.sleep(ROSTER_S)
            self._news.clear()

    async def _look_at_registry(self, *, with_sessions: bool) -> None:
        try:
            self._activity = await self._grid.registry.activity()
            if with_sessions:
                await self.sessions.refresh(self._activity)
        except RegistryUnavailable as error:
            self._problems["redis"] = registry_away(error)
        else:
            self._problems.pop("redis", None)

    async def _look_at_master(self) -> None:
        now = time.monotonic()
        if now < self._ask_status_at:
            return
        self._ask_status_at = now + STATUS_S
        if self._grid.roster.lost is not None:
            self._problems["master"] = self._grid.roster.lost
            return
        try:
            self._status = await self._grid.master.ask("status")
        except GridError as error:
            self._problems["master"] = str(error)
        else:
            self._status_at = time.time()
            self._problems.pop("master", None)

    def _tell(self) -> bool:
        """Sends what is new to all pages. Returns whether the tables have changed."""
        found = view(self._sources())
        changed = changes(self._view, found)
        self._view = found
        before, self._told = self._told, (self.events.last, self.history.last)
        message = self._message(changed, *before) if changed or before != self._told else None
        for page in self._pages:
            if page.is_behind or (message and page.messages.full()):
                self._send_all(page)
            elif message:
                page.messages.put_nowait(message)
        return bool(changed)

    def _send_all(self, page: Page) -> None:
        while not page.messages.empty():
            page.messages.get_nowait()
        page.messages.put_nowait(self._message(self._view, 0, 0, everything=True))
        page.is_behind = False

    def _message(self, tables: View, event: int, sample: int, *, everything: bool = False) -> bytes:
        message: dict[str, Any] = {"now": round(time.time(), 3), "set": tables}
        if everything:
            message["all"] = True
        if events := self.events.since(event):
            message["events"] = events
        if samples := self.history.since(sample):
            message["samples"] = samples
        return orjson.dumps(message)

    # What it is made of

    def _sources(self) -> Sources:
        grid = self._grid
        roster, counts = grid.roster, grid.gateway.counts
        trouble = roster.not_ready()
        return Sources(
            status=self._status,
            pools=[
                pool
                for name, pool in roster.pools.items()
                if pool.wanted or any(worker.pool == name for worker in roster.workers.values())
            ],
            workers=roster.workers.values(),
            active=self._activity.active,
            lifetime=self._activity.lifetime,
            sessions=self.sessions.rows,
            waiting=grid.queue.waiting_by_run(),
            status_at=self._status_at,
            grid={
                "version": __version__,
                "ready": trouble is None,
                "reason": trouble,
                "stopping": roster.stopping,
                "outcomes": dict(self._activity.outcomes),
                "connects": counts.handed_off,
                "refused": counts.refused,
                "abandoned": counts.abandoned,
                "longestWaitS": round(counts.longest_wait_s, 3),
                "liveView": grid.settings.live_view,
                "stale": list(self._problems.values()),
            },
        )

    def _session_ended(self, record: SessionRecord) -> None:
        event = session_end(record.session_id, record.extra.get("name"), record.status, record.reason)
        if event is not None:
            self.events.add(event, record.ended_at)

    def _sample(self) -> Sample:
        counts = self._grid.gateway.counts
        sizes = [worker.get("memoryMib") or worker.get("rssMib") or 0 for worker in self._status.get("workers", ())]
        before, self._sampled = self._sampled, (counts.handed_off, counts.refused)
        is_known = "redis" not in self._problems
        sample = (
            round(time.time(), 1),
            sum(self._activity.active.values()) if is_known else None,
            counts.handed_off - before[0],
            counts.refused - before[1],
            self._grid.queue.waiting(),
            round(counts.lately_longest_wait_s, 3),
            None if "master" in self._problems else sum(sizes),
        )
        self.history.add(sample)
        counts.lately_longest_wait_s = 0.0
        return sample
