"""The leases that are borrowed from this worker: each keeps a slot for whoever shows its secret, until it ends.

The authority for them: Redis mirrors it, and leases.json tells a successor. Chooses no worker, answers no HTTP.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from hmac import compare_digest
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import orjson
import structlog

from pwgrid.common.atomic_write import write_whole
from pwgrid.common.session_lifecycle import EndReason
from pwgrid.registry.records import EXPIRES_AT, LEASE, TOKEN, lease_of
from pwgrid.worker.handoff_server import OfferedClient
from pwgrid.worker.slots import LiveSession, Slots

if TYPE_CHECKING:
    from pwgrid.worker.registry_sync import RegistrySync
    from pwgrid.worker.sessions import Sessions

log = structlog.get_logger()

KEEP_S: Final = 4.0
"""How long a proxy may take to keep a lease that it has taken."""

HANDOVER_S: Final = 1.0
"""How long the next client of a lease waits for the last one's end, which may have happened and not be reported yet."""

UNANSWERED_S: Final = 5.0
"""How long a lease waits for its borrower when its proxy ends without having reported the answer: the borrower may have
got it all the same. A worker's successor waits as long."""

NEVER_CONNECTED: Final = (EndReason.TOO_LATE, EndReason.HANDSHAKE_REFUSED)
"""So end clients that the browser server got and did not take: too late, or of another Playwright version."""

LeaseRefusal = Literal["no such lease", "in use", "late", "gone"]
NO_LEASE: Final[LeaseRefusal] = "no such lease"

_DIGEST: Final = "sha256:"


@dataclass(frozen=True, slots=True)
class End:
    """How a lease or session ended: by whom (client, grid, browser), and why."""

    by: str
    reason: str


def digest_of(secret: str) -> str:
    """What a secret is recognised by. It has 192 random bits, which nobody guesses: one round of a hash is enough."""
    return _DIGEST + hashlib.sha256(secret.encode()).hexdigest()


def _digest_in(entry: Mapping[str, Any]) -> str:
    """The digest in an entry of leases.json; a worker of an earlier version has written the secret itself."""
    written = str(entry["secret"])
    return written if written.startswith(_DIGEST) else digest_of(written)


RETURNED: Final = End("grid", EndReason.RETURNED)
EXPIRED: Final = End("grid", EndReason.EXPIRED)
NOT_ANSWERED: Final = End("grid", EndReason.NOT_ANSWERED)


@dataclass(slots=True, kw_only=True)
class Lease(LiveSession):
    """Keeps its slot as a session does, with the key of its record as id. It is served once its proxy has kept it: then
    it is on record, and a successor knows it. `told` has the other fields of its record (names, label key)."""

    digest: str
    """Of its secret (`digest_of`), which nobody needs to keep: whoever reads the file has no lease by that."""
    expires_at: float
    """In Unix seconds."""
    link: int | None = None
    """The link of the proxy that took the lease; None after this worker's predecessor."""
    is_answered: bool = False
    """Whether its borrower is known to have it: the proxy has reported that the answer is written, or a client came
    with the lease. Until then it ends UNANSWERED_S after its proxy."""
    connected: str = ""
    """The id of the one session that is connected with it now; empty if none is."""
    over: End | None = None
    """How it ended, while its client's connection is still being closed."""
    last: End | None = None
    """How its last client's session ended; None before its first client."""
    waiting: tuple[OfferedClient, asyncio.TimerHandle] | None = None
    """The next client, while the last one's session has not ended."""
    timer: asyncio.TimerHandle | None = None
    """Ends it at `expires_at`; drops it KEEP_S after it was taken if no proxy keeps it."""
    grace: asyncio.TimerHandle | None = None
    """Ends it when no client comes in time: `grace_s` after the last, or UNANSWERED_S."""

    @property
    def id(self) -> str:
        return self.session_id.removeprefix(LEASE)

    def stop_timers(self) -> None:
        self.stop_grace()
        if self.timer is not None:
            self.timer.cancel()

    def stop_grace(self) -> None:
        if self.grace is not None:
            self.grace.cancel()
            self.grace = None

    def take_waiting(self) -> OfferedClient | None:
        """Returns the client that waits for the last one's end, which does so no more; None if none does."""
        if self.waiting is None:
            return None
        client, timer = self.waiting
        self.waiting = None
        timer.cancel()
        return client

    def fields(self) -> dict[str, str]:
        """Returns the fields of its record in Redis."""
        return {**self.told, EXPIRES_AT: f"{self.expires_at:.3f}"}

    def as_json(self) -> dict[str, Any]:
        """The lease as leases.json has it."""
        return {
            "id": self.id,
            "secret": self.digest,
            "expiresAt": self.expires_at,
            "told": self.told,
            "client": self.client,
            "startedAt": self.started_at,
            "isAnswered": self.is_answered,
            "last": self.last,
        }


