"""Clients of the DevTools protocol as their users have them, on real Chromium through a real grid: the lines of
docs/cdp.md, and what else each of them needs."""

import asyncio
import contextlib
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from playwright.async_api import Error, Playwright
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.conftest import counters_are_exact, need
from tests.support.grid import WITHOUT_SPARES, Grid, eventually, eventually_async, running_grid
from tests.support.http_server import serving
from tests.support.leases import borrow, give_back
from tests.support.leases import request as ask
from tests.support.recipes import SUPPORT, install, lines, recipe, run

pytestmark = pytest.mark.timeout(600)  # installers are among what runs here

ADDRESS = "127.0.0.1:8080"
MOST_CLIENTS = 64


@pytest.fixture(scope="module")
def own_grid() -> Iterator[Grid]:
    need("chromium")
    environment = {**WITHOUT_SPARES, "POOL_CONFIG": "AppA:Chromium:UAT=1", "ISOLATION": "browser"}
    with running_grid(environment=environment) as grid:
        yield grid


@pytest.fixture
def grid(own_grid: Grid) -> Iterator[Grid]:
    yield own_grid
    counters_are_exact(own_grid)


@pytest.fixture(scope="module")
def clients(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with puppeteer-core, chrome-remote-interface and Playwright MCP."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not installed")
    directory = tmp_path_factory.mktemp("cdp-clients")
    for name in ("package.json", "package-lock.json"):
        shutil.copy(SUPPORT / "cdp_clients" / name, directory)
    install(npm, "ci", "--no-audit", "--no-fund", "--prefer-offline", cwd=directory)
    return directory


@pytest.fixture(autouse=True)
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """For what clients leave behind where they end without closing a browser that goes on: Playwright's directories of
    artifacts, the socket of its MCP server."""
    with tempfile.TemporaryDirectory(prefix="pgc-", dir="/tmp") as directory:
        monkeypatch.setenv("TMPDIR", directory)
        yield


def of_docs(language: str, containing: str, grid: Grid) -> str:
    return recipe("cdp.md", language, containing).replace(ADDRESS, f"127.0.0.1:{grid.port}")


def python(script: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", script, *arguments], capture_output=True, text=True, timeout=120, check=False
    )


