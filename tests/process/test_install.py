"""pip and pipx install the wheel as a user would, into environments of their own, from the package index."""

import email
import os
import re
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from pwgrid import __version__

ROOT = Path(__file__).resolve().parents[2]
PIP = (sys.executable, "-m", "pip")
"""That of these tests, for any environment: to put one into each takes as long as to install the rest."""
pytestmark = pytest.mark.timeout(900)


def run(*argv: object, **environment: str) -> str:
    """Outside of any checkout, without what this test's Python has been told; its output."""
    own = ("PYTHONPATH", "VIRTUAL_ENV", "PYTHONHOME")
    done = subprocess.run(
        [str(each) for each in argv],
        cwd="/",
        # Python's caches would take as long as the installation, for environments that live for a few seconds.
        env={
            **{name: value for name, value in os.environ.items() if name not in own},
            "PIP_NO_COMPILE": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            **environment,
        },
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("wheel")
    offline = ("--no-deps", "--no-index", "--no-build-isolation")
    run(*PIP, "wheel", "--quiet", *offline, "--wheel-dir", directory, ROOT)
    (made,) = directory.glob("pwgrid-*.whl")
    return made


def test_the_package_page_has_the_project_s_addresses_and_no_dead_link(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (each for each in archive.namelist() if each.endswith("/METADATA"))
        metadata = email.message_from_bytes(archive.read(name))
    assert metadata["Version"] == __version__
    addresses = dict(each.split(", ") for each in metadata.get_all("Project-URL", []))
    assert {"Repository", "Documentation", "Issues", "Changelog"} <= addresses.keys()
    assert metadata["Description-Content-Type"] == "text/markdown"
    page = str(metadata.get_payload())
    assert page.startswith("# pwgrid")
    targets = re.findall(r"\]\(([^)\s]+)\)", page)
    assert targets
    for target in targets:
        inside = target.removeprefix(f"{addresses['Repository']}/blob/main/")
        assert target.startswith(("https://", "http://", "#")), target
        assert inside == target or (ROOT / inside.partition("#")[0]).exists(), target


def test_pip_installs_it_into_an_environment_without_a_checkout(wheel: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "env")
    python, command = (tmp_path / "env" / "bin" / name for name in ("python", "pwgrid"))
    run(*PIP, "--python", python, "install", "--quiet", wheel)
    assert run(command, "version").startswith(f"pwgrid {__version__}, Playwright ")
    assert "redis_url" in run(command, "config", "show")
    checked = run(python, "-m", "pwgrid", "config", "check").splitlines()
    assert (checked[0], checked[-1]) == ("the configuration is good", "effective capacity: 10 sessions at once")
    assert "--chromium" in run(command, "serve", "--help")


def test_pipx_installs_it_as_a_command(wheel: Path, tmp_path: Path) -> None:
    run(*PIP, "install", "--quiet", "--target", tmp_path / "pipx", "pipx")
    places = {"PIPX_HOME": str(tmp_path / "home"), "PIPX_BIN_DIR": str(tmp_path / "bin")}
    run(sys.executable, "-m", "pipx", "install", wheel, PYTHONPATH=str(tmp_path / "pipx"), **places)
    assert run(tmp_path / "bin" / "pwgrid", "version").startswith(f"pwgrid {__version__}, Playwright ")
    assert "the configuration is good" in run(tmp_path / "bin" / "pwgrid", "config", "check")
