"""`pwgrid run` with real browsers, as a CI box uses it."""

import os
import pty
import re
import signal
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import pytest

from pwgrid.common.confined_exec import abi
from tests.conftest import need
from tests.e2e.test_commands import pwgrid
from tests.support.grid import ROOT, eventually, processes_marked

CONNECT_AND_PRINT = textwrap.dedent(
    """
    import os
    from playwright.sync_api import sync_playwright
    with sync_playwright() as playwright:
        browser = playwright.chromium.connect(os.environ["PW_TEST_CONNECT_WS_ENDPOINT"])
        page = browser.new_page()
        print(page.evaluate("6 * 7"), os.environ["PWGRID_WS_ENDPOINT"] == os.environ["PW_TEST_CONNECT_WS_ENDPOINT"])
        browser.close()
    raise SystemExit(7)
    """
)


BARE = "10042026"
"""The argument of a process that has no environment."""

HOLDERS = textwrap.dedent(
    """
    import os, subprocess, sys
    from playwright.sync_api import sync_playwright
    if len(sys.argv) == 1:
        endpoint = os.environ["PWGRID_WS_ENDPOINT"]
        workers = [subprocess.Popen([sys.executable, __file__, endpoint]) for _ in range(3)]
        raise SystemExit(any([worker.wait() for worker in workers]))
    with sync_playwright() as playwright:
        page = playwright.chromium.connect(sys.argv[1]).new_page()
        page.wait_for_timeout(3_000)
        print(page.evaluate("6 * 7"))
    """
)
"""Three test workers, each of which keeps its session for three seconds."""


def test_run_gives_a_command_a_grid_and_returns_its_exit_code_in_a_work_space_of_any_name(tmp_path: Path) -> None:
    need("chromium")
    with tempfile.TemporaryDirectory(prefix="p ü:#?%2F-", dir="/tmp") as temporary:
        config = tmp_path / "grid.toml"  # a server's, perhaps: its Redis is not for a private grid
        config.write_text('[workers]\nchromium_workers = 1\n[redis]\nredis_url = "redis://127.0.0.1:1"\n')
        done = pwgrid(
            *("run", "--config", str(config), "--", sys.executable, "-c", CONNECT_AND_PRINT),
            environment={"TMPDIR": temporary, "REDIS_URL": "no URL of ours"},
        )
        assert (done.returncode, done.stdout.strip()) == (7, "42 True"), done.stderr
        assert processes_marked(temporary) == {}
        assert list(Path(temporary).iterdir()) == []


GO_TO_FILES = textwrap.dedent(
    """
    import os, sys
    from playwright.sync_api import Error, sync_playwright
    with sync_playwright() as playwright:
        page = playwright.chromium.connect(os.environ["PWGRID_WS_ENDPOINT"]).new_page()
        for path in sys.argv[1:]:
            try:
                page.goto(f"file://{path}")
                print(page.title())
            except Error as error:
                print(error.message.splitlines()[0].partition(" at ")[0])
    """
)


