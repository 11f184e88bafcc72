"""What a browser server shows of a session to whoever looks, over its Unix socket: real browsers, no grid."""

import asyncio
import base64
import contextlib
import json
import subprocess
import time
import zipfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Protocol

from playwright.async_api import CDPSession, Page, Playwright, async_playwright

from pwgrid.common.reasons import EndReason, Reason
from pwgrid.worker.browser.launch import LAUNCHER
from pwgrid.worker.holders import OwnBrowser
from tests.conftest import need
from tests.support.browsers import fit_browser
from tests.support.cdp_door import cdp_client, cdp_door
from tests.support.stand_in_proxy import BOUND_S, browser_server

COLOURS = ("rgb(200, 0, 0)", "rgb(0, 160, 0)", "rgb(0, 0, 220)")
FIRST_SESSION = f"{1:016x}"
"""As the front door counts them."""

STATE = """() => [innerWidth, innerHeight, devicePixelRatio, document.visibilityState, document.hasFocus(), scrollY,
    document.activeElement.tagName, document.documentElement.outerHTML]"""
SENSELESS = (b"\xff\xff\xff\xff\0", b"\0\0\0\1\0{", b"\0\0\0\4\0null", b"\0\0\0\x0d\0" + b'{"session":7}')
NOISE = """() => {
    const canvas = document.body.appendChild(document.createElement('canvas'));
    const context = canvas.getContext('2d'), image = context.createImageData(canvas.width = 600, canvas.height = 400);
    const step = () => {
        for (let n = 0; n < image.data.length; n++)
            image.data[n] = n % 4 == 3 ? 255 : Math.random() * 256;
        context.putImageData(image, 0, 0);
        requestAnimationFrame(step);
    };
    step();
}"""
COUNT = """() => {
    const step = n => { document.body.textContent = n; requestAnimationFrame(() => step(n + 1)); };
    step(0);
}"""
DECODE = """async ([data, x, y]) => {
    const image = await createImageBitmap(await (await fetch(`data:image/jpeg;base64,${data}`)).blob());
    const canvas = new OffscreenCanvas(image.width, image.height).getContext('2d');
    canvas.drawImage(image, 0, 0);
    return [image.width, image.height, [...canvas.getImageData(x, y, 1, 1).data.slice(0, 3)]];
}"""

VIDEO_SIZE = """async data => {
    const video = document.createElement('video');
    video.src = `data:video/webm;base64,${data}`;
    await new Promise((resolve, reject) => Object.assign(video, { onloadedmetadata: resolve, onerror: reject }));
    return [video.videoWidth, video.videoHeight];
}"""


class Viewer:
    """The proxy's end."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    def say(self, **said: Any) -> None:
        content = json.dumps(said).encode()
        self._writer.write(len(content).to_bytes(4, "big") + b"\0" + content)

    async def next(self) -> bytes | dict[str, Any]:
        """A frame, or what is told."""
        async with asyncio.timeout(BOUND_S):
            header = await self._reader.readexactly(5)
            content = await self._reader.readexactly(int.from_bytes(header[:4], "big"))
        if header[4] == 1:
            return content
        told: dict[str, Any] = json.loads(content)
        return told

    async def frame(self) -> bytes:
        while not isinstance(found := await self.next(), bytes):
            pass
        return found

    async def told(self) -> dict[str, Any]:
        while isinstance(found := await self.next(), bytes):
            pass
        return found

    async def ended(self) -> bool:
        """Whether nothing more comes."""
        async with asyncio.timeout(BOUND_S):
            while await self._reader.read(65536):
                pass
        return True


@contextlib.asynccontextmanager
async def viewer(path: Path, session_id: str = FIRST_SESSION, *, operator: bool = False) -> AsyncIterator[Viewer]:
    reader, writer = await asyncio.open_unix_connection(str(path))
    made = Viewer(reader, writer)
    made.say(session=session_id, operator=operator)
    try:
        yield made
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


@contextlib.asynccontextmanager
async def shown(path: Path) -> AsyncIterator[tuple[Playwright, Page]]:
    """A page of a session that can be looked at."""
    async with (
        browser_server(live_view=path) as watched,
        async_playwright() as playwright,
        await playwright.chromium.connect(watched.endpoint) as browser,
    ):
        yield playwright, await browser.new_page(viewport={"width": 600, "height": 400})


def coloured(colour: str) -> str:
    return f"<body style='margin:0;background:{colour}'>"


class Decoder(Protocol):
    """Runs DECODE in some browser, as Playwright's page does."""

    async def evaluate(self, expression: str, arg: Any) -> Any: ...


