"""Configures structlog and the standard library's logging for a process of the grid: each event is one line on stderr.

Modules log by `structlog.get_logger()`; events are names with fields: `log.info("worker_exited", pid=7)`.
"""

from __future__ import annotations

import json
import logging
import os
import select
import stat
from collections.abc import Callable
from typing import Any, Final

import orjson
import structlog
from structlog import contextvars, processors
from structlog.dev import Column, ConsoleRenderer, KeyValueColumnFormatter, LogLevelColumnFormatter
from structlog.stdlib import ProcessorFormatter, add_logger_name
from structlog.typing import EventDict, Processor

from pwgrid.common.errors import GridError

STDERR: Final = 2
PIPE_LINE_BYTES: Final = select.PIPE_BUF
"""A pipe takes writes of up to this size in one piece; longer lines of several processes may mix."""

LINE_BYTES: Final = 32 * 1024
STALL_MS: Final = 100

_SHORTEST: Final = 64
"""Values of fewer characters are left whole."""

_PRIORITIES: Final = {"debug": 7, "info": 6, "warning": 4, "error": 3, "critical": 2}
"""The numbers of the levels in systemd's journal."""


def configure(level: str, log_format: str, role: str, **fields: object) -> None:
    """Logs from `level` ("debug" … "critical") on, as "text" or "json"; every event carries `role` and `fields`.

    It also writes what the standard library's logging (uvicorn, asyncio) gets, from WARNING on. Raises KeyError for an
    unknown level.
    """
    threshold = processors.NAME_TO_LEVEL[level]
    as_json = log_format == "json"
    on_terminal = not as_json and _is_terminal()
    writer = LineWriter()
    render: Processor = processors.JSONRenderer(to_json, default=str) if as_json else text_renderer(colors=on_terminal)
    chain: list[Processor] = [
        contextvars.merge_contextvars,
        processors.format_exc_info,
        rename_exception,
        processors.add_log_level,
        processors.TimeStamper("%H:%M:%S.%f" if on_terminal else "iso", utc=not on_terminal, key="time"),
        Lines(writer, render),
    ]
    bind(role, **fields)
    structlog.configure(
        processors=chain,
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=lambda *_: writer,
        cache_logger_on_first_use=False,  # a reload may configure loggers that are in use
    )
    root = logging.getLogger()
    for handler in [handler for handler in root.handlers if isinstance(handler, StandardHandler)]:
        root.removeHandler(handler)
    handler = StandardHandler(max(threshold, logging.WARNING), writer)
    handler.setFormatter(
        ProcessorFormatter(processors=[add_logger_name, ProcessorFormatter.remove_processors_meta, *chain])
    )
    root.addHandler(handler)
    logging.raiseExceptions = False


def bind(role: str, **fields: object) -> None:
    """Every event carries these, and no others, from now on. A forked child calls this alone: its log is configured as
    its parent's, and doing that anew would copy pages that it shares with the parent."""
    contextvars.clear_contextvars()
    contextvars.bind_contextvars(role=role, **fields)


def append_to(path: str) -> None:
    """Makes a file the stderr of this process and its children, and appends all their log lines to it.

    So the log outlives the reader of the former stderr. Raises GridError.
    """
    try:
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
    except OSError as error:
        raise GridError(f"cannot write the log file {path}: {error.strerror}; see LOG_FILE") from None
    os.dup2(fd, STDERR)
    os.close(fd)


def open_again(path: str) -> None:
    """Appends to the file that has this path now: the one that is open may have been renamed. Goes on with that one
    where there can be no other; does nothing without a path."""
    try:
        if path:
            append_to(path)
    except GridError as error:
        structlog.get_logger().error("log_file_not_opened", reason=error.sentence)


def rename_exception(_logger: object, _method: str, event: EventDict) -> EventDict:
    """Renames `exception` to `traceback`: ConsoleRenderer prints an `exception` as several lines, unescaped."""
    if "exception" in event:
        event["traceback"] = event.pop("exception")
    return event


class Lines:
    """The last processor: renders events as lines that `writer` can write in one piece.

    For systemd's journal each begins with `<number>`, from which it takes the level; it does not show that part.
    """

    def __init__(self, writer: LineWriter, render: Processor) -> None:
        self._writer = writer
        self._render = render
        self._is_journal = _is_journal()

    def __call__(self, logger: Any, method: str, event: EventDict) -> str:
        """Returns the line. If it is too long, its longest values lose their middle."""
        event = {name: event.get(name) for name in ("time", "level", "event")} | dict(event)
        if self._writer.dropped:
            event["lines_dropped"] = self._writer.dropped
        priority = f"<{_PRIORITIES.get(str(event['level']), 6)}>" if self._is_journal else ""
        line = priority + str(self._render(logger, method, dict(event)))
        while len(encoded(line)) > self._writer.limit and _shorten_longest(event):
            line = priority + str(self._render(logger, method, dict(event)))
        return line


def _shorten_longest(event: EventDict) -> bool:
    """Takes the middle out of the longest value; False when there is nothing left to take."""
    texts = {name: value if isinstance(value, str) else str(value) for name, value in event.items()}
    name = max(texts, key=lambda each: len(texts[each]))
    text = texts[name]
    if len(text) < _SHORTEST:
        return False
    keep = len(text) // 3
    event[name] = f"{text[:keep]} … {text[-keep:]}"
    return True


