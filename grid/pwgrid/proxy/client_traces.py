"""What the proxy traces: each connect and each borrow, with their steps, and each session once it is over.

OpenTelemetry, whose own thread exports the spans, is loaded by `start` alone, and only where traces are asked for. That
is for the proxy to call, after its fork: the master has no thread, and of workers there are many, each of which it
would cost 16 MiB.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import structlog

from pwgrid import __version__
from pwgrid.common.session_lifecycle import SessionStatus
from pwgrid.common.trace_settings import asked_by, fault
from pwgrid.proxy.policy.refusal import Refusal
from pwgrid.proxy.roster import WorkerView
from pwgrid.proxy.select.claim import Claim, ClientGone
from pwgrid.registry import records

if TYPE_CHECKING:
    from opentelemetry import trace as api

log = structlog.get_logger()

LAST_EXPORT_S: Final = 1.0
"""How long a process that ends waits for its last spans to be taken."""

QUIET_S: Final = 60.0
"""Between two lines of the log about spans that could not be exported."""

Attributes = Mapping[str, str | int | None]
"""By their full names. What is None or empty is left out."""


def start(port: int, *, with_names: bool) -> ClientTraces | None:
    """The traces of this proxy, of the grid at this port; None where nobody asks for them, or there can be none."""
    if asked_by(os.environ) is None or fault(os.environ) is not None:  # the master has said so
        return None
    try:
        return ClientTraces(port, with_names=with_names)
    except Exception as error:  # noqa: BLE001 - whatever is wrong with it: clients are served without traces
        log.warning("no_traces", error=repr(error))
        return None


class ClientTraces:
    """Makes the spans of one proxy. OTEL_* variables say where they go, how many are sampled and kept until then.
    `with_names`: they have what clients call their runs."""

    def __init__(self, port: int, *, with_names: bool) -> None:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        logger = logging.getLogger("opentelemetry")
        logger.addHandler(_SdkLog())
        logger.propagate = False
        ours = {
            "service.name": "pwgrid",
            "service.version": __version__,
            "service.instance.id": f"{socket.gethostname()}:{port}/proxy-{os.getpid()}",
            "pwgrid.role": "proxy",
        }
        resource = Resource.create(ours).merge(OTELResourceDetector().detect())  # what the environment says comes first
        # Not the global one: libraries (FastAPI, redis-py) would begin spans of their own. Nothing at Python's exit: a
        # child leaves by _exit, after `close`.
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self.tracer = self._provider.get_tracer("pwgrid", __version__)
        self.propagator = TraceContextTextMapPropagator()
        self._with_names = with_names

    def session_over(self, worker_id: str, told: Mapping[str, Any]) -> None:
        """A worker tells of the end of a session that was handed off with a `traceparent`."""
        attributes: Attributes = {
            "pwgrid.browser_type": told["browserType"],
            "pwgrid.pool": told["pool"],
            "pwgrid.worker_id": worker_id,
            "pwgrid.session_id": told["session"],
            "pwgrid.lease_id": told["lease"],
            "pwgrid.outcome": told["status"],
            "pwgrid.reason": told["reason"],
            "pwgrid.bytes_in": told["bytesIn"],
            "pwgrid.bytes_out": told["bytesOut"],
            **self.names(told["clientFields"]),
        }
        around, began_ns = self.propagator.extract({"traceparent": told["trace"]}), int(told["startedAt"] * 1e9)
        span = self.tracer.start_span("session", around, attributes=_given(attributes), start_time=began_ns)
        failed = told["status"] == SessionStatus.FAILED
        _end(span, told["reason"] if failed else None, int(told["endedAt"] * 1e9))

    def names(self, fields: Mapping[str, str]) -> dict[str, str | None]:
        """What a client said of its session or lease, of the fields of its record."""
        return {
            "pwgrid.label_key": fields.get(records.LABELS),
            "pwgrid.run_name": fields.get(records.NAME) if self._with_names else None,
            "pwgrid.run_id": fields.get(records.RUN) if self._with_names else None,
        }

    def close(self) -> None:
        """Exports what is left, for LAST_EXPORT_S at most: the SDK would wait for a collector that is away."""
        last = threading.Thread(target=self._provider.shutdown, name="last spans", daemon=True)
        last.start()
        last.join(LAST_EXPORT_S)
        if last.is_alive():
            log.warning("last_spans_not_exported", waited_s=LAST_EXPORT_S)


class Attempt:
    """One client's way to a slot: a span from its head, or its request, to the answer. Moments within it are of
    time.monotonic()."""

    def __init__(self, traces: ClientTraces, name: str, carrier: Mapping[str, str]) -> None:
        """`carrier` has the headers traceparent and tracestate of what it is part of; where they make no sense, it
        begins a trace of its own."""
        from opentelemetry import trace
        from opentelemetry.context import Context

        self._traces = traces
        self._zero_ns = time.time_ns() - time.monotonic_ns()
        """Where the monotonic clock began. The wall clock may be set while the span goes on."""
        around, start_ns = traces.propagator.extract(carrier, Context()), self._at(time.monotonic())
        self._span = traces.tracer.start_span(name, around, trace.SpanKind.SERVER, start_time=start_ns)
        self._within = trace.set_span_in_context(self._span, Context())
        self._served_at: float | None = None

    def traceparent(self) -> str:
        """What its worker gets, and says again when the session is over; empty where nobody will see its span."""
        carrier: dict[str, str] = {}
        self._traces.propagator.inject(carrier, self._within)
        return carrier["traceparent"] if self._span.is_recording() else ""

    def asks(self, claim: Claim) -> None:
        """It is known what the client wants."""
        names = self._traces.names(claim.fields)
        self._say({"pwgrid.browser_type": claim.browser_type, "pwgrid.pool": claim.pool, **names})

    def asks_of(self, worker: WorkerView | None) -> None:
        """The client comes with a lease of this worker; None for one that nobody knows."""
        if worker is not None:
            self._say({"pwgrid.browser_type": worker.browser_type, "pwgrid.pool": worker.pool})

    def waited(self, since: float, waited_s: float, selection_s: float | None) -> None:
        """It has waited for a slot, the last `selection_s` of that for the registry; None where it got none."""
        until = since + waited_s
        selected_at = until if selection_s is None else max(since, until - selection_s)
        self._had("queue", since, selected_at, {})
        if selection_s is not None:
            self._had("selection", selected_at, until, {})

    def offered(self, step: str, since: float, until: float, worker_id: str, failure: str | None) -> None:
        """A worker was offered the client (`handoff`), or asked to keep a slot (`keep`), at `since`, and took it or not
        at `until`; `failure` is why not."""
        self._had(step, since, until, {"pwgrid.worker_id": worker_id}, failure)

    def served(
        self, worker_id: str, *, session_id: str | None = None, lease_id: str | None = None, at: float | None = None
    ) -> None:
        """This worker has it, since `at` or now: a session, which may have come with a lease, or a lease."""
        self._served_at = at
        self._say({"pwgrid.worker_id": worker_id, "pwgrid.session_id": session_id, "pwgrid.lease_id": lease_id})

    def ends(self, failure: Exception | None) -> None:
        """The client has its answer, or gets none. Sentences are left out: a client's own words may be in them."""
        status, error, at = None, None, None
        if failure is None:
            outcome, at = "served", self._served_at
        elif isinstance(failure, Refusal):
            outcome, status, error = "refused", failure.status, failure.reason.value
        elif isinstance(failure, ClientGone):
            outcome = "abandoned"
        else:
            outcome, error = "failed", type(failure).__name__
        self._say({"pwgrid.outcome": outcome, "error.type": error, "http.response.status_code": status})
        _end(self._span, error, self._at(time.monotonic() if at is None else at))

    def _say(self, attributes: Attributes) -> None:
        """Adds what is known by now."""
        self._span.set_attributes(_given(attributes))

    def _had(self, name: str, since: float, until: float, attributes: Attributes, error: str | None = None) -> None:
        """Adds a span below this one for a step that is over."""
        step = self._traces.tracer.start_span(
            name, self._within, attributes=_given(attributes), start_time=self._at(since)
        )
        _end(step, error, self._at(until))

    def _at(self, moment: float) -> int:
        return self._zero_ns + int(moment * 1e9)


