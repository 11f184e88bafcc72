"""Real Playwright clients on real Chromium through a grid that speaks TLS."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.conftest import need
from tests.support import tls
from tests.support.grid import ROOT, WITHOUT_SPARES, Grid, eventually, running_grid
from tests.support.leases import CHROMIUM

TRUST: Final = {"SSL_CERT_FILE": str(tls.AUTHORITY), "NODE_EXTRA_CA_CERTS": str(tls.AUTHORITY)}

PYTHON: Final = """\
import json, sys
from playwright.sync_api import expect, sync_playwright
from pwgrid.client import borrow

base, label_key = sys.argv[1:]
secure = base.replace("https:", "wss:")
with sync_playwright() as playwright:
    found = {}
    browser = playwright.chromium.connect(secure + "?browser=chromium")
    page = browser.new_page(ignore_https_errors=True)  # a browser's trust is not what is tested
    page.goto(base)
    expect(page.locator("#link")).to_have_text("live")  # by its WebSocket
    found["text"] = page.evaluate("text => text.length", "x" * 3_000_000)
    browser.close()
    cdp = playwright.chromium.connect_over_cdp(base)
    found["cdp"] = cdp.new_page().evaluate("6 * 7")
    cdp.close()
    with borrow(label_key, grid=base) as lease:
        browser = playwright.chromium.connect(lease.ws_endpoint)
        found["leased"] = [lease.ws_endpoint.split("/lease/")[0], browser.new_page().evaluate("1 + 1")]
        browser.close()
    try:
        playwright.chromium.connect(secure.replace("wss:", "ws:"))
    except Exception as error:
        found["plain"] = str(error)
print(json.dumps(found))
"""

NODE: Final = """\
const [core, endpoint] = process.argv.slice(1);
const { chromium } = require(core);
(async () => {
  const browser = await chromium.connect(endpoint);
  const page = await (await browser.newContext()).newPage();
  await page.setContent('<title>hello</title>');
  const shot = await page.screenshot();
  console.log(JSON.stringify([await page.title(), shot.subarray(1, 4).toString()]));
  await browser.close();
})();
"""


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Grid]:
    need("chromium")
    environment = {
        **WITHOUT_SPARES,
        **tls.copies(tmp_path_factory.mktemp("tls")),
        "PWGRID_POOL_CONFIG": f"{CHROMIUM}=1",
    }
    with running_grid(environment=environment) as grid:
        yield grid
        eventually(lambda: grid.active() == 0, "all slots are free")


def said_by(*command: str) -> Any:
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **TRUST}, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_python_client_gets_a_browser_a_lease_cdp_and_the_dashboard(secure: Grid) -> None:
    found = said_by(sys.executable, "-c", PYTHON, f"https://localhost:{secure.port}/", CHROMIUM)
    assert found["text"] == 3_000_000
    assert found["cdp"] == 42
    assert found["leased"] == [f"wss://localhost:{secure.port}", 2]
    assert "this port speaks TLS: use wss:// or https://" in found["plain"]


def test_a_node_client_gets_a_browser(secure: Grid, node: tuple[str, Path]) -> None:
    executable, package = node
    assert said_by(executable, "-e", NODE, str(package), f"wss://localhost:{secure.port}/") == ["hello", "PNG"]
