"""The pytest plugin: pytest-playwright takes its browsers from a grid. Without an endpoint it does nothing.

pytest loads it by its entry point; nothing else of pwgrid imports it, or needs pytest.
"""

import os
from typing import Final
from urllib.parse import urlsplit

import pytest

ENDPOINT_VARIABLE: Final = "PWGRID_WS_ENDPOINT"


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


def pytest_configure(config: pytest.Config) -> None:
    """Registers the fixtures. So late that they replace those of pytest-playwright, but none of a conftest.py."""
    if endpoint(config):
        from pwgrid.pytest_plugin import fixtures

        config.pluginmanager.register(fixtures, "pwgrid-fixtures")


def pytest_report_header(config: pytest.Config) -> str | None:
    """Where the browsers are, without the token."""
    if not endpoint(config):
        return None
    url = urlsplit(endpoint(config))
    return f"pwgrid: {url.scheme}://{url.netloc}"
