"""`pwgrid uninstall`: shows what it will remove, asks, and removes it."""

from pathlib import Path

import click

from pwgrid.cli.install.install import ASKING, CONF, MANAGERS, agreed, check_root, kind_of
from pwgrid.cli.options import with_options


@click.command()
@click.argument("manager", type=click.Choice(MANAGERS))
@click.option("--purge", is_flag=True, help="Also remove files that were changed since, and what the grid has written.")
@with_options((*ASKING, CONF))
def uninstall(manager: str, purge: bool, user: bool, dry_run: bool, yes: bool, conf: Path | None) -> None:
    """Ends the grid and removes exactly what `pwgrid install` has made.

    Live sessions have DRAIN_TIMEOUT. A file that was changed since stays and is named, unless --purge.
    """
    from pwgrid.cli.install.installation import InstallOptions, InstallPaths
    from pwgrid.cli.install.record import RECORD, Record
    from pwgrid.cli.install.removal import Removal

    if conf is not None and manager != "supervisor":
        raise click.UsageError("--conf: it is supervisord's")
    check_root(user=user, dry_run=dry_run)
    places = InstallPaths.of(user=user)
    record = Record.read(places.config)
    if record is None or record.under != manager:
        click.echo(f"nothing to do: no grid was installed here under {manager}")
        if purge and record is None and (there := [str(each) for each in places.own if each.is_dir()]):
            click.echo(
                f"not recorded as installed, so it stays: {', '.join(there)}; if no grid uses it, remove it by hand"
            )
        return
    removal = Removal(record, places.own, purge=purge)
    installed = kind_of(manager)(InstallOptions(user=user, conf=conf), record)
    ending, afterwards = installed.stop(), installed.forget()
    lines = [*map(str, ending), *removal.described(), *map(str, afterwards)]
    if not agreed(f"pwgrid uninstall {manager}", [f"  {line}" for line in lines], dry_run=dry_run, yes=yes):
        return
    for each in ending:
        click.echo(str(each))  # it may take DRAIN_TIMEOUT
        each.run()
    removal.remove_files()
    for each in afterwards:
        each.run()
    # It may fail: with the record the uninstallation can be repeated.
    removal.remove_user()
    (places.config / RECORD).unlink()
    removal.remove_directories(click.echo)
    click.echo("removed")
