"""What the registry's hashes hold, read as plain data, whatever somebody has written there."""

from dataclasses import replace

import pytest

from pwgrid.proxy.api import models
from pwgrid.proxy.roster import Roster
from pwgrid.registry import records
from pwgrid.registry.records import SessionRecord, WorkerRecord

NO_FIGURES = ["inf", "-inf", "nan", "1e300", "9007199254740992", "soon", ""]
WORKER = ("startedAt", "slots", "pid", "rssMib", "lastHeartbeat")
SESSION = ("createdAt", "startedAt", "endedAt", "bytesIn", "bytesOut")


@pytest.mark.parametrize("value", NO_FIGURES)
def test_what_is_no_figure_is_0_and_can_be_answered(value: str) -> None:
    worker = WorkerRecord.read("chromium:a", dict.fromkeys(WORKER, value))
    assert (worker.started_at, worker.slots, worker.pid, worker.last_heartbeat) == (0, 0, 0, 0)
    assert worker.rss_mib == (0 if value else None)
    session = SessionRecord.read("s", dict.fromkeys(SESSION, value))
    assert [session.created_at, session.started_at, session.ended_at, session.bytes_in, session.bytes_out] == [0] * 5
    hashes = [{"chromium:a": value}] * 3
    ends, lengths = {"a:b:failed:other": value, "no end": "1"}, {"a:b:5": value, "a:b:ms": value, "no length": value}
    totals = ({"failed": value}, ends, lengths, *[{"failed": value}] * 2)
    workers = records.read_workers(["chromium:a"], [dict.fromkeys(WORKER, value)])
    found = replace(records.read_snapshot([*hashes, *totals, value]), workers=workers)
    assert found.ends == {("a", "b", "failed", "other"): 0}
    assert (sum(found.lengths["a", "b"].counts), found.lengths["a", "b"].total) == (0, 0)
    assert found.active == found.lifetime == found.outcomes == {"chromium:a": 0}
    assert (found.counter_repairs, found.taken_back, found.leases) == (0, {"failed": 0}, {"failed": 0})
    assert found.leases_taken_back == {"failed": 0}
    for answer in (models.Workers.of(found, Roster(), with_endpoints=True), models.Session.of(session)):
        assert type(answer).model_validate_json(answer.model_dump_json()) == answer


def test_a_record_says_what_a_session_or_lease_shares_and_what_it_speaks_only_where_that_is_not_as_usual() -> None:
    for says, isolation, protocol in (
        ({}, "context", "playwright"),
        ({"isolation": "browser"}, "browser", "playwright"),
    ):
        record = SessionRecord.read("s", says)
        for shown in (models.Session.of(record), models.Lease.of(record)):
            assert (shown.isolation, shown.protocol) == (isolation, protocol)
        assert (record.as_json()["isolation"], record.as_json()["protocol"]) == (isolation, protocol)


@pytest.mark.parametrize(("text", "figure"), [("1e3", 1000.0), ("1.5", 1.5), ("-3", -3.0), (None, 0.0)])
def test_a_figure_is_what_it_is(text: str | None, figure: float) -> None:
    assert records.number(text) == figure


@pytest.mark.parametrize(
    ("status", "text", "until"),
    [
        ("running", "1017.5", 1017.5),
        ("running", "", None),
        ("running", None, None),
        ("running", "nan", None),
        ("completed", "1017.5", None),  # left over from before its end
    ],
)
def test_a_session_is_kept_only_while_it_runs(status: str, text: str | None, until: float | None) -> None:
    fields = {"status": status} | ({} if text is None else {records.KEPT_UNTIL: text})
    session = SessionRecord.read("s", fields)
    assert session.kept_until == until
    assert (session.as_json()["kept"], session.as_json()["keptUntil"]) == (until is not None, until)