@dataclass(slots=True)
class Leases:
    """The leases of one worker, which `slots` holds. `path` is the file for a successor, and a lease lives on for
    `grace_s` seconds when its client has gone."""

    slots: Slots
    path: Path
    grace_s: float
    registry_sync: RegistrySync
    sessions: Sessions
    """Tells of each of its sessions that is over by `disconnected`."""

    def get(self, lease_id: str) -> Lease | None:
        return self.slots.held.get(LEASE + lease_id)

    # Requests of proxies

    def asked(self, link: int, message: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the answer to a proxy's request. Raises KeyError, TypeError or ValueError for a malformed one."""
        lease_id, token = str(message["id"]), message.get("token")
        lease = self.get(lease_id)
        if lease is not None and token is not None and lease.told.get(TOKEN, "") != token:
            return {"refused": NO_LEASE}  # another token's; an operator, who gives none, may ask about all leases
        match message["do"]:
            case "take":
                return self._take(link, lease_id, message)
            case "drop":
                self._drop(lease_id)
                return {"refused": None}
            case "keep" if lease is not None:
                return self._keep(lease, says_when_answered=bool(message.get("saysWhenAnswered")))
            case "answered" if lease is not None and lease.over is None:
                self._borrower_has(lease)
                return {"refused": None}
            case "extend" if lease is not None and lease.over is None:
                return self._extend(lease, float(message["ttlS"]))
            case "keep" | "answered" | "extend":
                return {"refused": NO_LEASE}
            case "unanswered":
                return {"refused": None if self.end(lease_id, NOT_ANSWERED) else NO_LEASE}
            case "return":
                return {"refused": None if self.end(lease_id, RETURNED) else NO_LEASE}
            case other:
                raise ValueError(f"no such question: {other!r}")

    def link_ended(self, link: int) -> None:
        """Called when a proxy is gone. Drops the leases that it took and did not keep; those whose answer it did not
        report wait UNANSWERED_S for their borrowers."""
        for lease in list(self.slots.held.values()):
            if lease.link == link:
                self._drop(lease.id)
                self._await_borrower(lease)

    def _take(self, link: int, lease_id: str, message: Mapping[str, Any]) -> dict[str, Any]:
        lease = Lease(
            *(LEASE + lease_id, str(message["client"])),
            told={str(name): str(value) for name, value in dict(message["told"]).items()},
            digest=digest_of(str(message["secret"])),
            expires_at=float(message["expiresAt"]),
            link=link,
        )
        refused = self.slots.refusal(lease.session_id, float(message["deadline"]), time.monotonic())
        if refused is None:
            self.slots.hold(lease)
            lease.timer = asyncio.get_running_loop().call_later(KEEP_S, self._drop, lease_id)
            self.sessions.lease_taken()
        return {"refused": refused}

    def _keep(self, lease: Lease, *, says_when_answered: bool) -> dict[str, Any]:
        """Proxies of an earlier version never report the answer, and expect no new field."""
        if not lease.is_served:
            self.registry_sync.mark_served(lease)
            lease.is_answered = not says_when_answered
            self._arm(lease)
            self.registry_sync.lease_started(lease)
            self._write()
        return {"refused": None, "hearsOfAnswer": True} if says_when_answered else {"refused": None}

    def _borrower_has(self, lease: Lease) -> None:
        """The borrower knows of the lease, so that it lasts until it is returned or expires."""
        if not lease.is_answered:
            lease.is_answered = True
            self._write()
            lease.stop_grace()

    def _await_borrower(self, lease: Lease) -> None:
        """Ends the lease after UNANSWERED_S unless its borrower comes: no proxy will report the answer any more."""
        if self.get(lease.id) is not None and not lease.is_answered and lease.grace is None:
            self._end_later(lease, UNANSWERED_S, NOT_ANSWERED)

    def _drop(self, lease_id: str) -> None:
        """Removes a lease that no proxy has kept, as if it had never existed."""
        lease = self.get(lease_id)
        if lease is not None and not lease.is_served:
            lease.stop_timers()
            self.slots.take_back(lease.session_id)

    def _extend(self, lease: Lease, ttl_s: float) -> dict[str, Any]:
        lease.expires_at = max(lease.expires_at, time.time() + ttl_s)
        self._borrower_has(lease)
        self._arm(lease)
        self._write()
        self.registry_sync.beat_soon()
        return {"refused": None, "expiresAt": lease.expires_at}

    # Its clients

    def offered(self, client: OfferedClient) -> None:
        """Admits a client that comes with a lease, or refuses it, or lets it wait for the last client's end."""
        lease = self.get(client.session.lease_id)
        if lease is None or lease.over is not None or not compare_digest(lease.digest, digest_of(client.secret)):
            client.answer(NO_LEASE)
        elif time.monotonic() >= client.deadline:
            client.answer("late")
        elif not lease.connected:
            self._admit(lease, client)
        elif lease.waiting is not None:
            client.answer("in use")
        else:
            timer = asyncio.get_running_loop().call_later(HANDOVER_S, self._refuse_waiting, lease, "in use")
            lease.waiting = client, timer

    def disconnected(self, session_id: str, end: End | None) -> None:
        """Called when a session is over; `end` is None if the browser server did not get its client. The lease lasts as
        if a client that was never connected had not come. Does nothing for a session that came without a lease, or is
        unknown here."""
        lease = self.get(lease_of(session_id))
        if lease is not None and lease.connected in ("", session_id):
            lease.connected = ""
            if end is not None and end.reason not in NEVER_CONNECTED:
                lease.last = end
            self._without_client(lease)

    def _admit(self, lease: Lease, client: OfferedClient) -> None:
        self._borrower_has(lease)
        lease.stop_grace()
        lease.connected = client.session.session_id
        self.slots.admit(client.session)
        self.sessions.serve(client)

    def _without_client(self, lease: Lease) -> None:
        """No client is connected with the lease any more: ends the lease, admits the next client, or waits for one."""
        if lease.over is not None:
            self._finish(lease, lease.over)
        elif (client := lease.take_waiting()) is not None:
            self._admit(lease, client)
        elif lease.last is None:
            pass  # it still waits for its first client
        elif self.grace_s > 0:
            self._end_later(lease, self.grace_s, lease.last)
            self._write()
        else:
            self._finish(lease, lease.last)

    def _end_later(self, lease: Lease, delay_s: float, end: End) -> None:
        lease.stop_grace()  # a successor hears of several sessions of a lease that are over
        lease.grace = asyncio.get_running_loop().call_later(delay_s, self.end, lease.id, end)

    def _refuse_waiting(self, lease: Lease, reason: LeaseRefusal) -> None:
        if (client := lease.take_waiting()) is not None:
            client.answer(reason)

    # Its end

    def end(self, lease_id: str, end: End) -> bool:
        """Ends a lease, and closes its client's session for the same reason. Returns False if the lease is unknown, or
        over already."""
        lease = self.get(lease_id)
        if lease is None or lease.over is not None:
            return False
        self._refuse_waiting(lease, NO_LEASE)
        if lease.connected:
            lease.over = end
            self._write()
            self.sessions.end(lease.connected, end.reason)
        else:
            self._finish(lease, end)
        return True

    def cut(self, end: End) -> None:
        """Ends all leases. The caller closes their sessions; each lease is removed when its session is over."""
        for lease in list(self.slots.held.values()):
            self._refuse_waiting(lease, NO_LEASE)
            lease.over = lease.over or end
            if not lease.connected:
                self._finish(lease, lease.over)

    def _finish(self, lease: Lease, end: End) -> None:
        lease.stop_timers()
        self.slots.free(lease.session_id)
        if lease.is_served:
            self.registry_sync.lease_ended(lease, end)
            self._write()

    def _arm(self, lease: Lease) -> None:
        if lease.timer is not None:
            lease.timer.cancel()
        left_s = max(0.0, lease.expires_at - time.time())
        loop = asyncio.get_running_loop()
        lease.timer = loop.call_later(left_s, self.end, lease.id, EXPIRED)

    # Its successor

    def adopt(self, live: frozenset[str]) -> None:
        """Takes over the leases of this worker's predecessor; `live` are the ids of the browser server's sessions."""
        try:
            entries = orjson.loads(self.path.read_bytes())
        except FileNotFoundError:
            return
        except (OSError, ValueError) as error:
            log.error("leases_not_readable", error=repr(error))
            return
        for each in entries:
            lease = Lease(
                *(LEASE + each["id"], each["client"], each["startedAt"]),
                is_served=True,
                told=each["told"],
                digest=_digest_in(each),
                expires_at=each["expiresAt"],
            )
            lease.connected = next((one for one in live if lease_of(one) == lease.id), "")
            lease.is_answered = bool(lease.connected or each["isAnswered"])
            self.slots.hold(lease)
            self._arm(lease)
            self._await_borrower(lease)
            if (last := each["last"]) and not lease.connected:  # the grace begins again
                lease.last = End(**last)
                self._end_later(lease, self.grace_s, lease.last)

    def _write(self) -> None:
        """Writes the kept leases for a successor. It is not told which of them are `over`: each of these ends there for
        the same reason, or at `expires_at`."""
        content = orjson.dumps([each.as_json() for each in self.slots.held.values() if each.is_served])
        try:
            write_whole(self.path, content)
        except OSError as error:
            log.warning("leases_not_written", error=str(error))
