"""Makes the settings from file, environment and flags, with the source of each."""

import os
import stat
import tomllib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path, PurePath
from typing import Any, Final

from pydantic import ValidationError

from pwgrid.common import trace_settings
from pwgrid.common.errors import ConfigError, Violation
from pwgrid.common.wording import did_you_mean
from pwgrid.settings.environment_variables import find_strays, set_variables
from pwgrid.settings.model import (
    DEFAULT,
    LIKE_FLAGS,
    OTHER_NAMES,
    POOLS,
    SECTIONS,
    SETTINGS,
    WORKERS,
    Setting,
    Settings,
    Sources,
    literal,
)
from pwgrid.settings.pools import PoolTable, read_pool_config, read_tables
from pwgrid.settings.start_directory import absolute, note, start_directory
from pwgrid.settings.value_types import RULE, RedisUrl, Secret

DEFAULT_FILE: Final = Path("/etc/pwgrid/grid.toml")
FILE_VARIABLE: Final = "PWGRID_CONFIG"

TOKENS_NAME: Final = "tokens.json"
"""The file of `pwgrid token`, beside the configuration."""

CREDENTIAL: Final = "pwgrid.token"
"""The name of the systemd credential that is the token."""

GOOD_TOKEN_CHARACTERS: Final = 16
_OUR_NAMES: Final = {other: ours for ours, other in OTHER_NAMES.items()}
_SECRET_BYTES: Final = 4096
_SHOWN_CHARACTERS: Final = 80
_HUGE_BITS: Final = 128


_BY_HOST: Final = "redis_host, "
"""Begins the source of a redis_url that follows from redis_host."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """Good settings, the source of each ("default", a path, "environment REDIS_URL", "--port"), and the file read."""

    settings: Settings
    sources: dict[str, str]
    config_file: Path | None
    again: "Callable[[], Loaded]" = field(repr=False)
    """Reads the same file again, with the same environment and flags. Raises ConfigError."""
    tokens_file: Path | None = None
    """Where `pwgrid token` keeps its tokens, whether or not the file exists; None for a private grid, which takes
    none."""
    warnings: tuple[str, ...] = ()
    """Sentences about values that are allowed, but better changed."""
    strays: tuple[Violation, ...] = ()
    """Environment variables that look like a setting and are none."""

    @property
    def redis_named_by(self) -> tuple[str, str]:
        """The setting that names the Redis, redis_url or redis_host, and that setting's source."""
        by_host = self.sources["redis_url"].startswith(_BY_HOST)
        return ("redis_host", self.sources["redis_host"]) if by_host else ("redis_url", self.sources["redis_url"])


def how_to_unset(name: str, source: str) -> str:
    """What a user does to a setting that has this source."""
    kind, _, variable = source.partition(" ")
    if kind == "environment":
        return f"unset {variable}"
    return f"leave out {source}" if source.startswith("-") else f"take {name} out of {source}"


def load(
    config_file: Path | None, environ: Mapping[str, str], flags: Mapping[str, object], *, private: bool = False
) -> Loaded:
    """Settings from `config_file` (None: the one that $PWGRID_CONFIG names, else /etc/pwgrid/grid.toml if it exists).

    Environment beats file, and `flags` (by name of the setting; None: not given) beat both. Relative paths, also those
    in the file, are below the directory in which the grid was started. A token that none of them has may come from
    systemd's credential. A `private` grid takes no tokens of `pwgrid token`. Raises ConfigError with all violations at
    once, KeyError for a flag that is no setting.
    """
    directory = start_directory(environ)
    draft = _Draft(directory)
    file, named_by = _find_file(config_file, environ)
    path = draft.take_file(absolute(file, directory), named_by)
    for name, (text, variable) in _from_environment(environ).items():
        source = f"environment {variable}"
        if name == POOLS:
            draft.take_pools(*read_pool_config(text), source)
        else:
            draft.take(name, text, source, _TEXTS)
    for name, value in flags.items():
        if value is not None and value != ():
            given = str(value).strip() if isinstance(value, str | PurePath) else value
            draft.take(name, given, SETTINGS[name].flag, _TEXTS if isinstance(given, str) else _TYPED)
    draft.take_credential(environ)
    tokens_file = None if private else absolute(find_tokens_file(path, environ), directory)
    settings = draft.finished(has_tokens=tokens_file is not None and os.path.exists(tokens_file))
    again = partial(load, config_file, {**environ, **note(directory)}, dict(flags), private=private)
    warnings = tuple(_warnings(settings, draft.sources, path))
    if (fault := trace_settings.fault(environ)) is not None:
        warnings += (str(fault),)
    if tokens_file is not None and os.path.exists(tokens_file) and not os.access(tokens_file, os.R_OK):
        warnings += (f"this user may not read {tokens_file}: clients are refused; name another file by --config",)
    return Loaded(settings, draft.sources, path, again, tokens_file, warnings, tuple(find_strays(environ)))


