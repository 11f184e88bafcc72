"""The documentation's recipes, as they stand there, and the runners that they need."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.grid import ROOT

SUPPORT = ROOT / "tests" / "support"
INSTALL_S = 300
PAGE = "data:text/html,<title>hello</title>"
"""In place of a page that is not on this machine."""

NO_NETWORK = re.compile(r"resol|ENOTFOUND|EAI_AGAIN|ECONNREFUSED|ETIMEDOUT|ENETUNREACH|unreachable|NewConnectionError")


def recipe(page: str, language: str, containing: str = "") -> str:
    """The only block of docs/`page` in that language that contains the text."""
    blocks = re.findall(rf"^```{language}\n(.*?)^```$", (ROOT / "docs" / page).read_text(), re.MULTILINE | re.DOTALL)
    (found,) = [block for block in blocks if containing in block]
    return str(found).replace("https://example.com", PAGE)


def lines(page: str, containing: str) -> list[str]:
    """The lines of all sh blocks of docs/`page` that contain the text."""
    blocks = re.findall(r"^```sh\n(.*?)^```$", (ROOT / "docs" / page).read_text(), re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if containing in line]


def run(command: str, cwd: Path, **environment: str) -> "subprocess.CompletedProcess[str]":
    """A line of a recipe, as typed in a shell in which the virtual environment is active."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("PWGRID", "PW_TEST", "PYTEST"))}
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return subprocess.run(
        ["sh", "-c", command],
        cwd=cwd,
        env={**ours, "PATH": path, "PWTEST_CACHE_DIR": str(cwd / ".cache"), **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def install(*command: str, cwd: Path) -> None:
    """Runs an installer. Skips where there is no network."""
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=INSTALL_S, check=False)
    said = done.stderr + done.stdout
    if done.returncode and NO_NETWORK.search(said):
        pytest.skip(f"{command[0]} has no network: {said.strip().splitlines()[-1]}")
    assert done.returncode == 0, said


def pip_install(directory: Path, *requirements: str) -> None:
    """Installs packages into a directory for PYTHONPATH, beside those that are there."""
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps")
    install(*pip, "--target", str(directory), *requirements, cwd=directory)


def npm_ci(directory: Path) -> None:
    """Installs Playwright Test. Skips where there is no npm."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not installed")
    for name in ("package.json", "package-lock.json"):
        shutil.copy(SUPPORT / "playwright_test" / name, directory)
    install(npm, "ci", "--no-audit", "--no-fund", "--prefer-offline", cwd=directory)
