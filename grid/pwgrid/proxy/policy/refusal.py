"""The exception that becomes an HTTP error, for upgrades and the API, its form, and the reasons by which refusals are
counted."""

import re
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from http import HTTPStatus
from typing import Final

import orjson
from websockets.datastructures import Headers
from websockets.http11 import Response

from pwgrid.common.launch_failure import without_places
from pwgrid.common.wording import counted, listed
from pwgrid.settings.model import Settings

CLIENT_URL: Final = "ws://<host>:<port>/?browser=chromium"

RETRY_AFTER_S: Final = 5
RETRY_AFTER_STOPPING_S: Final = 30
RETRY_AFTER_QUEUE_S: Final = 30
"""For clients that the line was too long for, or that waited in vain."""


class RefusalReason(StrEnum):
    """The closed set of reasons that metrics count. The sentences to clients say more."""

    BAD_REQUEST = "bad request"
    BAD_HANDSHAKE = "bad handshake"
    NO_SUCH_BROWSER = "no such browser"
    TOKEN = "token"  # missing or wrong
    FORBIDDEN = "forbidden"  # a foreign Origin or Host, or not allowed to this token
    NOT_FOUND = "not found"
    SLOW_HEAD = "slow head"
    CONFLICT = "conflict"
    NO_WEBSOCKET = "no WebSocket"
    VERSION = "version"
    TOO_MANY = "too many"
    HEAD_TOO_LARGE = "head too large"
    STOPPING = "stopping"
    MASTER_LOST = "master lost"
    QUEUE_FULL = "queue full"
    RUN_FULL = "run full"
    CAP_REACHED = "cap reached"
    WAITED_TOO_LONG = "waited too long"
    NO_CAPACITY = "no capacity"
    OTHER = "other"


_R = RefusalReason

_BY_STATUS: Final = {
    400: _R.BAD_REQUEST,
    401: _R.TOKEN,
    403: _R.FORBIDDEN,
    404: _R.NOT_FOUND,
    408: _R.SLOW_HEAD,
    409: _R.CONFLICT,
    426: _R.NO_WEBSOCKET,
    428: _R.VERSION,
    429: _R.TOO_MANY,
    431: _R.HEAD_TOO_LARGE,
    503: _R.NO_CAPACITY,
}
"""The reason of a refusal that names none."""


_FULL: Final = {
    "grid": "{waiting} for a slot already: come back later, or add workers",
    "pool": "{waiting} to borrow a {pool} slot already: come back later, add workers, or raise BORROW_QUEUE_MAX",
    "run": "{waiting} for a {pool} slot in the run {run!r} already: let it ask for fewer at once, "
    "or raise BORROW_QUEUE_MAX_PER_RUN",
}
"""Sentences by what a line is full of."""


_SHORTER: Final = {
    "": "shorten it",
    "x-playwright-launch-options": "pass fewer launch options (args, firefoxUserPrefs), or set them for a pool of the "
    "grid",
    "x-playwright-proxy": "name a shorter bypass list",
    "cookie": "a client needs none",
}
"""What the author of a request can do about its largest header; "" is the URL."""

_HEADER_CHARACTERS: Final = 40
_VERSION_CHARACTERS: Final = 20
_ODD: Final = re.compile(r"[^a-z0-9_-]")