def log_format_of(environ: Mapping[str, str], flags: Mapping[str, object]) -> str:
    """LOG_FORMAT by flag and environment alone, as `load` reads it: errors of `load` itself are told in that format."""
    text, _ = _from_environment(environ).get("log_format", ("", ""))
    return str(flags.get("log_format") or text).strip().lower()


def find_tokens_file(config_file: Path | None, environ: Mapping[str, str]) -> Path:
    """The file of the tokens that `pwgrid token` makes: beside the configuration file, if there is one; else in the
    host's configuration directory, or in the user's own where the host has none."""
    if config_file is not None:
        return config_file.absolute().with_name(TOKENS_NAME)
    home = environ.get("HOME", "")
    if os.geteuid() == 0 or DEFAULT_FILE.parent.is_dir() or not home.startswith("/"):
        return DEFAULT_FILE.with_name(TOKENS_NAME)
    return Path(environ.get("XDG_CONFIG_HOME") or f"{home}/.config") / "pwgrid" / TOKENS_NAME


def _find_file(config_file: Path | None, environ: Mapping[str, str]) -> tuple[Path, str]:
    """The file to read, and who named it."""
    if config_file is not None:
        return config_file, "--config"
    if named := environ.get(FILE_VARIABLE, "").strip():
        return Path(named), f"environment {FILE_VARIABLE}"
    return DEFAULT_FILE, "the default place"


