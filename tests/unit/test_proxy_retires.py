"""When a proxy that another one replaces may go."""

import asyncio

from uvicorn.server import ServerState

from pwgrid.proxy.main import connections_end


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


async def _is_over(waiting: "asyncio.Task[None]") -> bool:
    done, _ = await asyncio.wait([waiting], timeout=0.2)
    return bool(done)
