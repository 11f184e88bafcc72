"""The sentences that clients hear when the grid closes their sessions, written for a test's author.

Each is the text of a WebSocket close frame, which has room for 123 bytes; the session's record has the reason itself.
"""

from __future__ import annotations

from typing import Final

from pwgrid.common.reasons import EndReason, WorkerEnd
from pwgrid.settings.model import Settings

_CLOSED: Final = "the grid closed this session: "

_WHY_DRAINED: Final = {
    WorkerEnd.SHUTDOWN: "the grid was stopping",
    WorkerEnd.OPERATOR: "an operator drained its worker",
    WorkerEnd.SCALED_DOWN: "its worker was not wanted any more",
    WorkerEnd.NO_MASTER: "the grid had lost its master",
}
"""By the kind of the drain's reason; for all other kinds another worker takes the place of the one that drains."""


def close_texts(settings: Settings) -> dict[str, str]:
    """Returns sentences by end reason. A browser server says them where its worker gives it no text: when a session
    ends that no drain cuts, and when the worker and the master are gone."""
    ping, idle = settings.session_ping_timeout, settings.session_idle_timeout
    duration, drain, lost = settings.session_max_duration, settings.drain_timeout, settings.worker_lost_threshold
    buffered = settings.session_max_buffered_mib
    sentences = {
        EndReason.PING_TIMEOUT: f"its client gave no sign of life for SESSION_PING_TIMEOUT={ping:g} s",
        EndReason.IDLE_TIMEOUT: f"its client asked for nothing for SESSION_IDLE_TIMEOUT={idle:g} s",
        EndReason.MAXIMUM_DURATION: f"it had lasted for SESSION_MAX_DURATION={duration:g} s",
        EndReason.ENDED_BY_OPERATOR: "an operator ended it",
        EndReason.TOKEN_REVOKED: "its token was revoked",
        EndReason.KEEP_TIME_OVER: "nobody came back to it in time",
        EndReason.KEPT_IN_DRAIN: "its worker drained while nobody was connected; connect again",
        EndReason.KEPT_FOR_MEMORY: "nobody was connected, and the host was short of memory; connect again",
        EndReason.DRAIN_TIMEOUT: f"its worker was gone and DRAIN_TIMEOUT={drain:g} s was over",
        EndReason.RETURNED: "its lease was returned",
        EndReason.EXPIRED: "its lease ran out; extend it, or borrow with more ttlSeconds",
        EndReason.WORKER_STOPPED: "its worker had stopped; connect again",
        EndReason.BROWSER_CRASHED: "its browser crashed",
        EndReason.BROWSER_HUNG: f"its browser gave no sign of life for WORKER_LOST_THRESHOLD={lost:g} s; connect again",
        EndReason.BROWSER_SICK: "its browser opens no pages any more; connect again",
        EndReason.MEMORY_LIMIT: "its browser took the most of more memory than its worker may have",
        EndReason.BROWSER_UNREADABLE: "its browser could not be understood any more; connect again",
        EndReason.MESSAGE_FAILED: "the browser server failed at one of its messages",
        EndReason.CLIENT_DOES_NOT_READ: f"more than SESSION_MAX_BUFFERED_MIB={buffered} waited for its client to read",
        EndReason.TOO_MUCH_WORK: "what its client asked for takes too long (a pattern of a route, say)",
    }
    return {reason.value: _CLOSED + sentence for reason, sentence in sentences.items()}


def drain_text(drained_for: WorkerEnd, cut: EndReason, limit: str) -> str | None:
    """Returns the sentence for sessions that a drain cuts; None where `close_texts` has it. `limit` is the setting that
    bounded them, with its value ("DRAIN_TIMEOUT=30 s")."""
    why = _WHY_DRAINED.get(drained_for, "its worker was being replaced")
    if cut is EndReason.DRAIN_TIMEOUT:
        return f"{_CLOSED}{why} and {limit} was over"
    if cut is EndReason.DRAINED_NOW:
        return f"{_CLOSED}{why}, without waiting for sessions"
    return None
