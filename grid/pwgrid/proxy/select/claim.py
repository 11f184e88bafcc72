"""A claim: what a client wants that has no slot yet. One loop places every kind (proxy/connect/gateway.py)."""

import asyncio
import secrets
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field

from pwgrid.common.session_lifecycle import HeldAs
from pwgrid.common.types import BrowserType, Protocol
from pwgrid.proxy.policy.fair_line import Party, Place
from pwgrid.registry.records import CAPS, PROFILE


class ClientGone(Exception):
    """The client left before it was served."""


@dataclass(slots=True, eq=False)
class Claim:
    """What one client wants: a slot, held how, for whom. `excluded` are the ids of workers that have refused it for
    good, or lost it."""

    kind: HeldAs
    """How it will hold the slot. BORROW_QUEUE_MAX and BORROW_QUEUE_MAX_PER_RUN bound those that wait for a lease."""
    browser_type: BrowserType
    pool: str
    playwright_version: str | None
    client: str
    deadline: float
    """Seconds of the event loop's clock."""
    worker_id: str | None = None
    fields: Mapping[str, str] = field(default_factory=dict)
    """Optional fields of the session's record."""
    excluded: set[str] = field(default_factory=set)
    run: str = ""
    """The client's name for its run; "" for none."""
    token: str = ""
    """The name of the client's token; "" for none."""
    token_id: str = ""
    caps: Mapping[str, int] = field(default_factory=dict)
    """How many sessions may live at once, like {"run:nightly": 5}; while a cap is reached, the client waits."""
    refusal: Callable[[], Exception | None] = lambda: None
    """Returns why the client may not have a slot any more. The queue asks when it is the client's turn."""
    session_id: str = ""
    """What the slot is leased for: the session's id, or the lease's. By default a new one."""
    keeps_id: bool = False
    """Whether clients find the session by its id, so that it changes only where it has to."""
    protocol: Protocol = Protocol.PLAYWRIGHT
    """What its client speaks, which not every worker does."""
    launch_s: float = 0.0
    """How long its worker may take to launch a browser for it; 0: it needs none of its own."""
    trouble: str = ""
    """Why the last worker had no browser for it, as a sentence."""
    granted: asyncio.Future[str] | None = None
    """None while it stands in no line."""
    place: Place | None = None
    """Its place in line, which it keeps when a worker does not take it."""
    waits_since: float = 0.0
    """When it came to the line first, seconds of the event loop's clock."""
    abandoned: bool = False
    slot_is_anothers: bool = False
    """Whether the slot is that of a client that has begun the session of the same URL before this one."""
    selection_s: float = 0.0
    """How long the registry took for its last answer; 0 where the worker was chosen without it."""
    chosen_locally: bool = False
    """Whether its worker was chosen without Redis, which has no slot to take back then."""

    def __post_init__(self) -> None:
        if not self.session_id:
            self.take_another_id()

    @property
    def named(self) -> dict[str, str]:
        """Its id as a field of a log line."""
        return {self.kind.value: self.session_id}

    @property
    def party(self) -> Party:
        return Party(self.token, self.run)

    def client_fields(self) -> dict[str, str]:
        """Returns what the worker is told: owner, names and caps, for a record that Redis does not have."""
        return {**self.fields, CAPS: ",".join(self.caps)} if self.caps else {**self.fields}

    def take_another_id(self) -> None:
        """What went wrong with the id before may still be on record."""
        self.session_id = secrets.token_hex(8)

    def eligible_as(self) -> Hashable:
        """At one moment the registry has the same answer for all claims for which this is equal."""
        has_profile = PROFILE in self.fields  # which only this host has
        wanted_id = self.session_id if self.keeps_id else ""  # a session of it may have begun elsewhere
        excluded, caps = frozenset(self.excluded), frozenset(self.caps)
        return self.playwright_version, self.protocol, self.worker_id, excluded, caps, has_profile, wanted_id
