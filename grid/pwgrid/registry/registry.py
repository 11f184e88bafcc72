"""The registry as proxies and workers use it: workers, counters, sessions, leases. Scripts of lua/ change them.

The scripts read no clock: this module gives them the wall clock's time.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Set
from dataclasses import replace
from itertools import chain
from typing import Final

import orjson
import structlog

from pwgrid.common.errors import RegistryUnavailable
from pwgrid.common.reasons import EndReason, Reason
from pwgrid.common.redis_faults import FaultKind, RedisFault
from pwgrid.common.redis_url import shown
from pwgrid.common.session_lifecycle import HeldAs
from pwgrid.common.types import BrowserType
from pwgrid.common.worker_lifecycle import WorkerStatus
from pwgrid.registry import records
from pwgrid.registry.fault_of import NONSENSE, fault_of, write_fault
from pwgrid.registry.host_records import HostRecords
from pwgrid.registry.open_redis import database
from pwgrid.registry.records import (
    Activity,
    Failed,
    HeartbeatReply,
    Reaped,
    RegistrySnapshot,
    SessionPage,
    SessionRecord,
    WorkerRecord,
    glob_escape,
)
from pwgrid.registry.redis_client import Argument, RedisClient, Reply, Subscription, check
from pwgrid.registry.scripts import SCRIPTS, write_probe
from pwgrid.registry.session_index import CHUNK, IndexReader
from pwgrid.registry.session_update import SessionUpdate
from pwgrid.registry.take_turn import Lines
from pwgrid.settings.model import Settings

log = structlog.get_logger()

LOST: Final = Reason(EndReason.WORKER_LOST)

MOST_READ: Final = 10_000
"""How many records one page may read; by hand, 0.15 s. With the default SESSION_HISTORY_MAX only older sessions that
live are not among the first ones."""


class Registry:
    """Connects in the background; make it while an event loop runs. `connected` waits for the connection.

    Every call takes at most REDIS_TIMEOUT, and raises RegistryUnavailable while Redis is away. Repeated writes do no
    harm.
    """

    def __init__(self, url: str, settings: Settings, now: Callable[[], float] = time.time) -> None:
        self._url = url
        self._prefix = prefix = settings.redis_key_prefix
        self._timeout_s = settings.redis_timeout
        self._settings = settings
        self._record_ttl_s = 3 * (settings.reaper_run_interval + settings.stale_threshold)
        """How long a live session's record is kept; each heartbeat renews it. It has to be longer than the reaper's
        interval: the reaper writes the ends of a lost worker's sessions into their records."""
        self._now = now
        self._counters = (prefix + records.ACTIVE, prefix + records.LIFETIME)
        self._instance = secrets.token_hex(4)
        host = settings.host_name()
        self._history = prefix + (f"{records.HOST_HISTORY}{host}" if host else records.PAGE_HISTORY)
        self._own: tuple[str, str] = ("", "")
        self._subscriptions: list[Subscription] = []
        self.client = RedisClient(url, timeout_s=self._timeout_s, scripts=SCRIPTS.values(), prefix=prefix)
        self.client.on_connect(self._move_subscriptions)
        self.hosts = HostRecords(self.client, prefix)
        self.lines = Lines(self.client, prefix, f"{host}/{self._instance}")

    def __repr__(self) -> str:
        return f"<Registry {self.client!r} prefix={self._prefix!r}>"

    async def connected(self, attempts: int, delay_s: float) -> None:
        """Returns once connected. After REDIS_TIMEOUT + (`attempts` - 1) × `delay_s` closes the registry and raises
        RegistryUnavailable, which names the URL without its password."""
        budget_s = self._timeout_s + max(0, attempts - 1) * delay_s
        try:
            async with asyncio.timeout(budget_s):
                await self.client.wait_connected()
        except BaseException as error:
            reason = self.client.reason
            await self.close()
            if isinstance(error, TimeoutError):
                raise RegistryUnavailable(
                    f"no Redis at {shown(self._url)} within {budget_s:g} s ({attempts} attempts): {reason}"
                ) from None
            raise

    async def close(self) -> None:
        """Ends all connections. Idempotent."""
        for subscription in self._subscriptions:
            await subscription.close()
        await self.client.close()

    # Sessions

    async def select(  # noqa: PLR0913 - a selection has that many sides; each is optional and named
        self,
        browser_type: BrowserType,
        *,
        max_concurrent: int,
        max_lifetime: int,
        session_id: str,
        lease_s: float = 10.0,
        client: str = "",
        exclude: Collection[str] = (),
        version: str | None = None,
        worker_id: str | None = None,
        pool: str | None = None,
        fields: Mapping[str, str] | None = None,
        caps: Mapping[str, int] | None = None,
        kind: HeldAs = HeldAs.SESSION,
        prefer_host: str = "",
        avoid_hosts: Collection[str] = (),
        in_line: bool | None = None,
    ) -> str | None:
        """Chooses a worker, leases one of its slots for `lease_s`, and returns its id. Returns None when no worker is
        eligible, a cap is reached, or the session has run already.

        `exclude` are worker ids, `version` is the client's Playwright major.minor. With `worker_id` only that worker is
        eligible, with `pool` only that pool's. `fields` go into the session's record. `caps` maps a name like
        "run:nightly" to how many of its sessions may live at once. A session that was selected before gets the same
        answer; if its worker is excluded now, that lease is taken back. For a borrowed lease, `kind` says so, and
        `session_id` is its id. Workers of `prefer_host` come first, those of `avoid_hosts` are not eligible. Where
        hosts share their lines, `in_line` says whether the client stands in one, and has been told that it is its turn:
        if not, there is no slot while others wait, else none once another one has come free.
        """
        settings = self._settings
        extra = [text for pair in fields.items() for text in pair] if fields else []
        if caps:
            extra += [text for cap, most in caps.items() for text in (f"max:{cap}", str(most))]
        if prefer_host:
            extra += ["prefer:host", prefer_host]
        if avoid_hosts:
            extra += ["avoid:hosts", ",".join(avoid_hosts)]
        if in_line is not None:
            extra += ["turn:of", self.lines.line_id] if in_line else ["behind:line", "1"]
        arguments = (
            browser_type,
            max_concurrent,
            max_lifetime,
            self._time(),
            settings.stale_threshold,
            self._prefix,
            session_id,
            lease_s,
            client,
            ",".join(exclude),
            version or "",
            worker_id or "",
            self._record_ttl_s,
            settings.session_history_max,
            settings.shutdown_command_ttl,
            pool or "",
            kind,
            "proxy",
            self._instance,
            *extra,
        )
        endpoint: str | None = await self._run("selector", *arguments)
        if endpoint is None:
            return None
        chosen = records.worker_of(endpoint)
        return chosen if chosen and chosen not in exclude else await self._selected(kind, session_id)

    async def _selected(self, kind: HeldAs, session_id: str) -> str | None:
        """Returns the id by which Redis knows the worker of a selected session. A worker whose wsEndpoint names no
        worker, or an excluded one, would be chosen again and again: for that, gives the slot back and returns None."""
        key = self._prefix + records.key_of(kind, session_id)
        worker_id: str | None = await self.client.call("HGET", key, "workerId")
        log.warning("endpoint_names_another_worker", worker=worker_id, **{kind.value: session_id})
        if worker_id and "," not in worker_id:
            return worker_id
        await self.rollback(session_id, kind)
        return None

    async def reached(self, caps: Mapping[str, int]) -> list[str]:
        """Returns which of the caps are full, as the last selection with these caps left them."""
        live = await self.client.pipeline([("SCARD", f"{self._prefix}sessions:of:{cap}") for cap in caps])
        return [cap for (cap, most), count in zip(caps.items(), live, strict=True) if count >= most]

    async def write(self, update: SessionUpdate, worker: tuple[BrowserType, str] | None = None) -> bool:
        """Records that the session or lease runs, or that it has ended, which frees its slot. Returns False if nothing
        changed: it is another worker's, had ended before, or is unknown.

        The update is from `worker`, else from the worker that registered here; without either, Redis must have the
        session's record.
        """
        owner, end, started_at = worker or self._own, update.end, _text(update.started_at)
        if end is None:
            what = (started_at or self._time(), self._prefix, self._record_ttl_s, *owner, update.client, _told(update))
            return bool(await self._run("start_session", update.session_id, *what, update.kind, update.lease_id))
        head = (
            update.session_id,
            end.status,
            str(end.reason),
            _text(end.at),
            self._prefix,
            self._settings.session_history_ttl,
        )
        tail = (end.bytes_in, end.bytes_out, *owner, started_at, update.client, _text(end.drain_at), _told(update))
        return bool(await self._run("release", *head, *tail, end.reason.kind, update.kind, update.lease_id))

    async def rollback(self, session_id: str, kind: HeldAs = HeldAs.SESSION) -> bool:
        """Takes the slot of a failed handoff back, lifetime included, and deletes the record of the session, or of the
        lease with this id: it may be selected again. Returns False if there was no slot."""
        return bool(await self._run("rollback", session_id, self._prefix, kind))

    async def session(self, session_id: str) -> SessionRecord | None:
        """Returns one session's record, or None if there is none (any more)."""
        return (await self.session_records([session_id])).get(session_id)

    async def sessions(
        self,
        *,
        status: str | None = None,
        browser_type: str | None = None,
        worker_id: str | None = None,
        token: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> SessionPage:
        """Returns sessions that pass all given filters, newest first. Raises ValueError for a malformed cursor."""

        def passes(session: SessionRecord) -> bool:
            return (
                status in (None, session.status)
                and browser_type in (None, session.browser_type)
                and worker_id in (None, session.worker_id)
                and token in (None, session.token)
            )

        return await self._page(HeldAs.SESSION, passes, limit, cursor)

    async def note_view(self, session_id: str) -> bool:
        """Records that an operator looks at this session now. Returns False if Redis has no such session (any more)."""
        return await self._set_fields(records.key_of(HeldAs.SESSION, session_id), {"viewedAt": self._time()})

    # The dashboard

    async def activity(self) -> Activity:
        """Reads what changes whenever a session begins or ends, in one round trip."""
        keys = (*self._counters, self._prefix + records.OUTCOMES, self._prefix + records.TAKEN_BACK)
        *found, newest = await self.client.pipeline(
            [*(("HGETALL", key) for key in keys), ("ZREVRANGE", self._prefix + records.INDEX, 0, 0)]
        )
        with self._makes_sense():
            active, lifetime, outcomes, taken_back = map(records.counts, found)
            return Activity(active, lifetime, outcomes, taken_back, newest[0] if newest else None)

    async def session_ids(
        self, fields: Collection[str], *, newest: int, at_most: int
    ) -> tuple[dict[str, frozenset[str]], list[str]]:
        """Returns ids: by worker field of these workers' live sessions (at most `at_most` with a slot of their own, and
        as many with a lease's, for each worker), and of the `newest` sessions of all workers."""
        # These first: a session that begins meanwhile is among the live ones then.
        latest: list[str] = await self.client.call("ZREVRANGE", self._prefix + records.INDEX, 0, newest - 1)
        live: dict[str, frozenset[str]] = {}
        for some in records.chunks(fields):
            found = await self.client.pipeline(records.live_commands(self._prefix, some, at_most))
            for field, own, leased in zip(some, found[::2], found[1::2], strict=True):
                live[field] = frozenset([*own[:at_most], *leased[:at_most]])
        return live, latest

    async def session_records(self, ids: Collection[str]) -> dict[str, SessionRecord]:
        """Returns records by id, without sessions that have none (any more)."""
        return await self._records(HeldAs.SESSION, ids)

    async def keep_sample(self, sample: str, *, at_most: int, ttl_s: float) -> None:
        """Keeps a sample of the dashboard's curves for other proxies, and only the newest `at_most` of all samples."""
        key = self._history
        await self.client.pipeline(
            [("RPUSH", key, sample), ("LTRIM", key, -at_most, -1), ("PEXPIRE", key, round(ttl_s * 1000))]
        )

    async def samples(self) -> list[str]:
        """Returns the kept samples, the newest last."""
        found: list[str] = await self.client.call("LRANGE", self._history, 0, -1)
        return found

    # Leases

    async def lease(self, lease_id: str) -> SessionRecord | None:
        """Returns one lease's record, in the form of a session's, or None if there is none (any more)."""
        return (await self._records(HeldAs.LEASE, [lease_id])).get(lease_id)

    async def leases(
        self, statuses: Set[str], *, token: str | None = None, limit: int = 100, cursor: str | None = None
    ) -> SessionPage:
        """Returns leases of these statuses, newest first; with `token`, only that token's. Raises ValueError for a
        malformed cursor."""

        def passes(lease: SessionRecord) -> bool:
            return lease.status in statuses and token in (None, lease.token)

        return await self._page(HeldAs.LEASE, passes, limit, cursor)

    async def describe(self, kind: HeldAs, holder_id: str, fields: Mapping[str, str]) -> bool:
        """Writes these fields into the record of a session or lease of the worker that registered here. Returns False
        if Redis does not know that this worker has it."""
        key = records.key_of(kind, holder_id)
        return await self._set_fields(key, fields, ":".join(self._own), self._record_ttl_s)

    # Workers

    async def endpoint(self, browser_type: BrowserType, worker_id: str) -> str | None:
        """Returns the worker's wsEndpoint, or None if it is not registered."""
        return await self._of_worker(browser_type, worker_id, "wsEndpoint")

    async def register(
        self, worker: WorkerRecord, *, lifetime: int = 0, sessions: Collection[SessionUpdate] = ()
    ) -> None:
        """Writes the worker's record and counters. In case Redis has lost them, `lifetime` is the worker's own count,
        and `sessions` are those that run, with the leases. From now on `write` acts for this worker, even if this call
        fails."""
        self._own = (worker.browser_type, worker.worker_id)
        head = (*self._own, self._time(), lifetime)
        kept = (self._settings.redis_key_ttl, self._prefix, self._record_ttl_s)
        await self._run("register", *head, *kept, len(sessions), *_flat(sessions), *worker.fields())

    async def heartbeat(
        self, worker: WorkerRecord, *, sessions: Collection[SessionUpdate], lifetime: int | None = None
    ) -> HeartbeatReply:
        """Renews the worker's record, with what others have changed in it, and the records of its live `sessions`, with
        the leases, and repairs Redis from them. `lifetime` is the worker's own count, or None if it does not know."""
        settings, rss_mib = self._settings, worker.rss_mib
        head = (worker.browser_type, worker.worker_id, self._time(), worker.status)
        times = (settings.redis_key_ttl, settings.stale_threshold, self._prefix)
        kept = (self._record_ttl_s, settings.session_history_ttl)
        figures = ("" if rss_mib is None else rss_mib, "" if lifetime is None else lifetime)
        reply = await self._run(
            "heartbeat",
            *(*head, *times, *kept, *figures, len(sessions), *_flat(sessions), *worker.fields(renewed=True)),
        )
        with self._makes_sense():
            known, command, repaired, is_used_up, *awaited = reply
            leases = {session_id: float(left_s) for session_id, left_s in zip(awaited[::2], awaited[1::2], strict=True)}
            return HeartbeatReply(bool(known), command or None, repaired, bool(is_used_up), leases)

    async def mark_draining(self, browser_type: BrowserType, worker_id: str) -> bool:
        """Excludes the worker from all selections. Returns False if it is not registered."""
        return await self._set_fields(f"worker:{browser_type}:{worker_id}", {"status": WorkerStatus.DRAINING.value})

    async def replacement(self, browser_type: BrowserType, worker_id: str) -> str | None:
        """Returns the id of the spare that a selection has put in this worker's place, or None."""
        return await self._of_worker(browser_type, worker_id, "replacement")

    async def send_drain(self, browser_type: BrowserType, worker_id: str) -> bool:
        """Leaves the shutdown command for the worker's next heartbeat, and publishes it. Returns False if the worker is
        not registered."""
        worker = f"{browser_type}:{worker_id}"
        keys = (f"{self._prefix}worker:{worker}", f"{self._prefix}worker:cmd:{worker}")
        return bool(await self.client.run(SCRIPTS["shutdown_command"], keys, (self._settings.shutdown_command_ttl,)))

    async def reap(self, *, lock_s: float = 0.0) -> Reaped:
        """Removes workers whose heartbeat stopped and ends their sessions. With `lock_s` only the registry that did so
        last may do so again before `lock_s` seconds are over."""
        return await self._reap(self._settings.stale_threshold, LOST, "", lock_s)

    async def reap_worker(self, browser_type: BrowserType, worker_id: str, reason: Reason[EndReason]) -> Reaped:
        """Removes one worker that ends, or is known to be gone; its sessions fail for `reason`."""
        return await self._reap(0, reason, f"{browser_type}:{worker_id}", 0)

    async def snapshot(self) -> RegistrySnapshot:
        """Reads workers, counters and totals."""
        return await self.look()

    async def look(
        self, first: Collection[str] = (), is_enough: Callable[[RegistrySnapshot], bool] = lambda _found: False
    ) -> RegistrySnapshot:
        """As `snapshot`, but reads workers' records only until those that were read last are enough; the other workers
        are missing then. Those of the fields `first` are read before all others."""
        async with self._deadline():
            commands = [*records.snapshot_commands(self._prefix), write_probe(self._prefix)]
            *replies, probed = await self.client.answers(commands)
            check(replies)
            with self._makes_sense():
                fields = records.worker_fields(replies, first)
                found = records.read_snapshot(replies, write_fault(probed))
            workers: dict[str, WorkerRecord] = {}
            for some in records.chunks(fields):
                hashes = await self.client.pipeline(records.worker_commands(self._prefix, some))
                with self._makes_sense():
                    read = records.read_workers(some, hashes)
                workers |= read
                if is_enough(replace(found, workers=read)):
                    break
        return replace(found, workers=dict(sorted(workers.items())))

    async def workers(self, fields: Collection[str]) -> dict[str, WorkerRecord]:
        """Returns the records of the workers of these fields ("{type}:{id}"), without those that have none."""
        found: dict[str, WorkerRecord] = {}
        async with self._deadline():
            for some in records.chunks(fields):
                hashes = await self.client.pipeline(records.worker_commands(self._prefix, some))
                with self._makes_sense():
                    found |= records.read_workers(some, hashes)
        return found

    async def worker_page(self, *, limit: int, cursor: str | None = None) -> tuple[RegistrySnapshot, str | None]:
        """Returns at most `limit` workers, in the order of their fields, with all counters and no totals; and the
        cursor of the next page, None at the end. `cursor` is the previous page's; a worker that comes or goes does not
        shift the pages."""
        workers: dict[str, WorkerRecord] = {}
        async with self._deadline():
            replies = await self.client.pipeline([("HGETALL", key) for key in self._counters])
            with self._makes_sense():
                left = [field for field in records.worker_fields(replies) if field > (cursor or "")]
                active, lifetime = map(records.counts, replies)
            while left and len(workers) < limit:
                wanted = min(limit - len(workers), records.HASHES_AT_ONCE)
                some, left = left[:wanted], left[wanted:]
                hashes = await self.client.pipeline(records.worker_commands(self._prefix, some))
                with self._makes_sense():
                    workers |= records.read_workers(some, hashes)
        return RegistrySnapshot(active, lifetime, workers, {}, 0), some[-1] if left else None

    def subscribe_commands(self, browser_type: BrowserType, worker_id: str, callback: Callable[[], None]) -> None:
        """Calls `callback` when there may be a command for this worker, and after each (re)connection to Redis.

        Subscribes to the channel of the command's own name, and to Redis's messages about changed keys: the embedded
        Redis sends these, so that a mere SET is heard.
        """
        command = f"{self._prefix}worker:cmd:{browser_type}:{worker_id}"
        self._subscriptions.append(
            Subscription(
                self._url,
                timeout_s=self._timeout_s,
                channels=(command, f"__keyspace@{database(self._url)}__:{command}"),
                on_message=lambda _channel: callback(),
                on_subscribed=callback,
                prefix=self._prefix,
            )
        )

    def subscribe_slots(self, callback: Callable[[str | None], None]) -> None:
        """Calls `callback` with a pool's name when a slot of it may have come free, or it is this proxy's turn there;
        and with None after each (re)connection to Redis, since messages may have been missed."""
        before_name = f"{self._prefix}slots:"

        def heard(channel: str) -> None:
            pool, _, line_id = channel.removeprefix(before_name).partition("@")
            if line_id in ("", self.lines.line_id):
                callback(pool)

        self._subscriptions.append(
            Subscription(
                self._url,
                timeout_s=self._timeout_s,
                patterns=(glob_escape(before_name) + "*",),
                on_message=heard,
                on_subscribed=lambda: callback(None),
                prefix=self._prefix,
            )
        )
        # The two connections come back in any order. A call before the client's is back would find no worker.
        self.client.on_connect(lambda: callback(None))

    def _move_subscriptions(self) -> None:
        for subscription in self._subscriptions:
            subscription.follow(self.client.server)

    def now(self) -> float:
        """Returns the wall clock's time in Unix seconds, as in the records."""
        return self._now()

    @contextlib.asynccontextmanager
    async def _deadline(self) -> AsyncIterator[None]:
        """Bounds a call that asks Redis more than once."""
        try:
            async with asyncio.timeout(self._timeout_s):
                yield
        except TimeoutError:
            fault = RedisFault(FaultKind.SILENT, f"no reply within {self._timeout_s:g} s")
            raise RegistryUnavailable(str(fault), fault) from None

    @contextlib.contextmanager
    def _makes_sense(self) -> Iterator[None]:
        """Ends the connection, and raises RegistryUnavailable, if a reply cannot be read: something else than Redis has
        given it."""
        try:
            yield
        except NONSENSE as error:
            self.client.break_off()
            fault = fault_of(error)
            raise RegistryUnavailable(f"Redis at {shown(self._url)}: {fault}", fault) from error

    def _time(self) -> str:
        return _text(self._now())

    async def _run(self, name: str, *arguments: Argument) -> Reply:
        return await self.client.run(SCRIPTS[name], self._counters, arguments)

    async def _set_fields(
        self, name: str, fields: Mapping[str, str], of_worker: str = "", ttl_s: float | str = ""
    ) -> bool:
        flat = [text for pair in fields.items() for text in pair]
        return bool(await self.client.run(SCRIPTS["set_fields"], (self._prefix + name,), (of_worker, ttl_s, *flat)))

    async def _page(
        self, kind: HeldAs, passes: Callable[[SessionRecord], bool], limit: int, cursor: str | None
    ) -> SessionPage:
        """Returns up to `limit` sessions, or leases, that pass, the newest first, or those among the next MOST_READ.
        `cursor` is the previous page's; new sessions do not shift the pages."""
        found: dict[str, SessionRecord] = {}
        index = IndexReader(self._prefix, kind, _read_cursor(cursor) if cursor else None)
        async with self._deadline():
            for _ in range(MOST_READ // CHUNK):
                replies = await self.client.pipeline(index.commands())
                with self._makes_sense():
                    entries = index.read(replies)
                read = await self._records(kind, [id_ for id_, _ in entries])
                for id_, created_at in entries:
                    session = read.get(id_)
                    if session is not None and passes(session):
                        found[id_] = session
                        if len(found) == limit:
                            index.go_to(id_, created_at)
                            return SessionPage([*found.values()], ":".join(index.place))
                if index.is_at_end:
                    return SessionPage([*found.values()], None)
        return SessionPage([*found.values()], ":".join(index.place))

    async def _records(self, kind: HeldAs, ids: Collection[str]) -> dict[str, SessionRecord]:
        """Returns the records of sessions, or of leases, by their ids, without those that are gone."""
        read: dict[str, SessionRecord] = {}
        for some in records.chunks(ids):
            hashes = await self.client.pipeline([("HGETALL", self._prefix + records.key_of(kind, id_)) for id_ in some])
            with self._makes_sense():
                read |= {id_: SessionRecord.read(id_, found) for id_, found in zip(some, hashes, strict=True) if found}
        return read

    async def _of_worker(self, browser_type: BrowserType, worker_id: str, name: str) -> str | None:
        reply: str | None = await self.client.call("HGET", f"{self._prefix}worker:{browser_type}:{worker_id}", name)
        return reply

    async def _reap(self, threshold_s: float, reason: Reason[EndReason], only: str, lock_s: float) -> Reaped:
        owner = self._instance if lock_s else ""
        history_ttl_s, history_max = self._settings.session_history_ttl, self._settings.session_history_max
        tail = (history_ttl_s, str(reason), only, owner, lock_s or "", "names", reason.kind, history_max)
        entries = await self._run("reaper", self._time(), threshold_s, self._prefix, *tail)
        with self._makes_sense():
            return {worker: Failed(tuple(sessions), tuple(leases)) for worker, sessions, leases in entries or ()}


def _text(unix_s: float | None) -> str:
    return "" if unix_s is None else f"{unix_s:.3f}"


def _flat(sessions: Collection[SessionUpdate]) -> list[str]:
    """Returns six arguments of a script for each session or lease."""
    told = (
        (each.kind, each.session_id, each.lease_id, _text(each.started_at), each.client, _told(each))
        for each in sessions
    )
    return list(chain.from_iterable(told))


def _told(update: SessionUpdate) -> str:
    return orjson.dumps(update.client_fields).decode() if update.client_fields else ""


def _read_cursor(cursor: str) -> tuple[str, str]:
    score, colon, session_id = cursor.partition(":")
    if not colon or not score.isascii() or not (score.replace(".", "", 1).isdecimal() or score == "inf"):
        raise ValueError(f"not a cursor: {cursor!r}")
    return score, session_id
