"""The figures of a scrape, read back by Prometheus' own parser."""

from prometheus_client.parser import text_string_to_metric_families

from pwgrid.proxy.api.metrics import exposition
from pwgrid.proxy.connect.upgrade import Counts
from pwgrid.proxy.roster import Roster
from pwgrid.registry.registry import RegistrySnapshot, WorkerRecord


def scrape(found: RegistrySnapshot, roster: Roster, counts: Counts, waiting: int) -> dict[tuple[str, ...], float]:
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(
            exposition(found, roster, counts, waiting, is_ready=roster.not_ready() is None).decode()
        )
        for sample in family.samples
    }


def test_every_figure_of_a_grid_that_serves() -> None:
    workers = {
        "chromium:a": WorkerRecord("chromium", "a", "ws://a", slots=5, rss_mib=2),
        "firefox:b": WorkerRecord("firefox", "b", "ws://b", slots=3),
        "firefox:s": WorkerRecord("firefox", "s", "ws://s", status="spare", slots=3),
    }
    found = RegistrySnapshot(
        {"chromium:a": 2}, {"chromium:a": 7}, workers, {"completed": 4, "failed": 1}, 6, {"failed": 1}
    )
    roster = Roster()
    roster.replace(
        {
            "pools": {"chromium": {"wanted": 2, "available": 1, "reason": None, "drainTimeouts": 8}},
            "workers": [
                {"id": "a", "browserType": "chromium", "status": "available"},
                {"id": "c", "browserType": "chromium", "status": "draining"},
            ],
        }
    )
    counts = Counts(handed_off=7, refused=1, retried=2, abandoned=3, options_ignored=5)
    assert scrape(found, roster, counts, waiting=9) == {
        ("pwgrid_active_sessions", "chromium", "a"): 2,
        ("pwgrid_active_sessions", "firefox", "b"): 0,
        ("pwgrid_active_sessions", "firefox", "s"): 0,
        ("pwgrid_slots", "chromium", "a"): 5,
        ("pwgrid_slots", "firefox", "b"): 3,
        ("pwgrid_slots", "firefox", "s"): 0,
        ("pwgrid_lifetime_sessions", "chromium", "a"): 7,
        ("pwgrid_lifetime_sessions", "firefox", "b"): 0,
        ("pwgrid_lifetime_sessions", "firefox", "s"): 0,
        ("pwgrid_worker_memory_bytes", "chromium", "a"): 2 * 1024 * 1024,
        ("pwgrid_sessions_total", "completed"): 4,
        ("pwgrid_sessions_total", "failed"): 1,
        ("pwgrid_sessions_total", "ended"): 0,
        ("pwgrid_sessions_total", "expired"): 0,
        ("pwgrid_sessions_taken_back_total", "failed"): 1,
        ("pwgrid_counter_repairs_total",): 6,
        ("pwgrid_ready",): 1,
        ("pwgrid_workers_wanted", "chromium"): 2,
        ("pwgrid_workers", "chromium", "starting"): 0,
        ("pwgrid_workers", "chromium", "spare"): 0,
        ("pwgrid_workers", "chromium", "available"): 1,
        ("pwgrid_workers", "chromium", "draining"): 1,
        ("pwgrid_drain_timeouts_total", "chromium"): 8,
        ("pwgrid_clients_waiting",): 9,
        ("pwgrid_upgrades_handed_off_total",): 7,
        ("pwgrid_upgrades_refused_total",): 1,
        ("pwgrid_upgrades_retried_total",): 2,
        ("pwgrid_upgrades_abandoned_total",): 3,
        ("pwgrid_upgrades_options_ignored_total",): 5,
    }


def test_a_grid_that_knows_nothing_yet_is_not_ready() -> None:
    figures = scrape(RegistrySnapshot({}, {}, {}, {}, 0), Roster(), Counts(), waiting=0)
    assert figures["pwgrid_ready",] == 0
    assert figures["pwgrid_counter_repairs_total",] == 0
