"""The figures of a scrape, read back by Prometheus' own parser."""

import platform
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from pwgrid import __version__
from pwgrid.common.histogram import Histogram
from pwgrid.common.reasons import Reason, WorkerEnd
from pwgrid.common.redis_faults import FaultKind, RedisFault
from pwgrid.control.frames import MAX_FRAME_BYTES, encode
from pwgrid.master.policy import event_counts
from pwgrid.master.policy.event_counts import EventCounts
from pwgrid.proxy.api import metrics
from pwgrid.proxy.api.metrics import Requests, Scrape, exposition
from pwgrid.proxy.connect.connect_metrics import ConnectFigures, Waited
from pwgrid.proxy.policy.refusal import Refusal
from pwgrid.proxy.roster import Roster
from pwgrid.registry.records import LENGTH_BOUNDS_S, Ends, RegistrySnapshot, WorkerRecord
from pwgrid.settings.pools import MAX_POOLS
from tests.support.lone_host import LoneHost
from tests.support.state_frames import told_of_pool
from tools.metrics_page import PAGE, page_with

ROOT = Path(__file__).resolve().parents[2]
CHROMIUM, FIREFOX = ("chromium", "chromium"), ("firefox", "firefox")
MIB = 1024 * 1024
WORKERS = {
    "chromium:a": WorkerRecord("chromium", "a", "ws://a", slots=5, rss_mib=2, launches=6),
    "chromium:d": WorkerRecord("chromium", "d", "ws://d", status="draining", slots=5),
    "firefox:b": WorkerRecord("firefox", "b", "ws://b", slots=3),
    "firefox:s": WorkerRecord("firefox", "s", "ws://s", status="spare", slots=3),
}


def tally() -> EventCounts:
    tally = EventCounts()
    tally.starts = 4
    tally.launches = 12
    tally.launch.observe(0.7)
    tally.drain.observe(20.0)
    ends = (WorkerEnd.LIFETIME, WorkerEnd.LIFETIME, WorkerEnd.MEMORY, WorkerEnd.SHUTDOWN, WorkerEnd.TERMINATED)
    for kind in ends:
        tally.drains(Reason(kind))
    tally.died(Reason(WorkerEnd.BROWSER_SERVER_ENDED, "SIGKILL", "SIGKILL"))
    tally.died(Reason(WorkerEnd.LAUNCH_FAILED, "chromium did not start: no display"))
    tally.offers("1.65")
    tally.tried("1.65", 0.25, is_well=True)
    tally.tried("1.58", 10.0, is_well=False)
    for kind, number in {"too long": 2, "client": 1, "news of a later version": 3}.items():
        tally.server_failed(kind, number)
    return tally


def lengths(*seconds: float) -> Histogram:
    histogram = Histogram(LENGTH_BOUNDS_S)
    for each in seconds:
        histogram.observe(each)
    return histogram


def roster() -> Roster:
    roster = Roster()
    roster.replace(
        {
            "metrics": {
                "startedAt": 1000.5,
                "hostAvailableMib": 3,
                "pools": {
                    "chromium": {
                        "browserType": "chromium",
                        "memoryMib": 7,
                        "largestMib": 4,
                        "ownBrowsers": 2,
                        "lowered": 1,
                        "kept": 1,
                        "earlyDeaths": 3,
                        **tally().as_data(),
                    }
                },
            },
            "pools": {"chromium": told_of_pool(wanted=2, drainTimeouts=8, suspect=1, playwright="1.65")},
            "workers": [
                {"id": "a", "browserType": "chromium", "status": "available"},
                {"id": "d", "browserType": "chromium", "status": "draining"},
            ],
        }
    )
    return roster


def grid(roster: Roster, gateway: SimpleNamespace, redis: Histogram, waiting: int) -> Any:
    """The parts of a proxy that a scrape shows."""
    registry = SimpleNamespace(client=SimpleNamespace(exchanges=redis))
    queue = SimpleNamespace(waiting=lambda _pool: waiting, pools=lambda: [])
    return SimpleNamespace(roster=roster, gateway=gateway, registry=registry, queue=queue, hosts=LoneHost(roster))


