"""The leases that are borrowed from this worker: each keeps a slot for whoever shows its secret, until it ends.

It is the authority for them: Redis mirrors it, and leases.json tells a successor.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from hmac import compare_digest
from pathlib import Path
from typing import Any, Final

import orjson
import structlog

from pwgrid.common.atomic_write import write_whole
from pwgrid.common.errors import GridError
from pwgrid.common.profile_names import Profile, ProfileInUse, TooManyProfiles
from pwgrid.common.reasons import EndReason, OfferRefusal, Reason
from pwgrid.common.types import Isolation, Protocol
from pwgrid.common.worker_lifecycle import WorkerStatus
from pwgrid.registry.records import ISOLATION, LIFETIME_TAKEN, PROFILE, TOKEN, TOKEN_ID
from pwgrid.worker.holders import (
    EXPIRED,
    GRID_STOPPED,
    NOT_ANSWERED,
    RETURNED,
    REVOKED,
    End,
    Lease,
    OfferedClient,
)
from pwgrid.worker.registry_sync import RegistrySync
from pwgrid.worker.sessions import Sessions
from pwgrid.worker.slots import Slots
from pwgrid.worker.token_check import TokenCheck

log = structlog.get_logger()

KEEP_S: Final = 4.0
"""How long a proxy may take to keep a lease that it has taken."""

HANDOVER_S: Final = 1.0
"""How long the next client of a lease waits for the last one's end, which may have happened and not be reported yet."""

UNANSWERED_S: Final = 5.0
"""How long a lease waits for its borrower when its proxy ends without having reported the answer: the borrower may have
got it all the same. A worker's successor waits as long."""

TOKEN_CHECK_INTERVAL_S: Final = 0.5
"""How often to look whether the tokens are still there that leases were borrowed with. A token has to be missing twice:
an editor may write the file in two steps."""

MOST_ENDED: Final = 100
"""Of so many leases it is remembered why they ended, for clients that come too late."""

NEVER_CONNECTED: Final = (EndReason.TOO_LATE, EndReason.HANDSHAKE_REFUSED)
"""So end clients that the browser server got and did not take: too late, or of another Playwright version."""


