"""`pwgrid completion` and `pwgrid help`."""

import click


@click.group("completion")
def completion_group() -> None:
    """Completes commands, options, workers and sessions in bash, zsh and fish."""


_shell = click.argument("shell", required=False, type=click.Choice(("bash", "zsh", "fish")))


@completion_group.command("install")
@_shell
@click.pass_context
def completion_install(context: click.Context, shell: str | None) -> None:
    """Installs completion for SHELL (default: your own shell); may be repeated."""
    from pwgrid.cli import completion

    click.echo("\n".join(completion.install(_root_group(context), completion.named_or_own(shell))))


@completion_group.command("uninstall")
@_shell
def completion_uninstall(shell: str | None) -> None:
    """Removes what `pwgrid completion install` has written."""
    from pwgrid.cli import completion

    click.echo("\n".join(completion.uninstall(completion.named_or_own(shell))))


@completion_group.command("show")
@_shell
@click.pass_context
def completion_show(context: click.Context, shell: str | None) -> None:
    """Prints the completion script for SHELL (default: your own shell)."""
    from pwgrid.cli import completion

    click.echo(completion.script(_root_group(context), completion.named_or_own(shell)))


@click.command("help")
@click.argument("topic", nargs=-1)
@click.pass_context
def help_command(context: click.Context, topic: tuple[str, ...]) -> None:
    """Shows the help of a command, or a page of the documentation; without TOPIC, lists both."""
    from pwgrid.cli import help_topics

    assert context.parent is not None
    help_topics.show(context.parent, _root_group(context), topic)


def _root_group(context: click.Context) -> click.Group:
    command = context.find_root().command
    assert isinstance(command, click.Group)
    return command
