"""Bounds the body of a request: its length, and how long it may take to arrive."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any, Final

from fastapi.routing import APIRoute
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from pwgrid.proxy.policy.refusal import Refusal
from pwgrid.proxy.select.claim import ClientGone

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
            bounded = _BoundedRequest(request.scope, request.receive)
            try:
                async with asyncio.timeout(BODY_S):
                    await bounded.body()
            except ClientDisconnect:
                raise ClientGone from None
            except TimeoutError:
                raise Refusal(408, f"the body did not arrive within {BODY_S:g} s") from None
            return await handler(bounded)

        return answer


class _BoundedRequest(Request):
    async def stream(self) -> AsyncGenerator[bytes, None]:
        size = 0
        async for part in super().stream():
            size += len(part)
            if size > MAX_BODY_BYTES:
                raise Refusal(413, f"the body is longer than {MAX_BODY_BYTES} bytes")
            yield part
