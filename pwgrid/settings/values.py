"""Turns what was written into a setting's value, or says which rule it breaks; and values into text. Reads no file."""

import json
import math
import re
from pathlib import PurePath
from typing import Final

from pwgrid.settings.table import Setting, Value

MASK: Final = "***"

_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,18}")
_NUMBER: Final = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_WORDS: Final = {
    "true": True,
    "yes": True,
    "on": True,
    "1": True,
    "false": False,
    "no": False,
    "off": False,
    "0": False,
}
_SHOWN_CHARACTERS: Final = 80
_HUGE_BITS: Final = 128


class Unfit(ValueError):
    """A value breaks a rule of its setting; `str()` is the rule."""


def read(setting: Setting, written: object) -> Value:
    """The value of `setting` for what stands in a file or was given as a flag. Raises Unfit."""
    if isinstance(written, str) and setting.kind is tuple:
        raise Unfit(type_rule(setting))
    if isinstance(written, list):
        written = tuple(written)
    if setting.kind is float and type(written) is int:
        _check_bounds(setting, written)  # before the conversion, which fails for huge ones
        written = float(written)
    if type(written) is not setting.kind:
        raise Unfit(type_rule(setting))
    return _checked(setting, written)


def read_text(setting: Setting, text: str) -> Value:
    """The value of `setting` for the text of an environment variable or a flag. Raises Unfit.

    Lists are words as a shell splits them, since switches of browsers may contain commas.
    """
    text = text.strip()
    value: object = text
    if setting.kind is bool:
        value = _WORDS.get(text.lower())
    elif setting.kind is int:
        value = int(text) if _WHOLE.fullmatch(text) else None
    elif setting.kind is float:
        value = float(text) if _NUMBER.fullmatch(text) else None
    elif setting.kind is tuple:
        value = _words(text)
    return read(setting, value)


def read_flag(setting: Setting, given: object) -> Value:
    """The value of `setting` for a command line option, parsed or not. Raises Unfit."""
    if isinstance(given, PurePath):
        given = str(given)
    return read_text(setting, given) if isinstance(given, str) else read(setting, given)


def type_rule(setting: Setting) -> str:
    """What kind of value it must be, as a rule."""
    if setting.kind is bool:
        return "must be true or false"
    if setting.kind is str:
        return choices_rule(setting) or "must be a text"
    if setting.kind is tuple:
        return "must be a list of texts"
    return ("must be a whole number, " if setting.kind is int else "must be a number, ") + bounds(setting)


def bounds(setting: Setting) -> str:
    """The bounds of a number, for people: "0 to 65535", "0 (off) or 16 to 1024"."""
    off = "0 (off) or " if setting.rules.get("zero_is_off") else ""
    return f"{off}{setting.rules['minimum']:.15g} to {setting.rules['maximum']:.15g}"


def choices_rule(setting: Setting) -> str:
    """The choices as a rule; empty where there are none."""
    choices = setting.rules.get("choices", ())
    return "must be one of " + ", ".join(choices) if choices else ""


def _checked(setting: Setting, value: object) -> Value:
    if isinstance(value, bool):
        return value
    if isinstance(value, int | float):
        _check_bounds(setting, value)
        return value
    if isinstance(value, str):
        return _checked_text(setting, value)
    if not isinstance(value, tuple) or not all(isinstance(item, str) for item in value):
        raise Unfit(type_rule(setting))
    return tuple(_checked_text(setting, item) for item in value)


def _check_bounds(setting: Setting, value: float) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise Unfit(type_rule(setting))
    if value == 0 and setting.rules.get("zero_is_off"):
        return
    if not setting.rules["minimum"] <= value <= setting.rules["maximum"]:
        raise Unfit(f"must be {bounds(setting)}")


def _checked_text(setting: Setting, text: str) -> str:
    if not text.isprintable():
        raise Unfit("must not contain control characters or broken UTF-8")
    choices = setting.rules.get("choices")
    if choices:
        text = text.lower()
        if text not in choices:
            raise Unfit(choices_rule(setting) + did_you_mean(text, choices))
    check = setting.rules.get("check")
    # An empty text stands for "not set" where that is the default; the items of a list are never empty.
    if check and (text or setting.default != "") and (fault := check(text)):
        raise Unfit(fault)
    return text


def _words(text: str) -> tuple[str, ...]:
    import shlex  # rarely needed

    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise Unfit(f"must be words as a shell splits them: {str(error).lower()}") from None


def did_you_mean(word: str, known: tuple[str, ...]) -> str:
    """`; did you mean …?` when a known word is close, else nothing."""
    import difflib  # only for faults

    close = difflib.get_close_matches(word.lower(), known, n=1)
    return f"; did you mean {close[0]}?" if close else ""


def literal(value: Value) -> str:
    """The value as TOML has it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return "[" + ", ".join(json.dumps(item, ensure_ascii=False) for item in value) + "]"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)


def masked(setting: Setting, value: object) -> object:
    """The value with its secret part replaced: all of a token, the password of a URL."""
    if not setting.secret or value == "":
        return value
    return _masked_url(value) if isinstance(value, str) and setting.name == "redis_url" else MASK


def shown(setting: Setting, value: object) -> str:
    """What was written, right or wrong, for a message: one line, of bounded length, without secrets."""
    value = masked(setting, value)
    if isinstance(value, int) and value.bit_length() > _HUGE_BITS:
        return "a huge number"
    text = literal(value) if isinstance(value, bool) else repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 1] + "…"


def _masked_url(url: str) -> str:
    # As greedy as can be: a URL that is wrong must not show its password either.
    start = url.find("://") + 3 if "://" in url else 0
    userinfo, at, rest = url[start:].rpartition("@")
    user = userinfo.partition(":")[0] + ":" if ":" in userinfo else ""
    visible = url[:start] + (user + MASK + at if at else "") + rest
    return re.sub(r"(?i)([?&][^=&#]*(?:pass|auth|token|secret)[^=&#]*=)[^&#]*", rf"\1{MASK}", visible)
