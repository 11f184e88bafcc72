"""The scripts as functions of Python, with the time as an argument. Every call goes to a real Redis."""

from dataclasses import dataclass
from typing import Any

from redis import Redis

from pwgrid.registry.scripts import source_of

NOW = 1_700_000_000.0
KEY_TTL_S = 30
STALE_S = 30
RECORD_TTL_S = 900
HISTORY_TTL_S = 3600


@dataclass(frozen=True)
class Lease:
    """A lease, where a session would be named by its id alone."""

    id: str


@dataclass(frozen=True)
class Leased:
    """A session that came with a lease."""

    id: str
    lease: str


Holder = str | Lease | Leased
"""A session by its id, or what else may be live."""


def kind_id_lease(holder: Holder) -> tuple[str, str, str]:
    if isinstance(holder, Lease):
        return "lease", holder.id, ""
    return ("session", holder, "") if isinstance(holder, str) else ("session", holder.id, holder.lease)


def known(holders: tuple[Holder, ...]) -> list[str]:
    """What is live as a worker tells of it when it knows no more than the ids; `id@start` tells more, and so does
    `id@start@client_fields`."""
    found = []
    for kind, each, lease in map(kind_id_lease, holders):
        id_, at, client_fields = f"{each}@@".split("@", 3)[:3]
        found += [kind, id_, lease, at, "", client_fields]
    return found


