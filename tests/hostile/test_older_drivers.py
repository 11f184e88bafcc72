"""What is the same with older Playwrights: the guard, the clean-up, and all that the browser server adds to a browser.
And what their drivers can do and the newest cannot: the guard knows their messages, too."""

import asyncio
import base64
import contextlib
import inspect
import json
import os
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from pwgrid.common.profile_names import Profile
from pwgrid.installed.driver import Driver
from pwgrid.worker.browser.launch import LAUNCHER
from pwgrid.worker.holders import ProfileCopy
from tests.hostile import messages, test_client_certificates, test_client_network, test_going_clients, test_guard
from tests.hostile.calls import evaluate, goto, title
from tests.hostile.test_client_network import own_browsers
from tests.hostile.test_guard import SHARED, TRAVERSAL, refused
from tests.hostile.test_messages import EVERYTHING, NODE, OLDER, calls
from tests.process import test_own_browsers
from tests.process.test_live_view import COLOURS, coloured, frame_of_colour, viewer
from tests.support.browsers import fit_browser
from tests.support.cdp_door import cdp_client, cdp_door_of
from tests.support.drivers import MIDDLE, OLDEST, cached_driver, driver_under_test, messages_of
from tests.support.grid import eventually_async
from tests.support.https_server import https_server
from tests.support.protocol_client import ProtocolClient, Refusal, protocol_client
from tests.support.stand_in_proxy import Servers, Watched, processes_of, shared_servers

pytestmark = pytest.mark.timeout(600)  # pip may be among what runs here

COMPATIBLE: dict[str, Any] = {"max_concurrent_sessions": SHARED, "client_guard": "compatible"}
STRICT: dict[str, Any] = {**COMPATIBLE, "client_guard": "strict"}


@pytest.fixture(scope="module", params=[OLDEST, MIDDLE])
def driver(request: pytest.FixtureRequest) -> Iterator[Driver]:
    driver = cached_driver(request.param)
    with driver_under_test(driver):
        yield driver


@pytest.fixture(scope="module")
def live_view(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("older") / "live"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def servers(driver: Driver, live_view: Path) -> AsyncIterator[Servers]:
    async with shared_servers() as started:

        async def with_settings(changes: dict[str, Any]) -> Watched:
            """What most of the tests share has a live view, too."""
            changes = {**COMPATIBLE, **changes}
            return await started({**changes, "live_view": live_view} if changes == COMPATIBLE else changes)

        yield with_settings


@pytest_asyncio.fixture(loop_scope="session")
async def watched(servers: Servers) -> AsyncIterator[Watched]:
    """The browser server that most of the tests share; after the test it has no session, and lives."""
    shared = await servers(COMPATIBLE)
    yield shared
    await shared.all_closed()
    assert not shared.gone.done()


def test_the_table_has_every_message_of_an_older_playwright(driver: Driver) -> None:
    listed = {call for part in [*EVERYTHING, *OLDER] for call in calls(part)}
    known = messages_of(driver)
    assert len(known) > 300
    assert known <= listed


async def test_with_an_older_driver_nobody_reaches_the_host_and_everything_ends_with_its_client(
    driver: Driver, watched: Watched
) -> None:
    unknown = {call for call in calls(messages.OLDER_COMPATIBLE_REFUSES) if call in messages_of(driver)}
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
                await client.send(targets[kind], method, cacheOutFile="/tmp/x", outputFile="/tmp/x", mode="recording")
        for kind, method in (("Android", "devices"), ("Playwright", "newRequest")):
            await refused(client.send(client.one(kind), method), "(nothing allows it)")
        assert {process.pid for process in processes_of(watched.directory)} <= before
        client.drop()
        while len((await other.cdp(session, "Target.getBrowserContexts"))["browserContextIds"]) > own:
            await asyncio.sleep(0)


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


UNDER_WAY = """
const { loadDriver } = require(process.argv[1] + '/driver.cjs');
const { hasCallsUnderWay } = require(process.argv[1] + '/calls.cjs');
const driver = loadDriver(process.argv[2]);
const found = [];
let connection;
const prototype = Object.getPrototypeOf(driver.connection);
const { dispatch } = prototype;
prototype.dispatch = function(message) {
  if (this === driver.connection || message.method !== 'newPage')
    return dispatch.call(this, message);
  found.push(hasCallsUnderWay(this));
  setImmediate(() => found.push(hasCallsUnderWay(connection = this))); // Playwright does not begin at once
  return dispatch.call(this, message);
};
(async () => {
  const options = { executablePath: process.argv[3], chromiumSandbox: false };
  const launched = await driver.playwright.chromium.launchServer(options);
  const client = await driver.playwright.chromium.connect(launched.wsEndpoint());
  await (await client.newContext()).newPage();
  await client.contexts()[0].pages()[0].evaluate('6 * 7');
  found.push(hasCallsUnderWay(connection));
  await launched.kill();
  console.log(JSON.stringify(found));
  process.exit();
})();
"""


def test_it_is_known_whether_a_call_of_a_client_is_under_way(driver: Driver, tmp_path: Path) -> None:
    adapters, browser = LAUNCHER.with_name("playwright"), fit_browser("chromium").executable
    command = [driver.node, "-e", UNDER_WAY, adapters, driver.core, browser]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, env=environment)
    assert json.loads(done.stdout) == [False, True, False], done.stderr


