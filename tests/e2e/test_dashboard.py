"""The page that shows the grid, in a real browser of that very grid: what it shows is compared with the truth."""

import asyncio
import base64
import contextlib
import json
import os
import re
import secrets
import signal
import urllib.request
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, Playwright, WebSocketRoute, expect
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from pwgrid.cli import token as tokens
from pwgrid.tokens.tokens import Role
from tests.conftest import counters_are_exact, need
from tests.e2e.test_api import api
from tests.support import raw
from tests.support.grid import ROOT, WITHOUT_SPARES, Grid, eventually_async, running_grid

AXE = ROOT / "tests" / "support" / "axe" / "axe.min.js"
ARTIFACTS = Path(os.environ.get("PWGRID_TEST_ARTIFACTS", ROOT / "artifacts"))
SLOTS = 3
IS_COLOURED = """colour => {
    const picture = document.getElementById('viewer-picture');
    if (!picture.naturalWidth)
        return false;
    const canvas = new OffscreenCanvas(picture.naturalWidth, picture.naturalHeight).getContext('2d');
    canvas.drawImage(picture, 0, 0);
    const wanted = colour.match(/\\d+/g).map(Number);
    const found = canvas.getImageData(50, 50, 1, 1).data.slice(0, 3);
    return found.every((value, index) => Math.abs(value - wanted[index]) < 12);
}"""
WAIT_S = 20.0


@pytest.fixture(scope="module")
def own_grid(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Grid]:
    """Two workers of three slots, whose lives are too long for spares; who finds no slot waits for long."""
    need("chromium")
    environment = {
        **{"PROFILES": "on", "PROFILES_DIR": str(tmp_path_factory.mktemp("profiles"))},
        **{"MAX_CONCURRENT_SESSIONS": str(SLOTS), "MAX_LIFETIME_SESSIONS": "6000", "MAX_WORKER_MEMORY_MIB": "4000"},
        **{"MAX_WORKER_MEMORY_HARD_MIB": "5000", "WORKER_SELECT_TIMEOUT": str(WAIT_S)},
    }
    with running_grid("--chromium", "2", environment=environment) as grid:
        yield grid


@pytest_asyncio.fixture(loop_scope="session")
async def viewer(own_grid: Grid, playwright: Playwright) -> AsyncIterator[Browser]:
    """A browser of the grid itself, to look at it."""
    browser = await playwright.chromium.connect(own_grid.endpoint)
    yield browser
    await browser.close()
    await asyncio.to_thread(counters_are_exact, own_grid)


@pytest_asyncio.fixture(loop_scope="session")
async def page(own_grid: Grid, viewer: Browser) -> AsyncIterator[Page]:
    """The page, live; at its end it has said nothing on the console."""
    said: list[str] = []
    page = await (await viewer.new_context(viewport={"width": 1280, "height": 900})).new_page()
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    await page.goto(own_grid.http)
    await expect(page.locator("#link")).to_have_text("live")
    await expect(page.locator("#ready")).to_have_text("ready")
    yield page
    assert said == []


@contextlib.contextmanager
def load(grid: Grid, count: int) -> Iterator[list[Any]]:
    """So many sessions that do nothing but be there."""
    with contextlib.ExitStack() as held:
        yield [held.enter_context(contextlib.closing(raw.session(grid.port))) for _ in range(count)]


async def only_running(page: Page, but: str = "none") -> str:
    """The id of the one session that the page shows as running, once there is just one beside `but`."""
    found = page.locator("#sessions tbody tr").filter(has_text="running").filter(has_not_text=but)
    await expect(found).to_have_count(1)
    return await found.locator("th").inner_text()


async def figure(page: Page, name: str) -> str:
    return (
        await page.locator("#figures div").filter(has=page.get_by_text(name, exact=True)).locator(".value").inner_text()
    )


