"""The fixture by which pytest-playwright connects to a grid."""

import inspect

import pytest


@pytest.fixture(scope="session")
def connect_options(pytestconfig: pytest.Config) -> dict[str, str]:
    """The arguments of Playwright's `connect()`. Its first parameter is `endpoint`, in older versions `ws_endpoint`."""
    from playwright.sync_api import BrowserType

    from pwgrid.pytest_plugin.hooks import endpoint

    first = list(inspect.signature(BrowserType.connect).parameters)[1]
    return {first: endpoint(pytestconfig)}
