"""What a client gets of the host's files with every refusal switched off: what the kernel lets a browser have."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest
import pytest_asyncio

from pwgrid.common.confined_exec import abi
from tests.hostile.calls import DOWNLOAD, evaluate, goto, page_session, read_stream
from tests.support.grid import WITHOUT_SPARES, eventually_async, running_grid
from tests.support.protocol_client import ProtocolClient, Refusal, protocol_client
from tests.support.stand_in_proxy import BOUND_S, Watched, browser_server

pytestmark = pytest.mark.skipif(abi() == 0, reason="this kernel has no Landlock")

SECRET = "the secret of the host"
VIDEO = {"dir": "/anywhere", "size": {"width": 64, "height": 48}}
SYSTEM_FILE = "/usr/lib/os-release"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def watched() -> AsyncIterator[Watched]:
    async with browser_server(client_guard="off", max_concurrent_sessions=5) as watched:
        yield watched


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret.html"
    path.write_text(f"<title>{SECRET}</title>{SECRET}")
    return path


async def content(client: ProtocolClient, page: str) -> str:
    return str((await client.send(client.frame(page), "content"))["value"])


async def uploaded(client: ProtocolClient, page: str, path: str) -> str:
    """What the page reads of a file that its input was given over CDP."""
    await client.send(client.frame(page), "setContent", html="<input type=file>", timeout=BOUND_S * 1000)
    session = await page_session(client, client.one("BrowserContext"), page)
    root = (await client.cdp(session, "DOM.getDocument"))["root"]["nodeId"]
    found = await client.cdp(session, "DOM.querySelector", nodeId=root, selector="input")
    await client.cdp(session, "DOM.setFileInputFiles", nodeId=found["nodeId"], files=[path])
    read = "document.querySelector('input').files[0].text().catch(String)"
    said: str = (await evaluate(client, page, read))["s"]
    return said


async def test_a_page_may_go_to_files_of_the_system(watched: Watched) -> None:
    async with protocol_client(watched.endpoint) as client:
        page = await client.new_page()
        await goto(client, page, f"file://{SYSTEM_FILE}")
        assert Path(SYSTEM_FILE).read_text().strip() in await content(client, page)
        assert await uploaded(client, page, SYSTEM_FILE) == Path(SYSTEM_FILE).read_text()


async def test_no_way_leads_to_a_file_of_the_host(watched: Watched, secret: Path) -> None:
    own = watched.directory / "leases.json"
    own.write_text(SECRET)
    try:
        for path in (str(secret), str(own), "/etc/passwd", f"/proc/self/root{secret}"):
            async with protocol_client(watched.endpoint) as client:
                page = await client.new_page()
                with pytest.raises(Refusal, match="ERR_ACCESS_DENIED"):
                    await goto(client, page, f"file://{path}")
                session = await page_session(client, client.one("BrowserContext"), page)
                answer = await client.cdp(session, "Page.navigate", url=f"file://{path}")
                assert answer["errorText"] == "net::ERR_ACCESS_DENIED"
                assert "NotReadableError" in await uploaded(client, await client.new_page(), path)
    finally:
        own.unlink()


async def go_to_directory(client: ProtocolClient, path: object) -> str:
    """Returns the page. A listing that fails tells a page no end, now and then, so nobody waits for that."""
    page = await client.new_page()
    url, frame = f"file://{path}/", client.frame(page)
    await client.send(frame, "goto", url=url, timeout=BOUND_S * 1000, waitUntil="commit")
    return page


async def test_no_directory_of_the_host_is_listed_nor_that_of_sessions(watched: Watched) -> None:
    places = ("", "/etc", "/tmp", watched.directory, watched.directory / "sessions", watched.directory / "node")
    async with protocol_client(watched.endpoint) as client:
        pages = [await go_to_directory(client, place) for place in places]
        system = await client.new_page()
        await goto(client, system, "file:///usr/share/")
        assert "addRow(" in await content(client, system)
        for place, page in zip(places, pages, strict=True):
            assert "addRow(" not in await content(client, page), place


async def test_nothing_is_downloaded_or_saved_elsewhere(watched: Watched, tmp_path: Path) -> None:
    async with protocol_client(watched.endpoint) as client:
        page = await client.new_page(await client.new_context(acceptDownloads="accept"))
        await evaluate(client, page, DOWNLOAD)
        artifact = (await client.event("download"))["artifact"]["guid"]
        stream = (await client.send(artifact, "saveAsStream"))["stream"]["guid"]
        assert await read_stream(client, stream) == b"of the page"
        with pytest.raises(Refusal, match="EACCES"):
            await client.send(artifact, "saveAs", path=str(tmp_path / "saved"))  # by Node
        client.events.clear()
        session = await page_session(client, client.one("BrowserContext"), page)
        elsewhere = {"behavior": "allow", "downloadPath": str(tmp_path)}
        await client.cdp(session, "Page.setDownloadBehavior", **elsewhere)
        await evaluate(client, page, DOWNLOAD)
        artifact = (await client.event("download"))["artifact"]["guid"]
        assert (await client.send(artifact, "failure"))["error"] == "canceled"
    assert list(tmp_path.iterdir()) == []


async def test_a_client_finds_nothing_of_another_one(watched: Watched) -> None:
    async with protocol_client(watched.endpoint) as client, protocol_client(watched.endpoint) as other:
        page = await other.new_page(await other.new_context(acceptDownloads="accept"))
        await evaluate(other, page, DOWNLOAD)
        artifact = (await other.event("download"))["artifact"]["guid"]
        assert await other.send(artifact, "failure") == {}  # it is complete
        (file,) = (each for each in (watched.directory / "sessions").glob("*/*") if each.is_file())
        assert await uploaded(client, await client.new_page(), str(file)) == "of the page"  # if it knew the path
        places = (file.parent.parent, Path("/proc"), watched.directory / "tmp")
        pages = [await go_to_directory(client, place) for place in places]
        await goto(client, await client.new_page(), "file:///usr/share/")
        for page in pages:
            assert file.parent.name not in await content(client, page)
        with contextlib.suppress(Refusal):  # no ffmpeg here
            await other.new_page(await other.new_context(recordVideo=VIDEO))
        commands = [" ".join(each.cmdline()) for each in psutil.Process(watched.server.pid).children(recursive=True)]
        assert not any(file.parent.name in each for each in commands)  # which pages read in /proc
    await watched.all_closed()
    # The next one that has this directory has it by another name.
    await eventually_async(lambda: not file.parent.exists(), "the directory is empty, and has another name")


async def test_a_grid_with_the_default_settings_gives_away_none_of_its_secrets(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("a-token-of-twenty-characters")
    token.chmod(0o600)
    environment = {"PWGRID_TOKEN_FILE": str(token), "HOME": str(tmp_path), **WITHOUT_SPARES}
    with running_grid("--chromium", "2", environment=environment) as grid:
        leases = [directory / "leases.json" for directory in (grid.runtime / "w").iterdir()]
        for path in leases:
            path.write_text("[]")
        files = [token, *leases, grid.runtime / "lock", grid.runtime / "redis" / "redis.conf"]
        files += (grid.runtime / "w").glob("*/worker.json")
        assert len(files) == 7
        async with protocol_client(f"{grid.endpoint}/?token={token.read_text()}") as client:
            for path in files:
                assert path.read_bytes()
                with pytest.raises(Refusal, match="ERR_ACCESS_DENIED"):
                    await goto(client, await client.new_page(), f"file://{path}")
