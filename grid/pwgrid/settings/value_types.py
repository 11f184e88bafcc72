"""The types of values, as annotations for pydantic: numbers within bounds, texts of a certain form, secrets."""

import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from ipaddress import ip_network
from typing import Annotated, Any, Final, Literal, TypeVar

import pydantic
from pydantic import AfterValidator, GetCoreSchemaHandler, ValidationError, ValidatorFunctionWrapHandler
from pydantic_core import CoreSchema, PydanticCustomError
from pydantic_core.core_schema import no_info_wrap_validator_function

from pwgrid.common.grid_url import GridUrl, is_path, without_secrets
from pwgrid.common.redis_url import problem

T = TypeVar("T")

MAX_SECONDS: Final = 2_000_000.0
"""Twenty-three days. Node's timers and TCP_USER_TIMEOUT count milliseconds in 31 bits; a longer timer fires at once."""

MAX_WORKERS: Final = 1000

RUNTIME_DIR_BYTES: Final = 41
"""Bytes that a Unix socket path (107) leaves for the base. Chromium has the longest, and dies when it does not fit:
`<base>/65535/w/01234567/tmp/org.chromium.Chromium.XXXXXX/SingletonSocket`."""

RULE: Final = "rule"
"""The type of our own validation errors: their message is the project's sentence. All other types are pydantic's."""


def rule(sentence: str) -> PydanticCustomError:
    """An error for validators to raise."""
    return PydanticCustomError(RULE, sentence)


