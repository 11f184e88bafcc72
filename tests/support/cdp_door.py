"""Stands in for the proxy and the worker where a client speaks CDP: hands its socket to a browser server, and hears
what that says of the session."""

import asyncio
import contextlib
import json
import re
import socket
import time
from collections.abc import AsyncIterator
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from pwgrid.settings.pools import Isolation
from pwgrid.worker.holders import ProfileCopy
from tests.support.stand_in_proxy import BOUND_S, Watched, browser_server

Message = dict[str, Any]


class CdpDoor:
    """A TCP endpoint. `/cdp` is a new session, kept for `?keep=` seconds; `/devtools/browser/<id>` one more connection
    of that session."""

    def __init__(self, watched: Watched) -> None:
        self.watched = watched
        self.server = watched.server
        self.directory = watched.directory
        self.url = ""
        self.latest = ""
        """The id of the last new session."""
        self.profile: ProfileCopy | None = None
        """What the browsers of new sessions start with."""
        self.said: asyncio.Queue[Message] = asyncio.Queue()
        """`kept` and `resumed`, in their order."""
        self.live: asyncio.Queue[Message] = asyncio.Queue()
        """What a worker that takes over hears."""
        link = self.server._link
        hear = link._on_message

        def on_message(message: Message) -> None:
            if message.get("say") in ("kept", "resumed"):
                self.said.put_nowait(message)
            if message.get("say") == "live":
                self.live.put_nowait(message)
            hear(message)

        link._on_message = on_message

    async def next_said(self) -> Message:
        async with asyncio.timeout(BOUND_S):
            return await self.said.get()

    async def sync(self) -> Message:
        self.server._link.send({"do": "sync"})
        async with asyncio.timeout(BOUND_S):
            return await self.live.get()

    def path(self, session_id: str) -> str:
        return f"{self.url}/devtools/browser/{session_id}"

    async def take(self, client: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        head = b""
        while b"\r\n\r\n" not in head:
            head += await loop.sock_recv(client, 65536)
        lines, _, early = head.partition(b"\r\n\r\n")
        request, *pairs = lines.decode("latin-1").split("\r\n")
        headers = {name.lower(): value for name, value in (each.split(": ", 1) for each in pairs)}
        path = request.split(" ")[1]
        joined = re.search(r"/devtools/browser/(\w+)", path)
        keep = re.search(r"keep=([\d.]+)", path)
        if not joined:
            self.watched.handed_over += 1
            self.latest = self.watched.latest
            await self.server.acquire(self.latest, {}, time.monotonic() + BOUND_S, profile=self.profile)
        offer = {
            "session": joined[1] if joined else self.latest,
            "own": True,
            "protocol": "cdp",
            "keepS": float(keep[1]) if keep else 0,
            "joins": bool(joined),
            "deadline": time.monotonic() + BOUND_S,
            "headers": headers,
            "early": early.decode("latin-1"),
        }
        await self.server._link.send_handle(offer, client)
        client.close()

    async def serve(self, listener: socket.socket) -> None:
        async with asyncio.TaskGroup() as tasks:
            while True:
                client, _ = await asyncio.get_running_loop().sock_accept(listener)
                tasks.create_task(self.take(client))


@contextlib.asynccontextmanager
async def cdp_door(**changes: Any) -> AsyncIterator[CdpDoor]:
    """A browser server behind a door for CDP clients. Afterwards nothing of it may be left."""
    async with browser_server(**changes) as watched, cdp_door_of(watched) as door:
        yield door


@contextlib.asynccontextmanager
async def cdp_door_without_spares(**changes: Any) -> AsyncIterator[CdpDoor]:
    """The same with no browsers but those of sessions: none is shared, and none is started before a session asks."""
    async with cdp_door(isolation=Isolation.BROWSER, warm_browsers=0, **changes) as door:
        door.server.hold_warm(True)
        yield door


@contextlib.asynccontextmanager
async def cdp_door_of(watched: Watched) -> AsyncIterator[CdpDoor]:
    """A door for CDP clients to this browser server."""
    door = CdpDoor(watched)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        door.url = f"ws://127.0.0.1:{listener.getsockname()[1]}"
        task = asyncio.create_task(door.serve(listener))
        try:
            yield door
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


class CdpError(Exception):
    """The error that a command was answered with."""


class CdpClient:
    """A raw client: one WebSocket."""

    def __init__(self, websocket: ClientConnection) -> None:
        self.websocket = websocket
        self._id = 0
        self._answers: dict[int, asyncio.Future[Message]] = {}
        self.events: asyncio.Queue[Message] = asyncio.Queue()
        self.ended: asyncio.Future[tuple[int | None, str]] = asyncio.get_running_loop().create_future()
        """Done when the connection has ended: code and reason of the close frame."""

    async def receive(self) -> None:
        with contextlib.suppress(ConnectionClosed):
            async for text in self.websocket:
                message = json.loads(text)
                if "id" in message:
                    answer = self._answers.pop(message["id"])
                    if not answer.done():  # who asked has been cancelled
                        answer.set_result(message)
                else:
                    self.events.put_nowait(message)
        self.ended.set_result((self.websocket.close_code, self.websocket.close_reason or ""))
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(CdpError(f"closed: {self.websocket.close_reason}"))

    async def post(self, method: str, session: str = "", /, **params: Any) -> asyncio.Future[Message]:
        """Sends a command; returns its answer to come."""
        self._id += 1
        self._answers[self._id] = answer = asyncio.get_running_loop().create_future()
        answer.add_done_callback(lambda done: done.cancelled() or done.exception())  # nobody has to wait for it
        more = {"sessionId": session} if session else {}
        await self.websocket.send(json.dumps({"id": self._id, "method": method, "params": params, **more}))
        return answer

    async def send(self, method: str, session: str = "", /, **params: Any) -> Message:
        """The result of a command. Raises CdpError with the text of an error."""
        answer = await self.post(method, session, **params)
        async with asyncio.timeout(BOUND_S):
            message = await answer
        assert message.get("sessionId", "") == session
        if "error" in message:
            raise CdpError(message["error"]["message"])
        result: Message = message["result"]
        return result

    async def pages(self) -> list[Message]:
        """What the browser has, the newest first."""
        return [each for each in (await self.send("Target.getTargets"))["targetInfos"] if each["type"] == "page"]

    async def attach(self, target_id: str) -> str:
        session: str = (await self.send("Target.attachToTarget", targetId=target_id, flatten=True))["sessionId"]
        return session

    async def page(self) -> str:
        """A session with the newest page."""
        return await self.attach((await self.pages())[0]["targetId"])

    async def evaluate(self, session: str, expression: str) -> Any:
        done = await self.send(
            "Runtime.evaluate", session, expression=expression, awaitPromise=True, returnByValue=True
        )
        return done["result"].get("value")

    async def event(self, method: str) -> Message:
        """The next event of this name; those before it are dropped."""
        async with asyncio.timeout(BOUND_S):
            while (event := await self.events.get())["method"] != method:
                pass
        return event


@contextlib.asynccontextmanager
async def cdp_client(url: str) -> AsyncIterator[CdpClient]:
    async with connect(url, max_size=None, compression=None, ping_interval=None) as websocket:
        client = CdpClient(websocket)
        receiving = asyncio.create_task(client.receive())
        try:
            yield client
        finally:
            await websocket.close()
            await receiving