def node(script: str, directory: Path, *, package: str = "") -> list[str]:
    """What a script prints in this project, line by line. `package` is one that it has beside the project's."""
    before = {
        "puppeteer": "const { default: puppeteer } = await import('puppeteer-core');",
        "CDP": "const { default: CDP } = await import('chrome-remote-interface');",
        "chromium": f"const {{ createRequire }} = await import('node:module');\n"
        f"const {{ chromium }} = createRequire('/')({json.dumps(package)});",
    }
    needed = "\n".join(
        line for name, line in before.items() if f"await {name}." in script or f"await {name}(" in script
    )
    done = subprocess.run(
        ["node", "--input-type=module", "-e", f"{needed}\n{textwrap.dedent(script)}"],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def sessions(grid: Grid) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(grid.get("/v1/sessions?limit=1000")[2])["sessions"]
    return found


def is_over(grid: Grid) -> None:
    eventually(lambda: grid.active() == 0, "its session is over")
    assert sessions(grid)[0].items() >= {"protocol": "cdp", "isolation": "browser"}.items()


# The lines of the page


@pytest.mark.parametrize("way", ["http", "ws"])
def test_playwright_for_python_over_cdp(grid: Grid, way: str) -> None:
    lines_of_page = of_docs("python", 'connect_over_cdp("http', grid)
    if way == "ws":
        lines_of_page = lines_of_page.replace(f"http://127.0.0.1:{grid.port}", f"ws://127.0.0.1:{grid.port}/cdp", 1)
    begin = "from playwright.sync_api import sync_playwright\nwith sync_playwright() as p:\n"
    done = python(begin + textwrap.indent(lines_of_page, "    "))
    assert (done.returncode, done.stdout) == (0, "hello\n"), done.stderr
    is_over(grid)


@pytest.mark.parametrize("way", ["http", "ws"])
def test_playwright_for_node_over_cdp(grid: Grid, node_package: Path, tmp_path: Path, way: str) -> None:
    script = of_docs("js", "connectOverCDP('http", grid)
    if way == "ws":
        script = script.replace(f"http://127.0.0.1:{grid.port}", f"ws://127.0.0.1:{grid.port}/cdp", 1)
    assert node(script, tmp_path, package=str(node_package)) == ["hello"]
    is_over(grid)


@pytest.fixture
def node_package() -> Path:
    from playwright._impl._driver import compute_driver_executable

    return Path(compute_driver_executable()[1]).parent


@pytest.mark.parametrize("way", ["browserURL", "browserWSEndpoint"])
def test_puppeteer(grid: Grid, clients: Path, way: str) -> None:
    script = of_docs("js", "puppeteer.connect({ browserURL", grid)
    if way == "browserWSEndpoint":
        script = script.replace(
            f"browserURL: 'http://127.0.0.1:{grid.port}'", f"browserWSEndpoint: 'ws://127.0.0.1:{grid.port}/cdp'", 1
        )
    assert node(script, clients) == ["hello"]
    is_over(grid)


def test_chrome_remote_interface_takes_the_listed_page(grid: Grid, clients: Path) -> None:
    script = of_docs("js", "await CDP({ host", grid).replace("port: 8080", f"port: {grid.port}")
    assert node(script, clients) == ["hello"]
    is_over(grid)


def test_chrome_remote_interface_with_a_browser_endpoint(grid: Grid, clients: Path) -> None:
    """It asks for the protocol at the address of its target."""
    script = of_docs("js", "await CDP({ target", grid)
    assert node(script, clients)[0] in ("complete", "interactive", "loading")
    is_over(grid)


def test_a_raw_client(grid: Grid) -> None:
    done = python(of_docs("python", "from websockets.sync.client", grid))
    assert done.returncode == 0, done.stderr
    assert done.stdout == "hello\n"
    is_over(grid)


def test_an_agent_that_is_a_new_process_for_each_command(grid: Grid, tmp_path: Path) -> None:
    body = """\
    import sys
    from playwright.sync_api import sync_playwright
    with sync_playwright() as p:
        browser = p.chromium.connect_over_cdp(sys.argv[1])
        page = browser.contexts[0].pages[0]
        {does}
    """
    for name, does in (
        ("open_page.py", "page.goto('data:text/html,<title>kept</title>')"),
        ("read_title.py", "print(page.title())"),
    ):
        (tmp_path / name).write_text(textwrap.dedent(body).format(does=does))
    script = of_docs("sh", "open_page.py", grid)
    done = run(f"set -e\n{script}", tmp_path)
    assert (done.returncode, done.stdout) == (0, "kept\n"), done.stderr
    (kept,) = [each for each in sessions(grid) if each["kept"]]
    end(grid, kept["id"])


def end(grid: Grid, session_id: str) -> None:
    assert ask(grid, "DELETE", f"/v1/sessions/{session_id}").status == 202
    eventually(lambda: grid.active() == 0, "it has ended")


def test_playwright_mcp(grid: Grid, clients: Path) -> None:
    """The line of the page, with an MCP client in place of an agent."""
    (line,) = lines("cdp.md", "@playwright/mcp")
    command = line.replace(ADDRESS, f"127.0.0.1:{grid.port}")
    with subprocess.Popen(
        ["sh", "-c", f"exec {command}"],
        cwd=clients,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:

        def ask(number: int, method: str, **params: Any) -> dict[str, Any]:
            assert server.stdin is not None
            assert server.stdout is not None
            server.stdin.write(json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}) + "\n")
            server.stdin.flush()
            while (answer := json.loads(server.stdout.readline())).get("id") != number:
                pass
            return answer

        client = {"name": "test", "version": "1"}
        ask(1, "initialize", protocolVersion="2025-03-26", capabilities={}, clientInfo=client)
        assert server.stdin is not None
        server.stdin.write('{"jsonrpc":"2.0","method":"notifications/initialized"}\n')
        url = "data:text/html,<title>hello</title>"
        answer = ask(2, "tools/call", name="browser_navigate", arguments={"url": url})
        assert "hello" in json.dumps(answer), answer
        server.stdin.close()
        server.wait(60)
    is_over(grid)


# What else they need


def test_puppeteer_intercepts_downloads_and_takes_pictures(grid: Grid, clients: Path, tmp_path: Path) -> None:
    script = f"""
        const browser = await puppeteer.connect({{ browserWSEndpoint: 'ws://127.0.0.1:{grid.port}/cdp' }});
        const page = (await browser.pages())[0];
        await page.setRequestInterception(true);
        const answer = {{ contentType: 'text/html', body: '<title>of the client</title>' }};
        page.on('request', request => request.respond(answer));
        await page.goto('http://anything.example/');
        console.log(await page.title());
        console.log((await page.screenshot()).subarray(1, 4).toString('latin1') || 'none');
        console.log((await page.evaluate(() => 'x'.repeat(4 << 20))).length);
        const context = await browser.createBrowserContext();
        console.log((await (await context.newPage()).evaluate('6 * 7')));
        await browser.close();
    """
    title, picture, size, answer = node(script, clients)
    assert (title, size, answer) == ("of the client", str(4 << 20), "42")
    assert picture in ("PNG", "80,78,71")  # a Uint8Array of newer ones prints numbers
    is_over(grid)