async def test_what_it_shows_under_load_is_the_truth(own_grid: Grid, page: Page) -> None:
    with load(own_grid, 2 * SLOTS - 1), contextlib.ExitStack() as line:
        for _ in range(3):
            waiting = line.enter_context(contextlib.closing(raw.connect(own_grid.port)))
            waiting.sendall(raw.head())
        await expect(page.locator("#figures")).to_contain_text(f"{2 * SLOTS} / {2 * SLOTS}")
        await expect(page.locator("#queue li b")).to_have_text("3 clients")
        await expect(page.locator("#sessions tbody .badge", has_text="running")).to_have_count(2 * SLOTS)
        status = await asyncio.to_thread(own_grid.status)
        _, told = await asyncio.to_thread(api, own_grid, "/v1/sessions?status=running")
        rows = await page.locator("#sessions tbody tr").evaluate_all(
            """rows => rows.filter(row => row.innerText.includes('running')).map(row => {
                const text = index => row.children[index].innerText;
                return { id: text(0), pool: text(3), workerId: text(4), client: text(7) };
            })"""
        )
        assert sorted(rows, key=lambda row: row["id"]) == sorted(
            (
                {"id": each["id"], "pool": "chromium", "workerId": each["workerId"], "client": each["client"]}
                for each in told["sessions"]
            ),
            key=lambda row: str(row["id"]),
        )
        tiles = await page.locator(".worker").evaluate_all(
            """tiles => tiles.map(tile => [tile.querySelector('code').innerText, tile.dataset.status,
                tile.querySelectorAll('.slot.busy').length, tile.querySelectorAll('.slot').length])"""
        )
        assert sorted(tiles) == sorted(
            [worker["id"], worker["status"], worker["active"], worker["slots"]] for worker in status["workers"]
        )
        for worker in status["workers"]:
            tile = page.locator(".worker").filter(has=page.get_by_text(worker["id"], exact=True))
            await expect(tile.locator(".life")).to_have_text(f"{worker['lifetime']} of 6000 sessions")
            await expect(tile.locator(".size")).to_contain_text("MiB of 4000", timeout=15_000)
        assert await figure(page, "Workers") == "2 / 2"
        line.close()
        await expect(page.locator("#nobody")).to_be_visible()
        await _pictures(page)
    await expect(page.locator("#figures")).to_contain_text(f"1 / {2 * SLOTS}")


BARS_OF_WORKERS = """async ({ limits, used }) => {
    const { showGrid } = await import('./dashboard/grid.js');
    const pool = { wanted: 2, available: 2, browserType: 'chromium', lifetimeOfWorker: 10, ...limits };
    const worker = { pool: 'tried', status: 'available', active: 0, slots: 1, lifetime: 10, startedAt: 0 };
    const workers = Object.fromEntries(used.map((memoryMib, index) => [index, { ...worker, memoryMib }]));
    showGrid({ tables: { grid: { ready: true }, pools: { tried: pool }, workers, queue: {} } }, () => {});
    const sample = document.body.appendChild(document.createElement('i'));
    const names = Object.fromEntries(['--accent', '--bad', '--warn', '--rod', '--line'].map(name => {
        sample.style.color = `var(${name})`;
        return [getComputedStyle(sample).color, name];
    }));
    return [...document.querySelectorAll('.worker .rod i')].map(
        bar => [names[getComputedStyle(bar).backgroundColor], bar.style.height]);
}"""


@pytest.mark.parametrize(
    ("limits", "used", "bars"),
    [
        ({}, [200, 100], [("--line", "100%"), ("--line", "50%")]),
        ({"memoryLimitMib": 1000}, [100, 950], [("--rod", "10%"), ("--warn", "95%")]),
        ({"memoryLimitMib": 1000, "memoryHardLimitMib": 2000}, [1800, 900], [("--bad", "100%"), ("--warn", "90%")]),
        ({"memoryHardLimitMib": 1000}, [899, 900], [("--rod", "90%"), ("--bad", "90%")]),
    ],
    ids=str,
)
async def test_red_is_for_what_needs_somebody(
    page: Page, limits: dict[str, int], used: list[int], bars: list[tuple[str, str]]
) -> None:
    """A worker at the end of its life needs nobody, nor does the largest one where there is no limit."""
    drawn = await page.evaluate(BARS_OF_WORKERS, {"limits": limits, "used": used})
    assert [tuple(each) for each in drawn] == [bar for memory in bars for bar in (("--accent", "100%"), memory)]


