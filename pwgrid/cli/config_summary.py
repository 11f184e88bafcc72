"""Sums up a configuration: its pools, totals by browser, and how many sessions the grid takes at once."""

from collections import Counter
from typing import Any

from pwgrid.cli.tables import table
from pwgrid.common.errors import BrowserMissing
from pwgrid.common.wording import counted
from pwgrid.settings.model import Settings
from pwgrid.worker.browser.find import find_for_pool


def summary(settings: Settings) -> dict[str, Any]:
    """The JSON of `pwgrid config check`; `slots` are those of each worker, `capacity` are sessions at once."""
    pools = settings.pools_wanted().values()
    workers: Counter[str] = Counter()
    sessions: Counter[str] = Counter()
    for pool in pools:
        workers[pool.browser_type] += pool.workers
        sessions[pool.browser_type] += pool.workers * pool.slots
    totals = {each: {"workers": workers[each], "capacity": sessions[each]} for each in workers if workers[each]}
    return {
        "pools": [
            {
                "name": pool.name,
                "browserType": pool.browser_type,
                "workers": pool.workers,
                "slots": pool.slots,
                "capacity": pool.workers * pool.slots,
                "lifetime": pool.lifetime,
                "labels": list(pool.labels),
            }
            for pool in pools
        ],
        "totals": totals,
        "capacity": sessions.total(),
        "defaultBrowserType": settings.default_browser_type,
    }


def missing_browsers(settings: Settings) -> list[str]:
    """A sentence for each pool whose channel or executable is not on this host."""
    missing = []
    for pool in settings.pools_with_workers():
        if pool.channel or pool.executable:
            try:
                find_for_pool(pool, settings)
            except BrowserMissing as error:
                missing.append(f"on this host {error.sentence}")
    return missing


def summary_text(found: dict[str, Any]) -> str:
    """The same as tables, without pools that have no worker."""
    columns = ("name", "browserType", "workers", "slots", "capacity", "lifetime", "labels")
    rows = [
        [", ".join(each) if isinstance(each, list) else each for each in (pool[column] for column in columns)]
        for pool in found["pools"]
        if pool["workers"]
    ]
    head = ("POOL", "BROWSER", "WORKERS", "SLOTS", "CAPACITY", "LIFETIME", "LABELS")
    totals = [(name, total["workers"], total["capacity"]) for name, total in found["totals"].items()]
    return "\n".join(
        [
            table(head, rows),
            "",
            table(("TOTAL", "WORKERS", "CAPACITY"), totals),
            "",
            f"effective capacity: {counted(found['capacity'], 'session')} at once",
        ]
    )
