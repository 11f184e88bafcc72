"""Sends operators' requests to the master over its control socket. Keeps one connection; decides nothing."""

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
        self._sock: socket.socket | None = None
        self._under_way: asyncio.Task[dict[str, Any]] | None = None
        self._closes = False
        """Whether the connection ends with the question that is under way."""

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

    def close(self) -> None:
        """Ends the connection; first a request under way gets its answer, since it may be another caller's. The next
        request makes another connection. Idempotent."""
        self._closes = self._under_way is not None
        if not self._closes:
            self._drop()

    async def _exchange(self, name: str, data: dict[str, Any]) -> dict[str, Any]:
        loop = asyncio.get_running_loop()
        question = orjson.dumps({"t": "request", "name": name, "data": data})
        for is_new in (self._sock is None, True):  # the present connection may be to a former master
            try:
                sock = self._sock or await self._connect()
                await loop.sock_sendall(sock, question)
                packet = await loop.sock_recv(sock, _REPLY_BYTES)
            except BaseException as error:
                self._drop()
                if is_new or not isinstance(error, OSError):
                    raise
                continue
            if packet:
                answer: dict[str, Any] = orjson.loads(packet)
                return answer
            self._drop()
            if is_new:
                break
        raise ConnectionError("it has closed the connection")

    async def _connect(self) -> socket.socket:
        sock = self._sock = socket.socket(
            socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
        )
        await asyncio.get_running_loop().sock_connect(sock, str(self._path))
        return sock

    def _is_over(self, task: asyncio.Task[dict[str, Any]]) -> None:
        self._under_way = None
        if self._closes:
            self._closes = False
            self._drop()
        with contextlib.suppress(asyncio.CancelledError):
            task.exception()  # its caller may have timed out

    def _drop(self) -> None:
        if self._sock is not None:
            self._sock.close()
            self._sock = None
