"""The command works in any project: modules there that are called like those that we use are not meant for us."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = "import sys\nfrom pwgrid.__main__ import main\nif __name__ == '__main__':\n    sys.exit(main())\n"
"""What pip makes of the entry point."""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with modules of its own that it wants nobody else to import."""
    directory = tmp_path / "project"
    directory.mkdir()
    for name in ("grid", "click", "redis", "orjson", "pydantic", "queue"):
        (directory / f"{name}.py").write_text("raise SystemExit('the project has its own')\n")
    return directory


@pytest.mark.parametrize("pythonpath", ["", ".", "here", f".{os.pathsep}/nowhere"])
@pytest.mark.parametrize("as_module", [True, False])
def test_the_command_imports_nothing_of_the_project_that_it_is_used_in(
    project: Path, tmp_path: Path, pythonpath: str, *, as_module: bool
) -> None:
    (tmp_path / "pwgrid").write_text(SCRIPT)
    program = ["-m", "pwgrid"] if as_module else [str(tmp_path / "pwgrid")]
    for command in (["config", "check"], ["status", "--runtime-dir", str(tmp_path)]):
        done = subprocess.run(
            [sys.executable, *program, *command],
            cwd=project,
            env={**os.environ, "PYTHONPATH": str(project) if pythonpath == "here" else pythonpath},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert "its own" not in done.stderr
        assert "Traceback" not in done.stderr
        assert done.stdout.startswith("the configuration is good\n\nPOOL ") or "no grid is running here" in done.stderr


def test_what_only_pythonpath_has_is_still_found(tmp_path: Path) -> None:
    (tmp_path / "only_here.py").write_text("found = 6 * 7\n")
    code = "from pwgrid.__main__ import installed_first; installed_first(); import only_here; print(only_here.found)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "42\n"
