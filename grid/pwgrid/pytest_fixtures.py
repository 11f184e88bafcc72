"""The fixtures of the pytest plugin, which registers this module where there is an endpoint.

They are functions of a module: pytest 10 takes no methods as fixtures of a session.
"""

import inspect

import pytest

from pwgrid.pytest_plugin import endpoint


@pytest.fixture(scope="session")
def connect_options(pytestconfig: pytest.Config) -> dict[str, str]:
    """The arguments of Playwright's `connect()`. Its first parameter is `endpoint`, in older versions `ws_endpoint`."""
    from playwright.sync_api import BrowserType

    first = list(inspect.signature(BrowserType.connect).parameters)[1]
    return {first: endpoint(pytestconfig)}
