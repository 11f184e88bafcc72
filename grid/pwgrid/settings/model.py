"""The model of all settings: types, bounds, defaults, which processes each concerns, and the rules between them."""

import json
from collections.abc import Collection, Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from enum import StrEnum
from ipaddress import IPv6Address, ip_address
from typing import Annotated, Any, Final, Literal, NamedTuple, Self, TypeVar, get_args
from urllib.parse import urlsplit

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import InitErrorDetails

from pwgrid.common.grid_url import GridUrl
from pwgrid.common.redis_url import HASH_TAG, is_cluster
from pwgrid.common.types import BROWSER_TYPES, BrowserType, Isolation
from pwgrid.settings import value_types
from pwgrid.settings.allowed_browser_args import ALLOWED_BROWSER_ARGS
from pwgrid.settings.attribute_docstrings import attribute_docstrings
from pwgrid.settings.own_playwright import own_minor
from pwgrid.settings.pools import PoolSettings, PoolTable

T = TypeVar("T")

Part = Literal["fixed", "pool", "master", "proxy", "worker", "chromium", "firefox", "webkit"]
"""What a setting concerns: a kind of process, the browsers of one type, or a pool's size; "fixed": it cannot change."""

DEFAULT: Final = "default"
"""The source of a value that nobody has set."""

SECTIONS: Final = {
    "listener": "Where clients connect, and who may.",
    "workers": "How many browsers of which type, and what each of them is for. Other pools: [[pools]], at the end.",
    "queue": "What happens to clients while all slots are taken.",
    "labels": "Which pool serves a label key, how long unused leases are kept, and what the log has of runs.",
    "sessions": "Limits of single sessions.",
    "browsers": "How browsers are started.",
    "redis": "The registry. Without redis_url and redis_host the grid runs a private Redis of its own.",
    "lifecycle": "Heartbeats, drains, recycling.",
    "memory": "Limits of memory, for each worker and for the host.",
    "canary": "Regular proof that browsers still work.",
    "runtime": "Files and logs.",
}

WORKERS: Final = tuple(f"{browser_type}_workers" for browser_type in BROWSER_TYPES)
"""The settings that are the short form of three pools."""

POOLS: Final = "pools"
"""The setting with all other pools. Its section is the tables [[pools]]."""

NO_POOL: Final = f"{', '.join(WORKERS)}: one of them must be at least 1"
"""Why a configuration without any worker is refused."""

LAUNCHES: Final = 1000
"""After so many own browsers a worker is recycled, where nothing else is set: it is the lifetime of one whose sessions
all have their own."""

_PREFIXED: Final = frozenset(
    {"host", "port", "prefer", "token", "token_file", "tls_cert", "tls_key", "tls_ca", "runtime_dir", POOLS}
)
"""These names are too general for environment variables without our prefix."""

_FLAGS: Final = {"max_concurrent_sessions": "--slots", "worker_select_timeout": "--queue-timeout"}
"""Flags that are not made from the name of the setting."""

_VARIABLES: Final = {POOLS: "pool_config"}
"""Environment variables that are not named like their setting."""

PREFIX: Final = "PWGRID_"

OTHER_NAMES: Final[Mapping[str, str]] = {"drain_timeout": "worker_drain_timeout_seconds"}
"""Names that other hubs have for settings, by ours: files and environments may use them."""

NAMES_A_REDIS: Final = ("REDIS_URL", "REDIS_HOST")
APPLICATION_REDIS: Final = (*NAMES_A_REDIS, "REDIS_PORT")
"""Variables that other programs read as well: the shell that starts the grid may have them for an application."""


def environment_names(name: str) -> list[str]:
    """The environment variables that set this setting; the first that exists counts."""
    names = [name, *(table[name] for table in (_VARIABLES, OTHER_NAMES) if name in table)]
    return [f"{prefix}{each.upper()}" for each in names for prefix in ([PREFIX] if each in _PREFIXED else [PREFIX, ""])]


def setting(default: T, section: str, *concerns: Part) -> T:
    """A field of the model. `concerns` are the parts of a running grid that must be told when it changes."""
    made: T = Field(default, json_schema_extra={"section": section, "concerns": [*concerns]})
    return made


@dataclass(frozen=True, slots=True)
class Sources:
    """The context of a validation, for the rules between settings: `of` has the source of each value."""

    of: Mapping[str, str] = field(default_factory=lambda: dict.fromkeys(SETTINGS, DEFAULT))
    unusable: Set[str] = frozenset()
    """Settings with wrong values: no rule is applied to them."""
    has_tokens: bool = False
    """Whether clients may have tokens that `pwgrid token` made."""


