"""Bounds the size and time of requests with a body. Reads no field."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

from fastapi.routing import APIRoute
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Message

from pwgrid.proxy.policy.refusal import Refusal
from pwgrid.proxy.select.queue import ClientGone

MAX_BODY_BYTES: Final = 16 * 1024
BODY_S: Final = 10.0
"""How long a whole body may take to arrive."""


class BoundedBody(APIRoute):
    """Routes whose requests have a body of at most MAX_BODY_BYTES, which arrives within BODY_S. Each route with a body
    is one: FastAPI reads the body before it checks who asks. A refusal before the body has come would end in a
    connection that is closed with unread bytes, and not every client's system keeps an answer beyond such a reset."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()

        async def answer(request: Request) -> Response:
            body, deadline = b"", asyncio.get_running_loop().time() + BODY_S
            try:
                async with asyncio.timeout_at(deadline):
                    async for part in request.stream():
                        body += part
                        if len(body) > MAX_BODY_BYTES:
                            raise Refusal(413, f"the body is longer than {MAX_BODY_BYTES} bytes")
            except ClientDisconnect:
                raise ClientGone from None
            except TimeoutError:
                raise Refusal(408, f"the body did not arrive within {BODY_S:g} s") from None
            is_read = False

            async def receive() -> Message:
                nonlocal is_read
                if is_read:
                    return await request.receive()  # http.disconnect
                is_read = True
                return {"type": "http.request", "body": body, "more_body": False}

            return await handler(Request(request.scope, receive))

        return answer
