"""One side of a control link, over which commands and events are applied exactly once and in order.

It knows the greeting, the indices, what is acknowledged and what has to be sent again. Its owner does the I/O: it feeds
packets to `receive`, and writes what `next_packet` offers. Between two connections it keeps what the other side has not
acknowledged.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, Final, Literal

from pwgrid.control.frames import Frame, ProtocolError, StateParts, decode, encode, encode_state

MAX_UNACKNOWLEDGED: Final = 4096
ACK_EVERY: Final = 32
"""An acknowledgement is sent at once for so many frames; fewer wait for the next ping."""

Side = Literal["master", "child"]
LinkState = Literal["down", "greeting", "open", "closed"]


class LinkFullError(ValueError):
    """Too many frames are unacknowledged: the peer has been away for very long."""


_INDEXED: Final[dict[Side, str]] = {"master": "command", "child": "event"}
_LAST_SENT: Final[dict[Side, str]] = {"master": "lastCommandIdx", "child": "lastEventIdx"}
_LAST_APPLIED: Final[dict[Side, str]] = {"master": "lastEventIdx", "child": "lastCommandIdx"}
"""Fields of an init frame, by the side that sent or applied so many; both are in the frames of both."""
_EXPECTED: Final[dict[tuple[Side, LinkState], frozenset[str]]] = {
    ("master", "greeting"): frozenset({"init", "close"}),
    ("child", "greeting"): frozenset({"init", "close"}),
    ("master", "open"): frozenset({"event", "ack", "ping", "state", "part", "stopping", "close"}),
    ("child", "open"): frozenset({"command", "ack", "pong", "state", "part", "stopping", "close"}),
}
"""The frames that a side may receive."""
# One place for each kind: a newer one replaces an unsent older one, so a stalled peer costs no memory.
_AFTER_STATE: Final = ("ping", "pong", "stopping", "close")


class Outbox:
    """Frames with rising indices, the first of which is `after` + 1, kept until the peer has acknowledged them."""

    def __init__(self, after: int = 0) -> None:
        self.last = self.acknowledged = self._sent = after
        self._kept: deque[bytes] = deque()

    def add(self, kind: str, name: str, data: Frame) -> None:
        if len(self._kept) >= MAX_UNACKNOWLEDGED:
            raise LinkFullError(f"{MAX_UNACKNOWLEDGED} frames are unacknowledged; {name} is not sent")
        self._kept.append(encode({"t": kind, "idx": self.last + 1, "name": name, "data": data}))
        self.last += 1

    def acknowledge(self, idx: int) -> None:
        if idx > self.last:
            raise ProtocolError(f"peer acknowledges {idx}, but only {self.last} were sent")
        while self.acknowledged < idx:
            self._kept.popleft()
            self.acknowledged += 1
        self._sent = max(self._sent, self.acknowledged)

    def resume(self, peer_has: int) -> None:
        """Go back to the first frame that the peer has not applied."""
        if peer_has < self.acknowledged:
            raise ProtocolError(f"peer wants frames after {peer_has}, but it acknowledged {self.acknowledged}")
        self.acknowledge(peer_has)
        self._sent = peer_has

    def next(self) -> bytes | None:
        position = self._sent - self.acknowledged
        return self._kept[position] if position < len(self._kept) else None

    def sent(self) -> None:
        self._sent += 1

    def unacknowledged(self) -> list[tuple[str, Frame]]:
        return [(frame["name"], frame["data"]) for frame in map(decode, self._kept)]


class Link:
    """One side of a link over all its connections. `ident` is the worker id, or "proxy".

    `adopts`: another master had the child until now; the child's first greeting says which indices these two reached.
    """

    def __init__(self, side: Side, ident: str, *, adopts: bool = False) -> None:
        self.side: Final = side
        self.ident = ident
        self.phase: LinkState = "down"
        self._adopts = adopts
        self._out = Outbox()
        self._applied = 0
        """All of the peer's indices up to this one were applied."""
        self._told = 0
        """Up to which of these the peer was told so."""
        self._greeting: Frame = {}
        self._slots: dict[str, bytes] = {}
        self._state: list[bytes] = []
        """The packets of the latest state; none before the first one."""
        self._unsent_state: deque[bytes] = deque()
        self._parts = StateParts()
        self._offered = ""
        self._ack_now = False

    def __repr__(self) -> str:
        out = f"{self._out.acknowledged}/{self._out.last}"
        return f"<Link {self.side} {self.ident} {self.phase} out={out} in={self._applied}>"

    def connect(self, greeting: Mapping[str, Any]) -> None:
        """Begin a new connection. `greeting`: the fields of this side's init frame beside the indices."""
        if self.phase == "closed":
            raise ProtocolError("the link was closed for good")
        self.phase = "greeting"
        self._slots.clear()
        self._unsent_state.clear()
        self._greeting = dict(greeting)
        if self.side == "child":
            self._queue_init({"ackedEventIdx": self._out.acknowledged})

    def disconnect(self) -> None:
        """Note the end of the connection. What was not acknowledged is sent again on the next one."""
        if self.phase != "closed":
            self.phase = "down"
        self._slots.clear()
        self._unsent_state.clear()

    def send(self, name: str, data: Frame) -> None:
        """Send a command or event, now or on the next connection. Raises LinkFullError, or ValueError if too large."""
        self._out.add(_INDEXED[self.side], name, data)

    def state(self, data: Frame) -> None:
        """Send the latest state, again on each new connection; an unsent older one is dropped, or what is unsent of it.
        Raises ValueError for one that is too large."""
        self._state = encode_state(data)
        if self.phase == "open":
            self._unsent_state = deque(self._state)
            if "ping" in self._slots:  # it is written later, and has a state, too
                self._slots["ping"] = encode({**decode(self._slots["ping"]), "data": data})

    def ping(self, ts: float, data: Frame) -> None:
        """Send a ping with the latest state; what was applied is acknowledged with it."""
        self._ack_now = True
        self._queue("ping", ts=ts, data=data)

    def stopping(self) -> None:
        self._queue("stopping")

    def close(self, reason: str) -> None:
        """End the link for good. Idempotent."""
        if self.phase == "open":
            self._queue("close", reason=reason)
        elif self.phase != "closed":
            self.phase = "closed"

    def unacknowledged(self) -> list[tuple[str, Frame]]:
        """Commands or events, oldest first, that the peer has not acknowledged."""
        return self._out.unacknowledged()

    def next_packet(self) -> bytes | None:
        """What to write now, None for nothing. Call `sent` once it is written; until then it may be replaced."""
        if "init" in self._slots:
            return self._offer("init", self._slots["init"])
        if self.phase != "open":
            return None
        if self._ack_now and self._applied > self._told:
            return self._offer("ack", encode({"t": "ack", "idx": self._applied}))
        packet = self._out.next()
        if packet is not None:
            return self._offer("indexed", packet)
        if self._unsent_state:
            return self._offer("state", self._unsent_state[0])
        for kind in _AFTER_STATE:
            if kind in self._slots:
                return self._offer(kind, self._slots[kind])
        return None

    def sent(self) -> None:
        """The packet that `next_packet` returned last has been written."""
        offered, self._offered = self._offered, ""
        if offered == "indexed":
            self._out.sent()
        elif offered == "state":
            self._unsent_state.popleft()
        elif offered == "ack":
            self._told = self._applied
            self._ack_now = False
        else:
            self._slots.pop(offered, None)
            if offered == "close":
                self.phase = "closed"

    def receive(self, packet: bytes) -> Frame | None:
        """The frame in `packet` if it concerns this side's owner: an event or a command, once; a `state`, as which a
        ping counts, too; `init`, with which the connection is open and what the peer missed is sent again; `stopping`;
        or `close`, after which there is no reconnect. Raises ProtocolError; the caller then ends this connection."""
        frame = decode(packet)
        kind = frame["t"]
        if kind not in _EXPECTED.get((self.side, self.phase), ()):
            raise ProtocolError(f"a {kind} frame is not expected by the {self.side} while the link is {self.phase}")
        match kind:
            case "init":
                self._greet(frame)
                self.phase = "open"
            case "close":
                self.phase = "closed"
            case "event" | "command":
                return frame if self._is_new(frame["idx"]) else None
            case "ack":
                self._out.acknowledge(frame["idx"])
                return None
            case "ping":
                self._ack_now = True
                self._queue("pong", ts=frame.get("ts"))
                return {"t": "state", "data": frame["data"]}
            case "pong":
                return None
            case "part":
                data = self._parts.take(frame["data"])
                return None if data is None else {"t": "state", "data": data}
        return frame

    def _greet(self, frame: Frame) -> None:
        theirs, seen = _LAST_APPLIED[self.side], _LAST_SENT[self.side]
        if self._adopts:
            self._adopt(frame)
        if self.side == "child":
            ident = frame.get("workerId", self.ident)
            if ident != self.ident:
                # Another identity: nothing of the old history means anything to this master.
                self.ident, self._out, self._applied = str(ident), Outbox(), 0
        if frame[theirs] < self._applied:
            raise ProtocolError(f"init frame: {theirs} is {frame[theirs]}, but {self._applied} were applied here")
        self._out.resume(frame[seen])
        self._told = self._applied
        self._ack_now = False
        if self.side == "master":
            self._queue_init({"workerId": self.ident})
        self._unsent_state = deque(self._state)

    def _adopt(self, init: Frame) -> None:
        """Go on after the indices that the other master acknowledged; frames that wait already get the next ones."""
        acknowledged = init.get("ackedEventIdx", 0)
        if type(acknowledged) is not int or not 0 <= acknowledged <= init["lastEventIdx"]:
            raise ProtocolError(f"init frame: ackedEventIdx is {acknowledged!r:.40}")
        waiting = self._out.unacknowledged()
        self._adopts, self._applied, self._out = False, acknowledged, Outbox(init["lastCommandIdx"])
        for name, data in waiting:
            self.send(name, data)

    def _is_new(self, idx: int) -> bool:
        """Whether to apply this frame: not if it was before. Raises ProtocolError when frames before it are missing."""
        if idx <= self._applied:
            self._ack_now = True  # the peer sent it again, so it does not know that we have it
            return False
        if idx != self._applied + 1:
            raise ProtocolError(f"frame {idx} came after {self._applied}: something is missing")
        self._applied = idx
        self._ack_now = self._ack_now or self._applied - self._told >= ACK_EVERY
        return True

    def _offer(self, kind: str, packet: bytes) -> bytes:
        self._offered = kind
        return packet

    def _queue(self, kind: str, **fields: Any) -> None:
        if self.phase == "open":
            self._slots[kind] = encode({"t": kind, **fields})

    def _queue_init(self, fields: Frame) -> None:
        indices = {_LAST_SENT[self.side]: self._out.last, _LAST_APPLIED[self.side]: self._applied}
        self._slots["init"] = encode({**self._greeting, **fields, **indices, "t": "init"})