class Settings(BaseModel, frozen=True):
    """Every setting of a grid, made by `pwgrid.settings.load` from file, environment and flags."""

    model_config = ConfigDict(
        extra="forbid",
        allow_inf_nan=False,
        hide_input_in_errors=True,
    )

    host: value_types.Host = setting("127.0.0.1", "listener", "fixed")
    """Address to listen on."""
    port: Annotated[int, value_types.Bounds(0, 65535)] = setting(8080, "listener", "fixed")
    """Port to listen on; 0 picks a free one."""
    allow_public: bool = setting(False, "listener", "proxy")
    """Allows a listener that other hosts can reach without a token."""
    token: Annotated[value_types.Secret, value_types.VISIBLE] = setting(value_types.Secret(""), "listener", "proxy")
    """Secret that clients must present."""
    token_file: value_types.FilePath = setting("", "listener", "proxy")
    """File with the token; only the grid's user should be able to read it."""
    allowed_origins: tuple[value_types.Origin, ...] = setting((), "listener", "proxy")
    """Web pages of these origins may drive the grid."""
    allowed_hosts: tuple[value_types.HostPattern, ...] = setting((), "listener", "proxy")
    """Names under which the grid answers, like *.example.org; empty: on a loopback address loopback names, else any."""
    advertised_url: value_types.AdvertisedUrl = setting(value_types.SecretUrl(""), "listener", "fixed")
    """URL of the grid for its clients, like https://grid.example.org/grid behind a reverse proxy."""
    advertised_host: value_types.HostOrNone = setting("", "listener", "fixed")
    """Host in the endpoints that clients get, and for other grids on the same Redis: they are one then. Empty: host."""
    tls_cert: value_types.FilePath = setting("", "listener", "fixed")
    """File with a certificate (PEM), and those of its authorities behind it: the port speaks TLS then."""
    tls_key: value_types.FilePath = setting("", "listener", "fixed")
    """File with the certificate's private key (PEM, without a password)."""
    tls_kernel: Literal["auto", "off"] = setting("auto", "listener", "fixed")
    """auto: TLS goes on in the kernel where it can, so that no killed process ends it; perhaps by TLS 1.2 alone."""
    tls_ca: value_types.FilePath = setting("", "listener", "fixed")
    """File with the authorities (PEM) that certificates of other hosts are checked by; empty: those of the system."""
    trusted_proxies: tuple[value_types.TrustedProxy, ...] = setting((), "listener", "proxy")
    """Reverse proxies whose X-Forwarded-* or Forwarded headers count: addresses, networks, unix for a Unix socket."""

    chromium_workers: value_types.Workers = setting(2, "workers", "pool")
    """Chromium workers."""
    firefox_workers: value_types.Workers = setting(0, "workers", "pool")
    """Firefox workers."""
    webkit_workers: value_types.Workers = setting(0, "workers", "pool")
    """WebKit workers."""
    default_browser_type: BrowserType = setting("chromium", "workers", "proxy")
    """Browser for clients that name none."""
    max_concurrent_sessions: value_types.Slots = setting(5, "workers", "proxy", "worker")
    """Slots of each worker."""
    max_lifetime_sessions: value_types.Lifetime = setting(50, "workers", "proxy", "worker")
    """Sessions in a shared browser until a worker is recycled; with isolation browser own browsers, by default 1000."""
    max_launches: value_types.Count = setting(LAUNCHES, "workers", "master")
    """Own browsers of sessions beside a shared one until a worker is recycled; 0: any number."""
    isolation: Isolation = setting(Isolation.CONTEXT, "workers", "worker")
    """What clients get that ask for nothing: a context of a shared browser, an own browser, or an own worker."""
    warm_browsers: value_types.Warm = setting(2, "workers", "worker")
    """Own browsers that each worker keeps warm, in pools with isolation browser."""
    max_own_browsers: value_types.OwnBrowsers = setting(0, "workers", "worker")
    """Own browsers that sessions may have in one worker, the warm ones not counted; 0: as many as it has slots."""
    on_demand: bool = setting(True, "workers", "pool")
    """Clients of an installed Playwright version that no pool names get a pool, which starts when the first comes."""
    on_demand_idle: Annotated[float, value_types.seconds(5)] = setting(600.0, "workers", "master")
    """A pool that starts on demand ends when nobody has used it for this time."""

    worker_select_timeout: value_types.Wait = setting(5.0, "queue", "proxy")
    """How long a client waits for a slot."""
    max_queue: value_types.Count = setting(1000, "queue", "proxy")
    """Clients that may wait at once; more are refused."""
    borrow_queue_timeout: value_types.Wait = setting(30.0, "queue", "proxy")
    """How long a client that borrows waits for a slot."""
    borrow_queue_max: value_types.Count = setting(100, "queue", "proxy")
    """Borrowing clients that may wait for one pool at once."""
    borrow_queue_max_per_run: value_types.Count = setting(5, "queue", "proxy")
    """Borrowing clients of the same run that may wait for one pool at once."""
    max_sessions_per_run: value_types.Count = setting(0, "queue", "proxy")
    """Sessions and leases that a run may have at once; further clients wait. 0: any number."""
    max_sessions_per_label: value_types.Count = setting(0, "queue", "proxy")
    """Sessions and leases that a label key may have at once; further clients wait. 0: any number."""
    max_sessions_per_token: value_types.Count = setting(0, "queue", "proxy")
    """Sessions and leases at once of a token that has no limit of its own; further clients wait. 0: any number."""

    select_locality: Literal["own", "any"] = setting("own", "queue", "proxy")
    """Whose workers a client gets where several hosts are one grid. own: its own host's first; any: of all alike."""

    borrow_trailing_fallback: bool = setting(True, "labels", "proxy")
    """If no pool has the label key that is asked for, drop its last segments until one has what is left."""
    borrow_prefix_expand: bool = setting(True, "labels", "proxy")
    """If that finds none, take the shortest label key that begins with the one that is asked for."""
    borrow_wildcards: bool = setting(False, "labels", "proxy")
    """In a label key that is asked for, a segment * matches any segment."""
    borrow_reconnect_grace: value_types.Wait = setting(0.0, "labels", "worker")
    """How long a lease is kept after its client has disconnected, so that it may connect again."""
    log_run_names: bool = setting(True, "labels", "proxy", "worker")
    """The log, and traces, have the names that clients give to their runs."""

    compression: Literal["auto", "on", "off"] = setting("auto", "sessions", "proxy")
    """Compression of WebSocket messages; auto: only for clients on other hosts."""
    session_ping_timeout: value_types.Limit = setting(60.0, "sessions", "proxy", "worker")
    """A client that answers nothing for this time is taken for gone."""
    session_idle_timeout: value_types.Limit = setting(0.0, "sessions", "worker")
    """A session is ended when its client sends nothing for this time, even while it waits for an answer."""
    session_max_duration: value_types.Limit = setting(0.0, "sessions", "worker")
    """A session is ended after this time."""
    keep_max: value_types.Wait = setting(600.0, "sessions", "proxy")
    """Longest time that a CDP client's browser is kept when nobody is connected (?keep=); 0: none is kept."""
    profiles: Literal["auto", "on", "off"] = setting("auto", "sessions", "proxy")
    """CDP clients may ask for a named profile (?profile=); auto: if the grid asks for a token."""
    profile_max_mib: Annotated[int, value_types.Bounds(1, 4096)] = setting(256, "sessions", "worker")
    """A profile that has become larger than this, without caches, is not saved."""
    profiles_max: Annotated[int, value_types.Bounds(1, 100_000)] = setting(100, "sessions", "proxy", "worker")
    """Profiles that each token may have."""
    profiles_dir: value_types.AbsolutePath = setting("", "sessions", "fixed")
    """Where profiles are kept; empty: $STATE_DIRECTORY, else pwgrid/profiles in /var/lib (root) or ~/.local/state."""
    session_max_buffered_mib: Annotated[int, value_types.Bounds(1, 4096)] = setting(64, "sessions", "worker")
    """A session is ended when more than this, without the last message, waits for its client to read it."""
    session_files_ttl: value_types.Wait = setting(0.0, "sessions", "proxy", "worker")
    """How long the files of a session of a CDP client (its downloads) are kept after its end; 0: they end with it."""
    session_files_max_mib: Annotated[int, value_types.Bounds(1, 10_000_000)] = setting(1024, "sessions", "proxy")
    """How much is kept of all sessions that have ended; the oldest files are removed first."""
    live_view: bool = setting(True, "sessions", "proxy", "worker")
    """Operators may look at the pages of live sessions; a session's record says that somebody did."""
    session_history_ttl: Annotated[float, value_types.seconds(1)] = setting(3600.0, "sessions", "proxy", "worker")
    """How long the record of an ended session is kept."""
    session_history_max: Annotated[int, value_types.Bounds(0, 10_000_000)] = setting(10000, "sessions", "proxy")
    """How many sessions lists have, and how many leases: the newest ones, and all that live."""

    headless: bool = setting(True, "browsers", "worker")
    """Browsers run without a display."""
    prefer: Literal["auto", "playwright", "system"] = setting("auto", "browsers", "worker")
    """Which browsers come first; auto: Playwright's own if it is installed, else the system's."""
    chromium_executable: value_types.AbsolutePath = setting("", "browsers", "chromium")
    """Path of Chromium; empty: look for one."""
    firefox_executable: value_types.AbsolutePath = setting("", "browsers", "firefox")
    """Path of Firefox; empty: look for one."""
    webkit_executable: value_types.AbsolutePath = setting("", "browsers", "webkit")
    """Path of WebKit; empty: look for one."""
    chromium_sandbox: bool = setting(False, "browsers", "proxy", "chromium")
    """Chromium's sandbox; it cannot run as root."""
    chromium_args: tuple[value_types.Switch, ...] = setting((), "browsers", "chromium")
    """More command line switches for Chromium."""
    client_guard: Literal["compatible", "strict", "off"] = setting("compatible", "browsers", "worker")
    """Which messages are refused. compatible: what no official client sends; strict: also what harms other sessions."""
    confine: Literal["auto", "on", "off"] = setting("auto", "browsers", "worker")
    """The kernel keeps browsers from the host's files (Landlock). auto: if it can; on: else the grid does not start."""
    processor_shares: Literal["auto", "off"] = setting("auto", "browsers", "master")
    """Who takes more than its share of the processors gets a lower priority. auto: where the kernel does not divide."""
    browser_read_paths: tuple[value_types.AbsolutePath, ...] = setting((), "browsers", "worker")
    """Files and directories that confined browsers may read beside those that they need."""
    block_file_urls: Literal["auto", "on", "off"] = setting("auto", "browsers", "worker")
    """Pages cannot go to file:// URLs. auto: where the kernel does not keep browsers from the host's files."""
    browser_env: tuple[value_types.Variable, ...] = setting((), "browsers", "worker")
    """Names of environment variables that browsers get, beside the few that they need."""
    launch_options: Literal["heed", "ignore"] = setting("heed", "browsers", "proxy")
    """Launch options of clients. heed: who asks for others than its pool's gets an own browser; ignore: only noted."""
    allowed_browser_args: tuple[value_types.SwitchName, ...] = setting(ALLOWED_BROWSER_ARGS, "browsers", "proxy")
    """Switches that clients may give in args, by name; * at the end for all that begin so, * alone for any."""
    drivers_dir: value_types.AbsolutePath = setting("", "browsers", "fixed")
    """Drivers of other versions of Playwright; empty: ~/.local/state/pwgrid/drivers and /var/lib/pwgrid/drivers."""
    launch_timeout: value_types.Interval = setting(60.0, "browsers", "proxy", "worker")
    """A browser that is not ready after this time is given up."""

    redis_url: value_types.RedisAddress = setting(value_types.RedisUrl(""), "redis", "fixed")
    """redis://, rediss://, unix://, redis+sentinel:// or redis+cluster:// URL of the Redis to use."""
    redis_host: value_types.HostOrNone = setting("", "redis", "fixed")
    """Host of the Redis to use, where redis_url is not set."""
    redis_port: Annotated[int, value_types.Bounds(1, 65535)] = setting(6379, "redis", "fixed")
    """Port at redis_host."""
    redis_key_ttl: value_types.Interval = setting(30.0, "redis", "fixed")
    """A worker's registration vanishes when it is not renewed for this time."""
    redis_retry_attempts: Annotated[int, value_types.Bounds(1, 1_000_000)] = setting(5, "redis", "fixed")
    """How often the first connection is tried."""
    redis_retry_delay: value_types.Wait = setting(3.0, "redis", "fixed")
    """Pause between attempts at the first connection."""
    redis_key_prefix: Annotated[str, value_types.VISIBLE] = setting("", "redis", "fixed")
    """Prefix of every key: another one for each grid on a shared Redis, with a hash tag like {pwgrid}: on a cluster."""
    redis_timeout: value_types.Interval = setting(1.0, "redis", "fixed")
    """A call to Redis that takes longer has failed."""

    heartbeat_interval: value_types.Interval = setting(5.0, "lifecycle", "worker")
    """How often a worker renews its registration."""
    shutdown_command_ttl: value_types.Interval = setting(60.0, "lifecycle", "proxy")
    """How long a drain command waits in Redis for its worker."""
    drain_timeout: value_types.Wait = setting(30.0, "lifecycle", "proxy", "worker")
    """How long a drain waits for live sessions before it closes them, unless it is a planned recycle."""
    recycle_drain_timeout: value_types.Wait = setting(3600.0, "lifecycle", "worker")
    """The same for drains that the grid plans itself: lifetime, memory, age, configuration, upgrade, scale."""
    reaper_run_interval: value_types.Interval = setting(300.0, "lifecycle", "proxy", "worker")
    """How often the grid looks for stale registrations."""
    stale_threshold: value_types.Interval = setting(30.0, "lifecycle", "proxy", "worker")
    """A heartbeat older than this is stale."""
    worker_lost_threshold: value_types.Interval = setting(30.0, "lifecycle", "proxy", "worker")
    """A worker or proxy without a master for this time ends; one that is silent so long, or a browser, is replaced."""
    detach_grace: value_types.Wait = setting(5.0, "lifecycle", "master")
    """How long a grid that its master left (SIGUSR1) admits clients; without a new master it then drains and ends."""
    max_worker_age: value_types.Limit = setting(0.0, "lifecycle", "master")
    """A worker older than this is recycled."""
    max_surge: Annotated[int, value_types.Bounds(1, value_types.MAX_WORKERS)] = setting(8, "lifecycle", "master")
    """Workers beyond the wanted number that a pool may start so that replacements are ready in time."""

    memory_check_interval: Annotated[float, value_types.seconds(0.1)] = setting(5.0, "memory", "master")
    """How often the memory of all workers is measured."""
    memory_metric: Literal["pss", "rss", "uss"] = setting("pss", "memory", "master")
    """How memory is counted: pss divides shared pages among their users, rss counts them in full, uss not at all."""
    max_worker_memory_mib: value_types.Mib = setting(0, "memory", "master")
    """A worker above this, by memory_metric, is recycled."""
    max_worker_memory_hard_mib: value_types.Mib = setting(0, "memory", "master")
    """A worker above this, by memory_metric, is killed."""
    min_host_available_mib: value_types.Mib = setting(256, "memory", "master")
    """Below this much available memory on the host, nothing is started or admitted."""

    canary_interval: value_types.Limit = setting(30.0, "canary", "worker")
    """How often a worker proves that its browser opens pages; 0: only when there is a sign that it does not."""
    canary_timeout: value_types.Interval = setting(10.0, "canary", "worker")
    """A proof that takes longer has failed. On a sign it has less time: worker_lost_threshold bounds two in a row."""

    runtime_dir: value_types.RuntimeDir = setting("", "runtime", "fixed")
    """Base of the runtime directory; empty: $RUNTIME_DIRECTORY or <temp dir>/pwgrid-<uid>."""
    log_level: value_types.LogLevel = setting("info", "runtime", "proxy", "worker")
    """Events below this are not logged."""
    log_format: Literal["text", "json"] = setting("text", "runtime", "proxy", "worker")
    """Log lines: text for people, json for machines."""
    log_file: value_types.AbsolutePath = setting("", "runtime", "fixed")
    """File to which log lines are appended; empty: stderr."""

    pools: tuple[PoolTable, ...] = setting((), "pools", "pool")
    """Other pools: [[pools]] in the file, AppA:Chromium:Staging=3,AppB:Firefox:UAT=1 in the environment."""

    def workers_wanted(self) -> dict[BrowserType, int]:
        """How many workers of each browser type all pools together should have, also of those types with none. Pools
        that start on demand do not count."""
        wanted: dict[BrowserType, int] = dict.fromkeys(BROWSER_TYPES, 0)
        for pool in self.pools_wanted().values():
            wanted[pool.browser_type] += 0 if pool.on_demand else pool.workers
        return wanted

    def pools_wanted(self) -> dict[str, PoolSettings]:
        """All pools by name: first the short forms (those with workers, or all if there are no [[pools]]), then
        [[pools]] in the order of the configuration."""
        short = [self.short_form(browser_type) for browser_type in BROWSER_TYPES]
        pools = [each for each in short if each.workers or not self.pools]
        return {each.name: each for each in [*pools, *map(self.resolved, self.pools)]}

    def short_form(self, browser_type: BrowserType) -> PoolSettings:
        """The pool that CHROMIUM_WORKERS or the like stands for; its name is the browser type."""
        return self._as_isolated(self._by_global_settings(browser_type))

    def resolved(self, table: PoolTable) -> PoolSettings:
        """The pool of a table: for keys that the table does not have, the global settings count."""
        default = self._by_global_settings(table.browser_type)
        given = {name: value for name, value in table if name != "browser" and value is not None}
        given["executable"] = table.executable or ("" if table.channel else default.executable)
        pool = replace(default, **given, is_short_form=False)
        return self._as_isolated(pool, has_lifetime=table.lifetime is not None)

    def _by_global_settings(self, browser_type: BrowserType) -> PoolSettings:
        values = {key: getattr(self, name) for key, name in _names_of(browser_type).items()}
        workers = getattr(self, f"{browser_type}_workers")
        return PoolSettings(browser_type, browser_type, workers, playwright=own_minor(), **values)

    def _as_isolated(self, pool: PoolSettings, *, has_lifetime: bool = False) -> PoolSettings:
        """The pool with what follows from its isolation. `has_lifetime`: its own table says one."""
        if pool.isolation is Isolation.PROCESS:
            return replace(pool, slots=1, lifetime=1, warm=0)
        if pool.isolation is Isolation.BROWSER:
            is_said = has_lifetime or "max_lifetime_sessions" in self.model_fields_set
            return pool if is_said else replace(pool, lifetime=LAUNCHES)
        return replace(pool, warm=0)

    def pools_with_workers(self) -> list[PoolSettings]:
        """The pools that should have a worker, in the order of `pools_wanted`."""
        return [pool for pool in self.pools_wanted().values() if pool.workers > 0]

    def of_pool(self, pool: PoolSettings) -> Self:
        """These settings with the values of a pool in place of the global ones."""
        values = {name: getattr(pool, key) for key, name in _names_of(pool.browser_type).items()}
        return self.model_copy(update=values)

    def advertised(self) -> GridUrl | None:
        """What ADVERTISED_URL says."""
        text = self.advertised_url.get_secret_value()
        return GridUrl.parse(text) if text else None

    def local_url(self) -> GridUrl:
        """The grid's URL for clients on this host."""
        return GridUrl(bool(self.tls_cert), reachable(self.host), self.port)

    def base_url(self) -> str:
        """The grid's ws or wss URL for clients, without a slash at its end: the advertised one, perhaps with a
        password; else with the advertised host, or the one it listens on."""
        local = self.local_url()
        return (self.advertised() or replace(local, host=self.advertised_host or local.host)).web_socket

    def host_name(self) -> str:
        """The name of this host where it may be one of several, which name the same Redis: host and port, at which the
        others reach it. Empty where it stands alone."""
        if not (self.redis_url and self.advertised_host):
            return ""
        return GridUrl(False, self.advertised_host, self.port).address

    def client_url(self) -> str:
        """The same as clients have to write it: below a path a reverse proxy may know only what has the slash."""
        url = self.base_url()
        return f"{url}/" if urlsplit(url).path else url

    def longest_wait_s(self) -> float:
        """How long a client may wait for a slot, whatever it asks for: in line, for a pool that starts on demand, and
        for a browser of its own."""
        return max(self.worker_select_timeout, self.borrow_queue_timeout) + 2 * self.launch_timeout

    def executable(self, browser_type: BrowserType) -> str:
        """The executable that was set for this browser type; empty: one is to be looked for."""
        found: str = getattr(self, f"{browser_type}_executable")
        return found

    def plain(self) -> dict[str, object]:
        """All values by name, secrets in clear: to compare and to fingerprint, never to show."""
        return {
            name: value.get_secret_value() if isinstance(value, value_types.Secret) else value for name, value in self
        }

    @field_validator("*", mode="before")
    @classmethod
    def _read(cls, value: Any, info: ValidationInfo) -> Any:
        """Turns texts of environment and flags (`model_validate_strings`) into values, lists of a file into tuples."""
        setting = SETTINGS[str(info.field_name)]
        texts = value if isinstance(value, list) else [value]
        if any(isinstance(each, str) and not each.isprintable() for each in texts):
            raise value_types.rule("must not contain control characters or broken UTF-8")
        if setting.choices:
            chosen = value_types.one_of(setting.choices, value)
            return value_types.member(setting.kind, chosen) if issubclass(setting.kind, StrEnum) else chosen
        if isinstance(value, str) and info.mode != "python":
            return value_types.from_text(setting.kind, value)
        return tuple(value) if isinstance(value, list) else value

    @model_validator(mode="after")
    def _check_relations(self, info: ValidationInfo) -> Self:
        sources = info.context or Sources()
        faults = [
            InitErrorDetails(type=value_types.rule(sentence), loc=(blamed,), input=getattr(self, blamed))
            for names, blamed, sentence in self._broken_rules(sources.of, sources.has_tokens)
            if sources.unusable.isdisjoint(names)
        ]
        if faults:
            raise ValidationError.from_exception_data("Settings", faults)
        return self

    def _broken_rules(self, sources: Mapping[str, str], has_tokens: bool) -> Iterator[tuple[Collection[str], str, str]]:
        """Yields for each broken rule between settings: the settings, the one to blame, and a sentence.

        Of two settings the right one is to blame if only it was set, else the left one. The sentence has the value and
        the source of the other.
        """
        for rule in RELATIONS:
            left, right = getattr(self, rule.left), getattr(self, rule.right)
            rounding = 1e-9 if rule.sign == "<=" else 0  # 3 x 0.1 is 0.30000000000000004, and yet meant to be 0.3
            if 0 in (left, right) or rule.factor * left < right + rounding:  # a limit that is 0 is off
                continue
            if sources[rule.left] != DEFAULT or sources[rule.right] == DEFAULT:
                sentence = f"{rule.product} must be {rule.sign} {rule.right} ({right}, {sources[rule.right]})"
                yield (rule.left, rule.right), rule.left, sentence
            else:
                sentence = f"{rule.product} ({left}, {DEFAULT}) must be {rule.sign} {rule.right}"
                yield (rule.left, rule.right), rule.right, sentence
        yield from self._broken_rules_of_pools(sources)
        if is_cluster(self.redis_url.get_secret_value()) and not HASH_TAG.match(self.redis_key_prefix):
            sentence = (
                f"must have a hash tag, as {{pwgrid}}: has, since redis_url ({sources['redis_url']}) names a Redis"
                " Cluster, which would else spread the keys over its nodes"
            )
            yield ("redis_url", "redis_key_prefix"), "redis_key_prefix", sentence
        if not (is_loopback(self.host) or self.token or has_tokens or self.allow_public):
            sentence = (
                "a listener that other hosts can reach needs a token: set PWGRID_TOKEN,"
                " make one with pwgrid token create,"
                " or say with ALLOW_PUBLIC=true or --allow-public that everyone may use it"
            )
            yield ("host", "token", "allow_public"), "host", sentence
        if bool(self.tls_cert) != bool(self.tls_key):
            missing, given = ("tls_key", "tls_cert") if self.tls_cert else ("tls_cert", "tls_key")
            sentence = f"needs {missing}, too: TLS has both, or neither"
            yield ("tls_cert", "tls_key"), given, sentence
        advertised = self.advertised()
        is_one_of_several = self.redis_url or self.redis_host  # advertised_host is for other hosts then
        if (
            advertised
            and self.advertised_host
            and not is_one_of_several
            and advertised.host != self.advertised_host.lower()
        ):
            other = f"{advertised.host}, {sources['advertised_url']}"
            sentence = f"advertised_url names another host ({other}): make them agree, or leave one of them out"
            yield ("advertised_url", "advertised_host"), "advertised_host", sentence

    def _broken_rules_of_pools(self, sources: Mapping[str, str]) -> Iterator[tuple[Collection[str], str, str]]:
        wanted, name = self.workers_wanted(), "default_browser_type"
        workers = f"{self.default_browser_type}_workers"
        if not any(wanted.values()):
            blamed = next((each for each in (POOLS, *WORKERS) if sources[each] != DEFAULT), WORKERS[0])
            yield (POOLS, *WORKERS), blamed, NO_POOL
        elif not wanted[self.default_browser_type] and sources[name] != DEFAULT:
            sentence = f"{workers} must be at least 1 then (0, {sources[workers]})"
            if self.pools:
                sentence += ", or another pool must have that browser"
            yield (POOLS, *WORKERS, name), name, sentence
        for table in self.pools:
            short = f"{table.name}_workers"
            if short in WORKERS and getattr(self, short):
                sentence = f"pool {table.name} is set by [[pools]], too ({sources[POOLS]}): leave one of them out"
                yield (POOLS, short), short, sentence
            pool = self.resolved(table)
            for key, needs in _broken_by_isolation(table, pool.isolation):
                yield (POOLS, "isolation"), POOLS, f"pool {pool.name}: {key} {needs}"
            if 0 < pool.max_memory_hard_mib <= pool.max_memory_mib:
                sentence = f"pool {pool.name}: max_memory_mib ({pool.max_memory_mib}) must be <"
                sentence += f" max_memory_hard_mib ({pool.max_memory_hard_mib})"
                yield (POOLS, "max_worker_memory_mib", "max_worker_memory_hard_mib"), POOLS, sentence


