"""`python -m grid` is `pwgrid`."""

from grid.cli import main

main(prog_name="pwgrid")
