"""The hooks that pytest calls: the option --pwgrid, the fixtures, the header of the report."""

from urllib.parse import urlsplit

import pytest

from pwgrid.pytest_plugin.endpoint import ENDPOINT_VARIABLE, endpoint


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
        from pwgrid.client.http import Server
        from pwgrid.pytest_plugin import fixtures

        try:
            Server.at(url)
        except ValueError as error:
            where = ENDPOINT_VARIABLE if config.getoption("--pwgrid") is None else "--pwgrid"
            raise pytest.UsageError(f"{where}: {error}") from None

        config.pluginmanager.register(fixtures, "pwgrid-fixtures")


def pytest_report_header(config: pytest.Config) -> str | None:
    """The grid's URL, without the token."""
    if not endpoint(config):
        return None
    url = urlsplit(endpoint(config))
    return f"pwgrid: {url.scheme}://{url.netloc}"
