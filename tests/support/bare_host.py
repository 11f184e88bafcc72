"""A host for installers: a temporary directory without a browser, and only the commands that a test puts there."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from pwgrid.common.types import BrowserType
from pwgrid.installed.browsers import FoundBrowser, SearchPaths
from pwgrid.installed.driver import Driver, own_driver
from pwgrid.settings.model import Settings
from pwgrid.setup.browsers import setup
from pwgrid.setup.packages import Host, Steps
from tests.support.browsers import fit_browser

SETTINGS = Settings()
_TOOLS = ("env", "ln", "mkdir", "sh", "sleep", "touch")


@dataclass(frozen=True, slots=True)
class ScriptedDriver(Driver):
    """One that launches browsers as it does, and whose command line is another program's."""

    program: Path

    def command(self, *arguments: str) -> list[str]:
        return [str(self.program), "cli.js", *arguments]


class BareHost:
    """Its commands write down how they were called; what the installers say is in `said`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.said: list[str] = []
        self.bin.mkdir()
        (directory / "core").mkdir()
        self.describe()
        # What the scripts need, and no browser that is installed here.
        (directory / "tools").mkdir()
        for tool in _TOOLS:
            (directory / "tools" / tool).symlink_to(shutil.which(tool) or tool)
        environ = {"PATH": self.path, "PLAYWRIGHT_BROWSERS_PATH": str(directory / "cache"), "WORLD": str(directory)}
        self.host = Host(Steps(self.said.append), environ, directory / "root", is_root=True, timeout_s=30)
        self.places = SearchPaths(
            environ, directory / "root", directory / "core", directory / "browsers.json", self.driver
        )
        self.node("echo cannot reach the internet; exit 1")
        # No apt-get but the one that a test makes.
        self.command("apt-cache", "exit 1")
        self.command("apt-get", "echo unable to locate; exit 100")

    @property
    def bin(self) -> Path:
        """Where its commands are."""
        return self.directory / "bin"

    @property
    def path(self) -> str:
        """Its PATH."""
        return f"{self.bin}:{self.directory}/tools"

    @property
    def driver(self) -> Driver:
        """Playwright's own, but for its command line, which is a script."""
        own = own_driver()
        return ScriptedDriver(own.version, own.node, own.cli, self.bin / "node")

    def command(self, name: str, script: str) -> None:
        """A command that is this shell script. $WORLD is the directory of all."""
        path = self.bin / name
        path.write_text(f'#!/bin/sh\necho "$0 $*" >> {self.directory}/calls\n{script}\n')
        path.chmod(0o755)

    def describe(self, **versions: str) -> None:
        """What the driver says that it is made for: these versions of browsers, by name."""
        names = ("chromium-headless-shell", "chromium", "firefox", "webkit", "ffmpeg")
        browsers = [
            {"name": name, "revision": "7"} | ({"browserVersion": versions[name]} if name in versions else {})
            for name in names
        ]
        (self.directory / "core" / "browsers.json").write_text(json.dumps({"browsers": browsers}))

    def node(self, script: str) -> None:
        """Playwright's driver: a Node that runs, and a `cli.js` that is this script."""
        self.command("node", f'[ "$*" = "cli.js --version" ] && exit\n{script}')

    def setup(
        self, types: list[BrowserType], settings: Settings = SETTINGS, *, video: bool = False, headed: bool = False
    ) -> list[FoundBrowser]:
        """`pwgrid setup` on this host."""
        pools = [settings.short_form(each) for each in types]
        return setup(pools, settings, self.host, self.places, video=video, headed=headed)

    def calls(self) -> list[str]:
        """The commands that were run, but for the question whether Node runs."""
        calls = self.directory / "calls"
        lines = calls.read_text().splitlines() if calls.exists() else []
        return [line.removeprefix(f"{self.bin}/") for line in lines if not line.endswith("/node cli.js --version")]

    def text(self) -> str:
        """All that was said."""
        return "\n".join(self.said)


def host_with_shell(directory: Path, monkeypatch: pytest.MonkeyPatch) -> BareHost:
    """One that has nothing but a headless shell, and whose installers find its driver."""
    host = BareHost(directory)
    shell = directory / "root/usr/lib/chromium/chromium-headless-shell"
    shell.parent.mkdir(parents=True)
    shell.symlink_to(fit_browser("chromium").executable)
    return host
