"""OpenTelemetry traces of grids with a fake browser server, as a collector gets them; and grids that trace nothing."""

import json
import os
import secrets
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.collector import Collector, collecting
from tests.support.grid import Grid, eventually, free_port, running_grid
from tests.support.leases import CHROMIUM, borrow, give_back, request
from tests.support.raw import answer, connect, goes_on, head, read_all, session

TWO_POOLS = {"POOL_CONFIG": "AppA:Chromium:UAT=1,AppB:Chromium:Staging:EU=1"}
NAMED = "/?labels=appa:chromium:uat&name=nightly%2012"
STEPS = ("queue", "selection", "handoff")
OF_TRACES_ALONE = ("opentelemetry.sdk.trace", "opentelemetry.exporter", "opentelemetry.proto", "google.protobuf")
"""FastAPI always loads OpenTelemetry's API, and redis-py the SDK's metrics where it finds them."""


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with collecting() as collector:
        yield collector


@pytest.fixture(scope="module")
def grid(collector: Collector) -> Iterator[Grid]:
    environment = {**TWO_POOLS, **collector.environment(), "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment=tests"}
    with running_grid(environment=environment, fake=True) as grid:
        yield grid


def parent() -> tuple[str, str, str]:
    """The ids of a client's trace and span, and its header."""
    trace, span = secrets.token_hex(16), secrets.token_hex(8)
    return trace, span, f"00-{trace}-{span}-01"


def used(grid: Grid, target: str, **headers: str) -> None:
    """A session that comes and goes."""
    with connect(grid.port) as sock:
        sock.sendall(head(target=target, **headers))
        assert sock.recv(4096).startswith(b"HTTP/1.1 101 ")
        assert goes_on(sock)


def test_a_connect_its_steps_and_its_session_are_part_of_the_client_s_trace(grid: Grid, collector: Collector) -> None:
    trace, span, traceparent = parent()
    used(grid, NAMED, traceparent=traceparent, tracestate="vendor=1")
    spans = collector.trace(trace, "connect", *STEPS, "session")
    came, ran = spans["connect"], spans["session"]
    assert came.parent == span
    assert {spans[name].parent for name in (*STEPS, "session")} == {came.own}
    assert came.start <= spans["queue"].start <= spans["queue"].end <= spans["selection"].start
    assert spans["selection"].end <= spans["handoff"].start < spans["handoff"].end <= came.end
    assert ran.start < ran.end
    (worker,) = (each["id"] for each in grid.status()["workers"] if each["pool"].startswith("appa"))
    (record,) = request(grid, "GET", "/v1/sessions?limit=1").body["sessions"]
    for each in came, ran:
        assert (each["pool"], each["browser_type"], each["worker_id"]) == (record["pool"], "chromium", worker)
        assert (each["session_id"], each["label_key"], each["run_name"]) == (
            record["id"],
            "appa:chromium:uat",
            "nightly 12",
        )
        assert each.error is None
    assert (came["outcome"], ran["outcome"], ran["reason"]) == ("served", "completed", "client disconnected")
    assert (ran["bytes_in"], ran["bytes_out"]) == (record["bytesIn"], record["bytesOut"])
    assert [each.resource["service.name"] for each in spans.values()] == ["pwgrid"] * 5
    assert came.resource == ran.resource
    assert (came.resource["pwgrid.role"], came.resource["deployment.environment"]) == ("proxy", "tests")
    assert came.resource["service.instance.id"].endswith(f":{grid.port}/proxy-{grid.status()['proxy']['pid']}")
    assert collector.paths == {"/v1/traces"}


def test_a_client_that_names_no_trace_begins_one(grid: Grid, collector: Collector) -> None:
    used(grid, "/?name=alone")
    came = collector.one("connect", run_name="alone")
    assert came.parent == ""
    assert collector.trace(came.trace, "session")["session"].parent == came.own


def test_a_client_whose_trace_is_not_sampled_leaves_no_span(grid: Grid, collector: Collector) -> None:
    trace, _, traceparent = parent()
    used(grid, "/", traceparent=traceparent.removesuffix("1") + "0")
    sampled, _, traceparent = parent()
    used(grid, "/", traceparent=traceparent)
    collector.trace(sampled, "connect", "session")
    assert [each.name for each in collector.spans if each.trace == trace] == []


