"""Keeps the sessions that the dashboard shows, all live ones and the newest, and reads only records that may have
changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from pwgrid.common.session_lifecycle import LIVE, SessionStatus
from pwgrid.registry.records import Activity, SessionRecord
from pwgrid.registry.registry import Registry

NEWEST: Final = 200
AT_MOST_EACH: Final = 1000
"""How many live sessions of one worker are shown at most."""


class ShownSessions:
    """Calls `on_end` with each session that has ended, once."""

    def __init__(self, registry: Registry, on_end: Callable[[SessionRecord], None]) -> None:
        self.rows: Mapping[str, dict[str, Any]] = {}
        """The sessions by id, as the API shows them; a new mapping after each change."""
        self._registry = registry
        self._on_end = on_end
        self._records: dict[str, SessionRecord] = {}
        self._activity: Activity | None = None
        self._touched: set[str] = set()
        self._told: set[str] = set()
        self._has_pending = False

    def touch(self, session_id: str) -> None:
        """Marks a session whose record has changed although no counter has."""
        self._touched.add(session_id)

    async def refresh(self, activity: Activity) -> None:
        """Updates the rows. Raises RegistryUnavailable; the next call makes up for it."""
        if activity == self._activity and not self._has_pending and not self._touched:
            return
        registry = self._registry
        live, newest = await registry.session_ids(activity.fields, newest=NEWEST, at_most=AT_MOST_EACH)
        wanted = dict.fromkeys([*newest, *live])
        touched = frozenset(self._touched)
        unread = [each for each in wanted if self._is_unread(each, live) or each in touched]
        found = await registry.session_records(unread)
        self._touched -= touched
        known = {key: each for key, each in self._records.items() if key in wanted and key not in unread}
        self._records = known | found
        self.rows = {key: found[key].as_json() if key in found else self.rows[key] for key in self._records}
        self._activity = activity
        self._has_pending = any(each.status == SessionStatus.PENDING for each in self._records.values())
        self._tell_ends()

    def _is_unread(self, session_id: str, live: frozenset[str]) -> bool:
        record = self._records.get(session_id)
        if record is None or record.status == SessionStatus.PENDING:
            return True
        return (record.status in LIVE) != (session_id in live)  # it has ended, or a presumed end was taken back

    def _tell_ends(self) -> None:
        self._told &= self._records.keys()
        ended = [each for each in self._records.values() if each.status not in LIVE]
        for record in sorted(ended, key=lambda each: each.ended_at or 0.0):
            if record.session_id not in self._told:
                self._told.add(record.session_id)
                self._on_end(record)
