"""`pwgrid serve`: the options and the first steps of a process that becomes a grid's master (start_master.py)."""

import contextlib
import gc
import os
import sys
from pathlib import Path
from typing import Any, cast

import click

from pwgrid.cli.options import Configured, as_private


@click.command(cls=Configured)
@click.option("--ready-fd", type=int, hidden=True, help="Write one JSON line here when the grid is ready.")
@click.option("--lifeline-fd", type=int, hidden=True, help="Stop when the other end of this descriptor closes.")
@click.option("--private", is_flag=True, hidden=True, help="Use a Redis of its own, and no tokens of `pwgrid token`.")
@click.option("--check-only", is_flag=True, hidden=True, help="Load the code and the configuration, start nothing.")
def serve(
    config_file: Path | None,
    ready_fd: int | None,
    lifeline_fd: int | None,
    private: bool,
    check_only: bool,
    **flags: Any,
) -> None:
    """Runs the grid in the foreground until SIGTERM or Ctrl-C."""
    before_code_is_loaded()
    from pwgrid.cli.start_master import errors_as_json, start_master
    from pwgrid.settings.load import load, log_format_of
    from pwgrid.settings.start_directory import settle

    settle(os.environ)
    flags = as_private(flags) if private else flags
    with errors_as_json() if log_format_of(os.environ, flags) == "json" else contextlib.nullcontext():
        loaded = load(config_file, os.environ, flags, private=private)
        sys.exit(start_master(loaded, ready_fd=ready_fd, lifeline_fd=lifeline_fd, check_only=check_only))


def before_code_is_loaded() -> None:
    """Makes the import of all roles take less time and memory."""
    gc.disable()  # until it is done (Master.run): an eighth of the time
    _leave_out_what_no_process_uses()


def _leave_out_what_no_process_uses() -> None:
    """Has imports of these fail. Libraries import them wherever they are installed, and every process of the grid would
    have them: rich (2 MiB) and greenlet (1 MiB) by structlog, OpenTelemetry's metrics (1 MiB) by redis-py, pydantic's
    version 1 (1 MiB) by FastAPI."""
    left_out = ["rich", "greenlet", "pydantic.v1"]
    if not any(name.startswith("OTEL_") for name in os.environ):  # what traces may load is not ours to say
        left_out.append("opentelemetry.sdk.metrics")
    sys.modules.update(dict.fromkeys(left_out, cast(Any, None)))