async def colour_of(decoder: Decoder, frame: bytes) -> str:
    """The colour in the middle of a frame, as COLOURS has it: JPEG is a little off."""
    width, height, pixel = await decoder.evaluate(DECODE, [base64.b64encode(frame).decode(), 100, 100])
    assert 0 < width <= 1280
    assert 0 < height <= 800
    return min(
        COLOURS, key=lambda each: sum(abs(int(a) - b) for a, b in zip(each[4:-1].split(","), pixel, strict=True))
    )


async def frame_of_colour(viewer: Viewer, decoder: Decoder, colour: str) -> None:
    """Returns once a frame has it."""
    async with asyncio.timeout(BOUND_S):
        while await colour_of(decoder, await viewer.frame()) != colour:
            viewer.say(ack=True)
    viewer.say(ack=True)


async def test_a_viewer_sees_the_page_as_it_is_and_as_it_becomes(tmp_path: Path) -> None:
    path = tmp_path / "live"
    async with shown(path) as (_, page), viewer(path) as looking:
        assert page.context.browser is not None
        decoder = await page.context.browser.new_page()  # of the same session: another page that can be chosen
        await page.set_content(coloured(COLOURS[0]))
        pages = await looking.told()
        while len(pages["pages"]) < 2:
            pages = await looking.told()
        assert pages["page"] == pages["pages"][-1]["id"]  # the newest
        assert [each["url"] for each in pages["pages"]] == ["about:blank", "about:blank"]
        looking.say(page=pages["pages"][0]["id"])
        looking.say(ack=True)
        await frame_of_colour(looking, decoder, COLOURS[0])
        await page.set_content(coloured(COLOURS[1]))
        await frame_of_colour(looking, decoder, COLOURS[1])
        # A page that changes faster than it is shown is seen as it is in the end.
        await page.evaluate(
            """([all, last]) => new Promise(done => { let n = 0; const step = () => {
                document.body.style.background = n < 60 ? all[n % 2] : last;
                n++ < 61 ? requestAnimationFrame(step) : done();
            }; step(); })""",
            [COLOURS[:2], COLOURS[2]],
        )
        await frame_of_colour(looking, decoder, COLOURS[2])


async def test_a_session_with_a_browser_of_its_own_is_shown_and_not_its_neighbour(tmp_path: Path) -> None:
    need("chromium")
    path = tmp_path / "live.sock"
    async with (
        browser_server("chromium", live_view=path) as watched,
        async_playwright() as playwright,
        await playwright.chromium.launch(executable_path=fit_browser("chromium").executable) as decoding,
    ):
        decoder = await decoding.new_page()
        shared = await playwright.chromium.connect(watched.endpoint)
        watched.own = OwnBrowser(time.monotonic() + BOUND_S)
        own = await playwright.chromium.connect(watched.endpoint)
        pages = [await each.new_page() for each in (shared, own)]
        for page, colour in zip(pages, COLOURS[:2], strict=True):
            await page.set_content(coloured(colour))
        async with viewer(path) as of_shared, viewer(path, watched.latest) as of_own:
            await frame_of_colour(of_shared, decoder, COLOURS[0])
            await frame_of_colour(of_own, decoder, COLOURS[1])
            await pages[1].set_content(coloured(COLOURS[2]))
            await frame_of_colour(of_own, decoder, COLOURS[2])
            await own.close()
            assert await of_own.ended()
        await shared.close()


async def test_pages_of_a_cdp_session_are_shown_while_it_has_a_client_and_while_it_is_kept(tmp_path: Path) -> None:
    need("chromium")
    path = tmp_path / "live.sock"
    async with (
        cdp_door(live_view=path) as door,
        async_playwright() as playwright,
        await playwright.chromium.launch(executable_path=fit_browser("chromium").executable) as decoding,
    ):
        decoder = await decoding.new_page()
        async with cdp_client(f"{door.url}/cdp?keep=60") as client, viewer(path, door.latest) as looking:
            first = (await client.pages())[0]["targetId"]
            while not (pages := await looking.told())["pages"]:
                pass
            assert pages["page"] == first
            assert [each["id"] for each in pages["pages"]] == [first]
            page = await client.attach(first)
            await client.send("Page.navigate", page, url=f"data:text/html,{coloured(COLOURS[0])}")
            looking.say(ack=True)
            await frame_of_colour(looking, decoder, COLOURS[0])
            second = (await client.send("Target.createTarget", url=f"data:text/html,{coloured(COLOURS[1])}"))[
                "targetId"
            ]
            while second not in [each["id"] for each in pages["pages"]]:
                pages = await looking.told()
            looking.say(page=second)
            await frame_of_colour(looking, decoder, COLOURS[1])
            # The client has heard of its own session with the page, and nothing of whoever looks.
            assert (await client.event("Target.attachedToTarget"))["params"]["sessionId"] == page
            assert client.events.empty()
        assert (await door.next_said())["say"] == "kept"
        async with viewer(path, door.latest) as looking:
            looking.say(page=first)
            looking.say(ack=True)
            await frame_of_colour(looking, decoder, COLOURS[0])
            door.server.close_session(door.latest, Reason(EndReason.ENDED_BY_OPERATOR))
            assert await looking.ended()


