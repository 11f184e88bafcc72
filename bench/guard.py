"""Bench: what the guard at Playwright's dispatcher costs a client's messages, with real Chromiums and raw clients."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from statistics import median
from typing import Any

from websockets.sync.client import ClientConnection, connect

from bench.harness import Options, Row, at_most, cpu_us, progress
from bench.servers import DirectServer, grid_of, pids_of

SIDES = ("compatible", "off", "direct")


class Client:
    """A client with one page, which knows nothing but to ask and to wait for the answer. `node`: who answers."""

    def __init__(self, websocket: ClientConnection, node: int) -> None:
        self._websocket = websocket
        self.node = node
        self._id = 0
        self._types: dict[str, str] = {}
        self.ask("", "initialize", sdkLanguage="python")
        self.browser = self._one("Browser")
        context = self.ask(self.browser, "newContext")["context"]["guid"]
        self.ask(context, "newPage")
        self.frame = self._one("Frame")

    def _one(self, kind: str) -> str:
        return next(guid for guid, each in self._types.items() if each == kind)

    def ask(self, guid: str, method: str, **params: Any) -> dict[str, Any]:
        """The result of one call."""
        self._id += 1
        self._websocket.send(
            json.dumps({"id": self._id, "guid": guid, "method": method, "params": params, "metadata": {}})
        )
        while True:
            message = json.loads(self._websocket.recv())
            if message.get("id") == self._id:
                if "error" in message:
                    raise RuntimeError(str(message["error"]))
                result: dict[str, Any] = message.get("result", {})
                return result
            if message["method"] == "__create__":
                self._types[message["params"]["guid"]] = message["params"]["type"]

    def answered_by_node(self) -> None:
        """The shortest message there is: the browser takes no part in it."""
        self.ask(self.browser, "defaultUserAgentForTest")

    def evaluate(self) -> None:
        """What clients send most."""
        nothing = {"value": {"v": "undefined"}, "handles": []}
        self.ask(self.frame, "evaluateExpression", expression="1", isFunction=False, arg=nothing)


def run(options: Options) -> list[Row]:
    with ExitStack() as stack:
        server = stack.enter_context(DirectServer())
        endpoints, nodes = {"direct": server.endpoint}, {"direct": server.process.pid}
        for guard in ("compatible", "off"):
            grid = stack.enter_context(grid_of(environment={"CLIENT_GUARD": guard}))
            endpoints[guard], nodes[guard] = grid.endpoint, pids_of(grid)["browser server"]
        clients = {
            side: Client(stack.enter_context(connect(endpoints[side], max_size=None, compression=None)), nodes[side])
            for side in SIDES
        }
        calls: dict[str, Callable[[Client], None]] = {
            "a message that Node answers by itself": Client.answered_by_node,
            "evaluate()": Client.evaluate,
        }
        return [row for name, call in calls.items() for row in _rows(name, call, clients, options)]


def _rows(name: str, call: Callable[[Client], None], clients: dict[str, Client], options: Options) -> list[Row]:
    rounds, count = options.pick(40, 4), options.pick(200, 30)
    times: dict[str, list[float]] = {side: [] for side in SIDES}
    for client in clients.values():
        _microseconds(call, client, count)
    for number in range(rounds):
        for shift in range(len(SIDES)):
            side = SIDES[(number + shift) % len(SIDES)]
            times[side].append(_microseconds(call, clients[side], count))
    progress(f"  {name}: " + ", ".join(f"{side} {median(times[side]):.0f} µs" for side in SIDES))
    rows = []
    for other, limit in (("off", 1.03), ("direct", 1.1)):
        # Of each round on its own: the machine is faster and slower for seconds at a time.
        ratio = median([mine / theirs for mine, theirs in zip(times["compatible"], times[other], strict=True)])
        against = "CLIENT_GUARD=off" if other == "off" else "direct"
        rows.append(
            Row(
                f"{name}, the guard against {'none' if other == 'off' else 'no grid'}: Node's CPU",
                f"{median(times['compatible']):.0f} µs",
                f"{median(times[other]):.0f} µs {against}",
                f"{ratio:.3f} ×",
                *at_most(ratio, limit, " ×"),
            )
        )
    return rows


def _microseconds(call: Callable[[Client], None], client: Client, count: int) -> float:
    """Node's CPU for one call, on average."""
    before = cpu_us(client.node)
    for _ in range(count):
        call(client)
    return (cpu_us(client.node) - before) / count


COMPARES = (
    "Three raw clients take turns, each with a page in a Chromium of its own: a grid with CLIENT_GUARD=compatible, one "
    "with CLIENT_GUARD=off, launchServer() without a grid. No process of a grid touches their bytes, so the "
    "difference is what the launcher does with each message: CPU of the Node process, all its threads, for one call."
)
