"""`unshare --net python -m tests.support.client_elsewhere RELAY COUNT PATTERN` is a client in another network: COUNT
sessions whose pages reach servers of its loopback, by the pattern of expose_network. Nothing but the Unix socket RELAY
leads from there to the grid.

Says what the pages have read, as a line of JSON, and goes when its stdin ends.
"""

import asyncio
import fcntl
import json
import socket
import struct
import sys
from functools import partial

from playwright.async_api import async_playwright

_GET_FLAGS, _SET_FLAGS, _UP = 0x8913, 0x8914, 1
"""Of netdevice(7)."""


def _loopback_up() -> None:
    with socket.socket() as sock:
        name = struct.pack("16sH14x", b"lo", 0)
        _, flags = struct.unpack("16sH14x", fcntl.ioctl(sock, _GET_FLAGS, name))
        fcntl.ioctl(sock, _SET_FLAGS, struct.pack("16sH14x", b"lo", flags | _UP))


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    finally:  # a client that is killed with something unread resets its connection
        writer.close()


async def relay_to_unix(path: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Joins a connection to the Unix socket at `path`."""
    await _join(reader, writer, *await asyncio.open_unix_connection(path))


async def relay_to_tcp(port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Joins a connection to a port of this host's loopback."""
    await _join(reader, writer, *await asyncio.open_connection("127.0.0.1", port))


async def _join(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    other_reader: asyncio.StreamReader,
    other_writer: asyncio.StreamWriter,
) -> None:
    await asyncio.gather(_copy(reader, other_writer), _copy(other_reader, writer), return_exceptions=True)


async def _site(text: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    body = f"<title>{text}</title>".encode()
    head = f"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    writer.write(head.encode() + body)
    await writer.drain()
    writer.close()


async def _main(path: str, count: int, pattern: str) -> None:
    relay = await asyncio.start_server(partial(relay_to_unix, path), "127.0.0.1", 0)
    endpoint = f"ws://127.0.0.1:{relay.sockets[0].getsockname()[1]}/"

    async def session(number: int) -> list[str]:
        site = await asyncio.start_server(partial(_site, f"site {number}"), "127.0.0.1", 0)
        url = f"http://localhost:{site.sockets[0].getsockname()[1]}/"
        browser = await playwright.chromium.connect(endpoint, expose_network=pattern)
        page = await browser.new_page()
        await page.goto(url)
        answer = await page.context.request.get(url)
        return [await page.title(), await answer.text()]

    async with async_playwright() as playwright:
        said = json.dumps(await asyncio.gather(*(session(number) for number in range(count))))
        sys.stdout.write(f"{said}\n")
        sys.stdout.flush()
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    _loopback_up()
    asyncio.run(_main(sys.argv[1], int(sys.argv[2]), sys.argv[3]))
