"""Runs `pwgrid top`: takes keys and news, and draws the screen."""

from __future__ import annotations

import os
import queue
import sys
from collections import deque
from dataclasses import replace
from typing import Final

from rich.console import Console

from pwgrid.cli import exit_codes
from pwgrid.cli.output import is_live
from pwgrid.cli.top.draw import draw
from pwgrid.cli.top.key_actions import Mode, State, press, rows
from pwgrid.cli.top.snapshot import Event, Snapshot
from pwgrid.cli.top.terminal import Ended, Terminal, open_terminal
from pwgrid.cli.top.watcher import Watcher
from pwgrid.common.errors import GridError

_EVENTS_KEPT: Final = 500


def top(port: int | None, runtime_dir: str | None, every_s: float) -> int:
    """Runs until the user quits; returns the exit code. Raises GridError where there is no grid, or no terminal."""
    console = Console()
    if not (is_live(console) and sys.stdin.isatty()):
        raise GridError("pwgrid top needs a terminal; pwgrid status --watch writes into a pipe, too")
    watcher = Watcher(port, runtime_dir, every_s)
    watcher.start()
    with open_terminal(console) as terminal:
        try:
            _Screen(watcher, terminal).run()
        except Ended as ended:
            return 128 + ended.signum
    return exit_codes.DONE


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
