"""A grid whose start directory was removed, as a CI's work space is: everything was named by relative paths. And one
whose runtime directory was removed."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pwgrid.common.selectors_loop import Loop
from pwgrid.master.child_file_writer import ChildFileWriter
from pwgrid.master.workers.workers import Workers
from pwgrid.runtime.directory import RuntimeDir
from tests.support.grid import ROOT, running_grid
from tests.support.master_config import master_config


def test_a_pool_names_the_runtime_directory_that_is_not_there_any_more(tmp_path: Path) -> None:
    runtime, loop = RuntimeDir(tmp_path, 8080, owns_base=False), Loop()
    config = master_config(runtime)
    proxies: Any = SimpleNamespace(send=lambda *_: None)
    workers = Workers(loop, config, ChildFileWriter(loop, config), proxies)
    pool = workers.pools["chromium"]
    workers.start(pool, spare=False)
    assert f"{runtime.directory / 'w'}: No such file or directory" in str(pool.backoff.reason)


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
