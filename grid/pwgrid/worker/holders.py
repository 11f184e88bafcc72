"""Plain data of who has, or wants, a slot of this worker, a session or a lease, and of how each of them ends."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final

import orjson

from pwgrid.common.profile_names import Profile
from pwgrid.common.reasons import EndReason, Reason
from pwgrid.common.session_lifecycle import HeldAs, SessionStatus, how_ended
from pwgrid.common.types import Protocol
from pwgrid.registry.records import EXPIRES_AT, LIFETIME_TAKEN, PROFILE, TOKEN, TOKEN_ID


@dataclass(slots=True)
class Holder:
    """Who has, or wants, a slot. `client` is empty where this worker's predecessor admitted it."""

    kind: ClassVar[HeldAs]
    id: str
    """No session has the id of a lease: proxies make both at random."""
    client: str = ""
    """Its address and port."""
    started_at: float | None = None
    """Unix seconds; None during the handoff, and where only this worker's predecessor knew it."""
    is_served: bool = False
    """Of a session, whether the browser server has its socket; until then the handoff may still fail."""
    client_fields: Mapping[str, str] = field(default_factory=dict)
    """What the proxy told of its client: fields of its record (`labels`, `name`, `run`, `token`, `caps`)."""
    token_id: str = ""
    """That of its client's token; empty without one, and where only this worker's predecessor knew it."""

    @property
    def takes_slot(self) -> bool:
        return True

    @property
    def takes_lifetime(self) -> bool:
        """Whether it counts towards the lifetime of its worker. What comes with a lease does not, as it takes no slot,
        nor does what has its own browser beside a shared one (pwgrid/proxy/policy/own_browser.py)."""
        return self.takes_slot and self.client_fields.get(LIFETIME_TAKEN) != "0"


@dataclass(frozen=True, slots=True)
class OwnBrowser:
    """That a session gets a browser of its own. `options`: what its client wants to be otherwise than in the pool, by
    Playwright's names. `network`: the pattern of the hosts that it reaches through its client; empty for none."""

    until: float
    """Until when the client waits for it, in seconds of CLOCK_MONOTONIC."""
    options: Mapping[str, Any] = field(default_factory=dict)
    network: str = ""
    profile: Profile | None = None


@dataclass(frozen=True, slots=True)
class ProfileCopy:
    """The copy of a profile that one session works with."""

    profile: Profile
    directory: Path
    """The user data directory of its browser."""

    @classmethod
    def read(cls, said: Mapping[str, Any]) -> ProfileCopy:
        """As the browser server repeats it."""
        return cls(Profile(said["owner"], said["name"]), Path(said["directory"]))

    def as_json(self) -> dict[str, str]:
        """As the browser server gets it, which tells it a successor of this worker, too."""
        return {"owner": self.profile.owner, "name": self.profile.name, "directory": str(self.directory)}


@dataclass(frozen=True, slots=True)
class Kept:
    """That a session has no client now, and waits for one. `since` is in seconds of CLOCK_MONOTONIC, `until` in Unix
    seconds."""

    since: float
    until: float


@dataclass(slots=True)
class LiveSession(Holder):
    """A session in one of this worker's slots."""

    kind = HeldAs.SESSION
    lease_id: str = ""
    """The lease that it came with: it uses the lease's slot and takes none of its own."""
    trace: str = ""
    """Where the session is traced: what its proxy wants to hear again when it is over."""
    own: OwnBrowser | None = None
    """None: a context in the browser that this worker's sessions share."""
    protocol: Protocol = Protocol.PLAYWRIGHT
    keep_s: float = 0.0
    """How long its browser is kept when its last client has gone; 0: not at all."""
    kept: Kept | None = None

    @property
    def takes_slot(self) -> bool:
        return not self.lease_id


@dataclass(frozen=True, slots=True)
class OfferedClient:
    """A client that a proxy offers, to be answered once. This process's copy of its socket is closed then."""

    session: LiveSession
    deadline: float
    """Seconds of CLOCK_MONOTONIC, which all processes of a host share."""
    headers: Mapping[str, str]
    """Those headers of the client that the browser server gets."""
    early: str
    """What the client has sent after its head, as latin-1."""
    secret: str
    """That of its lease, as the client has it."""
    sock: socket.socket
    _send: Callable[[bytes], None]
    until: float = 0.0
    """Until when it may be served where it waits for a browser of its own (CLOCK_MONOTONIC); 0: until `deadline`."""
    joins: str = ""
    """The id of the session that it joins; `session` is then no session of its own, only what the answer names."""
    is_of_page: bool = False
    """Whether its connection is to the first page of the browser, not to the browser."""

    def own_browser(self) -> OwnBrowser:
        """The browser of its own that its pool or its lease gives it: one like all others of the pool."""
        return OwnBrowser(self.until or self.deadline)

    def waits_for_browser(self, promised: float) -> None:
        """Says that it is admitted, and will be answered when a browser of its own is there: by `promised`
        (CLOCK_MONOTONIC) the proxy hears of it again, or may give the client to another worker."""
        self._send(orjson.dumps({"session": self.session.id, "acquiring": True, "promised": promised}))

    def answer(
        self,
        refused: str | None,
        served_at: float | None = None,
        ended: Reason[EndReason] | None = None,
        detail: str = "",
    ) -> None:
        """Says why it is refused, with a `detail`, and why its lease has `ended` if that is known; or None, and when
        the browser server got its socket (by time.monotonic(), for the answer may be later)."""
        self.sock.close()
        said: dict[str, Any] = {"session": self.session.id, "refused": refused, "servedAt": served_at}
        if ended:
            said["ended"] = str(ended)
        if detail:
            said["detail"] = detail
        self._send(orjson.dumps(said))


