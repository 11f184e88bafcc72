"""How events become lines: structlog's processors, two renderers, one write per line. Imported by common.log only."""

import json
import logging
import os
import select
import stat
import sys
import time
import traceback
from collections.abc import Callable, MutableMapping
from datetime import UTC, datetime
from typing import Any, Final

import structlog

Event = MutableMapping[str, Any]
Render = Callable[[Event], str]

STDERR: Final = 2
PIPE_LINE_BYTES: Final = select.PIPE_BUF
"""Writes to a pipe are one piece up to this size; above it lines of several processes may mix."""

LINE_BYTES: Final = 32 * 1024
STALL_MS: Final = 100
_SHORTEST: Final = 64

_COLOURS: Final = {"debug": "2", "info": "32", "warning": "33", "error": "31", "critical": "1;31"}


class LineWriter:
    """Writes lines to stderr, whatever has become of it.

    A reader that does not keep up costs `STALL_MS` once, then lines are dropped and counted until it reads again: a
    stuck log must not stop the grid. The count goes out as `lines_dropped` with the next line.
    """

    def __init__(self) -> None:
        # Were 2 free, the next socket that is opened would get it, and all log lines with it.
        try:
            mode = os.fstat(STDERR).st_mode
        except OSError:
            _open_null_as_stderr()
            mode = 0
        self.limit = PIPE_LINE_BYTES if stat.S_ISFIFO(mode) else LINE_BYTES
        self._may_stall = not stat.S_ISREG(mode)
        self.dropped = 0
        """Lines lost since the last one that went out."""

    def write(self, line: bytes) -> None:
        """Writes one whole line, or drops it."""
        try:
            written = self._writable() and self._write_all(line)
        except OSError:  # gone (EPIPE, EIO, EBADF) or full (ENOSPC, EAGAIN): there is nowhere to complain
            written = False
        self.dropped = 0 if written else self.dropped + 1

    def _writable(self) -> bool:
        """A writable pipe has room for a whole line of the size that is written in one piece."""
        if not self._may_stall:
            return True
        poll = select.poll()
        poll.register(STDERR, select.POLLOUT)
        return bool(poll.poll(0 if self.dropped else STALL_MS))

    def _write_all(self, line: bytes) -> bool:
        while line:
            line = line[os.write(STDERR, line) :]
        return True


def _open_null_as_stderr() -> None:
    null = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    if null != STDERR:
        os.dup2(null, STDERR)
        os.close(null)
    else:
        os.set_inheritable(STDERR, True)


class Lines:
    """structlog's last processor: events become lines that can be written in one piece."""

    def __init__(self, writer: LineWriter, render: Render) -> None:
        self._writer = writer
        self._render = render

    def __call__(self, _logger: object, _method: str, event: Event) -> bytes:
        """The line. Of one that is too long, the longest values lose their middle."""
        if self._writer.dropped:
            event["lines_dropped"] = self._writer.dropped
        line = self._line(event)
        while len(line) > self._writer.limit and _shorten_longest(event):
            line = self._line(event)
        return line

    def _line(self, event: Event) -> bytes:
        return self._render(event).encode("utf-8", "backslashreplace") + b"\n"


class Output:
    """What structlog gives finished lines to: every level ends in the same stderr."""

    def __init__(self, writer: LineWriter) -> None:
        self.debug = self.info = self.warning = self.error = self.critical = writer.write


def configure(level: int, as_json: bool, bound: dict[str, object]) -> None:
    """Configures structlog and the standard library's logging for this process."""
    on_terminal = _is_terminal()
    render = render_json if as_json else TextRenderer(colours=on_terminal, short_time=on_terminal)
    writer = LineWriter()
    output = Output(writer)
    structlog.contextvars.clear_contextvars()
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            describe_exception,
            binder(bound),
            add_level_and_time,
            Lines(writer, render),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=lambda *_: output,
        cache_logger_on_first_use=False,
    )
    root = logging.getLogger()
    for handler in [handler for handler in root.handlers if isinstance(handler, StandardHandler)]:
        root.removeHandler(handler)
    root.addHandler(StandardHandler(max(level, logging.WARNING)))
    logging.raiseExceptions = False


def binder(bound: dict[str, object]) -> structlog.typing.Processor:
    """Adds the fields that all events of this process carry, behind an event's own."""
    fields = {name: value for name, value in bound.items() if value not in ("", None)}

    def bind(_logger: object, _method: str, event: Event) -> Event:
        for name, value in fields.items():
            event.setdefault(name, value)
        return event

    return bind