async def test_a_viewer_gets_a_frame_when_it_asks_the_newest_one_and_five_a_second_at_most(tmp_path: Path) -> None:
    path = tmp_path / "live"
    async with shown(path) as (_, page), viewer(path) as looking:
        await page.set_content(coloured(COLOURS[0]))
        await looking.frame()  # and no more until it is asked for
        for colour in (COLOURS[1], COLOURS[2]):
            await page.set_content(coloured(colour))
            async with viewer(path) as other, shown_by(page) as decoder:  # sees each of them
                await frame_of_colour(other, decoder, colour)
        looking.say(ack=True)
        async with shown_by(page) as decoder:
            assert await colour_of(decoder, await looking.frame()) == COLOURS[2]
        await page.evaluate(COUNT)  # changes 60 times a second
        began = time.monotonic()
        for _ in range(8):
            looking.say(ack=True)
            await looking.frame()
        assert time.monotonic() - began >= 7 * 0.2 * 0.9


async def test_a_viewer_that_asks_and_reads_nothing_is_kept_few_frames(tmp_path: Path) -> None:
    path = tmp_path / "live"
    async with shown(path) as (_, page), viewer(path) as asking, viewer(path) as reading:
        await page.evaluate(NOISE)
        size = 0
        while size < 3_000_000:  # far more than the kernel keeps for a socket
            size += len(await reading.frame())
            reading.say(ack=True)
            asking.say(ack=True)
        assert page.context.browser is not None
        await page.context.browser.close()
        kept = 0
        while isinstance(found := await asking.next(), bytes) or "ended" not in found:
            kept += len(found)
        assert 0 < kept < 1_500_000


async def test_what_is_told_of_pages_is_short(tmp_path: Path) -> None:
    path = tmp_path / "live"
    async with shown(path) as (_, page):
        await page.goto("about:blank#" + "x" * 100_000)
        async with viewer(path) as looking:
            assert len((await looking.told())["pages"][0]["url"]) == 2_000


async def test_an_operator_has_a_place_where_owners_have_taken_all_of_theirs(tmp_path: Path) -> None:
    path = tmp_path / "live"
    async with shown(path), contextlib.AsyncExitStack() as stack:
        owners = [await stack.enter_async_context(viewer(path)) for _ in range(4)]
        for each in owners:
            await each.told()
        await is_full(await stack.enter_async_context(viewer(path)), 4)
        operators = [await stack.enter_async_context(viewer(path, operator=True)) for _ in range(8)]
        for each in operators:
            await each.told()
        for _ in range(2):  # who is refused takes nobody's place, nor counts
            late = await stack.enter_async_context(viewer(path, operator=True))
            late.say(page="p@1")
            late.say(ack=True)
            await is_full(late, 8)


async def is_full(viewer: Viewer, look_already: int) -> None:
    assert await viewer.next() == {"full": look_already}
    assert await viewer.ended()


@contextlib.asynccontextmanager
async def shown_by(page: Page) -> AsyncIterator[Page]:
    """The page itself decodes: another one would be the newest."""
    yield page


async def test_a_session_is_the_same_while_somebody_looks_as_before(tmp_path: Path) -> None:
    path = tmp_path / "live"
    async with shown(path) as (_, page):
        await page.set_content(
            "<body><input autofocus><div style='height:3000px;background:linear-gradient(red,blue)'>"
        )
        await page.evaluate("scrollTo(0, 700); document.querySelector('input').focus()")
        picture = await page.screenshot()
        before = await page.evaluate(STATE)
        async with viewer(path) as looking:
            await looking.frame()
            assert await page.evaluate(STATE) == before
            assert await page.screenshot() == picture
            assert await page.evaluate(STATE) == before
            assert len(page.context.pages) == 1
        assert await page.evaluate(STATE) == before
        assert await page.screenshot() == picture