_UNTRACED: Final = contextlib.nullcontext(None)


def attempting(
    traces: ClientTraces | None, name: str, headers: Iterable[tuple[str, str]]
) -> contextlib.AbstractContextManager[Attempt | None]:
    """Traces the block as one attempt of a client with these headers to connect or to borrow. Yields None where nothing
    is traced."""
    return _UNTRACED if traces is None else _traced(traces, name, headers)


@contextlib.contextmanager
def _traced(traces: ClientTraces, name: str, headers: Iterable[tuple[str, str]]) -> Iterator[Attempt]:
    attempt = Attempt(traces, name, _carrier(headers))
    try:
        yield attempt
    except Exception as failure:
        attempt.ends(failure)
        raise
    attempt.ends(None)


def _carrier(headers: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Of a client's headers, those that say what the span is part of; nothing where it does not say so once."""
    found: dict[str, list[str]] = {"traceparent": [], "tracestate": []}
    for name, value in headers:
        if (known := found.get(name.lower())) is not None:
            known.append(value)
    if len(found["traceparent"]) != 1:
        return {}
    return {name: ",".join(values) for name, values in found.items()}


class _SdkLog(logging.Handler):
    """What the SDK logs, as one line now and then: it complains of each batch, and of each span that it drops."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._fields = structlog.contextvars.get_contextvars()  # its thread has none of its own
        self._quiet_until = 0.0
        self._more = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Writes the line, or counts the record for the next one."""
        now = time.monotonic()
        if now < self._quiet_until:
            self._more += 1
            return
        self._quiet_until = now + QUIET_S
        more, self._more = self._more, 0
        log.warning("spans_not_exported", **self._fields, why=record.getMessage(), more_since_the_last_line=more)


def _end(span: api.Span, error: str | None, at_ns: int) -> None:
    from opentelemetry.trace import Status, StatusCode

    if error is not None:
        span.set_status(Status(StatusCode.ERROR, error))
    span.end(at_ns)


def _given(attributes: Attributes) -> dict[str, str | int]:
    return {name: value for name, value in attributes.items() if value is not None and value != ""}
