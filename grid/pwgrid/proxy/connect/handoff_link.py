"""Sends accepted sockets to workers over their handoff sockets, and asks workers about leases."""

from __future__ import annotations

import array
import asyncio
import contextlib
import math
import secrets
import socket
import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson

from pwgrid.common.client_marks import is_passed_on, is_served
from pwgrid.common.packet_sockets import MAX_OFFER_BYTES, despite_reset
from pwgrid.common.reasons import OfferRefusal
from pwgrid.proxy.client_traces import ClientTraces
from pwgrid.proxy.policy.refusal import bad_handshake
from pwgrid.proxy.select.worker_health import HANDOFF_TIMEOUT_S, WorkerHealth
from pwgrid.runtime.directory import worker_dir

_ANSWER_BYTES: Final = 4096
_NO_FD: Final = -1
_LATE_ANSWER_S: Final = 0.25
_MARK_POLL_INTERVAL_S: Final = 0.005
"""How often to look whether a browser server has got the client of a worker that died; usually it takes 1 ms."""

_IN_TIME_S: Final = 0.05
"""If a worker accepts less than this before the deadline, its browser server may still drop the socket as late."""


class HandoffFailure(Exception):
    """The worker has not taken the client, or has not answered a question. `reason` is its answer (`draining`, `full`,
    `late`, `suspect`; then `is_refusal`), or what happened to the link.

    `is_dead`: the worker has closed the link, or is gone: it does nothing more with the offer. `open_until`: until when
    a browser server may take the socket, in seconds of the loop's clock; 0 if none can have it, since the offer was not
    sent, or was refused. `is_served` tells whether one has it. `ended` is why a client's lease has ended, if it has;
    `detail` why the worker has launched no browser for it.
    """

    def __init__(
        self,
        reason: str,
        *,
        is_dead: bool = False,
        is_refusal: bool = False,
        open_until: float = 0.0,
        ended: str | None = None,
        detail: str = "",
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.is_dead = is_dead
        self.is_refusal = is_refusal
        self.open_until = open_until
        self.ended = ended
        self.detail = detail

    def as_told(self) -> dict[str, Any]:
        """What another host hears of it."""
        return {
            "refused": self.reason,
            "isRefusal": self.is_refusal,
            "ended": self.ended,
            "detail": self.detail,
        }

    @classmethod
    def from_told(cls, told: Mapping[str, Any]) -> HandoffFailure:
        """Reads what another host has told of it."""
        return cls(
            str(told.get("refused", "")),
            is_refusal=bool(told.get("isRefusal")),
            ended=told.get("ended"),
            detail=str(told.get("detail") or ""),
        )


class HostUnreachable(HandoffFailure):
    """Not the worker has failed, but the way to its host: the worker may take this client later."""


class HostSilent(HostUnreachable):
    """That host's proxy may have taken what it was asked, and has not answered: it may have done it, or do it yet."""


class NoWay(HostUnreachable):
    """What has failed of that way is this host's own, its forwarder or its TLS process, which has a successor soon."""


PendingAnswer = asyncio.Future[dict[str, Any] | HandoffFailure]
"""Of an offer or a question: what the worker says, or why it says nothing."""


@dataclass(slots=True)
class Pending:
    """An offer or a question that is not answered yet. `deadline`: until when its answer may come, by the loop's clock.
    A worker that acquires a browser for the client promises again and again to answer a moment later, at the latest by
    `acquired_by`."""

    answer: PendingAnswer
    deadline: float
    acquired_by: float


class HandoffLink:
    """One SEQPACKET connection to a worker. A packet is a JSON object (the offer) with the socket itself.

    `health` hears what it notices of the worker; `traces` what that tells of a traced session that has ended.
    """

    def __init__(self, path: Path, worker_id: str, health: WorkerHealth, traces: ClientTraces | None) -> None:
        self._loop = asyncio.get_running_loop()
        self._worker_id = worker_id
        self._health = health
        self._traces = traces
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            self._sock.connect(str(path))
        except OSError:
            self._sock.close()
            raise
        self._unsent: deque[tuple[str, bytes, int]] = deque()
        self._pending: dict[str, Pending] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf
        self._is_full = False
        self.closed = False
        self._loop.add_reader(self._sock, self.read_answers)

    def __repr__(self) -> str:
        return f"<HandoffLink pending={len(self._pending)} unsent={len(self._unsent)} closed={self.closed}>"

    async def offer(self, session_id: str, packet: bytes, fd: int, until: float = 0.0) -> float:
        """Sends the packet with the socket `fd`, which must stay open until there is an answer. Returns since when the
        browser server has it, in seconds of time.monotonic(): the worker answers later, and several offers at once.
        A worker that acquires a browser for the client, and goes on saying so, has until `until`. Raises
        HandoffFailure."""
        answer, deadline = await self._exchange(session_id, packet, fd, until)
        if answer["refused"] is not None:
            raise HandoffFailure(
                answer["refused"], is_refusal=True, ended=answer.get("ended"), detail=answer.get("detail") or ""
            )
        served_at: float = answer["servedAt"]
        # Node acknowledges a socket before launcher.cjs looks at the offer's deadline and may drop it.
        if served_at >= deadline - _LATE_ANSWER_S - _IN_TIME_S:
            raise HandoffFailure("it answered late", open_until=deadline)
        return served_at

    async def ask(self, question: Mapping[str, object], until: float = 0.0) -> dict[str, Any]:
        """Returns the worker's answer. One that goes on saying that it works on it has until `until`. Raises
        HandoffFailure when there is none in time."""
        number = secrets.token_hex(4)
        answer, _ = await self._exchange(number, orjson.dumps({**question, "ask": number}), _NO_FD, until)
        return answer

    def close(self, reason: str, *, is_dead: bool = False) -> None:
        """Ends the link; what is pending fails with `reason`. `is_dead`: the worker has closed its end first."""
        if self.closed:
            return
        self.closed = True
        self._loop.remove_reader(self._sock)
        self._loop.remove_writer(self._sock)
        self._sock.close()
        unsent = {key for key, _, _ in self._unsent}
        self._unsent.clear()
        if self._timer is not None:
            self._timer.cancel()
        pending, self._pending = self._pending, {}
        for key, each in pending.items():
            open_until = 0.0 if key in unsent else each.deadline
            _settle(each.answer, HandoffFailure(reason, is_dead=is_dead, open_until=open_until))
        self._tell_freed()

    async def _exchange(self, key: str, packet: bytes, fd: int, until: float = 0.0) -> tuple[dict[str, Any], float]:
        """Returns the answer, and until when it might have come. Raises HandoffFailure."""
        # The worker's deadlines are the shorter ones, so that it never takes a socket that the proxy has given up on.
        deadline = self._loop.time() + HANDOFF_TIMEOUT_S + _LATE_ANSWER_S
        pending = Pending(self._loop.create_future(), deadline, max(deadline, until + _LATE_ANSWER_S))
        self._pending[key] = pending
        self._check_at(deadline)
        self._unsent.append((key, packet, fd))
        if not self._is_full:
            self._write()
        answer = await pending.answer
        if isinstance(answer, HandoffFailure):
            raise answer
        return answer, pending.deadline

    def _write(self) -> None:
        while self._unsent:
            _, packet, fd = self._unsent[0]
            sent_along = [] if fd == _NO_FD else [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))]
            try:
                self._sock.sendmsg([packet], sent_along)
            except BlockingIOError:
                if not self._is_full:
                    self._is_full = True
                    self._loop.add_writer(self._sock, self._write)
                return
            except OSError as error:
                self.read_answers()  # it may have answered before it ended
                self.close(f"the worker is gone ({error.strerror})", is_dead=isinstance(error, ConnectionError))
                return
            self._unsent.popleft()
        if self._is_full:
            self._is_full = False
            self._loop.remove_writer(self._sock)

    def read_answers(self) -> None:
        """Takes what the worker has said, without waiting."""
        while not self.closed:
            try:
                packet = despite_reset(self._sock.recv, _ANSWER_BYTES)
            except BlockingIOError:
                return
            except OSError as error:
                self.close(f"the worker is gone ({error.strerror})", is_dead=isinstance(error, ConnectionError))
                return
            if not packet:
                self.close("the worker is gone", is_dead=True)
                return
            self._take(orjson.loads(packet))

    def _take(self, message: dict[str, Any]) -> None:
        if "freed" in message:
            self._tell_freed()
            return
        if "over" in message:
            if self._traces is not None:
                self._traces.session_over(self._worker_id, message["over"])
            return
        key = message.get("asked") or message["session"]
        pending = self._pending.get(key)
        if pending is None:
            self._health.awake(self._worker_id)
        elif message.get("acquiring"):
            promised = message.get("promised", math.inf)  # a worker of an older version promises once
            pending.deadline = max(pending.deadline, min(promised + _LATE_ANSWER_S, pending.acquired_by))
        else:
            del self._pending[key]
            _settle(pending.answer, message)

    def _tell_freed(self) -> None:
        # After those whom the worker refused before: their tasks note only then that it is full.
        self._loop.call_soon(self._health.freed, self._worker_id)

    def _check_at(self, deadline: float) -> None:
        """Has the deadlines checked at this time, unless that is done earlier: one timer serves all of them."""
        if deadline < self._timer_at:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_at = deadline
            self._timer = self._loop.call_at(deadline, self._check_deadlines)

    def _check_deadlines(self) -> None:
        self._timer, self._timer_at = None, math.inf
        # After a pause of this process the timer may come first: what the worker has said in time counts.
        self.read_answers()
        now = self._loop.time()
        for key, pending in list(self._pending.items()):
            if pending.deadline > now:
                self._check_at(pending.deadline)
                continue
            # The link stays: later offers have deadlines of their own. If they failed now, their clients would get
            # another worker while this one may still wake up and take them. An unsent offer is not sent any more, an
            # unsent question is: it may return a lease.
            del self._pending[key]
            sent = deque(each for each in self._unsent if each[0] != key or each[2] == _NO_FD)
            is_unsent, self._unsent = len(sent) < len(self._unsent), sent
            self._health.silent(self._worker_id)
            open_until = 0.0 if is_unsent else pending.deadline
            _settle(pending.answer, HandoffFailure(OfferRefusal.SILENT, open_until=open_until))