@dataclass(frozen=True, slots=True)
class Bounds:
    """The range of a number. `str()` is for people: "0 (off) or 0.1 to 2000000"."""

    minimum: float
    maximum: float
    unit: str = ""
    zero_is_off: bool = False

    def __get_pydantic_core_schema__(self, kind: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return no_info_wrap_validator_function(partial(self._check, kind), handler(kind))

    def _check(self, kind: Any, given: object, number_of: ValidatorFunctionWrapHandler) -> float:
        try:
            value: float = number_of(given)
        except ValidationError:
            raise rule(f"must be {'a whole number' if kind is int else 'a number'}, {self}") from None
        if self.minimum <= value <= self.maximum or (self.zero_is_off and value == 0):
            return value
        raise rule(f"must be {self}")

    def __str__(self) -> str:
        return f"{'0 (off) or ' * self.zero_is_off}{self.minimum:.15g} to {self.maximum:.15g}"


def seconds(minimum: float, *, zero_is_off: bool = False) -> Bounds:
    """Bounds of a duration."""
    return Bounds(minimum, MAX_SECONDS, "seconds", zero_is_off)


class Secret(pydantic.Secret[str]):
    """A text that is shown as ***, whoever prints it or writes it as JSON. False if it is empty."""

    def __bool__(self) -> bool:
        return bool(self.get_secret_value())

    def _display(self) -> str:
        return "***" if self else ""


class SecretUrl(Secret):
    """A URL that is shown without its password."""

    def _display(self) -> str:
        return without_secrets(self.get_secret_value())


class RedisUrl(SecretUrl):
    """The URL of a Redis."""


def _text(fault: Callable[[str], str]) -> AfterValidator:
    """Refuses a text, secret or not, in which `fault` finds something wrong."""

    def check(value: T) -> T:
        if found := fault(value.get_secret_value() if isinstance(value, Secret) else str(value)):
            raise rule(found)
        return value

    return AfterValidator(check)


def like(pattern: str, sentence: str) -> AfterValidator:
    return _text(lambda text: "" if re.fullmatch(pattern, text) else sentence)


def _runtime_dir(text: str) -> str:
    if len(text.encode()) > RUNTIME_DIR_BYTES:
        return f"must be at most {RUNTIME_DIR_BYTES} bytes long: Unix sockets lie below it, and their paths are limited"
    return "" if not text or text.startswith("/") else "must be an absolute path"


def _advertised_url(text: str) -> str:
    try:
        url = GridUrl.parse(text) if text else None
    except ValueError:
        url = None
    if not text or (url and is_path(url.path) and url.userinfo.isascii() and not set("?#") & set(text)):
        return ""
    return "must be a URL like https://grid.example.org/grid, without what begins with ? or #, and with a blank as %20"


def _trusted_proxy(text: str) -> str:
    try:
        if text != "unix":
            ip_network(text)
    except ValueError:
        return "must be addresses like 10.0.0.5, networks like 10.0.0.0/8, or unix, with a blank between two"
    return ""


_WORDS: Final = dict.fromkeys(("true", "yes", "on", "1"), True) | dict.fromkeys(("false", "no", "off", "0"), False)
_PLAIN: Final = {
    int: re.compile(r"[+-]?[0-9]{1,18}"),
    float: re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?"),
}


def from_text(kind: type, text: str) -> object:
    """The value that a text of the environment or of a flag stands for; the text itself where it is none of this kind.

    Pydantic itself would take 1_0, and 8.0 as a whole number. Lists are words as a shell splits them, since switches of
    browsers may contain commas.
    """
    if kind is bool:
        return _WORDS.get(text.lower(), text)
    if kind is tuple:
        try:
            return tuple(shlex.split(text))
        except ValueError as error:
            raise rule(f"must be words as a shell splits them: {str(error).lower()}") from None
    return kind(text) if kind in _PLAIN and _PLAIN[kind].fullmatch(text) else text


Member = TypeVar("Member", bound=StrEnum)


def member(kind: type[Member], given: object) -> object:
    """The member of an enumeration that a text names; what was given where it names none."""
    return next((each for each in kind if isinstance(given, str) and each == given.lower()), given)


def one_of(choices: tuple[str, ...], given: object) -> object:
    """The choice that is meant. Where on and off are choices, what else means true or false is one of them."""
    meant = given.lower() if isinstance(given, str) else given
    if meant in choices or "on" not in choices:
        return meant
    switched = _WORDS.get(meant) if isinstance(meant, str) else meant
    return ("on" if switched else "off") if isinstance(switched, bool) else meant


Interval = Annotated[float, seconds(0.01)]
Wait = Annotated[float, seconds(0)]
Limit = Annotated[float, seconds(0.1, zero_is_off=True)]
Mib = Annotated[int, Bounds(16, 1 << 30, "MiB", zero_is_off=True)]
Workers = Annotated[int, Bounds(0, MAX_WORKERS)]
Slots = Annotated[int, Bounds(1, 1000)]
Lifetime = Annotated[int, Bounds(1, 1_000_000_000)]
Count = Annotated[int, Bounds(0, 1_000_000)]
Warm = Annotated[int, Bounds(0, 100)]
OwnBrowsers = Annotated[int, Bounds(0, 1000)]
LogLevel = Literal["debug", "info", "warning", "error", "critical"]

# An empty text means that a setting is not set, except for `host`.
_NO_HOST: Final = "must be a host name or an address (IPv6 without brackets)"
Host = Annotated[str, like(r"[0-9A-Za-z._:%-]+", _NO_HOST)]
HostOrNone = Annotated[str, like(r"[0-9A-Za-z._:%-]*", _NO_HOST)]
VISIBLE: Final = like(r"[!-~]*", "must be visible ASCII characters without spaces")  # for headers and Redis keys
FILE: Final = "file"
"""Marks a path that may be relative: `load` makes it absolute."""
FilePath = Annotated[str, FILE]
AbsolutePath = Annotated[str, like(r"(/.*)?", "must be an absolute path")]
RuntimeDir = Annotated[str, _text(_runtime_dir)]
RedisAddress = Annotated[RedisUrl, _text(lambda text: problem(text) if text else "")]
AdvertisedUrl = Annotated[SecretUrl, _text(_advertised_url)]
TrustedProxy = Annotated[str, _text(_trusted_proxy)]
Origin = Annotated[
    str, like(r"[a-z][a-z0-9+.-]*://[^/\s,]+|null", "must be origins like https://example.org:8443, without a path")
]
HostPattern = Annotated[
    str,
    like(
        r"\*|(\*\.)?[0-9A-Za-z._-]+|[0-9A-Fa-f.]*:[0-9A-Fa-f.]*:[0-9A-Fa-f:.]*",
        "must be host names without a port, *.example.org for all below one, or *",
    ),
]
SwitchName = Annotated[
    str,
    like(
        r"\*|-[^\s=*]+\*?",
        "must be names of command line switches, without a value, --lang or with * at the end for all that begin so; "
        "* alone for any",
    ),
]
Switch = Annotated[str, like(r"-.*", "must be command line switches, which begin with -")]
Variable = Annotated[str, like(r"[A-Za-z_][A-Za-z0-9_]*", "must be names of environment variables")]
