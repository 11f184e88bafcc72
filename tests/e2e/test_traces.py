"""A trace that a real client begins, with a real browser, as docs/traces.md has it."""

import re
import subprocess
import sys
import textwrap

from tests.conftest import need
from tests.support.collector import collecting
from tests.support.grid import running_grid
from tests.support.recipes import recipe


def test_the_client_of_the_page_on_traces() -> None:
    need("chromium")
    block = recipe("traces.md", "python", "traceparent")
    found = re.search(r"00-([0-9a-f]{32})-([0-9a-f]{16})-01", block)
    assert found is not None
    with (
        collecting() as collector,
        running_grid("--chromium", "1", environment=collector.environment()) as grid,
    ):
        block = textwrap.indent(block.replace("ws://127.0.0.1:8080", grid.endpoint), "    ")
        script = f"from playwright.sync_api import *\nwith sync_playwright() as p:\n{block}    browser.new_page()"
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        spans = collector.trace(found[1], "connect", "queue", "selection", "handoff", "session")
    assert spans["connect"].parent == found[2]
    assert spans["session"].parent == spans["connect"].own
    assert spans["session"]["bytes_out"] > 1000
    assert spans["connect"].end < spans["session"].end
