"""Makes .venv and installs pwgrid into it, with nothing but a Python 3.11+ to start from. Run by make.

A second run finds all as it was and returns at once. Standard library only; so is pwgrid/setup/packages.py.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pwgrid.setup.packages import Host

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
STATE = VENV / ".pwgrid.json"
OLDEST = (3, 11)


def say(text: str) -> None:
    print(f"pwgrid set-up: {text}", flush=True)  # noqa: T201


def fail(text: str) -> None:
    say(text)
    raise SystemExit(1)


def use_a_python_that_is_new_enough() -> None:
    """Re-executes this script under a newer interpreter where the default one is too old."""
    if sys.version_info >= OLDEST:
        return
    for name in ("python3.13", "python3.12", "python3.11"):
        if found := shutil.which(name):
            os.execv(found, [found, *sys.argv])
    fail(f"Python 3.11 or newer is needed, this is {sys.version.split()[0]} (set PYTHON=/path/to/python3)")


def state() -> dict[str, object]:
    """What the last run that came to its end wrote down; empty when there is none."""
    try:
        found = json.loads(STATE.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def state_of(*, dev: bool) -> dict[str, object]:
    """What an installation was made from. Another checkout, Python or list of packages is another installation."""
    project = hashlib.sha256((ROOT / "pyproject.toml").read_bytes()).hexdigest()
    return {"root": str(ROOT), "python": os.path.realpath(VENV / "bin" / "python"), "project": project, "dev": dev}


def is_installed(*, dev: bool) -> bool:
    """Whether the last run did all that this one would."""
    found = state()
    wanted = state_of(dev=dev or bool(found.get("dev")))  # what the tests need is more, not something else
    return found == wanted and os.access(str(wanted["python"]), os.X_OK)


def venv_works() -> bool:
    """Whether there is a virtual environment that was made here, of a Python that is still there, and has a pip."""
    found, now = state(), state_of(dev=False)
    if any(name in found and found[name] != now[name] for name in ("root", "python")):
        return False
    return fault_of(str(VENV / "bin" / "python"), "-c", "import pip") is None


def make_venv(host: Host) -> None:
    """Makes the virtual environment, with pip. No step of it needs root but the last."""
    from tools.pip_wheel import PipUnavailable

    if venv_works():
        return
    say(f"making {VENV} with Python {sys.version.split()[0]}")
    faults = []
    for way in (pip_of_python, pip_of_index, partial(pip_of_system, host)):
        try:
            fault = way()
        except PipUnavailable as error:
            fault = str(error)
            say(fault)
        if fault is None:
            return
        faults.append(fault)
    shutil.rmtree(VENV, ignore_errors=True)
    if to_do := host.left_to_do():
        faults.append(f"run this as root, then try again: {to_do}")
    fail("cannot make a virtual environment with pip:\n  " + "\n  ".join(dict.fromkeys(faults)))


def empty_venv() -> str | None:
    """A virtual environment without pip. None when it was made, else why not."""
    shutil.rmtree(VENV, ignore_errors=True)
    return fault_of(sys.executable, "-m", "venv", "--without-pip", str(VENV))


def pip_of_python() -> str | None:
    """The pip that most Pythons carry; Debian's and Ubuntu's have it in a package of its own."""
    return empty_venv() or fault_of(str(VENV / "bin" / "python"), "-m", "ensurepip", "--default-pip")


def pip_of_index() -> str | None:
    """The pip of the package index. Raises PipUnavailable."""
    from tools.pip_wheel import fetch, index_of

    if (fault := empty_venv()) is not None:
        return fault
    say("this Python carries no pip: getting it from the package index")
    with tempfile.TemporaryDirectory(prefix="pwgrid-setup-") as directory:
        wheel = fetch(index_of(os.environ), sys.version_info[:2], Path(directory))
        say(f"installing {wheel.name}")
        # A wheel is a zip file, and pip runs out of its own.
        pip = [str(VENV / "bin" / "python"), str(wheel / "pip"), "install", "--no-index", "--no-deps", "--no-compile"]
        return fault_of(*pip, "--disable-pip-version-check", str(wheel))


def pip_of_system(host: Host) -> str | None:
    """Debian's and Ubuntu's package, for which it takes root."""
    from pwgrid.setup.packages import install_package

    package = f"python{sys.version_info.major}.{sys.version_info.minor}-venv"
    return install_package("python", {"apt-get": (package, "python3-venv")}, say, host) or pip_of_python()


def fault_of(*command: str) -> str | None:
    """Runs a command in silence. None when it worked, else what it said last."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
        )
    except OSError as error:
        return str(error)
    if done.returncode == 0:
        return None
    said = done.stdout.decode(errors="replace").strip().splitlines()
    return f"{' '.join(command[:3])}: {said[-1] if said else f'exit {done.returncode}'}"


def install(host: Host, *, dev: bool) -> None:
    """Installs the project and what it needs, so that changes of its code are in force at once."""
    STATE.unlink(missing_ok=True)
    say(f"installing pwgrid{' with the tools for its tests' if dev else ''} (a minute or two at the first time)")
    pip = [str(VENV / "bin" / "python"), "-m", "pip", "install", "--progress-bar", "off", "--no-input"]
    target = f"{ROOT}[dev]" if dev else str(ROOT)
    fault = host.run(
        [*pip, "--disable-pip-version-check", "--editable", target], say, {"NO_COLOR": "1", "PYTHONUNBUFFERED": "1"}
    )
    if fault is not None:
        fail(f"pip could not install the packages: {fault}")
    STATE.write_text(json.dumps(state_of(dev=dev)))
    say("installed")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dev", action="store_true", help="also what the tests need")
    arguments = parser.parse_args()
    use_a_python_that_is_new_enough()
    if is_installed(dev=arguments.dev):
        return
    sys.path.insert(0, str(ROOT))  # only now: an old Python could not even read these
    from pwgrid.setup.packages import Host

    host = Host()
    make_venv(host)
    install(host, dev=arguments.dev)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        say("interrupted")
        raise SystemExit(130) from None
