"""The leases that somebody has borrowed from this worker: a slot for whoever shows the secret, until it is given back.

The authority for them; Redis mirrors it, and a file tells a successor. Chooses no worker, answers no HTTP.
"""

from __future__ import annotations

import asyncio
import hmac
import os
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import orjson
import structlog

from pwgrid.common.session_lifecycle import EndReason
from pwgrid.common.worker_lifecycle import WorkerStatus
from pwgrid.registry.records import CAPS, EXPIRES_AT, LEASE, TOKEN, lease_of
from pwgrid.worker.handoff import Answer
from pwgrid.worker.policy.admission import LeaseRefusal, Offer
from pwgrid.worker.slots import LiveSession, Slots

log = structlog.get_logger()

KEEP_S: Final = 4.0
"""How long a proxy may take to say that its client gets the lease."""

HANDOVER_S: Final = 1.0
"""How long the next client of a lease is kept waiting for the last one's end: it may have closed its connection, and
we have not heard of that yet."""

UNANSWERED_S: Final = 5.0
"""How long a lease waits for its borrower once the proxy is gone that was to answer the borrow: it may have done so,
and died before it could say that. Also how long a successor waits to hear of the answer."""

NO_LEASE: Final[LeaseRefusal] = "no such lease"

Waiting = tuple[Offer, socket.socket, Answer, asyncio.TimerHandle]


@dataclass(frozen=True, slots=True)
class End:
    """How a lease ended: by whom (client, grid, browser), and why."""

    by: str
    reason: str


RETURNED: Final = End("grid", EndReason.RETURNED)
EXPIRED: Final = End("grid", EndReason.EXPIRED)
NOT_ANSWERED: Final = End("grid", EndReason.NOT_ANSWERED)
DISCONNECTED: Final = End("client", EndReason.CLIENT_DISCONNECTED)


@dataclass(slots=True)
class Lease:
    """One lease. `expires_at` is in Unix seconds; `told` is what its record says beside that (names, label key)."""

    lease_id: str
    secret: str
    expires_at: float
    told: dict[str, str]
    held: LiveSession
    link: int | None = None
    """That of the proxy that has taken it for a client."""
    is_kept: bool = False
    """Whether its proxy has said so: then it is on record, and a successor has it."""
    is_answered: bool = False
    """Whether its borrower is known to have it: the proxy has said that the answer is written, or a client came with
    it. Until then it ends UNANSWERED_S after that proxy's."""
    session_id: str = ""
    """That of the client that is connected with it now; there is one at a time."""
    over: End | None = None
    """How it ended; it goes once its client's connection is closed."""
    last: End | None = None
    """How the last of its clients went."""
    waiting: Waiting | None = None
    timer: asyncio.TimerHandle | None = None
    """Ends it when its time is over."""
    grace: asyncio.TimerHandle | None = None
    """Ends it when nobody has been connected for `grace_s`, or nobody has come with one that is not answered."""

    def fields(self) -> dict[str, str]:
        """What its record in Redis is to have."""
        told = {name: text for name, text in self.told.items() if name != CAPS}
        return {**told, EXPIRES_AT: f"{self.expires_at:.3f}"}

    def as_json(self) -> dict[str, Any]:
        """For a successor's file."""
        held = {"client": self.held.client, "startedAt": self.held.started_at, "isAnswered": self.is_answered}
        return {"id": self.lease_id, "secret": self.secret, "expiresAt": self.expires_at, "told": self.told, **held}


@dataclass(frozen=True, slots=True)
class Deeds:
    """What others do with leases and their sessions."""

    began: Callable[[Lease], None]
    """It is kept: put it on record."""
    ended: Callable[[Lease, End], None]
    """It is over: put that on record."""
    changed: Callable[[], None]
    """Its record is to be renewed soon."""
    close: Callable[[str, str], None]
    """Closes this session; `disconnected` follows."""
    serve: Callable[[Offer, socket.socket, Answer], None]
    """Gives this client to the browser server."""
    taken: Callable[[], None]
    """A slot has been taken."""


