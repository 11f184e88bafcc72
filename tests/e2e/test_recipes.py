"""The recipes of docs/connect.md and docs/ci.md, with the runners and the browsers that they are for."""

import json
import re
import subprocess
import sys
import sysconfig
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright._repo_version import __version__ as playwright_version

from tests.conftest import need
from tests.support.grid import ROOT, Grid, free_port
from tests.support.recipes import lines, npm_ci, pip_install, recipe, run

pytestmark = pytest.mark.timeout(600)  # installers are among what runs here

ENDPOINT = "ws://127.0.0.1:8080"
OLDEST = "1.58.0"
"""Of Playwright, as pyproject.toml has it."""

TESTS_IN_PYTHON = textwrap.dedent(
    """
    import pytest

    @pytest.mark.parametrize("n", range(12))
    def test_a_page_of_the_grid(page, n):
        page.set_content("<title>hello</title>")
        assert page.title() == "hello"
    """
)

TESTS_IN_JS = textwrap.dedent(
    """
    const { test, expect } = require('@playwright/test');
    const http = require('node:http');

    test.describe.configure({ mode: 'parallel' });
    for (const n of [1, 2, 3])
      test(`three seconds ${n}`, async ({ page }) => {
        await page.setContent('<title>hello</title>');
        await page.waitForTimeout(3000);
        expect(await page.title()).toBe('hello');
      });

    test('a server of the test', async ({ page }) => {
      const server = http.createServer((_, response) => response.end('<title>local</title>')).listen(0, '127.0.0.1');
      await new Promise(listening => server.once('listening', listening));
      await page.goto(`http://localhost:${server.address().port}/`);
      expect(await page.title()).toBe('local');
      server.close();
    });
    """
)


PYTEST_INI = """\
[pytest]
asyncio_default_fixture_loop_scope = function
filterwarnings =
    error
    # pytest-playwright's own, where pytest-base-url is not installed
    ignore:[^$]*the 'base_url' fixture:pytest.PytestRemovedIn10Warning
"""


@pytest.fixture(scope="module")
def npm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with Playwright Test."""
    need("chromium")
    directory = tmp_path_factory.mktemp("npm")
    npm_ci(directory)
    has = json.loads((directory / "node_modules" / "playwright" / "package.json").read_text())["version"]
    if has.rsplit(".", 1)[0] != playwright_version.rsplit(".", 1)[0]:
        pytest.skip(f"the grid has Playwright {playwright_version}, not the {has} of the lock")
    (directory / "tests").mkdir()
    (directory / "tests" / "hello.spec.js").write_text(TESTS_IN_JS)
    return directory


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """pytest-playwright, for PYTHONPATH."""
    need("chromium")
    directory = tmp_path_factory.mktemp("runner")
    pip_install(directory, "--require-hashes", "--requirement", str(ROOT / "tests/support/pytest_playwright.txt"))
    return directory


@pytest.fixture
def pytest_project(tmp_path: Path) -> Iterator[Path]:
    """Twelve tests that want a page, and nothing said of a grid. A warning is an error."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_page.py").write_text(TESTS_IN_PYTHON)
    (tmp_path / "pytest.ini").write_text(PYTEST_INI)
    return tmp_path


def sessions(done: "subprocess.CompletedProcess[str]") -> int:
    """How many there were, by the last line of `pwgrid run`."""
    found = re.search(r"^pwgrid: (\d+) sessions?, .* 0 refused, 0 cut, ", done.stderr, re.MULTILINE)
    assert found is not None, done.stderr + done.stdout
    return int(found[1])


def served(grid: Grid) -> int:
    """How many clients the grid has given a browser so far."""
    status, _, body = grid.get("/v1/status")
    assert status == 200
    return int(json.loads(body)["clients"]["handedOff"])


def test_playwright_test_takes_its_browsers_from_the_grid_and_its_workers_wait_for_a_slot(npm: Path) -> None:
    (line,) = lines("ci.md", "npx playwright test")
    done = run(line.replace("--chromium 2", "--chromium 1 --slots 1") + " --workers 3 --retries 2", npm)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 passed" in done.stdout
    assert "flaky" not in done.stdout
    assert sessions(done) == 3


