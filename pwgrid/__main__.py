"""`python -m pwgrid` is `pwgrid`."""

from pwgrid.cli.main import main

main(prog_name="pwgrid")