@dataclass(frozen=True, slots=True)
class End:
    """How a lease or session ended: by whom (client, grid, browser), and why."""

    by: str
    reason: Reason[EndReason]

    @property
    def status(self) -> SessionStatus:
        """The status of a session or lease that has ended like this."""
        return how_ended(self.by, self.reason.kind)


@dataclass(frozen=True, slots=True)
class SessionClosed:
    """The end of a session. Bytes are counted from the handoff on: `bytes_in` from the client, `bytes_out` to it."""

    session_id: str
    bytes_in: int
    bytes_out: int
    end: End
    lease_id: str = ""
    """The lease that it came with."""
    profile: ProfileCopy | None = None
    """The copy of its profile, while the browser server tells it."""
    is_in_order: bool = False
    """Whether a browser with a profile has ended by itself."""


RETURNED: Final = End("grid", Reason(EndReason.RETURNED))
EXPIRED: Final = End("grid", Reason(EndReason.EXPIRED))
NOT_ANSWERED: Final = End("grid", Reason(EndReason.NOT_ANSWERED))
REVOKED: Final = End("grid", Reason(EndReason.TOKEN_REVOKED))
GRID_STOPPED: Final = End("grid", Reason(EndReason.GRID_STOPPED))


@dataclass(slots=True, kw_only=True)
class Lease(Holder):
    """Keeps its slot as a session does. It is served once its proxy has kept it: then it is on record, and a successor
    knows it. `client_fields` has the other fields of its record (names, label key)."""

    kind = HeldAs.LEASE
    digest: str
    """Of its secret (`digest_of`), which nobody needs to keep: whoever reads leases.json has no lease by that."""
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
    is_token_missing: bool = False
    """Whether its token was missing at the last look."""
    is_revoked: bool = False
    """Whether its token is gone: it takes no further client, and ends with the one that it has."""
    last: End | None = None
    """How its last client's session ended; None before its first client."""
    waiting: tuple[OfferedClient, asyncio.TimerHandle] | None = None
    """The next client, while the last one's session has not ended."""
    timer: asyncio.TimerHandle | None = None
    """Ends it at `expires_at`; drops it KEEP_S after it was taken if no proxy keeps it."""
    grace: asyncio.TimerHandle | None = None
    """Ends it when no client comes in time: `grace_s` after the last, or UNANSWERED_S."""

    @property
    def profile(self) -> Profile | None:
        """What the browsers of its CDP clients start with. Nobody else has it while the lease lasts."""
        name = self.client_fields.get(PROFILE)
        return Profile(self.client_fields.get(TOKEN, ""), name) if name else None

    def stop_timers(self) -> None:
        self.stop_grace()
        if self.timer is not None:
            self.timer.cancel()

    def stop_grace(self) -> None:
        if self.grace is not None:
            self.grace.cancel()
            self.grace = None

    def take_waiting(self) -> OfferedClient | None:
        """Takes the client that waits for the end of the last one, and returns it; None if nobody waits."""
        if self.waiting is None:
            return None
        client, timer = self.waiting
        self.waiting = None
        timer.cancel()
        return client

    def fields(self) -> dict[str, str]:
        """Returns the fields of its record in Redis, but for what it takes of the lifetime: heartbeats bring that, with
        the counter."""
        told = {name: value for name, value in self.client_fields.items() if name != LIFETIME_TAKEN}
        return {**told, EXPIRES_AT: f"{self.expires_at:.3f}"}

    def as_json(self) -> dict[str, Any]:
        """The lease as leases.json has it."""
        return {
            "id": self.id,
            "digest": self.digest,
            "expiresAt": self.expires_at,
            "clientFields": self.client_fields,
            TOKEN_ID: self.token_id,
            "client": self.client,
            "startedAt": self.started_at,
            "isAnswered": self.is_answered,
            "last": self.last and {"by": self.last.by, **self.last.reason.as_data()},
        }
