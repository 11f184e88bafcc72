"""The parts of a proxy that its routes use."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pwgrid.proxy.ask_master import AskMaster
from pwgrid.proxy.connect.gateway import Gateway
from pwgrid.proxy.dashboard.feed import Feed
from pwgrid.proxy.hosts.host_heartbeat import HostKeeper
from pwgrid.proxy.protocol_description import ProtocolDescription
from pwgrid.proxy.readiness_check import Readiness
from pwgrid.proxy.roster import Roster
from pwgrid.proxy.select.queue import Queue
from pwgrid.proxy.session_files import SessionFiles
from pwgrid.registry.registry import Registry
from pwgrid.settings.model import Settings


@dataclass(frozen=True, slots=True)
class Services:
    """`runtime` is the grid's runtime directory."""

    settings: Settings
    runtime: Path
    registry: Registry
    roster: Roster
    gateway: Gateway
    queue: Queue
    feed: Feed
    readiness: Readiness
    master: AskMaster
    files: SessionFiles
    protocol: ProtocolDescription
    hosts: HostKeeper
