"""Starts, feeds, watches and ends one browser server (launcher.cjs)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import IO, Any, Final

import psutil
import structlog

from pwgrid.common.errors import BrowserServerGone
from pwgrid.common.launch_failure import BrowserLate, BrowserLaunchError
from pwgrid.common.reasons import EndReason, Reason, WorkerEnd
from pwgrid.common.types import Protocol
from pwgrid.registry.records import OF_LEASE, TOKEN_ID
from pwgrid.runtime.browser_process_tree import Tree, process_table
from pwgrid.worker.browser.health import Answer, CanaryResult
from pwgrid.worker.browser.launch import LaunchedBrowser, LaunchSpec, in_work, spawn
from pwgrid.worker.browser.node_link import Message, NodeLink
from pwgrid.worker.holders import End, OfferedClient, ProfileCopy, SessionClosed

log = structlog.get_logger()

_EVIDENCE_LINES: Final = 50
_GOING_AWAY: Final = 1001
"""The code of WebSocket close frames."""

_KILLED_S: Final = 5.0
_KILL_INTERVAL_S: Final = 0.02
_SYNC_INTERVAL_S: Final = 0.5


OnClosed = Callable[[SessionClosed, Callable[[], None]], None]
"""Gets the end, and a function to call once it is on record: until then a successor of this worker hears of it, too."""

OnGone = Callable[[Reason[WorkerEnd]], None]

OnErrors = Callable[[Mapping[str, int], str, str | None], None]
"""Gets numbers of errors by kind, the text of the last one, and the session that it was in, if any."""


class BrowserServer:
    """One running browser server. `start` or `adopt` makes it; `stop` must always be called.

    Calls `on_closed` for each session that ended; after `adopt` perhaps twice for the same one. Calls `on_gone` once
    when the browser or its server ends without `stop`, after `on_closed` for the ends that it still reported.
    """

    ready: LaunchedBrowser

    def __init__(
        self, link_socket: socket.socket, pid: int, directory: Path, on_closed: OnClosed, on_gone: OnGone
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self.pid = pid
        self.exited: asyncio.Future[int | None] = self._loop.create_future()
        """Done when the Node process has ended, with its return code, or None when it is no child of this process."""
        self.sessions_ended_for = EndReason.BROWSER_CRASHED
        """The reason of the sessions that ended with the browser, once `on_gone` was called."""
        self.browser_heard_at = self._loop.time()
        """When the browser has said anything at all, as far as a pong has told."""
        self.on_sign: Callable[[str], None] = lambda _: None
        """Gets what makes the browser look sick. The caller of `start` or `adopt` may set it, and `on_errors`."""
        self.on_errors: OnErrors = lambda _counts, _text, _session: None
        self.on_kept: Callable[[str, float | None], None] = lambda _session_id, _seconds: None
        """Gets a session whose last client has gone, with the seconds for which its browser is kept, and one that has a
        client again, with None. The caller of `start` or `adopt` may set it."""
        self.on_ending: Callable[[str], None] = lambda _session_id: None
        """Gets a session with a profile whose last client has gone, and whose browser ends now."""
        self.profiles: Mapping[str, ProfileCopy] = {}
        """After `adopt`: of sessions that live, or whose end `on_closed` will report, by their ids."""
        self._directory = directory
        self._on_closed = on_closed
        self._on_gone = on_gone
        self._popen: subprocess.Popen[bytes] | None = None
        self._started: asyncio.Future[Message] = self._loop.create_future()
        self._asked: dict[tuple[str, int], asyncio.Future[Message]] = {}
        """The answers that are awaited, by their kind and number: one to this worker's predecessor may still come."""
        self._last_asked = os.getpid() << 24  # what its predecessor asked may be answered yet
        self._returned: asyncio.Future[None] = self._loop.create_future()
        """Done when the caller of `start` or `adopt` gets this object."""
        self._stderr: IO[bytes] | None = None
        self._said: deque[str] = deque(maxlen=_EVIDENCE_LINES)
        self._stopping = False
        self._gone = False
        self._released = False
        self._pidfd = os.pidfd_open(pid)
        self._process = psutil.Process(pid)
        self._tree = Tree(0, directory, {self._process}, anywhere=True)
        self._loop.add_reader(self._pidfd, self._on_exit)
        self._link = NodeLink(link_socket, self._on_message, self._on_link_end)

    def __repr__(self) -> str:
        state = (
            "exited" if self.exited.done() else "stopping" if self._stopping else "gone" if self._gone else "running"
        )
        return f"<BrowserServer pid={self.pid} {state} {self._link!r}>"

    @property
    def is_gone(self) -> bool:
        """Whether the browser or its server has ended by itself."""
        return self._gone or self.exited.done()

    @property
    def evidence(self) -> str:
        """The last lines of the browser server's stderr."""
        return "\n".join(self._said)

    @classmethod
    async def start(
        cls,
        spec: LaunchSpec,
        ipc: socket.socket,
        ipc_child: socket.socket,
        *,
        on_closed: OnClosed,
        on_gone: OnGone,
    ) -> BrowserServer:
        """Launches a browser server and returns it when it is ready; takes over both sockets.

        Raises BrowserLaunchError, with its stderr, when it fails or LAUNCH_TIMEOUT is over; it is killed then.
        """
        timeout_s = spec.settings.launch_timeout
        try:
            popen = spawn(spec, ipc_child)
        except OSError as error:
            ipc.close()
            raise BrowserLaunchError(error.strerror or str(error), "Playwright's Node") from error
        except BrowserLaunchError:
            ipc.close()
            raise
        finally:
            ipc_child.close()
        server = cls(ipc, popen.pid, spec.directory, on_closed, on_gone)
        server._watch(popen)
        try:
            async with asyncio.timeout(timeout_s):
                message = await server._started
            if message["say"] == "failed":
                raise BrowserLaunchError(message["error"], spec.browser.browser_type)
        except TimeoutError:
            await server.stop(0)
            raise BrowserLaunchError(
                f"not ready within {timeout_s:g} s\n{server.evidence}", spec.browser.browser_type
            ) from None
        except BaseException:
            await server.stop(0)
            raise
        server._set_ready(message)
        return server

    @classmethod
    async def adopt(
        cls,
        ipc: socket.socket,
        node_pid: int,
        directory: Path,
        *,
        on_closed: OnClosed,
        on_gone: OnGone,
        timeout_s: float,
    ) -> tuple[BrowserServer, dict[str, dict[str, str]]]:
        """Takes over the running browser server of a dead worker. Returns it, and what that worker was told of its live
        sessions, by their ids.

        Reports sessions that ended meanwhile to `on_closed` at the caller's next await. Raises BrowserServerGone when
        it does not answer within `timeout_s`, without ending it.
        """
        try:
            server = cls(ipc, node_pid, directory, on_closed, on_gone)
        except (ProcessLookupError, psutil.NoSuchProcess):
            ipc.close()
            raise BrowserServerGone() from None
        try:
            async with asyncio.timeout(timeout_s):
                message = await server._sync()
            if message["say"] != "live" or message["ready"] is None:
                raise BrowserServerGone("the browser server was not ready when its worker ended")
        except (TimeoutError, BrowserLaunchError):
            server._release()
            raise BrowserServerGone("the browser server does not answer its new worker") from None
        except BaseException:
            server._release()
            raise
        server._set_ready(message["ready"])
        for session_id, seconds in message.get("kept", {}).items():
            kept = {"say": "kept", "session": session_id, "keptS": seconds}
            server._when_ready(partial(server._tell_clients, kept))
        server.profiles = {each: ProfileCopy.read(said) for each, said in message.get("profiles", {}).items()}
        told = message["clientFields"]
        return server, {session_id: told.get(session_id, {}) for session_id in message["sessions"]}

    def hand_over(self, client: OfferedClient) -> asyncio.Future[None]:
        """Gives the client's socket to the browser server; the future is done when that has it. The caller keeps the
        socket open until then.

        After the client's deadline the browser server drops the socket untouched. If the future fails, with
        BrowserServerGone, the socket is untouched, too.
        """
        if self._gone or self._stopping:
            future: asyncio.Future[None] = self._loop.create_future()
            future.set_exception(BrowserServerGone())
            return future
        message: Message = {
            "session": client.joins or client.session.id,
            "deadline": client.deadline,
            "headers": client.headers,
            "early": client.early,
        }
        session = client.session
        if session.own is not None:
            message |= {"own": True, "network": session.own.network}
        if session.protocol is Protocol.CDP:
            message |= {"protocol": session.protocol.value, "keepS": session.keep_s, "joins": bool(client.joins)}
            message["isOfPage"] = client.is_of_page
        more = {TOKEN_ID: session.token_id, OF_LEASE: session.lease_id}
        if told := {**session.client_fields, **{name: text for name, text in more.items() if text}}:
            message["clientFields"] = told  # for a successor of this worker
        return self._link.send_handle(message, client.sock)

    async def acquire(
        self,
        session_id: str,
        options: Mapping[str, Any],
        until: float,
        browser: Mapping[str, Any] | None = None,
        profile: ProfileCopy | None = None,
    ) -> None:
        """Gets a browser for this session alone, with these options of its client; `browser`: which one, if not its
        pool's (`RequestedBrowsers.prepare`), `profile`: what it starts with. `until` is in seconds of time.monotonic().
        Raises BrowserLaunchError, which is BrowserLate if it does not start in time, and BrowserServerGone."""
        question = {
            "do": "acquire",
            "session": session_id,
            "options": {**options, "browser": browser} if browser else options,
        }
        if profile is not None:
            question["profile"] = profile.as_json()
        with self._ask(question, "acquired") as answer:
            await self._until_answered(answer, until - time.monotonic())
            if self.is_gone:
                raise BrowserServerGone
            if not answer.done():
                self.give_back(session_id)
                raise BrowserLate("it did not start in time", "a browser for one session")
            if (error := answer.result()["error"]) is not None:
                raise BrowserLaunchError(error, "a browser for one session")

    def give_back(self, session_id: str) -> None:
        """Ends the browser that was acquired for this session, whose client does not come."""
        self._link.send({"do": "give_back", "session": session_id})

    def end_browser(self, pid: int) -> None:
        """Ends the session that has this browser alone, for its memory; `on_closed` follows. Ignores others."""
        self._link.send({"do": "end_browser", "pid": pid, "kind": EndReason.MEMORY_LIMIT})

    def hold_warm(self, is_held: bool) -> None:
        """Has it start no browsers but those that sessions wait for, or as many as are to be warm again."""
        self._link.send({"do": "hold_warm", "isHeld": is_held})

    def keep_none_warm(self) -> None:
        """Called when no new clients are admitted any more."""
        self._link.send({"do": "no_more_clients"})

    def close_session(self, session_id: str, reason: Reason[EndReason], text: str | None = None) -> None:
        """Ends a session with a WebSocket close frame; `on_closed` follows with this reason. Ignores unknown ids.

        `text` is the frame's text, by default the sentence for this reason (pwgrid/worker/close_texts.py).
        """
        self._close(session_id, reason, **({} if text is None else {"text": text}))

    def end_kept(self, session_id: str, reason: Reason[EndReason]) -> None:
        """Ends a session as `close_session` does, unless it has a client again, which nobody here may have heard of."""
        self._close(session_id, reason, isKept=True)

    def _close(self, session_id: str, reason: Reason[EndReason], **more: object) -> None:
        self._link.send({"do": "close", "session": session_id, "code": _GOING_AWAY, "reason": reason.as_data(), **more})

    async def canary(self, timeout_s: float) -> CanaryResult:
        """Tries a context, a page and an evaluate, as a client would. Does not raise for a sick browser."""
        # The launcher's own deadline comes first; this one is for a launcher that hangs.
        limit_s = timeout_s + max(1.0, timeout_s / 10)
        with self._ask({"do": "canary", "timeoutS": timeout_s}, "canary") as answer:
            await self._until_answered(answer, limit_s)
            if answer.done():
                said = answer.result()
                return CanaryResult(said["ok"], said["error"] or "", said["ms"])
        return CanaryResult(False, "the browser server does not answer", round(timeout_s * 1000))

    def session_in_work(self) -> str | None:
        """The session on whose message the browser server has been working since it last answered; None if it does not
        compute (a process that was stopped, say), or works for nobody in particular."""
        with contextlib.suppress(OSError, psutil.Error):
            if self._process.status() == psutil.STATUS_RUNNING:
                return in_work(self._directory).read_text().strip() or None
        return None

    def ping(self) -> Answer:
        """Asks the browser server itself."""
        return self._ask({"do": "ping"}, "pong")

    async def has_reported(self, timeout_s: float) -> None:
        """Returns once `on_closed` was called for each end that the browser server has reported before now; at the
        latest when it has ended, or after `timeout_s`."""
        with self.ping() as answer:
            await self._until_answered(answer, timeout_s)

    def ask_browser(self) -> Answer:
        """Asks the browser. One that has ended never answers, and `on_gone` follows."""
        return self._ask({"do": "ask_browser"}, "browser_answered")

    def cut_hanging(self, kind: EndReason, after_s: float) -> None:
        """Ends sessions whose contexts or pages take longer than this, from now on; `on_closed` follows for each."""
        self._link.send({"do": "cut_hanging", "kind": kind, "afterS": after_s})

    async def stop(self, timeout_s: float) -> None:
        """Asks the browser server to end, and after `timeout_s` kills what is left of its process tree. Idempotent."""
        if self._released:
            return
        self._stopping = True
        if not self.exited.done():
            self._tree.note_below(self._process)
            self._link.send({"do": "stop", "graceS": timeout_s * 0.7})
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await asyncio.shield(self.exited)
        with contextlib.suppress(TimeoutError):  # a process in uninterruptible sleep is left to the master
            async with asyncio.timeout(_KILLED_S):
                while self._tree.kill(process_table()):  # noqa: ASYNC110 - no event tells that all of them have ended
                    await asyncio.sleep(_KILL_INTERVAL_S)
                await asyncio.shield(self.exited)
        self._release()

    # Its messages

    def _on_message(self, message: Message) -> None:
        match message.get("say"):
            case "closed":
                self._when_ready(partial(self._deliver, message))
            case "ready" | "failed" | "live":
                if not self._started.done():
                    self._started.set_result(message)
            case "canary" | "pong" | "browser_answered" | "acquired" as kind:
                self._answered(kind, message)
            case "kept" | "resumed" | "ending":
                self._when_ready(partial(self._tell_clients, message))
            case "refused":
                log.warning("certificate_connections_refused", times=message["times"], uid=message["uid"])
            case "sign":
                self._when_ready(lambda: self.on_sign(message["what"]))
            case "errors":
                self._when_ready(lambda: self.on_errors(message["counts"], message["text"], message.get("session")))
            case "gone":
                self.sessions_ended_for = EndReason(message["sessions"])
                reason = Reason.read(message["reason"], Reason(WorkerEnd.BROWSER_ENDED))
                self._when_ready(partial(self._tell_gone, reason))

    def _answered(self, kind: str, message: Message) -> None:
        if kind == "pong":
            self.browser_heard_at = self._loop.time() - message.get("browserSilentMs", 0) / 1000
        answer = self._asked.get((kind, message["id"]))
        if answer is not None and not answer.done():
            answer.set_result(message)

    @contextlib.contextmanager
    def _ask(self, question: Message, answer_kind: str) -> Iterator[asyncio.Future[Message]]:
        self._last_asked += 1
        key = answer_kind, self._last_asked
        self._asked[key] = answer = self._loop.create_future()
        self._link.send({**question, "id": self._last_asked})
        try:
            yield answer
        finally:
            del self._asked[key]

    def _when_ready(self, callback: Callable[[], None]) -> None:
        """Calls back soon, but not before the caller of `start` or `adopt` has this object."""
        self._returned.add_done_callback(lambda _: callback())

    def _deliver(self, message: Message) -> None:
        reason = Reason.read(message["reason"], Reason(EndReason.OTHER))
        counts = message["bytesIn"], message["bytesOut"]
        profile = message.get("profile")
        closed = SessionClosed(
            message["session"],
            *counts,
            End(message["by"], reason),
            message.get("lease", ""),
            profile and ProfileCopy.read(profile),
            bool(profile and profile["isInOrder"]),
        )
        self._on_closed(closed, lambda: self._link.send({"do": "ack", "idx": message["idx"]}))

    async def _until_answered(self, answer: asyncio.Future[Any], timeout_s: float) -> None:
        """Returns when this answer has come, the browser server has ended, or the time is over."""
        either = [answer, self.exited]
        await asyncio.wait(either, timeout=max(0.0, timeout_s), return_when=asyncio.FIRST_COMPLETED)

    def _tell_clients(self, message: Message) -> None:
        if message["say"] == "ending":
            self.on_ending(message["session"])
        else:
            self.on_kept(message["session"], message.get("keptS"))  # who is there again has no time

    def _tell_gone(self, reason: Reason[WorkerEnd]) -> None:
        if self._gone or self._stopping:
            return
        self._gone = True
        self._on_gone(reason)

    def _on_link_end(self) -> None:
        # The process is ending, which the pidfd reports; during `adopt` its pid may be another process's by now.
        if self._popen is None and not self._started.done():
            self._started.set_exception(BrowserServerGone())

    async def _sync(self) -> Message:
        # If the predecessor was killed in the middle of a line, the first `sync` is lost with it: ask until answered.
        while True:
            self._link.send({"do": "sync"})
            done, _ = await asyncio.wait([self._started], timeout=_SYNC_INTERVAL_S)
            if done:
                return self._started.result()

    def _set_ready(self, message: Message) -> None:
        self.ready = LaunchedBrowser(message["browserPid"], message["browserVersion"], message["playwrightVersion"])
        self._tree.note_below(self._process)
        self._returned.set_result(None)

    # Its process

    def _watch(self, popen: subprocess.Popen[bytes]) -> None:
        self._popen = popen
        assert popen.stderr is not None
        self._stderr = popen.stderr
        os.set_blocking(self._stderr.fileno(), False)
        self._loop.add_reader(self._stderr, self._read_stderr)

    def _read_stderr(self) -> None:
        if self._stderr is None:
            return
        try:
            data = os.read(self._stderr.fileno(), 64 * 1024)
        except BlockingIOError:
            return
        if not data:
            self._close_stderr()
        self._said.extend(data.decode(errors="replace").splitlines())

    def _close_stderr(self) -> None:
        if self._stderr is not None:
            self._loop.remove_reader(self._stderr)
            self._stderr.close()
            self._stderr = None

    def _on_exit(self) -> None:
        self._loop.remove_reader(self._pidfd)
        code = self._popen.wait() if self._popen is not None else None
        self.exited.set_result(code)
        self._link.drain()
        self._link.close()
        self._read_stderr()
        ended = Reason(WorkerEnd.BROWSER_SERVER_ENDED, ending(code), signal_of(code))
        if not self._started.done():
            self._started.set_exception(BrowserLaunchError(self.evidence or str(ended), "the browser server"))
            self._started.exception()  # perhaps nobody waits for it any more
        self._when_ready(partial(self._tell_gone, ended))
        if not self._stopping:
            with contextlib.suppress(OSError):  # no descriptor is free: `stop` and the master try it again
                self._tree.kill(process_table())  # Firefox, for example, lives on without its Node process

    def _release(self) -> None:
        if self._released:
            return
        self._released = True
        self._loop.remove_reader(self._pidfd)
        self._link.close()
        self._close_stderr()
        os.close(self._pidfd)


def ending(code: int | None) -> str:
    """Describes how the Node process ended, by the result of `exited`."""
    if code is None:
        return "exit status unknown"
    return signal_of(code) or f"exit {code}"


def signal_of(code: int | None) -> str:
    """The name of the signal that ended the Node process, or empty."""
    if code is None or code >= 0:
        return ""
    try:
        return signal.Signals(-code).name
    except ValueError:  # a real-time signal
        return f"signal {-code}"
