"""Refusals as HTTP/1.1 responses. One shape for all: `{"error": "<sentence>", …}`."""

from http import HTTPStatus
from typing import Final

import orjson
from websockets.datastructures import Headers
from websockets.http11 import Response

from pwgrid.proxy.policy.upgrade_request import Refusal

RETRY_AFTER_S: Final = 5
RETRY_AFTER_STOPPING_S: Final = 30


def body_of(refusal: Refusal) -> bytes:
    """The JSON body of a refusal."""
    return orjson.dumps({"error": refusal.error, **refusal.details})


def render(refusal: Refusal) -> bytes:
    """The whole response, which ends the connection."""
    body = body_of(refusal)
    headers = Headers(refusal.headers)
    headers["Content-Type"] = "application/json"
    headers["Content-Length"] = str(len(body))
    headers["Connection"] = "close"
    return Response(refusal.status, HTTPStatus(refusal.status).phrase, headers, body).serialize()


def no_capacity(error: str, retry_after_s: int = RETRY_AFTER_S) -> Refusal:
    """503: the grid cannot take the session now and says when to come back."""
    return Refusal(503, error, headers=(("Retry-After", str(retry_after_s)),), details={"retryAfterS": retry_after_s})


def stopping() -> Refusal:
    """503 while the grid shuts down."""
    return no_capacity(
        f"the grid is shutting down: connect again in {RETRY_AFTER_STOPPING_S} s", RETRY_AFTER_STOPPING_S
    )


def waited_too_long(browser_type: str, waited_s: float, waiting: int) -> Refusal:
    """503: no slot came free in time. `waiting`: how many others are in line for this browser type."""
    others = {0: "nobody else waits", 1: "1 other client waits"}.get(waiting, f"{waiting} other clients wait")
    return no_capacity(
        f"no {browser_type} slot came free within {waited_s:g} s: {others}; use fewer clients at once, add workers "
        f"(pwgrid scale {browser_type}=N) or slots (MAX_CONCURRENT_SESSIONS), or raise WORKER_SELECT_TIMEOUT"
    )
