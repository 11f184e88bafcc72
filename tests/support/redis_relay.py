"""Stands between a client and a real Redis: counts what is written, keeps it back, breaks it, speaks TLS."""

import asyncio
import ssl
from pathlib import Path


class RedisRelay:
    """Relays each connection, as long as nothing of what follows is asked for."""

    def __init__(self, target: Path) -> None:
        self._target = target
        self._server: asyncio.Server | None = None
        self._pumps: set[asyncio.Task[None]] = set()
        self._clients: set[asyncio.StreamWriter] = set()
        self.port = 0
        self.written: list[bytes] = []
        """What clients wrote, write by write as far as TCP shows it."""
        self.connects = 0
        self.break_at = b"\0never\0"
        """A client that writes this is cut off."""
        self.refuse: dict[bytes, bytes] = {}
        """A client that writes the first gets the second as the answer, and Redis never hears of it."""
        self.open = asyncio.Event()
        """While it is clear, replies are kept back."""
        self.open.set()

    async def start(self, tls: ssl.SSLContext | None = None) -> None:
        """Listens on a port of its own."""
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0, ssl=tls)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Ends all connections."""
        assert self._server is not None
        self._server.close()
        for pump in self._pumps:
            pump.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)
        await self._server.wait_closed()

    def inject(self, reply: bytes) -> None:
        """Sends something that nobody asked for."""
        for client in self._clients:
            client.write(reply)

    def drop(self) -> None:
        """Ends the connections that there are."""
        for client in self._clients:
            client.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connects += 1
        redis_reader, redis_writer = await asyncio.open_unix_connection(self._target)
        there = asyncio.create_task(self._requests(reader, redis_writer, writer))
        back = asyncio.create_task(self._replies(redis_reader, writer))
        self._pumps |= {there, back}
        self._clients.add(writer)
        await asyncio.wait((there, back), return_when=asyncio.FIRST_COMPLETED)
        self._clients.discard(writer)
        for pump in (there, back):
            pump.cancel()
        await asyncio.gather(there, back, return_exceptions=True)
        self._pumps -= {there, back}
        for each in (writer, redis_writer):
            each.close()

    async def _requests(
        self, reader: asyncio.StreamReader, redis: asyncio.StreamWriter, client: asyncio.StreamWriter
    ) -> None:
        while data := await reader.read(1 << 20):
            self.written.append(data)
            if self.break_at in data:
                return
            refusal = next((refusal for part, refusal in self.refuse.items() if part in data), None)
            (redis if refusal is None else client).write(data if refusal is None else refusal)

    async def _replies(self, redis: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        while data := await redis.read(1 << 20):
            await self.open.wait()
            client.write(data)
