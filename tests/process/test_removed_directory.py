"""A grid whose start directory was removed, as a CI's work space is: everything was named by relative paths."""

import json
from pathlib import Path

from tests.support.grid import ROOT, running_grid


def test_reload_restart_and_tokens_work_after_the_start_directory_was_removed(tmp_path: Path) -> None:
    start, token, file = tmp_path / "start", tmp_path / "token", tmp_path / "grid.toml"
    start.mkdir()
    file.write_text("[workers]\nchromium_workers = 1\n")
    token.write_text("one-good-secret-token")
    token.chmod(0o600)
    environment = {
        "PYTHONPATH": str(ROOT),
        "PWGRID_CONFIG": "../grid.toml",
        "PLAYWRIGHT_BROWSERS_PATH": "../browsers",
    }
    arguments, under = ("--token-file", "../token"), ("env", "-C", str(start))
    with running_grid(*arguments, environment=environment, fake=True, under=under) as grid:
        start.rmdir()
        file.write_text("[workers]\nchromium_workers = 1\n[queue]\nmax_queue = 7\n")
        reloaded = grid.command("reload")
        assert (reloaded.returncode, reloaded.stderr) == (0, ""), reloaded
        assert "changed: max_queue" in reloaded.stdout
        file.write_text("[workers]\nchromium_workers = 1\n[queue]\nmax_queue = 8\n")
        restarted = grid.command("restart")
        assert (restarted.returncode, restarted.stderr) == (0, ""), restarted
        shown = json.loads(grid.command("config", "show", "--running", "--json").stdout)
        assert (shown["max_queue"]["value"], shown["max_queue"]["source"]) == (8, str(file))
        assert shown["token_file"]["value"] == str(token)
        assert grid.ask("tokens") == {"file": str(tmp_path / "tokens.json")}
        assert "Traceback" not in grid.output()