def test_playwright_test_takes_a_grid_that_its_configuration_names(npm: Path, grid: Grid) -> None:
    configuration = npm / "playwright.config.js"
    configuration.write_text(recipe("ci.md", "js", "use: { connectOptions").replace(ENDPOINT, grid.endpoint))
    before = served(grid)
    try:
        done = run("npx playwright test --workers 1 --grep server", npm)
    finally:
        configuration.unlink()
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout
    assert served(grid) == before + 1


SERVER = """
require('node:http').createServer((_, response) => response.end('<title>of the web server</title>'))
  .listen(process.env.SITE_PORT, '127.0.0.1');
"""
TEST_OF_SERVER = """
const { test, expect } = require('@playwright/test');
test('of the web server', async ({ page }) => {
  await page.goto('/');
  expect(await page.title()).toBe('of the web server');
});
"""


def test_playwright_test_reaches_its_own_web_server_through_the_grid(npm: Path, grid: Grid) -> None:
    configuration, server, port = npm / "playwright.config.js", npm / "server.js", free_port()
    test = npm / "tests" / "own.spec.js"
    text = recipe("ci.md", "js", "exposeNetwork").replace(ENDPOINT, grid.endpoint).replace("3000", str(port))
    configuration.write_text(text)
    server.write_text(SERVER)
    test.write_text(TEST_OF_SERVER)
    try:
        done = run("npx playwright test --workers 1 --grep 'of the web'", npm, SITE_PORT=str(port))
    finally:
        for each in (configuration, server, test):
            each.unlink()
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout
    (record,) = json.loads(grid.get("/v1/sessions?limit=1")[2])["sessions"]
    assert record["isolation"] == "browser"


