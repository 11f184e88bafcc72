"""A client that speaks Playwright's protocol and sends whatever it is told to, as no official client would."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

BOUND_S = 30.0
"""Bounds a failure; nothing is meant to take this long."""


class Refusal(Exception):
    """The error that a message was answered with."""


class ProtocolClient:
    """One connection. `objects` are those that the browser server has made for it: (type, initializer) by guid."""

    def __init__(self, websocket: ClientConnection) -> None:
        self._websocket = websocket
        self._id = 0
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self.objects: dict[str, tuple[str, dict[str, Any]]] = {}
        self.events: list[dict[str, Any]] = []
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Done when the connection has ended: the reason of the close frame."""
        self._changed = asyncio.Condition()

    async def receive(self) -> None:
        """Takes in what comes, until the connection ends."""
        try:
            async for text in self._websocket:
                self._take(json.loads(text))
                async with self._changed:
                    self._changed.notify_all()
        except ConnectionClosed:
            pass
        self.ended.set_result(self._websocket.close_reason or "")
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(Refusal(f"connection closed: {self._websocket.close_reason}"))

    def _take(self, message: dict[str, Any]) -> None:
        if "id" in message:
            self._answers.pop(message["id"]).set_result(message)
        elif message["method"] == "__create__":
            made = message["params"]
            self.objects[made["guid"]] = (made["type"], made["initializer"])
        elif message["method"] == "__dispose__":
            self.objects.pop(message["guid"], None)
        else:
            self.events.append(message)

    async def post(self, guid: str, method: str, /, **params: Any) -> asyncio.Future[dict[str, Any]]:
        """Sends a call; returns its answer to come."""
        self._id += 1
        self._answers[self._id] = answer = asyncio.get_running_loop().create_future()
        answer.add_done_callback(lambda done: done.cancelled() or done.exception())  # nobody has to wait for it
        await self._websocket.send(
            json.dumps({"id": self._id, "guid": guid, "method": method, "params": params, "metadata": {}})
        )
        return answer

    def stop_reading(self) -> None:
        """Reads nothing more of what comes."""
        self._websocket.transport.pause_reading()

    def drop(self) -> None:
        """Ends the connection without a word."""
        self._websocket.transport.abort()

    async def send(self, guid: str, method: str, /, **params: Any) -> dict[str, Any]:
        """The result of a call. Raises Refusal with the error that came instead."""
        answer = await self.post(guid, method, **params)
        async with asyncio.timeout(BOUND_S):
            message = await answer
        if "error" in message:
            raise Refusal(message["error"]["error"]["message"])
        result: dict[str, Any] = message.get("result", {})
        return result

    def one(self, type_name: str) -> str:
        """The newest object of a type."""
        return [guid for guid, (each, _) in self.objects.items() if each == type_name][-1]

    async def event(self, method: str) -> dict[str, Any]:
        """The parameters of the first event of this name, once there is one."""
        async with asyncio.timeout(BOUND_S), self._changed:
            await self._changed.wait_for(lambda: any(each["method"] == method for each in self.events))
        params: dict[str, Any] = next(each["params"] for each in self.events if each["method"] == method)
        return params

    async def initialize(self) -> str:
        """What every client says first; returns the browser's guid."""
        await self.send("", "initialize", sdkLanguage="javascript")
        return self.one("Browser")

    async def new_context(self, **options: Any) -> str:
        """A context of its own."""
        made = await self.send(self.one("Browser"), "newContext", **options)
        return str(made["context"]["guid"])

    async def new_page(self, context: str | None = None) -> str:
        """A page, in a context of its own where none is given."""
        made = await self.send(context or await self.new_context(), "newPage")
        return str(made["page"]["guid"])

    def frame(self, page: str) -> str:
        """The main frame of a page."""
        return str(self.objects[page][1]["mainFrame"]["guid"])

    async def cdp(self, session: str, method: str, /, **params: Any) -> dict[str, Any]:
        """A command over a CDP session."""
        result: dict[str, Any] = (await self.send(session, "send", method=method, params=params)).get("result", {})
        return result


@contextlib.asynccontextmanager
async def protocol_client(endpoint: str, *, initialize: bool = True) -> AsyncIterator[ProtocolClient]:
    """A connected client, which has said what every client says first."""
    async with connect(endpoint, max_size=None, compression=None, ping_interval=None) as websocket:
        client = ProtocolClient(websocket)
        receiving = asyncio.create_task(client.receive())
        try:
            if initialize:
                await client.initialize()
            yield client
        finally:
            receiving.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await receiving


__all__ = ["ProtocolClient", "Refusal", "protocol_client"]