REASONS_OF_WORKERS = """async versions => {
    const { showGrid } = await import('./dashboard/grid.js');
    const pool = { wanted: 2, available: 2, browserType: 'chromium', lifetimeOfWorker: 10, playwright: '1.65' };
    const worker = { pool: 'tried', status: 'draining', active: 0, slots: 1, lifetime: 1, reason: 'upgrade' };
    const workers = Object.fromEntries(versions.map((playwright, index) => [index, { ...worker, playwright }]));
    showGrid({ tables: { grid: { ready: true }, pools: { tried: pool }, workers, queue: {} } }, () => {});
    return [...document.querySelectorAll('.worker .reason')].map(reason => reason.textContent);
}"""


async def test_a_worker_of_another_version_than_its_pool_says_which(page: Page) -> None:
    shown = await page.evaluate(REASONS_OF_WORKERS, ["1.65", "1.58", None])
    assert shown == ["upgrade", "Playwright 1.58; upgrade", "upgrade"]


MEMORY = """async sizes => {
    const { showGrid } = await import('./dashboard/grid.js');
    const worker = { pool: 'tried', status: 'available', active: 0, slots: 1, lifetime: 0, startedAt: 0 };
    const workers = Object.fromEntries(sizes.map((memoryMib, index) => [index, { ...worker, memoryMib }]));
    const pool = { wanted: 2, browserType: 'chromium', lifetimeOfWorker: 10, memoryLimitMib: 100 };
    showGrid({ tables: { grid: { ready: true }, pools: { tried: pool }, workers, queue: {} } }, () => {});
    const figure = [...document.querySelectorAll('#figures dt')].find(each => each.textContent === 'Memory');
    const bars = [...document.querySelectorAll('.worker .memory')].map(bar => bar.getAttribute('aria-valuetext'));
    return [figure.nextElementSibling.textContent, ...bars];
}"""


@pytest.mark.parametrize(
    ("sizes", "shown"),
    [
        ([None, None], ["–", "not measured yet", "not measured yet"]),
        ([7, None], ["7 MiB", "7 of 100 MiB", "not measured yet"]),
        ([], ["0 MiB"]),
    ],
)
async def test_what_was_not_measured_yet_is_not_said_to_be_nothing(
    page: Page, sizes: list[int | None], shown: list[str]
) -> None:
    assert await page.evaluate(MEMORY, sizes) == shown


TYPED_NUMBERS = """async hosts => {
    const { showGrid } = await import('./dashboard/grid.js');
    const sent = [];
    const act = (_method, path, body) => sent.push([path, body.workers]);
    const show = wanted => {
        const pool = { wanted, browserType: 'chromium', lifetimeOfWorker: 10, ...(hosts ? { hosts } : {}) };
        const tables = { grid: { ready: true }, pools: { tried: pool }, workers: {}, queue: {} };
        showGrid({ operator: true, tables }, act);
    };
    show(2);
    const form = document.querySelector('article[aria-label="pool tried"] form');
    const [number, host] = [form.querySelector('input'), form.querySelector('select')];
    const numbers = [];
    const type = text => { number.value = text; number.dispatchEvent(new Event('input')); };
    const then = what => { what(); numbers.push(number.valueAsNumber); };
    then(() => show(3));
    then(() => { type('7'); show(4); });  // it has no focus: somebody has pressed Tab
    if (hosts)
        then(() => { host.value = 'b'; host.dispatchEvent(new Event('change')); });
    form.requestSubmit();
    then(() => show(5));
    then(() => { type('8'); type(String(hosts ? hosts.b.wanted : 5)); show(6); });
    if (hosts)
        then(() => { host.value = 'a'; host.dispatchEvent(new Event('change')); });
    return [numbers, sent];
}"""


@pytest.mark.parametrize(
    ("hosts", "numbers", "sent"),
    [
        (None, [3, 7, 5, 6], ["v1/pools/tried/scale", 7]),
        (
            {"a": {"wanted": 1, "available": 1}, "b": {"wanted": 9, "available": 9}},
            [1, 7, 7, 9, 9, 1],
            ["v1/pools/tried/scale?host=b", 7],
        ),
    ],
)
async def test_a_number_of_workers_that_was_typed_stays_until_it_is_sent(
    page: Page, hosts: dict[str, Any] | None, numbers: list[int], sent: list[Any]
) -> None:
    assert await page.evaluate(TYPED_NUMBERS, hosts) == [numbers, [sent]]


