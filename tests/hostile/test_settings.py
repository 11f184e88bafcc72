"""The settings of a grid reach its browser servers."""

import json
from pathlib import Path

import pytest

from pwgrid.installed.browsers import FoundBrowser
from pwgrid.settings.model import Settings
from pwgrid.worker.browser.launch import LaunchSpec
from tests.support.grid import running_grid
from tests.support.protocol_client import Refusal, protocol_client


def test_a_browser_server_is_launched_with_the_guard_that_is_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(client_guard="strict", block_file_urls=True, browser_env=("CHOSEN",), max_concurrent_sessions=3)
    browser = FoundBrowser("chromium", "/chromium", "", "setting")
    spec = LaunchSpec(settings, settings.short_form("chromium"), browser, tmp_path)
    monkeypatch.setenv("CHOSEN", "yes")
    monkeypatch.setenv("SECRET", "no")
    options = json.loads(spec.options())
    assert (options["clientGuard"], options["blockFileUrls"], options["slots"]) == ("strict", True, 3)
    assert spec.environment()["CHOSEN"] == "yes"
    assert "SECRET" not in spec.environment()


async def test_a_grid_refuses_by_its_settings_and_says_by_which() -> None:
    environment = {"CLIENT_GUARD": "strict", "BLOCK_FILE_URLS": "true"}
    with running_grid("--chromium", "1", environment=environment) as grid:
        async with protocol_client(grid.endpoint) as client:
            with pytest.raises(Refusal, match="CLIENT_GUARD=compatible or MAX_CONCURRENT_SESSIONS=1 allows it"):
                await client.send(client.one("Browser"), "newBrowserCDPSession")
            page = await client.new_page()
            with pytest.raises(Refusal, match="BLOCK_FILE_URLS=false allows it"):
                await client.send(client.frame(page), "goto", url="file:///etc/hostname", timeout=5000)
