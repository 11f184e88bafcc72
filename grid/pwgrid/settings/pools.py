"""Pools: all workers with the same browser and settings. What a `[[pools]]` table or POOL_CONFIG may say, and what each
pool is once the global settings have filled in the rest (`Settings.pools_wanted`)."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final
from urllib.parse import unquote, urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError, field_validator
from pydantic_core import ErrorDetails

from pwgrid.common import label_keys
from pwgrid.common.errors import Violation
from pwgrid.common.playwright_version import MINOR
from pwgrid.common.types import BROWSER_TYPES, BrowserType, Isolation
from pwgrid.common.wording import did_you_mean
from pwgrid.settings import value_types
from pwgrid.settings.own_playwright import own_minor

NAME_RULE: Final = "must be 1 to 63 lower case letters, digits, - and _, and begin with a letter or digit"
NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
_NAME_CHARACTERS: Final = 63
MAX_POOLS: Final = 64
MAX_TEXT: Final = 16 * 1024
"""Characters of all label keys, args and channels together. The proxy gets all pools in one frame, which is limited."""

_HASH_CHARACTERS: Final = 8
_KEPT_FOR_THE_GRID: Final = frozenset(
    {"TMPDIR", "NODE_CHANNEL_FD", "NODE_CHANNEL_SERIALIZATION_MODE", "NODE_OPTIONS", "PWGRID_LAUNCH"}
)
_CONFIG_RULE: Final = "must be label keys with numbers of workers, like AppA:Chromium:Staging=3,AppB:Firefox:UAT=1"


def _label(text: str) -> str:
    try:
        return str(label_keys.parse(text))
    except label_keys.LabelKeyError as error:
        raise value_types.rule(str(error)) from None


def _variables(given: dict[str, value_types.Secret]) -> dict[str, value_types.Secret]:
    for name in given:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise value_types.rule(f"{name!r:.40} is no name of an environment variable")
        if name in _KEPT_FOR_THE_GRID:
            raise value_types.rule(f"{name} is what the grid itself gives to browser servers")
    return given


class ProxyServer(BaseModel, frozen=True):
    """The proxy of a pool's browsers, with the fields of Playwright's launch option."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    server: str
    """URL: http://, https:// or socks5://, with a host and perhaps a port."""
    bypass: str = ""
    """Hosts that are reached without it, comma-separated."""
    username: str = ""
    password: value_types.Secret = value_types.Secret("")

    @field_validator("server")
    @classmethod
    def _is_url(cls, server: str) -> str:
        if not re.fullmatch(r"(https?|socks[45])://[^/\s@]+/?", server):
            raise value_types.rule(
                "must be a URL like http://proxy:3128, without user and password in a table's server"
            )
        return server

    def options(self) -> dict[str, str]:
        """Playwright's launch option; the password in clear."""
        given = {**dict(self), "password": self.password.get_secret_value()}
        return {name: text for name, text in given.items() if text}


