"""`pwgrid help`: the help of a command, or a page of docs/, which are shipped with the code."""

from __future__ import annotations

import sys
from pathlib import Path

import click
from rich.console import Console
from rich.markdown import Markdown

from pwgrid.common.directories import resource_dir
from pwgrid.common.errors import GridError


def pages() -> dict[str, Path]:
    """The files of the pages by name. Raises FileNotFoundError when the installation is incomplete."""
    return {path.stem: path for path in sorted(resource_dir("docs").glob("*.md"))}


def show(context: click.Context, group: click.Group, topic: tuple[str, ...]) -> None:
    """Prints the help of that command, that page, or both where both have the name; without a topic, a list of all.
    Raises GridError."""
    if not topic:
        click.echo(_list(group))
        return
    command, inner = _command(context, group, topic)
    page = pages().get(" ".join(topic))
    if command is None and page is None:
        raise GridError(f"there is no topic {' '.join(topic)!r}: pwgrid help lists them")
    if command is not None:
        click.echo(command.get_help(inner))
    if page is not None:
        _page(("\n" if command else "") + page.read_text())


def _list(group: click.Group) -> str:
    commands = [f"  {name:14} {each.get_short_help_str(90)}" for name, each in sorted(group.commands.items())]
    found = [f"  {name:14} {path.read_text().splitlines()[0].removeprefix('# ')}" for name, path in pages().items()]
    return "\n".join(["Commands (pwgrid help COMMAND):", *commands, "", "Pages (pwgrid help PAGE):", *found])


def _command(
    context: click.Context, group: click.Group, topic: tuple[str, ...]
) -> tuple[click.Command | None, click.Context]:
    """The command that these words name, with its context; None for another topic."""
    command: click.Command | None = group
    for word in topic:
        if not isinstance(command, click.Group):
            return None, context
        command = command.get_command(context, word)
        if command is None:
            return None, context
        context = click.Context(command, info_name=word, parent=context)
    return command, context


def _page(text: str) -> None:
    """Prints the page: formatted and a screen at a time on a terminal, elsewhere as it is."""
    console = Console()
    if not sys.stdout.isatty():
        click.echo(text)
        return
    with console.capture() as captured:
        console.print(Markdown(text, hyperlinks=False))
    click.echo_via_pager(captured.get())