def scrape(**changes: Any) -> Scrape:
    figures = ConnectFigures(handed_off=7, refused=1, retried=2, abandoned=3, options_ignored=5)
    for phase in ("queue", "selection", "handoff"):
        getattr(figures.phases[CHROMIUM], phase).observe(0.002)
    figures.waits[CHROMIUM, Waited.ABANDONED].observe(3.0)
    figures.note_refusal(Refusal(401, "no token"))
    redis = Histogram((0.001, 0.01))
    redis.observe(0.002)
    gateway = SimpleNamespace(figures=figures, forwarding=None)
    values: dict[str, Any] = {
        "grid": grid(roster(), gateway, redis, waiting=9),
        "found": RegistrySnapshot(
            {"chromium:a": 2, "chromium:d": 1},
            {"chromium:a": 7, "chromium:d": 50},
            WORKERS,
            {"completed": 4, "failed": 1},
            6,
            {"failed": 1},
            {Ends("chromium", "chromium", "completed", "client disconnected"): 4},
            {CHROMIUM: lengths(2.0, 30.0)},
            {"completed": 3, "expired": 1},
            {"expired": 1},
        ),
        "requests": Requests({("/health/ready", "GET", 503): 2}),
        "is_ready": True,
    }
    return Scrape(**values | changes)


def read(scrape: Scrape) -> dict[tuple[str, ...], float]:
    """All samples but those of the process, by name and label values; of histograms the buckets that have any."""
    labels = {each.name: (*each.labels, "le") for each in metrics.ALL}
    return {
        (sample.name, *(sample.labels[label] for label in labels[family.name] if label in sample.labels)): sample.value
        for family in text_string_to_metric_families(exposition(scrape).decode())
        for sample in family.samples
        if not sample.name.startswith("pwgrid_proxy_process_")
        and not (sample.name.endswith("_bucket") and (sample.value == 0 or sample.labels["le"] == "+Inf"))
    }


def least_bucket(found: dict[tuple[str, ...], float], *labels: str) -> float:
    """The lowest upper bound that has a figure."""
    return min(float(key[-1]) for key in found if key[:-1] == labels)


