"""The network of a client (`exposeNetwork`) is that client's alone, also for what Playwright sends from the browser
server's own process."""

import contextlib
import time
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from pwgrid.common.launch_failure import BrowserLaunchError
from pwgrid.worker.holders import OwnBrowser
from tests.hostile import test_client_certificates
from tests.support.protocol_client import Refusal, protocol_client
from tests.support.stand_in_proxy import BOUND_S, Watched, browser_server


@contextlib.contextmanager
def own_browsers(watched: Watched, network: str = "") -> Iterator[None]:
    """Clients get browsers of their own for the length of the block."""
    watched.own = OwnBrowser(time.monotonic() + BOUND_S, {}, network)
    try:
        yield
    finally:
        watched.own = None


@pytest_asyncio.fixture(loop_scope="session")
async def watched() -> AsyncIterator[Watched]:
    async with browser_server() as watched:
        yield watched


async def test_no_other_client_gets_to_it(watched: Watched) -> None:
    before = test_client_certificates.listening(watched)
    with own_browsers(watched, network="*"):
        async with protocol_client(watched.endpoint) as owner:
            await owner.new_page()
            ((host, port),) = set(test_client_certificates.listening(watched)) - set(before)
            spelled = (f"socks5://{host}:{port}", f"SOCKS4://[::ffff:{host}]:{port}")
            with own_browsers(watched):
                async with protocol_client(watched.endpoint) as other:
                    for server in spelled:
                        with pytest.raises(Refusal, match="serves one session alone"):
                            await other.new_context(proxy={"server": server})
            for server in spelled:
                with pytest.raises(BrowserLaunchError, match="serves one session alone"):
                    await watched.server.acquire("launched", {"proxy": {"server": server}}, time.monotonic() + BOUND_S)
