"""Rules between settings, and the settings that follow from others. Decides on values only; reads nothing."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from pwgrid.common.errors import Violation
from pwgrid.common.types import BROWSER_TYPES
from pwgrid.settings.checks import is_loopback
from pwgrid.settings.table import SETTINGS, Setting, Value
from pwgrid.settings.values import literal, shown

DEFAULT: Final = "default"

_ROUNDING: Final = 1e-9  # 3 x 0.1 is 0.30000000000000004, and yet meant to be 0.3


@dataclass(slots=True)
class Draft:
    """Settings in the making: what each is for now, where that came from, and all that is wrong so far."""

    values: dict[str, Value] = field(default_factory=lambda: {name: row.default for name, row in SETTINGS.items()})
    sources: dict[str, str] = field(default_factory=lambda: dict.fromkeys(SETTINGS, DEFAULT))
    violations: list[Violation] = field(default_factory=list)
    unusable: set[str] = field(default_factory=set)
    """Names whose value in force is wrong itself, so that no rule can be applied to it."""

    def put(self, setting: Setting, value: Value, source: str) -> None:
        """A good value from a source that beats all before it."""
        self.values[setting.name] = value
        self.sources[setting.name] = source
        self.unusable.discard(setting.name)

    def refuse(self, setting: Setting, written: object, rule: str, source: str) -> None:
        """A value that breaks a rule of its own."""
        self.violations.append(Violation(setting.name, shown(setting, written), rule, source))
        self.unusable.add(setting.name)

    def number(self, name: str) -> float:
        """The value of a number."""
        value = self.values[name]
        assert isinstance(value, int | float)
        return value

    def blame(self, name: str, rule: str) -> None:
        """A value that breaks a rule together with others."""
        self.violations.append(Violation(name, self.shown(name), rule, self.sources[name]))

    def shown(self, name: str) -> str:
        """The value in force, fit to be printed."""
        return shown(SETTINGS[name], self.values[name])


@dataclass(frozen=True, slots=True)
class Relation:
    """`factor` x left must be less than right (or equal, for "<="). A limit that is off (0) is in no relation."""

    left: str
    sign: str
    right: str
    factor: int = 1

    def __str__(self) -> str:
        return f"{self._left()} {self.sign} {self.right}"

    def holds(self, draft: Draft) -> bool:
        """True when the values in force keep to it."""
        for name in (self.left, self.right):
            if draft.values[name] == 0 and SETTINGS[name].rules.get("zero_is_off"):
                return True
        left, right = self.factor * draft.number(self.left), draft.number(self.right)
        return left < right or (self.sign == "<=" and left <= right + _ROUNDING)

    def apply(self, draft: Draft) -> None:
        """Blames the side that somebody has set, the left one of two; the rule tells the other's value and source."""
        if not draft.unusable.isdisjoint((self.left, self.right)) or self.holds(draft):
            return
        left, right = self._left(), self.right
        if draft.sources[self.left] != DEFAULT or draft.sources[self.right] == DEFAULT:
            blamed, right = self.left, f"{right} ({draft.shown(self.right)}, {draft.sources[self.right]})"
        else:
            blamed, left = self.right, f"{left} ({draft.shown(self.left)}, {DEFAULT})"
        draft.blame(blamed, f"{left} must be {self.sign} {right}")

    def _left(self) -> str:
        return self.left if self.factor == 1 else f"{self.factor} x {self.left}"


RELATIONS: Final = (
    Relation("heartbeat_interval", "<=", "redis_key_ttl", factor=3),
    Relation("redis_key_ttl", "<", "shutdown_command_ttl"),
    Relation("redis_key_ttl", "<=", "reaper_run_interval"),
    Relation("heartbeat_interval", "<", "stale_threshold"),
    Relation("stale_threshold", "<", "reaper_run_interval"),
    Relation("redis_timeout", "<", "redis_key_ttl"),
    Relation("max_worker_rss_mib", "<", "max_worker_rss_hard_mib"),
)


def derive(draft: Draft) -> None:
    """Fills in what follows from other settings."""
    _derive_redis_url(draft)
    _derive_default_browser(draft)


def apply_all(draft: Draft) -> None:
    """Adds a violation for each rule between settings that is broken."""
    for relation in RELATIONS:
        relation.apply(draft)
    if draft.unusable.isdisjoint(_POOLS.values()):
        _apply_pools(draft)
    if draft.unusable.isdisjoint(("host", "token", "allow_public")):
        _apply_public_listener(draft)


_POOLS: Final[Mapping[str, str]] = {browser_type: f"{browser_type}_workers" for browser_type in BROWSER_TYPES}


def _filled(draft: Draft) -> list[str]:
    return [browser_type for browser_type, name in _POOLS.items() if draft.number(name) > 0]


def _derive_redis_url(draft: Draft) -> None:
    """REDIS_URL wins over REDIS_HOST and REDIS_PORT, wherever either came from."""
    names = ("redis_url", "redis_host", "redis_port")
    host = draft.values["redis_host"]
    if not draft.unusable.isdisjoint(names) or draft.values["redis_url"] or not isinstance(host, str) or not host:
        return
    address = f"[{host}]" if ":" in host else host
    url = f"redis://{address}:{draft.values['redis_port']}/0"
    draft.put(SETTINGS["redis_url"], url, f"redis_host, {draft.sources['redis_host']}")


def _derive_default_browser(draft: Draft) -> None:
    """With one pool that has workers, that is the default, unless another was asked for."""
    name = "default_browser_type"
    if draft.sources[name] != DEFAULT or not draft.unusable.isdisjoint((name, *_POOLS.values())):
        return
    filled = _filled(draft)
    if len(filled) == 1 and filled[0] != draft.values[name]:
        draft.put(SETTINGS[name], filled[0], f"{DEFAULT}, the only pool with workers")


def _apply_pools(draft: Draft) -> None:
    filled, name = _filled(draft), "default_browser_type"
    if not filled:
        blamed = next((pool for pool in _POOLS.values() if draft.sources[pool] != DEFAULT), "chromium_workers")
        draft.blame(blamed, f"{', '.join(_POOLS.values())}: one of them must be at least 1")
    elif name not in draft.unusable and draft.sources[name] != DEFAULT and draft.values[name] not in filled:
        pool = _POOLS[str(draft.values[name])]
        draft.blame(name, f"{pool} must be at least 1 then (0, {draft.sources[pool]})")


def _apply_public_listener(draft: Draft) -> None:
    host = draft.values["host"]
    if not is_loopback(str(host)) and not draft.values["token"] and not draft.values["allow_public"]:
        draft.blame(
            "host",
            "a listener that other hosts can reach needs a token: set PWGRID_TOKEN,"
            f" or say with ALLOW_PUBLIC={literal(True)} or --allow-public that everyone may use it",
        )
