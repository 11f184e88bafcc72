"""What a worker tells Redis of a session: that it runs, or how it has ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pwgrid.common.reasons import EndReason, Reason
from pwgrid.common.session_lifecycle import HeldAs, SessionStatus


@dataclass(frozen=True, slots=True)
class SessionEnd:
    """How a session ended. Times are Unix seconds."""

    status: SessionStatus
    reason: Reason[EndReason]
    at: float
    bytes_in: int = 0
    bytes_out: int = 0
    drain_at: float | None = None
    """When its worker's drain began, if that was before the end."""


@dataclass(frozen=True, slots=True)
class SessionUpdate:
    """A session, or a lease, as its worker knows it; without an `end` it runs.

    `started_at` (Unix seconds) is None and `client` empty where only the worker's predecessor knew them.
    """

    session_id: str
    started_at: float | None = None
    client: str = ""
    end: SessionEnd | None = None
    client_fields: Mapping[str, str] = field(default_factory=dict)
    """Fields of the record that the proxy told the worker. Used where Redis has none."""
    kind: HeldAs = HeldAs.SESSION
    lease_id: str = ""
    """The lease that a session came with; it has no slot of its own then."""

    @property
    def key(self) -> tuple[HeldAs, str]:
        return self.kind, self.session_id

    @property
    def named(self) -> dict[str, str]:
        """Its id as a field of a log line."""
        return {self.kind.value: self.session_id}

    def merged(self, other: SessionUpdate) -> SessionUpdate:
        """Returns both in one, whichever came first. An end is final, and keeps the start."""
        return SessionUpdate(
            self.session_id,
            other.started_at if self.started_at is None else self.started_at,
            self.client or other.client,
            self.end or other.end,
            self.client_fields or other.client_fields,
            self.kind,
            self.lease_id or other.lease_id,
        )

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> SessionUpdate:
        """Reads an update of a spool file. Raises TypeError, KeyError or ValueError for anything else."""
        end = values["end"]
        if end is not None:
            reason = Reason.read(end["reason"], Reason(EndReason.OTHER))
            end = SessionEnd(**{**end, "status": SessionStatus(end["status"]), "reason": reason})
        return cls(**{**values, "end": end, "kind": HeldAs(values["kind"])})