async def test_the_session_s_own_screencast_video_trace_and_cdp_session_are_as_if_nobody_looked(tmp_path: Path) -> None:
    path = tmp_path / "live"
    async with shown(path) as (_, page):
        assert page.context.browser is not None
        options: dict[str, Any] = {"record_video_dir": tmp_path, "record_video_size": {"width": 320, "height": 240}}
        context = await page.context.browser.new_context(viewport={"width": 600, "height": 400}, **options)
        opened: list[Page] = []
        context.on("page", lambda made: opened.append(made))
        own = await context.new_page()
        await own.set_content(coloured(COLOURS[0]))
        async with viewer(path) as looking:
            await frame_of_colour(looking, page, COLOURS[0])
            await context.tracing.start(screenshots=True)
            frames: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
            cdp = await context.new_cdp_session(own)
            cdp.on("Page.screencastFrame", frames.put_nowait)
            targets = await cdp.send("Target.getTargets")
            assert len(targets["targetInfos"]) == 2
            small = {"format": "jpeg", "maxWidth": 200, "maxHeight": 150}
            await cdp.send("Page.startScreencast", small)
            await frame_of_size(frames, cdp, own, 200)
            await own.set_content(coloured(COLOURS[1]))
            await frame_of_size(frames, cdp, own, 200)
            await frame_of_colour(looking, page, COLOURS[1])
        await own.set_content(coloured(COLOURS[2]))  # nobody looks any more
        await frame_of_size(frames, cdp, own, 200)
        await cdp.detach()
        await context.tracing.stop(path=tmp_path / "trace.zip")
        assert opened == [own]
        await context.close()
        assert own.video is not None
        await own.video.save_as(tmp_path / "video.webm")
        with zipfile.ZipFile(tmp_path / "trace.zip") as trace:
            assert any(name.endswith(".jpeg") for name in trace.namelist())
        video = base64.b64encode((tmp_path / "video.webm").read_bytes()).decode()
        assert await page.evaluate(VIDEO_SIZE, video) == [320, 240]


async def frame_of_size(frames: asyncio.Queue[dict[str, Any]], cdp: CDPSession, decoder: Page, width: int) -> None:
    """The next frame of the session's own screencast; the one after it may come."""
    async with asyncio.timeout(BOUND_S):
        frame = await frames.get()
    assert (await decoder.evaluate(DECODE, [frame["data"], 1, 1]))[0] == width
    await cdp.send("Page.screencastFrameAck", {"sessionId": frame["sessionId"]})


BY_HAND = """
const { EventEmitter } = require('node:events');
const { createInterface } = require('node:readline');
const say = (...told) => console.log(told.join(' '));
const session = Object.assign(new EventEmitter(), {
  _sessionId: 'ours',
  _sendMayFail: async method => say(method),
  _parentSession: { _sendMayFail: async (method, { sessionId }) => say(method, sessionId) },
});
let attach;
const page = {
  browserContext: { newCDPSession: () => { say('attach'); return new Promise(resolve => { attach = resolve; }); } },
  screencast: { addClient() { throw new Error('it is for the session'); } },
  mainFrame: () => ({ url: () => 'about:blank' }),
  isClosed: () => false,
};
const server = require(process.argv[1]).serveLiveView(process.argv[2], 'chromium', () => new Map([['1', page]]));
server.on('connection', socket => socket.once('close', () => say('left')));
say('listening');
createInterface(process.stdin).on('line', line => {
  if (line === 'attached')
    return attach({ _session: session });
  const [ago, text] = line.split(' ');
  const metadata = { timestamp: Date.now() / 1000 - ago };
  session.emit('Page.screencastFrame', { data: Buffer.from(text).toString('base64'), metadata, sessionId: 1 });
}).once('close', () => process.exit());
"""