def _broken_by_isolation(table: PoolTable, isolation: Isolation) -> Iterator[tuple[str, str]]:
    """Yields each key of the table that its pool's isolation does not allow, with what is to be done."""
    if isolation is Isolation.PROCESS:
        for key in ("slots", "lifetime"):
            if getattr(table, key) not in (None, 1):
                yield key, "must be 1 with isolation process: leave it out, or take another isolation"
    if isolation is not Isolation.BROWSER and table.warm:
        yield "warm", f"is for isolation browser, and this pool has {isolation}: leave it out, or change isolation"


def _names_of(browser_type: BrowserType) -> dict[str, str]:
    """By the keys of a pool: the global settings that count where a pool of this browser has no value of its own."""
    args = {"args": "chromium_args"} if browser_type == "chromium" else {}
    return {
        "slots": "max_concurrent_sessions",
        "lifetime": "max_lifetime_sessions",
        "isolation": "isolation",
        "warm": "warm_browsers",
        "max_own_browsers": "max_own_browsers",
        "max_memory_mib": "max_worker_memory_mib",
        "max_memory_hard_mib": "max_worker_memory_hard_mib",
        "executable": f"{browser_type}_executable",
        "headless": "headless",
        **args,
    }


class Relation(NamedTuple):
    """`factor` x left must be less than right (or equal, for "<=")."""

    left: str
    sign: Literal["<", "<="]
    right: str
    factor: int = 1

    @property
    def product(self) -> str:
        """The left side."""
        return self.left if self.factor == 1 else f"{self.factor} x {self.left}"


