"""What a real grid measures, as Prometheus would read it: each event once, in its own series, whoever counts it."""

import os
import signal
from collections.abc import Iterator

import pytest
from playwright.async_api import Playwright
from prometheus_client.parser import text_string_to_metric_families

from pwgrid.proxy.api import metrics
from pwgrid.settings.own_playwright import own_minor
from tests.conftest import need
from tests.support.grid import WITHOUT_SPARES, Grid, eventually, eventually_async, running_grid
from tests.support.metric_names import all_names
from tests.support.raw import answer, head

POOL = ("chromium", "chromium")
ENVIRONMENT = {
    **WITHOUT_SPARES,
    "MAX_CONCURRENT_SESSIONS": "1",
    "WORKER_SELECT_TIMEOUT": "0.3",
    "CANARY_INTERVAL": "0.5",
    "MEMORY_CHECK_INTERVAL": "0.5",
}
Figures = dict[tuple[str, ...], float]


@pytest.fixture(scope="module")
def metered() -> Iterator[Grid]:
    """One worker with one slot; it is tried all the time."""
    need("chromium")
    with running_grid("--chromium", "1", environment=ENVIRONMENT) as grid:
        yield grid


def scrape(grid: Grid, path: str = "/metrics") -> Figures:
    """All samples by name and label values, but the buckets."""
    status, _, body = grid.get(path)
    assert status == 200
    labels = {each.name: each.labels for each in metrics.ALL}
    return {
        (sample.name, *(sample.labels[label] for label in labels[family.name])): sample.value
        for family in text_string_to_metric_families(body.decode())
        for sample in family.samples
        if not sample.name.endswith("_bucket")
    }


def waits_for(grid: Grid, name: str, *labels: str, above: float = 0) -> Figures:
    """The scrape that first has this figure above that."""

    def found() -> Figures | None:
        figures = scrape(grid)
        return figures if figures.get((name, *labels), 0) > above else None

    result: Figures = eventually(found, f"{name} {labels} is above {above}")
    return result


async def test_a_session_and_a_client_that_finds_no_slot_are_measured(metered: Grid, playwright: Playwright) -> None:
    before = scrape(metered)
    browser = await playwright.chromium.connect(metered.endpoint)
    refused, _, body = answer(metered.port, head())
    assert (refused, "no chromium slot came free within 0.3 s" in body["error"]) == (503, True)
    during = scrape(metered)
    await (await browser.new_page()).evaluate("1")
    await browser.close()
    ended = ("pwgrid_sessions_total", *POOL, "completed", "client disconnected")
    had = before.get(ended, 0)
    after = await eventually_async(lambda: (now := scrape(metered)).get(ended) == had + 1 and now, "its end is counted")

    def rose(*key: str, since: Figures = before, until: Figures = after) -> float:
        return until[key] - since.get(key, 0)

    assert (during["pwgrid_active_sessions", *POOL], during["pwgrid_slots", *POOL, "busy"]) == (1, 1)
    assert (after["pwgrid_active_sessions", *POOL], after["pwgrid_slots", *POOL, "available"]) == (0, 1)
    assert rose("pwgrid_session_duration_seconds_count", *POOL) == 1
    assert 0 < rose("pwgrid_session_duration_seconds_sum", *POOL) < 60
    for phase in ("queue", "selection", "handoff"):
        assert rose("pwgrid_proxy_connect_seconds_count", *POOL, phase) == 1
        assert rose("pwgrid_proxy_connect_seconds_sum", *POOL, phase) < 10
    assert rose("pwgrid_proxy_queue_wait_seconds_count", *POOL, "refused") == 1
    assert rose("pwgrid_proxy_queue_wait_seconds_sum", *POOL, "refused") > 0.29  # uvloop's timers may be 1 ms early
    assert rose("pwgrid_proxy_refusals_total", "503", "waited too long") == 1
    assert rose("pwgrid_upgrades_handed_off_total") == rose("pwgrid_upgrades_refused_total") == 1
    assert rose("pwgrid_proxy_redis_exchange_seconds_count") > 0