@pytest.mark.parametrize("traceparent", ["00-0-0-01", "nonsense\xff", "00-" + "0" * 32 + "-" + "0" * 16 + "-01"])
def test_a_trace_that_makes_no_sense_is_none(grid: Grid, collector: Collector, traceparent: str) -> None:
    name = secrets.token_hex(4)
    with connect(grid.port) as sock:
        sock.sendall(head(target=f"/?name={name}", traceparent=traceparent).decode().encode("latin-1"))
        assert sock.recv(4096).startswith(b"HTTP/1.1 101 ")
    assert collector.one("connect", run_name=name).parent == ""


def test_a_client_that_is_refused_is_an_error_with_its_reason(grid: Grid, collector: Collector) -> None:
    trace, _, traceparent = parent()
    assert answer(grid.port, head(target="/?browser=firefox&name=secret%20name", traceparent=traceparent))[0] == 400
    (came,) = collector.trace(trace, "connect").values()
    assert (came["outcome"], came.error) == ("refused", "no such browser")
    assert came.attributes["error.type"] == "no such browser"
    assert came.attributes["http.response.status_code"] == 400


def test_a_client_that_waits_and_goes_is_abandoned_and_one_without_a_place_in_line_is_refused(
    collector: Collector,
) -> None:
    environment = {**collector.environment(), "WORKER_SELECT_TIMEOUT": "600", "MAX_QUEUE": "1"}
    with running_grid("--chromium", "1", "--slots", "1", environment=environment, fake=True) as grid:
        waits, _, waiting = parent()
        comes, _, coming = parent()
        with session(grid.port), connect(grid.port) as sock:
            sock.sendall(head(traceparent=waiting))
            eventually(lambda: grid.status()["waiting"], "it waits")
            assert answer(grid.port, head(traceparent=coming))[0] == 503
            assert collector.trace(comes, "connect", "queue")["connect"].error == "queue full"
        spans = collector.trace(waits, "connect", "queue")
        assert (spans["connect"]["outcome"], spans["connect"].error) == ("abandoned", None)
        assert set(spans) == {"connect", "queue"}


def test_a_borrow_is_a_span_and_the_sessions_that_come_with_the_lease_have_their_clients_traces(
    grid: Grid, collector: Collector
) -> None:
    trace, span, traceparent = parent()
    body = {"labelKey": CHROMIUM, "runName": "smoke", "runId": "build-71"}
    lent = request(grid, "POST", "/session/borrow", body, traceparent=traceparent)
    assert lent.status == 200, lent
    lease = {**lent.body, "target": lent.body["webSocketEndpoint"].partition(str(grid.port))[2]}
    worker, _, own = lease["browserId"].partition("-")
    spans = collector.trace(trace, "borrow", "queue", "selection", "keep")
    took = spans["borrow"]
    assert (took.parent, took["lease_id"], took["worker_id"]) == (span, own, worker)
    assert (took["run_name"], took["run_id"], took["label_key"]) == ("smoke", "build-71", CHROMIUM)
    assert (took["outcome"], took.error) == ("served", None)
    assert spans["keep"].parent == took.own

    trace, span, traceparent = parent()
    used(grid, lease["target"], traceparent=traceparent)
    spans = collector.trace(trace, "connect", "handoff", "session")
    assert {spans[name].parent for name in ("handoff", "session")} == {spans["connect"].own}
    assert spans["session"]["run_id"] == "build-71"
    for each in spans["connect"], spans["session"]:
        assert (each["pool"], each["browser_type"]) == (took["pool"], "chromium")
        assert (each["lease_id"], each["worker_id"]) == (own, worker)


def test_a_borrow_that_is_refused_is_an_error(grid: Grid, collector: Collector) -> None:
    trace, _, traceparent = parent()
    body = {"labelKey": "NoSuch:Chromium:Key"}
    refused = request(grid, "POST", "/session/borrow", body, traceparent=traceparent)
    (took,) = collector.trace(trace, "borrow").values()
    assert took["outcome"] == "refused"
    assert took.attributes["http.response.status_code"] == refused.status
    assert took.error == took.attributes["error.type"] == "not found"


def test_a_session_that_the_grid_ends_is_traced_before_its_worker_goes(collector: Collector) -> None:
    environment = {**collector.environment(), "OTEL_BSP_SCHEDULE_DELAY": "1000000", "LOG_RUN_NAMES": "false"}
    trace, _, traceparent = parent()
    with running_grid("--chromium", "1", environment={**environment, "DRAIN_TIMEOUT": "0"}, fake=True) as grid:
        with connect(grid.port) as sock:
            sock.sendall(head(target="/?name=secret%20name", traceparent=traceparent))
            assert sock.recv(4096).startswith(b"HTTP/1.1 101 ")
            grid.process.terminate()
            read_all(sock)
        assert grid.process.wait() == 0
    # Nothing was due yet: the proxy has exported it at its end, which comes after the workers'.
    spans = collector.trace(trace, "connect", *STEPS, "session")
    assert spans["session"].error == spans["session"]["reason"]
    assert spans["session"]["outcome"] == "failed"
    assert "secret name" not in str(spans)


