"""The hooks that pytest calls: the option --pwgrid, the fixtures, the header of the report."""

from urllib.parse import urlsplit

import pytest

from pwgrid.pytest_plugin.endpoint import ENDPOINT_VARIABLE, endpoint, is_url


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
        from pwgrid.pytest_plugin import fixtures

        if not is_url(url):
            where = ENDPOINT_VARIABLE if config.getoption("--pwgrid") is None else "--pwgrid"
            shown = url.partition("?")[0]  # behind that there may be a token
            raise pytest.UsageError(f"{where}: {shown!r} is no URL of a grid: use ws://host:8080")
        config.pluginmanager.register(fixtures, "pwgrid-fixtures")


def pytest_report_header(config: pytest.Config) -> str | None:
    """The grid's URL, without the token."""
    if not endpoint(config):
        return None
    url = urlsplit(endpoint(config))
    return f"pwgrid: {url.scheme}://{url.netloc}"