def test_the_canary_and_memory_are_measured_without_being_asked_for(metered: Grid) -> None:
    figures = waits_for(metered, "pwgrid_canary_first_page_seconds_count", *POOL, own_minor())
    assert 0 < figures["pwgrid_canary_first_page_seconds_sum", *POOL, own_minor()] < 60
    figures = waits_for(metered, "pwgrid_pool_memory_bytes", *POOL)
    assert figures["pwgrid_pool_memory_bytes", *POOL] >= figures["pwgrid_largest_worker_memory_bytes", *POOL] > 2**20
    assert figures["pwgrid_host_memory_available_bytes",] > 2**20
    assert figures["pwgrid_worker_launch_seconds_count", *POOL] == figures["pwgrid_worker_starts_total", *POOL]


def test_requests_are_counted_by_route_and_readiness_apart(metered: Grid) -> None:
    before = scrape(metered)
    for path in ("/health/ready", "/v1/sessions/none", "/v1/sessions/nobody"):
        metered.get(path)
    after = scrape(metered)
    for route, status, times in (("/health/ready", "200", 1), ("/v1/sessions/{id}", "404", 2)):
        key = ("pwgrid_proxy_http_requests_total", route, "GET", status)
        assert after[key] - before.get(key, 0) == times
    bad, _, _ = answer(metered.port, b"NOT HTTP\r\n\r\n")
    key = ("pwgrid_proxy_refusals_total", "400", "bad request")
    assert (bad, scrape(metered)[key] - after.get(key, 0)) == (400, 1)


def test_a_death_has_its_signal_a_recycle_its_reason_and_the_proxy_s_end_takes_neither(metered: Grid) -> None:
    def serving() -> dict[str, object] | None:
        ready = [each for each in metered.ask("status")["workers"] if each["status"] == "available"]
        return ready[0] if ready else None

    killed = eventually(serving, "a worker serves")
    os.kill(int(killed["nodePid"]), signal.SIGKILL)
    died = ("pwgrid_worker_deaths_total", *POOL, "browser server ended", "SIGKILL")
    waits_for(metered, *died)
    worker = eventually(lambda: (found := serving()) and found["id"] != killed["id"] and found, "another one serves")
    assert metered.command("drain", str(worker["id"])).returncode == 0
    recycled = ("pwgrid_worker_recycles_total", *POOL, "operator")
    drained, starts = ("pwgrid_worker_drain_seconds_count", *POOL), ("pwgrid_worker_starts_total", *POOL)
    of_both = (died, recycled, drained, starts)  # the worker that was killed has drained, too
    before: Figures = eventually(
        lambda: [(found := scrape(metered)).get(each) for each in of_both] == [1, 1, 2, 3] and found,
        "a death, a recycle, and what came of them is counted",
    )

    os.kill(metered.ask("status")["proxy"]["pid"], signal.SIGKILL)
    started = "pwgrid_proxy_process_start_time_seconds"
    eventually(
        lambda: metered.ask("status")["ready"] and metered.ask("status")["proxy"]["pid"], "there is a proxy again"
    )
    after = waits_for(metered, started, above=before[started,])
    assert (after[died], after[recycled], after[starts]) == (1, 1, 3)
    assert after["pwgrid_upgrades_handed_off_total",] == 0
    lasting = {key: value for key, value in before.items() if key[0] == "pwgrid_sessions_total"}
    assert lasting.items() <= after.items()


def test_workers_are_told_apart_only_on_request(metered: Grid) -> None:
    worker = eventually(lambda: metered.ask("status")["workers"], "there is a worker")[-1]["id"]
    slots = ("pwgrid_worker_slots", *POOL, worker)
    eventually(lambda: slots in scrape(metered, "/metrics?by=worker"), "the worker has figures of its own")
    assert not any(worker in key for key in scrape(metered))
    assert metered.get("/metrics?by=session")[0] == 400


def test_what_alerts_and_dashboard_ask_for_is_in_a_real_scrape(metered: Grid) -> None:
    _, _, body = metered.get("/metrics")
    found = {
        name
        for family in text_string_to_metric_families(body.decode())
        for name in (family.name, *(sample.name for sample in family.samples))
    }
    missing = {name for name in all_names() if name not in found and name.removesuffix("_total") not in found}
    assert {
        name for name in missing if not name.endswith("_bucket") or name.removesuffix("_bucket") not in found
    } == set()
    table = {each.name for each in metrics.ALL if each not in metrics.ONLY_BY_WORKER}
    assert table <= found