class LuaGrid:
    """Workers, sessions and counters in Redis, moved by the scripts only."""

    def __init__(self, client: Redis, prefix: str = "") -> None:
        self.client = client
        self.prefix = prefix
        self.counters = [f"{prefix}cluster:active_connections", f"{prefix}cluster:lifetime_connections"]

    def eval(self, script: str, keys: list[str], *arguments: Any) -> Any:
        """A script by its file's name."""
        return self.client.eval(source_of(script), len(keys), *keys, *map(str, arguments))

    # The scripts

    def select(
        self,
        holder: Holder = "",
        *,
        now: float = NOW,
        browser: str = "chromium",
        max_active: int = 5,
        max_lifetime: int = 50,
        lease: float = 10,
        exclude: str = "",
        version: str = "",
        only: str = "",
        history_max: int = 10_000,
        command_ttl: float = 60,
        pool: str = "",
        extra: tuple[str, ...] = (),
    ) -> str | None:
        """The id of the chosen worker, or None."""
        rule = (browser, max_active, max_lifetime, now, STALE_S, self.prefix)
        kind, id_, _ = kind_id_lease(holder)
        wish = (id_, lease, "client:1", exclude, version, only, RECORD_TTL_S, history_max)
        wish += (command_ttl, pool, kind, *extra)
        endpoint = self.eval("selector", self.counters, *rule, *wish)
        return None if endpoint is None else str(endpoint).rpartition("/")[2].partition(".")[0]

    def register(
        self,
        worker: str = "w1",
        *,
        now: float = NOW,
        browser: str = "chromium",
        lifetime: int = 0,
        sessions: tuple[Holder, ...] = (),
        slots: int | None = 5,
        version: str = "1.65.1",
        status: str = "available",
        ttl: float = KEY_TTL_S,
        pool: str = "",
        host: str = "",
    ) -> int:
        """Returns the active counter."""
        fields = ["wsEndpoint", f"ws://host:8080/playwright/{browser}/{worker}.secret", "status", status]
        fields += ["playwrightVersion", version] + ([] if slots is None else ["slots", str(slots)])
        fields += (["pool", pool] if pool else []) + (["host", host] if host else [])
        head = (browser, worker, now, lifetime, ttl, self.prefix, RECORD_TTL_S, len(sessions), *known(sessions))
        return int(self.eval("register", self.counters, *head, *fields))

    def heartbeat(
        self,
        worker: str = "w1",
        sessions: tuple[Holder, ...] = (),
        *,
        now: float = NOW,
        browser: str = "chromium",
        status: str = "available",
        rss: str = "",
        lifetime: str = "",
    ) -> tuple[int, str, int]:
        """(known, command, repaired)"""
        found, command, repaired, *_ = self.beat(
            worker, sessions, now=now, browser=browser, status=status, rss=rss, lifetime=lifetime
        )
        return found, command, repaired

    def beat(
        self,
        worker: str = "w1",
        sessions: tuple[Holder, ...] = (),
        *,
        now: float = NOW,
        browser: str = "chromium",
        status: str = "available",
        rss: str = "",
        lifetime: str = "",
        fields: tuple[str, ...] = (),
    ) -> list[Any]:
        """All that a heartbeat returns: known, command, repaired, used up, awaited session, its seconds …"""
        head = (browser, worker, now, status, KEY_TTL_S, STALE_S, self.prefix, RECORD_TTL_S, HISTORY_TTL_S)
        return list(
            self.eval("heartbeat", self.counters, *head, rss, lifetime, len(sessions), *known(sessions), *fields)
        )

    def start(
        self,
        holder: Holder,
        *,
        now: float = NOW,
        worker: str = "",
        browser: str = "chromium",
        client: str = "",
        client_fields: str = "",
    ) -> int:
        own = (browser, worker) if worker else ("", "")
        kind, id_, lease = kind_id_lease(holder)
        what = (id_, now, self.prefix, RECORD_TTL_S, *own, client, client_fields, kind, lease)
        return int(self.eval("start_session", self.counters[:1], *what))

    def release(
        self,
        holder: Holder,
        status: str = "completed",
        reason: str = "",
        *,
        now: float = NOW,
        worker: str = "",
        started: float | None = None,
        client: str = "",
        client_fields: str = "",
        kind: str = "",
    ) -> int:
        own = ("chromium", worker) if worker else ("", "")
        held_as, id_, lease = kind_id_lease(holder)
        tail = (
            now,
            self.prefix,
            HISTORY_TTL_S,
            10,
            20,
            *own,
            "" if started is None else started,
            client,
            "",
            client_fields,
            kind,
            held_as,
            lease,
        )
        return int(self.eval("release", self.counters[:1], id_, status, reason, *tail))

    def rollback(self, holder: Holder) -> int:
        kind, id_, _ = kind_id_lease(holder)
        return int(self.eval("rollback", self.counters, id_, self.prefix, kind))

    def drain(self, worker: str = "w1", browser: str = "chromium") -> int:
        return int(self.eval("set_fields", [f"{self.prefix}worker:{browser}:{worker}"], "", "", "status", "draining"))

    def unregister(self, worker: str = "w1", reason: str = "worker stopped", *, now: float = NOW) -> int:
        """As the worker itself does. Returns how many sessions failed."""
        reaped = self.reap(now=now, only=f"chromium:{worker}", reason=reason, mode="names")
        return len(reaped[0][1]) if reaped else 0

    def reap(
        self,
        *,
        now: float = NOW,
        only: str = "",
        reason: str = "",
        owner: str = "",
        mode: str = "",
        kind: str = "",
        history_max: int = 10_000,
    ) -> Any:
        head = (now, STALE_S, self.prefix, HISTORY_TTL_S, reason, only, owner, 60, mode, kind, history_max)
        return self.eval("reaper", self.counters, *head)

    # What Redis says

    def get(self, *command: Any) -> Any:
        """A command; its first argument after the name is a key, which gets the prefix."""
        return self.client.execute_command(command[0], f"{self.prefix}{command[1]}", *command[2:])

    def hash(self, key: str) -> dict[str, str]:
        return dict(self.get("HGETALL", key))

    def active(self, worker: str = "w1", browser: str = "chromium") -> int | None:
        value = self.get("HGET", "cluster:active_connections", f"{browser}:{worker}")
        return None if value is None else int(value)

    def lifetime(self, worker: str = "w1", browser: str = "chromium") -> int | None:
        value = self.get("HGET", "cluster:lifetime_connections", f"{browser}:{worker}")
        return None if value is None else int(value)

    def set_counters(self, worker: str, active: int, lifetime: int, browser: str = "chromium") -> None:
        self.get("HSET", "cluster:active_connections", f"{browser}:{worker}", active)
        self.get("HSET", "cluster:lifetime_connections", f"{browser}:{worker}", lifetime)

    def session(self, session: str) -> dict[str, str]:
        return self.hash(f"session:{session}")

    def record(self, holder: Holder) -> dict[str, str]:
        kind, id_, _ = kind_id_lease(holder)
        return self.hash(f"{kind}:{id_}")

    def status(self, holder: Holder) -> str | None:
        return self.record(holder).get("status")

    def live(self, worker: str = "w1", browser: str = "chromium") -> list[str]:
        """Sessions that have slots of their own."""
        return list(self.get("ZRANGE", f"sessions:live:{browser}:{worker}", 0, -1))

    def leases(self, worker: str = "w1", browser: str = "chromium") -> list[str]:
        return list(self.get("ZRANGE", f"leases:live:{browser}:{worker}", 0, -1))

    def leased(self, worker: str = "w1", browser: str = "chromium") -> dict[str, str]:
        """Sessions that use leases' slots, with these leases."""
        return self.hash(f"sessions:leased:{browser}:{worker}")

    def outcomes(self, kind: str = "session") -> dict[str, int]:
        return {name: int(value) for name, value in self.hash(f"{kind}s:outcomes").items() if int(value)}

    def taken_back(self, kind: str = "session") -> dict[str, int]:
        return {name: int(value) for name, value in self.hash(f"{kind}s:taken_back").items()}

    def repairs(self) -> int:
        return int(self.get("GET", "cluster:counter_repairs") or 0)


