"""Feeds all open dashboard pages from one producer, which runs only while there are any.

A page gets everything first, then only what has changed. A page that reads too slowly gets everything again.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import orjson
import structlog
from pydantic import ConfigDict, TypeAdapter, ValidationError

from pwgrid import __version__
from pwgrid.common.errors import GridError, RegistryUnavailable
from pwgrid.common.launch_failure import without_places
from pwgrid.common.session_lifecycle import LIVE, SessionStatus
from pwgrid.common.types import Protocol
from pwgrid.proxy.ask_master import AskMaster
from pwgrid.proxy.connect.connect_metrics import ConnectFigures
from pwgrid.proxy.connect.refusal_log import Asked
from pwgrid.proxy.hosts.host_heartbeat import HostKeeper
from pwgrid.proxy.policy.page_content import Event, Sources, View, changes, happened, session_end, session_goes_on, view
from pwgrid.proxy.policy.pools_of_all_hosts import whole_pools
from pwgrid.proxy.policy.refusal import registry_away
from pwgrid.proxy.roster import Roster
from pwgrid.proxy.select.queue import Queue
from pwgrid.registry.host_records import NAME_TAKEN
from pwgrid.registry.records import LIFETIME_TAKEN, OF_LEASE, Activity, SessionRecord, WorkerRecord
from pwgrid.registry.registry import Registry
from pwgrid.settings.model import Settings

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

MOST_EVENTS: Final = 300
NEWEST_SESSIONS: Final = 200
MOST_SESSIONS: Final = 1000
"""How many live sessions of one worker are shown at most."""

ALL_AGAIN_S: Final = 60.0
"""How often the live sessions of all workers are read, not only of those whose counters have changed."""

PERIOD_S: Final = 10.0
HOUR_S: Final = 3600.0
MOST_SAMPLES: Final = round(HOUR_S / PERIOD_S)

Sample = tuple[float, int | None, int, int, int, float, int | None]
"""Time (Unix seconds); live sessions; connects and refusals since the previous sample; waiting clients; the longest
wait for a slot since then, in seconds; memory of all workers in MiB. None means unknown."""

_SAMPLE: Final = TypeAdapter[Sample](Sample, config=ConfigDict(allow_inf_nan=False))

MOST_PAGES: Final = 100
_UNSENT: Final = 8
"""How many messages may wait for a page; one that falls behind further gets everything again."""


Kept = TypeVar("Kept")


class Recent(Generic[Kept]):
    """The latest things of one kind, numbered from 1, so that a page gets each of them once."""

    def __init__(self, at_most: int) -> None:
        self.last = 0
        """The number of the newest one."""
        self._kept: deque[tuple[int, Kept]] = deque(maxlen=at_most)

    def add(self, thing: Kept) -> None:
        self.last += 1
        self._kept.append((self.last, thing))

    def since(self, number: int) -> list[Kept]:
        """Returns what is kept after this number, the newest last."""
        return [thing for of_thing, thing in self._kept if of_thing > number]


class RecentEvents(Recent[dict[str, Any]]):
    """The latest events of the grid."""

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        super().__init__(MOST_EVENTS)
        self._now = now
        self._seen: Roster | None = None

    def note(self, event: Event, at: float | None = None) -> None:
        """Adds an event of now, or of the time `at` (Unix seconds)."""
        when = self._now() if at is None else at
        number = self.last + 1
        self.add({"n": number, "at": round(when, 3), "kind": event.kind, "level": event.level, "text": event.text})

    def roster_changed(self, roster: Roster) -> None:
        """Adds events for what has changed in the roster; the first roster has none."""
        if self._seen is not None:
            for event in happened(self._seen, roster):
                self.note(event)
        self._seen = copy(roster)  # the roster takes over the next state in place

    def hosts_changed(self, roster: Roster) -> None:
        """The same for what other hosts have changed in it: whether this one is ready."""
        if self._seen is not None:
            self.roster_changed(roster)

    def session_ended(self, record: SessionRecord) -> None:
        """Adds the event of a session that its client did not end as usual."""
        event = session_end(record.session_id, record.extra.get("name"), record.status, record.reason)
        if event is not None:
            self.note(event, record.ended_at)

    def session_goes_on(self, record: SessionRecord) -> None:
        """Adds the event of a session whose presumed end was taken back."""
        self.note(session_goes_on(record.session_id, record.extra.get("name")))

    def worker_lost(self, worker_id: str, reason: str | None) -> None:
        """Adds the event of a worker that is gone with its browser."""
        self.note(Event("worker", f"worker {worker_id} was lost: {reason or 'nobody knows why'}", "error"))

    def worker_taken_over(self, worker_id: str) -> None:
        """Adds the event of a worker whose process died and whose sessions go on."""
        self.note(
            Event("worker", f"the process of worker {worker_id} died; its sessions go on in a successor", "warning")
        )

    def refused(self, asked: Asked, times: int, status: int, error: str) -> None:
        """Adds the event of clients or borrows that were refused for the same reason."""
        what = "borrow" if asked == "borrow" else "client"
        who = f"a {what} was" if times == 1 else f"{times} more {what}s were"
        self.note(Event("refusal", f"{who} refused ({status}): {error}", "warning"))


class ShownSessions:
    """The sessions that pages show: all live ones and the newest. Reads only records that may have changed, and calls
    `on_end` with each session that has ended, once; a presumed end may be taken back, of which it calls `on_going_on`
    if the session lives, or become another one."""

    def __init__(
        self,
        registry: Registry,
        on_end: Callable[[SessionRecord], None],
        on_going_on: Callable[[SessionRecord], None] = lambda _record: None,
    ) -> None:
        self.rows: Mapping[str, dict[str, Any]] = {}
        """The sessions by id, as the API shows them; a new mapping after each change."""
        self._registry = registry
        self._on_end = on_end
        self._on_going_on = on_going_on
        self._records: dict[str, SessionRecord] = {}
        self._activity: Activity | None = None
        self._live: Mapping[str, frozenset[str]] = {}
        """The ids of live sessions by worker field."""
        self._all_again_at = 0.0
        self._touched: set[str] = set()
        self._told: dict[str, tuple[str, str | None]] = {}
        """The ends that `on_end` was called for, by id: status and reason."""
        self._kept = 0

    def touch(self, session_id: str) -> None:
        """Marks a session whose record has changed although no counter has."""
        self._touched.add(session_id)

    def kept(self, sessions: int) -> None:
        """Told regularly how many sessions are kept without a client. Neither that nor its end changes a counter, so
        the records of all that may be are read again."""
        if sessions or self._kept:
            self._touched |= {each.session_id for each in self._records.values() if _may_be_kept(each)}
        self._kept = sessions

    async def refresh(self, activity: Activity) -> None:
        """Updates the rows. Raises RegistryUnavailable; the next call makes up for it."""
        has_pending = any(each.status == SessionStatus.PENDING for each in self._records.values())
        if activity == self._activity and not has_pending and not self._touched:
            return
        if self._activity is not None and activity.taken_back != self._activity.taken_back:
            # Perhaps for the true end: no counter shows whose.
            self._touched |= {each.session_id for each in self._records.values() if each.status not in LIVE}
        registry, now = self._registry, time.monotonic()
        before = self._activity if now < self._all_again_at else None
        fields = activity.fields if before is None else self._unsure(before, activity)
        read, newest = await registry.session_ids(fields, newest=NEWEST_SESSIONS, at_most=MOST_SESSIONS)
        there = activity.active.keys() | activity.lifetime.keys()
        live_of = {field: ids for field, ids in {**self._live, **read}.items() if field in there}
        live = frozenset[str]().union(*live_of.values())
        wanted = dict.fromkeys([*newest, *live])
        touched = frozenset(self._touched)
        unread = [each for each in wanted if self._is_unread(each, live) or each in touched]
        found = await registry.session_records(unread)
        self._touched -= touched
        unread_ids = frozenset(unread)
        if before is not None:  # in its worker another may have ended when it began, which the next look sees
            self._touched |= {key for key, each in found.items() if key not in self._records and _is_uncounted(each)}
        known = {key: each for key, each in self._records.items() if key in wanted and key not in unread_ids}
        self._records = known | found
        self.rows = {key: found[key].as_json() if key in found else self.rows[key] for key in self._records}
        self._activity, self._live = activity, live_of
        if before is None:
            self._all_again_at = now + ALL_AGAIN_S
        self._tell_ends()

    def _unsure(self, before: Activity, after: Activity) -> list[str]:
        """Returns the fields of the workers that may have other live sessions than before. A session that begins raises
        its worker's lifetime. What does not show in counters is a pending one that is rolled back, one that came with a
        lease, and one that takes no lifetime if another one has ended since."""
        unsure = {
            f"{each.browser_type}:{each.worker_id}"
            for each in self._records.values()
            if each.status in LIVE
            and (each.status == SessionStatus.PENDING or each.extra.get(OF_LEASE) or _is_uncounted(each))
        }
        return [
            field
            for field in after.fields
            if field in unsure
            or before.active.get(field) != after.active.get(field)
            or before.lifetime.get(field) != after.lifetime.get(field)
        ]

    def _is_unread(self, session_id: str, live: frozenset[str]) -> bool:
        record = self._records.get(session_id)
        if record is None or record.status == SessionStatus.PENDING:
            return True
        return (record.status in LIVE) != (session_id in live)  # it has ended, or a presumed end was taken back

    def _tell_ends(self) -> None:
        self._told = {session: end for session, end in self._told.items() if session in self._records}
        for session, record in sorted(self._records.items(), key=lambda each: each[1].ended_at or 0.0):
            if record.status not in LIVE:
                end = record.status, record.reason
                if self._told.get(session) != end:
                    self._told[session] = end
                    self._on_end(record)
            elif self._told.pop(session, None) is not None:
                self._on_going_on(record)


def _may_be_kept(record: SessionRecord) -> bool:
    return record.status in LIVE and record.protocol == Protocol.CDP


def _is_uncounted(record: SessionRecord) -> bool:
    """Whether its begin has changed no lifetime."""
    return record.status in LIVE and record.extra.get(LIFETIME_TAKEN) == "0"


@dataclass(eq=False)
class Page:
    """One open page. `messages` are to be sent to it, each as one WebSocket message."""

    messages: asyncio.Queue[bytes]
    ended: asyncio.Event
    """Set when the feed ends, so that the page connects again."""
    is_behind: bool = True
    """Whether it must get everything."""


class Feed:
    """The feed of all pages of one proxy. `figures` are those of its clients, `hosts` has the rosters."""

    def __init__(
        self,
        settings: Settings,
        registry: Registry,
        queue: Queue,
        figures: ConnectFigures,
        master: AskMaster,
        hosts: HostKeeper,
    ) -> None:
        self.history = Recent[Sample](MOST_SAMPLES)
        self.events = RecentEvents()
        self.ended = asyncio.Event()
        """Set when this proxy takes no further clients, or stops."""
        self._settings = settings
        self._registry = registry
        self._roster = hosts.roster
        self._queue = queue
        self._figures = figures
        self._master = master
        self._hosts = hosts
        self._elsewhere: Mapping[str, WorkerRecord] = {}
        """The records of other hosts' workers by worker field, of when the master was asked last."""
        self.sessions = ShownSessions(registry, self.events.session_ended, self.events.session_goes_on)
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
        self.events.roster_changed(self._roster)
        self._ask_status_at = 0.0
        self._news.set()

    def hosts_changed(self) -> None:
        """Called when other hosts have told something new."""
        self.events.hosts_changed(self._roster)
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
            for text in await self._registry.samples():
                with contextlib.suppress(ValidationError):
                    sample = _SAMPLE.validate_json(text)
                    if 0.0 <= time.time() - sample[0] < HOUR_S:
                        self.history.add(sample)
        while True:
            await asyncio.sleep(PERIOD_S)
            if self._producer is None:  # else it has just looked
                await self._look_at_registry(with_sessions=False)
                await self._look_at_master()
            await self._keep(self._sample())

    async def _keep(self, sample: Sample) -> None:
        """Keeps a sample in Redis, which also tells whether a Redis that answers takes writes."""
        try:
            text = _SAMPLE.dump_json(sample).decode()
            await self._registry.keep_sample(text, at_most=MOST_SAMPLES, ttl_s=HOUR_S)
        except RegistryUnavailable as error:
            if error.fault is not None and "redis" not in self._problems:
                why = without_places(error.fault.what)
                self._problems["writes"] = f"clients are served without Redis: {why}"
        else:
            self._problems.pop("writes", None)

    def close(self) -> None:
        """Ends the feed of all pages, and live views, so that they connect again to the next proxy. Idempotent."""
        self.ended.set()
        self._end_pages()

    def _end_pages(self) -> None:
        for page in self._pages:
            page.ended.set()

    # The producer

    def _producer_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("dashboard_failed", error=repr(error))
            self._producer = None
            self._end_pages()  # so that they connect again

    async def _produce(self) -> None:
        before: Activity | None = None
        while True:
            await self._look_at_registry(with_sessions=True)
            await self._look_at_master()
            is_changed = self._tell()
            nobody = not any(self._activity.active.values()) and self._queue.waiting() == 0
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
            self._activity = await self._registry.activity()
            if with_sessions:
                await self.sessions.refresh(self._activity)
                await self._look_elsewhere()
        except RegistryUnavailable as error:
            self._problems["redis"] = registry_away(error).error
            self._problems.pop("writes", None)
        else:
            self._problems.pop("redis", None)

    async def _look_elsewhere(self) -> None:
        """Reads of other hosts' workers what only Redis knows here, as often as the master is asked."""
        others = [worker.counter for roster in self._other_rosters().values() for worker in roster.workers.values()]
        known = {} if time.monotonic() >= self._ask_status_at else dict(self._elsewhere)
        unread = [field for field in others if field not in known]
        self._elsewhere = known | (await self._registry.workers(unread) if unread else {})

    def _other_rosters(self) -> dict[str, Roster]:
        return {name: roster for name, roster in self._hosts.rosters().items() if name != self._hosts.name}

    async def _look_at_master(self) -> None:
        now = time.monotonic()
        if now < self._ask_status_at:
            return
        self._ask_status_at = now + STATUS_S
        if self._roster.lost is not None:
            self._problems["master"] = self._roster.lost
            return
        try:
            self._status = await self._master.ask("status")
        except GridError as error:
            self._problems["master"] = str(error)
        else:
            self._status_at = time.time()
            self.sessions.kept(sum(worker.get("kept", 0) for worker in self._status.get("workers", ())))
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
        roster, figures = self._roster, self._figures
        trouble = roster.not_ready()
        rosters, others = self._hosts.rosters(), self._other_rosters()
        workers = [worker for each in rosters.values() for worker in each.workers.values()]
        with_workers = {worker.pool for worker in workers}
        return Sources(
            status=self._status,
            pools=[pool for name, pool in whole_pools(rosters).items() if pool.whole.wanted or name in with_workers],
            workers=workers,
            active=self._activity.active,
            lifetime=self._activity.lifetime,
            sessions=self.sessions.rows,
            waiting=self._queue.waiting_by_run(),
            status_at=self._status_at,
            grid={
                "version": __version__,
                "ready": trouble is None,
                "reason": trouble,
                "stopping": roster.stopping,
                "outcomes": dict(self._activity.outcomes),
                "connects": figures.handed_off,
                "refused": figures.refused,
                "abandoned": figures.abandoned,
                "longestWaitS": round(figures.longest_wait_s, 3),
                "liveView": self._settings.live_view,
                "stale": list(self._problems.values()),
                **({"host": self._hosts.name} if others else {}),
            },
            host=self._hosts.name,
            hosts=self._host_rows() if others else {},
            elsewhere=dict(self._workers_elsewhere(others)),
            waiting_elsewhere={
                name: host.record.waiting for name, host in self._hosts.table.others.items() if name in others
            },
        )

    def _host_rows(self) -> dict[str, dict[str, Any]]:
        return {
            record.name: {
                "state": state.value,
                "version": record.version,
                "waiting": sum(record.waiting.values()),
                "problem": NAME_TAKEN if record.is_name_taken else None,
                **record.room(self._activity.active)._asdict(),
            }
            for record, state in self._hosts.all_hosts()
        }

    def _workers_elsewhere(self, others: Mapping[str, Roster]) -> Iterator[tuple[str, dict[str, Any]]]:
        """What is known of the workers of other hosts, by their ids."""
        for host, roster in others.items():
            for worker in roster.workers.values():
                pool, found = roster.pools.get(worker.pool), self._elsewhere.get(worker.counter)
                yield (
                    worker.worker_id,
                    {
                        "host": host,
                        "slots": pool.slots if pool is not None else 0,
                        "memoryMib": found.rss_mib if found is not None else None,
                        "startedAt": found.started_at if found is not None else None,
                    },
                )

    def _own_active(self) -> int:
        """Returns how many live sessions this host has: where several hosts are one grid, each keeps its own
        history."""
        active = self._activity.active
        if not self._roster.hosts.others:
            return sum(active.values())
        return sum(active.get(worker.counter, 0) for worker in self._roster.workers.values())

    def _sample(self) -> Sample:
        figures = self._figures
        workers = self._status.get("workers", ())
        sizes = list(filter(None, (worker.get("memoryMib") or worker.get("rssMib") for worker in workers)))
        before, self._sampled = self._sampled, (figures.handed_off, figures.refused)
        is_known = "redis" not in self._problems
        sample = (
            round(time.time(), 1),
            self._own_active() if is_known else None,
            figures.handed_off - before[0],
            figures.refused - before[1],
            self._queue.waiting(),
            round(figures.lately_longest_wait_s, 3),
            None if "master" in self._problems or (workers and not sizes) else sum(sizes),
        )
        self.history.add(sample)
        figures.lately_longest_wait_s = 0.0
        return sample
