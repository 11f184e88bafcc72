"""Makes .venv and installs pwgrid into it, with nothing but a Python 3.11+ to start from. Run by make."""

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
OLDEST = (3, 11)


def say(text: str) -> None:
    print(f"pwgrid set-up: {text}", flush=True)  # noqa: T201


def fail(text: str) -> None:
    say(text)
    raise SystemExit(1)


def run(*command: str) -> bool:
    return subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, check=False).returncode == 0


def use_a_python_that_is_new_enough() -> None:
    """Re-executes this script under a newer interpreter where the default one is too old."""
    if sys.version_info >= OLDEST:
        return
    for name in ("python3.13", "python3.12", "python3.11"):
        if found := shutil.which(name):
            os.execv(found, [found, *sys.argv])
    fail(f"Python 3.11 or newer is needed, this is {sys.version.split()[0]} (set PYTHON=/path/to/python3)")


def venv_works() -> bool:
    python = VENV / "bin" / "python"
    return (
        python.exists()
        and subprocess.run([python, "-m", "pip", "--version"], capture_output=True, check=False).returncode == 0
    )


def make_venv() -> None:
    if venv_works():
        return
    say(f"making {VENV} with Python {sys.version.split()[0]}")
    shutil.rmtree(VENV, ignore_errors=True)
    quiet = subprocess.run([sys.executable, "-m", "venv", str(VENV)], capture_output=True, text=True, check=False)
    if quiet.returncode == 0:
        return
    # Debian and Ubuntu keep ensurepip in a package of its own.
    package = f"python{sys.version_info.major}.{sys.version_info.minor}-venv"
    privilege = [] if os.geteuid() == 0 else ["sudo", "-n"]
    say(f"this Python cannot make virtual environments yet: installing {package}")
    shutil.rmtree(VENV, ignore_errors=True)
    if shutil.which("apt-get") and (not privilege or shutil.which("sudo")):
        run(*privilege, "apt-get", "update", "-qq")
        for each in (package, "python3-venv"):
            if run(*privilege, "apt-get", "install", "-y", "-qq", each) and run(
                sys.executable, "-m", "venv", str(VENV)
            ):
                return
            shutil.rmtree(VENV, ignore_errors=True)
    fail(f"cannot make a virtual environment: install {package} (apt-get install {package}), then run make again")


def install(*, dev: bool) -> None:
    target = ".[dev]" if dev else "."
    say(f"installing pwgrid{' with the tools for its tests' if dev else ''} (a minute or two at the first time)")
    pip = [str(VENV / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    if not run(*pip, "--editable", target):
        fail("pip could not install the packages: see its message above")
    for stamp in (".pwgrid", ".pwgrid-dev") if dev else (".pwgrid",):
        (VENV / stamp).touch()
    say("installed")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dev", action="store_true", help="also what the tests need")
    arguments = parser.parse_args()
    use_a_python_that_is_new_enough()
    make_venv()
    install(dev=arguments.dev)


main()
