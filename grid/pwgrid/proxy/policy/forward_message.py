"""A client, or a question, for a worker of another host: what that host's proxy gets, over Redis and over HTTP.

CLOCK_MONOTONIC is another one on each host: what is a time in a packet to a worker goes to another host as the seconds
that are left.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

PATH: Final = "/forwarded/"
"""What follows is the id of a forward, for which a proxy that can read Redis finds the rest there."""

VIEW_PATH: Final = "/v1/live/forwarded/"
"""The same for a live view: another host's proxy opens this WebSocket."""

_ID: Final = re.compile(r"[0-9a-f]{32}")
_TIMES: Final = ("deadline", "until")
_LEFT: Final = "left"
_OWN: Final = "own"
_BEFORE_HANDSHAKE: Final = "sec-websocket-"


def forward_in(path: str) -> str | None:
    """Returns the id of the forward that this path names, "" where it names one that cannot be; None for other
    paths."""
    if not path.startswith(PATH):
        return None
    named = path.removeprefix(PATH)
    return named if _ID.fullmatch(named) else ""


def outgoing(told: Mapping[str, Any], now: float) -> dict[str, Any]:
    """Returns what a worker would get with its times as seconds that are left of them. `now` is in seconds of
    CLOCK_MONOTONIC."""
    left = {name: told[name] - now for name in _TIMES if name in told}
    sent = {name: value for name, value in told.items() if name not in _TIMES}
    if _OWN in told:
        sent[_OWN] = outgoing(told[_OWN], now)
    return {**sent, _LEFT: left} if left else sent


def incoming(sent: Mapping[str, Any], now: float) -> dict[str, Any]:
    """Returns what the worker gets here: what `outgoing` was told there, with times of this host's clock. Raises
    ValueError, TypeError or KeyError for what no host has sent."""
    told = {name: value for name, value in sent.items() if name != _LEFT}
    if _OWN in told:
        told[_OWN] = incoming(told[_OWN], now)
    return told | {name: now + float(left) for name, left in dict(sent.get(_LEFT, {})).items() if name in _TIMES}


def head(forward_id: str, address: str, headers: Mapping[str, str]) -> str:
    """Returns the upgrade head with which another host's proxy is asked to take a client. `headers` are those that the
    client's browser server gets, with names in lower case; the answer to its handshake goes to the client as it is."""
    shown = {
        "Host": address,
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        **{name: value for name, value in headers.items() if name.startswith(_BEFORE_HANDSHAKE)},
    }
    lines = [f"GET {PATH}{forward_id} HTTP/1.1", *(f"{name}: {value}" for name, value in shown.items())]
    return "\r\n".join([*lines, "", ""])


def question_head(forward_id: str, address: str) -> str:
    """Returns the head of the request that asks another host's proxy to pass a question on."""
    lines = [f"POST {PATH}{forward_id} HTTP/1.1", f"Host: {address}", "Connection: close", "Content-Length: 0"]
    return "\r\n".join([*lines, "", ""])
