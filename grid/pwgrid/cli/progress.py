"""Shows the progress of a command: live lines on a terminal, elsewhere a line for each change."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Self

import click

from pwgrid.cli import exit_codes
from pwgrid.cli.output import is_live, printable

if TYPE_CHECKING:  # it takes 40 ms to import, which no --help and no pipe waits for
    from rich.console import Console
    from rich.progress import TaskID


class Display:
    """Plain lines, for a pipe or a log."""

    def __init__(self) -> None:
        self._shown: dict[str, object] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Removes all live lines from the screen."""

    def line(self, text: str) -> None:
        """Prints a line that stays."""
        click.echo(printable(text))

    def show(self, name: str, text: str, figures: object = None) -> None:
        """Shows the state of `name`: a plain line when `figures` (None: the text) differ from last time."""
        news = text if figures is None else figures
        if self._shown.get(name) != news:
            self._shown[name] = news
            self.line(text)

    def end(self, name: str) -> None:
        """Ends the line of `name`."""
        self._shown.pop(name, None)


class LiveDisplay(Display):
    """One line on the terminal for each name, drawn anew in place; gone at the end."""

    def __init__(self, console: Console) -> None:
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
        from rich.table import Column

        super().__init__()
        one_line = Column(no_wrap=True, overflow="ellipsis")
        text = TextColumn("{task.description}", markup=False, table_column=one_line)
        self._progress = Progress(SpinnerColumn(), text, TimeElapsedColumn(), console=console, transient=True)
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def line(self, text: str) -> None:
        self._progress.console.print(printable(text), markup=False, emoji=False, highlight=False, soft_wrap=True)

    def show(self, name: str, text: str, figures: object = None) -> None:
        if name not in self._tasks:
            self._tasks[name] = self._progress.add_task(printable(text), total=None)
        self._progress.update(self._tasks[name], description=printable(text))

    def end(self, name: str) -> None:
        if name in self._tasks:
            self._progress.remove_task(self._tasks.pop(name))
            self._progress.refresh()


def display() -> Display:
    """A live display on a terminal, else plain lines."""
    from rich.console import Console

    console = Console()
    return LiveDisplay(console) if is_live(console) else Display()


class Silent(Display):
    """Shows nothing, since the result is printed as JSON."""

    def line(self, text: str) -> None:
        """Prints nothing."""


@contextlib.contextmanager
def watching(what: str, *, is_silent: bool = False) -> Iterator[Display]:
    """A display for what the grid does with or without us: Ctrl-C ends only the command, with INTERRUPTED."""
    try:
        with Silent() if is_silent else display() as shown:
            yield shown
    except KeyboardInterrupt:
        click.echo(f"{what} goes on; see pwgrid status", err=is_silent)
        sys.exit(exit_codes.INTERRUPTED)
