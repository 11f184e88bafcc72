"""What stands in for a proxy's knowledge of other hosts where there are none."""

from collections import Counter

from pwgrid.proxy.hosts.host_table import HostState, HostTable, OtherHost
from pwgrid.proxy.roster import Roster
from pwgrid.registry.host_records import HostRecord


class LoneHost:
    name = ""
    table = HostTable("")

    def __init__(self, roster: Roster) -> None:
        self.roster = roster

    def rosters(self) -> dict[str, Roster]:
        return {"": self.roster}

    def all_hosts(self) -> list[tuple[HostRecord, HostState]]:
        return []

    def counted(self) -> Counter[str]:
        return Counter()

    async def host_of(self, _worker_id: str) -> OtherHost | None:
        return None
