"""What a client makes Node do is bounded: a heavy call has its answer, or ends its own session; others are served."""

import os
import signal
from collections.abc import AsyncIterator

import psutil
import pytest
import pytest_asyncio

from pwgrid.common.reasons import EndReason, Reason
from pwgrid.worker.holders import End
from tests.hostile import messages
from tests.hostile.calls import NOTHING, evaluate
from tests.hostile.heavy_calls import HEAVY, MANY_VALUES, At, Heavy, site
from tests.hostile.node_work import BY
from tests.hostile.test_messages import calls
from tests.support.grid import eventually_async
from tests.support.protocol_client import ProtocolClient, protocol_client
from tests.support.stand_in_proxy import BOUND_S, Watched, browser_server

MIB = 1024 * 1024
BUFFERED_MIB = 8
SECOND_SESSION = f"{2:016x}"
"""As the front door counts them."""

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def watched() -> AsyncIterator[Watched]:
    async with browser_server(session_max_buffered_mib=BUFFERED_MIB) as watched:
        yield watched


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def neighbour(watched: Watched) -> AsyncIterator[ProtocolClient]:
    """Has a page in the same browser, all the time."""
    async with protocol_client(watched.endpoint) as client:
        await client.new_page()
        yield client


@pytest_asyncio.fixture(scope="module", loop_scope="session", name="site")
async def site_of_bodies() -> AsyncIterator[str]:
    async with site() as address:
        yield address


async def test_the_table_says_of_every_message_what_bounds_it() -> None:
    tried = {call for heavy in HEAVY for call in heavy.tries.split()}
    others = {f"{kind}.{method}" for table in BY.values() for kind, method in calls(table)}
    assert tried | others == {f"{kind}.{method}" for kind, method in calls(messages.ALLOWED)}
    assert not tried & others


@pytest.mark.parametrize("heavy", HEAVY, ids=lambda each: each.name)
async def test_a_heavy_call_is_its_client_s_own_matter(
    heavy: Heavy, watched: Watched, neighbour: ProtocolClient, site: str
) -> None:
    said = await heavy.once(watched.endpoint, site)
    assert heavy.answer in said if heavy.answer else not said, said
    await neighbour.send(neighbour.frame(neighbour.one("Page")), "title")
    assert not watched.gone.done()


LOGS_FOR_EVER = """(async () => {
    const text = 'x'.repeat(1024 * 1024);
    for (let n = 0; ; n++) {
        console.log(n + text);
        if (n % 8 == 0)
            await new Promise(resolve => setTimeout(resolve));
    }
})()"""


async def test_a_client_that_does_not_read_ends_before_node_keeps_much_for_it(
    watched: Watched, neighbour: ProtocolClient
) -> None:
    node = psutil.Process(watched.server.pid)
    while not watched.closed.empty():
        await watched.next_closed()
    before = node.memory_info().rss
    async with protocol_client(watched.endpoint) as client:
        page = await client.new_page()
        await client.send(page, "updateSubscription", event="console", enabled=True)
        client.stop_reading()
        await client.post(
            client.frame(page), "evaluateExpression", expression=LOGS_FOR_EVER, isFunction=False, arg=NOTHING
        )
        closed = await watched.next_closed()
        client.drop()
    assert closed.end == End("grid", Reason(EndReason.CLIENT_DOES_NOT_READ))
    assert node.memory_info().rss - before < 512 * MIB  # without a limit 4 GiB in half a minute
    await neighbour.send(neighbour.frame(neighbour.one("Page")), "title")


async def test_an_answer_larger_than_the_limit_reaches_a_client_that_reads(watched: Watched) -> None:
    async with protocol_client(watched.endpoint) as client:
        page = await client.new_page()
        assert len((await evaluate(client, page, f"'x'.repeat({10 * MIB})"))["s"]) == 10 * MIB


async def test_what_clients_made_node_keep_is_given_back(watched: Watched, site: str) -> None:
    node = psutil.Process(watched.server.pid)
    async with protocol_client(watched.endpoint) as client:
        at = At(client, context := await client.new_context(), await client.new_page(context), site)
        for _ in range(2):
            await at.send(at.requests, "fetch", url=site + "/two-thirds", timeout=BOUND_S * 1000)
        most = node.memory_info().rss
    await eventually_async(lambda: node.memory_info().rss < most - 150 * MIB, "the memory is given back")


async def test_who_keeps_node_busy_is_known_by_name() -> None:
    """Those whose Node hangs are told by this whose work it was."""
    async with browser_server() as watched, protocol_client(watched.endpoint) as neighbour:
        await neighbour.new_page()
        async with protocol_client(watched.endpoint) as client:
            page = await client.new_page()
            call = {"expression": "x => 1", "isFunction": True, "arg": MANY_VALUES}
            for _ in range(10):
                await client.post(client.frame(page), "evaluateExpression", **call)
            await eventually_async(lambda: watched.server.session_in_work() == SECOND_SESSION, "the session is named")
            os.kill(watched.server.pid, signal.SIGSTOP)
            await eventually_async(lambda: watched.server.session_in_work() is None, "who is stopped works for nobody")
            os.kill(watched.server.pid, signal.SIGKILL)
            await watched.why_gone()
