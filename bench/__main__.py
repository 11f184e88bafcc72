"""`python -m bench [names] [--quick] [--workers 10,100]`: runs benches, prints their tables; a full run writes
bench/RESULTS.md."""

from __future__ import annotations

import argparse
import importlib
import resource
import shlex
import sys
import time
import traceback
from pathlib import Path

from bench.harness import MachineMeter, Options, Outcome, progress, report, sizes
from pwgrid.master.child import become_subreaper
from pwgrid.runtime.browser_process_tree import reap_orphans

NAMES = (  # each a module with COMPARES, and `run`, which returns all its rows
    "upgrade",
    "traffic",
    "forward",
    "evaluate",
    "sessions",
    "queue",
    "idle",
    "status",
    "recover",
    "drain",
    "recycle",
    "leases",
    "own",
    "cdp",
    "long",
    "memory",
    "guard",
    "confine",
    "dashboard",
    "selection",
    "fleet",
)

RESULTS = Path(__file__).with_name("RESULTS.md")


def main() -> int:
    """Returns the exit code: 0 all targets met, 1 one missed, 2 a bench failed."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=f"which: {', '.join(NAMES)} (all)")
    parser.add_argument("--quick", action="store_true", help="few rounds: shows that it works, not how fast it is")
    parser.add_argument("--workers", type=sizes, default=(), help="numbers of workers for fleet, as 10,100")
    parser.add_argument("--output", type=Path, help="write the report here")
    given = parser.parse_args()
    if unknown := set(given.names) - {*NAMES}:
        parser.error(f"no bench of this name: {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    become_subreaper()  # what outlives its own parent counts as ours all the same
    machine = MachineMeter()
    outcomes = [_run(name, Options(given.quick, given.workers)) for name in given.names or NAMES]
    command = shlex.join(["python", "-m", "bench", *sys.argv[1:]])
    text = report(outcomes, command, machine)
    output = given.output or (None if given.names or given.quick else RESULTS)
    if output:
        output.write_text(text)
    print(text)
    if any(outcome.failure for outcome in outcomes):
        return 2
    return int(any(row.verdict == "MISS" for outcome in outcomes for row in outcome.rows))


def _run(name: str, options: Options) -> Outcome:
    bench = importlib.import_module(f"bench.{name}")
    outcome = Outcome(name, bench.COMPARES)
    progress(f"{name} …")
    started = time.monotonic()
    try:
        outcome.rows = bench.run(options)
    except Exception as error:  # noqa: BLE001 - the others shall still run, and the report tells
        traceback.print_exc()
        lines = str(error).splitlines() or [""]
        outcome.failure = f"{type(error).__name__}: " + " … ".join(dict.fromkeys([lines[0], lines[-1]]))
    reap_orphans(())  # the bench has waited for its own children
    outcome.seconds = time.monotonic() - started
    for row in outcome.rows:
        progress(f"  {row.what}: {row.grid} | {row.baseline} | {row.comes_to} {row.verdict}")
    progress(f"{name}: {outcome.seconds:.0f} s")
    return outcome


if __name__ == "__main__":
    sys.exit(main())