def _from_environment(environ: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """The text of each setting that the environment sets, and the variable that it is from."""
    texts = set_variables(environ)
    found = {}
    for setting in SETTINGS.values():
        if (variable := next((name for name in setting.environments if name in texts), None)) is not None:
            found[setting.name] = (texts[variable], variable)
    return found


_Validate = Callable[[Mapping[str, object]], Settings]
_ALONE: Final = Sources(unusable=frozenset(SETTINGS))  # the rules between settings are for all sources together
_TYPED: Final[_Validate] = partial(Settings.model_validate, strict=True, context=_ALONE)
_TEXTS: Final[_Validate] = partial(Settings.model_validate_strings, strict=True, context=_ALONE)


class _Draft:
    """Settings while their sources are read: values and their sources so far, and all violations so far."""

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory
        self.sources = dict.fromkeys(SETTINGS, DEFAULT)
        self._values: dict[str, Any] = {}
        self._violations: list[Violation] = []
        self._is_complete = True
        self._unusable: set[str] = set()
        """Names whose last value is itself wrong, so that no rule between settings can be applied to it."""

    def take_file(self, path: Path, named_by: str) -> Path | None:
        """Takes the values of a file; returns its path, or None when there is none in the default place."""
        text = ""
        try:
            text = path.read_bytes().decode("utf-8-sig")
            table = tomllib.loads(text)
        except (OSError, ValueError, RecursionError) as error:
            if path == DEFAULT_FILE and isinstance(error, FileNotFoundError | NotADirectoryError):
                return None
            self._is_complete = False  # without its values, rules between settings may seem broken
            self._violations.append(Violation("config", repr(str(path)), _unreadable(error), named_by))
            return path
        known: dict[str, object] = {}
        unknown = list(_sort_out(table, known))
        if POOLS in known:
            self.take_pools(*read_tables(known.pop(POOLS)), str(path))
        for name, value in known.items():
            self.take(name, value, str(path), _TYPED)
        self._violations += [Violation(place, "", sentence, str(path)) for place, sentence in unknown]
        return path

    def take(self, name: str, given: object, source: str, validate: _Validate) -> None:
        """Takes the value of a source, which beats all sources before it.

        A bad value is a violation, even where a later source has a good one.
        """
        try:
            value = self._with_absolute_paths(getattr(validate({name: given}), name), name)
        except ValidationError as error:
            setting, fault = SETTINGS[name], error.errors()[0]
            sentence = fault["msg"] if fault["type"] == RULE else _sentence(setting, given)
            self._violations.append(Violation(name, _written(setting, given), sentence, source))
            self._unusable.add(name)
        else:
            self._put(name, value, source)

    def _with_absolute_paths(self, value: Any, name: str) -> Any:
        return str(absolute(value, self._directory)) if value and SETTINGS[name].is_file else value

    def take_pools(self, tables: tuple[PoolTable, ...], faults: Iterable[Violation], source: str) -> None:
        """Takes the pools of a source; they replace those of the sources before it."""
        self._put(POOLS, tables, source)
        for each in faults:
            self._violations.append(replace(each, source=source))
            self._unusable.add(POOLS)

    def take_credential(self, environ: Mapping[str, str]) -> None:
        """Takes the token from the file of systemd's credential (LoadCredential= of the unit), if none was set."""
        path = Path(environ.get("CREDENTIALS_DIRECTORY", "")) / CREDENTIAL
        if path.is_absolute() and _is_there(path) and self.sources["token"] == self.sources["token_file"] == DEFAULT:
            self.take("token_file", str(path), f"systemd's credential {CREDENTIAL}", _TEXTS)

    def finished(self, *, has_tokens: bool) -> Settings:
        """The settings, checked by the rules between them. Raises ConfigError with all that is wrong."""
        if self._is_complete:
            self._derive()
            try:
                context = Sources(self.sources, self._unusable, has_tokens)
                settings = Settings.model_validate(self._values, context=context)
            except ValidationError as error:
                for each in error.errors():
                    name = str(each["loc"][0])
                    value = ", ".join(pool.name for pool in each["input"]) if name == POOLS else _shown(each["input"])
                    self._violations.append(Violation(name, value, each["msg"], self.sources[name]))
        if self._violations:
            raise ConfigError(self._violations)
        return settings

    def _derive(self) -> None:
        """Fills in what follows from other settings."""
        now = Settings.model_construct(**self._values)
        if now.token_file and "token_file" not in self._unusable:
            self._read_token(now.token_file)
        # REDIS_URL wins over REDIS_HOST and REDIS_PORT, wherever either came from.
        if (
            now.redis_host
            and not now.redis_url
            and self._unusable.isdisjoint({"redis_url", "redis_host", "redis_port"})
        ):
            host = f"[{now.redis_host}]" if ":" in now.redis_host else now.redis_host
            url = RedisUrl(f"redis://{host}:{now.redis_port}/0")
            self._put("redis_url", url, f"{_BY_HOST}{self.sources['redis_host']}")
        if now.pools:
            for each in WORKERS:
                if self.sources[each] == DEFAULT:  # a configuration that names pools wants no others
                    self._values[each] = 0
            now = Settings.model_construct(**self._values)
        name, filled = "default_browser_type", [each for each, workers in now.workers_wanted().items() if workers]
        is_free = self.sources[name] == DEFAULT and self._unusable.isdisjoint({name, POOLS, *WORKERS})
        if is_free and len(filled) == 1 and filled[0] != now.default_browser_type:
            self._put(
                name,
                filled[0],
                f"{DEFAULT}, the only browser with workers" if now.pools else f"{DEFAULT}, the only pool with workers",
            )

    def _read_token(self, path: str) -> None:
        if self.sources["token"] != DEFAULT:
            fault = f"token is set, too ({self.sources['token']}): leave one of them out"
        else:
            try:
                text = _read_secret(Path(path))
            except (OSError, ValueError) as error:
                fault = str(error) if type(error) is ValueError else _unreadable(error)
            else:
                self.take("token", text, f"token_file {path}", _TEXTS)
                return
        self._violations.append(Violation("token_file", repr(path), fault, self.sources["token_file"]))
        self._unusable |= {"token", "token_file"}

    def _put(self, name: str, value: object, source: str) -> None:
        self._values[name] = value
        self.sources[name] = source
        self._unusable.discard(name)


def _is_there(path: Path) -> bool:
    """Whether the file exists, also if we may not read it: a grid that ignored its token would be open to all."""
    try:
        path.lstat()
    except OSError as error:
        return not isinstance(error, FileNotFoundError | NotADirectoryError)
    return True


def _read_secret(path: Path) -> str:
    """The text of a secret's file, without the end of its line. Raises OSError, or ValueError with what is wrong.

    Never waits (for a pipe), never reads without end (a device): a reload reads it while the grid serves.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise ValueError("must be a plain file")
        content = os.read(fd, _SECRET_BYTES + 1)
    finally:
        os.close(fd)
    if len(content) > _SECRET_BYTES:
        raise ValueError(f"must have at most {_SECRET_BYTES} bytes")
    if not (text := content.decode("utf-8").strip()):
        raise ValueError("is empty")
    return text


def _warnings(settings: Settings, sources: Mapping[str, str], config_file: Path | None) -> Iterator[str]:
    """Sentences about a token that is weak or that others can read."""
    token, source = settings.token.get_secret_value(), sources["token"]
    if source == SETTINGS["token"].flag:
        yield "--token shows in ps to everybody on this host: use --token-file or PWGRID_TOKEN_FILE"
    if 0 < len(token) < GOOD_TOKEN_CHARACTERS:
        yield f"the token has fewer than {GOOD_TOKEN_CHARACTERS} characters: openssl rand -hex 16 makes a good one"
    path = settings.token_file or (str(config_file) if source == str(config_file) else "")
    if path and _is_readable_by_others(path):
        yield f"everybody on this host can read the token in {path}: chmod o-r {path}"
    if settings.tls_key and _is_readable_by_others(settings.tls_key):
        yield f"everybody on this host can read the key in {settings.tls_key}: chmod o-r {settings.tls_key}"


def _is_readable_by_others(path: str) -> bool:
    try:
        return bool(os.stat(path).st_mode & stat.S_IROTH)
    except OSError:  # gone since it was read
        return False


def _unreadable(error: Exception) -> str:
    if isinstance(error, OSError):
        return f"cannot be read: {error.strerror or error}"
    if isinstance(error, UnicodeDecodeError):
        return "is not UTF-8"
    # TOMLDecodeError, but also numbers with thousands of digits
    return "is nested too deeply" if isinstance(error, RecursionError) else f"is not TOML: {error}"


def _sort_out(table: Mapping[str, object], known: dict[str, object]) -> Iterator[tuple[str, str]]:
    """Puts the settings of all sections into `known`; yields place and sentence for each key that is no setting.

    It leaves out the value, which might be a secret under a mistyped name.
    """
    for section, content in table.items():
        if section == POOLS:
            known[POOLS] = content
        elif section not in SECTIONS:
            yield _key(section), _unknown("section", section, [*SECTIONS, POOLS])
        elif not isinstance(content, dict):
            yield _key(section), f"must be a section: [{section}]"
        else:
            for name, value in content.items():
                ours = _OUR_NAMES.get(str(name), str(name))
                if ours not in SETTINGS or SETTINGS[ours].section != section:
                    yield f"{_key(name)} in [{section}]", _unknown("setting", name, SETTINGS)
                elif ours != name and ours in content:
                    yield f"{_key(name)} in [{section}]", f"is another name of {ours}, which is there, too"
                else:
                    known[ours] = value


def _unknown(what: str, name: str, known: Collection[str]) -> str:
    if name in SETTINGS:
        return f"belongs into the section [{SETTINGS[name].section}]"
    meant = LIKE_FLAGS.get(name)
    return f"unknown {what}" + (f"; did you mean {meant}?" if meant in known else did_you_mean(name.lower(), known))


def _key(name: str) -> str:
    return name if name.isprintable() and name else repr(name)


def _sentence(setting: Setting, written: object) -> str:
    """A sentence that says what a value must be, where pydantic has refused it."""
    if setting.choices:
        hint = did_you_mean(written.lower(), setting.choices) if isinstance(written, str) else ""
        return f"must be one of {', '.join(setting.choices)}{hint}"
    return {bool: "must be true or false", tuple: "must be a list of texts"}.get(setting.kind, "must be a text")


def _written(setting: Setting, value: object) -> str:
    """A wrong value for a message, without secrets."""
    if issubclass(setting.kind, Secret):
        value = str((setting.kind if isinstance(value, str) else Secret)(str(value)))
    return _shown(value)


def _shown(value: object) -> str:
    """One line, of bounded length."""
    if isinstance(value, int) and value.bit_length() > _HUGE_BITS:
        return "a huge number"
    text = literal(value) if isinstance(value, bool) else repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 1] + "…"
