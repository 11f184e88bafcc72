"""One connection of redis-py that is read all the time, and carries one pipeline after the other. Knows no scripts."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable
from typing import Any, Final, NoReturn

from redis.asyncio.connection import AbstractConnection
from redis.connection import HiredisRespSerializer
from redis.exceptions import ResponseError

Argument = str | bytes | int | float
Command = tuple[Argument, ...]
Reply = Any
"""What hiredis makes of RESP3: text, a number, None, a list, a dictionary; a ResponseError for a refusal."""

_SERIALIZER: Final = HiredisRespSerializer()
"""redis-py uses it in its blocking client only; its asyncio connections pack in Python, which takes 4 times as long."""


def packed(commands: Iterable[Command]) -> list[bytes]:
    """The commands as they go over the wire."""
    return [b"".join(_SERIALIZER.pack(*command)) for command in commands]  # type: ignore[arg-type] # its hint is wrong


class PipelinedConnection:
    """`connection` is connected. Somebody has to run `read`, which ends with an error when the connection is lost."""

    def __init__(self, connection: AbstractConnection, timeout_s: float) -> None:
        self._connection = connection
        self._timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        self._replies: list[Reply] = []
        self._missing = 0
        self._complete = self._loop.create_future()
        self._deadline = math.inf

    async def exchange(self, commands: list[bytes], deadline: float) -> list[Reply]:
        """One pipeline. `deadline` is at most `timeout_s` away, in seconds of the loop's clock."""
        if not commands:
            return []
        self._replies, self._missing, self._complete = [], len(commands), self._loop.create_future()
        self._deadline = deadline
        await self._connection.send_packed_command(b"".join(commands))
        await self._complete
        self._deadline = math.inf
        return self._replies

    async def read(self) -> NoReturn:
        """Reads also while nothing is asked, so that a loss is noticed at once. Raises TimeoutError for a late reply:
        it would be taken for that of a later request.

        One timer serves all pipelines of a `timeout_s`; one for each would cost as much as their reading.
        """
        while True:
            try:
                async with asyncio.timeout_at(min(self._deadline, self._loop.time() + self._timeout_s)):
                    await self._take_replies()
            except TimeoutError:
                if self._deadline <= self._loop.time():
                    raise TimeoutError(f"no reply within {self._timeout_s:g} s") from None

    async def _take_replies(self) -> NoReturn:
        while True:
            try:
                reply = await self._connection.read_response(timeout=math.inf, disconnect_on_error=False)
            except ResponseError as error:
                reply = error
            if not self._missing:
                raise ConnectionError("it sent a reply that nobody asked for")
            self._replies.append(reply)
            self._missing -= 1
            if not self._missing:
                self._complete.set_result(None)
