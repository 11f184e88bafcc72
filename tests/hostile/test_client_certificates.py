"""The client certificate that one session has given to its context is shown for nobody else."""

import asyncio
import os
import shutil
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import psutil
import pytest
import pytest_asyncio
from structlog.testing import capture_logs

from tests.hostile.calls import browser_session, goto, title
from tests.support.grid import eventually_async
from tests.support.https_server import OWNER, client_certificate, https_server, packed_certificate
from tests.support.protocol_client import ProtocolClient, Refusal, protocol_client
from tests.support.stand_in_proxy import BOUND_S, Watched, browser_server

SHARED = 5
GREETING = b"\x05\x01\x00"
"""Of a SOCKS client that has no password."""
HAS_NO_CERTIFICATE: dict[str, Any] = {"ignoreHTTPSErrors": True}


@dataclass
class Owned:
    """A session whose context has a client certificate for the server at `url`."""

    watched: Watched
    owner: ProtocolClient
    page: str
    url: str
    address: tuple[str, int]
    """Where its browser gets it."""

    @property
    def proxy(self) -> str:
        return "socks5://{}:{}".format(*self.address)


def listening(watched: Watched) -> list[tuple[str, int]]:
    """The TCP ports of the browser server."""
    connections = psutil.Process(watched.server.pid).net_connections("tcp")
    return [tuple(each.laddr) for each in connections if each.status == psutil.CONN_LISTEN]


async def own(watched: Watched, client: ProtocolClient, url: str) -> Owned:
    before = listening(watched)
    context = await client.new_context(**HAS_NO_CERTIFICATE, **client_certificate(url))
    (address,) = set(listening(watched)) - set(before)
    return Owned(watched, client, await client.new_page(context), url, address)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def owned() -> AsyncIterator[Owned]:
    async with (
        https_server() as url,
        browser_server(max_concurrent_sessions=SHARED, client_guard="strict") as watched,
        protocol_client(watched.endpoint) as owner,
    ):
        yield await own(watched, owner, url)


async def shows(client: ProtocolClient, page: str, url: str) -> str:
    """Whose certificate the server at `url` is shown."""
    await goto(client, page, url)
    return await title(client, page)


async def greeted(host: str, port: int) -> bytes:
    """What a SOCKS proxy answers to us."""
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(GREETING)
        return await asyncio.wait_for(reader.read(), BOUND_S)
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


async def greeted_as(uid: int, address: tuple[str, int]) -> bytes:
    """The same for another user of the host."""
    script = (
        "import contextlib, socket, sys\n"
        "with socket.create_connection((sys.argv[1], int(sys.argv[2]))) as sock, contextlib.suppress(OSError):\n"
        f"    sock.sendall({GREETING!r})\n"
        "    sys.stdout.buffer.write(sock.recv(9))\n"
    )
    command = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "/usr/bin/python3", "-c", script]
    process = await asyncio.create_subprocess_exec(
        *command, address[0], str(address[1]), stdout=asyncio.subprocess.PIPE, cwd="/"
    )
    output, _ = await process.communicate()
    assert process.returncode == 0
    return output


async def test_the_owner_s_own_browser_shows_it(owned: Owned) -> None:
    assert await shows(owned.owner, owned.page, owned.url) == OWNER
    other = await owned.owner.new_page(await owned.owner.new_context(**HAS_NO_CERTIFICATE))
    assert await shows(owned.owner, other, owned.url) == "nobody"


async def test_a_packed_one_is_shown_too(owned: Owned) -> None:
    context = await owned.owner.new_context(**HAS_NO_CERTIFICATE, **packed_certificate(owned.url))
    page = await owned.owner.new_page(context)
    assert await shows(owned.owner, page, owned.url) == OWNER
    await owned.owner.send(context, "close")


async def test_no_other_process_gets_an_answer_and_the_log_says_so_once(owned: Owned) -> None:
    with capture_logs() as logs:
        for _ in range(3):
            assert await greeted(*owned.address) == b""
    refused = [each for each in logs if each["event"] == "certificate_connections_refused"]
    assert [(each["times"], each["uid"], each["log_level"]) for each in refused] == [(1, os.getuid(), "warning")]


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="only root can become another user")
async def test_no_other_user_of_the_host_gets_an_answer(owned: Owned) -> None:
    assert await greeted_as(65534, owned.address) == b""


async def test_a_connection_of_ipv6_to_the_same_address_gets_none_either(owned: Owned) -> None:
    host, port = owned.address
    assert await greeted(f"::ffff:{host}", port) == b""


