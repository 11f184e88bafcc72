"""Writes and reads the frames of a control link: one JSON object a packet, its type and fields checked."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import orjson

MAX_FRAME_BYTES: Final = 128 * 1024

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
