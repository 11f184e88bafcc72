"""The command `pwgrid`, also as `python -m pwgrid`: what is installed comes before what lies in the user's project."""

import os
import sys


def installed_first() -> None:
    """Has modules be looked for in the user's own directories last: a project's redis.py or click.py is not for us.

    These are the directories of PYTHONPATH and, with `-m`, the current one, in which Python looks first.
    """
    named = os.environ.get("PYTHONPATH", "")
    theirs = {os.path.abspath(entry) for entry in (named.split(os.pathsep) if named else [])}
    if __name__ == "__main__":
        theirs.add(os.getcwd())
    last = [entry for entry in sys.path if os.path.abspath(entry) in theirs]
    sys.path[:] = [entry for entry in sys.path if entry not in last] + last


def main() -> None:
    """Runs the command line."""
    installed_first()
    from pwgrid.cli.main import main as command

    command(prog_name="pwgrid")


if __name__ == "__main__":
    main()
