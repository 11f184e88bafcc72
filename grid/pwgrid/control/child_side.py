"""The child's side of the control link: reconnects after the master's death, and notices when the master is frozen."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import structlog

from pwgrid.common.packet_sockets import despite_reset
from pwgrid.control.exactly_once import Link, LinkFullError
from pwgrid.control.frames import MAX_FRAME_BYTES, Frame, ProtocolError
from pwgrid.control.frozen_peer import FrozenPeerDetector

log = structlog.get_logger()

PING_S: Final = 3.0
"""Time between two pings; less where the lost threshold is so short that this would be too rare."""
_PINGS_WITHIN_THRESHOLD: Final = 3
RECONNECT_FIRST_S: Final = 0.1
RECONNECT_CAP_S: Final = 0.5
"""Short, since a try costs microseconds, and the start of a new master waits for its last worker."""
CLOSE_S: Final = 1.0
_PACKETS_A_TURN: Final = 64


@dataclass(eq=False)
class ChildSide:
    """The link to the master. Start `run()` as a task; everything else may be called before it, too.

    `hello` returns the child's own fields of the init frame (name, role, version, pid, slots …), `ping_data` its latest
    unindexed state, `fds` the descriptors that a master needs which did not fork this child: they go with the greeting
    of each reconnect. `on_command(name, data)` is called once for each command, in order, except for `detached`, which
    is about the link itself; `on_state(data)` for the master's latest state.

    `on_lost` is called when the child has no master any more: the master was silent for `lost_threshold_s` (which the
    latest master's greeting sets), or for the time that it allowed when it detached, or it closed the link for good.
    `on_found` is called when a master is heard again after that.

    A frozen master answers no ping, but its connection stays. The child keeps it, too: the master may wake. If that
    connection ends, too, and no other master comes in time, `on_lost` is called once more: now there is none.
    """

    sock: socket.socket
    control_path: Path
    hello: Callable[[], dict[str, Any]]
    on_command: Callable[[str, dict[str, Any]], None]
    on_state: Callable[[dict[str, Any]], None]
    ping_data: Callable[[], dict[str, Any]]
    lost_threshold_s: float
    on_lost: Callable[[], None]
    on_found: Callable[[], None] = lambda: None
    fds: Callable[[], list[int]] = list
    is_lost: bool = field(default=False, init=False)
    """Whether `on_lost` was called, and `on_found` not since."""
    _is_alone: bool = field(default=False, init=False)
    """Whether `on_lost` was called while there was no connection, and `on_found` not since."""
    _grace_s: float | None = field(default=None, init=False)
    """Seconds that a master which detached allows until the next one; None while there is one, or if it died."""
    _link: Link = field(init=False)
    _connected: socket.socket | None = field(default=None, init=False)
    _timers: dict[str, asyncio.TimerHandle] = field(default_factory=dict, init=False)
    _silence: FrozenPeerDetector = field(init=False)
    _ended: asyncio.Future[None] | None = field(default=None, init=False)
    _written: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _greeted: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _attempts: int = field(default=0, init=False)
    _closing: bool = field(default=False, init=False)
    _fds_to_send: list[int] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self._link = Link("child", str(self.hello()["name"]))
        self._silence = FrozenPeerDetector(self.lost_threshold_s, time.monotonic())

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection; the master on it may be frozen."""
        return self._connected is not None

    @property
    def ping_s(self) -> float:
        """Seconds between two pings."""
        return min(PING_S, self.lost_threshold_s / _PINGS_WITHIN_THRESHOLD)

    async def run(self) -> None:
        """Keeps the link until `close`, or until the master closes it for good. Raises what a callback raised."""
        if self._closing:
            return
        loop = asyncio.get_running_loop()
        self._ended = loop.create_future()
        self._attach(self.sock)
        self._listen_for_silence()
        self._ping()
        try:
            await self._ended
        finally:
            for timer in self._timers.values():
                timer.cancel()
            self._detach()

    def event(self, name: str, data: dict[str, Any]) -> None:
        """Tells the master something, exactly once, now or after a reconnect."""
        try:
            self._link.send(name, data)
        except LinkFullError as error:
            log.error("event_dropped", name=name, reason=str(error))
        self._flush()

    def push_state(self, data: dict[str, Any]) -> None:
        """Tells the master the latest state; only the latest one counts."""
        self._link.state(data)
        self._flush()

    def stopping(self) -> None:
        """Announces a graceful end."""
        self._link.stopping()
        self._flush()

    def give_up(self) -> bool:
        """Stop waiting for another master, unless there is a connection. Returns whether there is none. Idempotent."""
        if self._connected is not None:
            return False
        if not self._is_alone:
            self._lose()
        return True

    async def close(self, reason: str) -> None:
        """Ends the link for good once everything is written, at most CLOSE_S later. Idempotent."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await self._greeted.wait()  # before that nothing can have gone out
                self._closing = True
                self._link.close(reason)
                self._flush()
                if self._connected is not None and self._link.phase != "closed":
                    await self._written.wait()
        self._closing = True
        self._end(None)

    # The connection

    def _attach(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._connected = sock
        self._greeted.clear()
        self._written.clear()
        self._link.connect(self.hello())
        asyncio.get_running_loop().add_reader(sock.fileno(), self._on_readable)
        self._flush()

    def _detach(self) -> None:
        sock, self._connected = self._connected, None
        if sock is None:
            return
        loop = asyncio.get_running_loop()
        loop.remove_reader(sock.fileno())
        loop.remove_writer(sock.fileno())
        sock.close()
        self._link.disconnect()
        self._written.set()

    def _down(self, reason: str, *, is_closed: bool = False) -> None:
        """Try the master's control socket: the connection is gone, but the master may live."""
        was_frozen = self.is_lost and not self._is_alone
        if self._link.phase == "open" or (was_frozen and "silence" not in self._timers):  # another one may come
            self._listen_for_silence()
        self._detach()
        self._greeted.set()
        if self._closing or self._link.phase == "closed":
            self._end(None)
            return
        # A master that closes it leaves, executes itself anew or has died: unless another one comes, that is an error
        # (`master_lost`), and each upgrade would leave a warning of each child.
        (log.info if is_closed else log.warning)("control_link_down", reason=reason)
        self._retry()

    def _retry(self) -> None:
        # Jitter: a hundred workers do not all come to a new master at the same instant.
        delay_s = min(RECONNECT_CAP_S, RECONNECT_FIRST_S * 2.0 ** min(self._attempts, 16))
        self._attempts += 1
        self._after("reconnect", delay_s * random.uniform(0.5, 1.5), self._reconnect)

    def _reconnect(self) -> None:
        kind = socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
        with contextlib.ExitStack() as undo:
            try:
                sock = undo.enter_context(socket.socket(socket.AF_UNIX, kind))
                sock.connect(str(self.control_path))
            except OSError:  # nobody listens, or no descriptor is free
                self._retry()
                return
            undo.pop_all()
        self._fds_to_send = self.fds()
        self._attach(sock)

    def _listen_for_silence(self) -> None:
        limit_s = self.lost_threshold_s if self._grace_s is None else self._grace_s
        now = time.monotonic()
        self._silence = FrozenPeerDetector(limit_s, now)
        # A later check would count as a freeze of ours.
        self._after("silence", self._silence.look_at - now, self._check_silence)

    def _check_silence(self) -> None:
        """Checks for silence. Frames only note the time: to re-arm a timer at each would cost more than this."""
        self._on_readable()  # this process may have been busy or frozen for just as long
        now = time.monotonic()
        if self._silence.is_over(now):
            self._lose()
        else:
            self._after("silence", max(0.0, self._silence.look_at - now), self._check_silence)

    def _lose(self) -> None:
        self.is_lost, self._is_alone = True, not self.is_connected
        if (timer := self._timers.pop("silence", None)) is not None:
            timer.cancel()
        if self._grace_s is None:
            log.error("master_lost", after_s=self.lost_threshold_s, is_connected=self.is_connected)
        else:
            log.info("no_master_after_detach", after_s=self._grace_s)
        self._call(self.on_lost)

    def _is_heard(self) -> None:
        self._silence.heard(time.monotonic())
        if self.is_lost:
            self.is_lost = self._is_alone = False
            log.warning("master_found")
            self._listen_for_silence()
            self._call(self.on_found)

    def _after(self, name: str, delay_s: float, call: Callable[[], None]) -> None:
        if (old := self._timers.pop(name, None)) is not None:
            old.cancel()
        if self._ended is not None and not self._ended.done():
            self._timers[name] = asyncio.get_running_loop().call_later(delay_s, call)

    def _end(self, error: BaseException | None) -> None:
        if self._ended is None or self._ended.done():
            return
        if error is None:
            self._ended.set_result(None)
        else:
            self._ended.set_exception(error)

    # Frames

    def _ping(self) -> None:
        self._link.ping(time.monotonic(), self.ping_data())
        self._flush()
        self._after("ping", self.ping_s, self._ping)

    def _on_readable(self) -> None:
        for _ in range(_PACKETS_A_TURN):
            sock = self._connected
            if sock is None:
                return
            try:
                packet = despite_reset(sock.recv, MAX_FRAME_BYTES + 1)
                frame = self._link.receive(packet) if packet else None
            except BlockingIOError:
                break
            except (OSError, ProtocolError) as error:
                self._down(str(error))
                return
            if not packet:
                self._down("the master closed the connection", is_closed=True)
                return
            self._is_heard()
            if frame is not None:
                self._handle(frame)
        else:
            # There may be more, and uvloop may not say so (`despite_reset`).
            asyncio.get_running_loop().call_soon(self._on_readable)
        self._flush()

    def _handle(self, frame: Frame) -> None:
        match frame:
            case {"t": "command", "name": "detached", "data": data}:
                self._grace_s = float(data["graceS"])
            case {"t": "command", "name": name, "data": data}:
                self._call(self.on_command, name, data)
            case {"t": "state", "data": data}:
                self._call(self.on_state, data)
            case {"t": "init"}:
                self._attempts = 0
                self._grace_s = None
                self.lost_threshold_s = _threshold(frame) or self.lost_threshold_s
                self._listen_for_silence()
                self._greeted.set()
                self._link.ping(time.monotonic(), self.ping_data())
            case {"t": "close", "reason": reason}:
                log.error("control_link_closed", reason=reason)
                self._detach()
                self._greeted.set()
                self._lose()
                self._end(None)

    def _call(self, callback: Callable[..., None], *arguments: Any) -> None:
        try:
            callback(*arguments)
        except Exception as error:  # noqa: BLE001 - handed to whoever awaits run(); the frames behind it still count
            self._end(error)

    def _flush(self) -> None:
        """Writes what the link offers; what the master's buffer has no room for waits in the link, bounded."""
        sock = self._connected
        if sock is None:
            return
        while (packet := self._link.next_packet()) is not None:
            try:
                if self._fds_to_send:  # with the first packet, which is the greeting
                    socket.send_fds(sock, [packet], self._fds_to_send)
                    self._fds_to_send = []
                else:
                    sock.send(packet)
            except BlockingIOError:
                asyncio.get_running_loop().add_writer(sock.fileno(), self._flush)
                return
            except OSError:
                # The reader will see the same end, after what is still to be read.
                return
            self._link.sent()
        asyncio.get_running_loop().remove_writer(sock.fileno())
        if self._link.phase == "closed":
            self._written.set()


def _threshold(init: Frame) -> float | None:
    """The lost threshold that the master's greeting names, in seconds; None where it names none."""
    said = init.get("lostThresholdS")
    return float(said) if isinstance(said, int | float) and said > 0 else None
