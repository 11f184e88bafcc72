"""`pwgrid redis-cli`: redis-cli on a grid's Redis, which has no port."""

import os
import signal

import click

from pwgrid.cli.ask_grid import REPLY_TIMEOUT_S, ask, find_grid


@click.command("redis-cli", context_settings={"ignore_unknown_options": True, "help_option_names": []})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def redis_cli(arguments: tuple[str, ...]) -> None:
    """Runs redis-cli on the grid's Redis. PWGRID_PORT names the grid where several run."""
    from pwgrid.registry.embedded_redis_config import find_redis_cli
    from pwgrid.registry.open_redis import redis_cli_arguments

    grid = find_grid(None, None)
    binary = find_redis_cli()
    redis = ask(grid, "redis")
    where, password = redis_cli_arguments(redis["url"], timeout_s=REPLY_TIMEOUT_S, prefix=redis["prefix"])
    environment = {**os.environ, "REDISCLI_AUTH": password} if password else os.environ
    for signum in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(signum, signal.SIG_DFL)  # Python has them ignored, and exec would keep that
    os.execve(binary, [str(binary), *where, *arguments], environment)
