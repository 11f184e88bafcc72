"""What the forwarder parks with the master: the descriptors of each forwarded session, and what its successor has to
know beside them. All else about a session is in the kernel: which side has ended, how many bytes its pipes hold."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Final

from pwgrid.control.frames import Frame, ProtocolError

NAME: Final = "forwarder"
"""By this name it connects to the control socket."""

FDS: Final = 6
"""Descriptors of a session, in this order: the client's socket, the one to the other host, the pipe for what the
client sends (its end to read, its end to write), the pipe for what the other host sends (likewise)."""

PING_S: Final = 3.0
"""How often the forwarder says that it lives; less where WORKER_LOST_THRESHOLD is short."""

PINGS_WITHIN_THRESHOLD: Final = 3


@dataclass(frozen=True, slots=True)
class ParkedSession:
    """`since`: Unix seconds. `until`: until when (CLOCK_MONOTONIC) a successor may serve a client that has not the mark
    of one who is served: after that its proxy has given it to another worker. `client` and `host` are addresses, for
    the log."""

    session: str
    since: float
    until: float
    client: str
    host: str

    def frame(self) -> Frame:
        return {"t": "park", "data": asdict(self)}

    @classmethod
    def read(cls, data: Frame) -> ParkedSession:
        """Raises ProtocolError."""
        try:
            return cls(
                str(data["session"]),
                float(data["since"]),
                float(data["until"]),
                str(data["client"]),
                str(data["host"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ProtocolError(f"park frame: {error!r}") from None
