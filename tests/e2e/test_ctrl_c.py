"""Ctrl-C at a terminal while a session lives: what is said, and that a second one does not wait."""

import os
import pty
import re
import select
import signal
import sys
import tempfile

from playwright.async_api import Playwright

from tests.conftest import need
from tests.support.grid import ROOT, eventually, eventually_async, free_port, processes_marked


class AtTerminal:
    """`pwgrid serve` with a terminal of its own."""

    def __init__(self, temporary: str, port: int) -> None:
        self._text = b""
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            os.chdir(ROOT)
            os.environ |= {"TMPDIR": temporary, "LOG_LEVEL": "error"}
            command = [sys.executable, "-m", "pwgrid", "serve", "--chromium", "1", "--port", str(port)]
            os.execv(sys.executable, command)

    def said(self) -> str:
        """All that was printed so far."""
        while select.select([self.terminal], [], [], 0)[0]:
            try:
                self._text += os.read(self.terminal, 65536)
            except OSError:  # the last one that has it has ended
                break
        return self._text.decode(errors="replace")

    def ctrl_c(self) -> None:
        os.write(self.terminal, b"\x03")


async def test_ctrl_c_says_what_it_waits_for_and_a_second_one_ends_it(playwright: Playwright) -> None:
    need("chromium")
    with tempfile.TemporaryDirectory(prefix="pg-", dir="/tmp") as temporary:
        port = free_port()
        grid = AtTerminal(temporary, port)
        try:
            await eventually_async(lambda: "ready:" in grid.said(), "it is ready", 90)
            browser = await playwright.chromium.connect(f"ws://127.0.0.1:{port}")
            page = await browser.new_page()
            grid.ctrl_c()
            await eventually_async(lambda: "Ctrl-C again" in grid.said(), "it says what it waits for")
            first = "stopping: 1 live session may go on for 30 s; Ctrl-C again (or SIGTERM) ends them now"
            assert first in grid.said()
            counts = re.compile(r"stopping: 1 live session, (\d+) s left, Ctrl-C ends them now\r")
            await eventually_async(lambda: len(set(counts.findall(grid.said()))) > 1, "it counts down")
            assert await page.evaluate("6 * 7") == 42
            grid.ctrl_c()
            await eventually_async(lambda: "stopping: ending 1 live session now" in grid.said(), "it ends them")
            _, status = os.waitpid(grid.pid, 0)
            assert os.waitstatus_to_exitcode(status) == 0
        finally:
            for pid in processes_marked(temporary):
                os.kill(pid, signal.SIGKILL)
            os.close(grid.terminal)
        eventually(lambda: processes_marked(temporary) == {}, "nothing is left")