@dataclass(slots=True)
class Leases:
    """The leases of one worker. `status` says where that is in its life; `path` is where a successor looks for them,
    `grace_s` how long one is kept whose client has gone."""

    slots: Slots
    status: Callable[[], WorkerStatus]
    path: Path
    grace_s: float
    deeds: Deeds
    by_id: dict[str, Lease] = field(default_factory=dict)

    # What proxies ask

    def asked(self, link: int, message: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to a proxy on that link. Raises KeyError, TypeError or ValueError for what is no question."""
        lease_id = str(message["id"])
        if not self._may_ask(lease_id, message.get("token")):
            return {"refused": NO_LEASE}
        match message["do"]:
            case "take":
                return self._take(link, lease_id, message)
            case "keep":
                return self._keep(lease_id, says_when_answered=bool(message.get("saysWhenAnswered")))
            case "answered":
                return self._answered(lease_id)
            case "unanswered":
                return {"refused": None if self.end(lease_id, NOT_ANSWERED) else NO_LEASE}
            case "drop":
                self._drop(lease_id)
                return {"refused": None}
            case "extend":
                return self._extend(lease_id, float(message["ttlS"]))
            case "return":
                return {"refused": None if self.end(lease_id, RETURNED) else NO_LEASE}
            case other:
                raise ValueError(f"no such question: {other!r}")

    def link_ended(self, link: int) -> None:
        """That proxy is gone: the leases that it had taken and not kept are dropped; those of which it has not said
        that their borrowers have the answer wait for these a little."""
        for lease in list(self.by_id.values()):
            if lease.link == link:
                self._drop(lease.lease_id)
                self._await_borrower(lease)

    def _may_ask(self, lease_id: str, token: object) -> bool:
        """Whether the lease belongs to whoever asks; `token` is the name of their token, None for an operator."""
        lease = self.by_id.get(lease_id)
        return token is None or lease is None or lease.told.get(TOKEN, "") == token

    def _take(self, link: int, lease_id: str, message: Mapping[str, Any]) -> dict[str, Any]:
        told = {str(name): str(value) for name, value in message["told"].items()}
        offer = Offer(LEASE + lease_id, float(message["deadline"]), str(message["client"]), told=told)
        refused = self.slots.hold(offer, self.status(), time.monotonic())
        if refused is not None:
            return {"refused": refused}
        held = self.slots.held[offer.session_id]
        lease = Lease(lease_id, str(message["secret"]), float(message["expiresAt"]), told, held, link)
        lease.timer = asyncio.get_running_loop().call_later(KEEP_S, self._drop, lease_id)
        self.by_id[lease_id] = lease
        self.deeds.taken()
        return {"refused": None}

    def _keep(self, lease_id: str, *, says_when_answered: bool) -> dict[str, Any]:
        """Proxies of an earlier version say nothing of the answer, and want to hear nothing new."""
        lease = self.by_id.get(lease_id)
        if lease is None:
            return {"refused": NO_LEASE}
        if not lease.is_kept:
            lease.is_kept = True
            lease.is_answered = not says_when_answered
            self._arm(lease)
            self.deeds.began(lease)
            self._write()
        return {"refused": None, "hearsOfAnswer": True} if says_when_answered else {"refused": None}

    def _answered(self, lease_id: str) -> dict[str, Any]:
        lease = self.by_id.get(lease_id)
        if lease is None or lease.over is not None:
            return {"refused": NO_LEASE}
        self._borrower_has(lease)
        return {"refused": None}

    def _borrower_has(self, lease: Lease) -> None:
        """Whoever borrowed the lease knows of it: it is theirs until it is returned or its time is over."""
        if not lease.is_answered:
            lease.is_answered = True
            self._write()
            if lease.grace is not None:
                lease.grace.cancel()
                lease.grace = None

    def _await_borrower(self, lease: Lease) -> None:
        """The proxy is gone that was to say whether the borrower has it."""
        if lease.lease_id in self.by_id and not lease.is_answered and lease.grace is None:
            loop = asyncio.get_running_loop()
            lease.grace = loop.call_later(UNANSWERED_S, self.end, lease.lease_id, NOT_ANSWERED)

    def _drop(self, lease_id: str) -> None:
        """Drop a lease that its client never heard of, as if it had never existed."""
        lease = self.by_id.get(lease_id)
        if lease is not None and not lease.is_kept:
            self._forget(lease)
            self.slots.take_back(lease.held.session_id)

    def _extend(self, lease_id: str, ttl_s: float) -> dict[str, Any]:
        lease = self.by_id.get(lease_id)
        if lease is None or lease.over is not None:
            return {"refused": NO_LEASE}
        lease.expires_at = max(lease.expires_at, time.time() + ttl_s)
        self._borrower_has(lease)
        self._arm(lease)
        self._write()
        self.deeds.changed()
        return {"refused": None, "expiresAt": lease.expires_at}

    # Its clients

    def offered(self, offer: Offer, sock: socket.socket, answer: Answer) -> None:
        """A client comes with a lease: it is admitted, or told why not, or waits for the last one's end."""
        lease = self.by_id.get(offer.lease_id)
        if lease is None or lease.over is not None or not _is_same(lease.secret, offer.secret):
            answer(NO_LEASE)
        elif time.monotonic() >= offer.deadline:
            answer("late")
        elif not lease.session_id:
            self._admit(lease, offer, sock, answer)
        elif lease.waiting is not None:
            answer("in use")
        else:
            timer = asyncio.get_running_loop().call_later(HANDOVER_S, self._refuse_waiting, lease, "in use")
            lease.waiting = offer, sock, answer, timer

    def not_served(self, session: LiveSession) -> None:
        """The browser server did not get this client; another one may come."""
        if (lease := self.by_id.get(session.lease_id)) is not None and lease.session_id == session.session_id:
            lease.session_id = ""
            self._after(lease)

    def disconnected(self, session_id: str, end: End) -> None:
        """This session is over. Does nothing for one that came without a lease, or is unknown here."""
        lease = self.by_id.get(lease_of(session_id))
        if lease is not None and lease.session_id in ("", session_id):
            lease.session_id, lease.last = "", end
            self._after(lease)

    def _admit(self, lease: Lease, offer: Offer, sock: socket.socket, answer: Answer) -> None:
        self._borrower_has(lease)
        if lease.grace is not None:
            lease.grace.cancel()
            lease.grace = None
        lease.session_id = offer.session_id
        self.slots.admit_with_lease(offer)
        self.deeds.serve(offer, sock, answer)

    def _after(self, lease: Lease) -> None:
        """Nobody is connected with it any more."""
        if lease.over is not None:
            self._finish(lease, lease.over)
        elif lease.waiting is not None:
            offer, sock, answer, timer = lease.waiting
            lease.waiting = None
            timer.cancel()
            self._admit(lease, offer, sock, answer)
        elif self.grace_s > 0:
            loop = asyncio.get_running_loop()
            lease.grace = loop.call_later(self.grace_s, self.end, lease.lease_id, lease.last or DISCONNECTED)
        else:
            self._finish(lease, lease.last or DISCONNECTED)

    def _refuse_waiting(self, lease: Lease, reason: LeaseRefusal) -> None:
        if lease.waiting is not None:
            _, _, answer, timer = lease.waiting
            lease.waiting = None
            timer.cancel()
            answer(reason)

    # Its end

    def end(self, lease_id: str, end: End) -> bool:
        """The lease is over; a client that is connected is told why. False if it was already, or is none of ours."""
        lease = self.by_id.get(lease_id)
        if lease is None or lease.over is not None:
            return False
        self._refuse_waiting(lease, NO_LEASE)
        if lease.session_id:
            lease.over = end
            self._write()
            self.deeds.close(lease.session_id, end.reason)
        else:
            self._finish(lease, end)
        return True

    def cut(self, end: End) -> None:
        """All are over. The caller closes the sessions that came with them; each lease goes with its session."""
        for lease in list(self.by_id.values()):
            self._refuse_waiting(lease, NO_LEASE)
            lease.over = lease.over or end
            if not lease.session_id:
                self._finish(lease, lease.over)

    def _finish(self, lease: Lease, end: End) -> None:
        self._forget(lease)
        self.slots.end(lease.held.session_id)
        if lease.is_kept:
            self.deeds.ended(lease, end)
            self._write()

    def _forget(self, lease: Lease) -> None:
        self.by_id.pop(lease.lease_id, None)
        for timer in (lease.timer, lease.grace):
            if timer is not None:
                timer.cancel()

    def _arm(self, lease: Lease) -> None:
        if lease.timer is not None:
            lease.timer.cancel()
        left_s = max(0.0, lease.expires_at - time.time())
        loop = asyncio.get_running_loop()
        lease.timer = loop.call_later(left_s, self.end, lease.lease_id, EXPIRED)

    # Its successor

    def adopt(self, live: frozenset[str]) -> None:
        """Takes over the leases of a worker before us, whose browser server has these live sessions."""
        try:
            entries = orjson.loads(self.path.read_bytes())
        except FileNotFoundError:
            return
        except (OSError, ValueError) as error:
            log.error("leases_not_readable", error=repr(error))
            return
        for each in entries:
            held = LiveSession(LEASE + each["id"], each["client"], each["startedAt"], is_served=True, told=each["told"])
            lease = Lease(each["id"], each["secret"], each["expiresAt"], each["told"], held, is_kept=True)
            lease.session_id = next((one for one in live if lease_of(one) == lease.lease_id), "")
            lease.is_answered = bool(lease.session_id or each.get("isAnswered", True))  # no word from earlier versions
            self.by_id[lease.lease_id] = lease
            self.slots.adopt_held(held)
            self._arm(lease)
            self._await_borrower(lease)

    def _write(self) -> None:
        """Write them down for a successor, but not that one was asked to end: the same cause ends it, or its time."""
        content = orjson.dumps([each.as_json() for each in self.by_id.values() if each.is_kept])
        unfinished = self.path.with_suffix(".part")
        try:
            with open(unfinished, "wb", opener=_private) as file:
                file.write(content)
            os.replace(unfinished, self.path)
        except OSError as error:
            log.warning("leases_not_written", error=str(error))


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _is_same(secret: str, given: str) -> bool:
    return hmac.compare_digest(secret.encode(), given.encode())
