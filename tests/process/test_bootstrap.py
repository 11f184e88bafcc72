"""Set-up from nothing: a small project in a copy of our tools, a folder of packages, the real venv and pip."""

import ast
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.bare_host import BareHost
from tools import bootstrap

ROOT = Path(__file__).resolve().parents[2]
PYTHON = getattr(sys, "_base_executable", sys.executable)
PACKAGE = f"python{sys.version_info.major}.{sys.version_info.minor}-venv"
PROJECT = """
[build-system]
requires = ["what-nobody-has"]
build-backend = "backend"
backend-path = ["."]
[project]
name = "small"
version = "1"
"""
BACKEND = """
import zipfile
def build_editable(directory, config_settings=None, metadata_directory=None):
    name = "small-1-py3-none-any.whl"
    info = "small-1.dist-info/"
    with zipfile.ZipFile(f"{directory}/{name}", "w") as wheel:
        wheel.writestr("small.py", "")
        wheel.writestr(info + "METADATA", "Metadata-Version: 2.1\\nName: small\\nVersion: 1\\nRequires-Dist: no\\n")
        wheel.writestr(info + "WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr(info + "RECORD", "")
    return name
"""


class Checkout:
    """A project to set up, on a host without the network and without a command but those of the test."""

    def __init__(self, directory: Path) -> None:
        self.root = directory / "checkout"
        shutil.copytree(ROOT / "tools", self.root / "tools", ignore=shutil.ignore_patterns("__pycache__"))
        (self.root / "grid" / "pwgrid" / "setup").mkdir(parents=True)
        for name in ("__init__.py", "setup/__init__.py", "setup/packages.py"):  # all that there may be use of
            shutil.copy(ROOT / "grid" / "pwgrid" / name, self.root / "grid" / "pwgrid" / name)
        (self.root / "pyproject.toml").write_text(PROJECT)
        (self.root / "backend.py").write_text(BACKEND)
        for name in ("bin", "tmp", "packages"):
            (directory / name).mkdir()
        self.packages = directory / "packages"
        self.environ = {
            "PATH": str(directory / "bin"),
            "HOME": str(directory),
            "TMPDIR": str(directory / "tmp"),
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_NO_INDEX": "1",
            "PIP_NO_COMPILE": "1",  # caches of environments that live for a few seconds
            "PIP_FIND_LINKS": str(self.packages),
        }
        self.lock = [self.pin("playwright", "1.65.0")]
        self.write_locks()

    @property
    def python(self) -> Path:
        """The Python of its virtual environment."""
        return self.root / ".venv" / "bin" / "python"

    def pin(self, name: str, version: str) -> str:
        """Makes a package that pip can find, with a module of its name; its lines for a lock."""
        wheel, info = self.packages / f"{name}-{version}-py3-none-any.whl", f"{name}-{version}.dist-info"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr(f"{name}.py", f"version = {version!r}\n")
            archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
            archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            archive.writestr(f"{info}/RECORD", f"{name}.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        return f"{name}=={version} \\\n    --hash=sha256:{digest}\n    # via small (pyproject.toml)\n"

    def write_locks(self) -> None:
        """`lock` for all, and one package more for who develops."""
        (self.root / "requirements.txt").write_text("# by hand\n" + "".join(self.lock))
        (self.root / "requirements-dev.txt").write_text("".join([self.pin("for_tests", "1"), *self.lock]))

    def set_up(self, *options: str) -> subprocess.CompletedProcess[str]:
        """What make does."""
        return subprocess.run(
            [PYTHON, "-P", "tools/bootstrap.py", *options],
            cwd=self.root,
            env=self.environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=150,
            check=False,
        )

    def finds(self, question: str) -> str:
        """What a function of tools/bootstrap.py says of this checkout, without anything being done about it."""
        ask = f"import sys; sys.path.insert(0, 'tools'); import bootstrap; print(bootstrap.{question})"
        return subprocess.run(
            [PYTHON, "-P", "-c", ask], cwd=self.root, env=self.environ, capture_output=True, text=True, check=True
        ).stdout.strip()

    def has(self, module: str) -> bool:
        """Whether its virtual environment can import this."""
        return subprocess.run([self.python, "-c", f"import {module}"], capture_output=True, check=False).returncode == 0

    def version(self, module: str) -> str:
        """Which version of a package is installed."""
        code = f"import {module}; print({module}.version)"
        return subprocess.run([self.python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


@pytest.fixture(scope="module")
def set_up_once(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A checkout that is set up, and the place where alone that is true: an environment has its own path in it."""
    kept, place = tmp_path_factory.mktemp("kept") / "all", tmp_path_factory.mktemp("bootstrap") / "all"
    place.mkdir()
    done = Checkout(place).set_up()
    assert done.returncode == 0, done.stdout
    (pip,) = place.glob("checkout/.venv/lib/python*/site-packages/pip")
    pip.symlink_to(pip.rename(kept.with_name("pip")))  # a thousand files that no test changes
    shutil.copytree(place, kept, symlinks=True)
    return kept, place


@pytest.fixture
def installed(set_up_once: tuple[Path, Path]) -> Checkout:
    """A checkout that is set up, and nobody else's."""
    kept, place = set_up_once
    shutil.rmtree(place)
    place.mkdir()
    checkout = Checkout(place)
    shutil.rmtree(place)
    shutil.copytree(kept, place, symlinks=True)
    return checkout


def test_the_lock_is_installed_then_the_project_and_a_second_run_does_nothing(installed: Checkout) -> None:
    assert installed.has("small")
    assert installed.version("playwright") == "1.65.0"
    assert not installed.has("for_tests")
    assert os.listdir(installed.environ["TMPDIR"]) == []

    again = installed.set_up()
    assert (again.returncode, again.stdout) == (0, "")

    # What the tests need comes on top, and then there is nothing left to do for either.
    more = installed.set_up("--dev")
    assert "with the tools for its tests" in more.stdout
    assert "making" not in more.stdout
    assert installed.has("for_tests")
    assert installed.set_up("--dev").stdout == installed.set_up().stdout == ""


def test_a_package_that_is_not_what_the_lock_says_is_refused(installed: Checkout) -> None:
    installed.lock.append(installed.pin("other", "1"))
    installed.write_locks()
    with zipfile.ZipFile(installed.packages / "other-1-py3-none-any.whl", "a") as wheel:
        wheel.writestr("more.py", "")
    done = installed.set_up()
    assert done.returncode == 1
    assert "DO NOT MATCH THE HASHES" in done.stdout
    assert not installed.has("other")


def test_another_project_file_or_lock_is_another_installation(installed: Checkout) -> None:
    project = installed.root / "pyproject.toml"
    before = project.read_text()
    assert installed.finds("is_installed(dev=False)") == "True"
    project.write_text(before + "# changed\n")
    assert installed.finds("is_installed(dev=False)") == "False"
    project.write_text(before)
    assert installed.finds("is_installed(dev=False)") == "True"
    installed.lock = [installed.pin("playwright", "1.65.1")]
    installed.write_locks()
    assert "installing pwgrid" in installed.set_up().stdout
    assert installed.version("playwright") == "1.65.1"


def test_the_playwright_that_a_user_has_installed_stays(installed: Checkout) -> None:
    installed.pin("playwright", "1.60.0")
    pip = [installed.python, "-m", "pip", "install", "--quiet", "playwright==1.60.*"]
    subprocess.run(pip, env=installed.environ, check=True)
    assert installed.set_up().stdout == ""

    installed.lock = [installed.pin("other", "1"), installed.pin("playwright", "1.65.1"), installed.pin("another", "1")]
    installed.write_locks()
    for option in ((), ("--dev",)):
        done = installed.set_up(*option)
        assert "keeping Playwright 1.60.0, which you have installed" in done.stdout
        assert installed.version("playwright") == "1.60.0"
        assert installed.has("other")
        assert installed.has("another")


def test_an_installation_that_was_broken_off_is_finished(installed: Checkout) -> None:
    installed.lock.append(installed.pin("other", "1"))
    installed.write_locks()
    (installed.root / "backend.py").write_text("raise RuntimeError('the network is gone')")
    done = installed.set_up()
    assert done.returncode == 1
    assert "pip could not install the packages: exit" in done.stdout
    assert "the network is gone" in done.stdout
    (installed.root / "backend.py").write_text(BACKEND)
    done = installed.set_up()
    assert done.returncode == 0, done.stdout
    assert "installed" in done.stdout
    assert "making" not in done.stdout


def test_an_environment_that_is_broken_or_of_another_place_is_made_anew(installed: Checkout, tmp_path: Path) -> None:
    assert installed.finds("venv_works()") == "True"
    real = installed.python.readlink()
    installed.python.unlink()
    installed.python.symlink_to("/nonexistent/python3")  # as after an upgrade of the system
    assert installed.finds("venv_works()") == "False"
    installed.python.unlink()
    installed.python.symlink_to(real)
    installed.root = installed.root.rename(tmp_path / "moved")
    done = installed.set_up()
    assert done.returncode == 0, done.stdout
    assert f"making {tmp_path}/moved/.venv" in done.stdout
    assert installed.has("small")


LACKING = ["ensurepip", "venv"]
"""Debian's Python has not the one, python3-minimal neither."""


def lacks(checkout: Checkout, directory: Path, module: str) -> Path:
    """Has the Python that sets it up lack this module, until the file is removed that this returns."""
    directory.mkdir()
    file = directory / f"{module}.py"
    file.write_text(f"raise ImportError('No module named {module}')\n")
    checkout.environ["PYTHONPATH"] = str(directory)
    return file


def test_a_python_that_cannot_make_environments_gets_the_system_s_package(checkout: Checkout, tmp_path: Path) -> None:
    lacking = lacks(checkout, tmp_path / "lacking", "ensurepip")
    commands = {
        "apt-get": f'echo "$@" >> {tmp_path}/calls; case "$*" in *install*) /bin/rm {lacking};; esac',
        "apt-cache": "exit 0",
        "sudo": 'shift; [ "$1" = true ] || exec /usr/bin/"$@"',
    }
    for name, script in commands.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    done = checkout.set_up()
    assert done.returncode == 0, done.stdout
    assert "No module named ensurepip" in done.stdout
    assert (tmp_path / "calls").read_text().strip().endswith(f"install -y --no-install-recommends {PACKAGE}")
    assert checkout.has("small")


def test_without_root_the_one_command_is_said_and_nothing_half_made_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    world = BareHost(tmp_path)
    world.command("python", "echo 'No module named ensurepip'; exit 1")
    monkeypatch.setattr(bootstrap, "VENV", tmp_path / ".venv")
    monkeypatch.setattr(sys, "executable", str(world.bin / "python"))
    with pytest.raises(SystemExit):
        bootstrap.make_venv(replace(world.host, is_root=False))
    last = capsys.readouterr().out.splitlines()[-1].strip()
    assert last == f"run this as root, then try again: apt-get update && apt-get install {PACKAGE}"
    assert not (tmp_path / ".venv").exists()


@pytest.mark.parametrize("module", LACKING)
def test_when_no_way_works_the_reason_is_said(checkout: Checkout, tmp_path: Path, module: str) -> None:
    lacks(checkout, tmp_path / "lacking", module)
    done = checkout.set_up()
    assert done.returncode == 1
    assert f"No module named {module}" in done.stdout
    assert f"there is no apt-get here that could install {PACKAGE}" in done.stdout
    assert not (checkout.root / ".venv").exists()


def test_an_old_python_can_read_it_far_enough_to_look_for_a_newer_one() -> None:
    ast.parse((ROOT / "tools" / "bootstrap.py").read_text(), feature_version=(3, 8))


def test_an_interrupted_set_up_says_so_in_one_line(installed: Checkout) -> None:
    with (installed.root / "pyproject.toml").open("a") as project:
        project.write("# changed\n")
    (installed.root / "backend.py").write_text("print('backend runs', flush=True)\nimport signal\nsignal.pause()\n")
    process = subprocess.Popen(
        [PYTHON, "-P", "tools/bootstrap.py"],
        cwd=installed.root,
        env=installed.environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    lines = iter(process.stdout.readline, "")
    for line in lines:
        if "--editable" in line:
            break
    for line in lines:
        if "| " in line:  # pip is at work
            break
    process.send_signal(signal.SIGINT)
    rest = list(lines)
    assert process.wait(60) == 130
    process.stdout.close()
    assert rest[-1] == "pwgrid set-up: interrupted\n"
    assert "Traceback" not in "".join(rest)
