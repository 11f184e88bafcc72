"""Whoever waits here for a pool that only another host has is counted, and nobody in the line of a silent host is."""

import re
import time
from types import SimpleNamespace
from typing import Any

from pwgrid.common.histogram import Histogram
from pwgrid.proxy.api.app import create_app
from pwgrid.proxy.connect.connect_metrics import ConnectFigures
from pwgrid.proxy.hosts.host_table import HostTable, OtherHost
from pwgrid.proxy.policy.access import Access
from pwgrid.proxy.roster import Roster
from pwgrid.registry.host_records import HostRecord
from pwgrid.registry.records import RegistrySnapshot
from pwgrid.settings.model import Settings
from tests.support.lone_host import LoneHost
from tests.support.state_frames import told_of_pool
from tests.unit.test_api import ask, get

HERE = {"ours": 2, "theirs": 3}
"""How many clients wait here, by pool."""


class TwoOthers(LoneHost):
    """One host that is heard and has a pool of its own, and one that is silent. In the line of each is one client for
    this host's pool."""

    name = "here"

    def __init__(self, roster: Roster) -> None:
        super().__init__(roster)
        now = time.monotonic()
        records = {name: HostRecord(name, (name, 1), waiting={"ours": 1}) for name in ("heard", "silent")}
        heard, silent = OtherHost(records["heard"], now), OtherHost(records["silent"], now - 1e6)
        for each in (heard, silent):
            each.roster.replace({"pools": {"theirs": told_of_pool(browserType="firefox")}})
        self.table = HostTable(self.name, {"heard": heard, "silent": silent})
        roster.others = (heard.roster,)

    def rosters(self) -> dict[str, Roster]:
        return {self.name: self.roster, "heard": self.roster.others[0]}


class Redis:
    """Stands in for a registry with nothing in it."""

    client = SimpleNamespace(exchanges=Histogram((1.0,)))

    def now(self) -> float:
        return 100.0

    async def snapshot(self, *_: object) -> RegistrySnapshot:
        return RegistrySnapshot({}, {}, {}, {}, 0)

    look = snapshot


def grid() -> Any:
    roster = Roster()
    roster.replace({"pools": {"ours": told_of_pool(), "idle": told_of_pool()}})

    async def verdict(_found: object) -> SimpleNamespace:
        return SimpleNamespace(reason=None)

    return SimpleNamespace(
        registry=Redis(),
        roster=roster,
        queue=SimpleNamespace(waiting=lambda name: HERE.get(name, 0), pools=lambda: [*HERE]),
        settings=Settings(),
        feed=None,
        gateway=SimpleNamespace(figures=ConnectFigures(), forwarding=None),
        readiness=SimpleNamespace(verdict=verdict),
        hosts=TwoOthers(roster),
    )


async def test_the_room_of_the_grid_has_the_lines_of_this_host_and_of_those_that_are_heard() -> None:
    _, told = await get(create_app(grid(), Access()), "/v1/capacity")
    waiting = {name: room["waiting"] for name, room in told["pools"].items()}
    assert waiting == {"ours": 2 + 1, "idle": 0, "theirs": 3}
    assert told["total"]["waiting"] == 2 + 1 + 3


async def test_the_metrics_have_the_line_for_a_pool_that_only_another_host_has() -> None:
    _, body = await ask(create_app(grid(), Access()), "/metrics")
    found = re.findall(
        r'^pwgrid_clients_waiting\{browser_type="(\w+)",pool="(\w+)"\} (\S+)', body.decode(), re.MULTILINE
    )
    assert found == [("chromium", "ours", "2.0"), ("chromium", "idle", "0.0"), ("firefox", "theirs", "3.0")]