# The rule by which lua/selector.lua chooses, in Python, on all that there is


@dataclass(frozen=True)
class Wish:
    """What a selection asks for."""

    browser: str = "chromium"
    max_active: int = 3
    max_lifetime: int = 6
    pool: str = ""
    version: str = ""
    exclude: str = ""
    only: str = ""
    prefer: str = ""
    """The host whose workers come first."""
    avoid: str = ""
    """Hosts whose workers may not be chosen."""

    def arguments(self, now: float, prefix: str) -> tuple[str, ...]:
        """Those of the script, without a session."""
        head = (self.browser, self.max_active, self.max_lifetime, now, STALE_S, prefix)
        told = (*head, "", "", "", self.exclude, self.version, self.only, "", "", "", self.pool)
        hosts = {"prefer:host": self.prefer, "avoid:hosts": self.avoid}
        pairs = [text for name, value in hosts.items() if value for text in (name, value)]
        return tuple(map(str, (*told, "session", *pairs)))


@dataclass(frozen=True)
class Seen:
    """What Redis has of one worker."""

    fields: dict[str, str]
    active: int
    lifetime: int
    has_ttl: bool

    @property
    def version(self) -> str:
        return ".".join(self.fields.get("playwrightVersion", "").split(".")[:2])

    @property
    def host(self) -> str:
        return self.fields.get("host", "")

    def serves(self, now: float, status: str = "available") -> bool:
        beat = self.fields.get("lastHeartbeat")
        return self.fields.get("status") == status and beat is not None and int(now) - int(beat) <= STALE_S

    def is_in(self, wish: Wish, name: str) -> bool:
        browser = name.partition(":")[0]
        return browser == wish.browser and wish.pool in ("", self.fields.get("pool", browser))

    def may_be_chosen(self, wish: Wish, name: str, now: float) -> bool:
        worker_id, slots = name.partition(":")[2], int(self.fields.get("slots", 2**31))
        return (
            self.is_in(wish, name)
            and self.serves(now)
            and self.has_ttl
            and "wsEndpoint" in self.fields
            and self.active < min(slots, wish.max_active)
            and self.lifetime < wish.max_lifetime
            and (not wish.version or not self.version or self.version == wish.version)
            and worker_id not in wish.exclude.split(",")
            and wish.only in ("", worker_id)
            and not (self.host and self.host in wish.avoid.split(","))
        )


def all_seen(grid: LuaGrid) -> dict[str, Seen]:
    """All workers that have a counter, by type and id."""
    active, lifetime = (grid.client.hgetall(name) for name in grid.counters)
    names = sorted({*active, *lifetime})
    with grid.client.pipeline(transaction=False) as pipeline:
        for name in names:
            pipeline.hgetall(f"{grid.prefix}worker:{name}")
            pipeline.pttl(f"{grid.prefix}worker:{name}")
        replies = pipeline.execute()
    return {
        name: Seen(fields, int(active.get(name, 0)), int(lifetime.get(name, 0)), ttl >= 0)
        for name, fields, ttl in zip(names, replies[::2], replies[1::2], strict=True)
    }


def plain_choice(seen: dict[str, Seen], wish: Wish, now: float) -> str | None:
    """The worker, as type and id, that a selection has to choose; None if there is none."""
    serving = sum(each.is_in(wish, name) and each.serves(now) for name, each in seen.items())
    border = wish.max_lifetime - max(1, wish.max_lifetime // max(1, serving))

    def rank(name: str) -> tuple[bool, bool, int, int, str]:
        is_elsewhere = bool(wish.prefer) and seen[name].host != wish.prefer
        return is_elsewhere, seen[name].lifetime >= border, -seen[name].lifetime, seen[name].active, name

    return min((name for name, each in seen.items() if each.may_be_chosen(wish, name, now)), key=rank, default=None)


def plain_spare(seen: dict[str, Seen], browser: str, pool: str, now: float, host: str = "") -> str | None:
    """The spare that takes the place of a worker of this pool and host."""
    wish = Wish(browser, pool=pool)
    spares = (name for name, each in seen.items() if each.is_in(wish, name) and each.serves(now, "spare"))
    return min((name for name in spares if seen[name].host == host), default=None)
