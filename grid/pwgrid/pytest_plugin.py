"""The pytest plugin: pytest-playwright takes its browsers from a grid. Without an endpoint it does nothing.

pytest loads it by its entry point; nothing else of pwgrid imports it, or needs pytest.
"""

import os
from typing import Final
from urllib.parse import urlsplit

import pytest

ENDPOINT_VARIABLE: Final = "PWGRID_WS_ENDPOINT"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds --pwgrid."""
    parser.getgroup("pwgrid", "browsers of a pwgrid").addoption(
        "--pwgrid",
        metavar="URL",
        help=f"Take the browsers from the grid at this endpoint [${ENDPOINT_VARIABLE}]; empty: from none.",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Registers the fixtures. So late that they replace those of pytest-playwright, but none of a conftest.py."""
    if url := endpoint(config):
        from pwgrid.client import Server

        try:
            Server.at(url)
        except ValueError:
            where = ENDPOINT_VARIABLE if config.getoption("--pwgrid") is None else "--pwgrid"
            shown = url.partition("?")[0]  # behind that there may be a token
            raise pytest.UsageError(f"{where}: {shown!r} is no URL of a grid: use ws://host:8080") from None
        config.pluginmanager.import_plugin("pwgrid.pytest_fixtures")


def pytest_report_header(config: pytest.Config) -> str | None:
    """The grid's URL, without the token."""
    if not endpoint(config):
        return None
    url = urlsplit(endpoint(config))
    return f"pwgrid: {url.scheme}://{url.netloc}"


def endpoint(config: pytest.Config) -> str:
    """The grid's URL, from --pwgrid or else the environment; empty when the tests use none."""
    given: str | None = config.getoption("--pwgrid")
    return os.environ.get(ENDPOINT_VARIABLE, "") if given is None else given
