"""Which workers no client should get now, as the links to them and the master tell. The links write it, the selection
reads it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Final

import structlog

from pwgrid.common.reasons import OfferRefusal

log = structlog.get_logger()

HANDOFF_TIMEOUT_S: Final = 2.0
"""After this a worker refuses an offer as late, and the proxy takes it for silent and tries another one."""

SILENT_S: Final = 10.0
"""How long a worker is excluded that did not answer, or of whose slots nobody tells this proxy."""


MAY_TAKE_IT_LATER: Final = (OfferRefusal.FULL, OfferRefusal.SUSPECT, OfferRefusal.SILENT)
"""Why a worker does not take a client now that it may take in a while."""


class WorkerHealth:
    """`lost` are the ids of workers that are gone; the caller changes it. Calls `on_better` when a client that waits
    may get a worker again."""

    def __init__(self, lost: Collection[str], on_better: Callable[[], None]) -> None:
        self._lost = lost
        self._on_better = on_better
        self._loop = asyncio.get_running_loop()
        self._without_process: set[str] = set()
        self._not_now: set[str] = set()
        """Workers that have refused a client as full or suspect, until they say that they have a slot."""
        self._silent: dict[str, asyncio.TimerHandle] = {}

    def not_to_choose(self) -> set[str]:
        return {*self._lost, *self._without_process, *self._not_now, *self._silent}

    def refused(self, worker_id: str, reason: str) -> bool:
        """Called when a worker has not taken a client. Returns whether it may take that client later: it is full,
        suspect or silent, and chosen for nobody until it says that it has a slot, or answers."""
        if reason in (OfferRefusal.FULL, OfferRefusal.SUSPECT):
            self._not_now.add(worker_id)
            return True
        return reason == OfferRefusal.SILENT

    def freed(self, worker_id: str) -> None:
        """Called when a worker has a slot again that it has refused a client, or of which it could not tell Redis; also
        when the link is closed over which it would say so."""
        self._not_now.discard(worker_id)
        self._on_better()

    def silent(self, worker_id: str) -> None:
        """Excludes a worker that left an offer or a question unanswered for SILENT_S: not every client waits for it."""
        log.warning("worker_silent", worker=worker_id)
        self.leave_alone(worker_id)

    def leave_alone(self, worker_id: str) -> None:
        """Excludes a worker for SILENT_S: one of another host, for example, that is full, and does not tell this proxy
        when it has a slot again."""
        if (timer := self._silent.pop(worker_id, None)) is not None:
            timer.cancel()
        self._silent[worker_id] = self._loop.call_later(SILENT_S, self._choose_again, worker_id)

    def awake(self, worker_id: str) -> None:
        """Called when a silent worker has answered after all: it may be chosen again."""
        if (timer := self._silent.get(worker_id)) is not None:
            timer.cancel()
            self._choose_again(worker_id)

    def process_died(self, worker_id: str) -> None:
        """Excludes a worker whose process died; its sessions live on."""
        self._without_process.add(worker_id)

    def keep_only(self, worker_ids: Collection[str]) -> None:
        """Forgets the dead processes of workers that the master does not list any more."""
        self._without_process.intersection_update(worker_ids)

    def _choose_again(self, worker_id: str) -> None:
        del self._silent[worker_id]
        self._on_better()
