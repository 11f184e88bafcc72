"""Checks what children report, before anything is done with it: a child may be of another version, or broken.

A figure of the wrong kind raises ValueError, which ends the child's connection. What is only shown is left out where it
is not as expected. What a newer version adds is ignored, and what an older one lacks has a default.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pwgrid.common.types import GIVEN_BY_CLIENTS

_PARTY: Final = ("pool", "run", "token")

MOST_CHARACTERS: Final = 500
"""The longest sentence that is kept: all that the master passes on has to fit into a frame."""


def count(value: object) -> int:
    """A count; 0 for None. Raises ValueError for anything else."""
    if value is None:
        return 0
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r:.40} is not a count")
    return value


def seconds(value: object) -> float | None:
    """A duration, or None. Raises ValueError for anything else."""
    if value is None:
        return None
    if type(value) not in (int, float) or not 0 <= value < math.inf:  # type: ignore[operator]
        raise ValueError(f"{value!r:.40} is no number of seconds")
    return float(value)  # type: ignore[arg-type]


def sentence(value: object, default: str) -> str:
    """A reason, of at most MOST_CHARACTERS; `default` for None."""
    text = default if value is None else str(value)
    return text if len(text) <= MOST_CHARACTERS else text[: MOST_CHARACTERS - 2] + " …"


def ident(data: Mapping[str, Any], field: str) -> str:
    """The id in this field. Raises ValueError if there is none."""
    value = data.get(field)
    if not isinstance(value, str) or not value:
        raise ValueError(f"{field} is {value!r:.40}, and no id")
    return value


def launched(data: Mapping[str, Any]) -> dict[str, Any]:
    """What a worker reports of its browser. Raises ValueError for pids, versions and protocols of the wrong
    kind."""
    for name in ("nodePid", "browserPid"):
        count(data.get(name))
    for name in ("browserVersion", "playwrightVersion"):
        value = data.get(name)
        if value is not None and (not isinstance(value, str) or len(value) > MOST_CHARACTERS):
            raise ValueError(f"{name} is {value!r:.40}, and no version")
    protocols = data.get("protocols", [])
    if not isinstance(protocols, list) or not all(isinstance(each, str) for each in protocols) or len(protocols) > 9:
        raise ValueError(f"protocols is {protocols!r:.40}, and no list of protocols")
    return dict(data)


@dataclass(frozen=True, slots=True)
class KeptSession:
    """A session without a client, whose browser waits for one. `since` is in monotonic seconds."""

    session_id: str
    since: float


def kept_session(value: object) -> KeptSession | None:
    """The session that a worker has kept longest, or None. Raises ValueError for what is no such thing."""
    if value is None:
        return None
    if not isinstance(value, dict) or (since := seconds(value.get("since"))) is None:
        raise ValueError(f"{value!r:.40} is no kept session")
    return KeptSession(ident(value, "session"), since)


def holders(value: object) -> list[dict[str, Any]]:
    """Who has slots of a worker: what they have said of themselves, and how many slots."""
    return list(_counted(value, GIVEN_BY_CLIENTS, "slots"))


def waiting_by_run(value: object) -> list[dict[str, Any]]:
    """Who waits in a proxy: pool, run, token, and how many clients."""
    return list(_counted(value, _PARTY, "waiting"))


def demand(value: object) -> dict[str, int]:
    """How many clients of a proxy wait for pools that start on demand, by pool. Raises ValueError for anything else."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ValueError(f"{value!r:.40} is no demand")
    return {name: count(waiting) for name, waiting in value.items()}


def _counted(value: object, words: tuple[str, ...], figure: str) -> Iterator[dict[str, Any]]:
    for each in value if isinstance(value, list) else ():
        if not isinstance(each, dict):
            continue
        said = {word: each.get(word, "") for word in words}
        number = each.get(figure)
        if all(isinstance(text, str) for text in said.values()) and type(number) is int and number >= 0:
            yield {**said, figure: number}
