"""The pytest plugin: pytest-playwright takes its browsers from a grid. Without an endpoint it does nothing.

pytest loads it by its entry point; nothing else of pwgrid imports it, or needs pytest.
"""

import os
from typing import Final

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
        from pwgrid.common.grid_url import GridUrl

        try:
            GridUrl.parse(url)
        except ValueError as error:
            where = ENDPOINT_VARIABLE if config.getoption("--pwgrid") is None else "--pwgrid"
            raise pytest.UsageError(f"{where}: {error}") from None
        config.pluginmanager.import_plugin("pwgrid.pytest_fixtures")


def pytest_report_header(config: pytest.Config) -> str | None:
    """The grid's URL, without its secrets."""
    if not endpoint(config):
        return None
    from pwgrid.common.grid_url import without_secrets

    return f"pwgrid: {without_secrets(endpoint(config))}"


def endpoint(config: pytest.Config) -> str:
    """The grid's URL, from --pwgrid or else the environment; empty when the tests use none."""
    given: str | None = config.getoption("--pwgrid")
    return os.environ.get(ENDPOINT_VARIABLE, "") if given is None else given
