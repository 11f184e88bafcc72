"""The container file, built and run as docs/container.md says, with real clients from the host: `make container-check`.

The ordinary `make test` leaves it out: the first build fetches packages for minutes. Its layers stay with the engine.
"""

import asyncio
import json
import re
import secrets
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Error, Playwright

from tests.support.container import BUILD_S, IMAGE, Engine, Unavailable, close, find_engine
from tests.support.grid import eventually, eventually_async, free_port
from tests.support.recipes import lines

PAGE = "container.md"
TOKEN = secrets.token_hex(16)
BUILD, FIRST, HARDENED = "podman build", "--detach", "--read-only"


class Container:
    """A running container, started by a line of the page."""

    def __init__(self, engine: Engine, line: str, *options: str) -> None:
        self.engine = engine
        self.port = free_port()
        self.name = f"pwgrid-check-{self.port}"
        started = self.typed(line.removesuffix(" pwgrid") + " ".join(("", *options)) + f" {IMAGE}")
        assert started.returncode == 0, started.stderr

    def typed(self, line: str, timeout_s: float = 120) -> Any:
        """A line of the page with this container's name and port."""
        said = line.replace("--name pwgrid", f"--name {self.name}").replace("127.0.0.1:8080", f"127.0.0.1:{self.port}")
        said = re.sub(r"^podman (exec|stop) pwgrid", rf"podman \1 {self.name}", said)
        return self.engine.line(said, timeout_s=timeout_s, TOKEN=TOKEN)

    @property
    def endpoint(self) -> str:
        return f"ws://127.0.0.1:{self.port}/?token={TOKEN}"

    def http(self, path: str, body: dict[str, Any] | None = None) -> tuple[int, Any]:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}",
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)
        except OSError:
            return 0, None  # it does not listen yet

    def is_ready(self) -> bool:
        return self.http("/health/ready")[0] == 200

    def state(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.engine.succeed("inspect", self.name))[0]["State"]
        return found

    def processes(self) -> dict[int, tuple[int, str]]:
        """User and command line by pid, as the container sees them."""
        script = 'for p in /proc/[0-9]*; do echo "${p#/proc/} $(stat -c %u $p) $(tr "\\0" " " < $p/cmdline)"; done'
        listed = self.engine.run("exec", self.name, "sh", "-c", script).stdout.splitlines()
        found = [line.split(" ", 2) for line in listed]
        return {int(pid): (int(user), command) for pid, user, command in found if command.strip()}

    def log(self) -> str:
        done = self.engine.run("logs", self.name)
        return done.stdout + done.stderr

    def is_gone(self) -> None:
        """It has ended well, and left no process on the host."""
        state = self.state()
        assert (state["Status"], state["ExitCode"], state["OOMKilled"]) == ("exited", 0, False), self.log()
        full = json.loads(self.engine.succeed("inspect", self.name))[0]["Id"]
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    assert full not in (entry / "cgroup").read_text()
                except OSError:
                    continue


@pytest.fixture(scope="module")
def built() -> Iterator[tuple[Engine, str]]:
    """The engine, and what the build has said."""
    try:
        engine, base = find_engine()
    except Unavailable as why:
        pytest.skip(str(why))
    (line,) = lines(PAGE, BUILD)
    options = ["--build-arg", f"BASE={base}", "--network=host", *engine.host_options()]
    said = line.replace("--tag pwgrid .", f"--tag {IMAGE} {' '.join(options)} .")
    done = engine.line(said, timeout_s=BUILD_S)
    try:
        assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
        yield engine, done.stdout + done.stderr
    finally:
        for name in engine.succeed("ps", "--all", "--format", "{{.Names}}").split():
            if name.startswith("pwgrid-check-"):
                engine.run("rm", "--force", name)
        close(engine)


@pytest.fixture
def only_podman(built: tuple[Engine, str]) -> None:
    """Skips before a container is started in which Chromium could not start."""
    if built[0].name != "podman":
        pytest.skip("docker's seccomp profile forbids user namespaces")


@pytest.fixture
def container(built: tuple[Engine, str], request: pytest.FixtureRequest) -> Iterator[Container]:
    """What the test's parameter says; removed at its end, with what it has said in a failure's report."""
    (line,) = [each for each in lines(PAGE, FIRST) if (HARDENED in each) == request.param[0]]
    made = Container(built[0], line, *request.param[1:])
    try:
        eventually(lambda: made.is_ready() or made.state()["Status"] != "running", "the grid is ready")
        assert made.is_ready(), made.log()
        yield made
    except BaseException as error:
        error.add_note(made.log())
        raise
    finally:
        made.engine.run("rm", "--force", made.name)


