"""The one table of settings: name, type, default, section, unit, meaning, rules. Reads no file and no environment."""

from collections.abc import Callable
from dataclasses import Field, dataclass, field, fields
from typing import Any, Final, TypedDict, TypeVar, Unpack, cast

from pwgrid.common.types import BROWSER_TYPES, BrowserType
from pwgrid.settings import checks

Value = bool | int | float | str | tuple[str, ...]
T = TypeVar("T")

MAX_SECONDS: Final = 2_000_000.0
"""Twenty-three days. Node's timers and TCP_USER_TIMEOUT count milliseconds in 31 bits; a longer timer fires at once."""

MAX_WORKERS: Final = 1000
_SECONDS: Final = "seconds"
_MIB: Final = "MiB"

SECTIONS: Final = {
    "listener": "Where clients connect, and who may.",
    "pools": "How many browsers of which type.",
    "queue": "What happens to clients while all slots are taken.",
    "sessions": "Limits of single sessions.",
    "browsers": "How browsers are started.",
    "redis": "The registry. Without redis_url and redis_host the grid runs a private Redis of its own.",
    "lifecycle": "Heartbeats, drains, recycling.",
    "memory": "Limits of memory, for each worker and for the host.",
    "canary": "Regular proof that browsers still work.",
    "runtime": "Files and logs.",
}


class Rules(TypedDict, total=False):
    """What a value must keep to."""

    minimum: float
    maximum: float
    zero_is_off: bool
    choices: tuple[str, ...]
    check: Callable[[str], str]
    secret: bool


_AN_INTERVAL: Final[Rules] = {"minimum": 0.01, "maximum": MAX_SECONDS}
_A_WAIT: Final[Rules] = {"minimum": 0.0, "maximum": MAX_SECONDS}
_A_LIMIT: Final[Rules] = {"minimum": 0.1, "maximum": MAX_SECONDS, "zero_is_off": True}
_WORKERS: Final[Rules] = {"minimum": 0, "maximum": MAX_WORKERS}
_MEMORY: Final[Rules] = {"minimum": 16, "maximum": 1 << 30, "zero_is_off": True}