def test_a_collector_that_never_answers_costs_no_client_anything_and_delays_no_stop() -> None:
    ended = threading.Event()

    def never() -> int:
        ended.wait()
        return 200

    with collecting(never) as collector:
        environment = {**collector.environment(), "OTEL_EXPORTER_OTLP_TIMEOUT": "1000000"}
        try:
            with running_grid("--chromium", "1", environment=environment, fake=True) as grid:
                for _ in range(20):
                    used(grid, "/")
                collector.wait(lambda here: here.asked >= 1, "the proxy has begun to export")
                used(grid, "/")
                grid.process.terminate()
                assert grid.process.wait() == 0
                # The SDK itself would wait for the answer for ever.
                assert grid.output().count("last_spans_not_exported") == 1, grid.output()
                assert "SIGKILL" not in grid.output()
        finally:
            ended.set()


@pytest.mark.parametrize("kind", ["away", "nonsense"])
def test_of_a_collector_that_takes_nothing_the_log_has_one_line(kind: str) -> None:
    with collecting(lambda: 418) as collector:
        environment = collector.environment() | {"OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "1"}
        if kind == "away":
            environment["OTEL_EXPORTER_OTLP_ENDPOINT"] = f"http://127.0.0.1:{free_port()}"
        with running_grid("--chromium", "1", environment=environment, fake=True) as grid:
            for _ in range(10):
                used(grid, "/")
            eventually(lambda: "spans_not_exported" in grid.output(), "the log says so")
            if kind == "nonsense":
                collector.wait(lambda here: here.asked >= 30, "every span was tried")
            used(grid, "/")
            lines = [line for line in grid.output().splitlines() if "spans_not_exported" in line]
            assert len(lines) == 1, lines
            assert "role=proxy" in lines[0]
            assert "opentelemetry" not in grid.output().lower()


def test_a_session_is_traced_also_when_its_proxy_has_been_replaced(collector: Collector) -> None:
    environment = {**collector.environment(), "MAX_CONCURRENT_SESSIONS": "2"}
    with running_grid("--chromium", "1", environment=environment, fake=True) as grid:
        trace, _, traceparent = parent()
        with connect(grid.port) as sock:
            sock.sendall(head(traceparent=traceparent))
            assert sock.recv(4096).startswith(b"HTTP/1.1 101 ")
            came = collector.trace(trace, "connect")["connect"]
            first = grid.status()["proxy"]["pid"]
            os.kill(first, signal.SIGKILL)
            eventually(lambda: grid.status()["proxy"]["pid"] not in (None, first), "another one is there")
        ran = collector.one("session", session_id=came["session_id"])
        assert (ran.trace, ran.parent) == (trace, came.own)
        assert not ran.resource["service.instance.id"].endswith(f"proxy-{first}")


@pytest.mark.parametrize("environment", [{}, {"OTEL_SDK_DISABLED": "true"}, {"OTEL_TRACES_EXPORTER": "none"}])
def test_where_traces_are_off_no_process_loads_what_makes_them(
    environment: dict[str, str], collector: Collector, tmp_path: Path
) -> None:
    if environment:
        environment = {**collector.environment(), **environment}
    asked = collector.asked
    assert loaded_by_a_grid(environment, tmp_path) == {"master": set(), "proxy": set(), "worker": set()}
    assert collector.asked == asked


def test_where_traces_are_on_the_proxy_alone_loads_what_makes_them(collector: Collector, tmp_path: Path) -> None:
    found = loaded_by_a_grid(collector.environment(), tmp_path)
    assert found == {"master": set(), "proxy": {*OF_TRACES_ALONE}, "worker": set()}


def loaded_by_a_grid(environment: dict[str, str], directory: Path) -> dict[str, set[str]]:
    """What each role of a grid that has served a client has of what traces need."""
    environment = {**TWO_POOLS, **environment, "FAKE_LOADED": str(directory)}
    _, _, traceparent = parent()
    with running_grid(environment=environment, fake=True) as grid:
        used(grid, "/", traceparent=traceparent)
        give_back(grid, borrow(grid))
    loaded: dict[str, set[str]] = {}
    for file in directory.iterdir():
        modules = json.loads(file.read_text())
        assert "pwgrid" in modules
        loaded.setdefault(file.name.partition("-")[0], set()).update(
            {each for each in OF_TRACES_ALONE if each in modules}
        )
    return loaded