def test_the_image_is_built_as_the_page_says(built: tuple[Engine, str]) -> None:
    engine, _ = built
    image = json.loads(engine.succeed("image", "inspect", IMAGE))[0]
    check = image.get("Healthcheck") or image["Config"]["Healthcheck"]
    assert check["Test"] == ["CMD", "pwgrid", "status"]
    config = image["Config"]
    assert (config["User"], config["StopSignal"]) == ("pwgrid", "SIGTERM")
    assert config["Entrypoint"] == ["tini", "--", "pwgrid"]
    # Nothing of this host's, and nothing that only the build needed.
    places = ("/etc/pip.conf", "/run/build", "/var/lib/apt/lists")  # where they were mounted, they may be left, empty
    find = ("find", *places, "-type", "f", "-size", "+0")
    assert engine.run("run", "--rm", "--entrypoint", "", IMAGE, *find).stdout == ""
    refused = engine.run("run", "--rm", IMAGE)
    assert refused.returncode == 2
    assert "set PWGRID_TOKEN" in refused.stdout + refused.stderr


@pytest.mark.parametrize("container", [(False, "--env POOL_CONFIG=Any:Chromium=2")], indirect=True, ids=["plain"])
async def test_a_user_s_commands_from_start_to_stop(
    container: Container, playwright: Playwright, tmp_path: Path
) -> None:
    status, reload, upgrade, drain, stop = [
        line for line in lines(PAGE, "podman ") if line.startswith(("podman exec", "podman stop"))
    ]
    asked = await asyncio.to_thread(container.typed, status)
    assert (asked.returncode, "serving" in asked.stdout) == (0, True), asked.stderr
    if container.engine.name == "podman":
        container.engine.succeed("healthcheck", "run", container.name)
    else:
        await eventually_async(lambda: container.state()["Health"]["Status"] == "healthy", "it is healthy")
    first = container.processes()
    assert 0 not in {user for user, _ in first.values()}
    assert first[1][1].startswith("tini ")

    # A page with a video.
    browser = await playwright.chromium.connect(container.endpoint)
    context = await browser.new_context(record_video_dir=tmp_path)
    page = await context.new_page()
    await page.goto("data:text/html,<title>here</title>")
    assert await page.title() == "here"
    await context.close()
    assert page.video is not None
    await page.video.save_as(tmp_path / "kept.webm")
    assert (tmp_path / "kept.webm").stat().st_size > 0

    # Sessions, also of a borrowed lease, go on over a reload and an upgrade.
    page = await browser.new_page()
    code, lease = await asyncio.to_thread(container.http, "/session/borrow", {"labelKey": "Any:Chromium"})
    assert code == 200, lease
    assert f"127.0.0.1:{container.port}/" in lease["webSocketEndpoint"]
    borrowed = await playwright.chromium.connect(lease["webSocketEndpoint"])
    its_page = await borrowed.new_page()
    for line in (reload, upgrade):
        done = await asyncio.to_thread(container.typed, line)
        assert done.returncode == 0, done.stdout + done.stderr
        assert await page.evaluate("6 * 7") + await its_page.evaluate("1") == 43
    others = container.processes()
    assert 1 in others
    newer = [pid for pid, (_, command) in others.items() if "serve" in command and pid not in first]
    assert len(newer) >= 3  # proxy and workers
    await borrowed.close()
    returned = {"labelKey": "Any:Chromium", "browserId": lease["browserId"]}
    assert (await asyncio.to_thread(container.http, "/session/return", returned))[0] == 200

    # A drain waits for the live session, and says that it has gone.
    waiting = asyncio.create_task(asyncio.to_thread(container.typed, drain))
    await eventually_async(lambda: '"reason":"operator"' in container.log(), "the drain has begun")
    assert await page.evaluate("6 * 7") == 42
    assert not waiting.done()
    await browser.close()
    drained = await waiting
    assert drained.returncode == 0, drained.stdout + drained.stderr
    await eventually_async(container.is_ready, "replacements serve")

    stopped = await asyncio.to_thread(container.typed, stop)
    assert stopped.returncode == 0, stopped.stderr
    container.is_gone()
    assert '"event":"master_stopped"' in container.log()


@pytest.mark.parametrize("container", [(True, "--env DRAIN_TIMEOUT=2")], indirect=True, ids=["hardened"])
async def test_the_hardened_container_serves_and_a_stop_tells_its_client_why(
    container: Container, playwright: Playwright
) -> None:
    assert {user for user, _ in container.processes().values()} == {12345}
    browser = await playwright.chromium.connect(container.endpoint)
    page = await browser.new_page()
    assert await page.evaluate("6 * 7") == 42
    stopped = await asyncio.to_thread(container.engine.run, "stop", container.name)
    assert stopped.returncode == 0, stopped.stderr
    with pytest.raises(Error, match="the grid was stopping and DRAIN_TIMEOUT=2 s was over"):
        await page.title()
    container.is_gone()


@pytest.mark.parametrize("container", [(False, "--env CHROMIUM_SANDBOX=true")], indirect=True, ids=["sandbox"])
async def test_podman_lets_chromium_have_its_own_sandbox_as_well(
    only_podman: None, container: Container, playwright: Playwright
) -> None:
    browser = await playwright.chromium.connect(container.endpoint)
    assert await (await browser.new_page()).evaluate("6 * 7") == 42
    commands = [command for _, command in container.processes().values() if "headless-shell" in command]
    assert any("--type=renderer" in command for command in commands)
    assert not any("--no-sandbox" in command for command in commands)
    await browser.close()