async def _pictures(page: Page) -> None:
    """Light and dark, as whoever looks after a change of this page wants to see it."""
    ARTIFACTS.mkdir(exist_ok=True)
    await expect(page.locator("#curves canvas")).to_have_count(4, timeout=15_000)
    for scheme in ("light", "dark"):
        await page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        colour = await page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (sum(int(part) for part in colour[4:-1].split(",")) > 380) == (scheme == "light"), colour
        path = ARTIFACTS / f"dashboard-{scheme}.png"
        await page.screenshot(path=path)
        assert path.stat().st_size > 10_000
    await page.emulate_media(color_scheme="light")


async def test_an_operator_ends_a_session_scales_and_drains_by_its_buttons(own_grid: Grid, page: Page) -> None:
    page.on("dialog", lambda dialog: asyncio.ensure_future(dialog.accept()))
    own = await only_running(page)
    with load(own_grid, 1):
        ended = await only_running(page, but=own)
        await page.get_by_role("button", name=f"End session {ended}").click()
        row = page.locator("#sessions tbody tr").filter(has_text=ended)
        await expect(row).to_contain_text("ended by operator", timeout=15_000)
        await expect(page.locator("#events")).to_contain_text(f"session {ended} was ended: ended by operator")
    _, told = await asyncio.to_thread(api, own_grid, f"/v1/sessions/{ended}")
    assert (told["status"], told["reason"]) == ("ended", "ended by operator")
    await page.get_by_label("Workers", exact=True).fill("3")
    await page.get_by_role("button", name="Scale").click()
    await expect(page.locator("#notice")).to_have_text("chromium wants 3 workers now.")
    await expect(page.locator(".worker[data-status=available]")).to_have_count(3, timeout=30_000)
    await expect(page.locator("#events")).to_contain_text("pool chromium wants 3 workers, it wanted 2")
    here = (await asyncio.to_thread(api, own_grid, f"/v1/sessions/{own}"))[1]["workerId"]
    idle = next(
        worker["id"] for worker in (await asyncio.to_thread(own_grid.status))["workers"] if worker["id"] != here
    )
    await page.get_by_role("button", name=f"Drain worker {idle}").click()
    await expect(page.locator("#events")).to_contain_text(
        f"worker {idle} of chromium has ended: operator", timeout=30_000
    )
    await expect(page.locator(".worker").filter(has_text=idle)).to_have_count(0)
    await expect(page.locator(".worker[data-status=available]")).to_have_count(3, timeout=30_000)
    status, refused = await asyncio.to_thread(post, own_grid, "/v1/pools/chromium/scale", {"workers": 0})
    assert (status, "must be at least 1" in refused["error"]) == (400, True)
    assert (await asyncio.to_thread(post, own_grid, "/v1/pools/none/drain", {}))[0] == 400
    assert (await asyncio.to_thread(post, own_grid, "/v1/pools/chromium/scale", {"workers": 2}))[0] == 200
    await expect(page.locator(".worker[data-status=available]")).to_have_count(2, timeout=30_000)