def add_level_and_time(_logger: object, method: str, event: Event) -> Event:
    """Adds `level` and `time` (Unix seconds)."""
    event["level"] = method
    event["time"] = time.time()
    return event


def describe_exception(_logger: object, _method: str, event: Event) -> Event:
    """Turns `exc_info` into `error`, one line, and `traceback`."""
    given = event.pop("exc_info", None)
    error = _exception(given) if given else None
    if error is not None:
        event.setdefault("error", "".join(traceback.format_exception_only(error)).strip())
        event["traceback"] = "".join(traceback.format_exception(error))
    return event


def _exception(given: object) -> BaseException | None:
    if isinstance(given, BaseException):
        return given
    info = given if isinstance(given, tuple) else sys.exc_info()
    return next((item for item in info if isinstance(item, BaseException)), None)


def render_json(event: Event) -> str:
    """One JSON object: time (UTC), level and event first."""
    head = {"time": _utc(event["time"]), "level": event["level"], "event": event["event"]}
    fields = head | {name: value for name, value in event.items() if name not in head}
    try:
        return json.dumps(fields, default=str)
    except (TypeError, ValueError, RecursionError):  # keys that JSON has not, circles
        return json.dumps({name: str(value) for name, value in fields.items()})


class TextRenderer:
    """`12:34:56.789 INFO    worker_exited pid=7 signal=SIGKILL was=ready role=master`; with the date off a tty."""

    def __init__(self, colours: bool, short_time: bool) -> None:
        self._colours = colours
        self._short_time = short_time

    def __call__(self, event: Event) -> str:
        fields = {name: value for name, value in event.items() if name not in ("time", "level", "event")}
        at = _local(event["time"]) if self._short_time else _utc(event["time"])
        level = event["level"]
        pairs = "".join(f" {name}={text_value(value)}" for name, value in fields.items())
        name = text_value(event["event"])
        if not self._colours:
            return f"{at} {level.upper():<7} {name}{pairs}"
        return f"\x1b[2m{at}\x1b[0m \x1b[{_COLOURS[level]}m{level.upper():<7}\x1b[0m \x1b[1m{name}\x1b[0m{pairs}"


def text_value(value: object) -> str:
    """Bare where that is unmistakable, else as JSON, so that no value can end its line or steer the terminal."""
    if isinstance(value, float):
        return f"{value:.6g}"
    text = value if isinstance(value, str) else _as_text(value)
    if text and text.isprintable() and not any(character in text for character in ' "=\\'):
        return text
    return json.dumps(text, ensure_ascii=not text.isprintable())


def _as_text(value: object) -> str:
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, list | tuple | set | frozenset):
        return ",".join(map(str, value))
    return str(value)


def _shorten_longest(event: Event) -> bool:
    """Takes the middle out of the longest value; False when there is nothing left to take."""
    texts = {name: value if isinstance(value, str) else str(value) for name, value in event.items() if name != "time"}
    name = max(texts, key=lambda each: len(texts[each]))
    text = texts[name]
    if len(text) < _SHORTEST:
        return False
    keep = len(text) // 3
    event[name] = f"{text[:keep]} … {text[-keep:]}"
    return True


def _utc(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _local(at: float) -> str:
    return datetime.fromtimestamp(at).astimezone().strftime("%H:%M:%S.%f")[:-3]


def _is_terminal() -> bool:
    return os.isatty(STDERR) and os.environ.get("TERM") != "dumb" and not os.environ.get("NO_COLOR")


class StandardHandler(logging.Handler):
    """Sends records of the standard library's logging through ours, as the event `library_log`."""

    def createLock(self) -> None:  # noqa: N802 - the base class's name
        """Makes none: a lock that another thread holds during a fork would stay held in the child."""
        self.lock = None

    def handle(self, record: logging.LogRecord) -> bool:
        """As the base class, without its lock."""
        if accepted := bool(self.filter(record)):
            self.emit(record)
        return accepted

    def emit(self, record: logging.LogRecord) -> None:
        """Never raises: a broken format string is a fault of its author, not of the grid."""
        try:
            message = record.getMessage()
        except (TypeError, ValueError, KeyError) as error:
            message = f"{record.msg!r} (cannot be formatted: {error})"
        fields: dict[str, Any] = {"logger": record.name, "message": message}
        if isinstance(record.exc_info, tuple):
            fields["exc_info"] = record.exc_info
        log = structlog.get_logger()
        (log.error if record.levelno >= logging.ERROR else log.warning)("library_log", **fields)
