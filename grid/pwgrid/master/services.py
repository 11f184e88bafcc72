"""The processes that the master runs beside the workers."""

from __future__ import annotations

from dataclasses import dataclass

from pwgrid.master.embedded_redis import RedisChild
from pwgrid.master.forwarder import ForwarderChild
from pwgrid.master.proxies import Proxies
from pwgrid.master.tls import TlsProcesses


@dataclass(frozen=True, slots=True)
class Services:
    """`redis` is None for an external Redis."""

    proxies: Proxies
    forwarder: ForwarderChild
    tls: TlsProcesses
    redis: RedisChild | None
