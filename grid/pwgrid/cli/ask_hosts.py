"""Asks the other hosts that form one grid with the one that runs here: their proxies, as proxies ask each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any, Final

import orjson

from pwgrid.cli.ask_grid import ask, redis_of
from pwgrid.common.certificate import client_context
from pwgrid.common.errors import GridError, Refused, RegistryUnavailable
from pwgrid.proxy.policy.forward_message import PATH
from pwgrid.registry import blocking_reads
from pwgrid.registry.host_records import HostRecord
from pwgrid.runtime.find_grids import RunningGrid

ANSWER_S: Final = 5.0
"""How long another host may take for an answer."""


class HostSilent(GridError):
    """That host's proxy may have taken what it was asked, and has not answered: it may have done it, or do it yet."""


def other_hosts(grid: RunningGrid, own: str) -> Iterator[HostRecord]:
    """Yields the other hosts, also those that are silent: their sessions may live. `own` is this one's name; empty
    where it stands alone. Raises RegistryUnavailable."""
    if own:
        found = blocking_reads.hosts(*redis_of(grid))
        yield from (record for name, record in found.records.items() if name != own)


def ask_host(grid: RunningGrid, host: HostRecord, question: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what another host's proxy answers. Raises Refused with its sentence; GridError where it does not answer
    and will not do it, else HostSilent; RegistryUnavailable."""
    redis = redis_of(grid)
    forward_id = blocking_reads.leave_forward(*redis, question)
    connection = _connection(grid, host)
    try:
        connection.request("POST", f"{PATH}{forward_id}")
        response = connection.getresponse()
        answer = orjson.loads(response.read())
        if response.status != 200:
            raise Refused(str(answer["error"]))
        if (refused := answer.get("refused")) is not None:
            raise Refused(str(refused))
    except (OSError, HTTPException, ValueError, KeyError, AttributeError) as error:
        connection.close()
        if _is_taken_back(redis, forward_id):
            raise GridError(f"host {host.name} does not answer: {error}") from None
        raise HostSilent(
            f"host {host.name} does not answer, and may have been asked: look before you repeat it: {error}"
        ) from None
    finally:
        connection.close()
    return dict(answer)


def _is_taken_back(redis: tuple[str, str], forward_id: str) -> bool:
    try:
        return blocking_reads.take_back_forward(*redis, forward_id)
    except RegistryUnavailable:
        return False


def _connection(grid: RunningGrid, host: HostRecord) -> HTTPConnection:
    """Trusts the certificates that the grid here trusts."""
    if not host.is_encrypted:
        return HTTPConnection(*host.address, timeout=ANSWER_S)
    trusted = client_context(ask(grid, "tls_ca")["file"])
    return HTTPSConnection(*host.address, timeout=ANSWER_S, context=trusted)


def ask_master_of(grid: RunningGrid, host: HostRecord, name: str, data: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what another host's master answers to a request. Raises as `ask_host` does."""
    return dict(ask_host(grid, host, {"master": {"name": name, "data": dict(data)}})["reply"])
