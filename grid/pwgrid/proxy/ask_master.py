"""Sends operators' requests to the master over its control socket, each over a connection of its own."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from pathlib import Path
from typing import Any, Final

import orjson

from pwgrid.common.errors import GridError, Refused

ANSWER_S: Final = 2.0
_REPLY_BYTES: Final = 1 << 20


class MasterGone(GridError):
    """The master does not answer, or there is none."""


class AskMaster:
    """One request at a time. A frozen master gets no second one before it has answered the first: its backlog must have
    room for its children."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._under_way: asyncio.Task[dict[str, Any]] | None = None

    async def ask(self, name: str, data: dict[str, Any] | None = None) -> dict[str, Any]:
        """Returns the master's answer. Raises Refused with its sentence, or MasterGone after ANSWER_S."""
        try:
            async with asyncio.timeout(ANSWER_S):
                while self._under_way is not None:  # another caller's, or one that timed out
                    await asyncio.wait([self._under_way])
                task = self._under_way = asyncio.create_task(self._exchange(name, data or {}))
                task.add_done_callback(self._is_over)
                answer = await asyncio.shield(task)
        except (OSError, ValueError) as error:  # TimeoutError is one
            raise MasterGone(f"the master does not answer: {error or 'it says nothing'}") from None
        if answer.get("t") != "reply":
            raise Refused(str(answer.get("error") or "the master gave no answer"))
        found: dict[str, Any] = answer["data"]
        return found

    async def _exchange(self, name: str, data: dict[str, Any]) -> dict[str, Any]:
        loop = asyncio.get_running_loop()
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC) as sock:
            await loop.sock_connect(sock, str(self._path))
            await loop.sock_sendall(sock, orjson.dumps({"t": "request", "name": name, "data": data}))
            packet = await loop.sock_recv(sock, _REPLY_BYTES)
        if not packet:
            raise ConnectionError("it has closed the connection")
        answer: dict[str, Any] = orjson.loads(packet)
        return answer

    def _is_over(self, task: asyncio.Task[dict[str, Any]]) -> None:
        self._under_way = None
        with contextlib.suppress(asyncio.CancelledError):
            task.exception()  # its caller may have timed out
