"""`pwgrid token`."""

from pathlib import Path
from typing import Any

import click

from pwgrid.cli.commands.options import GRID_OPTIONS, with_json, with_options


@click.group()
def token() -> None:
    """Makes, lists and revokes the tokens of clients and operators.

    They are kept as salted hashes in a file beside the configuration file. A change takes effect at once. As soon as
    there is one token, the grid serves nobody without one.
    """


_TOKEN_OPTIONS: tuple[Any, ...] = (
    click.option(
        "--config", "config_file", type=click.Path(path_type=Path), help="Configuration file; the tokens are beside it."
    ),
    *GRID_OPTIONS,
)


@token.command("create")
@with_options(_TOKEN_OPTIONS)
@click.option("--name", required=True, help="What the token is called in sessions, status and lists.")
@click.option(
    "--role",
    type=click.Choice(["client", "operator"]),
    default="client",
    show_default=True,
    help="client: connects, sees and ends its own sessions. operator: everything.",
)
@click.option(
    "--max-sessions", type=click.IntRange(0, 100_000), default=0, help="Live sessions at once; 0: any number."
)
@click.option("--pools", default="", metavar="POOL,...", help="The only pools that it may use.  [default: all]")
def token_create(config_file: Path | None, port: int | None, runtime_dir: str | None, **options: Any) -> None:
    """Makes a token and prints it, only this once. Stdout has nothing else: TOKEN=$(pwgrid token create …) works."""
    from pwgrid.cli import token as tokens
    from pwgrid.tokens.tokens import Role

    where = tokens.place(config_file, port, runtime_dir)
    pools = [each.strip() for each in options["pools"].split(",") if each.strip()]
    text, is_first = tokens.create(where, options["name"], Role(options["role"]), options["max_sessions"], pools)
    click.echo(text)
    click.echo(f"pwgrid: the token {options['name']} is shown only this once; its hash is in {where.path}", err=True)
    if is_first:
        click.echo("pwgrid: it is the first one: from now on the grid serves nobody without a token", err=True)


@token.command("list")
@with_options(_TOKEN_OPTIONS)
@with_json
def token_list(config_file: Path | None, port: int | None, runtime_dir: str | None, as_json: bool) -> None:
    """Shows the tokens: names, roles and limits, never a token itself."""
    from pwgrid.cli import output, tables
    from pwgrid.cli import token as tokens

    rows = tokens.listed(tokens.place(config_file, port, runtime_dir))
    click.echo(output.as_json(rows) if as_json else tables.tokens_text(rows))


@token.command("revoke")
@with_options(_TOKEN_OPTIONS)
@click.argument("name")
def token_revoke(config_file: Path | None, port: int | None, runtime_dir: str | None, name: str) -> None:
    """Removes a token. Clients with it are refused from now on; live sessions go on.

    After the last token is revoked, the grid still asks for one, and accepts only PWGRID_TOKEN. To make it ask for
    none, delete the file of tokens.
    """
    from pwgrid.cli import token as tokens

    tokens.revoke(tokens.place(config_file, port, runtime_dir), name)
    click.echo(f"revoked {name}")