def _settle(answer: PendingAnswer, outcome: dict[str, Any] | HandoffFailure) -> None:
    if not answer.done():  # else its caller was cancelled
        answer.set_result(outcome)


class Handoffs:
    """The links to all workers of this host, each opened at the worker's first session."""

    def __init__(self, runtime: Path, health: WorkerHealth, traces: ClientTraces | None = None) -> None:
        self._runtime = runtime
        self._health = health
        self._traces = traces
        self._links: dict[str, HandoffLink] = {}

    async def offer(
        self,
        worker_id: str,
        session_id: str,
        request: Mapping[str, object],
        sock: socket.socket,
        until: float = 0.0,
    ) -> float:
        """Moves `sock` to the worker and on to its browser server. Returns since when that has it, in seconds of
        time.monotonic(). Raises HandoffFailure.

        `request` has what the worker gets beside the session's id and the deadline: the client's address, the headers
        for the browser server, what the client has sent after its head, and perhaps which browser of its own it gets.
        `until`: how long a worker may take that acquires one (time.monotonic()). Raises Refusal if that is too much.
        """
        offer = {"session": session_id, "deadline": time.monotonic() + HANDOFF_TIMEOUT_S, **request}
        packet = orjson.dumps(offer)
        if len(packet) > MAX_OFFER_BYTES:  # a worker that cannot read it ends the link, which all clients share
            raise bad_handshake("too much comes behind it before it is answered")
        return await self._link(worker_id).offer(session_id, packet, sock.fileno(), until)

    async def ask(self, worker_id: str, question: Mapping[str, object], until: float = 0.0) -> dict[str, Any]:
        """Returns a worker's answer to a question about a lease, say; it may work on it until `until`
        (time.monotonic()). Raises HandoffFailure."""
        return await self._link(worker_id).ask(question, until)

    def open(self, worker_ids: Iterable[str]) -> None:
        """Opens the links to these workers that are not open yet, to hear of sessions that end there."""
        for worker_id in worker_ids:
            with contextlib.suppress(HandoffFailure):  # it does not listen yet, or any more
                self._link(worker_id)

    def drop(self, worker_id: str, reason: str) -> None:
        """Closes the link to a worker; what is pending fails with `reason`."""
        if link := self._links.pop(worker_id, None):
            link.read_answers()  # the news that it is gone may be faster than what it said last
            link.close(reason)

    def close(self) -> None:
        for worker_id in list(self._links):
            self.drop(worker_id, "the proxy is stopping")

    def _link(self, worker_id: str) -> HandoffLink:
        """Raises HandoffFailure."""
        link = self._links.get(worker_id)
        if link is None or link.closed:
            self._links.pop(worker_id, None)
            try:
                path = worker_dir(self._runtime, worker_id) / "handoff.sock"
                link = self._links[worker_id] = HandoffLink(path, worker_id, self._health, self._traces)
            except (OSError, ValueError) as error:  # the latter: its id is none
                raise HandoffFailure(f"the worker is gone ({getattr(error, 'strerror', error)})") from None
        return link


async def may_be_served(sock: socket.socket, failure: HandoffFailure) -> bool:
    """Returns whether a browser server has this client's connection although the handoff failed.

    A worker may have passed the socket on and died before its answer. Two browser servers on one connection would break
    it, so this polls the marks until no browser server can take it any more. A client on a Unix socket has only the
    first one: where that is set, a browser server may have it, so the answer is yes, and the client may connect again.
    """
    loop = asyncio.get_running_loop()
    if failure.is_dead and not is_passed_on(sock):
        return False
    if sock.family == socket.AF_UNIX and not failure.open_until:
        return False
    is_told = is_passed_on if sock.family == socket.AF_UNIX else is_served
    while not is_told(sock):
        if loop.time() >= failure.open_until:
            return False
        await asyncio.sleep(_MARK_POLL_INTERVAL_S)
    return True