async def test_another_browser_and_its_node_get_none(owned: Owned) -> None:
    async with browser_server() as watched, protocol_client(watched.endpoint) as client:
        context = await client.new_context(**HAS_NO_CERTIFICATE, proxy={"server": owned.proxy})
        with pytest.raises(Refusal, match="net::ERR"):
            await shows(client, await client.new_page(context), owned.url)
        fetching = client.objects[context][1]["requestContext"]["guid"]
        with pytest.raises(Refusal, match=r"ECONNRESET|Socket"):
            await client.send(fetching, "fetch", url=owned.url, timeout=BOUND_S * 1000)


@pytest.mark.parametrize(
    "spelled", ["{text}", "[::ffff:{text}]", "{number:#x}", "0{number:o}", "{number}", "%31{rest}"]
)
async def test_no_other_context_in_the_same_browser_has_it_as_its_proxy(owned: Owned, spelled: str) -> None:
    host, port = owned.address
    name = spelled.format(text=host, number=int.from_bytes(socket.inet_aton(host)), rest=host[1:])
    async with protocol_client(owned.watched.endpoint) as other:
        for scheme in ("socks5", "SOCKS", "socks4"):
            with pytest.raises(Refusal, match="serves one session alone"):
                await other.new_context(proxy={"server": f"{scheme}://{name}:{port}"})
        for method in ("newContext", "newContextForReuse"):
            proxied = {"proxy": {"server": owned.proxy}, **client_certificate(owned.url)}
            with pytest.raises(Refusal, match="serves one session alone"):
                await other.send(other.one("Browser"), method, **proxied)


async def test_a_proxy_is_one_address_and_not_a_list(owned: Owned) -> None:
    async with protocol_client(owned.watched.endpoint) as other:
        for server in ("http://a.example;socks=b.example:1", "socks5://a.example,b.example:1"):
            with pytest.raises(Refusal, match="takes a proxy of one address"):
                await other.new_context(proxy={"server": server})


async def test_what_speaks_no_socks_gets_none(owned: Owned) -> None:
    host, port = owned.address
    async with protocol_client(owned.watched.endpoint) as other:
        context = await other.new_context(**HAS_NO_CERTIFICATE, proxy={"server": f"http://{host}:{port}"})
        with pytest.raises(Refusal, match="net::ERR"):
            await shows(other, await other.new_page(context), owned.url)
        with pytest.raises(Refusal, match="net::ERR"):
            await goto(other, await other.new_page(), f"http://{host}:{port}/")
    assert await shows(owned.owner, owned.page, owned.url) == OWNER


@pytest.mark.parametrize("left", ["context", "connection"])
async def test_the_port_is_gone_with_its_context_and_with_its_session(owned: Owned, left: str) -> None:
    before = listening(owned.watched)
    async with protocol_client(owned.watched.endpoint) as client:
        gone = await own(owned.watched, client, owned.url)
        assert gone.address[0] not in ("127.0.0.1", owned.address[0])
        assert await shows(client, gone.page, gone.url) == OWNER
        if left == "context":
            await client.send(client.one("BrowserContext"), "close")
            assert listening(owned.watched) == before
        else:
            client.drop()
    await eventually_async(lambda: listening(owned.watched) == before, "it listens no more")
    with pytest.raises(ConnectionRefusedError):
        await greeted(*gone.address)


async def test_a_certificate_that_cannot_be_read_leaves_no_port(owned: Owned) -> None:
    before = listening(owned.watched)
    async with protocol_client(owned.watched.endpoint) as client:
        broken = {"clientCertificates": [{"origin": "https://localhost", "cert": "bm8=", "key": "bm8="}]}
        with pytest.raises(Refusal, match="Failed to load client certificate"):
            await client.new_context(**broken)
        with pytest.raises(Refusal, match="colorScheme"):
            await client.new_context(colorScheme="none", **client_certificate(owned.url))
    assert listening(owned.watched) == before


async def test_in_compatible_a_context_that_is_made_over_cdp_may_not_either() -> None:
    async with (
        browser_server(max_concurrent_sessions=SHARED) as watched,
        protocol_client(watched.endpoint) as owner,
        protocol_client(watched.endpoint) as other,
    ):
        owned = await own(watched, owner, "https://localhost:1")
        session = await browser_session(other)
        with pytest.raises(Refusal, match="its proxy serves one session alone"):
            await other.cdp(session, "Target.createBrowserContext", proxyServer=owned.proxy)
        await other.cdp(session, "Target.createBrowserContext", proxyServer="socks5://127.0.0.1:1")
