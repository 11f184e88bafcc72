"""The command `pwgrid`, also as `python -m pwgrid`: what is installed comes before what lies in the user's project."""

import os
import sys


def installed_first() -> None:
    """Makes Python look for modules in the user's own directories last: a project's redis.py or click.py is not meant
    for us.

    These are the directories of PYTHONPATH and, with `-m`, the current one, in which Python looks first.
    """
    try:
        current = os.getcwd()
    except FileNotFoundError:  # it was removed: there is nothing in it
        current = ""
    named = os.environ.get("PYTHONPATH", "")
    theirs = {_absolute(entry, current) for entry in (named.split(os.pathsep) if named else [])}
    if __name__ == "__main__":
        theirs.add(current)
    last = [entry for entry in sys.path if _absolute(entry, current) in theirs]
    sys.path[:] = [entry for entry in sys.path if entry not in last] + last


def _absolute(entry: str, current: str) -> str:
    """Like abspath(), which fails without a current directory."""
    return os.path.normpath(os.path.join(current, entry))


def main() -> None:
    """Runs the command line."""
    installed_first()
    from pwgrid.cli import standard_streams

    standard_streams.prepare()
    from pwgrid.cli.main import main as command

    command(prog_name="pwgrid")


if __name__ == "__main__":
    main()
