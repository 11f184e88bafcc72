"""OpenTelemetry's spans of one process, which a thread of their own exports. Knows no client and no session.

OpenTelemetry is loaded by `start` alone, and only where traces are asked for. That is for the proxy to call, after its
fork: the master has no thread, and of workers there are many, each of which it would cost 16 MiB.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import urlsplit

import structlog

from pwgrid import __version__

if TYPE_CHECKING:
    from opentelemetry import trace as api

log = structlog.get_logger()

LAST_EXPORT_S: Final = 1.0
"""How long a process that ends waits for its last spans to be taken."""

QUIET_S: Final = 60.0
"""Between two lines of the log about spans that could not be exported."""

ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS: Final = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_PROTOCOL: Final = "http/protobuf"
_EXPORTER: Final = "opentelemetry-exporter-otlp-proto-http"

Attributes = Mapping[str, str | int | None]
"""By their full names. What is None or empty is left out."""


def asked_by(environ: Mapping[str, str]) -> str | None:
    """The variable that asks for traces; None where none does, or another one says that there are to be none."""
    if _said(environ, "OTEL_SDK_DISABLED") == "true" or _said(environ, "OTEL_TRACES_EXPORTER") == "none":
        return None
    return next((name for name in ENDPOINTS if _said(environ, name)), None)


class Fault(NamedTuple):
    """Why there are no traces although they are asked for, and what to do about it."""

    found: str
    to_do: str

    def __str__(self) -> str:
        return f"no traces: {self.found}: {self.to_do}"


def fault(environ: Mapping[str, str]) -> Fault | None:
    """None where there are traces, or nobody asks for them."""
    if (variable := asked_by(environ)) is None:
        return None
    if not _is_url(environ[variable]):
        return Fault(f"{variable} is no URL", "set it to one like http://collector:4318, or OTEL_SDK_DISABLED=true")
    for name in _PROTOCOLS:
        if _said(environ, name) not in ("", _PROTOCOL):
            return Fault(
                f"{name} is not {_PROTOCOL}, which is all that there is",
                "unset it, and take the collector's port for that (4318), or set OTEL_SDK_DISABLED=true",
            )
    if not is_installed():
        return Fault(
            f"{variable} asks for them, and OpenTelemetry is not installed",
            "pip install 'pwgrid[traces]', or set OTEL_SDK_DISABLED=true",
        )
    return None


def is_installed() -> bool:
    """Whether there is an exporter. Loads none of it."""
    from importlib import metadata

    try:
        metadata.distribution(_EXPORTER)
    except metadata.PackageNotFoundError:
        return False
    return True


def start(role: str, port: int) -> Traces | None:
    """The traces of this process, of the grid at this port; None where nobody asks for them, or there can be none."""
    if asked_by(os.environ) is None or fault(os.environ) is not None:  # the master has said so
        return None
    try:
        return Traces(role, port)
    except Exception as error:  # noqa: BLE001 - whatever is wrong with it: clients are served without traces
        log.warning("no_traces", error=repr(error))
        return None


class Traces:
    """Makes the spans of one process. OTEL_* variables say where they go, how many are sampled and kept until then."""

    def __init__(self, role: str, port: int) -> None:
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
            "service.instance.id": f"{socket.gethostname()}:{port}/{role}-{os.getpid()}",
            "pwgrid.role": role,
        }
        resource = Resource.create(ours).merge(OTELResourceDetector().detect())  # what the environment says comes first
        # Not the global one: libraries (FastAPI, redis-py) would begin spans of their own. Nothing at Python's exit: a
        # child leaves by _exit, after `close`.
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self.tracer = self._provider.get_tracer("pwgrid", __version__)
        self.propagator = TraceContextTextMapPropagator()

    def begin(self, name: str, carrier: Mapping[str, str]) -> Span:
        """A span that begins now. `carrier` has the headers traceparent and tracestate of what it is part of; where
        they make no sense, it begins a trace of its own."""
        return Span(self, name, carrier)

    def was(
        self, name: str, traceparent: str, times: tuple[float, float], attributes: Attributes, error: str | None
    ) -> None:
        """A span that is over; it began and ended at these times, in Unix seconds."""
        start_ns, end_ns = (int(each * 1e9) for each in times)
        around = self.propagator.extract({"traceparent": traceparent})
        _end(self.tracer.start_span(name, around, attributes=_given(attributes), start_time=start_ns), error, end_ns)

    def close(self) -> None:
        """Exports what is left, for LAST_EXPORT_S at most: the SDK would wait for a collector that is away."""
        last = threading.Thread(target=self._provider.shutdown, name="last spans", daemon=True)
        last.start()
        last.join(LAST_EXPORT_S)
        if last.is_alive():
            log.warning("last_spans_not_exported", waited_s=LAST_EXPORT_S)


class Span:
    """One span, until `end`. Moments within it are of time.monotonic()."""

    def __init__(self, traces: Traces, name: str, carrier: Mapping[str, str]) -> None:
        from opentelemetry import trace
        from opentelemetry.context import Context

        self._tracer, self._propagator = traces.tracer, traces.propagator
        self._zero_ns = time.time_ns() - time.monotonic_ns()
        """Where the monotonic clock began. The wall clock may be set while the span goes on."""
        around, start_ns = self._propagator.extract(carrier, Context()), self._at(time.monotonic())
        self._span = self._tracer.start_span(name, around, trace.SpanKind.SERVER, start_time=start_ns)
        self._within = trace.set_span_in_context(self._span, Context())

    def traceparent(self) -> str:
        """The header that makes another span part of this one; empty where nobody will see it."""
        carrier: dict[str, str] = {}
        self._propagator.inject(carrier, self._within)
        return carrier["traceparent"] if self._span.is_recording() else ""

    def say(self, attributes: Attributes) -> None:
        """Adds what is known by now."""
        self._span.set_attributes(_given(attributes))

    def had(self, name: str, since: float, until: float, attributes: Attributes, error: str | None = None) -> None:
        """A step of it, which is over: a span below this one."""
        step = self._tracer.start_span(name, self._within, attributes=_given(attributes), start_time=self._at(since))
        _end(step, error, self._at(until))

    def end(self, error: str | None = None, *, at: float | None = None) -> None:
        """It is over, since `at` or now; `error` is why it has failed."""
        _end(self._span, error, self._at(time.monotonic() if at is None else at))

    def _at(self, moment: float) -> int:
        return self._zero_ns + int(moment * 1e9)


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


def _said(environ: Mapping[str, str], name: str) -> str:
    return environ.get(name, "").strip().lower()


def _is_url(text: str) -> bool:
    try:
        url = urlsplit(text)
        is_good = url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:  # brackets, or the port
        return False
    return is_good and not any(map(str.isspace, text))