@pytest.mark.skipif(abi() == 0, reason="this kernel has no Landlock")
def test_pages_of_a_command_are_files_where_it_runs_and_no_others(tmp_path: Path) -> None:
    need("chromium")
    here, elsewhere = tmp_path / "a work space", tmp_path / "elsewhere"
    for directory in (here, elsewhere):
        directory.mkdir()
        (directory / "page.html").write_text(f"<title>{directory.name}</title>")
    script = (sys.executable, "-c", GO_TO_FILES, str(here / "page.html"), str(elsewhere / "page.html"))
    done = subprocess.run(
        [sys.executable, "-m", "pwgrid", "run", "--chromium", "1", "--", *script],
        cwd=here,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout.splitlines() == ["a work space", "Page.goto: net::ERR_ACCESS_DENIED"], done.stderr


def test_run_returns_127_for_a_command_that_is_not_there() -> None:
    need("chromium")
    done = pwgrid("run", "--chromium", "1", "--", "/no/such/command")
    assert done.returncode == 127


@pytest.mark.parametrize(
    ("signum", "script"),
    [
        (signal.SIGTERM, "touch {started}; exec sleep 1000"),
        (signal.SIGKILL, "touch {started}; exec sleep 1000"),
        (signal.SIGKILL, "sleep 1001 & sh -c 'touch {started}; sleep 1002; true'; true"),
        (signal.SIGKILL, "trap '' TERM; touch {started}; while :; do sleep 1000; done"),
        (signal.SIGKILL, "setsid sleep 1003 & env -i sleep {bare} & touch {started}; wait"),
    ],
)
def test_the_command_and_its_grid_end_when_run_is_killed(signum: signal.Signals, script: str) -> None:
    need("chromium")
    with tempfile.TemporaryDirectory(prefix="pg-", dir="/tmp") as temporary:
        started = Path(temporary) / "started"
        command = ["sh", "-c", script.format(started=started, bare=BARE)]
        run = subprocess.Popen(
            [sys.executable, "-m", "pwgrid", "run", "--chromium", "1", "--", *command],
            cwd=ROOT,
            env={**os.environ, "TMPDIR": temporary},
        )
        try:
            eventually(started.exists, "the command runs", 60)
        finally:
            run.send_signal(signum)
            run.wait(60)
        eventually(lambda: processes_marked(temporary) == {}, "the command and its grid are gone", 60)
        eventually(lambda: processes_marked(BARE) == {}, "what had another environment is gone", 60)
        started.unlink()
        assert list(Path(temporary).iterdir()) == []


def test_run_ends_when_its_terminal_goes_away() -> None:
    need("chromium")
    with tempfile.TemporaryDirectory(prefix="pg-", dir="/tmp") as temporary:
        started = Path(temporary) / "started"
        command = [
            sys.executable,
            "-m",
            "pwgrid",
            "run",
            "--chromium",
            "1",
            "--",
            "sh",
            "-c",
            f"touch {started}; exec sleep 1000",
        ]
        pid, terminal = pty.fork()
        if pid == 0:
            signal.signal(signal.SIGHUP, signal.SIG_DFL)  # these tests may run under nohup
            os.chdir(ROOT)
            os.environ["TMPDIR"] = temporary
            os.execv(sys.executable, command)
        eventually(started.exists, "the command runs", 60)
        os.close(terminal)
        os.waitpid(pid, 0)
        eventually(lambda: processes_marked(temporary) == {}, "all is gone", 60)
        started.unlink()
        assert list(Path(temporary).iterdir()) == []


def test_test_workers_that_find_no_slot_wait_and_the_last_line_says_how_it_went(tmp_path: Path) -> None:
    need("chromium")
    script = tmp_path / "holders.py"
    script.write_text(HOLDERS)
    done = pwgrid("run", "--chromium", "1", "--slots", "1", "--", sys.executable, str(script))
    assert (done.returncode, done.stdout.split()) == (0, ["42"] * 3), done.stderr
    last = done.stderr.splitlines()[-1]
    found = re.fullmatch(
        r"pwgrid: 3 sessions, longest wait for a slot (\d+\.\d) s, 0 refused, 0 cut, peak memory (\d+) MiB", last
    )
    assert found is not None, done.stderr
    assert float(found[1]) > 5.0  # a server's clients would have given up by then
    assert int(found[2]) > 20


def test_where_no_browser_starts_the_command_is_not_run_and_one_sentence_says_why(tmp_path: Path) -> None:
    need("chromium")
    done = pwgrid(
        *("run", "--chromium", "1", "--", "touch", str(tmp_path / "ran")),
        environment={"CHROMIUM_EXECUTABLE": "/bin/true"},
    )
    assert done.returncode == 1
    assert not (tmp_path / "ran").exists()
    last = done.stderr.splitlines()[-1]
    sentence = "no chromium worker is available: chromium did not start: it ended with exit code 0"
    assert last == f"pwgrid: touch was not run: {sentence} (3 early deaths in a row)"