FILES_TTL_S = 3


@pytest.fixture(scope="module")
def keeping_grid() -> Iterator[Grid]:
    """One that keeps files of sessions for a while."""
    need("chromium")
    environment = {**WITHOUT_SPARES, "POOL_CONFIG": "AppA:Chromium:UAT=1", "SESSION_FILES_TTL": str(FILES_TTL_S)}
    with running_grid(environment=environment) as grid:
        yield grid


DOWNLOADS = """
    const own = await browser.createBrowserContext();
    for (const [context, name] of [[page.browserContext(), 'a report.txt'], [own, 'b.bin']]) {
      const other = await context.newPage();
      await other.evaluate(name => {
        const link = document.createElement('a');
        link.href = URL.createObjectURL(new Blob([name.repeat(100000)]));
        link.download = name;
        link.click();
      }, name);
    }
"""


def is_on_disk(grid: Grid, name: str) -> bool:
    """Whether a file is there whose name begins so."""
    walk = os.walk(grid.runtime)  # passes over what vanishes, where rglob() raises
    return any(file.startswith(name) for _, _, files in walk for file in files)


@pytest.mark.parametrize("grid_of", ["own_grid", "keeping_grid"])
def test_puppeteer_s_downloads_come_over_the_api(grid_of: str, clients: Path, request: pytest.FixtureRequest) -> None:
    grid: Grid = request.getfixturevalue(grid_of)
    url = ask(grid, "GET", "/json/version?keep=60").body["webSocketDebuggerUrl"]
    script = f"""
        const browser = await puppeteer.connect({{ browserWSEndpoint: '{url}' }});
        const page = (await browser.pages())[0];
        {DOWNLOADS}
        await browser.disconnect();
    """
    node(script, clients)
    path = f"/v1/sessions/{url.partition('?')[0].rpartition('/')[2]}"
    sizes = {"a report.txt": 1_200_000, "b.bin": 500_000}
    eventually(lambda: listed(grid, path) == sizes, "both are complete")
    in_api = grid.get(f"{path}/files/a%20report.txt")
    assert in_api[0] == 200
    assert in_api[1]["content-disposition"] == "attachment; filename*=UTF-8''a%20report.txt"
    assert in_api[2] == b"a report.txt" * 100_000
    for name in ("none", "%2e%2e", "..%2f..%2fworker.json", "%2fetc%2fpasswd", "."):
        assert grid.get(f"{path}/files/{name}")[0] == 404
    (directory,) = {each.parent for each in grid.runtime.glob("w/*/sessions/*/b.bin")}
    (directory / "link").symlink_to("/etc/hostname")
    os.mkfifo(directory / "pipe")
    (directory / "directory").mkdir()
    assert listed(grid, path) == sizes
    for name in ("link", "pipe", "directory"):
        assert grid.get(f"{path}/files/{name}")[0] == 404
    assert ask(grid, "DELETE", path).status == 202
    if grid_of == "keeping_grid":
        eventually(lambda: ask(grid, "GET", path).body["status"] == "ended", "it is over")
        assert listed(grid, path) == sizes
        assert grid.get(f"{path}/files/b.bin")[2] == b"b.bin" * 100_000
    eventually(lambda: listed(grid, path) == {}, "they are gone")
    eventually(lambda: not is_on_disk(grid, "b.bin"), "also from the disk")
    assert list(grid.runtime.glob("w/*/files/*")) == []


def listed(grid: Grid, path: str) -> dict[str, int]:
    return {each["name"]: each["size"] for each in ask(grid, "GET", f"{path}/files").body["files"]}


def test_puppeteer_leaves_and_comes_back(grid: Grid, clients: Path) -> None:
    assert node(of_docs("js", "disconnect()", grid), clients) == ["hello"]
    is_over(grid)
    assert sessions(grid)[0]["reasonKind"] == "client closed the browser"


