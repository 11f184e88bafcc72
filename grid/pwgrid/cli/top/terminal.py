"""The terminal of `pwgrid top`: single keys from its bytes, signals as events, its modes restored at the end."""

from __future__ import annotations

import codecs
import contextlib
import os
import re
import select
import signal
import sys
import termios
import tty
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Final

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from pwgrid.cli.standard_streams import OutputError

_ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_HANDLED: Final = (*_ENDING, signal.SIGWINCH, signal.SIGTSTP, signal.SIGCONT)
_PIECES_S: Final = 0.05
"""How long to wait for the next piece of a key."""

_SEQUENCES: Final = {
    **{"[A": "up", "[B": "down", "[C": "right", "[D": "left", "[H": "home", "[F": "end", "[Z": "backtab"},
    **{"OA": "up", "OB": "down", "OC": "right", "OD": "left", "OH": "home", "OF": "end"},
    **{"[1~": "home", "[4~": "end", "[5~": "pageup", "[6~": "pagedown", "[7~": "home", "[8~": "end"},
}
_PLAIN: Final = {"\t": "tab", "\r": "enter", "\n": "enter", "\x7f": "backspace", "\b": "backspace"}
_WHOLE: Final = re.compile(r"\x1b(\[[0-9;?]*[ -/]*[@-~]|O[@-~])")
_PART: Final = re.compile(r"\x1b(\[[0-9;?]*[ -/]*|O)?")


class Ended(Exception):
    """A signal ends the command."""

    def __init__(self, signum: int) -> None:
        self.signum = signum


class Keys:
    """Puts together keys that come in pieces: a sequence over a slow line, a character of several bytes."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._text = ""

    @property
    def is_pending(self) -> bool:
        """Whether the last key is not known yet, because it depends on the next byte."""
        return bool(self._text)

    def feed(self, data: bytes) -> list[str]:
        """The keys that are complete now: characters, or names such as "up" and "escape". Unknown ones are left out."""
        self._text += self._decoder.decode(data)
        keys = []
        while self._text:
            if whole := _WHOLE.match(self._text):
                keys += [_SEQUENCES[whole[1]]] if whole[1] in _SEQUENCES else []
                self._text = self._text[whole.end() :]
            elif _PART.fullmatch(self._text):
                break
            else:
                first, self._text = self._text[0], self._text[1:]
                name = "escape" if first == "\x1b" else _PLAIN.get(first, first)
                keys += [name] if len(name) > 1 or name.isprintable() else []
        return keys

    def nothing_follows(self) -> list[str]:
        """The pending key once no byte follows: Escape sends the first byte of a sequence. Drops any other."""
        is_escape, self._text = self._text == "\x1b", ""
        return ["escape"] if is_escape else []


class Terminal:
    """Made and entered by `open_terminal`. `signals` is a descriptor from which signal numbers are read."""

    def __init__(self, console: Console, signals: int) -> None:
        self._console, self._signals = console, signals
        self._fd = sys.stdin.fileno()
        self._keys = Keys()
        self._live = Live(
            console=console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False
        )
        self._before = termios.tcgetattr(self._fd)

    @property
    def size(self) -> tuple[int, int]:
        """Columns and lines, as they are now."""
        return self._console.size

    def enter(self) -> None:
        """Switches to a screen of our own and to single keys."""
        tty.setcbreak(self._fd)
        self._live.start()

    def leave(self) -> None:
        """Undoes `enter`. Idempotent; harmless on a terminal that is gone."""
        with contextlib.suppress(OutputError):
            self._live.stop()
        with contextlib.suppress(termios.error):
            termios.tcsetattr(self._fd, termios.TCSADRAIN, self._before)

    def show(self, lines: Sequence[Text]) -> None:
        """Draws the whole screen."""
        self._live.update(Group(*lines), refresh=True)

    def wait(self, readable: int) -> tuple[list[str], bool]:
        """Waits for keys, for the descriptor `readable`, or for another window size; returns the keys, and whether
        `readable` can be read. Raises Ended."""
        timeout = _PIECES_S if self._keys.is_pending else None
        ready, _, _ = select.select([self._fd, self._signals, readable], [], [], timeout)
        if not ready:
            return self._keys.nothing_follows(), False
        if self._signals in ready:
            self._on_signals(os.read(self._signals, 64))
        return self._read() if self._fd in ready else [], readable in ready

    def _read(self) -> list[str]:
        data = os.read(self._fd, 1024)
        if not data:  # the other end of the terminal is gone
            raise Ended(signal.SIGHUP)
        return self._keys.feed(data)

    def _on_signals(self, numbers: bytes) -> None:
        for signum in numbers:
            if signum in _ENDING:
                raise Ended(signum)
            if signum == signal.SIGTSTP:
                self.leave()
                os.kill(os.getpid(), signal.SIGSTOP)
                self.enter()


@contextlib.contextmanager
def open_terminal(console: Console) -> Iterator[Terminal]:
    """The terminal for the length of the block; afterwards it is as it was, however the block ends."""
    told, tell = os.pipe()
    os.set_blocking(tell, False)
    before = {signum: signal.signal(signum, _noted) for signum in _HANDLED}
    last_fd = signal.set_wakeup_fd(tell, warn_on_full_buffer=False)
    terminal = Terminal(console, told)
    try:
        terminal.enter()
        yield terminal
    finally:
        terminal.leave()
        signal.set_wakeup_fd(last_fd)
        for signum, handler in before.items():
            signal.signal(signum, handler)
        os.close(told)
        os.close(tell)


def _noted(_signum: int, _frame: FrameType | None) -> None:
    """Does nothing but replace the signal's default action: its number comes through the wake-up descriptor."""
