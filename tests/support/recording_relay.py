"""Stands between a Playwright client and a browser server, and notes which messages the client sends."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed


@dataclass
class Relay:
    """Where clients connect, and what they have sent: `Type.method`; `refusals` are answers of the guard."""

    endpoint: str = ""
    sent: set[str] = field(default_factory=set)
    refusals: list[str] = field(default_factory=list)


@contextlib.asynccontextmanager
async def recording_relay(upstream: str) -> AsyncIterator[Relay]:
    """A relay to the endpoint `upstream`."""
    relay = Relay()

    async def handle(client: ServerConnection) -> None:
        types = {"": "Root"}
        assert client.request is not None
        agent = client.request.headers["User-Agent"]
        async with connect(upstream, user_agent_header=agent, max_size=None, compression=None) as server:

            async def answers() -> None:
                async for text in server:
                    message = json.loads(text)
                    if message.get("method") == "__create__":
                        types[message["params"]["guid"]] = message["params"]["type"]
                    elif "is refused by the grid" in str(message.get("error")):
                        relay.refusals.append(message["error"]["error"]["message"])
                    await client.send(text)
                await client.close()

            answering = asyncio.create_task(answers())
            with contextlib.suppress(ConnectionClosed):
                async for text in client:
                    message = json.loads(text)
                    relay.sent.add(f"{types.get(message['guid'], '?')}.{message['method']}")
                    await server.send(text)
            await server.close()
            await asyncio.wait([answering])

    async with serve(handle, "127.0.0.1", 0, max_size=None, compression=None, ping_interval=None) as listening:
        relay.endpoint = f"ws://127.0.0.1:{next(iter(listening.sockets)).getsockname()[1]}/"
        yield relay
