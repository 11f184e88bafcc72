"""A browser that does not start skips its tests with that reason, and the run of tests ends with a word on it."""

import os
import subprocess
import sys
from pathlib import Path

from tests.support.grid import ROOT


def test_tests_of_a_browser_that_does_not_start_are_skipped_and_the_run_says_so_at_its_end(tmp_path: Path) -> None:
    broken = tmp_path / "firefox"
    broken.write_text("#!/bin/sh\necho 'libxul.so: cannot open shared object file' >&2\nexit 255\n")
    broken.chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/e2e/test_firefox.py"],
        cwd=ROOT,
        env={**os.environ, "FIREFOX_EXECUTABLE": str(broken)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    *_, said, figures = done.stdout.splitlines()
    assert figures.startswith("2 skipped in ")
    assert said == (
        f"NOT TESTED: 2 tests were skipped for want of firefox: {broken} does not start: "
        "the library libxul.so is missing: run `playwright install-deps` as root"
    )
