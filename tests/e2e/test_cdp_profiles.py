"""Named profiles of CDP clients on real Chromium: what survives a session, who has one, what spoils nothing."""

import asyncio
import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import tarfile
import textwrap
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from playwright.async_api import Browser, Error, Page, Playwright
from playwright.async_api import TimeoutError as PlaywrightTimeout

from pwgrid.cli.token import Place, create
from pwgrid.common.confined_exec import abi
from pwgrid.tokens.tokens import Role
from tests.conftest import counters_are_exact, need
from tests.support.census import Census, at_rest
from tests.support.grid import WITHOUT_SPARES, Grid, eventually, eventually_async, running_grid
from tests.support.http_server import serving
from tests.support.kill_table_row import STEADY, comes_out_exact
from tests.support.leases import CHROMIUM, borrow, give_back, lease_now, request
from tests.support.raw import answer, head
from tests.support.recipes import recipe

ENVIRONMENT = {
    **{**STEADY, "PROFILES": "on", "PROFILE_MAX_MIB": "4", "PROFILES_MAX": "2", "DRAIN_TIMEOUT": "120"},
    **{"POOL_CONFIG": f"{CHROMIUM}=1", "BORROW_RECONNECT_GRACE": "60"},
}
ONLY_OWN = {"ISOLATION": "browser", "WARM_BROWSERS": "0"}
"""No browser starts but those of sessions, which each client in CDP has anyway."""
DAY_S = 86_400
LISTED_MS = 5_000


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    with serving(lambda _path: b"<title>shop</title>", "text/html") as (address, _):
        yield address


@pytest.fixture
def profiles(tmp_path: Path) -> Path:
    return tmp_path / "profiles"


@pytest.fixture(scope="module")
def shared_profiles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("shared") / "profiles"


@pytest.fixture(scope="module")
def shared(shared_profiles: Path) -> Iterator[Grid]:
    with profiled(shared_profiles) as grid:
        yield grid


@pytest.fixture
def grid(shared: Grid, shared_profiles: Path) -> Iterator[Grid]:
    """One for all tests that count nothing of it. Afterwards it has no session and one worker that serves, and the next
    test finds no profile."""
    yield shared
    counters_are_exact(shared)
    eventually(lambda: [each["status"] for each in shared.status()["workers"]] == ["available"], "one worker serves")
    assert suffixes(shared_profiles) <= {".tar"}
    for path in shared_profiles.rglob("*.tar"):
        path.unlink()


@pytest.fixture(scope="module")
def struck(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Grid, Path, Census]]:
    """Its slots are used at every count, and a browser starts in each: so there are no more of them than are needed."""
    profiles = tmp_path_factory.mktemp("struck") / "profiles"
    with profiled(profiles, **ONLY_OWN, MAX_CONCURRENT_SESSIONS="2") as grid:
        yield grid, profiles, at_rest(grid)


@pytest.fixture
def struck_profiles(struck: tuple[Grid, Path, Census]) -> Path:
    return struck[1]


@pytest.fixture
def exact_grid(struck: tuple[Grid, Path, Census]) -> Iterator[Grid]:
    """Another one for those that kill a part of it: afterwards it has no session, and the same processes, open and
    temporary files as before. The next test finds no profile."""
    grid, profiles, before = struck
    with comes_out_exact(grid, before=before):
        yield grid
    for path in profiles.rglob("*.tar"):
        path.unlink()


@contextlib.contextmanager
def profiled(profiles: Path, **more: str) -> Iterator[Grid]:
    need("chromium")
    with running_grid(environment={**ENVIRONMENT, "PROFILES_DIR": str(profiles), **more}) as grid:
        yield grid
    assert suffixes(profiles) <= {".tar"}


def suffixes(profiles: Path) -> set[str]:
    """Of the files that are there: what is saved is a .tar, and anything else is of somebody who has a profile."""
    return {path.suffix for path in profiles.rglob("*") if path.is_file()}