def post(grid: Grid, path: str, body: dict[str, Any]) -> tuple[int, Any]:
    request = urllib.request.Request(
        grid.http + path, json.dumps(body).encode(), {"Content-Type": "application/json"}, method="POST"
    )
    try:
        with urllib.request.urlopen(request, timeout=20) as response:
            return response.status, json.loads(response.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


async def test_an_operator_looks_at_a_session_which_is_on_its_record(
    own_grid: Grid, page: Page, playwright: Playwright
) -> None:
    own = await only_running(page)
    async with await playwright.chromium.connect(own_grid.endpoint) as browser:
        shown = await browser.new_page()
        await shown.set_content("<body style='margin:0;background:rgb(200, 0, 0)'>")
        session = await only_running(page, but=own)
        row = page.locator("#sessions tbody tr").filter(has_text=session)
        await row.get_by_role("button", name="View").click()
        picture = page.locator("#viewer-picture")
        for colour in ("rgb(200, 0, 0)", "rgb(0, 0, 220)"):
            await shown.evaluate("colour => { document.body.style.background = colour }", colour)
            await page.wait_for_function(IS_COLOURED, arg=colour)
        await expect(page.locator("#viewer-state")).to_have_text("about:blank")
        await expect(picture).to_have_attribute("alt", "The page at about:blank")
        assert await asyncio.to_thread(views, own_grid) == 1
        await page.get_by_role("button", name="Close").click()
        await eventually_async(lambda: views(own_grid) == 0, "nobody looks any more")
        _, told = await asyncio.to_thread(api, own_grid, f"/v1/sessions/{session}")
        assert told["createdAt"] < told["viewedAt"]
        assert f"session_viewed session={session} by=127.0.0.1:" in own_grid.output()
        await expect(row).to_contain_text("looked at")
        await row.get_by_role("button", name="View").click()
        await expect(picture).to_be_visible()
    await expect(page.locator("#viewer-state")).to_have_text("The session is over.")
    path = f"/v1/sessions/{session}"
    await eventually_async(lambda: api(own_grid, path)[1]["status"] != "running", "its end is on record")
    await page.keyboard.press("Escape")
    refused = await asyncio.to_thread(raw_answer, own_grid, raw.head(target=f"/v1/live/{session}"))
    assert refused.startswith(b"HTTP/1.1 409 "), refused
    assert "looked at by an operator" in (await asyncio.to_thread(own_grid.command, "sessions")).stdout


async def test_a_page_that_is_one_too_many_says_so(own_grid: Grid, viewer: Browser) -> None:
    page = await viewer.new_page()

    async def is_full(feed: WebSocketRoute) -> None:
        feed.send('{"full":100}')
        await feed.close(code=1013)

    await page.route_web_socket(re.compile("/v1/live$"), is_full)
    await page.goto(own_grid.http)
    await expect(page.locator("#link")).to_have_text("100 pages look at this grid already, trying again …")
    await page.close()


VIEW = "async () => (await import('./dashboard/live_view.js')).view({ id: '0123', name: '' })"


async def test_a_view_goes_on_with_the_next_proxy_and_says_that_as_many_look_as_may(page: Page) -> None:
    """Playwright answers in place of the grid."""
    views: asyncio.Queue[WebSocketRoute] = asyncio.Queue()
    await page.route_web_socket(re.compile("/v1/live/0123$"), views.put_nowait)
    said: asyncio.Queue[str | bytes] = asyncio.Queue()
    state, pages = page.locator("#viewer-state"), [{"id": each, "url": f"about:{each}"} for each in ("one", "two")]
    async with asyncio.timeout(30):
        await page.evaluate(VIEW)
        view = await views.get()
        view.send(json.dumps({"pages": pages, "page": "two", "why": ""}))
        await expect(state).to_have_text("about:two")
        view.on_message(said.put_nowait)
        await page.locator("#viewer-page").select_option("one")
        assert json.loads(await said.get()) == {"page": "one"}
        await view.close(code=1012)
        again = await views.get()
        again.on_message(said.put_nowait)
        assert json.loads(await said.get()) == {"page": "one"}
        again.send('{"full":8}')
        await again.close()
        await expect(state).to_contain_text("8 look at sessions of this browser already")
        await page.keyboard.press("Escape")


async def test_a_cdp_session_is_shown_with_its_profile_and_the_time_that_it_is_still_kept(
    own_grid: Grid, page: Page
) -> None:
    host = f"ws://127.0.0.1:{own_grid.port}"
    session = secrets.token_hex(8)
    async with connect(f"{host}/devtools/browser/{session}?keep=90&profile=shop") as client:
        row = page.locator("#sessions tbody tr").filter(has_text=session)
        pool = row.locator("td[data-label=Pool]")
        await expect(pool).to_have_text("chromium (own browser, cdp, profile shop)")
        await expect(row.locator(".badge")).to_have_text("running")
        await client.close()
    reason = row.locator("td[data-label=Reason]")
    await expect(row.locator(".badge")).to_have_text("kept")
    await expect(reason).to_have_text(re.compile(r"^waits for a client until \d\d:\d\d:\d\d \([1-9]\d s\)$"))
    _, told = await asyncio.to_thread(api, own_grid, f"/v1/sessions/{session}")
    assert told.items() >= {"protocol": "cdp", "profile": "shop", "kept": True}.items()
    shown = await page.evaluate(f"new Date({told['keptUntil']} * 1000).toLocaleTimeString('de')")
    await expect(reason).to_contain_text(f"until {shown}")
    before = await reason.inner_text()
    await expect(reason).not_to_have_text(before)  # the time that is left grows less
    await page.locator("#words").fill("profile shop")
    await expect(row).to_be_visible()
    await page.locator("#words").fill("")
    async with connect(f"{host}/devtools/browser/{session}"):
        await expect(row.locator(".badge")).to_have_text("running")
        await expect(reason).to_have_text("")
        page.once("dialog", lambda dialog: dialog.accept())
        await row.get_by_role("button", name="End").click()
        await expect(reason).to_have_text("ended by operator")


def views(grid: Grid) -> int:
    """How many live views browser servers have open, beside the socket at which each listens for them."""
    return sum(max(0, live_sockets(worker["nodePid"]) - 1) for worker in grid.ask("status")["workers"])


def live_sockets(pid: int | None) -> int:
    with contextlib.suppress(psutil.NoSuchProcess):  # of a worker that has just ended
        names = [each.laddr for each in psutil.Process(pid).net_connections("unix")] if pid else []
        return sum(str(name).endswith("live.sock") for name in names)
    return 0


async def test_a_client_s_token_sees_its_own_session_and_no_other(tmp_path: Path, playwright: Playwright) -> None:
    need("chromium")
    place = tokens.Place(tmp_path / "tokens.json")
    mine, other = (tokens.create(place, name, Role.CLIENT, 0, ())[0] for name in ("mine", "other"))
    (tmp_path / "grid.toml").write_text("")
    environment = {"PWGRID_CONFIG": str(tmp_path / "grid.toml")}
    with running_grid("--chromium", "1", environment=environment) as grid:
        async with (
            await playwright.chromium.connect(f"{grid.endpoint}/?token={mine}") as browser,
            await playwright.chromium.connect(f"{grid.endpoint}/?token={other}"),
        ):
            page = await browser.new_page()
            await page.set_content("<body style='margin:0;background:rgb(200, 0, 0)'>")
            bearer = {"Authorization": f"Bearer {mine}"}
            path = "/v1/sessions?status=running"
            (own,) = await eventually_async(lambda: api(grid, path, **bearer)[1]["sessions"], "its start is on record")
            view = f"{grid.endpoint}/v1/live/{own['id']}"
            async with connect(view, additional_headers=bearer) as socket, asyncio.timeout(30):
                while isinstance(frame := await socket.recv(), str):  # what pages there are
                    assert [each["url"] for each in json.loads(frame)["pages"]] == ["about:blank"]
            red = "src => { const it = new Image(); it.id = 'viewer-picture'; it.src = src; document.body.append(it); }"
            await page.evaluate(red, f"data:image/jpeg;base64,{base64.b64encode(frame).decode()}")
            await page.wait_for_function(IS_COLOURED, arg="rgb(200, 0, 0)")
            for token, status in ((other, 404), ("", 401)):
                with pytest.raises(InvalidStatus) as refused:
                    await connect(f"{view}?token={token}" if token else view).__aenter__()
                assert refused.value.response.status_code == status
        assert grid.output().count("session_viewed") == 1


async def test_everybody_can_use_it(own_grid: Grid, page: Page) -> None:
    """axe-core finds nothing serious in either theme, on a narrow screen neither; and no screen scrolls sideways."""
    with load(own_grid, 1):
        await expect(page.locator("#sessions tbody .badge", has_text="running")).to_have_count(2)
        await page.evaluate(AXE.read_text())
        for width, scheme in ((1280, "light"), (1280, "dark"), (360, "light"), (1920, "light")):
            await page.set_viewport_size({"width": width, "height": 900})
            await page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
            found = await page.evaluate("axe.run().then(found => found.violations)")
            serious = [
                (each["id"], [node["html"][:200] for node in each["nodes"]])
                for each in found
                if each["impact"] in ("serious", "critical")
            ]
            assert serious == [], (width, scheme)
            wide, room = await page.evaluate(
                "[document.documentElement.scrollWidth, document.documentElement.clientWidth]"
            )
            assert wide <= room, (width, wide)
            if width == 360:
                ARTIFACTS.mkdir(exist_ok=True)
                await page.screenshot(path=ARTIFACTS / "dashboard-360.png", full_page=True)
        await page.keyboard.press("/")
        await page.keyboard.type("no such session")
        await expect(page.locator("#sessions tbody tr")).to_have_count(0)
        await page.get_by_role("button", name="Theme").click()
        assert await page.evaluate("document.documentElement.dataset.theme") == "light"


async def test_it_comes_back_by_itself_when_the_proxy_is_killed(own_grid: Grid, viewer: Browser) -> None:
    page = await viewer.new_page()
    await page.goto(f"{own_grid.http}/dashboard")
    await expect(page.locator("#link")).to_have_text("live")
    proxy = (await asyncio.to_thread(own_grid.status))["proxy"]["pid"]
    os.kill(proxy, signal.SIGKILL)
    await expect(page.locator("#link")).not_to_have_text("live")
    await expect(page.locator("#link")).to_have_text("live", timeout=20_000)
    with load(own_grid, 1):
        await expect(page.locator("#sessions tbody .badge", has_text="running")).to_have_count(2)


async def test_with_a_token_it_asks_for_one(viewer: Browser) -> None:
    environment = {**WITHOUT_SPARES, "PWGRID_TOKEN": "s3cret-s3cret", "LIVE_VIEW": "false"}
    with running_grid("--chromium", "1", environment=environment, fake=True) as other:
        page = await viewer.new_page()
        await page.goto(other.http)
        await expect(page.locator("#login")).to_be_visible()
        await expect(page.locator("#login-why")).to_contain_text("this grid asks for a token")
        await page.get_by_role("textbox", name="Token").fill("wrong")
        await page.get_by_role("button", name="Show the grid").click()
        await expect(page.locator("#login-why")).to_contain_text("the token is wrong")
        await page.get_by_role("textbox", name="Token").fill("s3cret-s3cret")
        await page.get_by_role("button", name="Show the grid").click()
        await expect(page.locator("#link")).to_have_text("live")
        await expect(page.locator(".worker")).to_have_count(1)
        await page.goto(f"{other.http}/?token=s3cret-s3cret")
        assert "s3cret" not in page.url
        assert "s3cret" not in other.output()
        refused = await asyncio.to_thread(raw_answer, other, raw.head(target="/v1/live"))
        assert refused.startswith(b"HTTP/1.1 401 "), refused
        assert b"this grid asks for a token" in refused
        for query, status, why in (("", 401, b"asks for a token"), ("?token=s3cret-s3cret", 403, b"LIVE_VIEW=false")):
            refused = await asyncio.to_thread(raw_answer, other, raw.head(target=f"/v1/live/0123{query}"))
            assert refused.startswith(b"HTTP/1.1 %d " % status), refused
            assert why in refused
        await page.close()


def raw_answer(grid: Grid, head: bytes) -> bytes:
    with contextlib.closing(raw.connect(grid.port)) as sock:
        sock.sendall(head)
        return raw.read_all(sock)


@pytest.mark.parametrize("origin", ["http://evil.example", "http://127.0.0.1:1"])
def test_no_other_page_gets_its_feed_or_has_it_do_anything(own_grid: Grid, origin: str) -> None:
    assert raw_answer(own_grid, raw.head(target="/v1/live", Origin=origin)).startswith(b"HTTP/1.1 403 ")
    assert raw_answer(own_grid, raw.head(target="/v1/live", Host="evil.example")).startswith(b"HTTP/1.1 403 ")
    worker = own_grid.ask("status")["workers"][0]["id"]
    assert api(own_grid, f"/v1/workers/{worker}/drain", "POST", Origin=origin)[0] == 403


def test_a_browser_gets_the_page_and_everybody_else_what_they_got_before(own_grid: Grid) -> None:
    status, headers, body = own_grid.get("/", Accept="text/html,application/xhtml+xml,*/*;q=0.8")
    assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    for accept in ("*/*", "application/json", ""):
        assert own_grid.get("/", Accept=accept)[0] == 426
    assert own_grid.get("/dashboard", Accept="*/*")[2] == body
    status, headers, _ = own_grid.get("/dashboard/app.js")
    assert (status, headers["content-type"]) == (200, "text/javascript; charset=utf-8")
    assert own_grid.get("/dashboard/app.js", **{"If-None-Match": headers["etag"]})[0] == 304
    for nothing in ("/dashboard/none.js", "/dashboard/..%2f__init__.py", "/dashboard/page.py"):
        assert own_grid.get(nothing)[0] == 404
