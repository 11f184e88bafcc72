"""Runs `pwgrid top`: a thread polls the grid, and the screen takes keys and draws what is new."""

from __future__ import annotations

import os
import queue
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click
from rich.console import Console

from pwgrid.cli.ask_grid import add_registry, ask, find_grid, redis_of
from pwgrid.cli.options import GRID_OPTIONS, with_options
from pwgrid.cli.output import is_live
from pwgrid.cli.top.draw import draw
from pwgrid.cli.top.key_actions import Mode, Request, State, press, rows
from pwgrid.cli.top.snapshot import Event, Snapshot, events
from pwgrid.cli.top.terminal import Ended, Terminal, open_terminal
from pwgrid.common.errors import GridError, RegistryUnavailable

if TYPE_CHECKING:
    from pwgrid.registry.blocking_reads import SessionWatch
    from pwgrid.registry.host_records import HostRecord

_EVENTS_KEPT: Final = 500

News = tuple[Snapshot, list[Event]]


@click.command()
@with_options(GRID_OPTIONS)
@click.option(
    "--every", "every_s", type=click.FloatRange(min=0.1), default=1.0, show_default=True, metavar="S", help="Seconds."
)
def top(port: int | None, runtime_dir: str | None, every_s: float) -> None:
    """Shows a grid's pools, workers, sessions and events on the whole screen, renewed every S seconds.

    Keys drain the chosen worker or pool, end a session, or filter; `?` lists all keys, `q` quits.
    """
    console = Console()
    if not (is_live(console) and sys.stdin.isatty()):
        raise GridError("pwgrid top needs a terminal; pwgrid status --watch writes into a pipe, too")
    watcher = Watcher(port, runtime_dir, every_s)
    watcher.start()
    with open_terminal(console) as terminal:
        try:
            _Screen(watcher, terminal).run()
        except Ended as ended:
            exit_code = 128 + ended.signum  # as shells do
            sys.exit(exit_code)


class Watcher(threading.Thread):
    """Puts a snapshot with the events since the last one into `news` every `every_s` seconds. Sends what is put into
    `requests` to the master; its answer is news, which a snapshot follows. An error that is no GridError ends the
    thread, and is its last news. `readable` is a descriptor that can be read when there is news."""

    def __init__(self, port: int | None, runtime_dir: str | None, every_s: float) -> None:
        """Raises GridError where there is no grid to begin with."""
        super().__init__(name="watcher", daemon=True)  # so that top can quit while a master does not answer
        self.news: queue.SimpleQueue[News | str | Exception] = queue.SimpleQueue()
        self.readable, self._writable = os.pipe()
        self.requests: queue.SimpleQueue[Request] = queue.SimpleQueue()
        self._where, self._every_s = (port, runtime_dir), every_s
        self._grid = find_grid(port, runtime_dir)
        self._sessions: SessionWatch | None = None
        self._hosts: Mapping[str, HostRecord] = {}
        """The hosts that form one grid, by name, as they were last seen."""
        self._last = Snapshot(time.time(), {})

    def run(self) -> None:
        """Runs until the process or an error ends it."""
        try:
            self._watch()
        except Exception as error:  # noqa: BLE001 - handed to the screen, which raises it
            self._tell(error)

    def _watch(self) -> NoReturn:
        while True:
            self._tell(self._next_news())
            try:
                request = self.requests.get(timeout=self._every_s)
            except queue.Empty:
                continue
            self._tell(self._answer(request))

    def _tell(self, news: News | str | Exception) -> None:
        self.news.put(news)
        os.write(self._writable, b"\0")

    def _answer(self, request: Request) -> str:
        draining: list[str] = []
        try:
            for host in request.hosts or ("",):
                done = self._ask(host, request.name, {**request.data, "reason": "operator"})
                if "ending" in done:
                    return f"ending {done['ending']}"
                draining += done["draining"]
        except GridError as error:
            return str(error)
        return f"draining {', '.join(draining)}"

    def _ask(self, host: str, name: str, data: dict[str, Any]) -> dict[str, Any]:
        """Asks the master of a host. Raises GridError."""
        if host in ("", self._last.status["host"].get("name", "")):
            return ask(self._grid, name, data)
        from pwgrid.cli.ask_hosts import ask_master_of

        if (record := self._hosts.get(host)) is None:
            raise GridError(f"host {host} is gone")
        return ask_master_of(self._grid, record, name, data)

    def _next_news(self) -> News:
        now = time.time()
        before = self._last
        try:
            self._last, changed = self._take(now)
        except GridError as error:
            self._last, changed = Snapshot(now, before.status, before.sessions, str(error)), []
            self._find_again()
        return self._last, events(before, self._last, changed)

    def _take(self, now: float) -> tuple[Snapshot, list[dict[str, Any]]]:
        """A new snapshot, and the sessions that have begun or ended. Without Redis it has the master's own counters and
        the sessions of the last snapshot. Raises GridError when the master does not answer."""
        from pwgrid.cli.top.whole_grid import whole_status

        status = ask(self._grid, "status")
        if self._sessions is None:
            from pwgrid.registry.blocking_reads import SessionWatch  # redis-py takes 0.2 s to import

            self._sessions = SessionWatch(*redis_of(self._grid))
        try:
            seen = self._sessions.look(now)
        except RegistryUnavailable as error:
            add_registry(status, error)
            return Snapshot(now, status, self._last.sessions), []
        add_registry(status, seen.snapshot, seen.hosts)
        self._hosts = seen.hosts.records
        status = whole_status(status, seen.snapshot, seen.hosts, now)
        live = [session.as_json() for session in seen.live]
        news = seen.news if self._last.status else []  # what was there before top began is no news
        return Snapshot(now, status, live), [session.as_json() for session in news]

    def _find_again(self) -> None:
        """Looks for the grid again: a new master may have another directory."""
        try:
            self._grid, self._sessions = find_grid(*self._where), None
        except GridError:
            return


class _Screen:
    def __init__(self, watcher: Watcher, terminal: Terminal) -> None:
        self._watcher, self._terminal = watcher, terminal
        self._snapshot: Snapshot | None = None
        self._events: deque[Event] = deque(maxlen=_EVENTS_KEPT)
        self._state = State()

    def run(self) -> None:
        """Returns when the user quits. Raises Ended, and what has ended the watcher."""
        while True:
            keys, is_news = self._terminal.wait(self._watcher.readable)
            if is_news:
                os.read(self._watcher.readable, 64)
                self._take_news()
            if self._snapshot is None:
                if "q" in keys:
                    return
                continue
            for key in keys:
                self._state, wanted = press(self._state, key, rows(self._snapshot, self._events, self._state.filter))
                if self._state.mode is Mode.QUIT:
                    return
                if wanted is not None:
                    self._watcher.requests.put(wanted)
            self._draw(self._snapshot)

    def _take_news(self) -> None:
        while True:
            try:
                news = self._watcher.news.get_nowait()
            except queue.Empty:
                return
            if isinstance(news, Exception):
                raise news
            if isinstance(news, str):
                self._state = replace(self._state, message=news)
            else:
                self._snapshot = news[0]
                self._events.extend(news[1])

    def _draw(self, snapshot: Snapshot) -> None:
        there = rows(snapshot, self._events, self._state.filter)
        self._terminal.show(draw(snapshot, there, self._state, *self._terminal.size))
