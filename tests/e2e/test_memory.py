"""Real browsers that take too much memory, a host that has none, and workers that grow old."""

import contextlib
import math
from typing import Any

import psutil
import pytest
from playwright.async_api import Error, Page, Playwright

from tests.support.grid import WITHOUT_SPARES, Grid, eventually_async, running_grid

LIMIT_MIB = 800
"""Well above any browser with one page, by PSS."""

ALLOCATE = """(mib) => {
    // Random bytes in every page: nothing to merge or compress away.
    window.held = window.held || [];
    const random = crypto.getRandomValues(new Uint8Array(65536));
    for (let n = 0; n < mib; n += 64) {
        const chunk = new Uint8Array(64 << 20);
        for (let at = 0; at < chunk.length; at += random.length)
            chunk.set(random, at);
        window.held.push(chunk);
    }
}"""


def sampled(grid: Grid, seen: list[dict[str, str]]) -> dict[str, str]:
    """Status by worker id, now; kept in `seen`."""
    statuses = {worker["id"]: worker["status"] for worker in grid.status()["workers"]}
    seen.append(statuses)
    return statuses


def serving(statuses: dict[str, str]) -> int:
    return sum(status == "available" for status in statuses.values())


@pytest.fixture
def ample_memory() -> None:
    """Skips where the greedy page would hurt the host."""
    if psutil.virtual_memory().available < 4 * LIMIT_MIB << 20:
        pytest.skip(f"less than {4 * LIMIT_MIB} MiB of memory are available")


async def greedy_page(grid: Grid, playwright: Playwright, mib: int) -> Page:
    browser = await playwright.chromium.connect(grid.endpoint)
    page = await browser.new_page()
    await page.evaluate(ALLOCATE, mib)
    return page


def only_session(grid: Grid) -> dict[str, Any]:
    (key,) = grid.redis("KEYS", "session:*")
    return {name.decode(): value.decode() for name, value in grid.redis("HGETALL", key).items()}


@pytest.mark.usefixtures("ample_memory")
async def test_a_worker_over_the_soft_limit_is_replaced_before_it_drains(playwright: Playwright) -> None:
    environment = {
        **WITHOUT_SPARES,
        "MEMORY_CHECK_INTERVAL": "0.3",
        "MAX_WORKER_MEMORY_MIB": str(LIMIT_MIB),
        "HEARTBEAT_INTERVAL": "0.3",
    }
    with running_grid("--chromium", "1", environment=environment) as grid:
        (greedy,) = grid.status()["workers"]
        assert greedy["rssMib"] > 50
        page = await greedy_page(grid, playwright, LIMIT_MIB)
        seen: list[dict[str, str]] = []

        def drains() -> bool:
            return sampled(grid, seen)[greedy["id"]] == "draining"

        await eventually_async(drains, "the greedy worker drains", 60)
        assert all(serving(statuses) >= 1 for statuses in seen), "capacity dipped"
        assert await page.evaluate("held.length") == math.ceil(LIMIT_MIB / 64)  # its session goes on
        worker = next(worker for worker in grid.status()["workers"] if worker["id"] == greedy["id"])
        assert worker["reason"].startswith("memory: ")
        assert worker["memoryMib"] > LIMIT_MIB
        await eventually_async(
            lambda: int(grid.redis("HGET", f"worker:chromium:{greedy['id']}", "rssMib")) > LIMIT_MIB,
            "a heartbeat says so",
        )
        await page.context.browser.close()  # type: ignore[union-attr]
        await eventually_async(lambda: greedy["id"] not in sampled(grid, seen), "the drained worker is gone")
        session = only_session(grid)
        assert (session["status"], session["workerId"]) == ("completed", greedy["id"])


@pytest.mark.usefixtures("ample_memory")
async def test_a_session_that_outlives_the_recycle_fails_with_the_reason_and_is_counted(
    playwright: Playwright,
) -> None:
    environment = {
        **WITHOUT_SPARES,
        "MEMORY_CHECK_INTERVAL": "0.3",
        "MAX_WORKER_MEMORY_MIB": str(LIMIT_MIB),
        "RECYCLE_DRAIN_TIMEOUT": "1",
        "MEMORY_METRIC": "uss",
    }
    with running_grid("--chromium", "1", environment=environment) as grid:
        with contextlib.suppress(Error):  # it may be cut while it still allocates
            await greedy_page(grid, playwright, LIMIT_MIB)
        await eventually_async(lambda: grid.active() == 0, "the session was cut", 60)
        session = only_session(grid)
        assert session["status"] == "failed"
        assert session["reason"].startswith("drain timeout: memory: ")

        def counted() -> bool:
            chromium = next(pool for pool in grid.status()["pools"] if pool["browserType"] == "chromium")
            return bool(chromium["drainTimeouts"] == 1 and chromium["available"] == 1)

        await eventually_async(counted, "the pool shows that a drain timed out")
        assert "1 drains timed out" in grid.command("status").stdout


