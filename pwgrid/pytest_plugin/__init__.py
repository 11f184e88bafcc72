"""The pytest plugin: pytest-playwright takes its browsers from a grid. Without an endpoint it does nothing.

pytest loads it by its entry point; nothing else of pwgrid imports it, or needs pytest.
"""

import os
from collections.abc import Generator
from typing import Any, Final
from urllib.parse import urlsplit

import pytest

ENDPOINT_VARIABLE: Final = "PWGRID_WS_ENDPOINT"
SLOTS_VARIABLE: Final = "PWGRID_SLOTS"
"""How many sessions the grid of `pwgrid run` has room for."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """--pwgrid."""
    parser.getgroup("pwgrid", "browsers of a pwgrid").addoption(
        "--pwgrid",
        metavar="URL",
        help=f"Take the browsers from the grid at this endpoint [${ENDPOINT_VARIABLE}]; empty: from none.",
    )


def endpoint(config: pytest.Config) -> str:
    """Where the grid is; empty when there is none."""
    given: str | None = config.getoption("--pwgrid")
    return os.environ.get(ENDPOINT_VARIABLE, "") if given is None else given


def slots(config: pytest.Config) -> int | None:
    """How many browsers the grid gives at once; None where it does not say."""
    found = os.environ.get(SLOTS_VARIABLE, "")
    is_of_run = endpoint(config) == os.environ.get(ENDPOINT_VARIABLE)
    return int(found) if is_of_run and found.isdigit() else None


@pytest.hookimpl(wrapper=True)
def pytest_cmdline_main(config: pytest.Config) -> Generator[None, Any, Any]:
    """pytest-xdist starts no more processes than the grid has slots.

    Each keeps its browser until all are done. One that waits for a slot would keep its tests, and all others would wait
    for it to run them.
    """
    most = slots(config)
    if most and hasattr(config.option, "maxprocesses"):
        config.option.maxprocesses = min(config.option.maxprocesses or most, most)
    return (yield)


def pytest_configure(config: pytest.Config) -> None:
    """Registers the fixtures. So late that they replace those of pytest-playwright, but none of a conftest.py."""
    if endpoint(config):
        from pwgrid.pytest_plugin import fixtures

        config.pluginmanager.register(fixtures, "pwgrid-fixtures")


def pytest_report_header(config: pytest.Config) -> str | None:
    """Where the browsers are, without the token."""
    if not endpoint(config):
        return None
    url, most = urlsplit(endpoint(config)), slots(config)
    return f"pwgrid: {url.scheme}://{url.netloc}" + (f", {most} slots" if most else "")
