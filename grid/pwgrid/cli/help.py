"""`pwgrid help`: the help of a command, or a page of docs/, which are shipped with the code."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from pwgrid.common.errors import GridError
from pwgrid.common.paths import resource_dir


@click.command()
@click.argument("topic", nargs=-1)
@click.pass_context
def help(context: click.Context, topic: tuple[str, ...]) -> None:
    """Shows the help of a command, or a page of the documentation; without TOPIC, lists both."""
    assert context.parent is not None
    if not topic:
        click.echo(_list(context.parent))
        return
    command = _command(context.parent, topic)
    page = pages().get(" ".join(topic))
    if command is None and page is None:
        raise GridError(f"there is no topic {' '.join(topic)!r}: pwgrid help lists them")
    if command is not None:
        click.echo(command.get_help())
    if page is not None:
        _show_page(("\n" if command else "") + page.read_text())


def pages() -> dict[str, Path]:
    """The files of the pages by name. Raises FileNotFoundError when the installation is incomplete."""
    return {path.stem: path for path in sorted(resource_dir("docs").glob("*.md"))}


def _list(root: click.Context) -> str:
    assert isinstance(root.command, click.Group)
    found = sorted(root.command.commands.items())
    commands = [f"  {name:14} {each.get_short_help_str(90)}" for name, each in found]
    titles = [f"  {name:14} {path.read_text().splitlines()[0].removeprefix('# ')}" for name, path in pages().items()]
    return "\n".join(["Commands (pwgrid help COMMAND):", *commands, "", "Pages (pwgrid help PAGE):", *titles])


def _command(context: click.Context, topic: tuple[str, ...]) -> click.Context | None:
    """The context of the command below `context` that these words name; None if they name none."""
    for word in topic:
        group = context.command
        command = group.get_command(context, word) if isinstance(group, click.Group) else None
        if command is None:
            return None
        context = command.make_context(word, [], parent=context, resilient_parsing=True)
    return context


def _show_page(text: str) -> None:
    """Prints the page: formatted and a screen at a time on a terminal, elsewhere as it is."""
    if not sys.stdout.isatty():
        click.echo(text)
        return
    from rich.console import Console
    from rich.markdown import Markdown

    console = Console()
    with console.capture() as captured:
        console.print(Markdown(text, hyperlinks=False))
    click.echo_via_pager(captured.get())
