"""What drivers of older Playwrights can do and the newest cannot: the guard knows their messages, too, and what the
browser server keeps apart and cleans up is the same with them."""

import asyncio
import json
import subprocess
from pathlib import Path

import pytest

from pwgrid.installed.driver import Driver
from pwgrid.worker.browser.launch import LAUNCHER
from tests.hostile import messages
from tests.hostile.test_guard import refused
from tests.hostile.test_messages import EVERYTHING, NODE, OLDER, calls
from tests.support.drivers import MIDDLE, OLDEST, cached_driver, messages_of
from tests.support.protocol_client import Refusal, protocol_client
from tests.support.stand_in_proxy import browser_server, processes_of

pytestmark = pytest.mark.timeout(600)  # pip may be among what runs here


@pytest.fixture(params=[OLDEST, MIDDLE])
def driver(request: pytest.FixtureRequest) -> Driver:
    return cached_driver(request.param)


def test_the_table_has_every_message_of_an_older_playwright(driver: Driver) -> None:
    listed = {call for part in [*EVERYTHING, *OLDER] for call in calls(part)}
    known = messages_of(driver)
    assert len(known) > 300
    assert known <= listed


async def test_with_an_older_driver_nobody_reaches_the_host_and_everything_ends_with_its_client(driver: Driver) -> None:
    unknown = {call for call in calls(messages.OLDER_COMPATIBLE_REFUSES) if call in messages_of(driver)}
    async with browser_server(driver=driver) as watched:
        assert watched.server.ready.playwright_version == driver.version
        before = {process.pid for process in processes_of(watched.directory)}
        async with protocol_client(watched.endpoint) as other, protocol_client(watched.endpoint) as client:
            session = (await other.send(other.one("Browser"), "newBrowserCDPSession"))["session"]["guid"]
            own = len((await other.cdp(session, "Target.getBrowserContexts"))["browserContextIds"])
            context = await client.new_context()
            page = await client.new_page(context)
            targets = {"BrowserContext": context, "Page": page}
            for kind, method in sorted(unknown):
                with pytest.raises(Refusal, match="is refused by the grid"):
                    await client.send(
                        targets[kind], method, cacheOutFile="/tmp/x", outputFile="/tmp/x", mode="recording"
                    )
            for kind, method in (("Android", "devices"), ("Playwright", "newRequest")):
                await refused(client.send(client.one(kind), method), "(nothing allows it)")
            assert {process.pid for process in processes_of(watched.directory)} == before
            client.drop()
            while len((await other.cdp(session, "Target.getBrowserContexts"))["browserContextIds"]) > own:
                await asyncio.sleep(0)
        await watched.all_closed()


COUNT = """
const { WaitInfo, waitInfoOf } = require(process.argv[1]);
const waits = new WaitInfo();
const paramsOf = (method, info) => method === '__waitInfo__' ? info : { info };
const say = (method, info) => waits.takes(waitInfoOf({ method, params: paramsOf(method, info) }));
const found = { begun: 0, logged: 0 };
for (const method of ['waitForEventInfo', '__waitInfo__'])
  for (let number = 0; number < 2000; number++)
    found.begun += say(method, { waitId: `${method}${number}`, phase: 'before', event: 'x' });
for (let number = 0; number < 2000; number++)
  found.logged += say('__waitInfo__', { waitId: 'waitForEventInfo0', phase: 'log', message: 'x'.repeat(10000) });
found.unknown = say('__waitInfo__', { waitId: 'of nobody', phase: 'log', message: 'x' });
for (const id of [...waits.waits.keys()])
  say('__waitInfo__', { waitId: id, phase: 'after' });
found.left = [waits.waits.size, waits.characters];
found.again = say('__waitInfo__', { waitId: 'again', phase: 'before' });
found.others = waitInfoOf({ method: 'goto', params: { info: { waitId: 1 } } });
console.log(JSON.stringify(found));
"""


def test_what_a_client_tells_of_its_waits_is_kept_within_bounds() -> None:
    module = LAUNCHER.with_name("playwright") / "wait_info.cjs"
    done = subprocess.run([NODE, "-e", COUNT, str(module)], capture_output=True, text=True, timeout=60, check=True)
    found = json.loads(done.stdout)
    assert found["begun"] == 1000
    assert 50 < found["logged"] < 105
    assert {name: found[name] for name in ("unknown", "left", "again", "others")} == {
        "unknown": False,
        "left": [0, 0],
        "again": True,
        "others": None,
    }


async def test_a_client_with_too_many_waits_goes_on(driver: Driver) -> None:
    async with browser_server(driver=driver) as watched, protocol_client(watched.endpoint) as client:
        page = await client.new_page()
        method = "waitForEventInfo" if ("Page", "waitForEventInfo") in messages_of(driver) else "__waitInfo__"
        for number in range(1100):
            info = {"waitId": str(number), "phase": "before", "event": "download"}
            await client.post(page, method, **({"info": info} if method == "waitForEventInfo" else info))
        late = {"waitId": "of nobody", "phase": "log", "message": "x"}
        await client.send(page, method, **({"info": late} if method == "waitForEventInfo" else late))
        assert await client.new_page()


def test_the_check_of_a_driver_names_what_it_lacks(driver: Driver, tmp_path: Path) -> None:
    check = [driver.node, LAUNCHER.with_name("playwright") / "check_driver.cjs"]
    done = subprocess.run([*check, driver.core], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, "[]"), done.stderr
    empty = tmp_path / "package"
    empty.mkdir()
    done = subprocess.run([*check, empty], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("Cannot find module")