async def test_a_client_with_too_many_waits_goes_on(driver: Driver, watched: Watched) -> None:
    async with protocol_client(watched.endpoint) as client:
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


# The guard and the clean-up


def attack(test: Callable[..., Awaitable[None]], what: str, settings: dict[str, Any] = COMPATIBLE, **given: Any) -> Any:
    """A test of the newest driver. `settings` are those of its fixture `watched`, `given` its parameters."""
    return pytest.param(test, settings, given, id=what)


def goes(row: str) -> Any:
    """A row of the table of what a client has under way when it goes."""
    (found,) = [each for each in test_going_clients.UNDER_WAY if each.id == row]
    given, under_way = found.values
    test = test_going_clients.test_nothing_stays_of_what_a_client_has_under_way_when_it_goes
    return attack(test, f"gone: {row}", given=given, calls=under_way)


HOSTNAME = ["/etc/hostname"]
FILES_OVER_CDP: dict[str, Any] = {"method": "DOM.setFileInputFiles", "params": {"files": HOSTNAME, "nodeId": 1}}
ATTACKS = [
    attack(test_guard.test_without_a_guard_the_processes_that_a_session_started_end_with_it, "a recorder"),
    attack(
        test_guard.test_saving_a_download_on_the_host_is_refused_and_as_a_stream_it_arrives, "a download on the host"
    ),
    attack(
        test_guard.test_the_name_of_a_trace_does_not_lead_out_of_the_sessions_directory,
        "the name of a trace",
        method="tracingStartChunk",
        name="../../../escaped",
    ),
    attack(test_guard.test_paths_in_har_and_video_options_are_of_the_clients_host, "paths of HAR and video"),
    attack(test_guard.test_files_of_the_host_are_no_upload, "files of the host", files={"localPaths": HOSTNAME}),
    attack(test_guard.test_uploads_lie_in_the_sessions_own_directory_whatever_they_are_called, "names of uploads"),
    attack(
        test_guard.test_the_name_of_an_upload_does_not_lead_out_of_the_sessions_directory,
        "the name of an upload",
        name="../../escaped",
    ),
    attack(test_guard.test_what_a_session_has_written_goes_with_it, "what was written"),
    attack(test_guard.test_two_clients_who_count_their_calls_alike_get_each_their_own_trace, "traces of two"),
    attack(test_guard.test_what_is_no_call_ends_the_connection_and_is_not_logged, "no call", message=TRAVERSAL),
    attack(
        test_guard.test_a_client_that_ends_a_shared_browser_ends_its_own_session,
        "the end of the browser",
        STRICT,
        method="Browser.crash",
    ),
    attack(
        test_guard.test_no_client_takes_a_shared_browser_to_a_page_of_its_own,
        "a page of the browser",
        STRICT,
        url="chrome://inducebrowsercrashforrealz",
    ),
    attack(test_guard.test_in_strict_no_session_reaches_beyond_its_own_page, "beyond the own page", STRICT),
    attack(
        test_guard.test_the_record_of_a_browser_goes_to_nobody_but_who_started_it,
        "a browser's record",
        of="the browser",
    ),
    attack(test_guard.test_a_context_is_reused_by_its_own_connection_alone, "reuse", guard="compatible", slots=SHARED),
    attack(test_guard.test_contexts_and_pages_that_were_made_over_cdp_end_with_their_session, "made over CDP"),
    attack(test_guard.test_paths_of_the_host_are_refused_over_cdp, "files over CDP", **FILES_OVER_CDP),
    goes("a context with state"),
    goes("a page with video"),
    goes("a page over the CDP of a page"),
    goes("the end of a context, twice"),
    goes("the end of a context with video"),
    goes("a video that it reads"),
    goes("a download that is half read"),
    goes("a file that is half sent"),
    attack(test_going_clients.test_a_video_that_is_read_only_when_its_client_has_gone_is_closed, "a video, read late"),
    attack(test_going_clients.test_a_client_whose_ffmpeg_hangs_leaves_nothing, "ffmpeg hangs", closes=True),
    attack(
        test_going_clients.test_a_record_of_the_browser_under_way_ends_with_its_client,
        "gone: the stop of a record",
        before="startTracing",
        under_way="stopTracing",
    ),
]
"""The essential ones, and those in which drivers differ; `--driver` has all of them run with one driver."""