def test_a_refusal_reads_well_in_puppeteer(grid: Grid, clients: Path) -> None:
    script = f"""
        for (const where of ['/cdp?browser=firefox', '/cdp?keep=1e6', '/devtools/page/1'])
          await puppeteer.connect({{ browserWSEndpoint: 'ws://127.0.0.1:{grid.port}' + where }})
            .then(() => console.log('connected'), error => console.log(error.message));
    """
    said = node(script, clients)
    assert [word in line for word, line in zip(("Firefox has no CDP", "KEEP_MAX", "single pages"), said, strict=True)]
    assert "Unexpected server response" not in "".join(said)


@pytest.mark.parametrize("more", ["?browser=firefox", "/?browser=firefox"])
async def test_a_refusal_reads_well_in_playwright(grid: Grid, playwright: Playwright, more: str) -> None:
    with pytest.raises(Error, match="Firefox has no CDP"):
        await playwright.chromium.connect_over_cdp(grid.http + more)
    with pytest.raises(Error, match="Firefox has no CDP"):
        await playwright.chromium.connect_over_cdp(f"{grid.endpoint}/cdp?browser=firefox")


async def test_several_clients_of_one_lease_see_the_same_pages(grid: Grid, playwright: Playwright) -> None:
    lease = await asyncio.to_thread(borrow, grid)
    first = await playwright.chromium.connect_over_cdp(lease["cdpEndpoint"])
    page = first.contexts[0].pages[0]
    await page.goto("data:text/html,<title>shared</title>")
    second = await playwright.chromium.connect_over_cdp(lease["cdpEndpoint"])
    assert await second.contexts[0].pages[0].title() == "shared"
    assert len(sessions(grid)) >= 1
    assert grid.active() == 1
    await first.close()
    assert await second.contexts[0].pages[0].title() == "shared"
    await second.close()
    await asyncio.to_thread(give_back, grid, lease)
    await eventually_async(lambda: grid.active() == 0, "its slot is free")


async def test_one_session_has_no_more_than_so_many_clients(grid: Grid) -> None:
    url = json.loads(grid.get("/json/version")[2])["webSocketDebuggerUrl"]
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(MOST_CLIENTS):
            await stack.enter_async_context(connect(url))
        with pytest.raises(InvalidStatus) as caught:
            await stack.enter_async_context(connect(url))
        assert (caught.value.response.status_code, grid.active()) == (503, 1)
    await eventually_async(lambda: grid.active() == 0, "all have gone")


async def test_with_a_lease_a_client_that_comes_again_at_once_is_served(grid: Grid, playwright: Playwright) -> None:
    lease = await asyncio.to_thread(borrow, grid)
    keep = f"{lease['cdpEndpoint']}?keep=60"
    for number in range(5):
        browser = await playwright.chromium.connect_over_cdp(keep)
        page = browser.contexts[0].pages[0]
        if number:
            assert await page.title() == "kept"
        else:
            await page.goto("data:text/html,<title>kept</title>")
        await browser.close()
    assert await asyncio.to_thread(give_back, grid, lease)
    await eventually_async(lambda: grid.active() == 0, "its slot is free")
    assert sessions(grid)[0].items() >= {"reason": "returned", "lease": lease["browserId"]}.items()


async def test_two_clients_see_nothing_of_each_other(grid: Grid, playwright: Playwright) -> None:
    browsers = [await playwright.chromium.connect_over_cdp(grid.http) for _ in range(2)]
    for number, browser in enumerate(browsers):
        await browser.contexts[0].add_cookies([{"name": "me", "value": str(number), "url": "http://a.example"}])
    for number, browser in enumerate(browsers):
        assert [each["value"] for each in await browser.contexts[0].cookies()] == [str(number)]
        assert len(browser.contexts[0].pages) == 1
        await browser.close()


# Connections to a page


NUMBERS = itertools.count(1)


async def command(socket: ClientConnection, method: str, **params: Any) -> dict[str, Any]:
    number = next(NUMBERS)
    await socket.send(json.dumps({"id": number, "method": method, "params": params}))
    while (message := json.loads(await socket.recv())).get("id") != number:
        assert "id" not in message, "an answer to what this client has not asked"
    answer: dict[str, Any] = message
    return answer


async def test_a_connection_to_a_page_is_one_of_its_session(grid: Grid) -> None:
    (listed,) = json.loads(grid.get("/json/list?keep=60")[2])
    page_url, browser_url = listed["webSocketDebuggerUrl"], listed["webSocketDebuggerUrl"].replace("page", "browser")
    async with connect(page_url) as page:
        answer = await command(page, "Runtime.evaluate", expression="document.title = 'seen'; location.href")
        answer.pop("id")
        assert answer == {"result": {"result": {"type": "string", "value": "about:blank"}}}  # names no session
    async with connect(browser_url) as browser, connect(page_url) as again:
        found = await command(browser, "Target.getTargets")
        assert [each["title"] for each in found["result"]["targetInfos"] if each["type"] == "page"] == ["seen"]
        assert (await command(again, "Runtime.evaluate", expression="document.title"))["result"]["result"][
            "value"
        ] == "seen"
        assert grid.active() == 1
        assert (await command(again, "Browser.close"))["result"] == {}
        with pytest.raises(ConnectionClosed):
            await command(browser, "Target.getTargets")
    await eventually_async(lambda: grid.active() == 0, "the session is over")


