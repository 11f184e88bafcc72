"""Writes and reads the frames of a control link: one JSON object a packet, its type and fields checked."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import orjson

MAX_FRAME_BYTES: Final = 128 * 1024

MAX_PARTS: Final = 64
"""How many frames a state may take: room for some 20,000 workers."""

_PART_BYTES: Final = 56 * 1024
"""Of a state's JSON in one frame, as whose text each byte takes two at most."""

Frame = dict[str, Any]


class ProtocolError(ValueError):
    """The peer broke the protocol. It ends this connection only; the link itself may be resumed on another one."""


_INDEX_FIELDS: Final[dict[str, type]] = {"idx": int, "name": str, "data": dict}
_FIELDS: Final[dict[str, dict[str, type]]] = {
    "init": {"lastCommandIdx": int, "lastEventIdx": int},
    "event": _INDEX_FIELDS,
    "command": _INDEX_FIELDS,
    "ack": {"idx": int},
    "ping": {"data": dict},
    "pong": {},
    "state": {"data": dict},
    "part": {"data": dict},
    "stopping": {},
    "close": {"reason": str},
    "request": {"name": str, "data": dict},
    "reply": {"data": dict},
    "error": {"error": str},
    "park": {"data": dict},
    "release": {"session": str},
}


def to_json(frame: Mapping[str, Any]) -> bytes:
    """`frame` as JSON, however long: an answer of the control socket may name every worker."""
    try:
        return orjson.dumps(frame)
    except TypeError:  # a file name in a sentence may hold bytes that are no text: they become "?"
        return json.dumps(frame, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")


def encode(frame: Mapping[str, Any]) -> bytes:
    """One packet of a link. Raises ValueError when it is larger than MAX_FRAME_BYTES."""
    packet = to_json(frame)
    if len(packet) > MAX_FRAME_BYTES:
        raise ValueError(f"a {frame.get('t')} frame of {len(packet)} bytes is over the limit of {MAX_FRAME_BYTES}")
    return packet


def encode_state(data: Mapping[str, Any]) -> list[bytes]:
    """The packets of a state: one, or several parts where it is larger than a frame. Raises ValueError when it is
    larger than MAX_PARTS of them."""
    whole = to_json({"t": "state", "data": data})
    if len(whole) <= MAX_FRAME_BYTES:
        return [whole]
    text = to_json(data)
    starts = range(0, len(text), _PART_BYTES)
    if len(starts) > MAX_PARTS:
        raise ValueError(f"a state of {len(text)} bytes is over the limit of {MAX_PARTS} frames")
    return [
        encode(
            {"t": "part", "data": {"n": n, "of": len(starts), "text": text[at : at + _PART_BYTES].decode("latin-1")}}
        )
        for n, at in enumerate(starts)
    ]


class StateParts:
    """Puts the parts of a state together, which come in their order; the first part of a newer one may follow any."""

    def __init__(self) -> None:
        self._texts: list[str] = []

    def take(self, part: Frame) -> Frame | None:
        """Returns the state with its last part, None before. Raises ProtocolError."""
        n, of, text = part.get("n"), part.get("of"), part.get("text")
        if not (type(n) is int and type(of) is int and isinstance(text, str) and 0 <= n < of <= MAX_PARTS):
            raise ProtocolError("part frame: it is none of a state")
        if n == 0:
            self._texts = []
        if n != len(self._texts):
            raise ProtocolError(f"part frame: {n} came after {len(self._texts)} parts")
        self._texts.append(text)
        if len(self._texts) < of:
            return None
        whole, self._texts = "".join(self._texts), []
        try:
            data = orjson.loads(whole.encode("latin-1"))
        except ValueError as error:  # UnicodeEncodeError is one
            raise ProtocolError(f"a state in parts is not JSON: {error}") from error
        if not isinstance(data, dict):
            raise ProtocolError("a state in parts is not a JSON object")
        return data


def decode(packet: bytes) -> Frame:
    """The frame in `packet`, its type and fields checked. Raises ProtocolError."""
    if len(packet) > MAX_FRAME_BYTES:
        raise ProtocolError(f"frame is over {MAX_FRAME_BYTES} bytes")
    try:
        frame = orjson.loads(packet)
    except orjson.JSONDecodeError as error:
        raise ProtocolError(f"frame is not JSON: {error}") from error
    if not isinstance(frame, dict):
        raise ProtocolError("frame is not a JSON object")
    kind = frame.get("t")
    if not isinstance(kind, str) or kind not in _FIELDS:
        raise ProtocolError(f"unknown frame type {kind!r:.40}")
    for name, wanted in _FIELDS[kind].items():
        value = frame.get(name)
        # bool is an int to isinstance, and no index is negative.
        if type(value) is not wanted or (type(value) is int and value < 0):
            raise ProtocolError(f"{kind} frame: {name} is {value!r:.40}, not {wanted.__name__}")
    return frame
