"""The registry as proxies and workers use it: workers, counters, leases. Every step is a script of lua/.

The wall clock is read here and given to the scripts; nowhere else in the grid.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Collection, Mapping, Set
from dataclasses import dataclass
from typing import Final, cast

import orjson

from pwgrid.common.errors import RegistryUnavailable
from pwgrid.common.redis_url import shown
from pwgrid.common.types import BrowserType
from pwgrid.registry import listing, page_history, page_reads, records
from pwgrid.registry.client import RedisClient
from pwgrid.registry.connect import database
from pwgrid.registry.pipelined_connection import Argument, Reply
from pwgrid.registry.records import (
    HeartbeatReply,
    Reaped,
    RegistrySnapshot,
    Selection,
    SessionPage,
    SessionRecord,
    WorkerRecord,
)
from pwgrid.registry.scripts import load
from pwgrid.registry.session_updates import SessionUpdate
from pwgrid.registry.subscription import Subscription, glob_escape
from pwgrid.settings.model import Settings

__all__ = [
    "HeartbeatReply",
    "Lifetimes",
    "Reaped",
    "Registry",
    "RegistrySnapshot",
    "Selection",
    "SessionPage",
    "SessionRecord",
    "WorkerRecord",
]

SCRIPTS: Final = {
    name: load(name)
    for name in (
        "selector",
        "register",
        "heartbeat",
        "start",
        "release",
        "rollback",
        "describe_lease",
        "drain",
        "viewed",
        "command",
        "unregister",
        "reaper",
    )
}
"""Read with the code that calls them: all processes that are forked later share them, and none gets newer ones."""


@dataclass(frozen=True, slots=True)
class Lifetimes:
    """How long the registry's keys live, in seconds; `history_max` counts sessions."""

    key_ttl_s: float = 30.0
    stale_threshold_s: float = 30.0
    command_ttl_s: float = 60.0
    history_ttl_s: float = 3600.0
    history_max: int = 10_000
    record_ttl_s: float = 990.0
    """Of a live session's record; each heartbeat renews it. Outlasts the reaper's interval, or ends go unrecorded."""

    @classmethod
    def of(cls, settings: Settings) -> Lifetimes:
        """As the settings say."""
        return cls(
            key_ttl_s=settings.redis_key_ttl,
            stale_threshold_s=settings.stale_threshold,
            command_ttl_s=settings.shutdown_command_ttl,
            history_ttl_s=settings.session_history_ttl,
            history_max=settings.session_history_max,
            record_ttl_s=3 * (settings.reaper_run_interval + settings.stale_threshold),
        )