@pytest.mark.usefixtures("ample_memory")
async def test_a_worker_over_the_hard_limit_is_killed_and_its_session_says_why(playwright: Playwright) -> None:
    environment = {**WITHOUT_SPARES, "MEMORY_CHECK_INTERVAL": "0.3", "MAX_WORKER_MEMORY_HARD_MIB": str(LIMIT_MIB)}
    with running_grid("--chromium", "1", environment=environment) as grid:
        (greedy,) = grid.status()["workers"]
        with contextlib.suppress(Error):  # the browser may go while it still allocates
            await greedy_page(grid, playwright, LIMIT_MIB)
        await eventually_async(lambda: grid.active() == 0, "the worker was killed", 60)
        session = only_session(grid)
        assert (session["status"], session["reason"]) == ("failed", "memory limit")

        def replaced() -> bool:
            statuses = {worker["id"]: worker["status"] for worker in grid.status()["workers"]}
            return greedy["id"] not in statuses and serving(statuses) == 1

        await eventually_async(replaced, "a replacement serves", 60)
        assert not (grid.runtime / "w" / greedy["id"]).exists()
        browser = await playwright.chromium.connect(grid.endpoint)
        await browser.close()


@pytest.mark.usefixtures("ample_memory")
async def test_over_the_hard_limit_the_browser_that_takes_the_most_ends_with_its_session_alone(
    playwright: Playwright,
) -> None:
    environment = {**WITHOUT_SPARES, "MEMORY_CHECK_INTERVAL": "0.5", "MAX_WORKER_MEMORY_HARD_MIB": str(LIMIT_MIB)}
    with running_grid("--chromium", "1", environment=environment) as grid:
        (worker,) = grid.status()["workers"]
        neighbour, greedy = [await playwright.chromium.connect(f"{grid.endpoint}/?isolation=browser") for _ in range(2)]
        page = await neighbour.new_page()
        with contextlib.suppress(Error):  # the browser may go while it still allocates
            await (await greedy.new_page()).evaluate(ALLOCATE, LIMIT_MIB)
        await eventually_async(lambda: not greedy.is_connected(), "its session has ended", 60)
        assert await page.evaluate("6 * 7") == 42
        assert [each["pid"] for each in grid.status()["workers"]] == [worker["pid"]]
        await neighbour.close()
        await eventually_async(lambda: grid.active() == 0, "no slot is taken")
        reasons = [grid.redis("HGET", key, "reason") for key in grid.redis("KEYS", "session:*")]
        assert sorted(reasons) == [b"client disconnected", b"memory limit"]


async def test_a_host_without_memory_queues_then_refuses_and_says_why(playwright: Playwright) -> None:
    environment = {"MIN_HOST_AVAILABLE_MIB": "10000000", "WORKER_SELECT_TIMEOUT": "0.5"}
    with running_grid("--chromium", "1", environment=environment) as grid:
        with pytest.raises(Error, match=r"503[\s\S]*short of memory[\s\S]*MIN_HOST_AVAILABLE_MIB"):
            await playwright.chromium.connect(grid.endpoint)
        status, headers, body = grid.get("/health/ready")
        assert status == 503
        assert b"short of memory" in body
        assert headers["retry-after"]
        found = grid.status()
        assert found["workers"] == []
        assert "short of memory" in found["host"]["guard"]
        assert found["host"]["availableMib"] > 0
        assert "short of memory" in grid.command("status").stdout
        assert "host_guard_closed" in grid.output()
        assert "short of memory" in next(line for line in grid.output().splitlines() if "ready:" in line)


async def test_old_workers_are_replaced_one_after_the_other_without_a_dip() -> None:
    environment = {**WITHOUT_SPARES, "MAX_WORKER_AGE": "3", "MEMORY_CHECK_INTERVAL": "0.2"}
    with running_grid("--chromium", "2", environment=environment, fake=True) as grid:
        first = {worker["id"] for worker in grid.status()["workers"]}
        seen: list[dict[str, str]] = []
        await eventually_async(lambda: not first & set(sampled(grid, seen)), "both are gone", 60)
        assert all(serving(statuses) >= 2 for statuses in seen), "capacity dipped"
        assert max(len(statuses) for statuses in seen) <= 4
        assert "age: older than 3 s" in grid.output()
