"""What proxies offer this worker: sessions, and leases with the clients that come with them. Admits and ends both."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from pwgrid.common.reasons import EndReason, OfferRefusal, Reason
from pwgrid.common.types import Isolation, Protocol
from pwgrid.registry.records import OF_LEASE, TOKEN
from pwgrid.runtime.child_arguments import WorkerArguments
from pwgrid.worker.browser.server import BrowserServer
from pwgrid.worker.describe_protocol import DESCRIBE, ProtocolDescriber
from pwgrid.worker.handoff_server import HandoffServer
from pwgrid.worker.holders import REVOKED, End, Holder, OfferedClient
from pwgrid.worker.leases import Leases
from pwgrid.worker.registry_sync import RegistrySync
from pwgrid.worker.sessions import Sessions
from pwgrid.worker.slots import Slots
from pwgrid.worker.token_check import TokenCheck


class Admission:
    """Takes offers from `open` to `close`. Calls `on_offered` for each that is admitted and `on_served` when it is
    served: a session once the browser server has its socket, a lease at once."""

    def __init__(
        self,
        boot: WorkerArguments,
        slots: Slots,
        registry_sync: RegistrySync,
        handoff: HandoffServer,
        on_offered: Callable[[], None],
        on_served: Callable[[], None],
    ) -> None:
        grace_s = boot.settings.borrow_reconnect_grace
        self.tokens = TokenCheck(boot.tokens_file)
        self.sessions = Sessions(boot, slots, registry_sync, handoff, on_offered, on_served)
        shares_browser = boot.pool.isolation is Isolation.CONTEXT
        path = boot.directory / "leases.json"
        self.leases = Leases(slots, path, grace_s, registry_sync, self.sessions, self.tokens, shares_browser)
        self._describer = ProtocolDescriber(boot)
        self._slots = slots
        self._registry_sync = registry_sync
        self._handoff = handoff
        self._ended_tokens: frozenset[str] = frozenset()
        """Names of tokens whose sessions were to end: a proxy may offer one that it checked before."""

    def open(self) -> None:
        """Starts to take offers."""
        self._handoff.open(self._offered, self)

    def close(self) -> None:
        """Takes no more offers. Idempotent."""
        self.sessions.record_taken()
        self.sessions.let_waiting_go()
        self._handoff.close()

    def adopt(self, server: BrowserServer, live: Mapping[str, Mapping[str, str]]) -> None:
        """Takes over the leases and sessions of this worker's predecessor. `live` has what that was told of each
        session that its browser server has."""
        self.leases.adopt({session_id: told.get(OF_LEASE, "") for session_id, told in live.items()})
        self.sessions.adopt(server, live)
        self._registry_sync.take_over(each.id for each in self._slots.live.values() if each.protocol is Protocol.CDP)
        self.end_of_tokens(self._ended_tokens)  # the master may have told them before

    def asked(self, link: int, message: Mapping[str, Any]) -> dict[str, Any] | Awaitable[dict[str, Any]]:
        """Returns the answer to a proxy's request, perhaps later. Raises KeyError, TypeError or ValueError for a
        malformed one."""
        if message["do"] == DESCRIBE:
            return self._describer.written(str(message["id"]))
        if message["do"] not in ("end session", "tell of session"):
            return self.leases.asked(link, message)
        session_id = str(message["id"])
        if (session := self._slots.live.get(session_id)) is None:
            return {"refused": OfferRefusal.NO_SESSION}
        if message["do"] == "tell of session":
            token = (self._slots.held.get(session.lease_id) or session).client_fields.get(TOKEN, "")
            return {"refused": None, "token": token, "protocol": session.protocol.value}
        self.sessions.end(session_id, Reason(EndReason.ENDED_BY_OPERATOR))
        return {"refused": None}

    @property
    def has_profiles(self) -> bool:
        """Whether there are profiles to save, also because a lease has one, whose client may still come."""
        return self.sessions.has_profiles or any(lease.profile for lease in self._slots.held.values())

    def link_ended(self, link: int) -> None:
        """Called when a proxy is gone."""
        self.leases.link_ended(link)

    def all_ended(self, by: str, kind: EndReason) -> None:
        """Ends every live session and lease in the records, when no browser server will report their ends."""
        self._end_records(End(by, Reason(kind)))

    async def cut(self, reason: Reason[EndReason], text: str | None) -> None:
        """Closes every session and lease for `reason`, and waits until each is over. Clients hear `text`."""
        end = End("grid", reason)
        self.leases.cut(end)
        await self.sessions.cut(reason, text)
        self._end_records(end)

    def end_of_tokens(self, names: Iterable[str]) -> None:
        """Ends the live sessions and the leases of tokens of these names that are not there any more, and admits no
        client of them. Idempotent; a new token of such a name is another one."""
        self._ended_tokens = frozenset(names)
        for lease in list(self._slots.held.values()):
            if self._is_to_end(lease):
                self.leases.end(lease.id, REVOKED)
        for session in list(self._slots.live.values()):
            if self._is_to_end(session):
                self.sessions.end(session.id, REVOKED.reason)

    def _end_records(self, end: End) -> None:
        self.leases.cut(end)
        self.sessions.all_ended(end)

    def _offered(self, client: OfferedClient) -> None:
        if client.joins:
            self.sessions.join(client, client.joins)
        elif client.session.lease_id:
            self.leases.offered(client)
        elif self._is_to_end(client.session):
            client.answer(EndReason.TOKEN_REVOKED)
        else:
            self.sessions.offered(client)

    def _is_to_end(self, holder: Holder) -> bool:
        if holder.client_fields.get(TOKEN, "") not in self._ended_tokens:
            return False
        # If that cannot be told now, the master's next state is another occasion.
        return self.tokens.has(holder.token_id) is False
