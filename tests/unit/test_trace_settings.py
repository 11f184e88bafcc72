"""Who asks for traces, what keeps them from being made, and how little the log says of spans that nobody takes."""

import logging
from unittest import mock

import pytest
import structlog
from click.testing import CliRunner

from pwgrid.cli.main import main
from pwgrid.common import trace_settings
from pwgrid.proxy import client_traces
from pwgrid.settings.load import load
from pwgrid.setup.doctor_checks import _traces as traces_of

URL = "http://collector:4318"
ASKED = {"OTEL_EXPORTER_OTLP_ENDPOINT": URL}


@pytest.mark.parametrize(
    ("environ", "variable"),
    [
        ({}, None),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": " "}, None),
        (ASKED, "OTEL_EXPORTER_OTLP_ENDPOINT"),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": URL}, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"),
        ({**ASKED, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": URL}, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"),
        ({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": URL}, None),
        ({**ASKED, "OTEL_SDK_DISABLED": "True"}, None),
        ({**ASKED, "OTEL_SDK_DISABLED": "false"}, "OTEL_EXPORTER_OTLP_ENDPOINT"),
        ({**ASKED, "OTEL_TRACES_EXPORTER": "none"}, None),
    ],
)
def test_the_standard_variables_ask_for_traces(environ: dict[str, str], variable: str | None) -> None:
    assert trace_settings.asked_by(environ) == variable
    assert trace_settings.fault(environ) is None


@pytest.mark.parametrize(
    ("more", "found"),
    [
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "collector:4318"}, "OTEL_EXPORTER_OTLP_ENDPOINT is no URL"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://[::1"}, "OTEL_EXPORTER_OTLP_ENDPOINT is no URL"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:port"}, "OTEL_EXPORTER_OTLP_ENDPOINT is no URL"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318 "}, "OTEL_EXPORTER_OTLP_ENDPOINT is no URL"),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "OTEL_EXPORTER_OTLP_PROTOCOL is not http/protobuf"),
        (
            {"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/json"},
            "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL is not http/protobuf",
        ),
    ],
)
def test_what_keeps_traces_from_being_made_is_said_with_what_to_do(more: dict[str, str], found: str) -> None:
    environ = {**ASKED, **more}
    (warning,) = load(None, environ, {}).warnings
    assert warning.startswith(f"no traces: {found}")
    assert "OTEL_SDK_DISABLED=true" in warning
    assert load(None, {**environ, "OTEL_SDK_DISABLED": "true"}, {}).warnings == ()
    with mock.patch.dict("os.environ", environ):
        (finding,) = traces_of()
        assert client_traces.start(8080, with_names=True) is None
    assert (finding.level, finding.found.startswith(found), bool(finding.to_do)) == ("warn", True, True)


def test_where_the_extra_is_missing_config_check_says_what_to_install_and_finds_no_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(trace_settings, "_EXPORTER", "no-such-package")
        done = CliRunner().invoke(main, ["config", "check"], env={"PWGRID_CONFIG": None, **ASKED})
        assert done.exit_code == 0
        assert "warning: no traces" in done.stderr
        assert "pip install 'pwgrid[traces]'" in done.stderr
        assert load(None, {}, {}).warnings == ()
    done = CliRunner().invoke(main, ["config", "check"], env={"PWGRID_CONFIG": None, **ASKED})
    assert (done.exit_code, done.stderr) == (0, "")


def test_doctor_says_nothing_of_traces_unless_they_are_asked_for() -> None:
    assert list(traces_of()) == []
    with mock.patch.dict("os.environ", ASKED):
        (finding,) = traces_of()
    assert (finding.level, finding.found) == ("good", "they go where OTEL_EXPORTER_OTLP_ENDPOINT says")


def test_a_process_whose_tracer_cannot_be_made_goes_without() -> None:
    logger = logging.getLogger("opentelemetry")
    handlers, propagates = [*logger.handlers], logger.propagate
    environ = {**ASKED, "OTEL_BSP_MAX_QUEUE_SIZE": "-1"}
    try:
        with mock.patch.dict("os.environ", environ), structlog.testing.capture_logs() as lines:
            assert client_traces.start(8080, with_names=True) is None
    finally:
        logger.handlers, logger.propagate = handlers, propagates
    ((event, error),) = ((line["event"], line["error"]) for line in lines)
    assert event == "no_traces"
    assert "max_queue_size" in error


def test_complaints_of_the_sdk_are_one_line_now_and_then_that_counts_the_others() -> None:
    logger = logging.Logger("opentelemetry.test")
    with structlog.contextvars.bound_contextvars(role="proxy", of="p1"):
        logger.addHandler(client_traces._SdkLog())
    with mock.patch("time.monotonic", return_value=1000.0) as clock, structlog.testing.capture_logs() as lines:
        for number in range(5):
            logger.error("Failed to export %s", number)
        logger.info("not worth a line")
        clock.return_value += client_traces.QUIET_S
        logger.warning("Queue full")
    assert [(line["why"], line["more_since_the_last_line"]) for line in lines] == [
        ("Failed to export 0", 0),
        ("Queue full", 4),
    ]
    assert {(line["event"], line["role"], line["of"]) for line in lines} == {("spans_not_exported", "proxy", "p1")}


@pytest.mark.parametrize(
    ("headers", "carrier"),
    [
        ([], {}),
        ([("Host", "here"), ("tracestate", "a=1")], {}),
        (
            [("Traceparent", "00-1"), ("tracestate", "a=1"), ("TraceState", "b=2")],
            {"traceparent": "00-1", "tracestate": "a=1,b=2"},
        ),
        ([("traceparent", "00-1"), ("traceparent", "00-2")], {}),
    ],
)
def test_a_client_says_once_what_it_is_part_of_or_not_at_all(
    headers: list[tuple[str, str]], carrier: dict[str, str]
) -> None:
    with mock.patch.object(client_traces, "Attempt") as made, client_traces.attempting(mock.Mock(), "connect", headers):
        pass
    _, name, given = made.call_args.args
    assert (name, {key: value for key, value in given.items() if value}) == ("connect", carrier)