class ByHand:
    """A browser server whose one page of Chromium does what a test tells it."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._told, self._said = process.stdin, process.stdout

    def tell(self, line: str) -> None:
        self._told.write(line.encode() + b"\n")

    async def next(self) -> str:
        """What was asked of the browser, or happened, next."""
        async with asyncio.timeout(BOUND_S):
            return (await self._said.readline()).decode().strip()

    async def asked(self, *methods: str) -> None:
        """Returns once all of these were asked, in any order."""
        missing = [*methods]
        while missing:
            found = await self.next()
            assert found
            if found in missing:
                missing.remove(found)

    async def rest(self) -> list[str]:
        """What it had still said at its end."""
        self._told.close()
        async with asyncio.timeout(BOUND_S):
            return (await self._said.read()).decode().splitlines()


@contextlib.asynccontextmanager
async def by_hand(node: tuple[str, Path], path: Path) -> AsyncIterator[ByHand]:
    argv = (node[0], "-e", BY_HAND, str(LAUNCHER.with_name("live_view.cjs")), str(path))
    process = await asyncio.create_subprocess_exec(*argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    made = ByHand(process)
    try:
        assert await made.next() == "listening"
        yield made
    finally:
        await made.rest()
        assert await process.wait() == 0


async def test_a_frame_that_comes_late_never_replaces_a_newer_one(node: tuple[str, Path], tmp_path: Path) -> None:
    path = tmp_path / "live"
    async with by_hand(node, path) as browser, viewer(path) as looking:
        assert await browser.next() == "attach"
        browser.tell("attached")
        assert await browser.next() == "Page.startScreencast"
        for frame in ("3 first", "1 third", "2 second"):
            browser.tell(frame)
        while (shown_now := await looking.frame()) != b"third":
            assert shown_now == b"first"
            looking.say(ack=True)
        # A late one has its turn, too: else no more would come. Nothing has come for a while then: is it what the page
        # shows?
        await browser.asked(*3 * ["Page.screencastFrameAck"], "Page.stopScreencast", "Page.startScreencast")
        browser.tell("0 last")
        looking.say(ack=True)
        assert await looking.frame() == b"last"


async def test_a_clock_that_is_set_back_stops_no_screencast(node: tuple[str, Path], tmp_path: Path) -> None:
    path = tmp_path / "live"
    async with by_hand(node, path) as browser, viewer(path) as looking:
        assert await browser.next() == "attach"
        browser.tell("attached")
        assert await browser.next() == "Page.startScreencast"
        browser.tell("-3600 before")
        assert await looking.frame() == b"before"
        browser.tell("0 after")
        looking.say(ack=True)
        assert await looking.frame() == b"after"


async def test_a_viewer_that_goes_while_its_screencast_begins_leaves_no_cdp_session(
    node: tuple[str, Path], tmp_path: Path
) -> None:
    path = tmp_path / "live"
    async with by_hand(node, path) as browser:
        async with viewer(path):
            assert await browser.next() == "attach"
        assert await browser.next() == "left"
        browser.tell("attached")
        assert await browser.next() == "Target.detachFromTarget ours"
        browser.tell("0 late")  # it was on its way
        async with viewer(path) as looking:
            assert await browser.next() == "attach"
            browser.tell("attached")
            assert await browser.next() == "Page.startScreencast"
            browser.tell("0 shown")
            assert await looking.frame() == b"shown"
            assert await browser.next() == "Page.screencastFrameAck"
        await browser.asked("Target.detachFromTarget ours")
        assert await browser.rest() == ["left"]


async def test_the_end_of_the_session_is_told_and_what_makes_no_sense_ends_that_viewer_alone(tmp_path: Path) -> None:
    path = tmp_path / "live"
    async with shown(path) as (_, page):
        for said in SENSELESS:
            reader, writer = await asyncio.open_unix_connection(str(path))
            writer.write(said)
            assert await Viewer(reader, writer).ended()
            writer.close()
        async with viewer(path, "0123") as nothing:
            assert await nothing.told() == {"ended": True}
            assert await nothing.ended()
        async with viewer(path) as looking:
            await looking.frame()
            assert page.context.browser is not None
            await page.context.browser.close()
            while "ended" not in (told := await looking.told()):
                pass
            assert told == {"ended": True}
            assert await looking.ended()


OF_AN_OLDER_PLAYWRIGHT = """
const page = {
  screencast: { addClient() { throw new Error('it is of no use'); } },
  delegate: { startScreencast(options) {
  } },
  mainFrame: () => ({ url: () => 'about:blank' }),
};
require(process.argv[1]).serveLiveView(process.argv[2], 'firefox', () => new Map([['1', page]]));
console.log('listening');
process.stdin.once('end', () => process.exit()).resume();
"""


async def test_a_viewer_hears_that_an_older_playwright_cannot_show_this_browser(
    node: tuple[str, Path], tmp_path: Path
) -> None:
    """As Playwright 1.59 to 1.61 are with a stock Firefox."""
    path = tmp_path / "live"
    argv = (node[0], "-e", OF_AN_OLDER_PLAYWRIGHT, str(LAUNCHER.with_name("live_view.cjs")), str(path))
    running = await asyncio.create_subprocess_exec(*argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert running.stdin is not None
    assert running.stdout is not None
    assert await running.stdout.readline() == b"listening\n"
    async with viewer(path) as looking:
        why = (await looking.told())["why"]
        assert why == "this version of Playwright shows nobody a page of this browser: 1.63 or later does"
    running.stdin.close()
    assert await running.wait() == 0
