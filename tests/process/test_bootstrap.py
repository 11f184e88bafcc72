"""Set-up from nothing: a small project in a copy of our tools, a package index of its own, the real venv and pip."""

import ast
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.package_index import PackageIndex, package_index, pip_wheel
from tools.pip_wheel import Index, PipUnavailable, fetch, index_of

ROOT = Path(__file__).resolve().parents[2]
PYTHON = getattr(sys, "_base_executable", sys.executable)
PROJECT = """
[build-system]
requires = []
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
        wheel.writestr(info + "METADATA", "Metadata-Version: 2.1\\nName: small\\nVersion: 1\\nProvides-Extra: dev\\n")
        wheel.writestr(info + "WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr(info + "RECORD", "")
    return name
"""


@pytest.fixture
def index() -> Iterator[PackageIndex]:
    with package_index() as running:
        yield running


class Checkout:
    """A project to set up, on a host whose Python carries no pip, as Debian's."""

    def __init__(self, directory: Path, index: PackageIndex) -> None:
        self.root = directory / "checkout"
        shutil.copytree(ROOT / "tools", self.root / "tools", ignore=shutil.ignore_patterns("__pycache__"))
        (self.root / "pwgrid").mkdir()
        (self.root / "pwgrid" / "setup").mkdir()
        for name in ("__init__.py", "setup/__init__.py", "setup/packages.py"):  # all that there may be use of
            shutil.copy(ROOT / "pwgrid" / name, self.root / "pwgrid" / name)
        (self.root / "pyproject.toml").write_text(PROJECT)
        (self.root / "backend.py").write_text(BACKEND)
        no_pip = directory / "no-pip" / "ensurepip"
        no_pip.mkdir(parents=True)
        (no_pip / "__init__.py").write_text("raise ImportError('No module named ensurepip')\n")
        (directory / "bin").mkdir()
        (directory / "tmp").mkdir()
        self.environ = {
            "PATH": str(directory / "bin"),
            "HOME": str(directory),
            "TMPDIR": str(directory / "tmp"),
            "PYTHONPATH": str(directory / "no-pip"),
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_INDEX_URL": index.url,
        }

    @property
    def python(self) -> Path:
        """The Python of its virtual environment."""
        return self.root / ".venv" / "bin" / "python"

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

    def has(self, module: str) -> bool:
        """Whether its virtual environment can import this."""
        return subprocess.run([self.python, "-c", f"import {module}"], capture_output=True, check=False).returncode == 0


@pytest.fixture
def checkout(tmp_path: Path, index: PackageIndex) -> Checkout:
    return Checkout(tmp_path, index)


def test_a_python_without_pip_gets_it_from_the_index_and_a_second_run_does_nothing(
    checkout: Checkout, index: PackageIndex, tmp_path: Path
) -> None:
    wheel = pip_wheel(tmp_path)
    index.offer(wheel)
    done = checkout.set_up()
    assert done.returncode == 0, done.stdout
    assert f"installing {wheel.name}" in done.stdout
    assert checkout.has("pip")
    assert checkout.has("small")
    assert [path for path, _ in index.requests] == ["/simple/pip/", f"/files/{wheel.name}"]
    assert os.listdir(tmp_path / "tmp") == []

    again = checkout.set_up()
    assert (again.returncode, again.stdout) == (0, "")

    # What the tests need comes on top, and then there is nothing left to do for either.
    more = checkout.set_up("--dev")
    assert "with the tools for its tests" in more.stdout
    assert "making" not in more.stdout
    assert checkout.set_up("--dev").stdout == checkout.set_up().stdout == ""


def test_other_packages_are_another_installation_and_another_place_another_environment(
    checkout: Checkout, index: PackageIndex, tmp_path: Path
) -> None:
    index.offer(pip_wheel(tmp_path))
    checkout.set_up()
    with (checkout.root / "pyproject.toml").open("a") as project:
        project.write("# changed\n")
    assert "installing pwgrid" in checkout.set_up().stdout
    checkout.root = checkout.root.rename(tmp_path / "moved")
    done = checkout.set_up()
    assert f"making {tmp_path}/moved/.venv" in done.stdout
    assert checkout.has("small")


def test_an_installation_that_was_broken_off_is_finished(
    checkout: Checkout, index: PackageIndex, tmp_path: Path
) -> None:
    index.offer(pip_wheel(tmp_path))
    (checkout.root / "backend.py").write_text("raise RuntimeError('the network is gone')")
    done = checkout.set_up()
    assert done.returncode == 1
    assert "pip could not install the packages: exit" in done.stdout
    assert "the network is gone" in done.stdout
    (checkout.root / "backend.py").write_text(BACKEND)
    done = checkout.set_up()
    assert done.returncode == 0, done.stdout
    assert "making" not in done.stdout


def test_a_broken_environment_is_made_anew(checkout: Checkout, index: PackageIndex, tmp_path: Path) -> None:
    index.offer(pip_wheel(tmp_path))
    checkout.set_up()
    checkout.python.unlink()
    checkout.python.symlink_to("/nonexistent/python3")  # as after an upgrade of the system
    done = checkout.set_up()
    assert done.returncode == 0, done.stdout
    assert "making" in done.stdout


