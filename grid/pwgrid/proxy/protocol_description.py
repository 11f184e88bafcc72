"""The description of the DevTools protocol (`/json/protocol`), as the grid's Chromium gives it: a worker has it written
into a file when it is asked for first."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Final

from pwgrid.common.types import Protocol
from pwgrid.proxy.connect.handoff_link import HandoffFailure, Handoffs
from pwgrid.proxy.policy.refusal import Refusal
from pwgrid.proxy.roster import Roster, WorkerView
from pwgrid.runtime.directory import protocol_file

_WAIT_S: Final = 25.0
"""Longer than its browser may take (pwgrid/worker/browser/protocol_description.py)."""

_RETRY_S: Final = 30.0
"""How long a failure is the answer for all who ask: the route takes no token, and each try starts a browser."""

_OTHERWISE: Final = "use the description that your library has (chrome-remote-interface: local: true)"


class ProtocolDescription:
    def __init__(self, runtime: Path, roster: Roster, handoffs: Handoffs) -> None:
        self._runtime = runtime
        self._roster = roster
        self._handoffs = handoffs
        self._lock = asyncio.Lock()
        self._failed = ("", 0.0)
        """Why the last try failed, and until when that is the answer (monotonic seconds)."""

    async def file(self) -> Path:
        """Returns the file that has it. Raises Refusal."""
        worker = self._worker()
        if worker is None:
            raise self._refused("no Chromium runs here now to describe its protocol", status=503)
        try:
            path = protocol_file(self._runtime, worker.browser_version)
        except ValueError as error:
            raise self._refused(str(error)) from None
        async with self._lock:
            if not await asyncio.to_thread(path.exists):
                await self._have_it_written(worker)
        return path

    def _worker(self) -> WorkerView | None:
        """The one whose version /json/version tells."""
        of_cdp = (each for each in self._roster.workers.values() if Protocol.CDP in each.protocols)
        return next((each for each in of_cdp if each.browser_version), None)

    async def _have_it_written(self, worker: WorkerView) -> None:
        why, until = self._failed
        if time.monotonic() < until:
            raise self._refused(why)
        question = {"do": "describe protocol", "id": worker.browser_version}
        try:
            answer = await self._handoffs.ask(worker.worker_id, question, time.monotonic() + _WAIT_S)
        except HandoffFailure as failure:
            raise self._refused(f"the worker does not answer: {failure.reason}", status=503) from None
        if answer["refused"] is not None:
            self._failed = answer["refused"], time.monotonic() + _RETRY_S
            raise self._refused(answer["refused"])

    @staticmethod
    def _refused(why: str, status: int = 404) -> Refusal:
        return Refusal(status, f"this grid has no description of its protocol: {why}; {_OTHERWISE}")