def test_every_figure_of_a_grid_that_serves() -> None:
    found = read(scrape())
    buckets = {key for key in found if key[0].endswith("_bucket")}
    assert {key: value for key, value in found.items() if key not in buckets} == {
        ("pwgrid_ready",): 1,
        ("pwgrid_upgrades_forwarded_total",): 0,
        ("pwgrid_redis_up",): 1,
        ("pwgrid_redis_writable",): 1,
        ("pwgrid_build_info", __version__, platform.python_version()): 1,
        ("pwgrid_active_sessions", *CHROMIUM): 3,
        ("pwgrid_active_sessions", *FIREFOX): 0,
        ("pwgrid_lifetime_sessions", *CHROMIUM): 57,
        ("pwgrid_browser_launches_total", *CHROMIUM): 12,
        ("pwgrid_lifetime_sessions", *FIREFOX): 0,
        ("pwgrid_slots", *CHROMIUM, "available"): 3,
        ("pwgrid_slots", *CHROMIUM, "busy"): 3,
        ("pwgrid_slots", *CHROMIUM, "spare"): 0,
        ("pwgrid_slots", *CHROMIUM, "draining"): 4,
        ("pwgrid_slots", *FIREFOX, "available"): 3,
        ("pwgrid_slots", *FIREFOX, "busy"): 0,
        ("pwgrid_slots", *FIREFOX, "spare"): 3,
        ("pwgrid_slots", *FIREFOX, "draining"): 0,
        ("pwgrid_slots_wanted", *CHROMIUM): 10,
        ("pwgrid_sessions_total", *CHROMIUM, "completed", "client disconnected"): 4,
        ("pwgrid_session_duration_seconds_count", *CHROMIUM): 2,
        ("pwgrid_session_duration_seconds_sum", *CHROMIUM): 32,
        ("pwgrid_sessions_taken_back_total", "failed"): 1,
        ("pwgrid_leases_total", "returned"): 3,
        ("pwgrid_leases_total", "expired"): 1,
        ("pwgrid_leases_total", "ended"): 0,
        ("pwgrid_leases_total", "failed"): 0,
        ("pwgrid_leases_taken_back_total", "returned"): 0,
        ("pwgrid_leases_taken_back_total", "expired"): 1,
        ("pwgrid_leases_taken_back_total", "ended"): 0,
        ("pwgrid_leases_taken_back_total", "failed"): 0,
        ("pwgrid_counter_repairs_total",): 6,
        ("pwgrid_workers_wanted", *CHROMIUM): 2,
        ("pwgrid_pool_info", *CHROMIUM, "1.65", "false"): 1,
        ("pwgrid_workers", *CHROMIUM, "starting"): 0,
        ("pwgrid_workers", *CHROMIUM, "spare"): 0,
        ("pwgrid_workers", *CHROMIUM, "available"): 1,
        ("pwgrid_workers", *CHROMIUM, "draining"): 1,
        ("pwgrid_workers_suspect", *CHROMIUM): 1,
        ("pwgrid_drain_timeouts_total", *CHROMIUM): 8,
        ("pwgrid_own_browsers", *CHROMIUM): 2,
        ("pwgrid_browsers_lowered", *CHROMIUM): 1,
        ("pwgrid_kept_sessions", *CHROMIUM): 1,
        ("pwgrid_worker_starts_total", *CHROMIUM): 4,
        **{("pwgrid_worker_recycles_total", *CHROMIUM, each): 0 for each in event_counts.RECYCLES},
        **{("pwgrid_worker_deaths_total", *CHROMIUM, each, "none"): 0 for each in event_counts.DEATHS},
        ("pwgrid_worker_recycles_total", *CHROMIUM, "lifetime"): 2,
        ("pwgrid_worker_recycles_total", *CHROMIUM, "memory"): 1,
        ("pwgrid_worker_deaths_total", *CHROMIUM, "browser server ended", "SIGKILL"): 1,
        ("pwgrid_worker_deaths_total", *CHROMIUM, "launch failed", "none"): 1,
        ("pwgrid_worker_early_deaths", *CHROMIUM): 3,
        ("pwgrid_worker_launch_seconds_count", *CHROMIUM): 1,
        ("pwgrid_worker_launch_seconds_sum", *CHROMIUM): 0.7,
        ("pwgrid_worker_drain_seconds_count", *CHROMIUM): 1,
        ("pwgrid_worker_drain_seconds_sum", *CHROMIUM): 20,
        ("pwgrid_canary_first_page_seconds_count", *CHROMIUM, "1.65"): 1,
        ("pwgrid_canary_first_page_seconds_sum", *CHROMIUM, "1.65"): 0.25,
        ("pwgrid_canary_failures_total", *CHROMIUM, "1.65"): 0,
        ("pwgrid_canary_first_page_seconds_count", *CHROMIUM, "1.58"): 0,
        ("pwgrid_canary_first_page_seconds_sum", *CHROMIUM, "1.58"): 0,
        ("pwgrid_canary_failures_total", *CHROMIUM, "1.58"): 1,
        ("pwgrid_browser_server_errors_total", *CHROMIUM, "message too long"): 2,
        ("pwgrid_browser_server_errors_total", *CHROMIUM, "browser connection"): 0,
        ("pwgrid_browser_server_errors_total", *CHROMIUM, "session"): 1,
        ("pwgrid_browser_server_errors_total", *CHROMIUM, "other"): 3,
        ("pwgrid_pool_memory_bytes", *CHROMIUM): 7 * MIB,
        ("pwgrid_largest_worker_memory_bytes", *CHROMIUM): 4 * MIB,
        ("pwgrid_host_memory_available_bytes",): 3 * MIB,
        ("pwgrid_master_start_time_seconds",): 1000.5,
        ("pwgrid_clients_waiting", *CHROMIUM): 9,
        ("pwgrid_upgrades_handed_off_total",): 7,
        ("pwgrid_upgrades_refused_total",): 1,
        ("pwgrid_upgrades_retried_total",): 2,
        ("pwgrid_upgrades_abandoned_total",): 3,
        ("pwgrid_upgrades_options_ignored_total",): 5,
        **{
            (f"pwgrid_proxy_connect_seconds_{what}", *CHROMIUM, phase): value
            for phase in ("queue", "selection", "handoff")
            for what, value in (("count", 1), ("sum", 0.002))
        },
        ("pwgrid_proxy_queue_wait_seconds_count", *CHROMIUM, "abandoned"): 1,
        ("pwgrid_proxy_queue_wait_seconds_sum", *CHROMIUM, "abandoned"): 3,
        ("pwgrid_proxy_refusals_total", "401", "token"): 1,
        ("pwgrid_proxy_http_requests_total", "/health/ready", "GET", "503"): 2,
        ("pwgrid_proxy_redis_exchange_seconds_count",): 1,
        ("pwgrid_proxy_redis_exchange_seconds_sum",): 0.002,
    }
    assert least_bucket(found, "pwgrid_session_duration_seconds_bucket", *CHROMIUM) == 5
    assert found["pwgrid_session_duration_seconds_bucket", *CHROMIUM, "60"] == 2
    assert least_bucket(found, "pwgrid_worker_launch_seconds_bucket", *CHROMIUM) == 1
    assert least_bucket(found, "pwgrid_proxy_connect_seconds_bucket", *CHROMIUM, "handoff") == 0.0025


