"""A connection to a host of several addresses, over real sockets."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from pwgrid.common.connect_tcp import MOST_SHARE_S, connect_tcp, share_s

BOUND_S = 20.0


@pytest.fixture
def held() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def black_hole(held: ExitStack) -> tuple[str, int]:
    """A port that answers no SYN: its queue is full."""
    full = held.enter_context(socket.socket())
    full.bind(("127.0.0.1", 0))
    full.listen(0)
    for _ in range(4):
        waiting = held.enter_context(socket.socket())
        waiting.setblocking(False)
        waiting.connect_ex(full.getsockname())
    address: tuple[str, int] = full.getsockname()
    return address


async def connected(
    monkeypatch: pytest.MonkeyPatch, *addresses: tuple[str, int], limit_s: float = BOUND_S
) -> tuple[str, int]:
    """Where the connection goes to a host with these addresses."""

    async def found(*_: object, **__: object) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", each) for each in addresses]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", found)
    with await connect_tcp("there", 1, limit_s) as sock:
        address: tuple[str, int] = sock.getpeername()
        return address


async def test_an_address_that_does_not_answer_keeps_nobody_from_the_next_one(
    monkeypatch: pytest.MonkeyPatch, held: ExitStack, black_hole: tuple[str, int]
) -> None:
    host = held.enter_context(socket.create_server(("127.0.0.1", 0)))
    async with asyncio.timeout(BOUND_S / 2):
        assert await connected(monkeypatch, black_hole, black_hole, host.getsockname()) == host.getsockname()


async def test_where_none_answers_it_fails_in_time(
    monkeypatch: pytest.MonkeyPatch, black_hole: tuple[str, int]
) -> None:
    with pytest.raises(TimeoutError):
        await connected(monkeypatch, *[black_hole] * 5, limit_s=0.1)


async def test_what_is_wrong_with_the_last_address_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        closed = listener.getsockname()
    with pytest.raises(ConnectionRefusedError):
        await connected(monkeypatch, closed)
    with pytest.raises(OSError, match="its name has no address"):
        await connected(monkeypatch)


def test_many_addresses_share_what_is_left() -> None:
    assert share_s(1.0, 2) == MOST_SHARE_S
    assert share_s(1.0, 10) == 0.1
