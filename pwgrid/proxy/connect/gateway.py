"""Where upgrades arrive: decides what each wants, or refuses it. Reads heads, waits for nothing."""

import asyncio

from pwgrid.proxy.connect import refusals as responses
from pwgrid.proxy.connect.handoff import Handoffs
from pwgrid.proxy.connect.known_heads import KnownHeads
from pwgrid.proxy.connect.upgrade import Desk, Peer, Upgrade, refuse
from pwgrid.proxy.policy.upgrade_request import Headers, Policy, Refusal, browser_server_headers, decide
from pwgrid.proxy.roster import Roster
from pwgrid.proxy.select.selector import Selector
from pwgrid.settings.load import Settings


class Gateway:
    """One for the whole proxy."""

    def __init__(self, settings: Settings, roster: Roster, selector: Selector, handoffs: Handoffs) -> None:
        self.desk = Desk(asyncio.get_running_loop(), settings, roster, selector, handoffs)
        self._settings = settings
        self._roster = roster
        self._policy: Policy | None = None
        self._known_heads = KnownHeads()

    def policy(self) -> Policy:
        """What is allowed and offered now; cached until the roster changes."""
        if self._policy is None:
            self._policy = Policy(
                default_browser_type=self._settings.default_browser_type,
                pools=self._roster.offered(),
                versions=self._roster.versions(),
                token=self._settings.token,
                allowed_origins=frozenset(self._settings.allowed_origins),
            )
        return self._policy

    def roster_changed(self) -> None:
        """The policy depends on the roster."""
        self._policy = None
        self._known_heads.forget_all()

    def take_known(self, transport: asyncio.Transport, data: bytes) -> bool:
        """Takes over a connection whose first bytes are a head that was found good before; False if they are not."""
        peer = transport.get_extra_info("peername")
        found = self._known_heads.find(data, compression=self._may_compress(transport, peer))
        if found is None or self._roster.stopping:
            return False
        wanted, lines = found
        Upgrade(self.desk, transport, peer, wanted, lines, is_first=True).begin()
        return True

    def take_upgrade(
        self, transport: asyncio.Transport, target: bytes, headers: Headers, rest: bytes, raw: bytes = b""
    ) -> None:
        """Takes over a connection whose upgrade head is complete. `raw`: the connection's first bytes, if the head and
        `rest` are all of them (TakeUpgrade of the HTTP protocol)."""
        peer = transport.get_extra_info("peername")
        compression = self._may_compress(transport, peer)
        try:
            wanted = decide(target, headers, self.policy())
            if self._roster.stopping:
                raise responses.stopping()
        except Refusal as refusal:
            refuse(self.desk, transport, peer, refusal)
            return
        lines = browser_server_headers(headers, compression=compression)
        self._known_heads.keep(raw, wanted, lines, compression=compression)
        Upgrade(self.desk, transport, peer, wanted, lines, rest, is_first=bool(raw)).begin()

    def _may_compress(self, transport: asyncio.Transport, peer: Peer) -> bool:
        """Whether the client may have permessage-deflate: by setting, or not when it is on this very host."""
        if self._settings.compression != "auto":
            return self._settings.compression == "on"
        if not peer or peer[0].startswith("127."):
            return False
        local = transport.get_extra_info("sockname")
        return bool(local and peer[0] != local[0])