def test_a_worker_has_a_label_only_if_somebody_asks_for_it() -> None:
    usual, asked = read(scrape()), read(scrape(by_worker=True))
    assert {key: value for key, value in asked.items() if key not in usual} == {
        ("pwgrid_worker_active_sessions", *CHROMIUM, "a"): 2,
        ("pwgrid_worker_active_sessions", *CHROMIUM, "d"): 1,
        ("pwgrid_worker_active_sessions", *FIREFOX, "b"): 0,
        ("pwgrid_worker_active_sessions", *FIREFOX, "s"): 0,
        ("pwgrid_worker_slots", *CHROMIUM, "a"): 5,
        ("pwgrid_worker_slots", *CHROMIUM, "d"): 5,
        ("pwgrid_worker_slots", *FIREFOX, "b"): 3,
        ("pwgrid_worker_slots", *FIREFOX, "s"): 0,
        ("pwgrid_worker_lifetime_sessions", *CHROMIUM, "a"): 7,
        ("pwgrid_worker_lifetime_sessions", *CHROMIUM, "d"): 50,
        ("pwgrid_worker_lifetime_sessions", *FIREFOX, "b"): 0,
        ("pwgrid_worker_lifetime_sessions", *FIREFOX, "s"): 0,
        ("pwgrid_worker_launches", *CHROMIUM, "a"): 6,
        ("pwgrid_worker_launches", *CHROMIUM, "d"): 0,
        ("pwgrid_worker_launches", *FIREFOX, "b"): 0,
        ("pwgrid_worker_launches", *FIREFOX, "s"): 0,
        ("pwgrid_worker_memory_bytes", *CHROMIUM, "a"): 2 * MIB,
    }
    assert not {key for key in usual if set(key[1:]) & {"a", "b", "d", "s"}}


def test_a_grid_that_knows_nothing_yet_is_not_ready() -> None:
    nothing = RegistrySnapshot({}, {}, {}, {}, 0)
    gateway = SimpleNamespace(figures=ConnectFigures(), forwarding=None)
    young = grid(Roster(), gateway, Histogram((1.0,)), waiting=0)
    found = read(Scrape(young, nothing, Requests(), is_ready=False))
    assert found["pwgrid_ready",] == 0
    assert found["pwgrid_counter_repairs_total",] == 0


def test_while_redis_is_away_what_it_holds_is_missing_and_the_rest_is_there() -> None:
    there, away = read(scrape()), read(scrape(found=None))
    full = read(scrape(found=RegistrySnapshot({}, {}, {}, {}, 0, write_fault=RedisFault(FaultKind.MEMORY_FULL))))
    assert (full["pwgrid_redis_up",], full["pwgrid_redis_writable",]) == (1, 0)
    assert (there["pwgrid_redis_writable",], away["pwgrid_redis_up",], away["pwgrid_redis_writable",]) == (1, 0, 0)
    from_redis = {each.name for each in metrics.ALL if each.source is metrics.Source.REDIS}
    gone = {key[0] for key in there.keys() - away.keys()}
    assert {re.sub("_(total|bucket|count|sum)$", "", name) for name in gone} == from_redis - {
        each.name for each in metrics.ONLY_BY_WORKER
    }


