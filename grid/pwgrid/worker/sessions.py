"""A worker's live sessions: gives their clients to the browser server, closes and records them."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

import structlog

from pwgrid.common.client_marks import mark_passed_on
from pwgrid.common.errors import BrowserServerGone
from pwgrid.common.launch_failure import BrowserLate, BrowserLaunchError
from pwgrid.common.packet_server import PROMISE_AGAIN_S, PROMISE_S
from pwgrid.common.profile_names import ProfileInUse, TooManyProfiles
from pwgrid.common.reasons import EndReason, OfferRefusal, Reason
from pwgrid.common.types import GIVEN_BY_CLIENTS, Isolation, Protocol
from pwgrid.registry.records import ISOLATION, OF_LEASE, PROTOCOL, TOKEN, TOKEN_ID
from pwgrid.runtime.child_arguments import WorkerArguments
from pwgrid.worker.browser.requested_browsers import RequestedBrowsers
from pwgrid.worker.browser.server import BrowserServer
from pwgrid.worker.handoff_server import HandoffServer
from pwgrid.worker.holders import End, Kept, LiveSession, OfferedClient, OwnBrowser, ProfileCopy, SessionClosed
from pwgrid.worker.profiles import SessionProfiles
from pwgrid.worker.registry_sync import RECORD_AT_ONCE, RECORD_DELAY_S, RegistrySync
from pwgrid.worker.slots import Slots

log = structlog.get_logger()

CLOSE_GRACE_S: Final = 5.0
"""How long the browser server has to report closed sessions before it is ended."""

PROFILE_GRACE_S: Final = 15.0
"""The same where one of them has a profile, which its browser writes first. Then this worker saves it, in up to COPY_S,
for which the master waits (PROFILES_S in pwgrid/master/policy/worker_state_machine.py)."""


@dataclass(slots=True)
class _Acquiring:
    """A client that waits for a browser of its own, and what gets that. `promised`: until when its proxy is to hear of
    it (time.monotonic()); after that another worker may have the client. `came_when_full`: it found all own browsers in
    use that there may be (MAX_OWN_BROWSERS), and had to wait for one to end."""

    client: OfferedClient
    task: asyncio.Task[None]
    came_when_full: bool
    promised: float = 0.0


class Sessions:
    """Calls `on_offered` for each admitted offer and `on_served` when the browser server has its socket.

    The owner sets `server` once there is one, `on_handoff_failed`, which is called when that did not take a client, and
    `on_over`, which is called for each session that is over, with the lease that it came with, and with None if the
    browser server did not get its client.
    """

    def __init__(
        self,
        boot: WorkerArguments,
        slots: Slots,
        registry_sync: RegistrySync,
        handoff: HandoffServer,
        on_offered: Callable[[], None],
        on_served: Callable[[], None],
    ) -> None:
        self.server: BrowserServer | None = None
        self.on_handoff_failed: Callable[[], None] = lambda: None
        self.on_over: Callable[[str, str, End | None], None] = lambda _session_id, _lease_id, _end: None
        self.on_kept: Callable[[], None] = lambda: None
        """Called when a session has become kept, or has a client again."""
        self._boot = boot
        self._slots = slots
        self._registry_sync = registry_sync
        self._handoff = handoff
        self._on_offered = on_offered
        self._on_served = on_served
        self._is_successor = boot.adopt_node_pid is not None
        """Whether another worker admitted the sessions."""
        self._taken: dict[str, tuple[OfferedClient, float]] = {}
        """By their sessions' ids, the clients that are not answered yet, and since when the browser server has each."""
        self._timer: asyncio.TimerHandle | None = None
        self._browsers = RequestedBrowsers(boot.settings, boot.pool, boot.directory)
        self._acquiring: dict[str, _Acquiring] = {}
        """By their sessions' ids, the clients that wait for browsers of their own."""
        self._promising: asyncio.TimerHandle | None = None
        self._joining: set[asyncio.Task[None]] = set()
        """Those that are about to join a session."""
        self.profiles = SessionProfiles(boot)
        self._saving: dict[str, asyncio.Task[None]] = {}
        """By their ids, the sessions that are over but for their profiles, which are being saved."""
        self._ending: set[str] = set()
        """Those whose profiles their browsers are writing, or this worker is saving."""
        self._to_end: dict[str, tuple[Reason[EndReason], str | None]] = {}
        """Those of them that are to end as soon as they begin, and what their clients hear."""

    def adopt(self, server: BrowserServer, live: Mapping[str, Mapping[str, str]]) -> None:
        """Takes over the sessions of this worker's predecessor. `live` has what that was told of each session that its
        browser server has."""
        self.server = server
        leases = [each.id for each in self._slots.held.values() if each.profile is not None]
        self.profiles.adopt(dict(server.profiles), leases, server.pid)
        for session_id, told in live.items():
            fields = {name: text for name, text in told.items() if name not in (TOKEN_ID, OF_LEASE)}
            session = LiveSession(session_id, is_served=True, client_fields=fields, token_id=told.get(TOKEN_ID, ""))
            if fields.get(PROTOCOL) == Protocol.CDP:
                session.protocol = Protocol.CDP
            if (lease_id := told.get(OF_LEASE, "")) in self._slots.held:
                session.lease_id = lease_id
            self._slots.admit(session)
        self._browsers.adopt(live)

    def ended(self, closed: SessionClosed, on_record: Callable[[], None] = lambda: None) -> None:
        """Called when the browser server reports a session's end. Calls `on_record` once Redis has it. One that has a
        profile is over when that is saved."""
        if closed.session_id in self._saving:
            return
        if closed.profile is not None:
            if closed.session_id not in self._ending:  # its end has begun under this worker's predecessor
                self.profile_ends(closed.session_id)
            task = asyncio.create_task(self._save_and_end(closed, closed.profile, on_record))
            self._saving[closed.session_id] = task
            return
        self.profiles.drop(closed.session_id)
        self._ended(closed, on_record)

    async def _save_and_end(self, closed: SessionClosed, profile: ProfileCopy, on_record: Callable[[], None]) -> None:
        why = await self.profiles.save(closed.session_id, profile, closed.lease_id, is_in_order=closed.is_in_order)
        if why:
            reason = closed.end.reason
            detail = "; ".join(filter(None, (reason.detail, f"its profile was not saved: {why}")))
            closed = replace(closed, end=End(closed.end.by, replace(reason, detail=detail)))
        del self._saving[closed.session_id]
        self._ended(closed, on_record)

    @property
    def has_profiles(self) -> bool:
        """Whether profiles are to be saved before this process ends."""
        return bool(self._saving) or self.profiles.has_any

    async def profiles_saved(self) -> None:
        """Returns once no session is over but for its profile, and every profile is given free. Bounded."""
        if self._saving:
            await asyncio.wait(self._saving.values())
        await self.profiles.settled()

    def profile_ends(self, session_id: str) -> None:
        """Called when the browser of a session with a profile begins to end."""
        assert self.server is not None
        self._ending.add(session_id)
        self.profiles.ends(session_id, self.server.pid)

    def is_ending(self, session_id: str) -> bool:
        """Whether the session is over but for its profile: it takes no client any more."""
        return session_id in self._ending or session_id in self._saving

    def _ended(self, closed: SessionClosed, on_record: Callable[[], None]) -> None:
        if closed.end.reason.kind is EndReason.TOO_LATE:
            self.on_handoff_failed()
        if closed.session_id in self._taken:
            self.record_taken()  # its start comes before its end
        self._ending.discard(closed.session_id)
        session = self._slots.live.get(closed.session_id)
        self._slots.free(closed.session_id)
        self._browsers.over(closed.session_id)
        if session is None and not self._is_successor:
            on_record()  # reported twice; but a successor still has to record one that ended before it took over
            return
        self._registry_sync.ended(closed, session, on_record)
        self.record_taken()  # with it: this process and Redis are awake now
        if session is not None and session.trace:
            self._tell_over(closed, session)
        self.on_over(closed.session_id, closed.lease_id if session is None else session.lease_id, closed.end)

    def _tell_over(self, closed: SessionClosed, session: LiveSession) -> None:
        """Tells the proxies of the end of a traced session."""
        now, boot = time.time(), self._boot
        told = (self._slots.held.get(session.lease_id) or session).client_fields
        self._handoff.tell_over(
            {
                "trace": session.trace,
                "session": session.id,
                "lease": session.lease_id,
                "browserType": boot.browser_type,
                "pool": boot.pool.name,
                "startedAt": session.started_at or now,
                "endedAt": now,
                "status": closed.end.status.value,
                "reason": str(closed.end.reason),
                "bytesIn": closed.bytes_in,
                "bytesOut": closed.bytes_out,
                "clientFields": {name: told[name] for name in GIVEN_BY_CLIENTS if name in told},
            }
        )

    def all_ended(self, end: End) -> None:
        """Ends every live session in the records, when no browser server will report their ends. A client that it has
        not got may go to another worker: one that waits for its own browser hears that here, one that is on its way
        once the link to the browser server has ended."""
        for session_id in list(self._acquiring):
            self._let_go(session_id, OfferRefusal.GONE)
        for session in list(self._slots.live.values()):
            if session.is_served and session.id not in self._saving:
                self.ended(SessionClosed(session.id, 0, 0, end))

    def end(self, session_id: str, reason: Reason[EndReason], text: str | None = None) -> None:
        """Closes one session; `ended` follows. Ignores unknown ids. `text` is what its client hears."""
        if session_id in self._acquiring:
            self._to_end[session_id] = reason, text
        elif self.server is not None:
            self.server.close_session(session_id, reason, text)

    async def cut(self, reason: Reason[EndReason], text: str | None) -> None:
        """Closes every session for `reason`, and waits until no slot is taken any more."""
        self.let_waiting_go()
        grace_s = PROFILE_GRACE_S if any(map(self.profiles.has, self._slots.live)) else CLOSE_GRACE_S
        for session_id in list(self._slots.live):
            self.end(session_id, reason, text)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await self._slots.empty()

    def let_waiting_go(self) -> None:
        """Refuses the clients that wait for browsers of their own, which other workers may have, or to join one."""
        for task in self._joining:
            task.cancel()
        for session_id in list(self._acquiring):
            self._let_go(session_id, OfferRefusal.DRAINING)

    def _let_go(self, session_id: str, refused: OfferRefusal) -> None:
        # Answered here: a task that has not begun would never hear that it is cancelled.
        waits = self._acquiring.pop(session_id)
        self._to_end.pop(session_id, None)
        waits.task.cancel()
        if self.server is not None:
            self.server.give_back(session_id)
        self._take_back(session_id)
        waits.client.answer(refused)

    def end_displays(self) -> None:
        """Called when the browser server has ended."""
        self._browsers.end()

    # CDP: sessions that several clients share, and that may have none for a while

    def speaks_cdp(self, session_id: str) -> bool:
        session = self._slots.live.get(session_id)
        return session is not None and session.protocol is Protocol.CDP

    def join(self, client: OfferedClient, session_id: str) -> None:
        """Gives the browser server one more client of a session that is there, or refuses that. Draining changes
        nothing for it: the client belongs to this session alone."""
        session = self._slots.live.get(session_id)
        if time.monotonic() >= client.deadline:
            client.answer(OfferRefusal.LATE)
        elif session is None or session.protocol is not Protocol.CDP:
            client.answer(OfferRefusal.NO_SESSION)
        elif not session.is_served:
            client.answer(OfferRefusal.NOT_YET)
        else:
            client = replace(client, joins=session_id)
            client.session.keep_s = session.keep_s = client.session.keep_s or session.keep_s

            def settled(future: asyncio.Future[None]) -> None:
                if future.cancelled() or future.exception() is not None:
                    self.on_handoff_failed()
                    client.answer(OfferRefusal.GONE)
                else:
                    client.answer(None, time.monotonic())

            self._pass_on(client).add_done_callback(settled)

    def once_reported(self, client: OfferedClient, then: Callable[[], None]) -> None:
        """Calls `then` when each end is known here that the browser server has reported before now: a client that has
        just gone may come again before this process has read of its end."""

        assert self.server is not None

        def go_on(task: asyncio.Task[None]) -> None:
            self._joining.discard(task)
            if task.cancelled():
                client.answer(OfferRefusal.DRAINING)
            else:
                task.result()
                then()

        task = asyncio.create_task(self.server.has_reported(client.deadline - time.monotonic()))
        self._joining.add(task)
        task.add_done_callback(go_on)

    def has_clients(self, session_id: str, kept_s: float | None) -> None:
        """Called when the last client of a session has gone, with the seconds for which its browser waits for another
        one, and with None when that has come."""
        if (session := self._slots.live.get(session_id)) is None:
            return
        session.kept = None if kept_s is None else Kept(time.monotonic(), time.time() + kept_s)
        log.info("session_resumed" if kept_s is None else "session_kept", session=session_id, kept_s=kept_s)
        self._registry_sync.beat_soon()  # which tells Redis
        self.on_kept()

    def end_kept(self, reason: Reason[EndReason], only: str | None = None) -> None:
        """Ends the kept sessions, or only this one if it is kept."""
        for session in self._slots.kept():
            if only in (None, session.id) and self.server is not None:
                self.server.end_kept(session.id, reason)

    def end_browser(self, pid: int) -> None:
        """Ends the session that has this browser alone: this worker takes too much memory, and it takes the most."""
        if self.server is not None:
            self.server.end_browser(pid)

    # Sessions that begin

    def offered(self, client: OfferedClient) -> None:
        """Admits a client that takes a slot of its own, or refuses it."""
        if (session := self._slots.live.get(client.session.id)) is not None and _is_same_owner(session, client.session):
            self.join(client, session.id)  # another proxy's client has begun the session of this URL meanwhile
        elif session is not None or client.session.id in self._slots.held:
            client.answer(OfferRefusal.NO_SESSION)
        elif refused := self._slots.refusal(client.session.id, client.deadline, time.monotonic()):
            client.answer(refused)
        else:
            self._slots.admit(client.session)
            self.serve(client)

    def serve(self, client: OfferedClient) -> None:
        """Gives an admitted client to the browser server, if need be when there is a browser of its own."""
        session = client.session
        if session.own is None and self._boot.pool.isolation is Isolation.BROWSER:
            session.own = client.own_browser()
        if (own := session.own) is None:
            self._hand_over(client)  # first: the client waits for that
            self._on_offered()
            return
        if time.monotonic() >= client.deadline:  # it has waited for its lease's last client: another worker may have it
            self._take_back(session.id)
            client.answer(OfferRefusal.LATE)
            return
        fields = {ISOLATION: Isolation.BROWSER.value}
        if session.protocol is not Protocol.PLAYWRIGHT:
            fields[PROTOCOL] = session.protocol.value
        session.client_fields = {**fields, **session.client_fields}
        self._on_offered()
        task = asyncio.create_task(self._acquire(session.id, own))
        is_full = self._slots.own_browsers > self._most_own
        self._acquiring[session.id] = waits = _Acquiring(client, task, is_full)
        self._promise(waits)
        if self._promising is None:
            self._promise_later()
        task.add_done_callback(lambda _: self._acquired(waits, own))

    @property
    def _most_own(self) -> int:
        return self._boot.pool.max_own_browsers or self._boot.settings.max_concurrent_sessions

    def _promise(self, waits: _Acquiring) -> None:
        waits.promised = time.monotonic() + PROMISE_S
        waits.client.waits_for_browser(waits.promised)

    def _promise_later(self) -> None:
        self._promising = asyncio.get_running_loop().call_later(PROMISE_AGAIN_S, self._promise_again)

    def _promise_again(self) -> None:
        """Tells the proxies that this worker is awake, while clients wait here for browsers of their own."""
        self._promising = None
        for session_id, waits in list(self._acquiring.items()):
            if time.monotonic() < waits.promised:
                self._promise(waits)
            else:  # this process was frozen: another worker may have the client
                self._let_go(session_id, OfferRefusal.LATE)
        if self._acquiring:
            self._promise_later()

    async def _acquire(self, session_id: str, own: OwnBrowser) -> None:
        """Has the browser server get a browser for this session alone. Raises BrowserLaunchError, BrowserServerGone,
        ProfileInUse and TooManyProfiles."""
        assert self.server is not None
        profile = None
        if own.profile is not None:
            session = self._slots.live[session_id]
            profile = await self.profiles.take(session, own.profile, self.server.pid, own.until)
        browser = await self._browsers.prepare(session_id, own.options, own.until)
        await self.server.acquire(session_id, own.options, own.until, browser, profile)

    def _acquired(self, waits: _Acquiring, own: OwnBrowser) -> None:
        """Gives the client to the browser server, which has a browser for it alone, or refuses it. Until now another
        worker might still have taken the client."""
        client, task = waits.client, waits.task
        session_id = client.session.id
        if task.cancelled() or self._acquiring.get(session_id) is not waits:  # it was refused meanwhile
            return
        if time.monotonic() >= waits.promised:
            self._let_go(session_id, OfferRefusal.LATE)
            return
        del self._acquiring[session_id]
        end = self._to_end.pop(session_id, None)
        error = task.exception()
        if error is not None:
            self._take_back(session_id)
        match error:
            case None:
                self._slots.launched(client.session)
                self._hand_over(replace(client, deadline=min(own.until, waits.promised)))
                if end is not None:
                    self.end(session_id, *end)
            case BrowserLate() if waits.came_when_full:
                log.warning("own_browsers_full", session=session_id, most=self._most_own)
                client.answer(
                    OfferRefusal.OWN_FULL, detail=f"all {self._most_own} of its worker are in use (MAX_OWN_BROWSERS)"
                )
            case BrowserLaunchError():
                log.warning("own_browser_failed", session=session_id, error=error.reason)
                is_late = isinstance(error, BrowserLate)
                client.answer(OfferRefusal.NOT_IN_TIME if is_late else OfferRefusal.NOT_LAUNCHED, detail=error.reason)
            case BrowserServerGone():
                client.answer(OfferRefusal.GONE)
            case ProfileInUse() | TooManyProfiles():
                client.answer(OfferRefusal.NO_PROFILE)
            case _:
                client.answer(OfferRefusal.GONE)
                raise error

    def _hand_over(self, client: OfferedClient) -> None:
        session_id = client.session.id

        def settled(future: asyncio.Future[None]) -> None:
            if future.cancelled() or future.exception() is not None:
                self.on_handoff_failed()
                if client.session.own is not None and self.server is not None:
                    self.server.give_back(session_id)  # the browser that was to be its own
                self._take_back(session_id)
                client.answer(OfferRefusal.GONE)
                return
            if (session := self._slots.live.get(session_id)) is not None:  # else it has ended already
                self._registry_sync.mark_served(session)
            self._taken[session_id] = client, time.monotonic()
            if len(self._taken) >= RECORD_AT_ONCE:
                self.record_taken()
            elif self._timer is None:
                self._timer = asyncio.get_running_loop().call_later(RECORD_DELAY_S, self.record_taken)

        self._pass_on(client).add_done_callback(settled)

    def _pass_on(self, client: OfferedClient) -> asyncio.Future[None]:
        assert self.server is not None
        mark_passed_on(client.sock)
        return self.server.hand_over(client)

    def slot_taken(self) -> None:
        """Called when a lease has taken a slot."""
        self._on_offered()
        self._on_served()

    def _take_back(self, session_id: str) -> None:
        session = self._slots.live.get(session_id)
        self.profiles.drop(session_id)
        self._slots.take_back(session_id)
        self._browsers.over(session_id)
        if session is not None:
            self.on_over(session_id, session.lease_id, None)

    def record_taken(self) -> None:
        """Answers the proxies of sessions that the browser server has, and records these sessions."""
        if not self._taken:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        taken, self._taken = self._taken, {}
        for session_id, (client, served_at) in taken.items():
            client.answer(None, served_at)
            session = self._slots.live.get(session_id)
            if session is None:
                log.info("session_started", session=session_id, client="gone already")
            else:
                self._registry_sync.started(session)
        self._on_served()


def _is_same_owner(one: LiveSession, other: LiveSession) -> bool:
    return one.client_fields.get(TOKEN, "") == other.client_fields.get(TOKEN, "")
