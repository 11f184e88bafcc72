"""A browser that describes its protocol, over a port, is confined, and gone with its directory afterwards."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from pwgrid.common import confined_exec
from pwgrid.common.launch_failure import BrowserLaunchError
from pwgrid.worker.browser import protocol_description
from pwgrid.worker.browser.launch import LaunchSpec
from tests.conftest import need
from tests.support.grid import eventually
from tests.support.stand_in_proxy import private_directory
from tests.support.stand_in_proxy import spec as launch_spec


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[psutil.Process]:
    """All that it starts."""
    found: list[psutil.Process] = []

    class Popen(subprocess.Popen[Any]):
        def __init__(self, *arguments: Any, **named: Any) -> None:
            super().__init__(*arguments, **named)
            found.append(psutil.Process(self.pid))

    monkeypatch.setattr(subprocess, "Popen", Popen)
    return found


def spec_in(directory: Path, **changes: Any) -> LaunchSpec:
    need("chromium")
    spec = launch_spec(directory, **changes)
    spec.directories.make(1)
    return spec


def assert_gone(spec: LaunchSpec, started: list[psutil.Process]) -> None:
    (process,) = started
    assert not process.is_running()
    assert list(spec.directories.own.iterdir()) == []


needs_landlock = pytest.mark.skipif(confined_exec.abi() == 0, reason="this kernel has no Landlock")


@needs_landlock
def test_a_browser_describes_its_protocol_and_is_gone(started: list[psutil.Process]) -> None:
    with private_directory() as directory:  # no process may be left in it
        spec = spec_in(directory)
        described = json.loads(protocol_description.describe(spec))
        assert {"Page", "Target"} <= {each["domain"] for each in described["domains"]}
        assert_gone(spec, started)


@needs_landlock
@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("exec sleep 1000", "took too long"),
        ("echo no display >&2; exit 1", "no display"),
        ("echo DevTools listening on ws://127.0.0.1:1/x >&2; exec sleep 1000", "did not answer"),
    ],
)
def test_one_that_does_not_is_gone_too(script: str, says: str, started: list[psutil.Process], tmp_path: Path) -> None:
    executable = tmp_path / "browser"
    executable.write_text(f"#!/bin/sh\n{script}\n")
    executable.chmod(0o755)
    with private_directory() as directory:
        spec = spec_in(directory)
        spec = replace(spec, browser=replace(spec.browser, executable=str(executable)))
        with pytest.raises(BrowserLaunchError, match=says):
            protocol_description.describe(spec, timeout_s=2)
        assert_gone(spec, started)


@needs_landlock
def test_it_ends_with_the_process_that_has_started_it(tmp_path: Path) -> None:
    executable = tmp_path / "browser"
    executable.write_text("#!/bin/sh\nexec sleep 1000\n")
    executable.chmod(0o755)
    script = (
        "import sys; from dataclasses import replace; from pathlib import Path\n"
        "from pwgrid.worker.browser.protocol_description import describe\n"
        "from tests.support.stand_in_proxy import spec\n"
        "spec = spec(Path(sys.argv[1])); spec.directories.make(1)\n"
        "describe(replace(spec, browser=replace(spec.browser, executable=sys.argv[2])))\n"
    )
    with private_directory() as directory:
        command = [sys.executable, "-c", script, str(directory), str(executable)]
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as describing:

            def browsers() -> list[psutil.Process]:
                children = psutil.Process(describing.pid).children()
                return [each for each in children if each.cmdline()[:1] == ["sleep"]]

            eventually(browsers, "it has started the browser")
            (browser,) = browsers()
            describing.kill()
            eventually(lambda: not browser.is_running(), "the browser is gone")


def test_where_browsers_are_not_confined_none_gets_a_port(started: list[psutil.Process]) -> None:
    with private_directory() as directory:
        with pytest.raises(BrowserLaunchError, match="CONFINE"):
            protocol_description.describe(spec_in(directory, confine="off"))
        assert started == []


@needs_landlock
def test_a_browser_that_serves_clients_may_not_listen(tmp_path: Path) -> None:
    with private_directory() as directory:
        confinement = spec_in(directory).confinement
        assert confinement is not None
        assert "--may-ports" not in confinement.before_browser()
        assert "--may-ports" in confinement.before_browser(may_listen=True)
