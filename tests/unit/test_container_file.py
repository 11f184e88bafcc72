"""The container file names what is there: files, commands and settings. tests/container builds and runs it."""

import json
import re
import shlex
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import click

from pwgrid.cli.main import main
from pwgrid.settings.model import SETTINGS

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "Containerfile").read_text()
LINES = re.sub(r"\\\n", " ", re.sub(r"^#.*\n", "", TEXT, flags=re.MULTILINE)).splitlines()


def arguments(instruction: str) -> list[str]:
    """What follows each such instruction."""
    return [line.removeprefix(instruction).strip() for line in LINES if line.startswith(f"{instruction} ")]


def test_what_is_copied_is_there_and_not_ignored() -> None:
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    kept = {line.removeprefix("!") for line in ignored if line.startswith("!")}
    assert ignored[0] == "**"
    assert all((ROOT / name).exists() for name in kept)
    assert [each for each in arguments("COPY") if not each.startswith("--from")] == ["requirements.txt ./", ". ."]
    # What the wheel is built of, by pyproject.toml, and the lock.
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert kept >= {*(each.split("/")[0] for each in wheel["packages"]), *wheel["force-include"], "docs"}
    assert kept >= {"lua", "config", "systemd", "tools", "pyproject.toml", "README.md", "requirements.txt"}
    assert not any(fnmatch(".git", each) for each in kept)


def test_its_commands_and_settings_exist() -> None:
    (check,), (entry,), (command,) = arguments("HEALTHCHECK"), arguments("ENTRYPOINT"), arguments("CMD")
    assert json.loads(entry)[-1] == "pwgrid"
    called = [json.loads(command)[0], json.loads(check.partition("CMD ")[2])[1]]
    assert isinstance(main, click.Group)
    assert set(called) <= main.commands.keys()
    variables = {each.partition("=")[0] for line in arguments("ENV") for each in shlex.split(line)}
    variables.remove("PLAYWRIGHT_BROWSERS_PATH")  # Playwright's own: where ffmpeg is for whichever user
    assert variables <= {name for each in SETTINGS.values() for name in (each.environment, each.name.upper())}


def test_it_runs_as_a_user_of_its_own() -> None:
    assert arguments("USER") == ["pwgrid"]
    assert "useradd --system" in TEXT
