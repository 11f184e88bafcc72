"""What a worker loads: each of many such processes has it in memory."""

import logging
import subprocess
import sys

import redis.asyncio

from pwgrid.registry import redis_client

NOT_A_WORKERS = {
    # the proxy's
    "fastapi",
    "httptools",
    "prometheus_client",
    "starlette",
    "uvicorn",
    "websockets",
    # the command line's and the master's
    "argparse",
    "click",
    "pygments",
    "rich",
    "tomllib",
    "pwgrid.cli",
    "pwgrid.master",
    "pwgrid.proxy",
    "pwgrid.setup",
    # what runs Playwright's own client, or looks into installations
    "pip",
    "playwright.async_api",
    "playwright.sync_api",
    # for traces, where they are asked for (tests/process/test_traces.py looks at whole grids)
    "google.protobuf",
    "opentelemetry.exporter",
    "opentelemetry.sdk.trace",
    "requests",
}


def test_a_worker_loads_nothing_that_only_others_need() -> None:
    # As `pwgrid serve` has it: structlog would take rich wherever there is one.
    code = "import sys; sys.modules['rich'] = None; import pwgrid.worker.main; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "pwgrid.worker.main" in loaded
    assert NOT_A_WORKERS.intersection(loaded) == {"rich"}  # which is not there: an import of it fails


def test_a_subscription_writes_to_no_logger_that_a_worker_shares_with_the_master() -> None:
    redis_client.PubSub(redis.asyncio.ConnectionPool())
    assert logging.getLogger("push_response").handlers == []
