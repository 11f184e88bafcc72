"""Asks the other hosts that form one grid with the one that runs here: their proxies, as proxies ask each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from http.client import HTTPConnection, HTTPException
from typing import Any, Final

import orjson

from pwgrid.cli.ask_grid import redis_of
from pwgrid.common.errors import GridError, Refused
from pwgrid.proxy.policy.forward import PATH
from pwgrid.registry import blocking_reads
from pwgrid.registry.hosts import HostRecord
from pwgrid.runtime.find_grids import RunningGrid

ANSWER_S: Final = 5.0
"""How long another host may take for an answer."""


def other_hosts(grid: RunningGrid, own: str) -> Iterator[HostRecord]:
    """Yields the other hosts, also those that are silent: their sessions may live. `own` is this one's name; empty
    where it stands alone. Raises RegistryUnavailable."""
    if own:
        found = blocking_reads.hosts(*redis_of(grid))
        yield from (record for name, record in found.records.items() if name != own)


def ask_host(grid: RunningGrid, host: HostRecord, question: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what another host's proxy answers. Raises Refused with its sentence; GridError where it does not answer,
    and RegistryUnavailable."""
    forward_id = blocking_reads.leave_forward(*redis_of(grid), question)
    connection = HTTPConnection(*host.address, timeout=ANSWER_S)
    try:
        connection.request("POST", f"{PATH}{forward_id}")
        response = connection.getresponse()
        answer = orjson.loads(response.read())
        if response.status != 200:
            raise Refused(str(answer["error"]))
        if (refused := answer.get("refused")) is not None:
            raise Refused(str(refused))
    except (OSError, HTTPException, ValueError, KeyError, AttributeError) as error:
        raise GridError(f"host {host.name} does not answer: {error}") from None
    finally:
        connection.close()
    return dict(answer)


def ask_master_of(grid: RunningGrid, host: HostRecord, name: str, data: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what another host's master answers to a request. Raises as `ask_host` does."""
    return dict(ask_host(grid, host, {"master": {"name": name, "data": dict(data)}})["reply"])