async def test_a_connection_to_a_page_ends_with_the_page(grid: Grid) -> None:
    new = json.loads(grid.get("/json/new?about:blank")[2])
    async with connect(new["webSocketDebuggerUrl"]) as page:
        await page.send(json.dumps({"id": 1, "method": "Page.close"}))
        await page.wait_closed()
    assert page.close_reason == "the page of this connection is closed"
    await eventually_async(lambda: grid.active() == 0, "the session is over")
    assert sessions(grid)[0]["reasonKind"] == "client disconnected"


async def test_who_comes_back_to_a_page_that_is_closed_gets_another_one(grid: Grid) -> None:
    (listed,) = json.loads(grid.get("/json/list?keep=60")[2])
    async with connect(listed["webSocketDebuggerUrl"]) as page:
        await page.send(json.dumps({"id": 1, "method": "Page.close"}))
        await page.wait_closed()
    async with connect(listed["webSocketDebuggerUrl"]) as page:
        answer = await command(page, "Runtime.evaluate", expression="location.href")
        assert answer["result"]["result"]["value"] == "about:blank"
        await command(page, "Browser.close")
    await eventually_async(lambda: grid.active() == 0, "the session is over")


async def test_pages_of_one_session_are_apart(grid: Grid) -> None:
    """Two connections to the same page have sessions of their own there."""
    (listed,) = json.loads(grid.get("/json/list")[2])
    async with connect(listed["webSocketDebuggerUrl"]) as one, connect(listed["webSocketDebuggerUrl"]) as other:
        await command(one, "Runtime.enable")
        await command(other, "Runtime.evaluate", expression="console.log('heard')")
        async with asyncio.timeout(60):
            while json.loads(await one.recv())["method"] != "Runtime.consoleAPICalled":
                pass
        await other.send(json.dumps({"id": 2, "method": "Schema.getDomains"}))
        assert json.loads(await other.recv())["id"] == 2
    await eventually_async(lambda: grid.active() == 0, "the session is over")


# The description of the protocol


def test_the_protocol_is_the_browser_s_own_and_no_browser_with_a_port_is_left(grid: Grid) -> None:
    status, headers, body = grid.get("/json/protocol")
    assert (status, headers["content-type"]) == (200, "application/json")
    described = json.loads(body)
    assert described["version"]["major"] == "1"
    commands = {f"{each['domain']}.{one['name']}" for each in described["domains"] for one in each["commands"]}
    assert {"Target.attachToTarget", "Page.navigate", "Network.loadNetworkResource"} <= commands
    assert grid.get("/json/protocol/")[2] == body
    assert [each.parent.name for each in grid.runtime.glob("devtools/*.json")] == ["devtools"]
    assert list(grid.runtime.glob("w/*/own/protocol-*")) == []
    ports = [
        each for each in psutil.process_iter(["cmdline"]) if "--remote-debugging-port=0" in (each.info["cmdline"] or [])
    ]
    assert [each for each in ports if str(grid.runtime) in " ".join(each.info["cmdline"])] == []


def downloads(grid: Grid) -> list[Path]:
    """Files in the directories of sessions."""
    return [path for path in grid.runtime.glob("w/*/sessions/**/*") if path.is_file()]


async def test_a_download_of_a_playwright_client_is_on_the_grid_s_host(
    grid: Grid, playwright: Playwright, tmp_path: Path
) -> None:
    with serving(lambda _path: b"content") as (site, _):
        browser = await playwright.chromium.connect_over_cdp(grid.http)
        page = await browser.new_page()
        await page.set_content(f"<a href='{site}/file'>file</a>")
        async with page.expect_download() as coming:
            await page.click("a")
        download = await coming.value
        assert await download.failure() is None
        with pytest.raises(Error, match="no such file"):
            await download.save_as(tmp_path / "file")
        assert [path.read_bytes() for path in downloads(grid)] == [b"content"]
        await browser.close()
        await eventually_async(lambda: downloads(grid) == [], "its files end with its session")