def test_the_table_has_every_metric_of_a_scrape_and_the_scrape_every_one_of_the_table() -> None:
    shown = {
        (family.name, family.type, family.documentation)
        for family in text_string_to_metric_families(exposition(scrape(by_worker=True)).decode())
    }
    assert {(name, kind) for name, kind, _ in shown} == {(each.name, each.kind) for each in metrics.ALL}
    assert {name: text for name, _, text in shown if "_process_" not in name} == {
        each.name: each.meaning for each in metrics.ALL if "_process_" not in each.name
    }


def test_the_labels_are_those_of_the_table() -> None:
    labels = {each.name: set(each.labels) for each in metrics.ALL}
    for family in text_string_to_metric_families(exposition(scrape(by_worker=True)).decode()):
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == labels[family.name], sample


def test_a_histogram_is_read_back_as_it_was() -> None:
    for figures in ((), (0.0,), (2.0, 30.0), (1e6,)):
        told = lengths(*figures)
        read_back = Histogram.read(LENGTH_BOUNDS_S, told.as_data())
        assert (read_back.counts, read_back.total) == (told.counts, told.total)
    assert lengths().as_data() == [0.0]


def test_the_figures_of_the_most_pools_that_there_may_be_fit_into_a_frame_beside_the_pools() -> None:
    busy = tally()
    busy.launches = 1_000_000
    for place in range(10):
        # Of the other version it has workers only until they are replaced.
        for histogram in (busy.launch, busy.drain, busy.canaries["1.65"].pages):
            histogram.counts[place] = 1_000_000
    about = {"browserType": "chromium", "memoryMib": 100_000, "largestMib": 10_000, "earlyDeaths": 3}
    pools = {f"a-pool-with-a-name-{number}": {**about, **busy.as_data()} for number in range(MAX_POOLS)}
    assert len(encode({"t": "state", "data": {"metrics": {"pools": pools}}})) < MAX_FRAME_BYTES * 11 // 20


def test_the_page_is_made_from_the_table() -> None:
    page = PAGE.read_text()
    assert page == page_with(page), f"python -m tools.metrics_page writes {PAGE.name}"


@pytest.mark.parametrize(
    ("reason", "found"),
    [
        (Reason(WorkerEnd.WORKER_ENDED, "SIGKILL", "SIGKILL"), ("worker ended", "SIGKILL")),
        (Reason(WorkerEnd.WORKER_ENDED, "code 1"), ("worker ended", "none")),
        (Reason(WorkerEnd.LAUNCH_FAILED, "firefox did not start", "SIGSEGV"), ("launch failed", "SIGSEGV")),
        (Reason(WorkerEnd.BROWSER_ENDED, "signal 35", "signal 35"), ("browser ended", "other")),
        (Reason(WorkerEnd.SILENT, "9 s"), ("silent", "none")),
        (Reason(WorkerEnd.SHUTDOWN, note="did not end in time, killed"), ("other", "none")),
    ],
)
def test_what_befell_a_worker_is_one_of_a_closed_set(reason: Reason, found: tuple[str, str]) -> None:
    counts = event_counts.EventCounts()
    counts.died(reason)
    assert [death for *death, count in counts.as_data()["deaths"] if count] == [[*found]]


def test_what_befell_a_worker_is_told_by_no_word_of_its_sentence() -> None:
    counts = event_counts.EventCounts()
    counts.died(Reason(WorkerEnd.OTHER, "silent for 9 s: worker ended with SIGKILL: memory limit"))
    counts.drains(Reason(WorkerEnd.NOT_SAID, "lifetime limit"))
    assert [death for *death, count in counts.as_data()["deaths"] if count] == [["other", "none"]]
    assert not any(counts.as_data()["recycles"].values())


def test_only_a_replacement_counts_as_one() -> None:
    for kind in WorkerEnd:
        counts = event_counts.EventCounts()
        counts.drains(Reason(kind))
        assert [name for name, count in counts.as_data()["recycles"].items() if count] == (
            [kind.value] if kind in event_counts.RECYCLES else []
        )
