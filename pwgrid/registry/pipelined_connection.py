"""Sends pipelines over one connection of redis-py, and reads it even between them. Knows no scripts."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NoReturn

import hiredis
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import ResponseError

Argument = str | bytes | int | float
Command = tuple[Argument, ...]
Reply = Any
"""What hiredis makes of RESP3: text, a number, None, a list, a dictionary; a ResponseError for a refusal."""


def packed(commands: Iterable[Command]) -> list[bytes]:
    """Returns the commands in wire format. Packs with hiredis, as redis-py's blocking connections do; its asyncio ones
    pack in Python, which takes 4 times as long."""
    return [hiredis.pack_command(command) for command in commands]  # type: ignore[arg-type] # its hint is too narrow


@dataclass(slots=True, eq=False)
class Pipeline:
    """At least one command in wire format, and the replies. `deadline` is in seconds of the loop's clock."""

    commands: list[bytes]
    deadline: float
    all_replies: asyncio.Future[list[Reply]]
    replies: list[Reply] = field(default_factory=list)

    def take(self, reply: Reply) -> bool:
        """Adds a reply. Returns whether it was the last one."""
        self.replies.append(reply)
        is_complete = len(self.replies) == len(self.commands)
        if is_complete and not self.all_replies.done():  # else its caller was cancelled
            self.all_replies.set_result(self.replies)
        return is_complete


class PipelinedConnection:
    """Needs an open `connection`. The caller runs `read`, which raises when the connection is lost."""

    def __init__(self, connection: AbstractConnection, timeout_s: float) -> None:
        self._connection = connection
        self._timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        self._under_way: deque[Pipeline] = deque()
        self._all_answered = self._loop.create_future()
        self._deadline = math.inf

    async def exchange(self, pipelines: list[Pipeline]) -> None:
        """Sends all in one write; returns when each has its replies. Their deadlines are at most `timeout_s` away."""
        self._under_way.extend(pipelines)
        self._all_answered = self._loop.create_future()
        self._deadline = pipelines[0].deadline
        await self._connection.send_packed_command(b"".join([text for each in pipelines for text in each.commands]))
        await self._all_answered
        self._deadline = math.inf

    async def read(self) -> NoReturn:
        """Reads even while no command is under way, so that a loss is noticed at once. Raises TimeoutError for a late
        reply, which would otherwise count as the reply to a later command.

        One timer serves all pipelines within `timeout_s`; a timer for each would cost as much as reading its replies.
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
            if not self._under_way:
                raise ConnectionError("it sent a reply that nobody asked for")
            if self._under_way[0].take(reply):
                self._under_way.popleft()
                if not self._under_way:
                    self._all_answered.set_result(None)