def to_json(event: EventDict, default: Callable[[Any], Any]) -> str:
    """JSON without a character that ends a line or steers a terminal: orjson escapes only those below U+0020."""
    try:
        line = orjson.dumps(event, default=default, option=orjson.OPT_NON_STR_KEYS).decode()
        return line if line.isprintable() else json.dumps(orjson.loads(line))
    except TypeError:  # a lone surrogate, an integer of more than 64 bits, a list that holds itself
        return json.dumps({name: str(value) for name, value in event.items()})


def text_renderer(*, colors: bool) -> ConsoleRenderer:
    """structlog's own columns, with values by `text_value`."""
    styles = ConsoleRenderer.get_default_column_styles(colors)
    levels = ConsoleRenderer.get_default_level_styles(colors)
    columns = [
        Column("time", KeyValueColumnFormatter(None, styles.timestamp, styles.reset, str)),
        Column("level", LogLevelColumnFormatter(levels, styles.reset)),
        Column("event", KeyValueColumnFormatter(None, styles.bright, styles.reset, text_value)),
        Column("", KeyValueColumnFormatter(styles.kv_key, styles.kv_value, styles.reset, text_value)),
    ]
    return ConsoleRenderer(columns=columns, sort_keys=False)


def text_value(value: object) -> str:
    """Strings bare and all else by repr(), as structlog does; quoted where it could end a line or steer a terminal."""
    text = value if isinstance(value, str) else repr(value)
    is_plain = text.isprintable() and (not isinstance(value, str) or (text and set(text).isdisjoint(" ='\"\\")))
    return text if is_plain else repr(text)


def _is_terminal() -> bool:
    return os.isatty(STDERR) and os.environ.get("TERM") != "dumb" and not os.environ.get("NO_COLOR")


def _is_journal() -> bool:
    """Whether stderr goes to systemd's journal."""
    try:
        status = os.fstat(STDERR)
    except OSError:
        return False
    return os.environ.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}"


class StandardHandler(logging.Handler):
    """Writes records of the standard library's logging, which structlog's ProcessorFormatter formats."""

    def __init__(self, level: int, writer: LineWriter) -> None:
        super().__init__(level)
        self._writer = writer

    def createLock(self) -> None:  # noqa: N802 - the base class's name
        """Makes no lock: one that another thread holds during a fork would stay held in the child."""
        self.lock = None

    def handle(self, record: logging.LogRecord) -> bool:
        """As the base class, without its lock."""
        if accepted := bool(self.filter(record)):
            self.emit(record)
        return accepted

    def emit(self, record: logging.LogRecord) -> None:
        """Never raises: a broken format string is a fault of its author, not of the grid."""
        try:
            line = self.format(record)
        except (TypeError, ValueError, KeyError) as error:
            record.msg, record.args = f"{record.msg!r} (cannot be formatted: {error})", None
            line = self.format(record)
        self._writer.write(line)


class LineWriter:
    """Writes whole lines to stderr, or drops and counts them: one that is stalled, closed or full stops no process. No
    lock, no thread.

    When stderr's reader does not keep up, one line waits `STALL_MS`; further lines are dropped until it reads again.
    """

    def __init__(self) -> None:
        # If descriptor 2 were free, the next socket that is opened would get it, and all log lines with it.
        try:
            mode = os.fstat(STDERR).st_mode
        except OSError:
            _open_null_as_stderr()
            mode = 0
        self.limit = PIPE_LINE_BYTES if stat.S_ISFIFO(mode) else LINE_BYTES
        """The longest line in bytes, its newline included, that goes out in one piece."""
        self._may_stall = not stat.S_ISREG(mode)
        self._dropped = 0
        self._process = os.getpid()
        """The process that `_dropped` is about. A forked child gets a copy of that number, but the lines are its
        parent's, and its parent reports them."""

    @property
    def dropped(self) -> int:
        """Lines that this process has lost since the last one that went out."""
        return self._dropped if self._process == os.getpid() else 0

    def write(self, text: str) -> None:
        """Writes one line, to which it adds the newline. Raises nothing."""
        try:
            written = self._writable() and self._write_all(encoded(text))
        except OSError:  # gone (EPIPE, EIO, EBADF) or full (ENOSPC, EAGAIN): there is nowhere to complain
            written = False
        self._dropped = 0 if written else self.dropped + 1
        self._process = os.getpid()

    debug = info = warning = error = critical = write  # structlog's own loggers take a lock, and raise without a stderr

    def _writable(self) -> bool:
        """A pipe that polls as writable has room for PIPE_LINE_BYTES, so the write does not block."""
        if not self._may_stall:
            return True
        poll = select.poll()
        poll.register(STDERR, select.POLLOUT)
        return bool(poll.poll(0 if self.dropped else STALL_MS))

    def _write_all(self, line: bytes) -> bool:
        while line:
            line = line[os.write(STDERR, line) :]
        return True


def encoded(text: str) -> bytes:
    """The bytes of a line, its newline included."""
    return text.encode("utf-8", "backslashreplace") + b"\n"


def _open_null_as_stderr() -> None:
    null = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    if null != STDERR:
        os.dup2(null, STDERR)
        os.close(null)
    else:
        os.set_inheritable(STDERR, True)
