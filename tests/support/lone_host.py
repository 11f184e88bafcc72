"""What stands in for a proxy's knowledge of other hosts where there are none."""

from collections import Counter

from pwgrid.proxy.hosts.host_table import HostTable, OtherHost


class LoneHost:
    name = ""
    table = HostTable("")

    def counted(self) -> Counter[str]:
        return Counter()

    async def host_of(self, _worker_id: str) -> OtherHost | None:
        return None
