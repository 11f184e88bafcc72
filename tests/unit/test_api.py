"""The API's one deadline, whatever it has to ask. The registry here is one that never answers."""

import asyncio
import json
from typing import Any

import pytest

from pwgrid.proxy.api import Api
from pwgrid.proxy.roster import Roster


class Silent:
    """Stands in for a registry whose single answers are each in time, and together never end."""

    def __getattr__(self, name: str) -> Any:
        async def never(*_arguments: Any, **_named: Any) -> None:
            await asyncio.Event().wait()

        return never


class Grid:
    roster = Roster()
    registry = Silent()


async def get(api: Api, path: str, method: str = "GET") -> tuple[int, dict[str, Any]]:
    """One request without a network."""
    said: list[dict[str, Any]] = []
    scope = {"type": "http", "method": method, "path": path, "query_string": b"", "headers": []}

    async def receive() -> dict[str, Any]:
        return {"type": "http.request"}

    async def send(message: Any) -> None:
        said.append(message)

    await api.application()(scope, receive, send)
    return said[0]["status"], json.loads(said[1]["body"])


@pytest.mark.parametrize("path", ["/metrics", "/v1/status", "/v1/workers", "/v1/sessions", "/v1/sessions/a"])
async def test_an_answer_that_needs_many_questions_has_one_deadline(path: str) -> None:
    api = Api(Grid(), "", (), timeout_s=0.05)  # type: ignore[arg-type]
    async with asyncio.timeout(20):
        assert await get(api, path) == (503, {"error": "the registry does not answer: no reply within 0.05 s"})


async def test_what_needs_no_registry_needs_no_deadline() -> None:
    api = Api(Grid(), "", (), timeout_s=0.0)  # type: ignore[arg-type]
    assert (await get(api, "/health"))[0] == 200
    assert (await get(api, "/health/ready"))[0] == 503