@dataclass(slots=True)
class Leases:
    """The leases of one worker, which `slots` holds. `path` is the file for a successor, and a lease lives on for
    `grace_s` seconds when its client has gone."""

    slots: Slots
    path: Path
    grace_s: float
    registry_sync: RegistrySync
    sessions: Sessions
    """Those below the leases: it tells of each that is over by `disconnected`."""
    tokens: TokenCheck
    shares_browser: bool = True
    """Whether sessions share a browser here, unless they ask for their own."""
    _ended: OrderedDict[str, tuple[Lease, Reason[EndReason]]] = field(default_factory=OrderedDict)
    """The latest leases that have ended, by id, with the reasons."""
    _next_look: asyncio.TimerHandle | None = None
    _grid_stops: bool = False

    def __post_init__(self) -> None:
        self.sessions.on_over = self.disconnected

    def get(self, lease_id: str) -> Lease | None:
        return self.slots.held.get(lease_id)

    # Requests of proxies

    def asked(self, link: int, message: Mapping[str, Any]) -> dict[str, Any] | Awaitable[dict[str, Any]]:
        """Returns the answer to a proxy's request, that of a lease with a profile later. Raises KeyError, TypeError or
        ValueError for a malformed one."""
        lease_id, token = str(message["id"]), message.get("token")
        lease = self.get(lease_id)
        if lease is not None and token is not None and lease.client_fields.get(TOKEN, "") != token:
            # Another token's. An operator, who gives none, may ask about all leases.
            return {"refused": OfferRefusal.NO_LEASE}
        match message["do"]:
            case "take":
                return self._take(link, lease_id, message)
            case "drop":
                self._drop(lease_id)
                return {"refused": None}
            case "keep" if lease is not None:
                return self._keep(lease)
            case "answered" if lease is not None and lease.over is None:
                self._borrower_has(lease)
                return {"refused": None}
            case "extend" if lease is not None and lease.over is None:
                return self._extend(lease, float(message["ttlS"]))
            case "keep" | "answered" | "extend":
                return {"refused": OfferRefusal.NO_LEASE}
            case "unanswered":
                return {"refused": None if self.end(lease_id, NOT_ANSWERED) else OfferRefusal.NO_LEASE}
            case "return":
                return {"refused": None if self.end(lease_id, RETURNED) else OfferRefusal.NO_LEASE}
            case other:
                raise ValueError(f"no such question: {other!r}")

    def link_ended(self, link: int) -> None:
        """Called when a proxy is gone. Drops the leases that it took and did not keep; those whose answer it did not
        report wait UNANSWERED_S for their borrowers."""
        for lease in list(self.slots.held.values()):
            if lease.link == link:
                self._drop(lease.id)
                self._await_borrower(lease)

    def _take(self, link: int, lease_id: str, message: Mapping[str, Any]) -> dict[str, Any] | Awaitable[dict[str, Any]]:
        lease = Lease(
            *(lease_id, str(message["client"])),
            client_fields={str(name): str(value) for name, value in dict(message["clientFields"]).items()},
            digest=digest_of(str(message["secret"])),
            expires_at=float(message["expiresAt"]),
            token_id=str(message.get(TOKEN_ID, "")),
            link=link,
        )
        refused: str | None = OfferRefusal.DRAINING
        if not self._grid_stops:
            refused = self.slots.refusal(lease.id, float(message["deadline"]), time.monotonic())
        if refused is None:
            self.slots.hold(lease)
            lease.timer = asyncio.get_running_loop().call_later(KEEP_S, self._drop, lease_id)
            self._watch_tokens()
            self.sessions.slot_taken()
            if lease.profile is not None:
                return self._with_profile(lease, lease.profile)
        return {"refused": refused}

    async def _with_profile(self, lease: Lease, profile: Profile) -> dict[str, Any]:
        """Returns the answer for a lease that has been taken, once it has this profile."""
        assert self.sessions.server is not None
        try:
            await self.sessions.profiles.take_for_lease(lease, profile, self.sessions.server.pid)
        except (ProfileInUse, TooManyProfiles, OSError, GridError) as error:
            log.info("profile_not_had", lease=lease.id, profile=profile.name, reason=str(error))
            self._drop(lease.id)
            return {"refused": OfferRefusal.NO_PROFILE}
        if self.get(lease.id) is not lease:  # its proxy has gone meanwhile
            self.sessions.profiles.let_lease_go(lease)
            return {"refused": OfferRefusal.NO_LEASE}
        return {"refused": None, "profile": profile.name}

    def _keep(self, lease: Lease) -> dict[str, Any]:
        if not lease.is_served:
            self.registry_sync.mark_served(lease)
            self._arm(lease)
            self.registry_sync.lease_started(lease)
            self._write()
        return {"refused": None}

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
            self.slots.take_back(lease.id)
            self._let_profile_go(lease)

    def _let_profile_go(self, lease: Lease) -> None:
        if lease.profile is not None:
            self.sessions.profiles.let_lease_go(lease)

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
        if lease is None or lease.over is not None or not _may_come(lease, client):
            client.answer(OfferRefusal.NO_LEASE, ended=self._why_ended(client))
        elif (has_token := self.tokens.has(lease.token_id)) is None:
            client.answer(OfferRefusal.UNCHECKED)
        elif lease.is_revoked or not has_token:  # the next look ends it
            client.answer(OfferRefusal.NO_LEASE, ended=Reason(EndReason.TOKEN_REVOKED))
        elif time.monotonic() >= client.deadline:
            client.answer(OfferRefusal.LATE)
        elif not lease.connected:
            self._admit(lease, client)
        elif client.session.protocol is Protocol.CDP and self.sessions.speaks_cdp(lease.connected):
            self.sessions.once_reported(client, partial(self._join, lease, client))
        elif lease.waiting is not None:
            client.answer(OfferRefusal.IN_USE)
        else:
            timer = asyncio.get_running_loop().call_later(HANDOVER_S, self._refuse_waiting, lease, OfferRefusal.IN_USE)
            lease.waiting = client, timer

    def _why_ended(self, client: OfferedClient) -> Reason[EndReason] | None:
        """Returns the reason of a lease that has ended, to who has its secret."""
        lease, reason = self._ended.get(client.session.lease_id, (None, None))
        return reason if lease is not None and _may_come(lease, client) else None

    def disconnected(self, session_id: str, lease_id: str, end: End | None) -> None:
        """Called when a session is over, with the lease that it came with; `end` is None if the browser server did not
        get its client. The lease lasts as if a client that was never connected had not come. Does nothing for a session
        that came without a lease, or with one that is unknown here."""
        lease = self.get(lease_id)
        if lease is not None and lease.connected in ("", session_id):
            lease.connected = ""
            if end is not None and end.reason.kind not in NEVER_CONNECTED:
                lease.last = end
            self._without_client(lease)

    def _admit(self, lease: Lease, client: OfferedClient) -> None:
        self._borrower_has(lease)
        lease.stop_grace()
        lease.connected = client.session.id
        self.slots.admit(client.session)
        if lease.client_fields.get(ISOLATION) == Isolation.BROWSER:
            client.session.own = client.session.own or client.own_browser()
        if lease.profile is not None and client.session.protocol is Protocol.CDP:
            client.session.own = replace(client.session.own or client.own_browser(), profile=lease.profile)
            client.session.client_fields = {**client.session.client_fields, PROFILE: lease.profile.name}
        self._settle_lifetime(lease, has_own=client.session.own is not None)
        self.sessions.serve(client)

    def _settle_lifetime(self, lease: Lease, *, has_own: bool) -> None:
        """Where browsers are shared a lease takes of the lifetime from its borrow on, since nobody knows then what its
        client will get. Gives that back if the first one has its own browser, and takes it again for one that shares. A
        worker that has had its last session stays so."""
        was = taken = lease.client_fields.get(LIFETIME_TAKEN, "")
        is_open = self.slots.status is WorkerStatus.AVAILABLE and not self.slots.is_used_up
        if has_own and not was and lease.last is None and is_open:
            taken = "0"
        elif not has_own and was == "0":
            taken = "1"
        if self.shares_browser and taken != was:
            self.slots.takes(lease, taken)
            self._write()
            self.registry_sync.beat_soon()

    def _join(self, lease: Lease, client: OfferedClient) -> None:
        """Has the client join the session of the lease, or begin another one if that has ended."""
        if self.get(lease.id) is None or lease.over is not None:
            client.answer(OfferRefusal.NO_LEASE, ended=self._why_ended(client))
        elif lease.connected and self.sessions.is_ending(lease.connected):
            client.answer(OfferRefusal.NOT_YET)  # the next session has what this one saves
        elif lease.connected:
            self.sessions.join(client, lease.connected)
        elif time.monotonic() >= client.deadline:
            client.answer(OfferRefusal.LATE)
        else:
            self._admit(lease, client)

    def _without_client(self, lease: Lease) -> None:
        """No client is connected with the lease any more: ends the lease, admits the next client, or waits for one."""
        if lease.over is not None:
            self._finish(lease, lease.over)
        elif lease.is_revoked:
            self._finish(lease, REVOKED)
        elif (client := lease.take_waiting()) is not None:
            self._admit(lease, client)
        elif lease.last is None and self._grid_stops:
            self._finish(lease, GRID_STOPPED)
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

    def _refuse_waiting(self, lease: Lease, reason: OfferRefusal) -> None:
        if (client := lease.take_waiting()) is not None:
            client.answer(reason)

    # Its end

    def end(self, lease_id: str, end: End) -> bool:
        """Ends a lease, and closes its client's session for the same reason. Returns False if the lease is unknown, or
        over already."""
        lease = self.get(lease_id)
        if lease is None or lease.over is not None:
            return False
        self._refuse_waiting(lease, OfferRefusal.NO_LEASE)
        if lease.connected:
            lease.over = end
            self._write()
            self._ends_with_session(lease)
            self.sessions.end(lease.connected, end.reason)
        else:
            self._finish(lease, end)
        return True

    def cut(self, end: End) -> None:
        """Ends all leases. The caller closes their sessions; each lease is removed when its session is over."""
        for lease in list(self.slots.held.values()):
            self._refuse_waiting(lease, OfferRefusal.NO_LEASE)
            lease.over = lease.over or end
            if lease.connected:
                self._ends_with_session(lease)
            else:
                self._finish(lease, lease.over)

    def _ends_with_session(self, lease: Lease) -> None:
        if lease.profile is not None and (server := self.sessions.server) is not None:
            self.sessions.profiles.lease_ends(lease, server.pid)

    def grid_stops(self) -> None:
        """Called when the whole grid stops: ends the leases that no client has come with, which would hold up the stop,
        and keeps no further one. A worker that is replaced waits for them. Idempotent."""
        self._grid_stops = True
        for lease in list(self.slots.held.values()):
            if lease.last is None and not lease.connected:
                self.end(lease.id, GRID_STOPPED)

    def _watch_tokens(self) -> None:
        """Looks from time to time, as long as there is a lease that was borrowed with a token."""
        if self._next_look is None and any(lease.token_id for lease in self.slots.held.values()):
            self._next_look = asyncio.get_running_loop().call_later(TOKEN_CHECK_INTERVAL_S, self._look_at_tokens)

    def _look_at_tokens(self) -> None:
        """Ends leases whose tokens are gone. One with a client takes no further one: live sessions go on."""
        self._next_look = None
        for lease in list(self.slots.held.values()):
            was_missing, lease.is_token_missing = lease.is_token_missing, self.tokens.has(lease.token_id) is False
            if lease.is_revoked or not (was_missing and lease.is_token_missing):
                continue
            lease.is_revoked = True
            self._refuse_waiting(lease, OfferRefusal.NO_LEASE)
            if not lease.connected:
                self.end(lease.id, REVOKED)
        self._watch_tokens()

    def _finish(self, lease: Lease, end: End) -> None:
        lease.stop_timers()
        self.slots.free(lease.id)
        self._let_profile_go(lease)
        self._ended[lease.id] = lease, end.reason
        if len(self._ended) > MOST_ENDED:
            self._ended.popitem(last=False)
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

    def adopt(self, live: Mapping[str, str]) -> None:
        """Takes over the leases of this worker's predecessor; `live` maps the browser server's sessions to the leases
        that they came with ("" for none)."""
        try:
            entries = orjson.loads(self.path.read_bytes())
        except FileNotFoundError:
            return
        except (OSError, ValueError) as error:
            log.error("leases_not_readable", error=repr(error))
            return
        for each in entries:
            lease = Lease(
                *(each["id"], each["client"], each["startedAt"]),
                is_served=True,
                client_fields=each["clientFields"],
                digest=each["digest"],
                expires_at=each["expiresAt"],
                token_id=each[TOKEN_ID],
            )
            lease.connected = next((one for one, lease_id in live.items() if lease_id == lease.id), "")
            lease.is_answered = bool(lease.connected or each["isAnswered"])
            self.slots.hold(lease)
            self._arm(lease)
            self._await_borrower(lease)
            if (last := each["last"]) and not lease.connected:  # the grace begins again
                lease.last = End(last["by"], Reason.read(last, Reason(EndReason.OTHER)))
                self._end_later(lease, self.grace_s, lease.last)
        self._watch_tokens()

    def _write(self) -> None:
        """Writes the kept leases for a successor. It is not told which of them are `over`: each of these ends there for
        the same reason, or at `expires_at`."""
        content = orjson.dumps([each.as_json() for each in self.slots.held.values() if each.is_served])
        try:
            write_whole(self.path, content)
        except OSError as error:
            log.warning("leases_not_written", error=str(error))


def _may_come(lease: Lease, client: OfferedClient) -> bool:
    return compare_digest(lease.digest, digest_of(client.secret))


def digest_of(secret: str) -> str:
    """What a secret is recognised by. It has 192 random bits, which nobody guesses: one round of a hash is enough."""
    return hashlib.sha256(secret.encode()).hexdigest()
