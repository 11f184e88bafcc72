"""`pwgrid run` with a fake browser server: what needs many sessions."""

import json
import subprocess
import sys
import textwrap

from tests.support.grid import ROOT

SIXTY_SESSIONS = textwrap.dedent(
    """
    import json, os
    from urllib.parse import urlsplit
    from pwgrid.cli.grid_queries import status
    from pwgrid.cli.running_grid import find_grid
    from tests.support import raw
    port = urlsplit(os.environ["PWGRID_WS_ENDPOINT"]).port
    with raw.session(port):
        for _ in range(60):
            raw.session(port).close()
        print(json.dumps(status(find_grid(None, None))))
    """
)


def test_a_private_grid_recycles_no_worker_after_a_number_of_sessions() -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "tests.support.fake_grid", "run", "--chromium", "1", "--slots", "70", "--"),
            *(sys.executable, "-c", SIXTY_SESSIONS),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    status = json.loads(done.stdout)
    assert [(worker["status"], worker["slots"]) for worker in status["workers"]] == [("available", 70)]
    assert "pwgrid: 61 sessions, " in done.stderr
    assert " 0 cut, " in done.stderr
