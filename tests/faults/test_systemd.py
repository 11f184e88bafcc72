"""The units of systemd/ under a real systemd, with live sessions and clients that connect all the time."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Error, Playwright

from pwgrid.settings.model import Settings
from pwgrid.worker.browser.find import find_browser
from tests.conftest import need
from tests.support.grid import NEVER, ROOT, eventually, eventually_async, free_port
from tests.support.load import under_load
from tests.support.service_manager import INSTALLED, ServiceManager, why_not

CONFIG = "/run/grid.toml"
LOG = "/run/grid.log"


class Service:
    """pwgrid.socket and pwgrid.service as they are shipped, but for the port and where settings and log are."""

    def __init__(self, manager: ServiceManager, port: int) -> None:
        self.manager = manager
        self.endpoint = f"ws://127.0.0.1:{port}"
        self.configure(workers=2)

    def configure(self, workers: int, drain_timeout_s: int = 60) -> None:
        text = (
            f"[pools]\nchromium_workers = {workers}\nmax_lifetime_sessions = {NEVER}\n"
            f"[lifecycle]\ndrain_timeout = {drain_timeout_s}\n"
            "[queue]\nworker_select_timeout = 60\n"  # the first client starts the grid, and a browser may start slowly
        )
        self.manager.path(CONFIG).write_text(text)

    def status(self) -> dict[str, Any]:
        """As root sees it who runs `pwgrid status`, of a grid that is healthy or not."""
        text = self.manager.command(f"{INSTALLED}/.venv/bin/pwgrid", "status", "--json", expected=(0, 3))
        found: dict[str, Any] = json.loads(text)
        return found

    def available(self) -> dict[str, int]:
        """The workers that serve."""
        return {each["id"]: each["pid"] for each in self.status()["workers"] if each["status"] == "available"}

    def are_all_new(self, old: dict[str, int], wanted: int) -> bool:
        """Whether as many as wanted serve, and none of the old ones."""
        available = self.available()
        return len(available) == wanted and not available.keys() & old.keys()

    def main(self) -> tuple[str, str]:
        """The unit's state and its main process."""
        shown = self.manager.show("pwgrid.service")
        return shown["ActiveState"], shown["MainPID"]

    def output(self) -> str:
        return self.manager.path(LOG).read_text(errors="replace")


@pytest.fixture(scope="module")
def port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def manager(port: int) -> Iterator[ServiceManager]:
    need("chromium")
    if reason := why_not():
        pytest.skip(reason)
    browser = Path(find_browser("chromium", Settings()).executable)
    units = {
        "pwgrid.service": (ROOT / "systemd" / "pwgrid.service").read_text(),
        "pwgrid.socket": (ROOT / "systemd" / "pwgrid.socket").read_text(),
        "pwgrid.socket.d/port.conf": f"[Socket]\nListenStream=\nListenStream=127.0.0.1:{port}\n",
        "pwgrid.service.d/files.conf": (
            f"[Service]\nEnvironment=PWGRID_CONFIG={CONFIG} DETACH_GRACE=60 CHROMIUM_EXECUTABLE={browser}\n"
            f"StandardOutput=append:{LOG}\nStandardError=append:{LOG}\nTimeoutStopSec=2\n"
        ),
    }
    manager = ServiceManager(units, [browser.parent])
    yield manager
    manager.close()


@pytest.fixture
def service(manager: ServiceManager, port: int) -> Iterator[Service]:
    """Its socket listens. Afterwards it is stopped, and nothing is left of it."""
    service = Service(manager, port)
    manager.systemctl("start", "pwgrid.socket")
    try:
        yield service
        manager.systemctl("stop", "pwgrid.socket", "pwgrid.service")
        assert service.main() == ("inactive", "0")
        assert manager.show("pwgrid.service")["Result"] == "success"
        assert manager.processes() == {}
        for directory in ("/run/private", "/tmp", "/var/tmp"):
            assert list(manager.path(directory).iterdir()) == []
    except BaseException as error:
        error.add_note(f"{manager.output()}\n{service.output()}")
        manager.systemctl("stop", "pwgrid.socket", "pwgrid.service")
        manager.systemctl("reset-failed")  # the next test starts anew
        raise