RELATIONS: Final = (
    Relation("heartbeat_interval", "<=", "redis_key_ttl", factor=3),
    Relation("redis_key_ttl", "<", "shutdown_command_ttl"),
    Relation("redis_key_ttl", "<=", "reaper_run_interval"),
    Relation("heartbeat_interval", "<", "stale_threshold"),
    Relation("stale_threshold", "<", "reaper_run_interval"),
    Relation("redis_timeout", "<", "redis_key_ttl"),
    Relation("max_worker_memory_mib", "<", "max_worker_memory_hard_mib"),
)


def reachable(host: str) -> str:
    """An address at which this host reaches a listener on `host`, which may mean all addresses."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)


def is_loopback(host: str) -> bool:
    """True when only this host can reach a listener on `host`. A name other than localhost counts as public."""
    if host.lower() == "localhost":
        return True
    try:
        address = ip_address(host)
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return (mapped or address).is_loopback


# The fields, as the sources, the files and `config show` need them


class Setting:
    """One field of the model. `kind` is bool, int, float, str, a StrEnum, tuple (of texts), or a kind of Secret."""

    def __init__(self, name: str, info: FieldInfo) -> None:
        extra: Any = info.json_schema_extra
        self.name = name
        self.default = info.default
        self.kind = type(info.default)
        self.section: str = extra["section"]
        self.concerns: tuple[Part, ...] = tuple(extra["concerns"])
        documented = _VARIABLES.get(name, name)
        self.environment = (PREFIX if documented in _PREFIXED else "") + documented.upper()
        self.environments = environment_names(name)
        self.flag = _FLAGS.get(name) or "--" + name.removesuffix("_workers").replace("_", "-")
        self.bounds = next((each for each in info.metadata if isinstance(each, value_types.Bounds)), None)
        self.unit = self.bounds.unit if self.bounds else ""
        self.is_file = value_types.FILE in info.metadata
        self.choices: tuple[str, ...] = get_args(info.annotation) if self.kind is str else ()
        if issubclass(self.kind, StrEnum):
            self.choices = tuple(each.value for each in self.kind)

    @property
    def meaning(self) -> str:
        """The sentence below it in the model."""
        return attribute_docstrings(Settings)[self.name]

    def described(self) -> str:
        """Its meaning with unit and bounds, or with its choices."""
        if self.choices:
            return f"{self.meaning} One of {', '.join(self.choices)}."
        if self.bounds:
            unit = f"{self.unit[0].upper()}{self.unit[1:]}, " if self.unit else ""
            return f"{self.meaning} {unit}{self.bounds}."
        return self.meaning


SETTINGS: Final[Mapping[str, Setting]] = {name: Setting(name, info) for name, info in Settings.model_fields.items()}
"""The fields by name, in the order of the sections."""

LIKE_FLAGS: Final[Mapping[str, str]] = {
    word: name for name, each in SETTINGS.items() if (word := each.flag[2:].replace("-", "_")) != name
}
"""What somebody who knows only the flags calls a setting: `slots`, `queue_timeout`, `chromium`."""


def literal(value: object) -> str:
    """The value as TOML has it; a secret is masked."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple | list):
        return "[" + ", ".join(map(literal, value)) + "]"
    if isinstance(value, PoolTable):
        return literal(value.shown())
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name} = {literal(each)}" for name, each in value.items()) + "}"
    return json.dumps(str(value), ensure_ascii=False) if isinstance(value, str | value_types.Secret) else repr(value)


def bare(value: object) -> str:
    """The value as TOML has it, but without quotes where that cannot be misread."""
    text, plain = literal(value), str(value)
    return plain if text == f'"{plain}"' and plain and plain.isprintable() and " " not in plain else text