@contextlib.asynccontextmanager
async def shop(
    playwright: Playwright, grid: Grid, query: str = "?profile=shop-login", token: str = ""
) -> AsyncIterator[tuple[Browser, Page]]:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    browser = await playwright.chromium.connect_over_cdp(f"ws://127.0.0.1:{grid.port}/cdp{query}", headers=headers)
    try:
        yield browser, browser.contexts[0].pages[0]
    finally:
        await browser.close()


async def log_in(page: Page, site: str, who: str = "ada") -> None:
    await page.goto(site)
    await page.evaluate(f"document.cookie = 'who={who}; max-age={DAY_S}'; localStorage.setItem('cart', 'of {who}')")


async def logged_in(page: Page, site: str) -> list[str]:
    await page.goto(site)
    found: list[str] = await page.evaluate("[document.cookie, localStorage.getItem('cart') ?? '']")
    return found


def latest(grid: Grid, token: str = "") -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    found: dict[str, Any] = request(grid, "GET", "/v1/sessions?limit=1", **headers).body["sessions"][0]
    return found


async def is_over(grid: Grid) -> dict[str, Any]:
    await eventually_async(lambda: grid.active() == 0, "its session is over")
    await eventually_async(lambda: latest(grid)["endedAt"], "it is on record")
    return latest(grid)


async def test_cookies_and_local_storage_survive_their_session(
    playwright: Playwright, grid: Grid, shared_profiles: Path, site: str
) -> None:
    async with shop(playwright, grid) as (_, page):
        await log_in(page, site)
        assert latest(grid)["profile"] == "shop-login"
    async with shop(playwright, grid) as (_, page):  # at once: it waits until the first one is saved
        assert await logged_in(page, site) == ["who=ada", "of ada"]
    async with shop(playwright, grid, "?profile=another") as (_, page):
        assert await logged_in(page, site) == ["", ""]
    async with shop(playwright, grid, "") as (_, page):
        assert await logged_in(page, site) == ["", ""]
    assert (await is_over(grid))["reason"] == "client disconnected"
    assert shared_profiles.stat().st_mode & 0o777 == 0o700
    saved = shared_profiles / "-" / "shop-login.tar"
    assert saved.stat().st_mode & 0o777 == 0o600
    with tarfile.open(saved) as archive:
        names = archive.getnames()
    assert any(name.endswith("Cookies") for name in names)
    assert not [name for name in names if "Cache" in name.split("/")]


async def test_one_session_has_it_at_a_time(playwright: Playwright, grid: Grid, site: str) -> None:
    async with shop(playwright, grid, "?profile=shop-login&name=nightly&keep=60") as (_, page):
        await log_in(page, site)
        session = latest(grid)["id"]
        for _ in range(2):
            with pytest.raises(Error, match=rf"409[\s\S]*in use by session {session}, name nightly, since 20"):
                async with shop(playwright, grid):
                    pass
        listed = json.loads(grid.command("profile", "list", "--json").stdout)
        assert [(each["name"], each["bytes"], each["session"]) for each in listed] == [("shop-login", None, session)]
        assert "is in use by session" in grid.command("profile", "remove", "shop-login").stderr
    # A kept session holds it.
    await eventually_async(lambda: latest(grid)["kept"], "it is kept")
    with pytest.raises(Error, match="409"):
        async with shop(playwright, grid):
            pass
    assert request(grid, "DELETE", f"/v1/sessions/{session}").status == 202
    async with shop(playwright, grid) as (_, page):
        assert await logged_in(page, site) == ["who=ada", "of ada"]
    await is_over(grid)
    assert "shop-login" in grid.command("profile", "list").stdout
    exported = grid.command("profile", "export", "shop-login", str(grid.runtime / "exported.tar"))
    assert exported.returncode == 0, exported.stderr
    with tarfile.open(grid.runtime / "exported.tar") as archive:
        assert any(name.endswith("Cookies") for name in archive.getnames())
    assert grid.command("profile", "remove", "shop-login").stdout == "removed shop-login\n"
    assert "there is no profile 'shop-login'" in grid.command("profile", "remove", "shop-login").stderr
    async with shop(playwright, grid) as (_, page):
        assert await logged_in(page, site) == ["", ""]


