"""Where a test run finds its grid: the option --pwgrid, else the environment."""

import os
from typing import Final

import pytest

ENDPOINT_VARIABLE: Final = "PWGRID_WS_ENDPOINT"


def endpoint(config: pytest.Config) -> str:
    """The grid's URL; empty when the tests use none."""
    given: str | None = config.getoption("--pwgrid")
    return os.environ.get(ENDPOINT_VARIABLE, "") if given is None else given