@pytest.mark.parametrize(("options", "clients"), [("", 1), ("-n 4", 4)])
def test_pytest_takes_its_browsers_from_the_grid_and_processes_of_xdist_wait_for_a_slot(
    runner: Path, pytest_project: Path, options: str, clients: int
) -> None:
    (line,) = lines("ci.md", "pwgrid run --chromium 2 -- pytest")
    done = run(
        line.replace("--chromium 2", "--chromium 1 --slots 2") + " " + options, pytest_project, PYTHONPATH=str(runner)
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "12 passed" in done.stdout
    assert sessions(done) == clients
    assert re.search(r"^pwgrid: ws://127.0.0.1:\d+$", done.stdout, re.MULTILINE)


def test_pytest_takes_a_grid_that_its_command_line_names_and_shows_no_token(
    runner: Path, pytest_project: Path, grid: Grid
) -> None:
    (line,) = lines("ci.md", "pytest --pwgrid")
    before = served(grid)
    line = line.replace(ENDPOINT, grid.endpoint + "/?token=s3cret")
    done = run(line, pytest_project, PYTHONPATH=str(runner), PWGRID_WS_ENDPOINT="ws://127.0.0.1:9")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"pwgrid: {grid.endpoint}/?token=***\n" in done.stdout
    assert "s3cret" not in done.stdout
    assert served(grid) == before + 1


LOOK = """
import asyncio, json, sys
from pathlib import Path
from playwright.async_api import async_playwright
from tests.support.stand_in_proxy import browser_server

async def look(path):
    async with (
        browser_server("chromium", live_view=path) as server,
        async_playwright() as playwright,
        await playwright.chromium.connect(server.endpoint) as browser,
    ):
        page = await browser.new_page()
        reader, writer = await asyncio.open_unix_connection(str(path))
        said = json.dumps({"session": f"{1:016x}"}).encode()
        writer.write(len(said).to_bytes(4, "big") + b"\\0" + said)
        kind = 0
        while not kind:  # what pages there are
            header = await reader.readexactly(5)
            kind, shown = header[4], await reader.readexactly(int.from_bytes(header[:4], "big"))
        print(json.dumps([shown[:3].hex(), await page.evaluate("6 * 7")]))
        writer.close()

asyncio.run(look(Path(sys.argv[1])))
"""


def test_the_oldest_playwright_connects_too(
    runner: Path, pytest_project: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    assert f'"playwright>={OLDEST.rsplit(".", 1)[0]},' in (ROOT / "pyproject.toml").read_text()
    oldest = tmp_path_factory.mktemp("oldest")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(oldest)], check=True)
    (packages,) = oldest.glob("lib/python*/site-packages")
    (packages / "ours.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    pip_install(packages, f"playwright=={OLDEST}", "pyee>=13,<14")
    python = oldest / "bin" / "python"
    line = f"{python} -m pwgrid run --chromium 1 -- {python} -m pytest tests/"
    done = run(line, pytest_project, PYTHONPATH=str(runner))
    assert done.returncode == 0, done.stdout + done.stderr
    assert (sessions(done), "12 passed" in done.stdout) == (1, True)
    # Its driver has no screencast that the live view could share, and needs none for Chromium: a viewer sees a JPEG.
    look = subprocess.run(
        [python, "-c", LOOK, str(oldest / "live")], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert look.returncode == 0, look.stderr
    assert json.loads(look.stdout) == ["ffd8ff", 42]


def test_the_plugin_does_nothing_without_an_endpoint(runner: Path, pytest_project: Path, grid: Grid) -> None:
    (pytest_project / "tests" / "test_page.py").write_text(
        "def test_options(connect_options): assert not connect_options"
    )
    for command, endpoint in (("pytest tests/", ""), ("pytest --pwgrid= tests/", grid.endpoint)):
        done = run(command, pytest_project, PYTHONPATH=str(runner), PWGRID_WS_ENDPOINT=endpoint)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "pwgrid:" not in done.stdout


def test_without_the_plugin_a_fixture_does_the_same(runner: Path, pytest_project: Path, grid: Grid) -> None:
    (pytest_project / "tests" / "conftest.py").write_text(recipe("ci.md", "python", "connect_options"))
    before = served(grid)
    done = run("pytest -p no:pwgrid tests/", pytest_project, PYTHONPATH=str(runner), PWGRID_WS_ENDPOINT=grid.endpoint)
    assert done.returncode == 0, done.stdout + done.stderr
    assert served(grid) == before + 1


def test_a_script_in_node_and_one_in_python_find_the_grid_of_run(npm: Path) -> None:
    (npm / "check.mjs").write_text(recipe("ci.md", "js", "process.env"))
    (npm / "check.py").write_text(recipe("ci.md", "python", "sync_playwright"))
    for line in (*lines("ci.md", "node check.mjs"), *lines("ci.md", "python check.py")):
        done = run(line, npm)
        assert (done.returncode, done.stdout) == (0, "hello\n"), done.stderr
        assert sessions(done) == 1


def test_the_readmes_own_lines(grid: Grid) -> None:
    readme = (ROOT / "README.md").read_text()
    (line,) = re.findall(r"^```python\n(browser = .*)\n```$", readme, re.MULTILINE)
    script = f"from playwright.sync_api import *\nwith sync_playwright() as p:\n    {line}\n    browser.new_page()"
    before = served(grid)
    done = run(f"python -c '{script.replace(ENDPOINT, grid.endpoint)}'", ROOT)
    assert done.returncode == 0, done.stderr
    assert served(grid) == before + 1
    (command,) = re.findall(r"`(pwgrid run .*?)`", readme.partition("| to read |")[0])
    assert command in lines("ci.md", "pwgrid run")  # which are run above


def test_the_python_client_of_the_first_page(grid: Grid, tmp_path: Path) -> None:
    script = recipe("connect.md", "python", "sync_playwright").replace(ENDPOINT, grid.endpoint)
    before = served(grid)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert served(grid) == before + 1


def test_the_python_client_of_the_quick_start(grid: Grid) -> None:
    script = recipe("quickstart.md", "python", "sync_playwright").replace(ENDPOINT, grid.endpoint)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "hello\n"), done.stderr


def test_the_node_client_of_the_first_page(npm: Path, grid: Grid) -> None:
    (npm / "connect.mjs").write_text(recipe("connect.md", "js", "chromium.connect").replace(ENDPOINT, grid.endpoint))
    before = served(grid)
    done = run("node connect.mjs", npm)
    assert done.returncode == 0, done.stderr
    assert served(grid) == before + 1