class PoolTable(BaseModel, frozen=True):
    """One `[[pools]]` table as it is written. None: the table does not have the key, and the global setting counts."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, hide_input_in_errors=True)

    name: Annotated[str, value_types.like(NAME.pattern, NAME_RULE)]
    """Name of the pool: 1 to 63 lower case letters, digits, - and _."""
    browser: BrowserType | None = None
    """chromium, firefox or webkit; may be left out where labels name it."""
    playwright: Annotated[str, value_types.like(MINOR, 'must be a version like "1.58"')] | None = None
    """Playwright of its clients, one that `pwgrid setup --playwright` has installed; else pwgrid's own."""
    workers: value_types.Workers = 1
    """How many workers; with on_demand the most that clients may make it have."""
    on_demand: bool | None = None
    """Whether it starts when its first client comes, and ends when idle for ON_DEMAND_IDLE; else it is always there."""
    slots: value_types.Slots | None = None
    """Slots of each worker; else MAX_CONCURRENT_SESSIONS."""
    lifetime: value_types.Lifetime | None = None
    """Sessions after which a worker is recycled; else MAX_LIFETIME_SESSIONS."""
    isolation: Isolation | None = None
    """What sessions that ask for nothing get: context, browser or process; else ISOLATION."""
    warm: value_types.Warm | None = None
    """Own browsers that each worker keeps warm, where isolation is browser; else WARM_BROWSERS."""
    max_own_browsers: value_types.OwnBrowsers | None = None
    """Own browsers of sessions in each worker; 0: as many as slots; else MAX_OWN_BROWSERS."""
    max_memory_mib: value_types.Mib | None = None
    """A worker above this is recycled; else MAX_WORKER_MEMORY_MIB."""
    max_memory_hard_mib: value_types.Mib | None = None
    """A worker above this is killed; else MAX_WORKER_MEMORY_HARD_MIB."""
    executable: value_types.AbsolutePath = ""
    """Path of the browser; else that of the global setting."""
    channel: Annotated[
        str, value_types.like(r"[a-z0-9-]*", "must be a channel of Playwright, like chrome or msedge")
    ] = ""
    """Channel of Playwright, like chrome or msedge, instead of an executable."""
    headless: bool | None = None
    """Whether the browsers run without a display; else HEADLESS."""
    args: tuple[value_types.Switch, ...] | None = None
    """Command line switches; else CHROMIUM_ARGS, where the browser is Chromium."""
    proxy: ProxyServer | None = None
    """Proxy of the browsers: a URL, or a table of server, bypass, username and password."""
    env: Annotated[dict[str, value_types.Secret], AfterValidator(_variables)] = {}
    """Environment variables and their values, beside those of BROWSER_ENV."""
    labels: tuple[Annotated[str, AfterValidator(_label)], ...] = ()
    """Label keys of the pool; no other pool of the same Playwright may have them."""

    @field_validator("*", mode="before")
    @classmethod
    def _read(cls, value: Any) -> Any:
        return tuple(value) if isinstance(value, list) else value

    @field_validator("browser", mode="before")
    @classmethod
    def _lower(cls, value: Any) -> Any:
        return value.lower() if isinstance(value, str) else value

    @field_validator("isolation", mode="before")
    @classmethod
    def _isolation(cls, value: Any) -> Any:
        return value_types.member(Isolation, value)

    @field_validator("proxy", mode="before")
    @classmethod
    def _from_url(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        try:
            parts = urlsplit(value)
            user, password = unquote(parts.username or ""), unquote(parts.password or "")
        except ValueError:
            return {"server": ""}
        server = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
        return {"server": server, "username": user, "password": value_types.Secret(password)}

    @property
    def browser_type(self) -> BrowserType:
        """The browser of the table, or the one that its labels name."""
        found = self.browser or label_keys.parse(self.labels[0]).browser_type
        assert found is not None  # `_faults_within` has seen to it
        return found

    def shown(self) -> dict[str, Any]:
        """The keys that the table has, with values for JSON and TOML, secrets masked."""
        return self.model_dump(mode="json", exclude_unset=True, exclude_none=True)


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """One pool with all its values. `slots` and `lifetime` are sessions of each worker; a limit of 0 is off.

    `playwright` is the minor version of the driver, and so of the clients; empty: pwgrid's own.
    `warm` own browsers are kept warm by each worker, none unless `isolation` is `browser`. `max_own_browsers` bounds
    those that sessions have in one worker; 0: as many as slots.
    `is_short_form`: it comes from CHROMIUM_WORKERS or the like, not from a table.
    `on_demand`: it has workers only while clients want it, `workers` at the most. `like` names the pool that it is made
    after, where no configuration has it: who may use that one may use this one, too.
    """

    name: str
    browser_type: BrowserType
    workers: int
    slots: int
    lifetime: int
    playwright: str = ""
    max_memory_mib: int = 0
    max_memory_hard_mib: int = 0
    isolation: Isolation = Isolation.CONTEXT
    warm: int = 0
    max_own_browsers: int = 0
    executable: str = ""
    channel: str = ""
    headless: bool = True
    args: tuple[str, ...] = ()
    proxy: ProxyServer | None = None
    env: Mapping[str, value_types.Secret] = field(default_factory=dict)
    labels: tuple[str, ...] = ()
    is_short_form: bool = True
    on_demand: bool = False
    like: str = ""

    @property
    def own(self) -> tuple[object, ...]:
        """The values that no global setting has, secrets in clear: to compare and to fingerprint, never to show."""
        return (*self.launch, self.labels)

    @property
    def launch(self) -> tuple[str, ...]:
        """The values of `own` with which browsers are launched."""
        proxy = self.proxy.options() if self.proxy else {}
        env = sorted((name, value.get_secret_value()) for name, value in self.env.items())
        return (self.channel, self.playwright, repr(self.args), repr(proxy), repr(env))


# Reading them


def read_tables(content: object) -> tuple[tuple[PoolTable, ...], list[Violation]]:
    """The pools of `[[pools]]` tables, and all that is wrong with them."""
    if not isinstance(content, list) or not all(isinstance(each, dict) for each in content):
        return (), [Violation("pools", "", "must be tables: [[pools]]; chromium_workers and the like are in [workers]")]
    tables: list[PoolTable] = []
    faults: list[Violation] = []
    for number, given in enumerate(content, 1):
        name = given.get("name")
        place = f"pools.{name}" if isinstance(name, str) and NAME.fullmatch(name) else f"pools[{number}]"
        try:
            table = PoolTable.model_validate(given)
        except ValidationError as error:
            faults += _faults(place, given, error)
            continue
        within = list(_faults_within(place, table))
        faults += within
        tables += [] if within else [table]
    return tuple(tables), [*faults, *_faults_between(tables)]


def read_pool_config(text: str) -> tuple[tuple[PoolTable, ...], list[Violation]]:
    """The pools of POOL_CONFIG: `AppA:Chromium:Staging=3,AppB:Firefox:UAT=1`, a pool for each label key."""
    tables: list[PoolTable] = []
    faults: list[Violation] = []
    for entry in filter(None, (each.strip() for each in text.split(","))):
        key, equals, workers = (each.strip() for each in entry.partition("="))
        if not equals or not re.fullmatch(r"[0-9]{1,9}", workers):
            faults.append(Violation("pools", repr(entry[:80]), _CONFIG_RULE))
            continue
        name = name_of_label(key, {table.name for table in tables})
        try:
            tables.append(PoolTable.model_validate({"name": name, "workers": int(workers), "labels": [key]}))
        except ValidationError as error:
            faults += [Violation("pools", repr(entry[:80]), _sentence(each)) for each in error.errors()]
    return tuple(tables), [*faults, *_faults_between(tables)]


def name_of_label(key: str, taken: Iterable[str] = ()) -> str:
    """A pool's name made of a label key; with a hash where it is too long, or one of `taken`."""
    name = re.sub(r"[^a-z0-9_-]+", "-", key.lower()).strip("-_") or "pool"
    if len(name) <= _NAME_CHARACTERS and name not in taken:
        return name
    mark = hashlib.sha256(key.lower().encode()).hexdigest()[:_HASH_CHARACTERS]
    return f"{name[: _NAME_CHARACTERS - _HASH_CHARACTERS - 1]}-{mark}"


def _faults(place: str, given: Mapping[str, Any], error: ValidationError) -> Iterator[Violation]:
    """A fault for each key that is wrong."""
    first: dict[str, ErrorDetails] = {}
    for each in error.errors():
        first.setdefault(str(each["loc"][0]), each)
    for key, each in first.items():
        if each["type"] == "missing" and len(each["loc"]) == 1:
            yield Violation(place, "", f"must say its {key}")
        elif key not in PoolTable.model_fields:
            hint = did_you_mean(key.lower(), PoolTable.model_fields)
            yield Violation(f"{place}.{key if key.isprintable() else repr(key)}", "", f"unknown key of a pool{hint}")
        else:
            written = "" if key in ("proxy", "env") else repr(given[key])[:80]
            yield Violation(f"{place}.{key}", written, _sentence(each))


def _sentence(error: ErrorDetails) -> str:
    if error["type"] == value_types.RULE:
        return error["msg"]
    key = str(error["loc"][0])
    if key == "browser":
        return f"must be one of {', '.join(BROWSER_TYPES)}"
    if key == "isolation":
        return f"must be one of {', '.join(Isolation)}"
    return {
        "headless": "must be true or false",
        "playwright": 'must be a text like "1.58", with its quotation marks',
        "on_demand": "must be true or false",
        "args": "must be a list of texts",
        "labels": "must be a list of label keys",
        "proxy": "must be a URL, or a table of server, bypass, username, password",
        "env": "must be a table of texts",
    }.get(key, "must be a text")


def _faults_within(place: str, table: PoolTable) -> Iterator[Violation]:
    """Faults by the rules between the keys of one table."""
    types = [label_keys.parse(each).browser_type for each in table.labels]
    if table.browser is None and not types:
        yield Violation(place, "", f"must say its browser, one of {', '.join(BROWSER_TYPES)}")
        return
    browser_type = table.browser or types[0]
    for label, named in zip(table.labels, types, strict=True):
        if named != browser_type:
            yield Violation(f"{place}.labels", repr(label), f"names another browser than the pool has, {browser_type}")
    if table.name in BROWSER_TYPES and table.name != browser_type:
        yield Violation(f"{place}.browser", repr(browser_type), f"a pool named {table.name} must have that browser")
    if table.executable and table.channel:
        yield Violation(f"{place}.channel", repr(table.channel), "executable is set, too: leave one of them out")


def _faults_between(tables: Sequence[PoolTable]) -> Iterator[Violation]:
    """Faults of all pools together: too many, too much text, a name or a label key that two of them have."""
    characters = sum(len(each) for table in tables for each in (*table.labels, *(table.args or ()), table.channel))
    if len(tables) > MAX_POOLS or characters > MAX_TEXT:
        sentence = f"there may be at most {MAX_POOLS} pools, with {MAX_TEXT} characters of labels and args together"
        yield Violation("pools", f"{len(tables)} with {characters}", sentence)
    names: set[str] = set()
    owners: dict[tuple[label_keys.LabelKey, str], str] = {}
    for table in tables:
        if table.name in names:
            yield Violation(f"pools.{table.name}", "", "another pool has this name, too")
        names.add(table.name)
        for text in table.labels:
            owner = owners.setdefault((label_keys.parse(text), table.playwright or own_minor()), table.name)
            if (
                owner != table.name
                or sum(label_keys.parse(each) == label_keys.parse(text) for each in table.labels) > 1
            ):
                yield Violation(f"pools.{table.name}.labels", repr(text), f"is a label key of pool {owner} already")
