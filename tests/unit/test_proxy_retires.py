"""When a proxy that another one replaces may go."""

import asyncio
import socket
from unittest import mock

import pytest
import uvicorn
from uvicorn.server import ServerState

from pwgrid.proxy.main import GridServer, Proxy, connections_end


async def test_a_connection_that_uvicorn_hears_of_a_turn_after_its_listener_was_closed_is_waited_for() -> None:
    state = ServerState()
    waiting = asyncio.create_task(connections_end(state))
    await asyncio.sleep(0)  # it has begun
    client = asyncio.Protocol()
    state.connections.add(client)  # type: ignore[arg-type]
    assert not await _is_over(waiting)
    state.connections.discard(client)  # type: ignore[arg-type]
    task = asyncio.create_task(asyncio.sleep(3600))
    state.tasks.add(task)
    assert not await _is_over(waiting)
    state.tasks.discard(task)
    task.cancel()
    await asyncio.wait_for(waiting, 20)


async def test_one_that_retires_before_it_listens_closes_what_it_has_opened_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another master has found it so. What it accepts until then it serves."""
    had_started: list[bool] = []
    accept_nobody = GridServer.accept_nobody

    def noting(server: GridServer) -> None:
        had_started.append(server.started)
        accept_nobody(server)

    monkeypatch.setattr(GridServer, "accept_nobody", noting)
    stop = asyncio.Event()
    server = GridServer(uvicorn.Config(mock.Mock(), interface="asgi3", lifespan="off", log_config=None), stop)
    proxy = mock.Mock(spec_set=["_server", "_is_retiring", "boot", "hosts", "feed", "settings", "_stop"])
    proxy._server, proxy._stop = server, stop
    proxy.settings.longest_wait_s.return_value = 60
    with socket.create_server(("127.0.0.1", 0)) as listener:
        proxy.boot.listeners = (listener,)
        retiring = asyncio.create_task(Proxy._retire(proxy))
        await asyncio.sleep(0)  # it has begun
        await asyncio.wait_for(server.serve(sockets=[listener]), 20)
        await retiring
    assert had_started == [True]


async def _is_over(waiting: "asyncio.Task[None]") -> bool:
    done, _ = await asyncio.wait([waiting], timeout=0.2)
    return bool(done)
