"""An OpenTelemetry collector for tests: takes spans as OTLP over HTTP on a port of its own, and keeps them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

LIMIT_S = 60.0
"""Only bounds a failure."""

ERROR = 2
"""The code of a status that says so."""


@dataclass(frozen=True, slots=True)
class Seen:
    """One span as it came, ids in hex, times in nanoseconds; `resource` says whose it is."""

    name: str
    trace: str
    own: str
    parent: str
    start: int
    end: int
    error: str | None
    attributes: dict[str, Any]
    resource: dict[str, Any]

    def __getitem__(self, name: str) -> Any:
        """An attribute of ours."""
        return self.attributes.get(f"pwgrid.{name}")


@dataclass(slots=True)
class Collector:
    """What has come. `answer` makes the status of each answer; it may wait."""

    answer: Callable[[], int] = lambda: 200
    endpoint: str = ""
    spans: list[Seen] = field(default_factory=list)
    asked: int = 0
    paths: set[str] = field(default_factory=set)
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def environment(self) -> dict[str, str]:
        """What has a grid send its spans here, soon."""
        return {"OTEL_EXPORTER_OTLP_ENDPOINT": self.endpoint, "OTEL_BSP_SCHEDULE_DELAY": "50"}

    def take(self, path: str, body: bytes) -> None:
        """A request has come."""
        with self._changed:
            self.asked += 1
            self.paths.add(path)
            self.spans += seen(body)
            self._changed.notify_all()

    def wait(self, what: Callable[[Collector], bool], about: str) -> None:
        """Returns once what has come is so."""
        with self._changed:
            assert self._changed.wait_for(lambda: what(self), LIMIT_S), f"{about}: {self.spans}"

    def trace(self, trace: str, *names: str) -> dict[str, Seen]:
        """The spans of this trace by their names, once it has these, each once."""
        self.wait(lambda here: {*names} <= {each.name for each in here.spans if each.trace == trace}, f"{names}")
        found = [each for each in self.spans if each.trace == trace]
        assert len({each.name for each in found}) == len(found), found
        return {each.name: each for each in found}

    def one(self, name: str, **attributes: Any) -> Seen:
        """The span of this name that has these attributes, once it is there."""

        def fit() -> list[Seen]:
            return [each for each in self.spans if each.name == name and has(each)]

        def has(span: Seen) -> bool:
            return all(span[key] == value for key, value in attributes.items())

        self.wait(lambda _: bool(fit()), f"{name} {attributes}")
        (found,) = fit()
        return found


@contextmanager
def collecting(answer: Callable[[], int] = lambda: 200) -> Iterator[Collector]:
    """A collector that listens for the length of the block."""
    collector = Collector(answer)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            collector.take(self.path, self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(collector.answer())
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_arguments: object) -> None:
            """Nothing on the test's output."""

    class Server(ThreadingHTTPServer):
        def handle_error(self, *_arguments: object) -> None:
            """A process that ends may leave before it is answered."""

    server = Server(("127.0.0.1", 0), Handler)
    collector.endpoint = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield collector
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def seen(body: bytes) -> Iterator[Seen]:
    """The spans of one request."""
    for of_resource in ExportTraceServiceRequest.FromString(body).resource_spans:
        resource = _values(of_resource.resource.attributes)
        for of_scope in of_resource.scope_spans:
            for span in of_scope.spans:
                yield Seen(
                    span.name,
                    span.trace_id.hex(),
                    span.span_id.hex(),
                    span.parent_span_id.hex(),
                    span.start_time_unix_nano,
                    span.end_time_unix_nano,
                    span.status.message if span.status.code == ERROR else None,
                    _values(span.attributes),
                    resource,
                )


def _values(attributes: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}
