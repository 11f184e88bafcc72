"""Why a worker or a session ends, and why a worker takes no client: a kind, which programs read, and a detail.

The sentence is made here, for people alone. No code reads it again, so that other words change nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Generic, TypeVar


class WorkerEnd(StrEnum):
    """Why a worker ends. The values are labels of metrics, and stand in the control link's frames and in files."""

    # Planned: another worker takes its place.
    LIFETIME = "lifetime"
    LAUNCHES = "launches"
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


class EndReason(StrEnum):
    """Why a session or a lease ends. The values are labels of metrics, and stand in records (`reasonKind`), in frames
    and in files; the browser server and the scripts in lua/ repeat some of them."""

    CLIENT_DISCONNECTED = "client disconnected"
    CONNECTION_LOST = "connection lost"
    PROTOCOL_ERROR = "protocol error"  # the detail is the WebSocket close code
    CLIENT_CLOSED_BROWSER = "client closed the browser"  # over CDP; a shared browser lives on for its other clients
    KEEP_TIME_OVER = "keep time over"  # nobody came back to a kept session
    KEPT_IN_DRAIN = "kept in a drain"  # a kept session holds up no drain; the detail is why its worker drains
    KEPT_FOR_MEMORY = "kept while the host is short of memory"
    PING_TIMEOUT = "ping timeout"
    IDLE_TIMEOUT = "idle timeout"
    MAXIMUM_DURATION = "maximum duration"
    HANDSHAKE_REFUSED = "handshake refused"
    TOO_LATE = "too late"
    ENDED_BY_OPERATOR = "ended by operator"
    DRAIN_TIMEOUT = "drain timeout"
    DRAINED_NOW = "drained now"
    WORKER_STOPPED = "worker stopped"
    BROWSER_CRASHED = "browser crashed"
    BROWSER_SERVER_LOST = "browser server lost"
    HUNG = "hung"
    BROWSER_HUNG = "browser hung"
    BROWSER_SICK = "browser sick"  # it opens no pages any more, and this session waits for one
    BROWSER_UNREADABLE = "browser connection broken"  # what it says is no message
    MESSAGE_FAILED = "message failed"  # the browser server failed at a message of this session
    TOO_MUCH_WORK = "too much work"  # what its client asked for kept the browser server from serving others
    CLIENT_DOES_NOT_READ = "the client does not read"  # and what waits for it has become too much
    MEMORY_LIMIT = "memory limit"
    WORKER_LOST = "worker lost"  # the detail is why the worker ended
    HOST_LOST = "host lost"  # with its worker; the detail is the host's name
    LOST_BY_WORKER = "lost by worker"
    LEASE_EXPIRED = "lease expired"
    RETURNED = "returned"  # of a lease, and of the session that came with it
    EXPIRED = "expired"  # likewise
    NOT_ANSWERED = "borrow not answered"  # of a lease
    TOKEN_REVOKED = "token revoked"
    GRID_STOPPED = "grid stopped"  # of a lease that no client has ever come with
    OTHER = "other"  # what only another version knows


class OfferRefusal(StrEnum):
    """Why a worker does not take a client, or a lease, that a proxy offers, or does not do what it is asked."""

    DRAINING = "draining"
    FULL = "full"
    LATE = "late"
    SUSPECT = "suspect"
    USED_UP = "used up"
    NO_LEASE = "no such lease"
    NO_SESSION = "no such session"
    NOT_YET = "not yet"  # the session that the client joins has not begun
    IN_USE = "in use"
    GONE = "gone"
    UNCHECKED = "its token cannot be checked"
    SILENT = "the worker does not answer"
    NOT_LAUNCHED = "its browser did not start"
    NOT_IN_TIME = "its browser did not start in time"  # perhaps because others had to start before it
    OWN_FULL = "all own browsers that it may have are in use"  # MAX_OWN_BROWSERS; it may share one
    NO_PROFILE = "its profile cannot be had"  # another session has it, or there are too many
    UNREACHABLE = "its host cannot be reached"
    NO_WAY = "nothing of this host can reach others now"  # its TLS process, for example, which has a successor soon
    NOT_TAKEN = "its host has not taken it"


_SENTENCES: Final[Mapping[WorkerEnd | EndReason, str]] = {
    WorkerEnd.LIFETIME: "lifetime limit",
    WorkerEnd.LAUNCHES: "launches: {}",
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
    EndReason.PROTOCOL_ERROR: "protocol error ({})",
    EndReason.KEPT_IN_DRAIN: "its worker drained while it was kept: {}",
    EndReason.HOST_LOST: "its host is gone: {}",
    EndReason.KEPT_FOR_MEMORY: "the host ran short of memory while it was kept",
}
"""What a kind is called, where that is not its value; {} is the detail. To the others a detail is added."""

_IN_ITS_OWN_WORDS: Final = frozenset({WorkerEnd.OPERATOR, WorkerEnd.NOT_SAID, WorkerEnd.OTHER, EndReason.WORKER_LOST})
"""Kinds whose detail, if there is one, says all."""

MOST_CHARACTERS: Final = 500
"""The longest detail that is kept: all that the master passes on has to fit into a frame."""


Kind = TypeVar("Kind", WorkerEnd, EndReason)


@dataclass(frozen=True, slots=True)
class Reason(Generic[Kind]):
    """`signal` is the name of the signal that ended a process, or empty; `note` is what else is said of the end."""

    kind: Kind
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

    @staticmethod
    def read(data: object, default: Reason[Kind]) -> Reason[Kind]:
        """The reason in a frame or file; `default`, of the same kinds, where there is none. A kind that only another
        version knows is OTHER, and what else makes no sense is left out."""
        if not isinstance(data, Mapping):
            return default
        kinds = type(default.kind)
        try:
            kind = kinds(str(data.get("kind")))
        except ValueError:
            kind = kinds.OTHER
        return Reason(kind, _text(data, "detail"), _text(data, "signal"), _text(data, "note"))


def of_sessions(reason: Reason[WorkerEnd]) -> Reason[EndReason]:
    """Why the sessions of a worker end that itself ends for `reason`, unplanned."""
    if reason.kind is WorkerEnd.MEMORY_LIMIT:
        return Reason(EndReason.MEMORY_LIMIT, reason.detail, note=reason.note)
    return Reason(EndReason.WORKER_LOST, str(reason))


def _text(data: Mapping[str, Any], name: str) -> str:
    text = str(data.get(name, ""))
    return text if len(text) <= MOST_CHARACTERS else text[: MOST_CHARACTERS - 2] + " …"
