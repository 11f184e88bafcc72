"""Borrowing from a real grid over HTTP, as any program without a client library would."""

import http.client
import json
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from tests.support import raw
from tests.support.grid import Grid, eventually

CHROMIUM = "AppA:Chromium:UAT"
FIREFOX = "AppB:Firefox:UAT"


@dataclass(frozen=True, slots=True)
class Answer:
    """Of the API: status, headers in lower case, JSON body."""

    status: int
    headers: dict[str, str]
    body: dict[str, Any]


def request(
    grid: Grid,
    method: str,
    path: str,
    body: object = None,
    trusted: ssl.SSLContext | None = None,
    **headers: str,
) -> Answer:
    """One request; `body` is sent as JSON, bytes as they are. `trusted` checks the certificate of a grid that has
    one."""
    data = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
    asked = urllib.request.Request(
        grid.http + path, data, {"Content-Type": "application/json", **headers}, method=method
    )
    try:
        with urllib.request.urlopen(asked, timeout=60, context=trusted) as response:
            return _answer(response)
    except urllib.error.HTTPError as error:
        with error:
            return _answer(error)


def borrow(grid: Grid, label_key: str = CHROMIUM, **more: Any) -> dict[str, Any]:
    """A lease; its `target` is the path of its endpoint."""
    answer = request(grid, "POST", "/session/borrow", {"labelKey": label_key, **more})
    assert answer.status == 200, answer
    return {**answer.body, "target": answer.body["webSocketEndpoint"].partition(str(grid.port))[2]}


def give_back(grid: Grid, lease: dict[str, Any]) -> bool:
    """Whether the lease was there until now."""
    answer = request(grid, "POST", "/session/return", {"labelKey": lease["labelKey"], "browserId": lease["browserId"]})
    assert answer.status == 200, answer
    return bool(answer.body["returned"])


def lease_now(grid: Grid, lease: dict[str, Any]) -> dict[str, Any]:
    """As the API shows it."""
    answer = request(grid, "GET", f"/v1/leases/{lease['browserId']}")
    assert answer.status == 200, answer
    return answer.body


def leases(grid: Grid, query: str = "") -> list[str]:
    """The ids of those that the API lists."""
    return [each["browserId"] for each in request(grid, "GET", f"/v1/leases{query}").body["leases"]]


@dataclass(slots=True)
class Cycles:
    """What many clients have done: whole cycles, requests that met a dying proxy; leases that nobody had heard of and
    that were still there at the end; leases of a client that have failed."""

    cycles: int = 0
    broken: int = 0
    orphans: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    first_workers: set[str] = field(default_factory=set)


GONE = (urllib.error.URLError, http.client.HTTPException, OSError)
"""What a client sees of a proxy that is killed."""


def cycles(
    grid: Grid,
    number: int,
    clients: int,
    at_half: Callable[[], object],
    use: Callable[[dict[str, Any]], None] | None = None,
) -> Cycles:
    """`number` times borrow, connect (or what `use` does with the lease), return, by so many clients at once. A client
    whose request breaks off asks again. Leases that no client has heard of come back by themselves."""
    done, lock = Cycles(first_workers={worker["id"] for worker in grid.status()["workers"]}), threading.Lock()
    heard_of: set[str] = set()

    def connect(lease: dict[str, Any]) -> None:
        with raw.connect(grid.port) as sock:
            sock.sendall(raw.head(target=lease["target"]))
            first = sock.recv(4096)
            if not first:  # the proxy had read the head before it was killed: then its end is no reset
                raise ConnectionResetError("no answer")
            assert first.startswith(b"HTTP/1.1 101 "), first
            assert raw.goes_on(sock)

    def again(call: Callable[[], Any]) -> Any:
        while True:
            try:
                return call()
            except GONE:
                with lock:
                    done.broken += 1

    def one(index: int) -> None:
        if index == number // 2:
            at_half()
        lease = again(lambda: borrow(grid, runName=f"cycle {index}"))
        heard_of.add(lease["browserId"])
        again(lambda: (use or connect)(lease))
        again(lambda: give_back(grid, lease))
        with lock:
            done.cycles += 1

    with ThreadPoolExecutor(clients) as pool:
        for future in [pool.submit(one, index) for index in range(number)]:
            future.result()
    done.orphans = [each for each in leases(grid) if each not in heard_of]  # a return is on record a little later
    eventually(lambda: leases(grid) == [], "no lease is left")
    # Of those that nobody had heard of one may fail: its worker was recycled before it expired.
    done.failed = [each for each in leases(grid, "?status=failed") if each in heard_of]
    return done


def _answer(response: Any) -> Answer:
    headers = {name.lower(): value for name, value in response.headers.items()}
    return Answer(response.status, headers, json.loads(response.read() or b"{}"))
