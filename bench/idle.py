"""Bench: what 1,000 idle sessions cost the grid's processes in memory."""

from __future__ import annotations

import contextlib

import psutil

from bench.client import Client
from bench.harness import Options, Row, at_most, memory_kib
from bench.servers import driver, fake_pair, settled
from tests.support.grid import eventually


def run(options: Options) -> list[Row]:
    count = options.pick(1000, 200)
    with Client(driver().version) as client, fake_pair(slots=1000) as pair:
        client.order("hold", target=pair.via_grid, count=20)  # what the first sessions load once is no session's cost
        client.order("drop")
        settled(pair.grid)
        before = {name: memory_kib(pid) for name, pid in pair.pids.items()}
        proxy = psutil.Process(pair.pids["proxy"])
        files = proxy.num_fds()
        client.order("hold", target=pair.via_grid, count=count)
        assert pair.grid.active() == count
        held = {name: memory_kib(pid) for name, pid in pair.pids.items()}
        with contextlib.suppress(AssertionError):  # then the row shows it
            eventually(
                lambda: proxy.num_fds() <= files,
                "the worker has answered for the last ones",
                5,
            )
        more_files = proxy.num_fds() - files
        client.order("drop")
        settled(pair.grid)
        after = {name: memory_kib(pid) for name, pid in pair.pids.items()}
    each = {name: (held[name]["pss"] - before[name]["pss"]) / count for name in pair.pids}
    return [
        *(
            Row(
                f"{name}, PSS for each of {count} idle sessions",
                f"{held[name]['pss']} KiB with them",
                f"{before[name]['pss']} KiB without",
                f"{each[name]:.2f} KiB",
                *(at_most(each[name], 1, " KiB") if name == "proxy" else ()),
            )
            for name in pair.pids
        ),
        Row(
            "proxy, private memory (USS) for each",
            f"{held['proxy']['uss']} KiB with them",
            f"{before['proxy']['uss']} KiB without",
            f"{(held['proxy']['uss'] - before['proxy']['uss']) / count:.2f} KiB",
        ),
        Row("proxy, open files for them", str(more_files), "0", str(more_files), *at_most(more_files, 0)),
        Row(
            "proxy, PSS after they are gone",
            f"{after['proxy']['pss']} KiB",
            f"{before['proxy']['pss']} KiB before",
            f"{after['proxy']['pss'] - before['proxy']['pss']:+d} KiB",
        ),
    ]


COMPARES = (
    "One worker with a fake browser server and 1,000 slots; the baseline is the same process before the sessions, "
    "after a warm-up of 20."
)
