"""Makes .venv and installs pwgrid into it, with nothing but a Python 3.11+ to start from. Run by make.

What it installs is pinned with hashes in requirements.txt and requirements-dev.txt (`make lock`). A second run finds
nothing to do and returns at once. Imports only the standard library and pwgrid/setup/packages.py, which does the same.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pwgrid.setup.packages import Host

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "grid"
VENV = ROOT / ".venv"
STATE = VENV / ".pwgrid.json"
LOCK, LOCK_DEV = ROOT / "requirements.txt", ROOT / "requirements-dev.txt"
OLDEST = (3, 11)


def say(text: str) -> None:
    print(f"pwgrid set-up: {text}", flush=True)  # noqa: T201


def fail(text: str) -> None:
    say(text)
    raise SystemExit(1)


def use_a_python_that_is_new_enough() -> None:
    """Executes this script again with a newer Python if this one is too old."""
    if sys.version_info >= OLDEST:
        return
    for name in ("python3.13", "python3.12", "python3.11"):
        if found := shutil.which(name):
            os.execv(found, [found, *sys.argv])
    fail(f"Python 3.11 or newer is needed, this is {sys.version.split()[0]} (set PYTHON=/path/to/python3)")


def state() -> dict[str, object]:
    """What the last complete run recorded; empty when there was none."""
    try:
        found = json.loads(STATE.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def state_of(*, dev: bool) -> dict[str, object]:
    """What an installation is made from. Another checkout, Python, project file or lock is another installation."""
    project = hashlib.sha256(b"".join(path.read_bytes() for path in (ROOT / "pyproject.toml", LOCK, LOCK_DEV)))
    return {
        "root": str(ROOT),
        "python": os.path.realpath(VENV / "bin" / "python"),
        "project": project.hexdigest(),
        "dev": dev,
        "playwright": locked_playwright(),
    }


def locked_playwright() -> str | None:
    """The version of Playwright in the lock."""
    found = re.search(r"^playwright==([^ \\]+)", LOCK.read_text(), re.MULTILINE)
    return found[1] if found else None


def playwright_of_user() -> str | None:
    """The version of Playwright in .venv when it is not the one that the last run installed there, else None."""
    wrote = state().get("playwright")
    for path in VENV.glob("lib/python*/site-packages/playwright-*.dist-info"):
        version = path.name.removeprefix("playwright-").removesuffix(".dist-info")
        return None if wrote in (None, version) else version
    return None


def is_installed(*, dev: bool) -> bool:
    """Whether the last run did all that this one would."""
    found = state()
    wanted = state_of(dev=dev or bool(found.get("dev")))  # an installation for the tests has all of the other
    return found == wanted and os.access(str(wanted["python"]), os.X_OK)


def venv_works() -> bool:
    """Whether there is a virtual environment that was made here, whose Python still exists, and which has pip."""
    found, now = state(), state_of(dev=False)
    if any(name in found and found[name] != now[name] for name in ("root", "python")):
        return False
    return fault_of(str(VENV / "bin" / "python"), "-c", "import pip") is None


def make_venv(host: Host) -> None:
    """Makes the virtual environment, with pip. Installs the system's package if Python lacks the modules for it."""
    if venv_works():
        return
    say(f"making {VENV} with Python {sys.version.split()[0]}")
    fault = fault_of(sys.executable, "-c", "import ensurepip, venv")
    if fault is not None:  # Debian and Ubuntu have them in a separate package
        say(fault)
        package = f"python{sys.version_info.major}.{sys.version_info.minor}-venv"
        fault = host.install("python", (package, "python3-venv"))
    if fault is None:
        fault = fault_of(sys.executable, "-m", "venv", "--clear", str(VENV))
    if fault is not None:
        shutil.rmtree(VENV, ignore_errors=True)
        to_do = host.left_to_do()
        fail(f"cannot make it: {fault}" + (f"\n  run this as root, then try again: {to_do}" if to_do else ""))


def fault_of(*command: str) -> str | None:
    """Runs a command without showing its output. None when it worked, else the last line of it."""
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
    """Installs exactly the packages of the lock, then the project itself, whose code runs from this checkout."""
    kept = playwright_of_user()
    say(f"installing pwgrid{' with the tools for its tests' if dev else ''} (a minute or two at the first time)")
    STATE.unlink(missing_ok=True)
    lock = LOCK_DEV if dev else LOCK
    if kept is not None:
        say(f"keeping Playwright {kept}, which you have installed")
        pins = re.sub(r"^playwright==.*\n(?: .*\n)*", "", lock.read_text(), flags=re.MULTILINE)
        lock = VENV / lock.name
        lock.write_text(pins)
    # Without --only-binary pip would build a package without a wheel for this Python, with tools that are not locked.
    pip_install(host, "--no-deps", "--require-hashes", "--only-binary", ":all:", "--requirement", str(lock))
    pip_install(host, "--no-deps", "--no-build-isolation", "--editable", str(ROOT))
    # Compiled now: the user of a service may not write here, and would compile everything at each start.
    fault_of(str(VENV / "bin" / "python"), "-m", "compileall", "-q", str(SOURCES))
    STATE.write_text(json.dumps(state_of(dev=dev)))
    say("installed")


def pip_install(host: Host, *arguments: str) -> None:
    """Runs pip install; ends the script with pip's last words if that fails."""
    pip = [str(VENV / "bin" / "python"), "-m", "pip", "install", "--disable-pip-version-check", "--no-input"]
    quiet = ["--progress-bar", "off", "--root-user-action", "ignore"]
    fault = host.run([*pip, *quiet, *arguments], {"NO_COLOR": "1", "PYTHONUNBUFFERED": "1"})
    if fault is not None:
        fail(f"pip could not install the packages: {fault}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dev", action="store_true", help="also what the tests need")
    arguments = parser.parse_args()
    use_a_python_that_is_new_enough()
    if is_installed(dev=arguments.dev):
        return
    sys.path.insert(0, str(SOURCES))  # only now: an old Python could not even read these
    from pwgrid.setup.packages import Host, Steps

    host = Host(Steps(say))
    make_venv(host)
    install(host, dev=arguments.dev)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        say("interrupted")
        raise SystemExit(130) from None