async def test_the_first_client_starts_the_grid_and_is_served(service: Service, playwright: Playwright) -> None:
    assert service.main() == ("inactive", "0")
    browser = await playwright.chromium.connect(service.endpoint)
    assert await (await browser.new_page()).evaluate("6 * 7") == 42
    await browser.close()
    eventually(lambda: service.main()[0] == "active", "the grid has said that it is ready")


async def test_a_stop_may_drain_for_longer_than_systemd_gives_it(service: Service, playwright: Playwright) -> None:
    """TimeoutStopSec is 2 s here; killed by it, the unit would have failed, and Node and Chromium be left."""
    service.configure(workers=1, drain_timeout_s=5)
    service.manager.systemctl("start", "pwgrid.service")
    browser = await playwright.chromium.connect(service.endpoint)
    page = await browser.new_page()
    await asyncio.to_thread(service.manager.systemctl, "stop", "pwgrid.socket", "pwgrid.service")
    with pytest.raises(Error, match="the grid was stopping and DRAIN_TIMEOUT="):
        await page.title()
    assert (service.main(), service.manager.show("pwgrid.service")["Result"]) == (("inactive", "0"), "success")
    assert service.manager.processes() == {}


async def test_reload_restart_upgrade_and_a_killed_master_lose_no_session_and_refuse_nobody(
    service: Service, playwright: Playwright
) -> None:
    systemctl = service.manager.systemctl
    systemctl("start", "pwgrid.service")
    assert len(service.available()) == 2  # it has waited for them
    assert service.manager.show("pwgrid.service")["StatusText"] == "chromium 2 x 5 slots"
    async with under_load(service, playwright) as load:
        first, main = service.status(), service.main()

        service.configure(workers=3)
        await asyncio.to_thread(systemctl, "reload", "pwgrid.service")
        await eventually_async(lambda: len(service.available()) == 3, "the third worker serves")
        assert service.main() == main
        workers = service.available()
        assert workers.keys() > {each["id"] for each in first["workers"]}

        await asyncio.to_thread(systemctl, "restart", "pwgrid.service")
        await load.goes_on()
        restarted = service.main()
        assert restarted[0] == "active"
        assert restarted != main
        assert service.available() == workers

        systemctl("kill", "--kill-who=main", "--signal=KILL", "pwgrid.service")
        await eventually_async(
            lambda: service.main()[0] == "active" and service.main()[1] not in ("0", restarted[1]),
            "systemd has started it again",
        )
        await load.goes_on()
        assert service.available() == workers
        assert service.status()["proxy"]["pid"] == first["proxy"]["pid"]

        main = service.main()
        systemctl("kill", "--kill-who=main", "--signal=USR2", "pwgrid.service")
        await eventually_async(lambda: service.available().keys() - workers.keys(), "a new worker serves")
        await load.goes_on()
        assert service.main() == main
        await eventually_async(
            lambda: service.status()["proxy"]["pid"] not in (None, first["proxy"]["pid"]), "another proxy serves"
        )
    assert (load.lost, load.refused) == ({}, [])
    # One after the other: the one with the sessions has kept the rest waiting.
    await eventually_async(lambda: service.are_all_new(workers, 3), "every worker is new")


async def test_a_frozen_master_is_replaced_and_no_session_is_lost(service: Service, playwright: Playwright) -> None:
    """By the unit's own WatchdogSec. The next master adopts what the frozen one had."""
    systemctl = service.manager.systemctl
    systemctl("start", "pwgrid.service")
    async with under_load(service, playwright) as load:
        first, workers, frozen = service.status(), service.available(), service.main()
        systemctl("kill", "--kill-who=main", "--signal=STOP", "pwgrid.service")
        await eventually_async(
            lambda: service.main()[0] == "active" and service.main()[1] not in ("0", frozen[1]), "another one runs"
        )
        await load.goes_on()
        assert service.available() == workers
        assert service.status()["proxy"]["pid"] == first["proxy"]["pid"]
    assert (load.lost, load.refused) == ({}, [])
