"""Where a test run finds its grid: the option --pwgrid, else the environment."""

import os
from typing import Final
from urllib.parse import urlsplit

import pytest

ENDPOINT_VARIABLE: Final = "PWGRID_WS_ENDPOINT"


def endpoint(config: pytest.Config) -> str:
    """The grid's URL; empty when the tests use none."""
    given: str | None = config.getoption("--pwgrid")
    return os.environ.get(ENDPOINT_VARIABLE, "") if given is None else given


def is_url(text: str) -> bool:
    """Whether a grid may be at this URL."""
    try:
        url = urlsplit(text)
        return url.scheme in ("ws", "wss", "http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:  # a port that is none, or half an IPv6 address
        return False
