"""Playwright's Python client uses what its API has, in a browser that it is connected to."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from pathlib import Path

from playwright.async_api import Browser, BrowserContext, Page, Playwright, Route, WebSocketRoute, expect

HTML = """<!doctype html><title>official</title><h1 id=h title=t>hello</h1>
<input id=text value=v><input id=box type=checkbox><input id=file type=file multiple>
<input id=dir type=file webkitdirectory>
<select id=select><option value=a>a<option value=b>b</select><button id=b>press</button>
<div id=drag draggable=true>drag</div>
<div id=drop ondrop="event.preventDefault()" ondragover="event.preventDefault()">drop</div>
<iframe name=inner srcdoc="<p>inner</p>"></iframe><a id=download download=x.txt href="data:text/plain,down">get</a>"""
SELECTOR = "({ query: (root, name) => root.querySelector(name), queryAll: () => [] })"


async def elements(page: Page) -> None:
    for act in ("click", "dblclick", "hover", "tap"):
        await getattr(page, act)("#h")
    await page.focus("#text")
    await page.fill("#text", "filled")
    await page.type("#text", "x")
    await page.press("#text", "Enter")
    await page.check("#box")
    assert await page.is_checked("#box")
    await page.uncheck("#box")
    await page.select_option("#select", "b")
    await page.dispatch_event("#b", "click")
    await page.drag_and_drop("#drag", "#drop")
    await page.locator("#text").blur()
    for ask in ("is_disabled", "is_editable", "is_enabled", "is_hidden", "is_visible", "input_value"):
        await getattr(page, ask)("#text")
    for ask in ("inner_html", "inner_text", "text_content"):
        await getattr(page, ask)("#h")
    assert await page.get_attribute("#h", "title") == "t"
    assert await page.eval_on_selector("#h", "each => each.id") == "h"
    assert await page.eval_on_selector_all("input", "each => each.length") == 4
    assert await page.locator("input").count() == 4
    await page.locator("#h").highlight()
    await page.locator("#h").aria_snapshot()
    await page.wait_for_selector("#h")
    await page.wait_for_function("document.title")
    await page.wait_for_timeout(1)
    await expect(page.locator("#h")).to_be_visible()
    await expect(page).to_have_title("official")
    await page.add_script_tag(content="1")
    await page.add_style_tag(content="p{}")
    await page.locator("#h").hide_highlight()
    await page.hide_highlight()
    await page.locator("#h").normalize()
    await page.query_selector_all("input")
    await page.locator("#drop").drop({"data": {"text/plain": "x"}})


async def handles(page: Page) -> None:
    handle = await page.query_selector("#text")
    assert handle
    asked = (
        "bounding_box click dblclick hover focus inner_html inner_text text_content input_value is_disabled "
        "is_editable is_enabled is_hidden is_visible scroll_into_view_if_needed select_text screenshot tap "
        "owner_frame content_frame json_value get_properties"
    )
    for ask in asked.split():
        await getattr(handle, ask)()
    await handle.fill("f")
    await handle.type("t")
    await handle.press("Enter")
    await handle.get_attribute("id")
    await handle.get_property("value")
    await handle.dispatch_event("click")
    await handle.wait_for_element_state("visible")
    await handle.evaluate("each => each.id")
    await handle.evaluate_handle("each => each")
    box, select, body = [await page.query_selector(each) for each in ("#box", "#select", "body")]
    assert box
    assert select
    assert body
    await box.check()
    await box.is_checked()
    await box.uncheck()
    await select.select_option("a")
    await body.query_selector("#h")
    await body.query_selector_all("input")
    await body.eval_on_selector("#h", "each => each.id")
    await body.eval_on_selector_all("input", "each => each.length")
    await body.wait_for_selector("#h")
    await handle.dispose()
    made = await page.evaluate_handle("() => ({ a: { b: 1 } })")
    await made.evaluate("each => each.a")
    inner = await made.evaluate_handle("each => each.a")
    await made.get_property("a")
    assert await inner.json_value() == {"b": 1}
    await made.dispose()
    frame = page.frame("inner")
    assert frame
    await (await frame.frame_element()).dispose()


async def files(page: Page, directory: Path) -> None:
    one, folder = directory / "one.txt", directory / "folder"
    folder.mkdir()
    one.write_text("one")
    (folder / "two.txt").write_text("two")
    await page.set_input_files("#file", one)
    await page.set_input_files("#dir", folder)
    assert await page.eval_on_selector("#dir", "each => each.files[0].name") == "two.txt"
    handle = await page.query_selector("#file")
    assert handle
    await handle.set_input_files({"name": "b", "mimeType": "text/plain", "buffer": b"b"})
    async with page.expect_file_chooser() as choosing:
        await page.click("#file")
    await (await choosing.value).set_files(one)
    for use in ("save_as", "cancel"):
        async with page.expect_download() as downloading:
            await page.click("#download")
        download = await downloading.value
        await (download.save_as(directory / "down.txt") if use == "save_as" else download.cancel())
        if await download.failure() is None:  # one that was cancelled in time has no file
            await download.delete()
    assert (directory / "down.txt").read_text() == "down"


async def devices(page: Page) -> None:
    for key in ("down", "up", "insert_text", "type", "press"):
        await getattr(page.keyboard, key)("a")
    await page.mouse.move(1, 1)
    await page.mouse.down()
    await page.mouse.up()
    await page.mouse.click(1, 1)
    await page.mouse.wheel(0, 1)
    await page.touchscreen.tap(1, 1)


async def looks(page: Page) -> None:
    await page.screenshot(full_page=True)
    await page.pdf()
    await page.emulate_media(color_scheme="dark")
    await page.set_viewport_size({"width": 400, "height": 300})
    await page.bring_to_front()
    await page.request_gc()
    await page.pause()
    framed = asyncio.Event()
    await page.screencast.start(on_frame=lambda _: framed.set())
    await page.evaluate("document.body.style.background = 'red'")
    await framed.wait()
    await page.screencast.show_actions()
    await page.screencast.hide_actions()
    await page.screencast.show_overlay("<b>overlay</b>")
    await page.screencast.show_chapter("chapter", duration=1)
    await page.screencast.hide_overlays()
    await page.screencast.stop()


async def said(page: Page, context: BrowserContext, site: str) -> None:
    async with context.expect_console_message():
        await page.evaluate("console.log('said'); setTimeout(() => { throw new Error('thrown'); })")
    await page.console_messages()
    await page.page_errors()
    await page.requests()
    await page.clear_console_messages()
    await page.clear_page_errors()
    await page.local_storage.set_item("k", "v")
    assert await page.local_storage.get_item("k") == "v"
    await page.local_storage.items()
    await page.local_storage.remove_item("k")
    await page.local_storage.clear()
    page.once("dialog", lambda dialog: dialog.accept("text"))
    assert await page.evaluate("prompt('?')") == "text"
    page.once("dialog", lambda dialog: dialog.dismiss())
    await page.evaluate("confirm('?')")
    await page.expose_function("twice", lambda each: 2 * each)
    assert await page.evaluate("window.twice(21)") == 42
    await context.expose_binding("source", lambda source: source["page"].url)
    assert await page.evaluate("window.source()")
    await page.add_locator_handler(page.locator("#b"), lambda: page.evaluate("document.querySelector('#b').remove()"))
    await page.click("#h")
    await page.remove_locator_handler(page.locator("#b"))
    async with page.expect_worker() as starting:
        await page.evaluate("window.w = new Worker('/worker.js')")
    worker = await starting.value
    assert await worker.evaluate("6 * 7") == 42
    await (await worker.evaluate_handle("self")).dispose()
    await context.add_init_script("window.added = 1")
    await page.add_init_script("window.own = 1")
    response = await page.reload()
    assert response
    for ask in ("body", "all_headers", "security_details", "server_addr", "http_version"):
        await getattr(response, ask)()
    await response.request.all_headers()
    await response.request.response()
    await response.request.sizes()
    await page.goto(f"http://{site}/next")
    await page.go_back()
    await page.go_forward()
    await page.set_content(HTML)
    await page.content()
    assert await page.title() == "official"


async def network(page: Page, context: BrowserContext, site: str, directory: Path) -> None:
    async def fulfil(route: Route) -> None:
        await route.fulfill(body="made up")

    async def abort(route: Route) -> None:
        await route.abort()

    async def go_on(route: Route) -> None:
        await route.continue_(headers={"x": "y"})

    await context.route("**/fulfilled", fulfil)
    await page.route("**/aborted", abort)
    await page.route("**/continued", go_on)
    assert await page.evaluate("fetch('/fulfilled').then(each => each.text())") == "made up"
    await page.evaluate("fetch('/aborted').catch(() => {})")
    await page.evaluate("fetch('/continued').then(each => each.text())")
    await page.unroute_all()

    def mocked(socket: WebSocketRoute) -> None:
        socket.send("first")

    await page.route_web_socket("**/mocked", mocked)
    await page.goto(f"http://{site}/")
    socket = (
        "new Promise(done => { new WebSocket(`ws://${location.host}/mocked`).onmessage = each => done(each.data) })"
    )
    assert await page.evaluate(socket) == "first"
    await page.set_extra_http_headers({"a": "b"})
    await context.set_extra_http_headers({"a": "b"})
    await context.set_offline(False)
    await context.add_cookies([{"name": "a", "value": "b", "url": f"http://{site}"}])
    await context.cookies()
    await context.clear_cookies()
    response = await context.request.get(f"http://{site}/")
    assert "official" in await response.text()
    await response.dispose()
    await context.request.add_cookies([{"name": "a", "value": "b", "url": f"http://{site}"}])
    await context.request.cookies()
    await context.request.clear_cookies()
    await context.request.storage_state()
    await context.set_storage_state({"cookies": [], "origins": []})
    await context.storage_state(path=directory / "state.json")


async def records(browser: Browser, page: Page, context: BrowserContext, site: str, directory: Path) -> None:
    await context.tracing.start(screenshots=True, snapshots=True, sources=True, name="named")
    await context.tracing.group("group")
    await page.goto(f"http://{site}/")
    await context.tracing.group_end()
    await context.tracing.stop_chunk(path=directory / "trace.zip")
    await context.tracing.start_chunk(title="title")
    await context.tracing.stop()
    for name in ("plain.har", "zipped.zip"):
        recorded = await browser.new_context(record_har_path=directory / name)
        await (await recorded.new_page()).goto(f"http://{site}/")
        await recorded.close()
        assert (directory / name).stat().st_size > 100
    await page.route_from_har(directory / "plain.har")
    await page.reload()
    await context.tracing.start_har(directory / "own.har")
    await page.reload()
    await context.tracing.stop_har()
    assert (directory / "trace.zip").stat().st_size > 1000


async def conditions(page: Page, context: BrowserContext) -> None:
    await context.grant_permissions(["geolocation"])
    await context.set_geolocation({"latitude": 1, "longitude": 2})
    await context.clear_permissions()
    await page.clock.install(time=0)
    await page.clock.fast_forward(1000)
    await page.clock.pause_at(5000)
    await page.clock.run_for(1000)
    await page.clock.resume()
    await page.clock.set_fixed_time(0)
    await page.clock.set_system_time(0)
    await context.credentials.install()
    made = await context.credentials.create("site.test")
    await context.credentials.get()
    await context.credentials.delete(made["id"])
    await context.debugger.request_pause()
    paused = asyncio.Event()
    context.debugger.once("pausedstatechanged", lambda *_: paused.set())
    call = asyncio.ensure_future(page.content())
    await paused.wait()
    await context.debugger.resume()
    await call


async def browser_wide(browser: Browser, page: Page, context: BrowserContext) -> None:
    own = await context.new_cdp_session(page)
    assert (await own.send("Runtime.evaluate", {"expression": "6 * 7"}))["result"]["value"] == 42
    await own.detach()
    wide = await browser.new_browser_cdp_session()
    assert (await wide.send("Browser.getVersion"))["product"]
    await wide.detach()
    await browser.start_tracing(page=page)
    assert len(await browser.stop_tracing()) > 100
    await browser.unbind()


async def use_everything(playwright: Playwright, endpoint: str, directory: Path) -> None:
    """Raises whatever does not work."""
    browser = await playwright.chromium.connect(endpoint)
    await playwright.selectors.register("tagname", SELECTOR)
    context = await browser.new_context(has_touch=True, accept_downloads=True)
    playwright.selectors.set_test_id_attribute("data-test")
    page = await context.new_page()
    async with web_server() as site:
        await page.goto(f"http://{site}/")
        await elements(page)
        await handles(page)
        await files(page, directory)
        await devices(page)
        await looks(page)
        await said(page, context, site)
        await network(page, context, site, directory)
        await records(browser, page, context, site, directory)
        await conditions(page, context)
        await browser_wide(browser, page, context)
        await (await context.new_page()).close(run_before_unload=True)
        await page.close()
        await context.close()
        await browser.close()
    playwright.selectors.set_test_id_attribute("data-testid")


@contextlib.asynccontextmanager
async def web_server() -> AsyncIterator[str]:
    """Serves HTML, and a worker's script that does nothing; yields host and port."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                script = re.match(rb"GET \S+\.js ", head)
                body = b"self.onmessage = () => {}" if script else HTML.encode()
                kind = "text/javascript" if script else "text/html"
                writer.write(
                    f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
                )
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
