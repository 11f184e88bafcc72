"""What a worker tells Redis of a session: since when it runs, how it ended, or both at once. Talks to no Redis."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class SessionEnd:
    """How a session ended: `status` is completed, ended, failed or expired, `at` is in Unix seconds."""

    status: str
    reason: str
    at: float
    bytes_in: int = 0
    bytes_out: int = 0
    drain_at: float | None = None
    """When its worker's drain began, if it did before that."""


@dataclass(frozen=True, slots=True)
class SessionUpdate:
    """One session as its worker knows it; it runs where there is no `end`.

    `started_at` (Unix seconds) is None and `client` empty where only an earlier worker knows them.
    """

    session_id: str
    started_at: float | None = None
    client: str = ""
    end: SessionEnd | None = None
    told: Mapping[str, str] = field(default_factory=dict)
    """What its worker was told of its client: fields of the record, and `caps`. Written where Redis has no record."""

    def merged(self, other: SessionUpdate) -> SessionUpdate:
        """Both in one, whichever came first: an end is final, and a start is not forgotten for it."""
        return SessionUpdate(
            self.session_id,
            other.started_at if self.started_at is None else self.started_at,
            self.client or other.client,
            self.end or other.end,
            self.told or other.told,
        )

    def as_json(self) -> dict[str, Any]:
        """For a file."""
        return asdict(self)

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> SessionUpdate:
        """What `as_json` gave. Raises TypeError or KeyError for anything else."""
        end = values["end"]
        return cls(**{**values, "end": None if end is None else SessionEnd(**end)})
