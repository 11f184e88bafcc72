"""Remembers upgrade heads that were judged: the next head of a client differs from its last in the key alone. No I/O.

Parsing, judging and rewriting a head is most of what an upgrade costs the proxy (docs/decisions.md).
"""

import re
from typing import Final

from pwgrid.proxy.policy.upgrade_request import Wanted

MOST_HEADS: Final = 256
LONGEST_HEAD_BYTES: Final = 4096
_KEY: Final = b"\r\nSec-WebSocket-Key: "
_KEY_BYTES: Final = 24
_is_key = re.compile(rb"[A-Za-z0-9+/]{22}==").fullmatch


class KnownHeads:
    """Heads by all of their bytes but the key. What they were judged by must not change: else `forget_all`."""

    def __init__(self) -> None:
        self._known: dict[tuple[bytes, bytes, bool], tuple[Wanted, bytes, bytes]] = {}

    def __repr__(self) -> str:
        return f"<KnownHeads {len(self._known)}>"

    def find(self, head: bytes, *, compression: bool) -> tuple[Wanted, bytes] | None:
        """What this head wants, and the header lines for the browser server; None if it was not judged before."""
        at = head.find(_KEY) + len(_KEY)
        known = self._known.get((head[:at], head[at + _KEY_BYTES :], compression))
        key = head[at : at + _KEY_BYTES]
        if known is None or not _is_key(key):
            return None
        wanted, before, after = known
        return wanted, before + key + after

    def keep(self, head: bytes, wanted: Wanted, lines: bytes, *, compression: bool) -> None:
        """Remembers a head that was found good. One that is long or odd is judged anew each time."""
        before, name, rest = head.partition(_KEY)
        key, after = rest[:_KEY_BYTES], rest[_KEY_BYTES:]
        if len(head) > LONGEST_HEAD_BYTES or not _is_key(key) or not after.startswith(b"\r\n") or lines.count(key) != 1:
            return
        if len(self._known) >= MOST_HEADS:
            self._known.clear()
        first, _, last = lines.partition(key)
        self._known[before + name, after, compression] = wanted, first, last

    def forget_all(self) -> None:
        """What is allowed or offered has changed."""
        self._known.clear()
