"""What pytest says of an endpoint that the plugin is given. That it works: tests/e2e/test_recipes.py."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.test_client import BAD_ENDPOINTS


@pytest.mark.parametrize("endpoint", BAD_ENDPOINTS)
@pytest.mark.parametrize("argument", ["", "--pwgrid"])
def test_pytest_says_in_one_line_that_an_endpoint_is_none(tmp_path: Path, endpoint: str, argument: str) -> None:
    given = [f"{argument}={endpoint}"] if argument else []
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:asyncio", *given],
        cwd=tmp_path,
        env={**os.environ, "PWGRID_WS_ENDPOINT": "" if argument else endpoint},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    where = argument or "PWGRID_WS_ENDPOINT"
    shown = repr(endpoint.replace("s3cret", "***"))
    assert done.stderr.strip() == f"ERROR: {where}: {shown} is no URL of a grid: use ws://host:8080"
