"""What a grid says to who starts it by hand: its Redis, why it does not start, and lines that work when pasted."""

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis

from tests.conftest import need
from tests.support.grid import ROOT, free_port
from tests.support.redis import RedisServer

FOREIGN = "if that is another program's, unset REDIS_URL for a private one, or set PWGRID_REDIS_URL"


class Terminal:
    """`pwgrid serve` as a user starts it, line by line."""

    def __init__(self, *arguments: str, **environment: str) -> None:
        self._temporary = tempfile.TemporaryDirectory(prefix="pg-")
        ours = ("PWGRID", "REDIS", "NOTIFY_SOCKET", "SUPERVISOR", "INVOCATION_ID", "LOG_FORMAT")
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "pwgrid", "serve", "--port", "0", "--chromium", "1", *arguments],
            cwd=ROOT,
            env={**inherited, "TMPDIR": self._temporary.name, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert self.process.stdout is not None
        self.lines: Iterator[str] = (line.rstrip("\n") for line in self.process.stdout)

    def until(self, sign: str) -> list[str]:
        """The lines up to the one with this sign."""
        said = []
        for line in self.lines:
            said.append(line)
            if sign in line:
                return said
        raise AssertionError("\n".join(said))

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        self.process.communicate()
        self._temporary.cleanup()


@pytest.fixture
def terminals() -> Iterator[list[Terminal]]:
    started: list[Terminal] = []
    yield started
    for each in started:
        each.close()


def test_a_grid_ends_its_start_with_lines_that_work_when_they_are_pasted(
    terminals: list[Terminal], node: tuple[str, Path]
) -> None:
    need("chromium")
    terminals.append(terminal := Terminal())
    said = "\n".join(terminal.until("next:"))
    words = dict(re.findall(r"(?m)^  (\w+): +(.+)$", said))
    assert words["Redis"] == "a private one, which ends with the grid"
    python = f"""
from playwright.sync_api import sync_playwright
with sync_playwright() as p:
    {words["Python"]}
    print(browser.version)
    browser.close()
"""
    script = f"""
const {{ chromium }} = require({str(node[1])!r});
(async () => {{
  {words["Node"]}
  console.log(browser.version());
  await browser.close();
}})();
"""
    for command in ([sys.executable, "-c", python], [node[0], "-e", script]):
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert re.fullmatch(r"\d+\.[\d.]+\n", done.stdout), done.stderr
    status = words["next"].split(", ")[0].split()
    environment = {**os.environ, "TMPDIR": str(terminal._temporary.name)}
    done = subprocess.run(status, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert "chromium" in done.stdout, done.stderr
    terminal.process.send_signal(signal.SIGINT)
    assert terminal.process.wait(60) == 0


def test_a_token_is_named_and_not_shown(terminals: list[Terminal]) -> None:
    need("chromium")
    terminals.append(terminal := Terminal(PWGRID_TOKEN="a-token-of-this-test-alone"))
    said = "\n".join(terminal.until("next:"))
    assert re.search(r'connect\("ws://127\.0\.0\.1:\d+/\?token=YOUR_TOKEN"\)', said)
    assert "a-token-of-this-test-alone" not in said


@pytest.mark.parametrize("variable", ["REDIS_URL", "PWGRID_REDIS_URL"])
def test_the_redis_of_the_environment_is_used_with_a_line_that_says_so(
    terminals: list[Terminal], own_redis: RedisServer, variable: str
) -> None:
    need("chromium")
    terminals.append(terminal := Terminal(**{variable: own_redis.url}))
    said = terminal.until("next:")
    with Redis.from_url(own_redis.url) as client:
        assert list(client.scan_iter("worker:*"))
    lines = [line for line in said if re.match(r"(pwgrid redis:|  Redis:)", line)]
    assert len(lines) == 2  # before it is tried, and at the end
    assert all(f"(environment {variable})" in line for line in lines)
    assert all((FOREIGN in line) is (variable == "REDIS_URL") for line in lines)


def test_a_redis_that_cannot_be_reached_is_a_clear_failure_after_the_retries(terminals: list[Terminal]) -> None:
    need("chromium")
    url = f"redis://:hunter2@127.0.0.1:{free_port()}/0"
    terminals.append(terminal := Terminal(REDIS_URL=url, REDIS_RETRY_ATTEMPTS="2", REDIS_RETRY_DELAY="0.2"))
    said = [line for line in terminal.lines if line.startswith("pwgrid")]
    assert terminal.process.wait(30) == 1
    shown = url.replace(":hunter2@", "")
    assert said[0] == f"pwgrid redis: {shown} (environment REDIS_URL): {FOREIGN}"
    assert "attempt 1 of 2 failed: " in said[1]
    assert said[1].endswith("; again in 0.2 s")
    assert said[2].startswith("pwgrid: no Redis: nothing listens there (Connection refused): start it (")
    assert said[2].endswith(f"({shown} (environment REDIS_URL): {FOREIGN})")
    assert len(said) == 3


def test_a_redis_that_refuses_us_is_not_asked_again(terminals: list[Terminal], own_redis: RedisServer) -> None:
    need("chromium")
    url = own_redis.url.replace("://", "://nobody:wrong@", 1)
    terminals.append(terminal := Terminal(PWGRID_REDIS_URL=url))
    said = [line for line in terminal.lines if line.startswith("pwgrid")]
    assert terminal.process.wait(30) == 1
    assert len(said) == 2
    assert said[1].startswith("pwgrid: no Redis: it does not know this user with this password")
    assert "wrong" not in "\n".join(said).replace("WRONGPASS", "")