class Registry:
    """Connects in the background; to be made while a loop runs. `connected` waits for the connection.

    Every call is bounded by `timeout_s` and raises RegistryUnavailable while Redis is away. All writes may be repeated.
    """

    def __init__(
        self,
        url: str,
        *,
        prefix: str = "",
        timeout_s: float = 1.0,
        lifetimes: Lifetimes | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._url = url
        self._prefix = prefix
        self._timeout_s = timeout_s
        self._lifetimes = lifetimes or Lifetimes()
        self._now = now
        self._scripts = SCRIPTS
        self._counters = (prefix + records.ACTIVE, prefix + records.LIFETIME)
        self._instance = secrets.token_hex(4)
        self._own: tuple[str, str] = ("", "")
        life = self._lifetimes
        self._rule = (str(life.stale_threshold_s), prefix)
        record = (life.record_ttl_s, life.history_max, life.command_ttl_s)
        self._recording = tuple(map(str, record))
        self._subscriptions: list[Subscription] = []
        self.client = RedisClient(url, timeout_s=timeout_s, scripts=self._scripts.values())

    @classmethod
    def of(cls, settings: Settings, url: str) -> Registry:
        """The grid's registry at `url`, as the settings say."""
        return cls(
            url,
            prefix=settings.redis_key_prefix,
            timeout_s=settings.redis_timeout,
            lifetimes=Lifetimes.of(settings),
        )

    def __repr__(self) -> str:
        return f"<Registry {self.client!r} prefix={self._prefix!r}>"

    async def connected(self, attempts: int, delay_s: float) -> None:
        """Returns once the connection stands. Where it does not within `attempts` × `delay_s`, the registry is closed,
        and RegistryUnavailable names the URL without its password."""
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
    ) -> Selection | None:
        """Chooses a worker and takes one of its slots by a lease of `lease_s`; None when no worker is eligible.

        `exclude` are worker ids, `version` is the client's Playwright major.minor, `worker_id` the only one that will
        do, `pool` the one whose workers will, `fields` go into the session's record. `caps` say of whom ("run:nightly")
        so many may live at once; None also where one is reached. A session that was selected before gets the same
        answer; if its worker is excluded now, that lease is taken back. None also for a session that has run already.
        """
        extra = [text for pair in fields.items() for text in pair] if fields else []
        if caps:
            extra += [text for whom, most in caps.items() for text in (f"max:{whom}", str(most))]
        arguments = (
            browser_type,
            max_concurrent,
            max_lifetime,
            self._time(),
            *self._rule,
            session_id,
            lease_s,
            client,
            ",".join(exclude),
            version or "",
            worker_id or "",
            *self._recording,
            pool or "",
            "proxy",
            self._instance,
            *extra,
        )
        endpoint: str | None = await self._run("selector", *arguments)
        return None if endpoint is None else Selection(endpoint, _worker_id(endpoint))

    async def reached(self, caps: Mapping[str, int]) -> list[str]:
        """Those of the caps that leave no room, as the last selection that asked for them has found it."""
        live = await self.client.pipeline([("SCARD", f"{self._prefix}sessions:of:{whom}") for whom in caps])
        return [whom for (whom, most), count in zip(caps.items(), live, strict=True) if count >= most]

    async def write(self, update: SessionUpdate, worker: tuple[BrowserType, str] | None = None) -> bool:
        """Records that the session runs, or that it has ended, which frees its slot. False if that changed nothing: it
        is another worker's, had ended before, or is not known.

        It is `worker` (or who registered here) that says so, and knows best; without either the record must be there.
        """
        owner, life, end = worker or self._own, self._lifetimes, update.end
        started_at = "" if update.started_at is None else _text(update.started_at)
        if end is None:
            when = started_at or self._time()
            tail = (*owner, update.client, _told(update))
            return bool(await self._run("start", update.session_id, when, self._prefix, life.record_ttl_s, *tail))
        head = (update.session_id, end.status, end.reason, _text(end.at), self._prefix, life.history_ttl_s)
        drain_at = "" if end.drain_at is None else _text(end.drain_at)
        what = (end.bytes_in, end.bytes_out, *owner, started_at, update.client, drain_at, _told(update))
        return bool(await self._run("release", *head, *what))

    async def rollback(self, session_id: str, reason: str, *, last: bool = False) -> bool:
        """Takes the lease of a failed handoff back, lifetime included. With `last` the session is recorded as failed
        for `reason`; else its record goes, and it may be selected again. False if there was no lease any more."""
        tail = (self._prefix, int(last), self._lifetimes.history_ttl_s)
        return bool(await self._run("rollback", session_id, reason, self._time(), *tail))

    async def session(self, session_id: str) -> SessionRecord | None:
        """One session's record; None if there is none (any more)."""
        values = await self.client.call("HGETALL", f"{self._prefix}session:{session_id}")
        return SessionRecord.read(session_id, values) if values else None

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
        """Sessions that pass all given filters, the newest first. Raises ValueError for a cursor that is not ours."""
        wanted = listing.Filter({status} if status else None, browser_type, worker_id, token)
        return await listing.page(self.client, self._prefix, wanted, limit, cursor)

    async def note_view(self, session_id: str) -> bool:
        """Puts on record that somebody looks at this session now. False if there is no such session (any more)."""
        keys = (f"{self._prefix}session:{session_id}",)
        return bool(await self.client.run(self._scripts["viewed"], keys, (self._time(),)))

    async def activity(self) -> page_reads.Activity:
        """What changes whenever a session begins or ends, in one round trip."""
        return await page_reads.activity(self.client, self._prefix)

    async def session_ids(
        self, fields: Collection[str], *, newest: int, at_most: int
    ) -> tuple[frozenset[str], list[str]]:
        """The live sessions of the workers with these counter fields (of each `at_most`), and the `newest` of all."""
        return await page_reads.session_ids(self.client, self._prefix, fields, newest=newest, at_most=at_most)

    async def session_records(self, ids: Collection[str]) -> dict[str, SessionRecord]:
        """The records of these sessions by id, as far as there are any (still)."""
        return await page_reads.session_records(self.client, self._prefix, ids)

    async def keep_sample(self, sample: str, *, at_most: int, ttl_s: float) -> None:
        """Keeps one sample of the page's curves for the next proxy, and of all samples the newest `at_most`."""
        await page_history.keep(self.client, self._prefix, sample, at_most=at_most, ttl_s=ttl_s)

    async def samples(self) -> list[str]:
        """The samples that are kept, the newest last."""
        return await page_history.read(self.client, self._prefix)

    # Leases

    async def lease(self, lease_id: str) -> SessionRecord | None:
        """One lease's record, which has what a session's has; None if there is none (any more)."""
        values = await self.client.call("HGETALL", f"{self._prefix}{records.LEASE}{lease_id}")
        return SessionRecord.read(lease_id, values) if values else None

    async def leases(
        self, statuses: Set[str], *, token: str | None = None, limit: int = 100, cursor: str | None = None
    ) -> SessionPage:
        """Leases in one of these states (of this token), the newest first. Raises ValueError for a cursor that is not
        ours."""
        wanted = listing.Filter(statuses, token=token)
        return await listing.page(self.client, self._prefix, wanted, limit, cursor, listing.LEASES)

    async def describe_lease(self, lease_id: str, fields: Mapping[str, str]) -> bool:
        """Puts on record what the worker that registered here knows of one of its leases. False if Redis does not know
        that it has it."""
        flat = [text for pair in fields.items() for text in pair]
        head = (f"{records.LEASE}{lease_id}", self._prefix, *self._own, self._lifetimes.record_ttl_s)
        return bool(await self.client.run(self._scripts["describe_lease"], (), (*head, *flat)))

    # Workers

    async def endpoint(self, browser_type: BrowserType, worker_id: str) -> str | None:
        """The worker's wsEndpoint; None if it is not registered."""
        reply: str | None = await self.client.call(
            "HGET", f"{self._prefix}worker:{browser_type}:{worker_id}", "wsEndpoint"
        )
        return reply

    async def register(
        self, worker: WorkerRecord, *, lifetime: int = 0, sessions: Collection[SessionUpdate] = ()
    ) -> None:
        """Writes the worker's record and counters. When Redis had lost them, `lifetime` is what the worker itself
        counts, and `sessions` are those that run. From now on `write` on this registry speaks for this worker, also if
        this call fails."""
        self._own = (worker.browser_type, worker.worker_id)
        life, active = self._lifetimes, sum(records.takes_slot(each.session_id) for each in sessions)
        head = (*self._own, self._time(), active, lifetime, life.key_ttl_s, self._prefix, life.record_ttl_s)
        await self._run("register", *head, len(sessions), *_flat(sessions), *worker.fields())

    async def heartbeat(  # noqa: PLR0913 - a worker says that much of itself; most of it may be left out
        self,
        browser_type: BrowserType,
        worker_id: str,
        *,
        status: str,
        sessions: Collection[SessionUpdate],
        lifetime: int | None = None,
        rss_mib: int | None = None,
        record: WorkerRecord | None = None,
    ) -> HeartbeatReply:
        """Renews the worker's record and the leases of its live `sessions`, and repairs Redis from them. `lifetime` is
        what the worker itself counts; None where it does not know. `record`: the other fields of its hash, in case
        somebody has changed them."""
        life = self._lifetimes
        beat = (browser_type, worker_id, self._time(), status, life.key_ttl_s, life.stale_threshold_s, self._prefix)
        figures = ("" if rss_mib is None else rss_mib, "" if lifetime is None else lifetime)
        known, command, repaired, is_used_up, *awaited = await self._run(
            "heartbeat",
            *(*beat, life.record_ttl_s, life.history_ttl_s, *figures, len(sessions), *_flat(sessions)),
            *(record.fields(renewed=True) if record else ()),
        )
        leases = {session_id: float(left_s) for session_id, left_s in zip(awaited[::2], awaited[1::2], strict=True)}
        return HeartbeatReply(bool(known), command or None, repaired, bool(is_used_up), leases)

    async def mark_draining(self, browser_type: BrowserType, worker_id: str) -> bool:
        """No selection chooses the worker from now on. False if it is not registered."""
        keys = (f"{self._prefix}worker:{browser_type}:{worker_id}",)
        return bool(await self.client.run(self._scripts["drain"], keys, ()))

    async def replacement(self, browser_type: BrowserType, worker_id: str) -> str | None:
        """The worker that a selection has let serve in this one's place; None if there is none."""
        reply: str | None = await self.client.call(
            "HGET", f"{self._prefix}worker:{browser_type}:{worker_id}", "replacement"
        )
        return reply

    async def send_drain(self, browser_type: BrowserType, worker_id: str) -> bool:
        """Leaves the shutdown command for the worker's next heartbeat, and publishes it. False if nobody is there."""
        worker = f"{browser_type}:{worker_id}"
        keys = (f"{self._prefix}worker:{worker}", f"{self._prefix}worker:cmd:{worker}")
        return bool(await self.client.run(self._scripts["command"], keys, (self._lifetimes.command_ttl_s,)))

    async def unregister(self, browser_type: BrowserType, worker_id: str, reason: str) -> int:
        """Removes the worker; sessions that it still has fail for `reason`. Returns how many those were."""
        arguments = (browser_type, worker_id, self._time(), self._prefix, reason, self._lifetimes.history_ttl_s)
        return int(await self._run("unregister", *arguments))

    async def reap(self, stale_threshold_s: float | None = None, *, lock_s: float = 0.0) -> Reaped:
        """Removes workers whose heartbeat stopped and ends their sessions. With `lock_s` only one registry does so at a
        time: the one that did last, until `lock_s` seconds after it."""
        threshold_s = self._lifetimes.stale_threshold_s if stale_threshold_s is None else stale_threshold_s
        return await self._reap(threshold_s, "", "", lock_s)

    async def reap_worker(self, browser_type: BrowserType, worker_id: str, reason: str) -> Reaped:
        """Removes one worker that is known to be gone; its sessions fail for `reason`."""
        return await self._reap(0, reason, f"{browser_type}:{worker_id}", 0)

    async def snapshot(self) -> RegistrySnapshot:
        """Workers, counters and totals."""
        replies = await self.client.pipeline(records.snapshot_commands(self._prefix))
        fields = records.worker_fields(replies)
        hashes = await self.client.pipeline([("HGETALL", f"{self._prefix}worker:{name}") for name in fields])
        return records.read_snapshot(replies, hashes)

    async def counters(self) -> tuple[dict[str, int], dict[str, int]]:
        """The active and the lifetime counters by worker field: what `snapshot` has of them, in one round trip."""
        active, lifetime = await self.client.pipeline([("HGETALL", key) for key in self._counters])
        return records.counts(active), records.counts(lifetime)

    async def subscribe_commands(self, browser_type: BrowserType, worker_id: str, callback: Callable[[], None]) -> None:
        """`callback` is called when there may be a command for this worker, and after each (re)connection to Redis.

        It is told on the channel of the command's own name, and by Redis itself where that tells of keys: the embedded
        one does, so that a mere SET is heard.
        """
        command = f"{self._prefix}worker:cmd:{browser_type}:{worker_id}"
        self._subscriptions.append(
            Subscription(
                self._url,
                timeout_s=self._timeout_s,
                channels=(command, f"__keyspace@{database(self._url)}__:{command}"),
                on_message=lambda _channel: callback(),
                on_subscribed=callback,
            )
        )

    async def subscribe_slots(self, callback: Callable[[str | None], None]) -> None:
        """`callback` is called with a pool's name when a slot of it may have come free, and with None after each
        (re)connection to Redis, since anything may have happened before."""
        before_name = f"{self._prefix}slots:"
        self._subscriptions.append(
            Subscription(
                self._url,
                timeout_s=self._timeout_s,
                patterns=(glob_escape(before_name) + "*",),
                on_message=lambda channel: callback(channel.removeprefix(before_name)),
                on_subscribed=lambda: callback(None),
            )
        )
        # The two connections come back in any order. A wake-up before the client's is back would find no worker.
        self.client.on_connect(lambda: callback(None))

    # Small things

    def now(self) -> float:
        """The wall clock, in Unix seconds, as the records have it."""
        return self._now()

    def _time(self) -> str:
        return _text(self._now())

    async def _run(self, name: str, *arguments: Argument) -> Reply:
        return await self.client.run(self._scripts[name], self._counters, arguments)

    async def _reap(self, threshold_s: float, reason: str, only: str, lock_s: float) -> Reaped:
        owner = self._instance if lock_s else ""
        tail = (self._lifetimes.history_ttl_s, reason, only, owner, lock_s or "", "names")
        entries = cast(
            "list[list[str]] | None", await self._run("reaper", self._time(), threshold_s, self._prefix, *tail)
        )
        return Reaped({worker: tuple(sessions) for worker, *sessions in entries or ()}, ran=entries is not None)


def _text(unix_s: float) -> str:
    return f"{unix_s:.3f}"


def _flat(sessions: Collection[SessionUpdate]) -> list[str]:
    """Four arguments for each session that runs."""
    rows = ((each.session_id, each.started_at, each.client, _told(each)) for each in sessions)
    return [text for id_, at, *rest in rows for text in (id_, "" if at is None else _text(at), *rest)]


def _told(update: SessionUpdate) -> str:
    """As the scripts take it."""
    return orjson.dumps(update.told).decode() if update.told else ""


def _worker_id(endpoint: str) -> str:
    # ws://host:port/playwright/<browser type>/<worker id>.<secret>
    return endpoint.rpartition("/")[2].partition(".")[0]
