"""`pwgrid calibrate` with real browsers: short steps, so that only the order of its figures can be asserted."""

import json
import tempfile
import textwrap
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from pwgrid.settings.load import load
from tests.conftest import need
from tests.e2e.test_commands import pwgrid
from tests.support.grid import processes_marked
from tests.support.http_server import serving

PAGE = b"<title>mine</title><script>document.title = [...Array(50000).keys()].join().length</script>"

SCRIPT = textwrap.dedent(
    """
    import os
    from playwright.sync_api import sync_playwright
    with sync_playwright() as playwright:
        browser = playwright.chromium.connect(os.environ["PWGRID_WS_ENDPOINT"])
        browser.new_page().evaluate("6 * 7")
        browser.close()
    """
)


def test_a_page_is_measured_and_what_is_proposed_gets_into_the_file(tmp_path: Path) -> None:
    need("chromium")
    config, svg = tmp_path / "grid.toml", tmp_path / "plot.svg"
    config.write_text("# mine\n[workers]\nchromium_workers = 9\n")
    with (
        tempfile.TemporaryDirectory(prefix="pg-", dir="/tmp") as temporary,
        serving(lambda path: PAGE if path == "/mine" else b"", "text/html") as (address, asked),
    ):
        done = pwgrid(
            *("calibrate", "--url", f"{address}/mine", "--seconds", "1", "--most", "2", "--write"),
            *("--config", str(config), "--svg", str(svg)),
            environment={"TMPDIR": temporary},
        )
        assert done.returncode == 0, done.stderr + done.stdout
        assert not processes_marked(temporary)
    settings = load(config, {}, {}).settings
    assert config.read_text().startswith("# mine\n[workers]\nchromium_workers = ")
    assert 1 <= settings.chromium_workers <= 2
    assert settings.chromium_workers * settings.max_concurrent_sessions <= 2
    assert 50 <= settings.max_lifetime_sessions <= 1000
    assert 0 < settings.max_worker_memory_mib < settings.max_worker_memory_hard_mib
    assert f"chromium_workers = {settings.chromium_workers}\n" in done.stdout
    assert "  < bends here" in done.stdout
    assert len(ElementTree.fromstring(svg.read_text()).findall("{*}circle")) == 4
    assert asked.count("/mine") >= 4  # warm-up, memory, processor, and each of two steps


def test_a_script_is_run_for_each_session_and_json_has_all_figures(tmp_path: Path) -> None:
    need("chromium")
    script = tmp_path / "session.py"
    script.write_text(SCRIPT)
    config = tmp_path / "grid.toml"  # with the pool of a server, which is not measured
    config.write_text('[[pools]]\nname = "chromium"\nbrowser = "chromium"\nworkers = 2\n')
    with tempfile.TemporaryDirectory(prefix="pg-", dir="/tmp") as temporary:
        done = pwgrid(
            *("calibrate", "--script", str(script), "--seconds", "0.1", "--most", "1", "--json"),
            *("--config", str(config)),
            environment={"TMPDIR": temporary},
        )
        assert done.returncode == 0, done.stderr + done.stdout
        assert not processes_marked(temporary)
    found = json.loads(done.stdout)
    (step,) = found["measured"]["steps"]
    assert (step["clients"], step["sessions"], step["failed"], found["bend"]) == (1, 1, 0, 1)
    assert found["measured"]["worker_mib"] > 20
    assert found["measured"]["session_mib"] >= 1
    assert 0 < found["measured"]["launches_per_s"] < 100
    assert 0 < found["measured"]["cpu_s"] < 60
    assert found["proposal"]["chromium_workers"] == found["proposal"]["max_concurrent_sessions"] == 1
