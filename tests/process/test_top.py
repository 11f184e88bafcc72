"""`pwgrid top` on a real terminal, beside a grid without a browser."""

import contextlib
import os
import signal
from collections.abc import Iterator

import pytest

from tests.support import raw
from tests.support.grid import Grid, eventually, running_grid
from tests.support.terminal import OnTerminal, on_terminal

HOSTILE = "\x1b]0;owned\x07\x1b[2J\x9b31m"
UP, DOWN = "\x1b[A", "\x1b[B"


@pytest.fixture(scope="module")
def grid() -> Iterator[Grid]:
    limits = {"MAX_LIFETIME_SESSIONS": "5000", "MAX_WORKER_MEMORY_MIB": "900"}  # too many for spares
    environment = {**limits, "MEMORY_CHECK_INTERVAL": "0.2", "MEMORY_METRIC": "rss"}
    with running_grid("--chromium", "2", "--slots", "3", environment=environment, fake=True) as grid:
        yield grid


def newest(grid: Grid) -> str:
    """The id of the session that began last."""
    (found,) = grid.redis("ZREVRANGE", "sessions:index", 0, 0)
    return found.decode() if isinstance(found, bytes) else str(found)


@contextlib.contextmanager
def top(grid: Grid, columns: int = 80, lines: int = 24) -> Iterator[OnTerminal]:
    with on_terminal(grid, "top", "--every", "0.2", columns=columns, lines=lines) as command:
        yield command
        command.press("q")
        assert command.end() == 0
        assert command.is_as_before()


def test_it_shows_pools_workers_and_sessions_in_eighty_columns_and_a_key_ends_one(grid: Grid) -> None:
    with contextlib.closing(raw.session(grid.port, "/?browser=chromium")) as client:
        session_id = newest(grid)
        with top(grid) as command:
            command.until_text(grid.endpoint, session_id, "sessions 1/6")
            assert "serving" in command.text
            assert command.line("chromium ").split()[:8] == ["chromium", "2", "2", "0", "0", "0", "0", "1/6"]
            worker = grid.redis("HGET", f"session:{session_id}", "workerId").decode()
            assert command.line(worker).split()[:5] == [worker, "chromium", "available", "1/3", "1/5000"]
            command.until(lambda: "/900" in command.line(worker), "memory against its limit")
            assert len(command.text.splitlines()) == 24

            command.press("e")
            command.until_text(f"end session {session_id}", "y: yes")
            command.press("n")
            command.until_text("nothing was done")
            assert raw.goes_on(client)
            command.press("e")
            command.until_text("y: yes")
            command.press("y")
            command.until_text(f"session {session_id} ended after", "sessions 0/6")
        assert grid.redis("HGET", f"session:{session_id}", "reason") == b"ended by operator"
        assert raw.read_all(client)  # a close frame that says so


def test_a_key_drains_the_chosen_worker_and_its_replacement_comes(grid: Grid) -> None:
    with top(grid, columns=100) as command:
        command.until_text("WORKER")
        ids = [worker["id"] for worker in grid.status()["workers"]]
        command.until_text(*ids)
        command.press("\x1b[Z" + DOWN)  # Shift-Tab from the sessions
        command.press("d")
        command.until_text("drain worker ", "y: yes")
        chosen = next(worker_id for worker_id in ids if f"drain worker {worker_id} " in command.text)
        assert chosen == ids[1]
        command.press("y")
        command.until_text(f"worker {chosen}: gone, no session was cut")
        left = eventually(lambda: serving(grid, 2), "its replacement serves")
        assert chosen not in left
        assert ids[0] in left


def serving(grid: Grid, count: int) -> list[str] | None:
    found = [each["id"] for each in grid.ask("status")["workers"] if each["status"] == "available"]
    return found if len(found) == count else None


def test_a_filter_leaves_what_has_the_text(grid: Grid) -> None:
    with contextlib.ExitStack() as stack:
        ids = []
        for _ in range(2):
            stack.enter_context(contextlib.closing(raw.session(grid.port, "/?browser=chromium")))
            ids.append(newest(grid))
        with top(grid, lines=30) as command:
            command.until_text(*ids)
            command.press("/" + ids[0] + "\r")
            command.until(lambda: ids[1] not in command.text, "one session only")
            command.until_text(f"filter: {ids[0]}  Tab", f"{ids[0]} chromium")
            command.press("\x1b")  # Escape, which is also the beginning of other keys
            command.until_text(*ids)


def test_what_a_session_says_of_itself_cannot_steer_the_terminal(grid: Grid) -> None:
    with contextlib.closing(raw.session(grid.port, "/?browser=chromium")):
        session_id = newest(grid)
        for name in ("name", "client"):
            grid.redis("HSET", f"session:{session_id}", name, HOSTILE)
        with top(grid) as command:
            command.until_text(session_id)
            command.until_text("x1b]0;owned")
        assert b"\x1b]0;" not in command.raw
        assert "\x9b".encode() not in command.raw


def test_another_size_is_another_picture(grid: Grid) -> None:
    with top(grid) as command:
        command.until_text("q quit", "EVENTS")
        command.resize(120, 12)
        os.kill(command.process.pid, signal.SIGWINCH)
        command.until(lambda: "q quit" in command.screen.display[11], "the last line is the twelfth")


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_it_and_leaves_the_terminal_as_it_was(grid: Grid, signum: signal.Signals, code: int) -> None:
    with on_terminal(grid, "top") as command:
        command.until_text("WORKER")
        assert not command.is_as_before()
        if signum is signal.SIGINT:
            command.press("\x03")
        else:
            command.process.send_signal(signum)
        assert command.end() == code
        assert command.is_as_before()


def test_ctrl_z_gives_the_terminal_back_until_it_goes_on(grid: Grid) -> None:
    with top(grid) as command:
        command.until_text("WORKER")
        command.press("\x1a")
        _, status = os.waitpid(command.process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        command.until(command.is_as_before, "the terminal is as it was")
        command.process.send_signal(signal.SIGCONT)
        command.until(lambda: not command.is_as_before(), "its screen is back")
        command.until_text("WORKER")


def test_a_master_that_does_not_answer_keeps_nobody_from_quitting() -> None:
    with running_grid("--chromium", "1", fake=True) as grid, top(grid) as command:
        command.until_text("WORKER")
        grid.kill_master()
        command.until_text("does not answer")
        grid.start_again()
        command.until_text("another master", "the grid answers again")


def test_without_a_terminal_it_says_what_to_use_instead(grid: Grid) -> None:
    done = grid.command("top")
    assert (done.returncode, done.stdout) == (1, "")
    assert "pwgrid status --watch" in done.stderr