@pytest.mark.parametrize("lacks_venv", [False, True])
def test_without_an_index_or_a_venv_module_the_system_s_package_is_installed(
    checkout: Checkout, tmp_path: Path, *, lacks_venv: bool
) -> None:
    if lacks_venv:  # as with Debian's python3-minimal
        (tmp_path / "no-pip" / "venv.py").write_text("raise ImportError('No module named venv')\n")
    # The package brings what Debian took out of Python: a module that installs a wheel which lies on this host.
    wheel = str(pip_wheel(tmp_path))
    run = f"import runpy, sys\nsys.path.insert(0, {wheel!r})\nsys.argv[1:] = ['install', '--no-index', {wheel!r}]\n"
    (tmp_path / "ensurepip.py").write_text(f"{run}runpy.run_module('pip', run_name='__main__')\n")
    apt = tmp_path / "bin" / "apt-get"
    install = f"/bin/rm -r {tmp_path}/no-pip/* && /bin/mv {tmp_path}/ensurepip.py {tmp_path}/no-pip"
    apt.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\n{install}\n')
    (tmp_path / "bin" / "apt-cache").write_text("#!/bin/sh\n")
    for each in ("apt-get", "apt-cache"):
        (tmp_path / "bin" / each).chmod(0o755)
    (tmp_path / "bin" / "sudo").symlink_to("/bin/false")
    if os.geteuid() != 0:
        (tmp_path / "bin" / "sudo").unlink()
        (tmp_path / "bin" / "sudo").write_text('#!/bin/sh\nshift\n[ "$1" = true ] || exec /usr/bin/"$@"\n')
        (tmp_path / "bin" / "sudo").chmod(0o755)
    done = checkout.set_up()
    assert done.returncode == 0, done.stdout
    assert lacks_venv or "/pip/ answered 404" in done.stdout
    package = f"python{sys.version_info.major}.{sys.version_info.minor}-venv"
    assert (tmp_path / "calls").read_text().strip().endswith(f"install -y --no-install-recommends {package}")
    assert checkout.has("pip")


def test_when_no_way_works_each_is_named_and_nothing_half_made_is_left(checkout: Checkout) -> None:
    done = checkout.set_up()
    assert done.returncode == 1
    for reason in ("No module named ensurepip", "/pip/ answered 404", "no package manager here"):
        assert reason in done.stdout
    assert not (checkout.root / ".venv").exists()


def test_an_old_python_can_read_it_far_enough_to_look_for_a_newer_one() -> None:
    ast.parse((ROOT / "tools" / "bootstrap.py").read_text(), feature_version=(3, 8))


def test_an_interrupted_set_up_says_so_in_one_line(checkout: Checkout, index: PackageIndex, tmp_path: Path) -> None:
    index.offer(pip_wheel(tmp_path))
    (checkout.root / "backend.py").write_text("print('backend runs', flush=True)\nimport signal\nsignal.pause()\n")
    process = subprocess.Popen(
        [PYTHON, "-P", "tools/bootstrap.py"],
        cwd=checkout.root,
        env=checkout.environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    lines = iter(process.stdout.readline, "")
    for line in lines:
        if "| " in line:  # pip is at work
            break
    process.send_signal(signal.SIGINT)
    rest = list(lines)
    assert process.wait(60) == 130
    process.stdout.close()
    assert rest[-1] == "pwgrid set-up: interrupted\n"
    assert "Traceback" not in "".join(rest)


def test_a_pip_that_is_not_what_the_index_says_is_refused(index: PackageIndex, tmp_path: Path) -> None:
    index.offer(pip_wheel(tmp_path), sha256="0" * 64)
    with pytest.raises(PipUnavailable, match="its SHA-256 differs"):
        fetch(Index(index.url), (3, 11), tmp_path / "tmp")


def test_an_index_that_speaks_html_alone_serves_as_well(index: PackageIndex, tmp_path: Path) -> None:
    wheel = pip_wheel(tmp_path)
    index.offer(wheel, as_html=True)
    directory = tmp_path / "download"
    directory.mkdir()
    assert fetch(Index(index.url + "/"), (3, 11), directory).read_bytes() == wheel.read_bytes()
    with pytest.raises(PipUnavailable, match=r"has no pip for Python 3\.8"):
        fetch(Index(index.url), (3, 8), directory)


def test_user_and_password_of_the_index_are_sent_and_never_shown(index: PackageIndex, tmp_path: Path) -> None:
    url = index.url.replace("//", "//me:p%40ss@")
    with pytest.raises(PipUnavailable, match="answered 404") as caught:
        fetch(Index(url), (3, 11), tmp_path)
    assert "ss@" not in str(caught.value)
    wheel = pip_wheel(tmp_path)
    index.offer(wheel)
    (tmp_path / "download").mkdir()
    fetch(Index(url), (3, 11), tmp_path / "download")
    assert {authorization for _, authorization in index.requests} == {"Basic bWU6cEBzcw=="}


@pytest.mark.parametrize("body", [b"{", b"[]", b'{"files": [{}]}', b'{"files": 1}'])
def test_a_page_that_is_no_index_is_named(index: PackageIndex, tmp_path: Path, body: bytes) -> None:
    index.pages["/simple/pip/"] = ("application/vnd.pypi.simple.v1+json", body)
    with pytest.raises(PipUnavailable, match="is no page of a package index"):
        fetch(Index(index.url), (3, 11), tmp_path)


def test_an_index_that_cannot_be_reached_is_named_with_the_reason(tmp_path: Path) -> None:
    with package_index() as gone:
        url = gone.url
    with pytest.raises(PipUnavailable, match=r"cannot be reached: .*refused"):
        fetch(Index(url), (3, 11), tmp_path)


def test_a_proxy_is_asked_instead_of_the_host(index: PackageIndex, tmp_path: Path) -> None:
    page = "http://index.invalid/simple/pip/"
    index.pages[page] = ("text/html", b"<html></html>")
    environ = {"PIP_INDEX_URL": "http://index.invalid/simple", "PIP_PROXY": index.url, "HOME": str(tmp_path)}
    with pytest.raises(PipUnavailable, match="has no pip for"):
        fetch(index_of(environ, tmp_path), (3, 11), tmp_path)
    assert index.requests == [(page, None)]