def setting(default: T, section: str, meaning: str, unit: str = "", **rules: Unpack[Rules]) -> T:
    """One field of Settings, which is one row of the table. Typed as its default, as `field()` is too."""
    row = {"section": section, "meaning": meaning, "unit": unit, "rules": rules}
    made: Any = field(default=default, metadata=row, repr=not rules.get("secret", False))
    return made  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class Settings:
    """Every setting of a grid. Made by `pwgrid.settings.load.load`, which checks; secrets do not show in its repr."""

    host: str = setting("127.0.0.1", "listener", "Address to listen on.", check=checks.host)
    port: int = setting(8080, "listener", "Port to listen on; 0 picks a free one.", minimum=0, maximum=65535)
    allow_public: bool = setting(False, "listener", "A listener that other hosts can reach needs no token.")
    token: str = setting("", "listener", "Secret that clients must present.", check=checks.visible_ascii, secret=True)
    allowed_origins: tuple[str, ...] = setting(
        (), "listener", "Web pages of these origins may drive the grid.", check=checks.origin
    )
    advertised_host: str = setting(
        "", "listener", "Host in the endpoints that the registry gives to others; empty: host.", check=checks.host
    )

    chromium_workers: int = setting(2, "pools", "Chromium workers.", **_WORKERS)
    firefox_workers: int = setting(0, "pools", "Firefox workers.", **_WORKERS)
    webkit_workers: int = setting(0, "pools", "WebKit workers.", **_WORKERS)
    default_browser_type: BrowserType = setting(  # noqa: RUF009 - makes a field()
        "chromium", "pools", "Browser for clients that name none.", choices=BROWSER_TYPES
    )
    max_concurrent_sessions: int = setting(5, "pools", "Slots of each worker.", minimum=1, maximum=1000)
    max_lifetime_sessions: int = setting(
        50, "pools", "Sessions after which a worker is recycled.", minimum=1, maximum=1_000_000_000
    )

    worker_select_timeout: float = setting(5.0, "queue", "How long a client waits for a slot.", _SECONDS, **_A_WAIT)
    max_queue: int = setting(
        1000, "queue", "Clients that may wait at once; more are refused.", minimum=0, maximum=1_000_000
    )

    compression: str = setting(
        "auto",
        "sessions",
        "Compression of WebSocket messages; auto: only for clients on other hosts.",
        choices=("auto", "on", "off"),
    )
    session_ping_timeout: float = setting(
        60.0, "sessions", "A client that answers nothing for so long is gone.", _SECONDS, **_A_LIMIT
    )
    session_idle_timeout: float = setting(
        0.0,
        "sessions",
        "A session whose client sends nothing for so long is ended, also one that waits for an answer.",
        _SECONDS,
        **_A_LIMIT,
    )
    session_max_duration: float = setting(0.0, "sessions", "A session is ended after this time.", _SECONDS, **_A_LIMIT)
    session_history_ttl: float = setting(
        3600.0, "sessions", "How long the record of an ended session is kept.", _SECONDS, minimum=1, maximum=MAX_SECONDS
    )
    session_history_max: int = setting(
        10000, "sessions", "How many sessions the index holds.", minimum=0, maximum=10_000_000
    )

    headless: bool = setting(True, "browsers", "Browsers run without a display.")
    chromium_executable: str = setting(
        "", "browsers", "Path of Chromium; empty: look for one.", check=checks.absolute_path
    )
    firefox_executable: str = setting(
        "", "browsers", "Path of Firefox; empty: look for one.", check=checks.absolute_path
    )
    webkit_executable: str = setting("", "browsers", "Path of WebKit; empty: look for one.", check=checks.absolute_path)
    chromium_sandbox: bool = setting(False, "browsers", "Chromium's sandbox; it cannot run as root.")
    chromium_args: tuple[str, ...] = setting(
        (), "browsers", "More command line switches for Chromium.", check=checks.browser_argument
    )
    launch_timeout: float = setting(
        60.0, "browsers", "A browser that is not ready after this time is given up.", _SECONDS, **_AN_INTERVAL
    )
    launcher: str = setting(
        "", "browsers", "Another launcher script for the browser server; empty: ours.", check=checks.absolute_path
    )

    redis_url: str = setting(
        "", "redis", "redis://, rediss:// or unix:// URL of the Redis to use.", check=checks.redis_url, secret=True
    )
    redis_host: str = setting("", "redis", "Host of the Redis to use, where redis_url is not set.", check=checks.host)
    redis_port: int = setting(6379, "redis", "Its port.", minimum=1, maximum=65535)
    redis_key_ttl: float = setting(
        30.0, "redis", "A worker that does not renew its registration for so long vanishes.", _SECONDS, **_AN_INTERVAL
    )
    redis_retry_attempts: int = setting(
        5, "redis", "How often the first connection is tried.", minimum=1, maximum=1_000_000
    )
    redis_retry_delay: float = setting(3.0, "redis", "Pause between these attempts.", _SECONDS, **_A_WAIT)
    redis_key_prefix: str = setting(
        "",
        "redis",
        "Goes before every key: one for each grid on a shared Redis, or {pwgrid}: for Redis Cluster.",
        check=checks.visible_ascii,
    )
    redis_timeout: float = setting(1.0, "redis", "A call that takes longer has failed.", _SECONDS, **_AN_INTERVAL)

    heartbeat_interval: float = setting(
        5.0, "lifecycle", "How often a worker renews its registration.", _SECONDS, **_AN_INTERVAL
    )
    shutdown_command_ttl: float = setting(
        60.0, "lifecycle", "How long a drain command waits in Redis for its worker.", _SECONDS, **_AN_INTERVAL
    )
    drain_timeout: float = setting(
        30.0, "lifecycle", "How long a drain waits for live sessions before it closes them.", _SECONDS, **_A_WAIT
    )
    reaper_run_interval: float = setting(
        300.0, "lifecycle", "How often stale registrations are looked for.", _SECONDS, **_AN_INTERVAL
    )
    stale_threshold: float = setting(
        30.0, "lifecycle", "A heartbeat older than this is stale.", _SECONDS, **_AN_INTERVAL
    )
    worker_lost_threshold: float = setting(
        30.0,
        "lifecycle",
        "A worker without a master for so long ends; one silent for so long is killed.",
        _SECONDS,
        **_AN_INTERVAL,
    )
    max_worker_age: float = setting(0.0, "lifecycle", "A worker older than this is recycled.", _SECONDS, **_A_LIMIT)
    max_surge: int = setting(
        8,
        "lifecycle",
        "How many workers beside those wanted a pool adds of its own accord, for replacements to be there in time.",
        minimum=1,
        maximum=MAX_WORKERS,
    )

    rss_check_interval: float = setting(
        5.0, "memory", "How often the memory of all workers is measured.", _SECONDS, minimum=0.1, maximum=MAX_SECONDS
    )
    memory_metric: str = setting(
        "pss",
        "memory",
        "What counts: pss shares common pages out, rss counts them in full, uss not at all.",
        choices=("pss", "rss", "uss"),
    )
    max_worker_rss_mib: int = setting(0, "memory", "A worker above this is recycled.", _MIB, **_MEMORY)
    max_worker_rss_hard_mib: int = setting(0, "memory", "A worker above this is killed.", _MIB, **_MEMORY)
    min_host_available_mib: int = setting(
        256, "memory", "Below this much available memory on the host, nothing is started or admitted.", _MIB, **_MEMORY
    )

    canary_interval: float = setting(30.0, "canary", "How often an idle worker proves itself.", _SECONDS, **_A_LIMIT)
    canary_timeout: float = setting(10.0, "canary", "A proof that takes longer has failed.", _SECONDS, **_AN_INTERVAL)

    runtime_dir: str = setting(
        "",
        "runtime",
        "Base of the runtime directory; empty: $RUNTIME_DIRECTORY or <temp dir>/pwgrid-<uid>.",
        check=checks.runtime_dir,
    )
    log_level: str = setting(
        "info",
        "runtime",
        "Events below this are not logged.",
        choices=("debug", "info", "warning", "error", "critical"),
    )
    log_format: str = setting(
        "text", "runtime", "Log lines: text for people, json for machines.", choices=("text", "json")
    )

    def workers_wanted(self) -> dict[BrowserType, int]:
        """How many workers each pool should have; all browser types are there, also those with none."""
        return {
            "chromium": self.chromium_workers,
            "firefox": self.firefox_workers,
            "webkit": self.webkit_workers,
        }

    def executable(self, browser_type: BrowserType) -> str:
        """The executable that was set for this browser type; empty: one is to be looked for."""
        found: dict[BrowserType, str] = {
            "chromium": self.chromium_executable,
            "firefox": self.firefox_executable,
            "webkit": self.webkit_executable,
        }
        return found[browser_type]


# These names are too general to be taken from an environment that is not ours alone.
_PREFIXED: Final = frozenset({"host", "port", "token", "runtime_dir", "launcher"})


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of the table. `kind` is bool, int, float, str or tuple (of strings)."""

    name: str
    default: Value
    section: str
    meaning: str
    unit: str
    rules: Rules

    @property
    def kind(self) -> type:
        """The type of its values."""
        return type(self.default)

    @property
    def secret(self) -> bool:
        """True when (a part of) the value must never be shown."""
        return self.rules.get("secret", False)

    @property
    def environment(self) -> str:
        """The environment variable that sets it."""
        return ("PWGRID_" if self.name in _PREFIXED else "") + self.name.upper()

    @property
    def flag(self) -> str:
        """The command line option that sets it, where a command has one."""
        return "--" + self.name.removesuffix("_workers").replace("_", "-")


_FIELDS: Final[tuple[Field[Any], ...]] = fields(Settings)
SETTINGS: Final = {each.name: Setting(each.name, cast(Value, each.default), **each.metadata) for each in _FIELDS}
"""The table, by name, in the order of the sections."""