@pytest.mark.parametrize(("test", "settings", "given"), ATTACKS)
async def test_an_attack_on_an_older_driver_fares_no_better(
    test: Callable[..., Awaitable[None]],
    settings: dict[str, Any],
    given: dict[str, Any],
    servers: Servers,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @contextlib.asynccontextmanager
    async def that_is_there(**changes: Any) -> AsyncIterator[Watched]:
        """In place of one of the test's own: a start takes a second."""
        shared = await servers(changes)
        yield shared
        await shared.all_closed()
        assert not shared.gone.done()

    monkeypatch.setattr(test_guard, "browser_server", that_is_there)
    async with that_is_there(**settings) as watched:
        fixtures = {"watched": watched, "servers": servers, "tmp_path": tmp_path}
        wanted = inspect.signature(test).parameters
        await test(**given, **{name: value for name, value in fixtures.items() if name in wanted})


# What the browser server adds


@dataclass
class PageOfProtocol:
    """As much of Playwright's page as the decoder of pictures takes."""

    client: ProtocolClient
    page: str

    async def evaluate(self, expression: str, arg: Any) -> Any:
        script = f"({expression})({json.dumps(arg)}).then(JSON.stringify)"
        return json.loads((await evaluate(self.client, self.page, script))["s"])


async def test_a_viewer_sees_the_page_of_an_older_driver_and_its_own_client_notices_nothing(
    watched: Watched, live_view: Path
) -> None:
    async with protocol_client(watched.endpoint) as decoding, protocol_client(watched.endpoint) as client:
        decoder = PageOfProtocol(decoding, await decoding.new_page())
        page = await client.new_page()
        made = set(client.objects)
        async with viewer(live_view, watched.latest) as looking:
            for colour in COLOURS[:2]:
                await goto(client, page, f"data:text/html,<title>{colour}</title>{coloured(colour)}")
                await frame_of_colour(looking, decoder, colour)
            assert await title(client, page) == COLOURS[1]
            kinds = {client.objects[each][0] for each in set(client.objects) - made}
            assert kinds <= {"Request", "Response", "JSHandle"}
            client.drop()
            assert await looking.ended()


async def test_a_client_certificate_is_shown_by_its_owner_s_browser_of_an_older_driver_alone(watched: Watched) -> None:
    before = test_client_certificates.listening(watched)
    async with https_server() as url, protocol_client(watched.endpoint) as owner:
        owned = await test_client_certificates.own(watched, owner, url)
        await test_client_certificates.test_the_owner_s_own_browser_shows_it(owned)
        await test_client_certificates.test_no_other_process_gets_an_answer_and_the_log_says_so_once(owned)
        async with protocol_client(watched.endpoint) as other:
            with pytest.raises(Refusal, match="serves one session alone"):
                await other.new_context(proxy={"server": owned.proxy})
            await test_client_certificates.test_a_certificate_that_cannot_be_read_leaves_no_port(owned)
    await eventually_async(lambda: test_client_certificates.listening(watched) == before, "it listens no more")


async def test_what_a_browser_of_an_older_driver_asks_for_comes_from_the_network_of_its_client(
    watched: Watched,
) -> None:
    before = test_client_certificates.listening(watched)
    body = b"<title>from the client</title>"
    response = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    with own_browsers(watched, network="*"):
        async with protocol_client(watched.endpoint) as client:
            page = await client.new_page()
            assert len(test_client_certificates.listening(watched)) == len(before) + 1
            going = asyncio.ensure_future(goto(client, page, "http://only.there.test:81/"))
            asked = await client.event("socksRequested")
            assert (asked["host"], asked["port"]) == ("only.there.test", 81)
            socks = client.one("SocksSupport")
            await client.send(socks, "socksConnected", uid=asked["uid"], host="127.0.0.1", port=1)
            request = base64.b64decode((await client.event("socksData"))["data"])
            assert request.startswith(b"GET / HTTP/1.1\r\nHost: only.there.test:81\r\n")
            await client.send(socks, "socksData", uid=asked["uid"], data=base64.b64encode(response).decode())
            await going
            assert await title(client, page) == "from the client"
    await eventually_async(lambda: test_client_certificates.listening(watched) == before, "it listens no more")


async def test_the_network_of_a_client_of_an_older_driver_is_nobody_else_s(watched: Watched) -> None:
    await test_client_network.test_no_other_client_gets_to_it(watched)


async def test_an_own_browser_of_an_older_driver_leaves_nothing(watched: Watched) -> None:
    with own_browsers(watched):
        await test_own_browsers.test_nothing_of_a_browser_is_left_when_its_session_is_over(watched)
        await test_own_browsers.test_a_browser_that_is_killed_ends_its_own_session_alone(watched)


async def test_a_cdp_session_of_an_older_driver_writes_its_profile_before_it_is_over_and_leaves_no_file(
    watched: Watched,
) -> None:
    directory = watched.directory / "own" / "profile"
    directory.mkdir(parents=True)
    async with cdp_door_of(watched) as door:
        door.profile = ProfileCopy(Profile("-", "shop"), directory)
        found = []
        for _ in range(2):
            async with cdp_client(f"{door.url}/cdp") as client:
                found.append([each["value"] for each in (await client.send("Storage.getCookies"))["cookies"]])
                cookie = {"name": "who", "value": "ada", "url": "http://shop.test/", "expires": time.time() + 86_400}
                await client.send("Storage.setCookies", cookies=[cookie])
            closed = await watched.next_closed()
            assert (closed.is_in_order, closed.profile) == (True, door.profile)
        assert found == [[], ["ada"]]
    assert list((watched.directory / "files").iterdir()) == []
