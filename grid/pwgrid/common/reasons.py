"""Why a worker ends or is to be replaced, and why it takes no client: a kind, which programs read, and a detail.

The sentence is made here, for people alone. No code reads it again, so that other words change nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final


class WorkerEnd(StrEnum):
    """Why a worker ends. The values are labels of metrics, and stand in the control link's frames and in files."""

    # Planned: another worker takes its place.
    LIFETIME = "lifetime"
    MEMORY = "memory"
    AGE = "age"
    CANARY = "canary"
    HOST_FILE = "host file"
    CONFIGURATION = "configuration"
    UPGRADE = "upgrade"
    OPERATOR = "operator"
    # Planned: no other one does.
    SCALED_DOWN = "scaled down"
    SPARE = "spare"
    SHORT_OF_MEMORY = "short of memory"
    SHUTDOWN = "shutdown"
    TERMINATED = "terminated"
    NO_MASTER = "no master"
    TAKEN_OVER = "taken over"
    NOT_SAID = "not said"
    # Not planned.
    LAUNCH_FAILED = "launch failed"
    NO_REDIS = "no Redis"
    LATE = "late"
    SILENT = "silent"
    MEMORY_LIMIT = "memory limit"
    BROWSER_SERVER_HUNG = "browser server hung"
    BROWSER_HUNG = "browser hung"
    BROWSER_SERVER_ENDED = "browser server ended"
    BROWSER_ENDED = "browser ended"
    BROWSER_UNREADABLE = "browser unreadable"
    WORKER_ENDED = "worker ended"
    NOT_FORKED = "not forked"
    OTHER = "other"


class OfferRefusal(StrEnum):
    """Why a worker does not take a client, or a lease, that a proxy offers, or does not do what it is asked."""

    DRAINING = "draining"
    FULL = "full"
    LATE = "late"
    SUSPECT = "suspect"
    USED_UP = "used up"
    NO_LEASE = "no such lease"
    NO_SESSION = "no such session"
    IN_USE = "in use"
    GONE = "gone"
    UNCHECKED = "its token cannot be checked"
    SILENT = "the worker does not answer"


_SENTENCES: Final[Mapping[WorkerEnd, str]] = {
    WorkerEnd.LIFETIME: "lifetime limit",
    WorkerEnd.MEMORY: "memory: {}",
    WorkerEnd.AGE: "age: {}",
    WorkerEnd.CANARY: "canary failed: {}",
    WorkerEnd.HOST_FILE: "host file replaced: {}",
    WorkerEnd.SPARE: "spare",
    WorkerEnd.SHORT_OF_MEMORY: "the host is short of memory",
    WorkerEnd.TERMINATED: "SIGTERM",
    WorkerEnd.NO_MASTER: "no master for too long",
    WorkerEnd.TAKEN_OVER: "its worker died",
    WorkerEnd.NOT_SAID: "asked",
    WorkerEnd.LAUNCH_FAILED: "{}",
    WorkerEnd.NO_REDIS: "{}",
    WorkerEnd.LATE: "not available {} after its start",
    WorkerEnd.SILENT: "silent for {}",
    WorkerEnd.BROWSER_SERVER_ENDED: "the browser server ended ({})",
    WorkerEnd.BROWSER_ENDED: "browser ended ({})",
    WorkerEnd.BROWSER_UNREADABLE: "the browser says what is no JSON: {}",
    WorkerEnd.WORKER_ENDED: "worker ended with {}",
    WorkerEnd.NOT_FORKED: "cannot start a worker: {}",
}
"""What a kind is called, where that is not its value; {} is the detail. To the others a detail is added."""

_IN_ITS_OWN_WORDS: Final = frozenset({WorkerEnd.OPERATOR, WorkerEnd.NOT_SAID, WorkerEnd.OTHER})
"""Kinds whose detail, if there is one, says all."""

MOST_CHARACTERS: Final = 500
"""The longest detail that is kept: all that the master passes on has to fit into a frame."""


@dataclass(frozen=True, slots=True)
class Reason:
    """`signal` is the name of the signal that ended a process, or empty; `note` is what else is said of the end."""

    kind: WorkerEnd
    detail: str = ""
    signal: str = ""
    note: str = ""

    def __str__(self) -> str:
        sentence = _SENTENCES.get(self.kind, self.kind.value)
        if self.detail and self.kind in _IN_ITS_OWN_WORDS:
            sentence = self.detail
        elif "{}" in sentence:
            sentence = sentence.format(self.detail) if self.detail else self.kind.value
        elif self.detail:
            sentence = f"{sentence}: {self.detail}"
        return f"{sentence}: {self.note}" if self.note else sentence

    def as_data(self) -> dict[str, str]:
        """What stands for it in frames and files."""
        words = {"detail": self.detail, "signal": self.signal, "note": self.note}
        return {"kind": self.kind.value, **{name: text for name, text in words.items() if text}}

    @classmethod
    def read(cls, data: object, default: Reason) -> Reason:
        """The reason in a frame or file; `default` where there is none. A kind that only another version knows is
        OTHER, and what else makes no sense is left out."""
        if not isinstance(data, Mapping):
            return default
        known = {kind.value: kind for kind in WorkerEnd}
        return cls(
            known.get(str(data.get("kind")), WorkerEnd.OTHER),
            _text(data, "detail"),
            _text(data, "signal"),
            _text(data, "note"),
        )


def _text(data: Mapping[str, Any], name: str) -> str:
    text = str(data.get(name, ""))
    return text if len(text) <= MOST_CHARACTERS else text[: MOST_CHARACTERS - 2] + " …"