class Refusal(Exception):
    """An HTTP error with the body `{"error": "<sentence>", …}`, which has the `details`, too. A Playwright client shows
    `error` to its user word for word. `retry_after_s` says when to come back, in a header and in the body."""

    def __init__(
        self,
        status: int,
        error: str,
        *,
        headers: tuple[tuple[str, str], ...] = (),
        details: Mapping[str, object] | None = None,
        reason: RefusalReason | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(error)
        self.reason = reason or _BY_STATUS.get(status, RefusalReason.OTHER)
        self.status = status
        self.error = error
        self.headers = headers
        self.details = {**(details or {})}
        if retry_after_s is not None:
            self.headers = (*headers, ("Retry-After", str(retry_after_s)))
            self.details = {"retryAfterS": retry_after_s, **self.details}

    def body(self) -> bytes:
        return orjson.dumps({"error": self.error, **self.details})

    def response(self) -> bytes:
        """Returns the whole HTTP/1.1 response, with `Connection: close`."""
        body = self.body()
        headers = Headers(self.headers)
        headers["Content-Type"] = "application/json"
        headers["Content-Length"] = str(len(body))
        headers["Connection"] = "close"
        return Response(self.status, HTTPStatus(self.status).phrase, headers, body).serialize()


def nothing_at(path: str) -> Refusal:
    """404: an unknown path."""
    return Refusal(
        404,
        f"there is nothing at {path[:100]}: a Playwright client connects to {CLIENT_URL}; "
        "/docs has the paths of the API, and /dashboard shows the grid",
    )


def head_too_large(most_bytes: int, parts: Iterable[tuple[str, int]]) -> Refusal:
    """431: a request head is larger than `most_bytes`. `parts` are its headers and its URL (""), as far as they have
    come, with their sizes: the sentence names the largest."""
    name, size = max(parts, key=lambda part: part[1], default=("", 0))
    name = name.lower()
    shown = f"header {_ODD.sub('?', name[:_HEADER_CHARACTERS])}" if name else "URL"
    what = _SHORTER.get(name, "shorten it, or leave it out")
    error = f"the request head is larger than {most_bytes} bytes, of which its {shown} has at least {size}: {what}"
    return Refusal(431, error)


def no_such_lease(ended: str | None = None) -> Refusal:
    """404: the lease of an endpoint is over. `ended` says why (an EndReason), where that is known."""
    if ended is None:
        return Refusal(404, "there is no such lease (any more): it was returned, or has expired; borrow another one")
    return Refusal(404, f"this lease has ended ({ended}): borrow another one", details={"reason": ended})


def other_version(
    version: str, what: str, there: Sequence[str], *, is_elsewhere: bool = False, named: str = "", asks: bool = False
) -> Refusal:
    """428: the client's Playwright `version` has no worker. `what` says of whom it is told that they are "for" the
    versions `there`, the newest last. `named` is what the client has to leave out to be served, or (not `is_elsewhere`)
    what has to get another version. `asks`: the version is not the client's own, but that of a lease to come."""
    version = version[:_VERSION_CHARACTERS]
    who = f"Playwright {version} is asked for" if asks else f"this client is Playwright {version}"
    add = f"pwgrid setup --playwright {version}"
    details: dict[str, object] = {"versions": [*there]}
    if is_elsewhere:
        remedy = f"leave out {named}, since other pools are for it"
    elif named:
        remedy = f'have the grid\'s operator make a pool for it, with playwright = "{version}" in [[pools]]'
    else:
        details["command"] = add
        remedy = f"have the grid's operator run `{add}`"
    if not asks:
        remedy = f"install Playwright {there[-1]} on the client, or {remedy}" if there else remedy
    return Refusal(428, f"{who}, and {what} Playwright {listed(there)}: {remedy}", details=details)


def not_on_demand(pool: str, reason: str) -> Refusal:
    """503: the pool of this client's version starts on demand, and cannot now."""
    return no_capacity(f"pool {pool}, which starts when a client comes, does not start now: {without_places(reason)}")


def bad_handshake(error: str, headers: tuple[tuple[str, str], ...] = ()) -> Refusal:
    return Refusal(400, f"bad WebSocket handshake: {error}", headers=headers, reason=RefusalReason.BAD_HANDSHAKE)


def no_capacity(error: str, reason: RefusalReason = RefusalReason.NO_CAPACITY) -> Refusal:
    """503: the grid cannot take the session now."""
    return Refusal(503, error, retry_after_s=RETRY_AFTER_S, reason=reason)


def registry_away(error: Exception) -> Refusal:
    """503 while Redis is away."""
    return no_capacity(f"the registry does not answer: {without_places(str(error))}")


def not_launched(detail: str, options: Iterable[str] = ()) -> Refusal:
    """503: a worker has launched no browser for this client alone, `detail` says why; 400 where launch options of the
    client, whose names these are, may be at fault."""
    why = without_places(detail) or "its worker does not say why"
    if named := ", ".join(sorted(options)):
        return Refusal(400, f"no browser started with the client's launch options ({named}): {why}")
    return no_capacity(f"no browser of its own started for this client: {why}")


def stopping() -> Refusal:
    """503 while the grid shuts down."""
    return Refusal(
        503,
        f"the grid is shutting down: connect again in {RETRY_AFTER_STOPPING_S} s",
        retry_after_s=RETRY_AFTER_STOPPING_S,
        reason=RefusalReason.STOPPING,
    )


def replaced() -> Refusal:
    """503 of a proxy that ends while another one serves; only who waits for longer than anybody may hears it."""
    return no_capacity("the proxy in which this client waited was replaced: connect again")


def line_full(pool: str, run: str, limit: str, most: int, length: int, position: int) -> Refusal:
    """503: `most` clients wait already of those that `limit` counts: all ("grid"), those who borrow from this pool
    ("pool"), or of these the ones with the same run ("run"). `length` is the line's, `position` the client's in it."""
    waiting = counted(most, "client waits", "clients wait")
    reason = RefusalReason.RUN_FULL if limit == "run" else RefusalReason.QUEUE_FULL
    return _no_place(_FULL[limit].format(waiting=waiting, pool=pool, run=run), reason, length, position)


def waited_in_vain(settings: Settings, pool: str, length: int, position: int, *, borrows: bool) -> Refusal:
    """503: no slot came free within the time that a client may wait."""
    waited_s = settings.borrow_queue_timeout if borrows else settings.worker_select_timeout
    others = counted(length - 1, "other client waits", "other clients wait") if length > 1 else "nobody else waits"
    error = (
        f"no {pool} slot came free within {waited_s:g} s: {others}; use fewer clients at once, add workers "
        f"(pwgrid scale {pool}=N) or slots (MAX_CONCURRENT_SESSIONS), or raise "
        f"{'BORROW_QUEUE_TIMEOUT' if borrows else 'WORKER_SELECT_TIMEOUT'}"
    )
    return _no_place(error, RefusalReason.WAITED_TOO_LONG, length, position)


def _no_place(error: str, reason: RefusalReason, length: int, position: int) -> Refusal:
    details = {"reason": reason.value, "queueLength": length, "position": position}
    return Refusal(503, error, retry_after_s=RETRY_AFTER_QUEUE_S, reason=reason, details=details)
