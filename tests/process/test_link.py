"""The one link to the command, with the real script in a copy of a checkout and a home of its own."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


class Home:
    """A user with a checkout, whose PATH the test decides."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory / "home"
        self.command = directory / "checkout" / ".venv" / "bin" / "pwgrid"
        self.local = self.directory / ".local" / "bin"
        self.directory.mkdir()
        tools = directory / "checkout" / "tools"
        tools.mkdir(parents=True)
        shutil.copy(ROOT / "tools" / "link_command.py", tools)
        self.script = tools / "link_command.py"

    def link(self, *arguments: str, path: str = "/usr/bin:/bin") -> str:
        """What it said."""
        done = subprocess.run(
            [sys.executable, str(self.script), *arguments],
            env={"HOME": str(self.directory), "PATH": path},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stderr == ""
        return done.stdout.removeprefix("pwgrid set-up: ").strip()


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def test_the_link_goes_where_the_user_has_commands_and_is_told_once(home: Home) -> None:
    path = f"{home.local}:/usr/bin"
    said = home.link(path=path)
    assert said == f"the command is {home.local}/pwgrid, a link to {home.command}"
    assert os.readlink(home.local / "pwgrid") == str(home.command)
    assert home.link(path=path) == ""
    home.link("--remove", path=path)
    assert not os.path.lexists(home.local / "pwgrid")


def test_nothing_is_put_where_nobody_would_find_it(home: Home) -> None:
    said = home.link()
    assert said.startswith(f"the command is {home.command}; `make link LINK=DIRECTORY`")
    assert list(home.directory.iterdir()) == []


def test_a_directory_that_is_said_is_taken(home: Home, tmp_path: Path) -> None:
    home.link(str(tmp_path / "said"))
    assert os.readlink(tmp_path / "said" / "pwgrid") == str(home.command)


def test_a_link_that_cannot_be_made_is_a_failure(home: Home, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    command = [sys.executable, str(home.script), str(tmp_path / "file")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"pwgrid set-up: cannot put a link to the command into {tmp_path}/file: ")


def test_make_clean_removes_the_link_that_make_link_has_made_elsewhere(home: Home, tmp_path: Path) -> None:
    shutil.copy(ROOT / "Makefile", tmp_path / "checkout")
    home.link(str(tmp_path / "said"))
    clean = ["make", "--silent", "clean", f"LINK={tmp_path}/said", f"PYTHON={sys.executable}"]
    subprocess.run(clean, cwd=tmp_path / "checkout", check=True)
    assert list((tmp_path / "said").iterdir()) == []


def test_what_is_there_and_is_not_ours_stays(home: Home) -> None:
    home.local.mkdir(parents=True)
    (home.local / "pwgrid").write_text("somebody else's")
    assert "is there already, and no link of ours" in home.link(path=str(home.local))
    assert (home.local / "pwgrid").read_text() == "somebody else's"
    home.link("--remove", path=str(home.local))
    assert (home.local / "pwgrid").exists()


def test_the_link_of_another_checkout_is_replaced_and_said(home: Home) -> None:
    home.local.mkdir(parents=True)
    (home.local / "pwgrid").symlink_to("/old/.venv/bin/pwgrid")
    assert home.link(path=str(home.local)).endswith(f"{home.command}; it led to /old/.venv/bin/pwgrid")
    assert os.readlink(home.local / "pwgrid") == str(home.command)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            [],
            "the command is {home.command}; `make link LINK=DIRECTORY` puts a link to it into a directory of your PATH",
        ),
        (["--remove"], ""),
        (["~/bin"], "this user has no home directory: set HOME"),
    ],
)
def test_a_user_without_a_home_gets_one_sentence(home: Home, arguments: list[str], said: str) -> None:
    """One with neither HOME nor an entry in the table of users."""
    code = (
        "import pwd, runpy, sys\n"
        "pwd.getpwuid = {}.__getitem__\n"
        "sys.argv = sys.argv[1:]\n"
        "runpy.run_path(sys.argv[0], run_name='__main__')\n"
    )
    command = [sys.executable, "-c", code, str(home.script), *arguments]
    done = subprocess.run(command, env={"PATH": "/usr/bin"}, capture_output=True, text=True, check=False)
    assert (done.stdout + done.stderr).removeprefix("pwgrid set-up: ").strip() == said.format(home=home)