async def test_an_agent_logs_in_once(playwright: Playwright, grid: Grid, site: str) -> None:
    """The lines of docs/cdp.md, in two processes."""
    of_page = recipe("cdp.md", "python", "profile=shop-login").replace("127.0.0.1:8080", f"127.0.0.1:{grid.port}")
    begin = "from playwright.sync_api import sync_playwright\nwith sync_playwright() as p:\n"
    steps = (
        f"page.goto('{site}')\npage.evaluate(\"document.cookie = 'who=ada; max-age={DAY_S}'\")",
        f"page.goto('{site}')\nprint(page.evaluate('document.cookie'))",
    )
    for step in steps:
        script = begin + textwrap.indent(f"{of_page}\n{step}\nbrowser.close()", "    ")
        done = await asyncio.to_thread(
            subprocess.run, [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr
    assert done.stdout == "who=ada\n"


@pytest.mark.skipif(abi() == 0, reason="this kernel has no Landlock")
async def test_a_browser_reaches_no_profile_but_its_own_copy(
    playwright: Playwright, grid: Grid, shared_profiles: Path, site: str
) -> None:
    async with shop(playwright, grid, "?profile=mine") as (_, mine):
        await log_in(mine, site)
        (browser,) = browsers(grid)
        copy = next(each for each in browser.cmdline() if each.startswith("--user-data-dir=")).partition("=")[2]
        assert 'addRow("Default"' in await listing(mine, copy)
        async with shop(playwright, grid, "?profile=other") as (_, other):
            for directory in (copy, shared_profiles / "-"):
                assert "addRow" not in await listing(other, directory)  # Chromium shows what it may not list as empty
            file = next(each for each in Path(copy).rglob("*") if each.is_file())
            with pytest.raises(Error, match="ERR_ACCESS_DENIED"):
                await other.goto(f"file://{file}")


async def listing(page: Page, directory: str | Path) -> str:
    """What Chromium shows of it. That stays "loading" for ever now and then: what it shows by then is the answer."""
    await page.goto(f"file://{directory}", wait_until="commit")
    with contextlib.suppress(PlaywrightTimeout):
        await page.wait_for_load_state(timeout=LISTED_MS)
    return await page.content()


async def test_the_address_by_http_has_the_profile_in_its_query(playwright: Playwright, grid: Grid, site: str) -> None:
    for who in ([], ["who=ada", "of ada"]):
        browser = await playwright.chromium.connect_over_cdp(f"{grid.http}/?profile=shop-login")
        page = browser.contexts[0].pages[0]
        assert await logged_in(page, site) == (who or ["", ""])
        await log_in(page, site)
        await browser.close()


def browsers(grid: Grid) -> list[psutil.Process]:
    """Those with a profile."""
    nodes = [psutil.Process(worker["nodePid"]) for worker in grid.status()["workers"]]
    return [child for node in nodes for child in node.children() if "/own/profile-" in " ".join(child.cmdline())]


def kill_browser(grid: Grid) -> None:
    (browser,) = browsers(grid)
    browser.kill()


def kill_node(grid: Grid) -> None:
    (browser,) = browsers(grid)
    parent = browser.parent()
    assert parent is not None
    parent.kill()


@pytest.mark.parametrize("kill", [kill_browser, kill_node])
async def test_a_crash_spoils_nothing(
    playwright: Playwright, exact_grid: Grid, struck_profiles: Path, site: str, kill: Callable[[Grid], None]
) -> None:
    grid, profiles = exact_grid, struck_profiles
    async with shop(playwright, grid) as (_, page):
        await log_in(page, site)
    await is_over(grid)
    saved = (profiles / "-" / "shop-login.tar").read_bytes()
    async with shop(playwright, grid) as (browser, page):
        await log_in(page, site, "eve")
        session = latest(grid)["id"]
        kill(grid)
        await eventually_async(lambda: not browser.is_connected(), "its client is told")
    await eventually_async(lambda: grid.redis("HGET", f"session:{session}", "status") == b"failed", "it has failed")
    assert (profiles / "-" / "shop-login.tar").read_bytes() == saved
    await eventually_async(lambda: grid.status()["pools"][0]["available"] == 1, "another worker")
    async with shop(playwright, grid) as (_, page):
        assert await logged_in(page, site) == ["who=ada", "of ada"]


@contextlib.asynccontextmanager
async def writing_its_profile(grid: Grid, client: Browser) -> AsyncIterator[dict[str, Any]]:
    """The session of this client is ended, and for the length of the block its browser is not done with its writing.
    Gives its worker."""
    (worker,) = grid.status()["workers"]
    (browser,) = browsers(grid)
    browser.suspend()
    try:
        assert request(grid, "DELETE", f"/v1/sessions/{latest(grid)['id']}").status == 202
        await eventually_async(lambda: not client.is_connected(), "its client is told")
        yield worker
    finally:
        browser.resume()


async def is_succeeded(grid: Grid, worker: dict[str, Any]) -> None:
    def pids() -> list[int]:
        return [each["pid"] for each in grid.status()["workers"]]

    await eventually_async(lambda: worker["pid"] not in pids(), "it has a successor, or that has ended, too")


async def test_a_killed_worker_s_session_lives_and_is_saved_by_its_successor(
    playwright: Playwright, exact_grid: Grid, site: str
) -> None:
    grid = exact_grid
    async with shop(playwright, grid) as (_, page):
        await log_in(page, site)
        (worker,) = grid.status()["workers"]
        os.kill(worker["pid"], signal.SIGKILL)
        await eventually_async(
            lambda: any(
                each["id"] == worker["id"] and each["pid"] != worker["pid"] for each in grid.status()["workers"]
            ),
            "its successor",
        )
        with pytest.raises(Error, match="409"):
            async with shop(playwright, grid):
                pass
        assert await logged_in(page, site) == ["who=ada", "of ada"]
    await eventually_async(lambda: grid.status()["pools"][0]["available"] == 1, "another worker")
    async with shop(playwright, grid) as (_, page):
        assert await logged_in(page, site) == ["who=ada", "of ada"]


@contextlib.asynccontextmanager
async def shop_of(playwright: Playwright, lease: dict[str, Any]) -> AsyncIterator[tuple[Browser, Page]]:
    browser = await playwright.chromium.connect_over_cdp(lease["cdpEndpoint"])
    try:
        yield browser, browser.contexts[0].pages[0]
    finally:
        await browser.close()


async def test_a_lease_has_its_profile_from_its_borrow_to_its_end(
    playwright: Playwright, grid: Grid, site: str
) -> None:
    """Also when its worker is killed."""
    wanted = {"labelKey": CHROMIUM, "profile": "shop-login", "runName": "nightly"}
    lease = borrow(grid, profile="shop-login", runName="nightly")
    assert lease_now(grid, lease)["profile"] == "shop-login"
    taken = f"in use by lease {lease['browserId']}, name nightly, since 20"

    async def nobody_else_gets_it() -> None:
        answer = request(grid, "POST", "/session/borrow", wanted)
        assert (answer.status, answer.body["lease"]) == (409, lease["browserId"])
        assert taken in answer.body["error"]
        with pytest.raises(Error, match=rf"409[\s\S]*{taken}"):
            async with shop(playwright, grid):
                pass
        assert taken.partition(",")[0] in grid.command("profile", "remove", "shop-login").stderr

    await nobody_else_gets_it()  # before its first client
    with pytest.raises(Error, match=r"400[\s\S]*borrowed with"):
        await playwright.chromium.connect_over_cdp(lease["cdpEndpoint"] + "?profile=other")
    async with shop_of(playwright, lease) as (_, page):
        await log_in(page, site)
        assert latest(grid)["profile"] == "shop-login"
    for who in ("ada", "eve"):  # at once: it waits until the last one is saved
        async with shop_of(playwright, lease) as (_, page):
            assert await logged_in(page, site) == [f"who={who}", f"of {who}"]
            await log_in(page, site, "eve")
            async with shop_of(playwright, lease) as (_, other):  # one more client of the same browser
                assert await logged_in(other, site) == ["who=eve", "of eve"]
    await eventually_async(lambda: latest(grid)["endedAt"], "the last one is over")
    await nobody_else_gets_it()  # between two of them
    (worker,) = grid.status()["workers"]
    async with shop_of(playwright, lease) as (_, page):
        os.kill(worker["pid"], signal.SIGKILL)
        await is_succeeded(grid, worker)
        await nobody_else_gets_it()
        await log_in(page, site, "bob")
        assert give_back(grid, lease)  # with a client
    await eventually_async(lambda: grid.status()["pools"][0]["available"] == 1, "another worker")
    lease = borrow(grid, profile="shop-login")  # at once
    async with shop_of(playwright, lease) as (_, page):
        assert await logged_in(page, site) == ["who=bob", "of bob"]
    assert give_back(grid, lease)
    async with shop(playwright, grid) as (_, page):
        assert await logged_in(page, site) == ["who=bob", "of bob"]
    await is_over(grid)
    answer = request(grid, "POST", "/session/borrow", {"labelKey": CHROMIUM, "profile": "no name!"})
    assert (answer.status, "letters" in answer.body["error"]) == (400, True), answer


async def test_a_killed_worker_s_successor_knows_that_a_browser_writes_the_profile_of_a_lease(
    playwright: Playwright, grid: Grid, site: str
) -> None:
    lease, said = borrow(grid, profile="shop-login"), len(grid.output())

    async def next_client() -> list[str]:
        async with shop_of(playwright, lease) as (_, page):
            return await logged_in(page, site)

    async with shop_of(playwright, lease) as (client, page):
        await log_in(page, site)
        async with writing_its_profile(grid, client) as worker:
            os.kill(worker["pid"], signal.SIGKILL)
            await is_succeeded(grid, worker)
            waits = asyncio.create_task(next_client())
            await eventually_async(lambda: waits.done() or "not yet" in grid.output()[said:], "it is to wait")
    assert await waits == ["who=ada", "of ada"]
    assert give_back(grid, lease)


async def test_killed_proxies_masters_and_redis_take_no_profile_from_its_session(
    playwright: Playwright, exact_grid: Grid, site: str
) -> None:
    grid = exact_grid
    async with shop(playwright, grid) as (_, page):
        await log_in(page, site)
        session = latest(grid)["id"]

        def is_in_use() -> bool:
            """Without Redis, or a heartbeat since it is back, nobody knows a worker: 503."""
            status, _, body = answer(grid.port, head(target="/cdp?profile=shop-login"))
            assert status in (409, 503)
            return status == 409 and f"in use by session {session}" in body["error"]

        async def goes_on() -> None:
            assert await logged_in(page, site) == ["who=ada", "of ada"]
            await eventually_async(is_in_use, "who asks for its profile hears that the session has it")

        for role in ("proxy", "redis"):
            killed = grid.status()[role]["pid"]
            os.kill(killed, signal.SIGKILL)

            def has_another(role: str = role, killed: int = killed) -> bool:
                return grid.status()[role]["pid"] not in (None, killed)

            await eventually_async(has_another, f"another {role}")
            await goes_on()
        await asyncio.to_thread(grid.kill_master)
        await goes_on()
        await asyncio.to_thread(grid.start_again)
        await goes_on()
    assert (await is_over(grid))["id"] == session
    async with shop(playwright, grid) as (_, page):
        assert await logged_in(page, site) == ["who=ada", "of ada"]
    await is_over(grid)


async def test_a_worker_killed_while_it_saves_leaves_that_to_its_successor(
    playwright: Playwright, exact_grid: Grid, struck_profiles: Path, site: str
) -> None:
    grid, profiles = exact_grid, struck_profiles
    async with shop(playwright, grid) as (_, page):
        await log_in(page, site)
        (worker,) = grid.status()["workers"]
        owner = os.open(profiles / "-", os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(owner, fcntl.LOCK_EX)  # nobody puts a profile in place meanwhile
    try:
        await eventually_async(lambda: [*profiles.glob("-/.shop-login.*.tar")], "it saves")
        os.kill(worker["pid"], signal.SIGKILL)
        await is_succeeded(grid, worker)
    finally:
        os.close(owner)
    await is_over(grid)
    await eventually_async(lambda: grid.status()["pools"][0]["available"] == 1, "another worker")
    async with shop(playwright, grid) as (_, page):
        assert await logged_in(page, site) == ["who=ada", "of ada"]


async def test_who_waits_for_a_profile_gets_what_is_saved_after_the_worker_was_killed(
    playwright: Playwright, exact_grid: Grid, struck_profiles: Path, site: str
) -> None:
    grid, use = exact_grid, struck_profiles / "-" / "shop-login.json"

    async def next_client() -> list[str]:
        async with shop(playwright, grid) as (_, page):
            return await logged_in(page, site)

    async with shop(playwright, grid) as (client, page):
        await log_in(page, site)
        async with writing_its_profile(grid, client) as worker:
            await eventually_async(lambda: json.loads(use.read_bytes())["use"].get("is_ending"), "it ends")
            waits = asyncio.create_task(next_client())
            os.kill(worker["pid"], signal.SIGKILL)
            await is_succeeded(grid, worker)
            assert "is in use by session" in grid.command("profile", "remove", "shop-login").stderr
    assert await waits == ["who=ada", "of ada"]
    await is_over(grid)


async def test_too_large_a_profile_is_not_saved_and_the_record_says_so(
    playwright: Playwright, grid: Grid, site: str
) -> None:
    async with shop(playwright, grid) as (_, page):
        await log_in(page, site)
    async with shop(playwright, grid) as (_, page):
        await log_in(page, site, "eve")
        await page.evaluate("""() => new Promise((resolve, reject) => {
            const opening = indexedDB.open('large', 1);
            opening.onupgradeneeded = () => opening.result.createObjectStore('all');
            opening.onsuccess = () => {
              const writing = opening.result.transaction('all', 'readwrite');
              const content = new Uint8Array(8 << 20);
              for (let at = 0; at < content.length; at += 65536)
                crypto.getRandomValues(content.subarray(at, at + 65536));
              writing.objectStore('all').put(content, 1);
              writing.oncomplete = resolve;
              writing.onerror = reject;
            };
        })""")
    record = await is_over(grid)
    assert record["status"] == "completed"
    assert record["reason"] == ("client disconnected: its profile was not saved: it is larger than PROFILE_MAX_MIB=4")
    async with shop(playwright, grid) as (_, page):
        assert await logged_in(page, site) == ["who=ada", "of ada"]


async def test_there_are_only_so_many(playwright: Playwright, grid: Grid) -> None:
    for number in range(2):
        async with shop(playwright, grid, f"?profile=p{number}"):
            pass
    await is_over(grid)
    with pytest.raises(Error, match="PROFILES_MAX=2"):
        async with shop(playwright, grid, "?profile=p2"):
            pass
    async with shop(playwright, grid, "?profile=p1"):
        pass


async def test_what_ends_in_order_is_saved_nothing_is_left_of_the_grid_and_one_that_is_killed_locks_no_profile(
    playwright: Playwright, profiles: Path, site: str
) -> None:
    """The client closes its browser, and then the grid stops while another is connected."""
    need("chromium")
    environment = {**ENVIRONMENT, **ONLY_OWN, "PROFILES_DIR": str(profiles), "DRAIN_TIMEOUT": "1"}
    with running_grid(environment=environment) as grid:
        async with shop(playwright, grid, "?profile=closed") as (browser, page):
            await log_in(page, site)
            cdp = await browser.new_browser_cdp_session()
            await cdp.send("Browser.close")
        assert (await is_over(grid))["reason"] == "client closed the browser"
        async with shop(playwright, grid, "?profile=drained") as (browser, page):
            await log_in(page, site, "eve")
            grid.process.send_signal(signal.SIGTERM)
            await eventually_async(lambda: not browser.is_connected(), "its session is cut")
        await eventually_async(lambda: grid.process.poll() is not None, "the grid has ended")
    found = sorted(str(path.relative_to(profiles)) for path in profiles.rglob("*") if path.is_file())
    assert found == ["-/closed.tar", "-/drained.tar"]
    with running_grid(environment=environment) as grid:
        for name, who in (("closed", "ada"), ("drained", "eve")):
            async with shop(playwright, grid, f"?profile={name}") as (_, page):
                assert await logged_in(page, site) == [f"who={who}", f"of {who}"]
        await is_over(grid)
        # Nor does a grid that is killed lock one.
        async with shop(playwright, grid, "?profile=closed") as (_, page):
            await log_in(page, site, "bob")
            grid.kill_everything()
    assert (profiles / "-" / "closed.json").exists()
    with running_grid(environment=environment) as grid:
        async with shop(playwright, grid, "?profile=closed") as (_, page):
            assert await logged_in(page, site) == ["who=ada", "of ada"]


async def test_each_token_has_its_own_and_playwright_s_protocol_has_none(
    playwright: Playwright, profiles: Path, site: str, tmp_path: Path
) -> None:
    """With tokens there are profiles, though PROFILES says nothing."""
    need("chromium")
    config = tmp_path / "grid.toml"
    config.write_text("")
    place = Place(tmp_path / "tokens.json")
    ada, eve = (create(place, name, Role.CLIENT.value, 0, [])[0] for name in ("ada", "eve"))
    environment = {**WITHOUT_SPARES, **ONLY_OWN, "PWGRID_CONFIG": str(config), "PROFILES_DIR": str(profiles)}
    with running_grid("--chromium", "1", environment=environment) as grid:
        async with shop(playwright, grid, token=ada) as (_, page):
            await log_in(page, site)
        async with shop(playwright, grid, token=ada) as (_, mine), shop(playwright, grid, token=eve) as (_, other):
            assert await logged_in(mine, site) == ["who=ada", "of ada"]
            assert await logged_in(other, site) == ["", ""]
        await eventually_async(lambda: grid.active() == 0, "both are over")
        listed = json.loads(grid.command("profile", "list", "--json").stdout)
        assert [(each["token"], each["name"]) for each in listed] == [("ada", "shop-login"), ("eve", "shop-login")]
        assert "several tokens have" in grid.command("profile", "export", "shop-login").stderr
        with pytest.raises(Error, match="connect by connect_over_cdp"):
            await playwright.chromium.connect(
                f"ws://127.0.0.1:{grid.port}/?profile=shop-login&isolation=browser",
                headers={"Authorization": f"Bearer {ada}"},
            )


async def test_without_a_token_there_are_none_unless_they_are_asked_for(playwright: Playwright) -> None:
    """The fake browser server stands in for Playwright: no browser is asked."""
    with (
        running_grid("--chromium", "1", fake=True) as grid,
        pytest.raises(Error, match="have its operator set PROFILES=on"),
    ):
        async with shop(playwright, grid):
            pass
